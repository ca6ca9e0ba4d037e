// Pawld and its seats: what trainers ask, how a seat's state comes into this node's memory, deaths and restarts.
#include <algorithm>
#include <cstdlib>
#include <future>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "env/process.h"
#include "job/daemon/pawld.h"
#include "job/layout/seat_layout.h"
#include "pawl/pawl.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {
constexpr std::uint32_t kInvalidStatus = PAWL_INVALID;
constexpr std::uint32_t kIoStatus = PAWL_IO;
constexpr int kEarlyExitsMax = 3;
constexpr Duration kEarly = 60s;
constexpr Duration kUnfitPause = 30s;                // of a spare whose trainer does not even stay to wait
constexpr std::uint64_t kAsked = ~std::uint64_t{0};  // as a pid: the keeper was asked to start it

// Under a key of pawld's own: trainers' keys have a prefix.
RendezvousRequest about_layout(RendezvousOp op, std::string layout = {}) {
  RendezvousRequest request;
  request.op = op;
  request.key = "pawl/layout";
  request.value = std::move(layout);
  return request;
}

std::vector<std::string> shared_differences(const std::string& first, const std::string& mine) {
  auto a = parse_layout(first);
  auto b = parse_layout(mine);
  if (!a) return {"seat 0's layout: " + a.error().what};
  if (!b) return {"this seat's layout: " + b.error().what};
  return first_differences(shared_text(*a), shared_text(*b));
}
}  // namespace

const Source* Pawld::source_of(Seat seat) const {
  for (const Source& source : state_->sources)
    if (source.seat == seat) return &source;
  return nullptr;
}

void Pawld::on_trainer_request(TrainerProcess& place, const Frame& frame) {
  const MessageKind kind = kind_of(frame);
  switch (kind) {
    case MessageKind::join: {
      count_parked();
      return drive();
    }
    case MessageKind::layout:
      return on_layout(place, frame);
    case MessageKind::restore:
      return answer_restores();
    case MessageKind::restore_bad: {
      RestoreBadMessage bad;
      (void)decode(frame.payload, bad);
      place.waiting.erase(kind);
      const ArenaHandle arena = place.seat ? memory_->find(ArenaKind::own, *place.seat) : nullptr;
      if (!arena || bad.slot >= arena->arena.slot_count()) return;
      const SlotWord word = arena->arena.slot(bad.slot).word();
      return report_cause({FaultKind::corrupt_source, self_, place.seat, "own arena: " + bad.why, 0},
                          {{self_, *place.seat, SourceKind::own_arena, word.generation, word.step}});
    }
    case MessageKind::done: {
      DoneMessage done;
      (void)decode(frame.payload, done);
      return on_done(place, done.generation);
    }
    case MessageKind::fault: {
      FaultMessage fault;
      (void)decode(frame.payload, fault);
      trainers_->answer(place, kind, NotedMessage{});
      return on_fault(place, fault.generation, fault.what);
    }
    case MessageKind::rendezvous:
      return on_store(place, frame);
    case MessageKind::stop_after: {
      StopAfterMessage asked;
      (void)decode(frame.payload, asked);
      place.stop_wanted = asked.step;
      if (state_ && asked.generation == state_->generation) consider_stop();
      return;
    }
    case MessageKind::finish: {
      FinishMessage finish;
      (void)decode(frame.payload, finish);
      place.finish_step = finish.commit_first;
      place.last_step = finish.last_step;
      return consider_finish();
    }
    default:
      place.waiting.erase(kind);
      return;
  }
}

// --- Restoring

void Pawld::begin_restore() {
  const JobState& state = *state_;
  restoring_ = state.generation;
  restoring_since_ = real_clock().now();
  imported_.clear();
  imports_waiting_.clear();
  fetches_.clear();
  for (TrainerProcess& place : trainers_->places())
    if (state.cold && place.pid != 0 && place.seated.value > 0)
      kill_trainer(place, "cold restart: no step was committed yet");
  if (state.cold) memory_->drop_all();  // the new processes may declare another layout
  for (const Member& member : state.seats) {
    if (!(member.life == self_)) continue;
    const Source* source = source_of(member.seat);
    if (source == nullptr || source->kind == SourceKind::nothing) {
      imported_.insert(member.seat);
    } else if (source->kind == SourceKind::own_arena && source->from == self_) {
      imported_.insert(member.seat);
    } else {
      imports_waiting_.push_back(*source);
    }
  }
  start_missing_trainers();
}

