#include "job/daemon/generations.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "base/contains.h"
#include "base/log.h"
#include "job/recovery/duties.h"
#include "job/recovery/members.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {

constexpr std::size_t kEventsMax = 4096;
constexpr std::size_t kErasedAtOnceMax = 100;

// All that the nodes have put for the generations up to this one.
void erase_up_to(Control& control, const std::string& prefix, Generation last) {
  auto listing = control.list(prefix);
  if (!listing) return;  // the next recovery's leader does it
  for (const std::string& folder : folders_up_to(*listing, prefix, last)) (void)control.erase_prefix(folder);
}

void erase_topologies_before(Control& control, const std::string& prefix, Generation named) {
  auto listing = control.list(prefix);
  if (!listing) return;
  for (const KeyValue& kv : listing->kvs)
    if (Generation generation; id_after(prefix, kv.key, generation) && generation < named) (void)control.erase(kv.key);
}

// Whether this member speaks for the generation: it leads, or whoever leads has no seat (a spare that formed the job, or
// took it over when all members were gone), and it is the root.
bool speaks(const JobMirror& mirror, NodeLife self) {
  const JobState& state = mirror.state();
  return contains(survivors_of(state), state.leader) ? state.leader == self : mirror.is_root();
}

}  // namespace

std::vector<std::string> folders_up_to(const Listing& listing, const std::string& prefix, Generation last) {
  std::set<std::string> folders;
  for (const KeyValue& kv : listing.kvs) {
    const std::size_t end = kv.key.find('/', prefix.size());
    std::uint64_t generation = 0;
    if (kv.key.rfind(prefix, 0) != 0 || end == std::string::npos ||
        !parse_number(std::string_view(kv.key).substr(prefix.size(), end - prefix.size()), generation))
      continue;
    if (generation <= last.value) folders.insert(kv.key.substr(0, end + 1));
  }
  return {folders.begin(), folders.end()};
}

void Generations::follow() {
  NodeContext& context = parts_.context;
  const JobState& state = context.mirror.state();
  if (context.mirror.is_over()) return end_with_job();
  StandingView view{.self = context.self, .was_member = context.followed.was_member};
  if (context.is_evicted()) {
    context.want_reports();
    QuiescingView quiescing{context.mirror.spec(), state, context.mirror.reports.inventories(),
                            records_of_others(context.mirror), context.orders.cordoned()};
    quiescing.lingering_late = true;
    // Without knowing who is registered it does not know who may need it.
    const bool knows = context.knows_nodes() || state.phase != JobPhase::quiescing;
    view.must_linger = knows ? must_linger(quiescing, context.self) : contains(state.evicted, context.self);
    // Who must linger anyway need not know whether others are late: to ask is to list all reports.
    if (!view.must_linger && !are_others_late()) {
      quiescing.lingering_late = false;
      view.must_linger = must_linger(quiescing, context.self);
    }
  }
  switch (standing_of(state, context.mirror.roster(), view)) {
    case Standing::lingering:
      return linger();
    case Standing::evicted:
      log_error("evicted", "generation", state.generation);
      context.ending = true;
      return hooks_.reset(text("evicted in generation ", state.generation));
    case Standing::member:
      break;
    default:
      return;
  }
  context.followed.was_member = true;
  parts_.rendezvous.open();  // whoever knew the world sooner may have asked
  Duties duties = duties_of(state, context.followed, copies());
  if (duties.freeze) freeze();
  if (duties.end_copies) end_copies();
  duties = duties_of(state, context.followed, copies());
  if (duties.report_inventory) put_inventory();
  if (duties.begin_restore && !parts_.holds.is_held_at("import")) begin_restore();
  if (context.is_restoring()) {
    parts_.imports.start_waiting();
    parts_.seats.answer_waiting();
  }
  if (duties.begin_running) begin_running();
}

// Who was evicted, too, and lives has had the time to report: known from a listing that began when it was over.
bool Generations::are_others_late() {
  NodeContext& context = parts_.context;
  const Duration now = context.clock->now();
  const auto attentive = context.attention.since(now, context.deadlines);
  if (!attentive || !context.mirror.is_in(JobPhase::quiescing)) return false;
  const Duration due = std::max(context.mirror.state_since(), *attentive) +
                       lingering_patience(context.mirror.state(), context.mirror.spec(), context.mirror.registrations(),
                                          context.deadlines);
  if (now <= due) return false;
  if (context.heard.as_of >= due) return true;
  context.heard.list_anew = true;
  return false;
}

