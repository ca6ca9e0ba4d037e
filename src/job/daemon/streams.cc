#include "job/daemon/streams.h"

#include "base/log.h"

namespace pawl::job {

Streams::Streams(NodeContext& context, Memory& memory, SeatArenas& arenas, Holds& holds,
                 const std::atomic<std::uint64_t>& progress_bits, Hooks hooks)
    : context_(context),
      memory_(memory),
      arenas_(arenas),
      holds_(holds),
      hooks_(std::move(hooks)),
      workers_([&context] { context.post([&context] { context.drive(); }); }) {
  stream_.environment = context.environment;
  stream_.workers = &workers_;
  stream_.send_limit = &send_limit_;
  stream_.progress = &progress_bits;
  stream_.bytes_sent = &context.metrics.counter("wire_sent_bytes_total", "Snapshot bytes sent to other nodes.");
  stream_.bytes_received =
      &context.metrics.counter("wire_received_bytes_total", "Snapshot bytes received from other nodes.");
  stream_.bytes_spared = &context.metrics.counter(
      "wire_spared_bytes_total", "Snapshot bytes that were not sent to other nodes at first, which capture the same.");
  stream_.hold = [&holds](const char* phase, const std::atomic<bool>& ended) { holds.wait_at(phase, ended); };
}

void Streams::start() {
  for (const Member& member : context_.mirror.state().seats) {
    if (!(member.life == context_.self)) continue;
    const ArenaHandle arena = memory_.find(ArenaKind::own, before_of(member));
    if (!arena) continue;
    std::vector<std::shared_ptr<ReplicaSender>>& senders = senders_[member.seat];
    if (!senders.empty() && senders.front()->arena() == arena) continue;
    for (auto& sender : senders) sender->end();  // of an arena that was replaced, and that they keep until they end
    senders = senders_for(member, arena);
  }
}

std::vector<std::shared_ptr<ReplicaSender>> Streams::senders_for(const Member& member, const ArenaHandle& arena) {
  const JobMirror& mirror = context_.mirror;
  const std::uint32_t mine = mirror.my_position();
  const std::vector<std::uint32_t> holders = mirror.ring().holders_of(member.seat);
  const std::vector<EqualOffer> offers = memory_.equal_offers();
  std::vector<std::shared_ptr<ReplicaSender>> senders;
  for (std::uint32_t i = 0; i < holders.size(); ++i) {
    if (holders[i] == mine) continue;
    const Member& holder = mirror.state().seats[mirror.ring().first_seat(holders[i]).value];
    Hello hello = hooks_.hello(Purpose::data);
    hello.seat = member.seat;
    hello.expected = holder.life.incarnation;
    senders.push_back(ReplicaSender::start(
        {.hello = hello,
         .address = holder.address,
         .holder_index = i,
         .holder = holder.life.node,
         .arena = arena,
         .context = stream_,
         .equal = offers_there(offers, before_of(member), seats_before(holders[i])),
         .on_held = [this](Step) { context_.post([this] { hooks_.on_held(); }); },
         .on_given_up = [this](const GivenUpStep& step) { context_.post([this, step] { hooks_.on_given_up(step); }); },
         .on_refused = [](const Error& error) { log_error("replica_stream_refused", "why", error.what); }}));
  }
  return senders;
}

// By the numbers by which layouts and arenas know seats.
std::vector<Seat> Streams::seats_before(std::uint32_t position) const {
  const JobMirror& mirror = context_.mirror;
  std::vector<Seat> seats;
  for (std::uint32_t i = 0; i < mirror.ring().seats_at(position); ++i)
    seats.push_back(before_of(mirror, Seat(mirror.ring().first_seat(position).value + i)));
  return seats;
}

void Streams::end() {
  for (auto& [seat, senders] : senders_)
    for (auto& sender : senders) sender->end();
  senders_.clear();
  for (auto& [seat, receiver] : receivers_) receiver->end();
  receivers_.clear();
  for (auto& server : fetch_servers_)
    if (auto alive = server.lock()) alive->end();
  fetch_servers_.clear();
  holds_.wake();
}

void Streams::notice(Seat seat) {
  for (auto& [ward, receiver] : receivers_) receiver->notice();
  auto senders = senders_.find(seat);
  if (senders == senders_.end()) return;
  for (auto& sender : senders->second) sender->notice();
}

std::map<std::uint32_t, std::string> Streams::obstacles(Seat seat) const {
  std::map<std::uint32_t, std::string> found;
  const auto senders = senders_.find(seat);
  if (senders == senders_.end()) return found;
  for (const auto& sender : senders->second)
    if (std::string why = sender->obstacle(); !why.empty()) found[sender->holder_index()] = std::move(why);
  return found;
}

void Streams::adopt_data(const std::shared_ptr<Connection>& connection, const Hello& hello) {
  if (hello.purpose == Purpose::lane) return adopt_lane(connection, hello);
  auto old = receivers_.find(hello.seat);
  const bool busy = old != receivers_.end() && !old->second->finished();
  if (busy) old->second->end();  // the sender came back on a new connection: one thread a seat, so wait for the old one
  if (busy || !context_.is_running())
    return connection->send(frame_of(PeerRefusedMessage{PeerRefusal::later, "not yet"}));
  connection->send(frame_of(WelcomeMessage{context_.self.node, context_.self.incarnation}));
  if (!connection->is_open()) return;  // the welcome found it closed
  const Seat seat = before_of(context_.mirror, hello.seat);
  receivers_[hello.seat] = ReplicaReceiver::start(
      {.stream = connection->release(),
       .number = hello.stream,
       .generation = context_.mirror.generation(),
       .seat = seat,
       .job = context_.job,
       .context = stream_,
       .held = [this, seat] { return arenas_.find_from_thread(ArenaKind::replica, seat); },
       .arena_for = [this, generation = context_.mirror.generation()](
                        const ArenaSpec& spec) { return arenas_.replica_from_thread(spec, generation); },
       .equal_arenas = [this] { return arenas_.equal_from_thread(); }});
}

void Streams::adopt_lane(const std::shared_ptr<Connection>& connection, const Hello& hello) {
  const auto found = receivers_.find(hello.seat);
  const bool is_known = found != receivers_.end() && hello.stream != 0 && found->second->number() == hello.stream;
  if (!is_known || !found->second->may_add_lane())
    return connection->send(frame_of(PeerRefusedMessage{PeerRefusal::stale, "no such replica stream is open here"}));
  found->second->add_lane(connection->release(),
                          frame_of(WelcomeMessage{context_.self.node, context_.self.incarnation}));
}

void Streams::adopt_fetch(const std::shared_ptr<Connection>& connection) {
  if (context_.mirror.is_in(JobPhase::running))  // slots are live: what is read may be overwritten meanwhile
    return connection->send(frame_of(PeerRefusedMessage{PeerRefusal::stale, "that recovery is over"}));
  if (context_.followed.frozen < context_.mirror.generation())
    return connection->send(frame_of(PeerRefusedMessage{PeerRefusal::later, "not frozen yet"}));
  connection->send(frame_of(WelcomeMessage{context_.self.node, context_.self.incarnation}));
  if (!connection->is_open()) return;  // the welcome found it closed
  fetch_servers_.push_back(
      FetchServer::start({.stream = connection->release(),
                          .context = stream_,
                          .find = [this](ArenaKind kind, Seat seat) { return arenas_.find_from_thread(kind, seat); },
                          .on_wrong =
                              [this](ArenaKind kind, Seat seat, SlotWord word) {
                                context_.post([this, kind, seat, word] { memory_.note_wrong(kind, seat, word); });
                              }}));
}

}  // namespace pawl::job