// A seat is filled from elsewhere only once no copy thread of its trainer can touch the arena: it has joined, or is
// gone.
void Pawld::start_imports() {
  std::vector<Source> waiting;
  for (const Source& source : imports_waiting_) {
    const TrainerProcess* place = trainers_->at_seat(source.seat);
    const bool may_copy =
        place != nullptr && place->pid != 0 && place->seated.value > 0 && !place->waits_for(MessageKind::join);
    if (may_copy) {
      waiting.push_back(source);
    } else {
      import_seat(source);
    }
  }
  imports_waiting_.swap(waiting);
}

void Pawld::import_seat(const Source& source) {
  std::string address;
  if (source.from == self_) address = options_.address;  // a replica here of a seat that moves here
  for (const Member& member : state_->seats)
    if (member.life == source.from) address = member.address;
  Hello hello_fetch = hello(Purpose::fetch);
  hello_fetch.expected = source.from.incarnation;
  const Generation generation = state_->generation;
  const Duration began = real_clock().now();
  fetches_.push_back(Fetch::start({.hello = hello_fetch,
                                   .address = address,
                                   .source = source,
                                   .context = context_,
                                   .arena_for = [this](const ArenaSpec& spec) { return arena_on_loop(spec, true); },
                                   .on_done =
                                       [this, generation, source, began](Status status, std::uint64_t bytes) {
                                         const Duration took = real_clock().now() - began;
                                         auto shared = std::make_shared<Status>(std::move(status));
                                         loop_->post([this, generation, source, shared, bytes, took] {
                                           imported(generation, source, std::move(*shared), bytes, took);
                                         });
                                       }}));
}

void Pawld::imported(Generation generation, Source source, Status status, std::uint64_t bytes, Duration took) {
  if (!state_ || state_->generation != generation || restoring_ != generation) return;
  if (status) {
    imported_.insert(source.seat);
    std::erase_if(struck_here_,
                  [&](const Struck& s) { return s.seat == source.seat && s.kind == SourceKind::own_arena; });
    tell_event("seat_restored", Json{{"seat", source.seat.value},
                                     {"source", name_of(source.kind)},
                                     {"from", source.from.node.value},
                                     {"bytes", bytes},
                                     {"ms", static_cast<double>(took / 1us) / 1000.0}}
                                    .dump());
    return drive();
  }
  if (status.error().code == Code::cancelled) return;
  if (status.error().code == Code::invalid)
    return report_cause({FaultKind::layout_conflict, std::nullopt, source.seat, status.error().what, 0});
  log_error("import_failed", "seat", source.seat, "step", source.step, "from", source.from.node, "why",
            status.error().what);
  report_cause({FaultKind::corrupt_source, source.from, source.seat,
                text(name_of(source.kind), " at node ", source.from.node, ": ", status.error().what), 0},
               {{source.from, source.seat, source.kind, source.slot_generation, source.step}});
}

void Pawld::seat_trainers() {
  start_imports();
  for (TrainerProcess& place : trainers_->places()) {
    if (!place.seat || place.dying || place.seated == state_->generation || !place.waits_for(MessageKind::join))
      continue;
    if (held_back("seated")) return;
    place.seated = state_->generation;
    place.busy_at = real_clock().now();
    place.ended.clear();
    early_exits_.erase(place.index);
    trainers_->answer(place, MessageKind::join,
                      SeatedMessage{.generation = state_->generation,
                                    .seat = *place.seat,
                                    .world = static_cast<std::uint32_t>(state_->seats.size()),
                                    .local_rank = place.index,
                                    .resume = state_->resume,
                                    .store_prefix = text("g", state_->generation)});
  }
  answer_restores();
}