// The rule for every source: frozen first, then reported. Whoever wrote here is gone, or can't seal any more.
void Generations::linger() {
  NodeContext& context = parts_.context;
  const JobState& state = context.mirror.state();
  if (context.followed.frozen < state.generation) {
    log_warn("lingers", "generation", state.generation, "why", "evicted, and others may need what it holds");
    freeze();
  }
  for (TrainerProcess& trainer : parts_.trainers.places())
    if (trainer.pid != 0 && trainer.pid != kPidNotKnownYet) parts_.watch.kill(trainer, "its node was evicted");
  if (state.phase == JobPhase::quiescing && !copies().imports) put_inventory();
}

void Generations::end_with_job() {
  NodeContext& context = parts_.context;
  const JobState& state = context.mirror.state();
  std::vector<TrainerProcess>& trainers = parts_.trainers.places();
  if (state.phase == JobPhase::failed) log_error("job_failed", "verdict", state.verdict);
  if (state.phase == JobPhase::finished)
    for (TrainerProcess& trainer : trainers) parts_.trainers.answer(trainer, MessageKind::finish, FinishedMessage{});
  StandingView view{.self = context.self};
  view.trainers_gone = std::all_of(trainers.begin(), trainers.end(),
                                   [](const TrainerProcess& trainer) { return trainer.pid == 0 || trainer.finished; });
  view.in_state_for = context.clock->now() - context.mirror.state_since();
  if (standing_of(state, context.mirror.roster(), view) == Standing::leaving) return;  // trainers leave on their own
  const bool sound = state.phase == JobPhase::finished && !parts_.watch.failed_after_all();
  hooks_.end_job(sound ? 0 : 1);
}

void Generations::end_copies() {
  parts_.streams.end();
  parts_.imports.end();
}

void Generations::freeze() {
  const JobState& state = parts_.context.mirror.state();
  end_copies();
  parts_.memory.freeze_all();
  parts_.context.followed.frozen = state.generation;
  parts_.rendezvous.enter();
  Step begun;  // for people
  for (TrainerProcess& trainer : parts_.trainers.places()) {
    if (trainer.seat && trainer.seated.value > 0 && trainer.shared.page != nullptr)
      begun = std::max(begun, Step(trainer.shared.page->step.load()));
    parts_.trainers.interrupt(trainer, state.generation);
    const bool restart =
        trainer.seat && std::find(state.restart.begin(), state.restart.end(), *trainer.seat) != state.restart.end();
    if (restart && trainer.pid != 0 && trainer.seated.value > 0)
      parts_.watch.kill(trainer, "its seat is to be restarted");
  }
  if (!parts_.context.is_evicted())  // a step that an evicted node's trainers begin as they end is nobody's work
    parts_.events.tell("frozen", Json{{"step", begun.value}}.dump());
}

void Generations::put_inventory() {
  NodeContext& context = parts_.context;
  if (context.mirror.reports.has_own_inventory() || parts_.holds.is_held_at("frozen")) return;
  const Generation generation = context.mirror.generation();
  parts_.memory.empty_struck(context.mirror.state().struck, context.self);
  Inventory inventory;
  inventory.life = context.self;
  inventory.generation = generation;
  inventory.committed = parts_.pages.known_committed(parts_.progress.progress());
  inventory.items = parts_.memory.inventory();
  inventory.equal = parts_.memory.equal_offers();
  inventory.frozen_wall_ms = static_cast<std::uint64_t>(context.clock->wall() / 1ms);
  for (const TrainerProcess& trainer : parts_.trainers.places())
    if (trainer.seat && trainer.pid != 0 && !trainer.dying) inventory.trainers_alive.push_back(*trainer.seat);
  context.mirror.reports.note(inventory);
  parts_.reports.report(ReportKind::inventory, to_text(inventory), [this, generation](const Status& put) {
    if (put || parts_.context.mirror.generation() != generation) return;
    parts_.context.mirror.reports.forget_own_inventory();  // again, at the next drive
    parts_.context.drive_soon(20ms);
  });
}

void Generations::begin_restore() {
  NodeContext& context = parts_.context;
  const JobState& state = context.mirror.state();
  context.followed.restoring = state.generation;
  context.followed.restoring_since = context.clock->now();
  // Arenas stay, and become empty at `running`: a new process may have been given one by the pawld before us, and would
  // write where nobody looks. One of another layout is replaced when it is declared (SeatArenas).
  for (TrainerProcess& trainer : parts_.trainers.places())
    if (trainer.pid != 0 && must_begin_anew(trainer, state))
      parts_.watch.kill(
          trainer, state.cold ? "cold restart: no step was committed yet" : "its seat begins anew, or is another's");
  parts_.imports.begin();
  parts_.watch.start_missing();
}

