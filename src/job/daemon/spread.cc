// Pawld and the others: replica streams, progress up and down the tree, the rendezvous store at the tree's root.
#include <algorithm>
#include <future>

#include "base/log.h"
#include "env/network.h"
#include "job/daemon/pawld.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {
constexpr std::size_t kEarlyFramesMax = 4096;
}  // namespace

// --- Places in the ring, which is also the tree: position p has the children 2p+1 and 2p+2.

RingOptions Pawld::ring() const {
  return {spec_.node_count * spec_.seats_per_node, spec_.seats_per_node, spec_.replica_count};
}

std::optional<std::uint32_t> Pawld::position_of(NodeId node) const {
  for (const Member& member : state_->seats)
    if (member.life.node == node) return ring_position(member.seat, ring());
  return std::nullopt;
}

std::optional<NodeId> Pawld::node_at(std::uint32_t position) const {
  const std::size_t seat = std::size_t{position} * spec_.seats_per_node;
  if (!state_ || seat >= state_->seats.size()) return std::nullopt;
  return state_->seats[seat].life.node;
}

std::uint32_t Pawld::my_position() const {
  return position_of(self_.node).value_or(0);
}
bool Pawld::is_root() const {
  return is_member() && my_position() == 0;
}

// --- Streams

void Pawld::start_streams() {
  const std::uint32_t mine = my_position();
  for (const Member& member : state_->seats) {
    if (!(member.life == self_)) continue;
    const ArenaHandle arena = memory_->find(ArenaKind::own, member.seat);
    if (!arena || !senders_[member.seat].empty()) continue;
    const std::vector<std::uint32_t> holders = holder_positions(member.seat, ring());
    for (std::uint32_t i = 0; i < holders.size(); ++i) {
      if (holders[i] == mine) continue;
      const Member& holder = state_->seats[std::size_t{holders[i]} * spec_.seats_per_node];
      Hello hello_data = hello(Purpose::data);
      hello_data.seat = member.seat;
      hello_data.expected = holder.life.incarnation;
      senders_[member.seat].push_back(ReplicaSender::start(
          {.hello = hello_data,
           .address = holder.address,
           .holder_index = i,
           .arena = arena,
           .context = context_,
           .on_held = [this](Step) { loop_->post([this] { report_progress(); }); },
           .on_refused = [](const Error& error) { log_error("replica_stream_refused", "why", error.what); }}));
    }
  }
}

void Pawld::end_streams() {
  for (auto& [seat, senders] : senders_)
    for (auto& sender : senders) sender->end();
  senders_.clear();
  for (auto& [seat, receiver] : receivers_) receiver->end();
  receivers_.clear();
  for (auto& fetch : fetches_) fetch->end();
  for (auto& server : fetch_servers_)
    if (auto alive = server.lock()) alive->end();
  fetch_servers_.clear();
  hold_changed_.notify_all();
}

void Pawld::adopt_data(const std::shared_ptr<Connection>& connection, const Hello& hello) {
  auto old = receivers_.find(hello.seat);
  const bool busy = old != receivers_.end() && !old->second->finished();
  if (busy) old->second->end();  // the sender came back on a new connection: one thread a seat, so wait for the old one
  if (busy || state_->phase != JobPhase::running || running_ != state_->generation) {
    connection->send(frame_of(PeerRefusedMessage{PeerRefusal::later, "not yet"}));
    return;
  }
  connection->send(frame_of(WelcomeMessage{self_.node, self_.incarnation}));
  peers_.erase(connection);
  receivers_[hello.seat] =
      ReplicaReceiver::start({.fd = connection->release(),
                              .generation = state_->generation,
                              .seat = hello.seat,
                              .job = options_.job,
                              .context = context_,
                              .arena_for = [this](const ArenaSpec& spec) { return arena_on_loop(spec, false); }});
}

void Pawld::adopt_fetch(const std::shared_ptr<Connection>& connection) {
  if (frozen_ < state_->generation) {
    connection->send(frame_of(PeerRefusedMessage{PeerRefusal::later, "not frozen yet"}));
    return;
  }
  connection->send(frame_of(WelcomeMessage{self_.node, self_.incarnation}));
  peers_.erase(connection);
  fetch_servers_.push_back(
      FetchServer::start({.fd = connection->release(), .context = context_, .find = [this](ArenaKind kind, Seat seat) {
                            auto promise = std::make_shared<std::promise<ArenaHandle>>();
                            auto future = promise->get_future();
                            loop_->post([this, kind, seat, promise] { promise->set_value(memory_->find(kind, seat)); });
                            return future.get();
                          }}));
}