void Pawld::answer_restores() {
  if (!state_ || state_->phase != JobPhase::restoring || restoring_ != state_->generation) return;
  for (TrainerProcess& place : trainers_->places()) {
    if (!place.seat || !place.waits_for(MessageKind::restore) || imported_.count(*place.seat) == 0) continue;
    const Source* source = source_of(*place.seat);
    const ArenaHandle arena = memory_->find(ArenaKind::own, *place.seat);
    Slot slot;
    std::uint32_t index = 0;
    if (source == nullptr || !arena || !find_sealed(arena->arena, source->slot_generation, source->step, slot, index)) {
      trainers_->answer(place, MessageKind::restore, RefusedMessage{kInvalidStatus, "there is no step to restore"});
      continue;
    }
    trainers_->answer(place, MessageKind::restore, SlotMessage{index, source->slot_generation, source->step});
  }
}

Result<ArenaHandle> Pawld::arena_on_loop(const ArenaSpec& spec, bool keep_sealed) {
  auto promise = std::make_shared<std::promise<Result<ArenaHandle>>>();
  auto future = promise->get_future();
  loop_->post([this, spec, keep_sealed, promise] {
    promise->set_value(keep_sealed ? own_arena(spec) : memory_->arena_for(spec));
  });
  return future.get();
}

// The own arena for `spec`; never in the place of one that may be needed and has another layout.
Result<ArenaHandle> Pawld::own_arena(const ArenaSpec& spec) {
  const ArenaHandle held = memory_->find(ArenaKind::own, spec.seat);
  if (held && held->arena.spec().layout_digest != spec.layout_digest) {
    bool sealed = false;
    for (std::uint32_t i = 0; i < held->arena.slot_count(); ++i)
      sealed |= held->arena.slot(i).word().state == SlotState::sealed;
    if (sealed && !(state_ && state_->cold)) {
      std::string differences = "the layout of its snapshot differs from what the trainer declares";
      for (const std::string& difference : first_differences(held->arena.spec().layout, spec.layout, 5))
        differences += "; " + difference;
      return Error{Code::invalid, differences};
    }
  }
  return memory_->arena_for(spec);
}

void Pawld::on_layout(TrainerProcess& place, const Frame& frame) {
  LayoutMessage declared;
  if (!decode(frame.payload, declared) || !place.seat)
    return trainers_->answer(place, MessageKind::layout, RefusedMessage{kInvalidStatus, "a layout before a seat"});
  ArenaSpec spec;
  spec.job = options_.job;
  spec.kind = ArenaKind::own;
  spec.payload_bytes = declared.payload_bytes;
  spec.stable_bytes = declared.stable_bytes;
  spec.bucket_bytes = declared.bucket_bytes;
  spec.layout_digest = declared.layout_digest;
  spec.layout = std::move(declared.layout);
  spec.seat = *place.seat;
  auto arena = own_arena(spec);
  if (!arena) {
    log_error("layout_refused", "seat", spec.seat, "why", arena.error().what);
    layout_refusal_ = arena.error().what;
    const std::uint32_t status = arena.error().code == Code::invalid ? kInvalidStatus : kIoStatus;
    return trainers_->answer(place, MessageKind::layout, RefusedMessage{status, arena.error().what});
  }
  // Seats must agree on what they share. A snapshot that is restored has its layout with it; at a fresh start seat 0's
  // is the yardstick.
  if (state_->resume.value > 0 || spec.seat.value == 0) {
    if (state_->resume.value == 0)
      ask_store(about_layout(RendezvousOp::set, spec.layout), [](const RendezvousAnswer&) {});
    return grant_arena(place, *arena);
  }
  ask_store(about_layout(RendezvousOp::get),
            [this, index = place.index, mine = spec.layout, held = *arena](const RendezvousAnswer& first) {
              TrainerProcess& asking = trainers_->places()[index];
              const std::vector<std::string> differences = shared_differences(first.value, mine);
              if (differences.empty()) return grant_arena(asking, held);
              std::string why = "the seats declare different shared state (seat 0 first):";
              for (const std::string& difference : differences) why += " " + difference + ";";
              log_error("layout_refused", "seat", *asking.seat, "why", why);
              trainers_->answer(asking, MessageKind::layout, RefusedMessage{kInvalidStatus, why});
              report_cause({FaultKind::layout_conflict, std::nullopt, asking.seat, why, 0});
            });
}