void Generations::begin_running() {
  NodeContext& context = parts_.context;
  const JobState& state = context.mirror.state();
  const bool tells = speaks(context.mirror, context.self);
  // First, for its time: no step of the generation may come before it, however long this thread waits for a core.
  if (tells) parts_.events.tell("running", Json{{"resume", state.resume.value}}.dump());
  parts_.memory.unfreeze_all(state.lineage, state.generation);
  parts_.watch.on_running();
  context.followed.running = state.generation;
  context.followed.frozen = std::max(context.followed.frozen, state.generation);
  parts_.rendezvous.enter();
  parts_.progress.begin(parts_.pages.rejoin(Progress{state.resume, 0}));
  drop_other_arenas();
  parts_.pages.open_windows(parts_.streams.stream_context().gate_off);
  parts_.streams.start();
  parts_.protection.begin();
  if (tells) tidy_keys();
}

// Only its seats' and its wards' arenas are kept. In another world a copy may lie where the seat has none any more: it stays,
// too, until a later step is committed, which has all its copies where they belong.
void Generations::drop_other_arenas() {
  const JobMirror& mirror = parts_.context.mirror;
  std::vector<Seat> own, replicas;
  for (const Seat seat : mirror.own_seats()) own.push_back(before_of(mirror, seat));
  for (const Seat ward : mirror.ring().wards_of(mirror.my_position())) replicas.push_back(before_of(mirror, ward));
  keeps_others_ = false;
  for (const ArenaHandle& held : parts_.memory.arenas()) {
    const ArenaSpec& spec = held->arena.spec();
    std::vector<Seat>& kept = spec.kind == ArenaKind::own ? own : replicas;
    if (contains(kept, spec.seat) || !is_still_needed(held->arena)) continue;
    kept.push_back(spec.seat);
    keeps_others_ = true;
  }
  parts_.memory.drop_all_but(own, replicas);
}

bool Generations::is_still_needed(const Arena& arena) const {
  const NodeContext& context = parts_.context;
  const JobState& state = context.mirror.state();
  if (context.committed > state.resume || !seat_after(state.seats, arena.spec().seat)) return false;
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i)
    if (const SlotWord word = arena.slot(i).word(); word.state == SlotState::sealed && word.step == state.resume)
      return true;
  return false;
}

void Generations::on_committed() {
  if (keeps_others_ && parts_.context.is_running()) drop_other_arenas();
}

void Generations::tidy_keys() {
  const JobMirror& mirror = parts_.context.mirror;
  // No state names an older topology than the one before it did. A sheet goes with the swap that no longer names it.
  const Generation named = mirror.beside.topology ? mirror.beside.topology->generation : Generation(0);
  parts_.context.control->tell([keys = mirror.keys(), generation = mirror.generation(), named](Control& control) {
    (void)control.erase_prefix(keys.reports(generation));  // most of all: so that they need not be listed below
    erase_topologies_before(control, keys.topologies(), named);
    erase_up_to(control, keys.all_reports(), generation);
    erase_up_to(control, keys.all_accusations(), Generation(generation.value - 1));
    erase_up_to(control, keys.all_faults(), Generation(generation.value - 1));
    erase_up_to(control, keys.root + "stop_ack/", Generation(generation.value - 1));
    erase_up_to(control, keys.pause_acks(), Generation(generation.value - 1));
    erase_up_to(control, keys.all_progress(), Generation(generation.value - 1));
  });
  parts_.context.control->tell([this, prefix = mirror.keys().events()](Control& control) {
    const auto events = control.list(prefix);
    if (!events) return;
    std::vector<std::string> old;
    for (std::size_t i = 0; i + kEventsMax < events->kvs.size(); ++i) old.push_back(events->kvs[i].key);
    erase_later(std::move(old));
  });
}

// Behind the calls that wait by then, such as the next recovery's inventory; a few at once, for the same reason. On the
// control's thread.
void Generations::erase_later(std::vector<std::string> keys) {
  if (keys.empty()) return;
  parts_.context.post([this, keys = std::move(keys)]() mutable {
    parts_.context.control->tell([this, keys = std::move(keys)](Control& control) {
      const auto end = keys.begin() + static_cast<std::ptrdiff_t>(std::min(keys.size(), kErasedAtOnceMax));
      std::vector<KeyChange> changes;
      for (auto key = keys.begin(); key != end; ++key) changes.push_back({KeyChange::Kind::erase, *key, "", 0});
      if (control.transact({}, changes)) erase_later({end, keys.end()});  // else the next recovery's leader does it
    });
  });
}

}  // namespace pawl::job