void Pawld::on_notice(TrainerProcess& place) {
  if (!place.seat) return;
  auto senders = senders_.find(*place.seat);
  if (senders != senders_.end())
    for (auto& sender : senders->second) sender->notice();
  report_progress();
}

// --- Progress

SeatReport Pawld::local_report() {
  std::optional<SeatReport> all;
  const std::uint64_t every_holder = (std::uint64_t{1} << spec_.replica_count) - 1;
  for (TrainerProcess& place : trainers_->places()) {
    if (!place.seat) continue;
    SeatReport report{progress_, 0, 0};
    const ArenaHandle arena = memory_->find(ArenaKind::own, *place.seat);
    if (arena && place.page != nullptr && place.seated == state_->generation) {
      const Step reached(place.page->reached.load(std::memory_order_acquire));  // before the slots
      std::vector<SlotView> slots;
      for (std::uint32_t i = 0; i < arena->arena.slot_count(); ++i) {
        const Slot slot = arena->arena.slot(i);
        const SlotWord word = slot.word();  // one look: acknowledgements of another step must not count for this one
        slots.push_back({word, (slot.acknowledged(word) & every_holder) == every_holder});
      }
      report = report_of(slots, reached, state_->generation, progress_);
    }
    all = all ? combine(*all, report) : report;
  }
  return all.value_or(SeatReport{progress_, 0, 0});
}

void Pawld::report_progress() {
  if (ending_ || !state_ || state_->phase != JobPhase::running || running_ != state_->generation || !is_member())
    return;
  SeatReport report = local_report();
  const std::uint32_t mine = my_position();
  for (std::uint32_t child : {2 * mine + 1, 2 * mine + 2}) {
    const auto node = node_at(child);
    if (!node) continue;
    auto known = child_reports_.find(*node);
    report = combine(report, known != child_reports_.end() ? known->second : SeatReport{progress_, 0, 0});
  }
  if (mine == 0) {
    const Progress next = advance(progress_, report);
    if (next != progress_) set_progress(next);
    return;
  }
  if (last_report_ == report) return;
  const bool sent = neighbours_->send(*node_at((mine - 1) / 2), frame_of(ReportMessage{state_->generation, report}));
  if (sent) last_report_ = report;
}

void Pawld::set_progress(Progress progress) {
  const bool committed = progress.committed != progress_.committed;
  progress_ = progress;
  progress_bits_ = progress.pack();
  for (TrainerProcess& place : trainers_->places()) {
    if (place.page == nullptr || !place.seat) continue;
    place.page->progress.store(progress.pack(), std::memory_order_release);
    if (committed && place.event) place.event->raise();
  }
  const std::uint32_t mine = my_position();
  for (std::uint32_t child : {2 * mine + 1, 2 * mine + 2})
    if (const auto node = node_at(child))
      neighbours_->send(*node, frame_of(ProgressMessage{state_->generation, progress}));
  if (committed) consider_finish();
}

// --- Links

void Pawld::on_link_up(NodeLife life) {
  if (!state_ || !is_member()) return;
  const std::uint32_t mine = my_position();
  last_report_.reset();
  report_progress();
  if (const auto position = position_of(life.node);
      position && (*position == 2 * mine + 1 || *position == 2 * mine + 2))
    neighbours_->send(life.node, frame_of(ProgressMessage{running_, progress_}));
  if (node_at(0) != life.node) return;
  for (const auto& [id, wait] : store_waits_) send_to_root(id, wait.request);
}

void Pawld::on_link_answer(NodeLife, Frame& frame) {
  const auto wait = store_waits_.find(frame.id);
  PeerValueMessage value;
  if (!is<PeerValueMessage>(frame) || wait == store_waits_.end() || !decode(frame.payload, value)) return;
  const OnStoreAnswer on_answer = std::move(wait->second.on_answer);
  store_waits_.erase(wait);
  on_answer(value.answer);
}