void Pawld::on_store(TrainerProcess& place, const Frame& frame) {
  const std::uint64_t id = frame.id;
  RendezvousMessage asked;
  auto refuse = [&](const char* why) { trainers_->answer_rendezvous(place, id, RefusedMessage{kInvalidStatus, why}); };
  if (!decode(frame.payload, asked)) return refuse("not a request to the store");
  if (!state_ || !place.seat || place.page == nullptr) return refuse("the store is for who has a seat");
  if (asked.generation != state_->generation) return;  // it is over: the trainer will see that in its page
  RendezvousRequest& request = asked.request;
  request.client = place.page->nonce.load();
  request.number = id;
  ask_store(std::move(request), [this, index = place.index, id](const RendezvousAnswer& answer) {
    trainers_->answer_rendezvous(trainers_->places()[index], id, ValueMessage{answer});
  });
}

void Pawld::grant_arena(TrainerProcess& place, const ArenaHandle& arena) {
  const int fds[] = {arena->fd.get()};
  trainers_->answer(place, MessageKind::layout, ArenaMessage{arena->mapping.size_bytes()}, fds);
  if (state_ && running_ == state_->generation) start_streams();
}

void Pawld::on_done(TrainerProcess& place, Generation generation) {
  if (!state_ || generation != state_->generation) return;
  place.done = generation;
  if (state_->phase == JobPhase::running) {  // we were away when the others went on
    return trainers_->answer(place, MessageKind::done, RunningMessage{generation});
  }
  const bool all = std::all_of(trainers_->places().begin(), trainers_->places().end(),
                               [&](const TrainerProcess& p) { return !p.seat || p.done == generation; });
  if (!all || ready_put_ == generation) return;
  ready_put_ = generation;
  session_->call<Revision>(
      [key = keys_.ready(generation, self_.node)](Control& control) { return control.put(key, "{}"); },
      [this, generation, index = place.index](Result<Revision> put) {
        if (put || ending_) return;
        ready_put_ = Generation(0);
        loop_->after(20ms, [this, generation, index] { on_done(trainers_->places()[index], generation); });
      });
}

void Pawld::on_fault(TrainerProcess& place, Generation generation, const std::string& what) {
  log_info("trainer_reports_fault", "place", place.index, "generation", generation, "what", what);
  if (!state_ || generation != state_->generation || !place.seat) return;
  // A death shows within the grace and is then the cause; else the group is rolled back in place.
  loop_->after(deadlines_.communication_grace, [this, generation, seat = *place.seat, what] {
    if (!state_ || state_->generation != generation || ending_) return;
    if (state_->phase == JobPhase::running || state_->phase == JobPhase::restoring)
      report_cause({FaultKind::communication, std::nullopt, seat, what, 0});
  });
}

// --- Deaths and restarts

void Pawld::on_trainer_death(TrainerProcess& place, const std::string& how) {
  if (ending_) return;
  const bool confirmed = !how.empty();
  log_warn("trainer_died", "place", place.index, "seat", place.seat ? text(*place.seat) : "-", "how",
           confirmed ? how : "robust mutex");
  const std::optional<Seat> seat = place.seat;
  const bool over = state_ && (state_->phase == JobPhase::finished || state_->phase == JobPhase::failed);
  if (over) return drive();
  count_parked();
  if (confirmed) {
    place.ended = how_it_ended(place, how);
    place.killed_why.clear();
    put_exit(place, how);
    Duration pause = place.seated.value > 0 ? 0ms : 100ms;
    const bool soon = place.seated.value == 0 && real_clock().now() - place.spawned_at < kEarly;
    if (soon && ++early_exits_[place.index] >= kEarlyExitsMax) {
      const std::string why =
          text("its trainer ended ", early_exits_[place.index], " times before it had a seat (", place.ended, ")");
      if (!state_ || is_member()) return give_up_node(why);
      log_error("spare_unfit", "place", place.index, "how", how, "again_after_ms", kUnfitPause / 1ms);
      pause = kUnfitPause;
    }
    loop_->after(pause, [this] { start_missing_trainers(); });
  }
  if (!seat || !is_member() || place.seated != state_->generation) return;
  // A new process in a seat that ends again and again before the job runs: this node is no place for it.
  if (confirmed && state_->phase == JobPhase::restoring && ++restore_exits_[place.index] >= kEarlyExitsMax)
    return give_up_node(text("its trainer ended ", restore_exits_[place.index], " times before the job ran (",
                             place.ended, ")", layout_refusal_.empty() ? "" : ": ", layout_refusal_));
  const Generation generation = state_->generation;
  // If the whole node is dying, this one will not live to say so: wait a moment rather than cost two generations.
  loop_->after(deadlines_.trainer_exit_grace, [this, generation, seat, index = place.index] {
    if (ending_ || !state_ || state_->generation != generation) return;
    const std::string& ended = trainers_->places()[index].ended;
    // A first time speed counts: the mutex tells of a death before anybody knows how. Again and again may end in a
    // verdict, which has to say how; that is known soon.
    const bool again = std::any_of(state_->attempts.begin(), state_->attempts.end(), [&](const Attempt& past) {
      return past.kind == FaultKind::trainer_exit && past.seat == seat;
    });
    if (ended.empty() && again) return;
    if (state_->phase == JobPhase::running || state_->phase == JobPhase::restoring)
      report_cause({FaultKind::trainer_exit, self_, seat, ended.empty() ? "its process died" : ended, 0});
  });
}

