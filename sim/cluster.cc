#include "cluster.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "job/daemon/persist.h"
#include "job/membership/node_report.h"

namespace pawl::sim {

using namespace std::chrono_literals;
using job::JobPhase;
using job::SlotState;

namespace {
constexpr Duration kLookEvery = 25ms;
constexpr Duration kHandedOver = 100ms;  // on a crowded machine a keeper may read that late
constexpr Duration kToldWithin = 4s;     // besides the deadline for a leader that is away
}  // namespace

Cluster::Cluster(const ClusterOptions& chosen)
    : options(chosen),
      scheduler(chosen.seed),
      machines(scheduler, chosen.members + chosen.spares, chosen.bytes_a_second),
      control(machines),
      may_be_evicted_until(machines.count(), Duration::zero()),
      pawld_began_at(machines.count(), Duration::zero()),
      may_be_late_until(machines.count(), Duration::zero()),
      began(scheduler.now()),
      told_(kToldWithin + 2 * std::chrono::milliseconds(chosen.deadline_ms)) {
  scheduler.long_delay = options.long_delay;
  for (std::uint32_t i = 0; i < machines.count(); ++i) machines.at(i).memory->ns_a_byte = options.ns_a_byte;
  spec.job = job;
  spec.node_count = options.members;
  spec.seats_per_node = options.seats_per_node;
  spec.spare_count = options.spares;
  spec.replica_count = options.replicas;
  spec.domains = options.domains.empty() ? "" : "file:sim";
  spec.fewer_domains = options.fewer_domains;
  spec.deadline_ms = options.deadline_ms;
  spec.hang_ms = static_cast<std::uint64_t>(kHang / 1ms);
  spec.start_ms = 30000;
  spec.test_hooks = options.gate_off;
  spec.gate_off = options.gate_off;
  if (storage.is_on()) {
    spec.checkpoints.path = "/checkpoints";
    spec.checkpoints.every_steps = options.storage.every_steps;
    spec.checkpoints.every_ms = options.storage.every_ms;
    spec.checkpoints.every_auto = options.storage.every_auto;
    spec.checkpoints.keep_last = options.storage.keep_last;
    spec.checkpoints.keep_every = options.storage.keep_every;
  }
  if (options.bad_collectors)
    bad_collectors_ = std::make_unique<BadCollectors>(scheduler, options.seed, options.collectors_die);
  control.before_put = [this](Process& client, const std::string& key, std::string& value) {
    return bad_collectors_ != nullptr && key.starts_with(job::JobKeys(job).all_reports())
               ? bad_collectors_->strike(client, key, value)
               : PutFault::none;
  };
  if (options.bad_sheets)
    control.before_told = [this, sheets = job::sheet_prefix(job::JobKeys(job))](job::WatchEvent& event) {
      if (event.kind != job::WatchEvent::Kind::put || !event.kv.key.starts_with(sheets)) return true;
      const std::uint64_t trouble = sheet_troubles_() % 6;
      if (trouble == 1) event.kv.value[sheet_troubles_() % event.kv.value.size()] ^= 1;
      return trouble != 0;  // lost: what names it has to be asked for again
    };
  control.on_put = [this](const std::string& key, const std::string& value) { on_put(key, value); };
}

void Cluster::start() {
  etcdserverpb::PutRequest request;
  etcdserverpb::PutResponse response;
  job::KeyValues::Log log;
  request.set_key(job::JobKeys(job).spec());
  request.set_value(to_json(spec));
  (void)control.keys.put(request, &response, &log);
  nodes.resize(machines.count());
  for (std::uint32_t i = 0; i < machines.count(); ++i)
    scheduler.after(scheduler.between(0ms, 50ms), [this, i] { start_node(i); });
  const auto again = [this](const auto& self) -> void {
    if (over_) return;
    look();
    control.expire();
    scheduler.after(kLookEvery, [this, self] { self(self); });
  };
  again(again);
}

void Cluster::end_soon() {
  may_end_ = true;
  end_began = scheduler.now();
  storage.calm();
}

void Cluster::order(const std::string& key, const std::string* value) {
  job::KeyValues::Log log;
  if (value != nullptr) {
    etcdserverpb::PutRequest request;
    etcdserverpb::PutResponse response;
    request.set_key(key);
    request.set_value(*value);
    (void)control.keys.put(request, &response, &log);
  } else {
    etcdserverpb::DeleteRangeRequest request;
    etcdserverpb::DeleteRangeResponse response;
    request.set_key(key);
    (void)control.keys.delete_range(request, &response, &log);
  }
  control.touch();
}

void Cluster::start_node(std::uint32_t machine) {
  if (nodes[machine] != nullptr) former.push_back(std::move(nodes[machine]));
  nodes[machine] = std::make_unique<Node>(*this, machine);
  nodes[machine]->start();
}

void Cluster::replace_node(const Node& killed) {
  if (nodes[killed.machine].get() == &killed) start_node(killed.machine);
}

bool Cluster::is_well() const {
  if (!state_) return false;
  for (const job::Member& member : state_->seats) {  // the lives that sit there are those that live
    const auto& node = nodes[member.life.node.value];
    if (node == nullptr || node->is_over() || node->incarnation() != member.life.incarnation.value) return false;
  }
  return state_ && state_->phase == JobPhase::running && committed_.value >= state_->resume.value + 2 &&
         committed_in_generation_ == state_->generation.value;
}

void Cluster::violate(const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = what;
  log_error("violation", "what", what);
  scheduler.end();
}

std::string Cluster::describe() const {
  std::string out;
  if (state_) {
    out = text("generation ", state_->generation, " ", name_of(state_->phase), ", resume ", state_->resume, ", leader ",
               state_->leader.node, state_->waiting.empty() ? "" : ", waiting for " + state_->waiting);
  } else {
    out = "no state";
  }
  out += text(", committed ", committed_, ", begun ", steps_begun_);
  if (!exchanges_.empty()) {
    const auto& [key, last] = *exchanges_.rbegin();
    out += text("; exchange of generation ", key.first, " step ", key.second, ": ", last.arrived.size(), " of ",
                worlds.now().size(), last.done ? ", done" : "");
  }
  for (const KeptArena& kept : arenas_)
    for (std::uint32_t i = 0; i < kept.arena.slot_count(); ++i) {
      const job::SlotWord word = kept.arena.slot(i).word();
      out += text("; machine ", kept.machine, " ", kept.name, ".", i, " ", word.generation, "/", word.step, " ",
                  name_of(word.state), word.frozen ? " frozen" : "");
    }
  return out;
}

// --- The exchange of gradients

Cluster::Exchanged Cluster::exchange(Generation generation, Step step, Seat seat, std::uint32_t machine,
                                     std::uint32_t pid, const std::function<bool()>& interrupted,
                                     std::uint64_t& last_step) {
  auto [who, first] = who_.try_emplace({generation.value, step.value, seat.value}, pid);
  if (!first && who->second != pid)
    violate(text("two trainers did step ", step, " of seat ", seat, " in generation ", generation));
  Exchange& mine = exchanges_[{generation.value, step.value}];
  const std::size_t world = worlds.in(generation).size();
  mine.arrived[seat.value] = machine;
  const Duration failing = scheduler.between(1ms, 60ms);
  Duration broken_since{};
  for (;;) {
    if (!mine.done && mine.arrived.size() == world) {
      if (is_exchange_open(mine)) {
        mine.done = true;
        if (may_end_) mine.last_step = step.value + 1;
        const auto before = exchanges_.find({generation.value, step.value - 1});
        if (before != exchanges_.end() && before->second.last_step != 0) mine.last_step = before->second.last_step;
        scheduler.notify(mine.waiting);
      }
    }
    if (mine.done) {
      last_step = mine.last_step;
      return Exchanged::done;
    }
    if (interrupted()) return Exchanged::interrupted;
    if (broken_generations_.contains(generation.value)) {
      if (broken_since == Duration::zero()) broken_since = scheduler.now();
      if (scheduler.now() - broken_since >= failing) return Exchanged::failed;
    }
    scheduler.wait(mine.waiting, scheduler.now() + 20ms * (1 + static_cast<int>(world) / 64));
  }
}

// Between neighbours, or between any two.
bool Cluster::is_exchange_open(const Exchange& one) {
  Wires& wires = machines.wires();
  const auto is_open = [&wires](std::uint32_t a, std::uint32_t b) {
    return wires.is_open(a, b) && wires.is_open(b, a);
  };
  for (const auto& [seat, machine] : one.arrived) {
    if (options.ring_exchange &&
        !is_open(machine, one.arrived.at((seat + 1) % static_cast<std::uint32_t>(one.arrived.size()))))
      return false;
    for (const auto& [other, there] : one.arrived)
      if (!options.ring_exchange && !is_open(machine, there)) return false;
  }
  return true;
}

bool Cluster::trains_without_link(std::uint32_t a, std::uint32_t b) const {
  if (!options.ring_exchange || !state_) return false;
  const job::Ring now = ring();
  const auto position = [&](std::uint32_t machine) {
    const auto found = std::ranges::find(state_->seats, machine, [](const auto& seat) { return seat.life.node.value; });
    return found == state_->seats.end() ? now.position_count() : now.position_of(found->seat);
  };
  const std::uint32_t first = position(a), second = position(b);
  if (first == now.position_count() || second == now.position_count()) return false;
  const std::uint32_t apart = first > second ? first - second : second - first;
  const auto holds_of = [&now](std::uint32_t holder, std::uint32_t owner) {
    return std::ranges::count(now.holders_at(owner), holder) > 0;
  };
  return std::min(apart, now.position_count() - apart) > 1 && !holds_of(first, second) && !holds_of(second, first);
}

void Cluster::trainer_ended(Generation generation) {
  broken_generations_.insert(generation.value);
  for (auto& [key, one] : exchanges_)
    if (key.first == generation.value) scheduler.notify(one.waiting);
}

void Cluster::committed(Generation generation, Step step) {
  // A page shows what was committed before the job went back until its pawld has said otherwise.
  if (generation < went_back_in_ || (generation == went_back_in_ && step.value > begun_in_[generation.value])) return;
  if (step <= committed_) {
    if (state_ && state_->phase == JobPhase::running) committed_in_generation_ = state_->generation.value;
    return;
  }
  committed_ = step;
  if (state_) committed_in_generation_ = state_->generation.value;
  check_committed();
}

Seat Cluster::content_of(Seat before) const {
  constexpr std::uint32_t kOther = 2048;
  if (options.differs == before) return Seat(before.value + kOther);
  return options.equal_stride == 0 ? before : Seat(before.value % options.equal_stride);
}

void Cluster::restored(Generation generation, Seat seat, Step step, std::span<const std::byte> bytes) {
  if (generation == went_back_in_ && storage.is_flipped(step)) return;
  if (!is_state(bytes.first(std::size_t{kBuckets} * kBucketBytes), content_in(generation, seat), step, 0))
    violate(text("seat ", seat, " was given other bytes than those of step ", step));
}

// --- Memory

void Cluster::keep(std::uint32_t machine, const std::string& name, const Fd& fd) {
  drop(machine, name);
  if (!name.starts_with("own.") && !name.starts_with("replica.")) return;
  const auto size = segment_size_bytes(fd.get());
  if (!size) return;
  auto mapping = map_segment(fd.get(), *size);
  if (!mapping) return;
  KeptArena kept;
  kept.machine = machine;
  kept.name = name;
  kept.mapping = std::make_shared<Mapping>(std::move(*mapping));
  const auto arena = job::Arena::open(kept.mapping->bytes());
  if (!arena) return violate(text("machine ", machine, " keeps a segment ", name, " that is no arena"));
  kept.arena = *arena;
  kept.seen.assign(kept.arena.slot_count(), 0);
  log_debug("sim_kept", "machine", machine, "name", name);
  arenas_.push_back(std::move(kept));
}

void Cluster::drop(std::uint32_t machine, const std::string& name) {
  std::erase_if(arenas_, [&](const KeptArena& kept) { return kept.machine == machine && kept.name == name; });
}

void Cluster::drop_all(std::uint32_t machine) {
  std::erase_if(arenas_, [&](const KeptArena& kept) { return kept.machine == machine; });
}

void Cluster::look_into(KeptArena& kept) {
  for (std::uint32_t i = 0; i < kept.arena.slot_count(); ++i) {
    const job::Slot slot = kept.arena.slot(i);
    job::SlotWord word = slot.word();
    word.frozen = false;
    if (word.state != SlotState::sealed || word.pack() == kept.seen[i]) continue;
    kept.seen[i] = word.pack();
    storage.sealed(kept.arena.spec().seat, word.step);
    const Seat content = content_of(kept.arena.spec().seat);
    if (!is_state(slot.payload().first(std::size_t{kBuckets} * kBucketBytes), content, word.step, 0))
      violate(text("machine ", kept.machine, " ", kept.name, " slot ", i, " is sealed as step ", word.step,
                   " of generation ", word.generation, " and holds other bytes"));
  }
}

void Cluster::look() {
  for (KeptArena& kept : arenas_) look_into(kept);
  check_committed();
  check_told();
  if (state_) storage.look();
}

// A recovery that takes long says what it waits for, as long as the control takes what is said.
void Cluster::check_told() {
  const bool restores = state_ && state_->phase == JobPhase::restoring && state_->ran.value > 0;
  const bool heard = scheduler.now() >= nobody_speaks_until && control.downs == 0 && control.stops == 0 &&
                     std::ranges::all_of(control.cuts, [](int cuts) { return cuts == 0; });
  if (!told_.look(restores, heard, scheduler.now()))
    violate(text("generation ", state_->generation, " restores and nobody says what it waits for"));
}

// Of each seat somebody holds the greatest step that anybody knows to be committed, or a later one of the same.
void Cluster::check_committed() {
  if (committed_.value == 0 || !state_ || state_->phase == JobPhase::finished) return;
  if (options.may_go_back && !is_well()) return missing_since_.clear();
  std::vector<Step> newest(first_world());  // that is held of each seat before
  for (const KeptArena& kept : arenas_)
    for (std::uint32_t i = 0; i < kept.arena.slot_count(); ++i) {
      const std::uint32_t seat = kept.arena.spec().seat.value;
      const job::SlotWord word = kept.arena.slot(i).word();
      if (word.state == SlotState::sealed && seat < newest.size()) newest[seat] = std::max(newest[seat], word.step);
    }
  for (const Seat before : worlds.now()) {
    const std::uint32_t seat = before.value;
    bool held = newest[seat] >= committed_;
    for (std::uint32_t other = 0; other < newest.size(); ++other)  // or its bytes, as those of another seat
      held = held || (newest[other] >= committed_ && content_of(Seat(other)) == content_of(Seat(seat)));
    if (held) {
      missing_since_.erase(seat);
      continue;
    }
    // A segment that its pawld has handed over is on its way until the keeper reads it.
    const Duration since = missing_since_.try_emplace(seat, scheduler.now()).first->second;
    if (scheduler.now() - since > kHandedOver)
      return violate(text("step ", committed_, " was committed, and nobody holds it of seat ", seat));
  }
}

// --- The job's state, as it becomes true

void Cluster::on_put(const std::string& key, const std::string& value) {
  const job::JobKeys keys(job);
  if (storage.is_on() && key == job::persist_key(keys)) storage.on_record(value);
  if (storage.is_on() && key == job::last_checkpoint_key(keys)) storage.on_last_record(value);
  if (key.starts_with(keys.events())) told_.on_event(value, scheduler.now());
  if (state_ && key.starts_with(keys.readies(state_->generation))) {
    std::uint32_t node = 0;
    if (parse_number(std::string_view(key).substr(keys.readies(state_->generation).size()), node)) told_.on_ready(node);
  }
  if (state_ && key.starts_with(keys.collected(state_->generation)))
    for (const std::string_view text : job::split_reports(value))
      if (const auto report = job::parse_node_report(text); report && report->kind == job::ReportKind::ready)
        told_.on_ready(report->life.node.value);
  if (key.starts_with(keys.topologies())) {
    auto topology = job::parse_topology(value);
    if (!topology) return violate("a topology that can't be read was written: " + topology.error().what);
    topology_ = std::move(*topology);
  }
  if (key.starts_with(job::sheet_prefix(keys))) {
    sheet_ = job::sheet_in(keys, key, value);
    if (!sheet_) return violate("a sheet was written under another's name");
  }
  if (key != keys.state()) return;
  if (const auto named = job::sheet_named_by(value)) {
    etcdserverpb::RangeRequest request;
    etcdserverpb::RangeResponse response;
    request.set_key(job::sheet_key(keys, *named));
    (void)control.keys.range(request, &response);
    if (response.kvs().empty()) return violate("a state names a sheet that is not there");
  }
  const auto state = job::read_state(value, topology_ ? &*topology_ : nullptr, sheet_ ? &*sheet_ : nullptr);
  if (!state) return violate("a state that can't be read was written: " + state.error().what);
  on_state(*state);
}

void Cluster::on_state(const job::JobState& state) {
  log_info("sim_state", "generation", state.generation, "phase", name_of(state.phase), "resume", state.resume, "leader",
           state.leader.node);
  if (state_ && state.generation < state_->generation)
    return violate(text("generation ", state.generation, " follows ", state_->generation));
  if (state_ && state.generation > state_->generation) ++recoveries;
  if (state.phase == JobPhase::restoring)
    if (const std::string wrong = worlds.decided(state); !wrong.empty()) return violate(wrong);
  const auto has_seat = [](const job::JobState& of, job::NodeLife life) {
    return std::ranges::any_of(of.seats, [life](const job::Member& member) { return member.life == life; });
  };
  for (const job::NodeLife& life : state.evicted) {
    const bool leaves = state_ && has_seat(*state_, life) && !has_seat(state, life) && worlds.changes() > changes_seen_;
    if (leaves)
      may_be_evicted_until[life.node.value] = std::max(may_be_evicted_until[life.node.value], scheduler.now());
    const bool before =
        state_ && std::find(state_->evicted.begin(), state_->evicted.end(), life) != state_->evicted.end();
    if (before || may_be_evicted_until[life.node.value] >= scheduler.now()) continue;
    std::string why;
    bool late = false;
    for (const job::Cause& cause : state.causes)
      late = late || (cause.node == life && cause.detail.starts_with("missed the deadline"));
    if (late && may_be_late_until[life.node.value] >= scheduler.now()) continue;
    for (const job::Cause& cause : state.causes) why += text(" ", name_of(cause.kind), " (", cause.detail, ")");
    return violate(text("node ", life.node, " was evicted and nothing had been done to it:", why));
  }
  changes_seen_ = worlds.changes();
  const bool decided = state.phase == JobPhase::restoring && (!state_ || state_->phase != JobPhase::restoring);
  const bool was_running = state_ && state_->ran.value > 0;
  state_ = state;
  if (decided) told_.begin(scheduler.now());
  const bool is_stored = !state.sources.empty() && state.sources.front().kind == job::SourceKind::storage;
  if (decided && is_stored) go_back(state);
  if (decided) storage.goes_on_from(state.resume);
  if (decided && was_running && state.resume < committed_)
    return violate(text("generation ", state.generation, " goes back to step ", state.resume, ", and ", committed_,
                        " was committed: ", state.verdict));
  const bool drained = !state.causes.empty() && state.causes.back().kind == job::FaultKind::drain;
  if (decided && drained && options.nothing_else && state.resume.value < begun_in_[state.ran.value])
    return violate(
        text("a drain goes back to step ", state.resume, ", and ", begun_in_[state.ran.value], " had been begun"));
  if (decided && drained) ++drains;
  const bool was_stopped = options.is_stopped && state.verdict.starts_with("stopped by SIGTERM");
  if (state.phase == JobPhase::failed && !was_stopped) return violate("the job has failed: " + state.verdict);
  if (state.phase == JobPhase::finished || state.phase == JobPhase::failed) {
    over_ = true;
    scheduler.after(100ms, [this] {
      storage.check_end();
      scheduler.end();
    });
  }
}

// More has died than copies are for.
void Cluster::go_back(const job::JobState& state) {
  if (!options.may_go_back)
    return violate("the job goes on from storage, and memory has all it needs: " + state.verdict);
  log_info("sim_goes_back", "from", committed_, "to", state.resume);
  storage.went_back(state.resume);
  ++returns;
  went_back_in_ = state.generation;
  committed_ = Step(0);
  missing_since_.clear();
}

}  // namespace pawl::sim