void Pawld::on_link_incoming(NodeLife life, const std::shared_ptr<Connection>& connection, Frame& frame) {
  if (is<BeatMessage>(frame)) return connection->send(frame_of(BeatBackMessage{}));
  const Generation generation = generation_of(frame);
  if (is<PeerRendezvousMessage>(frame) && generation > store_generation_) {
    if (early_frames_.size() < kEarlyFramesMax) early_frames_.push_back({generation, life, connection, frame});
    return;
  }
  if (!state_ || generation != state_->generation) return;  // of another generation: its sender repeats what matters
  if (const auto report = message_in<ReportMessage>(frame)) {
    if (running_ != generation) return;
    child_reports_[life.node] = report->report;
    report_progress();
  } else if (const auto told = message_in<ProgressMessage>(frame)) {
    const Progress progress = join(progress_, told->progress);
    if (running_ != generation || progress == progress_) return;
    set_progress(progress);
    report_progress();
  } else if (auto asked = message_in<PeerRendezvousMessage>(frame)) {
    if (!is_root()) return;
    serve_store(std::move(asked->request),
                [weak = std::weak_ptr<Connection>(connection), id = frame.id](const RendezvousAnswer& answer) {
                  if (auto alive = weak.lock()) alive->send(frame_of(PeerValueMessage{answer}, id));
                });
  }
}

// --- The rendezvous store

// Entered once a generation is known here, before anybody of it is answered; what came early is taken up then.
void Pawld::enter_store() {
  if (store_generation_ == state_->generation) return;
  store_generation_ = state_->generation;
  store_ = RendezvousStore();
  store_waits_.clear();
  for (const std::string& record : rendezvous_log_->records(store_generation_))
    if (!store_.replay(record)) log_error("store_record_refused", "generation", store_generation_);
  take_early_frames();
}

void Pawld::take_early_frames() {
  std::vector<EarlyFrame> early;
  early.swap(early_frames_);
  for (EarlyFrame& one : early) {
    if (one.generation > store_generation_) {
      early_frames_.push_back(std::move(one));
    } else if (auto alive = one.connection.lock()) {
      on_link_incoming(one.life, alive, one.frame);
    }
  }
}

void Pawld::ask_store(RendezvousRequest request, OnStoreAnswer on_answer) {
  if (is_root()) return serve_store(std::move(request), std::move(on_answer));
  drop_late_store_waits();
  const std::uint64_t id = next_store_id_++;
  const Duration until =
      request.wait_ms == 0 ? Duration::max() : real_clock().now() + std::chrono::milliseconds(request.wait_ms);
  const auto wait = store_waits_.emplace(id, StoreWait{std::move(request), std::move(on_answer), until}).first;
  send_to_root(id, wait->second.request);  // without a link: when there is one
}

void Pawld::send_to_root(std::uint64_t id, const RendezvousRequest& request) {
  if (const auto root = node_at(0))
    neighbours_->send(*root, frame_of(PeerRendezvousMessage{state_->generation, request}, id));
}

void Pawld::serve_store(RendezvousRequest request, OnStoreAnswer on_answer) {
  const bool changes = store_.is_new_change(request);
  if (changes) {  // first where it lasts, or a pawld after us would not know what this one has answered
    const Status kept = rendezvous_log_->append(store_generation_, RendezvousStore::record_of(request),
                                                [this] { return store_.records(); });
    if (!kept) return on_answer({false, {}, kept.error().what});
  }
  if (const auto answer = store_.apply(request)) {
    on_answer(*answer);
  } else if (request.op == RendezvousOp::get) {
    drop_late_store_waits();
    const Duration until =
        request.wait_ms == 0 ? Duration::max() : real_clock().now() + std::chrono::milliseconds(request.wait_ms);
    store_waits_.emplace(next_store_id_++, StoreWait{std::move(request), std::move(on_answer), until});
    return;
  }
  if (!changes) return;
  std::vector<StoreWait> answered;
  for (auto wait = store_waits_.begin(); wait != store_waits_.end();) {
    const bool match = wait->second.request.key == request.key && store_.apply(wait->second.request).has_value();
    if (match) answered.push_back(std::move(wait->second));
    wait = match ? store_waits_.erase(wait) : std::next(wait);
  }
  for (const StoreWait& wait : answered)
    if (const auto answer = store_.apply(wait.request)) wait.on_answer(*answer);
}

void Pawld::drop_late_store_waits() {
  const Duration now = real_clock().now();
  std::erase_if(store_waits_, [now](const auto& wait) { return wait.second.until < now; });
}

// --- Drills

void Pawld::hold_thread(const char* phase, const std::atomic<bool>& ended) {
  std::unique_lock lock(hold_mutex_);
  auto held = [&] { return holds_.count(phase) > 0 && !ended; };
  if (!held()) return;
  holds_[phase] = true;
  while (held()) hold_changed_.wait_for(lock, 5ms);
}

}  // namespace pawl::job