// For people: what, when, where to look.
std::string Pawld::how_it_ended(const TrainerProcess& place, const std::string& how) const {
  if (!place.killed_why.empty()) return "killed: " + place.killed_why;
  if (place.page == nullptr || place.seated.value == 0) return how;
  const std::string_view exited = "exited 0";
  const Step step(place.page->step.load());
  if (how.rfind(exited, 0) != 0) return text(how, " in or after step ", step);
  return text("ended (exit 0) after step ", step,
              " without finishing: a trainer may end when pawl_finish has answered "
              "(job.steps() has run to its end), or when pawl says stop",
              how.substr(exited.size()));
}

// An end that nobody brought about from outside is told to all: decide_ends, decide_running.
void Pawld::put_exit(const TrainerProcess& place, const std::string& how) {
  if (!place.seat || place.seated.value == 0 || how.rfind("exited ", 0) != 0) return;
  const Json end{{"generation", place.seated.value}, {"detail", place.ended}};
  session_->tell([key = keys_.exit(*place.seat), value = end.dump(-1, ' ', false, Json::error_handler_t::replace)](
                     Control& control) { (void)control.put(key, value); });
}

// This node is no place for the job: another may be. If the job has never run anywhere, it is more likely the script.
void Pawld::give_up_node(const std::string& why) {
  if (state_ && state_->ran.value > 0) return report_cause({FaultKind::node_lost, self_, std::nullopt, why, 0});
  const std::string verdict = text("node ", self_.node, ": ", why);
  JobState failed = state_ ? *state_ : JobState{};
  failed.phase = JobPhase::failed;
  failed.verdict = verdict;
  swap_state(failed, verdict);
}

void Pawld::count_parked() {
  std::uint32_t parked = 0;
  for (const TrainerProcess& place : trainers_->places()) parked += place.waits_for(MessageKind::join) ? 1 : 0;
  if (parked != parked_.exchange(parked) && !is_member()) session_->register_again();
}

void Pawld::start_missing_trainers() {
  if (ending_) return;
  for (TrainerProcess& place : trainers_->places()) {
    if (place.pid != 0) continue;
    place.pid = kAsked;
    place.seated = place.done = Generation(0);
    place.page = nullptr;
    place.spawned_at = real_clock().now();
    keeper_->spawn_trainer(place.index, trainer_environment(place));
  }
}

void Pawld::kill_trainer(TrainerProcess& place, const std::string& why) {
  if (place.pid == 0 || place.dying) return;
  log_warn("trainer_killed", "place", place.index, "why", why);
  place.dying = true;
  place.killed_why = why;
  place.ended.clear();
  place.waiting.clear();
  keeper_->kill_trainer(place.index);
}

