#include "job/daemon/generations.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "job/recovery/duties.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {

constexpr std::size_t kEventsMax = 4096;

}  // namespace

void Generations::follow() {
  NodeContext& context = parts_.context;
  const JobState& state = context.mirror.state();
  if (context.mirror.is_over()) return end_with_job();
  switch (standing_of(state, {.self = context.self, .was_member = context.followed.was_member})) {
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
  if (duties_of(state, context.followed, true).freeze) freeze();
  const Duties duties = duties_of(state, context.followed, parts_.streams.idle());
  if (duties.report_inventory) put_inventory();
  if (duties.begin_restore && !parts_.holds.is_held_at("import")) begin_restore();
  if (context.is_restoring()) {
    parts_.imports.start_waiting();
    parts_.seats.answer_waiting();
  }
  if (duties.begin_running) begin_running();
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
  if (standing_of(state, view) == Standing::leaving) return;  // trainers leave on their own
  hooks_.end_job(state.phase == JobPhase::finished ? 0 : 1);
}

void Generations::freeze() {
  const JobState& state = parts_.context.mirror.state();
  parts_.streams.end();
  parts_.imports.end();
  parts_.memory.freeze_all();
  parts_.context.followed.frozen = state.generation;
  parts_.rendezvous.enter();
  for (TrainerProcess& trainer : parts_.trainers.places()) {
    parts_.trainers.interrupt(trainer, state.generation);
    const bool restart =
        trainer.seat && std::find(state.restart.begin(), state.restart.end(), *trainer.seat) != state.restart.end();
    if (restart && trainer.pid != 0 && trainer.seated.value > 0)
      parts_.watch.kill(trainer, "its seat is to be restarted");
  }
  parts_.events.tell("frozen");
}

void Generations::put_inventory() {
  NodeContext& context = parts_.context;
  if (context.mirror.has_own_inventory() || parts_.holds.is_held_at("frozen")) return;
  const Generation generation = context.mirror.generation();
  Inventory inventory;
  inventory.life = context.self;
  inventory.generation = generation;
  inventory.committed = parts_.pages.known_committed(parts_.progress.progress());
  inventory.items = parts_.memory.inventory();
  inventory.frozen_wall_ms = static_cast<std::uint64_t>(context.clock->wall() / 1ms);
  for (const TrainerProcess& trainer : parts_.trainers.places())
    if (trainer.seat && trainer.pid != 0 && !trainer.dying) inventory.trainers_alive.push_back(*trainer.seat);
  context.mirror.note_own_inventory(inventory);
  context.control->put(context.mirror.keys().inventory(generation, context.self.node), to_json(inventory),
                       [this, generation](Status put) {
                         if (put || parts_.context.mirror.generation() != generation) return;
                         parts_.context.mirror.forget_own_inventory();  // again, at the next drive
                         parts_.context.drive_soon(20ms);
                       });
}

void Generations::begin_restore() {
  NodeContext& context = parts_.context;
  const JobState& state = context.mirror.state();
  context.followed.restoring = state.generation;
  context.followed.restoring_since = context.clock->now();
  if (state.cold) {
    for (TrainerProcess& trainer : parts_.trainers.places())
      if (trainer.pid != 0 && trainer.seated.value > 0)
        parts_.watch.kill(trainer, "cold restart: no step was committed yet");
    parts_.memory.drop_all();  // the new processes may declare another layout
  }
  parts_.imports.begin();
  parts_.watch.start_missing();
}

void Generations::begin_running() {
  NodeContext& context = parts_.context;
  const JobState& state = context.mirror.state();
  parts_.memory.unfreeze_all(state.lineage, parts_.imports.take_struck());
  parts_.watch.on_running();
  context.followed.running = state.generation;
  context.followed.frozen = std::max(context.followed.frozen, state.generation);
  parts_.rendezvous.enter();
  parts_.progress.begin(parts_.pages.rejoin(Progress{state.resume, 0}));
  drop_other_arenas();
  parts_.pages.open_windows(parts_.streams.stream_context().gate_off);
  parts_.streams.start();
  if (state.leader != context.self) return;
  parts_.events.tell("running", Json{{"resume", state.resume.value}}.dump());
  tidy_keys();
}

// Only its seats' and its wards' arenas are kept.
void Generations::drop_other_arenas() {
  const JobMirror& mirror = parts_.context.mirror;
  const std::vector<Seat> wards = wards_of(mirror.my_position(), mirror.ring());
  for (const Member& member : mirror.state().seats) {
    if (std::find(wards.begin(), wards.end(), member.seat) == wards.end())
      parts_.memory.drop(ArenaKind::replica, member.seat);
    if (!(member.life == parts_.context.self)) parts_.memory.drop(ArenaKind::own, member.seat);
  }
}

void Generations::tidy_keys() {
  const JobMirror& mirror = parts_.context.mirror;
  parts_.context.control->tell([keys = mirror.keys(), generation = mirror.generation()](Control& control) {
    (void)control.erase_prefix(keys.inventories(generation));
    (void)control.erase_prefix(keys.readies(generation));
    (void)control.erase_prefix(keys.stop_acks(Generation(generation.value - 1)));
    auto events = control.list(keys.events());
    if (!events) return;
    for (std::size_t i = 0; i + kEventsMax < events->kvs.size(); ++i) (void)control.erase(events->kvs[i].key);
  });
}

}  // namespace pawl::job