std::vector<std::string> Pawld::trainer_environment(const TrainerProcess& place) const {
  const Seat seat = place.seat.value_or(Seat(place.index));
  const std::uint32_t world = spec_.node_count * spec_.seats_per_node;
  const std::uint32_t group = seat.value / spec_.seats_per_node;
  std::vector<std::string> environment = {
      text("RANK=", seat),
      text("LOCAL_RANK=", place.index),
      text("WORLD_SIZE=", world),
      text("LOCAL_WORLD_SIZE=", spec_.seats_per_node),
      text("GROUP_RANK=", group),
      text("GROUP_WORLD_SIZE=", spec_.node_count),
      text("ROLE_RANK=", seat),
      text("ROLE_WORLD_SIZE=", world),
      "ROLE_NAME=default",
      "TORCHELASTIC_RUN_ID=" + options_.job,
      text("TORCHELASTIC_RESTART_COUNT=", state_ && state_->generation.value > 0 ? state_->generation.value - 1 : 0)};
  if (std::getenv("OMP_NUM_THREADS") == nullptr) environment.push_back("OMP_NUM_THREADS=1");
  return environment;
}

void Pawld::check_trainers() {
  if (!state_ || !is_member()) return;
  const bool running = state_->phase == JobPhase::running && running_ == state_->generation;
  const bool returning = state_->phase == JobPhase::restoring && restoring_ == state_->generation;
  for (TrainerProcess& place : trainers_->places()) {
    if (!place.seat || place.pid == 0 || place.pid == kAsked || place.dying || place.finished) continue;
    if (place.page != nullptr && place.page->held.load() != 0) continue;
    if (running && place.page != nullptr) check_running(place);
    if (returning) check_returning(place);
  }
}

Duration Pawld::since_progress(const TrainerProcess& place) const {
  const Duration last =
      place.page == nullptr ? place.spawned_at : Duration(static_cast<std::int64_t>(place.page->progress_at_ns.load()));
  return std::max(Duration::zero(), real_clock().now() - last);
}

void Pawld::check_running(TrainerProcess& place) {
  TrainerView view;
  view.since_progress = since_progress(place);
  if (view.since_progress < 500ms) return;
  view.phase = static_cast<std::uint32_t>(place.page->phase.load());
  auto process = process_state(static_cast<pid_t>(place.pid));
  view.stopped = process && (*process == 'T' || *process == 't');
  const bool waits_for_others = !place.waiting.empty() || !place.rendezvous_waiting.empty();  // a key, an agreement
  view.in_step = !waits_for_others && view.phase != PAWL_PHASE_ASIDE && view.phase != PAWL_PHASE_FINISH;
  if (!hangs(view, std::chrono::milliseconds(spec_.hang_ms), deadlines_)) return;
  report_cause(
      {FaultKind::trainer_hang, self_, place.seat,
       text("no progress for ", view.since_progress / 1ms, " ms", view.stopped ? ", the process is stopped" : ""), 0});
}

// On its way back into the running job. Who waits for others is not to blame; a process that was there before has
// little to do; a new one may have to import and build everything, and has the start budget for that.
void Pawld::check_returning(TrainerProcess& place) {
  const Duration now = real_clock().now();
  if (!place.waiting.empty() || !place.rendezvous_waiting.empty()) place.busy_at = now;
  const Duration silent = since_progress(place);
  auto process = silent < 500ms ? Result<char>('R') : process_state(static_cast<pid_t>(place.pid));
  const bool stopped = process && (*process == 'T' || *process == 't');
  if (!stopped)
    place.stopped_since = Duration::zero();
  else if (place.stopped_since == Duration::zero())
    place.stopped_since = now;
  if (stopped && now - place.stopped_since > deadlines_.silence) return kill_trainer(place, "the process was stopped");
  if (place.done == state_->generation || place.waits_for(MessageKind::join)) return;
  if (place.seated.value > 0 && place.seated < state_->generation) {  // it has not come back yet
    const Duration patience = silent < deadlines_.silence ? 3 * deadlines_.trainer_free : deadlines_.trainer_free;
    if (now - restoring_since_ > patience) kill_trainer(place, "could not be freed within its deadline");
    return;
  }
  const bool was_there = place.page != nullptr && place.page->generation.load() > 0;
  if (was_there && now - place.busy_at > deadlines_.restore && silent > deadlines_.restore)
    return kill_trainer(place, text("it was not restored within ", deadlines_.restore / 1s, " s"));
  const Duration started = std::max({place.spawned_at, place.busy_at, restoring_since_});
  if (!was_there && now - started > std::chrono::milliseconds(spec_.start_ms))
    kill_trainer(place, text("it was not ready within ", spec_.start_ms / 1000, " s (--start-timeout)"));
}

// --- The end

// What a trainer may know of the job from its page alone.
void Pawld::write_page(TrainerProcess& place) {
  if (place.page == nullptr) return;
  const bool formed = state_ && state_->generation.value > 0;
  place.page->world.store(std::uint64_t{spec_.node_count} * spec_.seats_per_node);
  place.page->role.store(!formed ? PAWL_ROLE_UNKNOWN : place.seat ? PAWL_ROLE_SEATED : PAWL_ROLE_SPARE);
  place.page->stop_step.store(stop_step_.value, std::memory_order_release);
}

// The first proposal becomes the key; who asks is answered when every member has it in its trainers' pages, so that no
// seat can miss it (a new page has it from the first).
void Pawld::consider_stop() {
  if (!state_ || !is_member()) return;
  const Generation generation = state_->generation;
  const auto acknowledged = [&](NodeId node) {
    const auto found = stop_acks_.find(node);
    return found != stop_acks_.end() && found->second == generation;
  };
  if (stop_step_.value > 0 && !acknowledged(self_.node)) {
    stop_acks_[self_.node] = generation;
    session_->call<Revision>(
        [key = keys_.stop_ack(generation, self_.node)](Control& control) { return control.put(key, "{}"); },
        [this](Result<Revision> put) {
          if (put) return;
          stop_acks_.erase(self_.node);
          drive_soon(20ms);
        });
  }
  bool all = stop_step_.value > 0;
  for (const Member& member : state_->seats) all = all && acknowledged(member.life.node);
  for (TrainerProcess& place : trainers_->places()) {
    if (!place.waits_for(MessageKind::stop_after)) continue;
    if (all)
      trainers_->answer(place, MessageKind::stop_after, StoppingMessage{stop_step_});
    else if (stop_step_.value == 0)
      propose_stop(place.stop_wanted);
  }
}

void Pawld::propose_stop(Step step) {
  if (std::exchange(proposing_stop_, true)) return;
  session_->call<Swapped>([key = keys_.stop(), value = Json{{"step", step.value}}.dump()](
                              Control& control) { return control.compare_and_swap(key, 0, value); },
                          [this](Result<Swapped> swap) {
                            proposing_stop_ = false;  // what won, ours or another's, comes as any key does
                            if (!swap) drive_soon(20ms);
                          });
}

void Pawld::consider_finish() {
  if (!state_ || state_->phase != JobPhase::running || running_ != state_->generation) return;
  std::vector<SeatStep> ended;
  std::vector<Seat> finished;
  for (const auto& [seat, finish] : finishes_) {
    if (finish.generation != state_->generation) continue;
    ended.push_back({seat, finish.step});
    if (finish.committed) finished.push_back(seat);
  }
  for (TrainerProcess& place : trainers_->places()) {
    if (!place.seat || place.page == nullptr || place.seated != state_->generation) continue;
    const Decision apart = decide_apart(*state_, ended, {*place.seat, Step(place.page->step.load())}, self_);
    if (const StateMove* move = std::get_if<StateMove>(&apart)) return swap_state(move->next, move->why);
    if (place.waits_for(MessageKind::finish)) put_finish(place);
  }
  if (!is_root()) return;
  const Decision decision = decide_finished(*state_, finished, self_);
  if (const StateMove* move = std::get_if<StateMove>(&decision)) swap_state(move->next, move->why);
}

// Twice: when the trainer has ended its steps, and when the last of them is committed.
void Pawld::put_finish(TrainerProcess& place) {
  const Finish finish{state_->generation, place.last_step, progress_.committed >= place.finish_step};
  const auto told = finishes_.find(*place.seat);
  if (told != finishes_.end() && told->second == finish) return;
  finishes_[*place.seat] = finish;
  const Json value{
      {"generation", finish.generation.value}, {"step", finish.step.value}, {"committed", finish.committed}};
  session_->call<Revision>(
      [key = keys_.finish(*place.seat), value = value.dump()](Control& control) { return control.put(key, value); },
      [this, seat = *place.seat](Result<Revision> put) {
        if (!put) finishes_.erase(seat);
      });
}

}  // namespace pawl::job
