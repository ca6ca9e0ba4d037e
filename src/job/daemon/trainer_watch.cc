#include "job/daemon/trainer_watch.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "job/recovery/local_trainer.h"
#include "pawl/pawl.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

// --- Starts and kills

void TrainerWatch::start_missing() {
  if (context_.ending) return;
  for (TrainerProcess& trainer : trainers_.places()) {
    if (trainer.pid != 0) continue;
    trainer.pid = kPidNotKnownYet;
    trainer.seated = trainer.done = Generation(0);
    trainer.shared.page = nullptr;
    trainer.spawned_at = context_.clock->now();
    hooks_.spawn(trainer.index, environment(trainer));
  }
}

std::vector<std::string> TrainerWatch::environment(const TrainerProcess& trainer) const {
  const JobSpec& spec = context_.mirror.spec();
  const Generation generation = context_.mirror.generation();
  const Seat seat = trainer.seat.value_or(Seat(trainer.index));
  const std::uint32_t world = spec.node_count * spec.seats_per_node;
  const std::uint32_t group = seat.value / spec.seats_per_node;
  std::vector<std::string> environment = {
      text("RANK=", seat),
      text("LOCAL_RANK=", trainer.index),
      text("WORLD_SIZE=", world),
      text("LOCAL_WORLD_SIZE=", spec.seats_per_node),
      text("GROUP_RANK=", group),
      text("GROUP_WORLD_SIZE=", spec.node_count),
      text("ROLE_RANK=", seat),
      text("ROLE_WORLD_SIZE=", world),
      "ROLE_NAME=default",
      "TORCHELASTIC_RUN_ID=" + context_.job,
      text("TORCHELASTIC_RESTART_COUNT=", generation.value > 0 ? generation.value - 1 : 0)};
  if (!context_.environment->processes.environment_variable("OMP_NUM_THREADS"))
    environment.push_back("OMP_NUM_THREADS=1");
  return environment;
}

void TrainerWatch::kill(TrainerProcess& trainer, const std::string& why) {
  if (trainer.pid == 0 || trainer.dying) return;
  log_warn("trainer_killed", "place", trainer.index, "why", why);
  trainer.dying = true;
  trainer.killed_why = why;
  trainer.ended.clear();
  trainer.line.waiting.clear();
  hooks_.kill(trainer.index);
}

void TrainerWatch::count_parked() {
  std::uint32_t parked = 0;
  for (const TrainerProcess& trainer : trainers_.places()) parked += trainer.line.waits_for(MessageKind::join) ? 1 : 0;
  if (parked != parked_.exchange(parked) && !context_.mirror.is_member()) hooks_.on_parked_changed();
}

void TrainerWatch::on_seated(TrainerProcess& trainer) {
  trainer.returning.busy_at = context_.clock->now();
  trainer.ended.clear();
  early_exits_.erase(trainer.index);
}

// --- Deaths and faults

void TrainerWatch::on_death(TrainerProcess& trainer, const std::string& how) {
  if (context_.ending) return;
  const JobMirror& mirror = context_.mirror;
  const bool confirmed = !how.empty();
  log_warn("trainer_died", "place", trainer.index, "seat", trainer.seat ? text(*trainer.seat) : "-", "how",
           confirmed ? how : "robust mutex");
  const std::optional<Seat> seat = trainer.seat;
  if (mirror.is_over()) return context_.drive();
  count_parked();
  if (confirmed) {
    const bool had_seat = trainer.seated.value > 0;
    const bool has_step = trainer.shared.page != nullptr && had_seat;
    trainer.ended = how_it_ended(how, trainer.killed_why,
                                 has_step ? std::optional(Step(trainer.shared.page->step.load())) : std::nullopt);
    trainer.killed_why.clear();
    put_exit(trainer, how);
    int& early_exits = early_exits_[trainer.index];
    const Respawn respawn = decide_respawn({context_.clock->now(), trainer.spawned_at, had_seat, early_exits,
                                            mirror.has_state(), mirror.is_member(), trainer.ended});
    early_exits = respawn.early_exits;
    if (!respawn.give_up.empty()) return mover_.give_up_node(respawn.give_up);
    if (respawn.unfit)
      log_error("spare_unfit", "place", trainer.index, "how", how, "again_after_ms", respawn.pause / 1ms);
    context_.after(respawn.pause, [this] { start_missing(); });
  }
  if (!seat || !mirror.is_member() || trainer.seated != mirror.generation()) return;
  if (confirmed && mirror.is_in(JobPhase::restoring)) {
    const std::string why = why_unfit_for_seat(++restore_exits_[trainer.index], trainer.ended, layout_refusal_);
    if (!why.empty()) return mover_.give_up_node(why);
  }
  report_death_later(*seat, trainer.index);
}

// If the whole node is dying, this one will not live to say so: wait a moment rather than cost two generations.
void TrainerWatch::report_death_later(Seat seat, std::uint32_t index) {
  const Generation generation = context_.mirror.generation();
  context_.after(context_.deadlines.trainer_exit_grace, [this, generation, seat, index] {
    if (context_.ending || context_.mirror.generation() != generation) return;
    if (auto cause = cause_of_death(context_.mirror.state(), context_.self, seat, trainers_.places()[index].ended))
      mover_.report(std::move(*cause));
  });
}

// An end that nobody brought about from outside is told to all: decide_ends, decide_running.
void TrainerWatch::put_exit(const TrainerProcess& trainer, const std::string& how) {
  if (!trainer.seat || trainer.seated.value == 0 || !ended_by_itself(how)) return;
  const Json end{{"generation", trainer.seated.value}, {"detail", trainer.ended}};
  context_.control->tell([key = context_.mirror.keys().exit(*trainer.seat),
                          value = end.dump(-1, ' ', false, Json::error_handler_t::replace)](Control& control) {
    (void)control.put(key, value);
  });
}

void TrainerWatch::on_fault(TrainerProcess& trainer, Generation generation, const std::string& what) {
  log_info("trainer_reports_fault", "place", trainer.index, "generation", generation, "what", what);
  if (!context_.mirror.has_state() || generation != context_.mirror.generation() || !trainer.seat) return;
  // A death shows within the grace and is then the cause; else the group is rolled back in place.
  context_.after(context_.deadlines.communication_grace, [this, generation, seat = *trainer.seat, what] {
    if (context_.mirror.generation() != generation || context_.ending) return;
    if (context_.mirror.is_in(JobPhase::running) || context_.mirror.is_in(JobPhase::restoring))
      mover_.report({FaultKind::communication, std::nullopt, seat, what, 0});
  });
}

// --- Checks

void TrainerWatch::check() {
  if (!context_.mirror.is_member()) return;
  const bool running = context_.is_running();
  const bool returning = context_.is_restoring();
  for (TrainerProcess& trainer : trainers_.places()) {
    if (!trainer.seat || trainer.pid == 0 || trainer.pid == kPidNotKnownYet || trainer.dying || trainer.finished)
      continue;
    if (trainer.shared.page != nullptr && trainer.shared.page->held.load() != 0) continue;
    if (running && trainer.shared.page != nullptr) check_running(trainer);
    if (returning) check_returning(trainer);
  }
}

Duration TrainerWatch::since_progress(const TrainerProcess& trainer) const {
  const Duration last = trainer.shared.page == nullptr
                            ? trainer.spawned_at
                            : Duration(static_cast<std::int64_t>(trainer.shared.page->progress_at_ns.load()));
  return std::max(Duration::zero(), context_.clock->now() - last);
}

// Who has just made progress is not stopped: no need to look.
bool TrainerWatch::is_stopped(const TrainerProcess& trainer, Duration since_progress) const {
  if (since_progress < 500ms) return false;
  const auto process = hooks_.state_of(trainer.pid);
  return process && (*process == 'T' || *process == 't');
}

void TrainerWatch::check_running(TrainerProcess& trainer) {
  TrainerView view;
  view.since_progress = since_progress(trainer);
  if (view.since_progress < 500ms) return;
  view.phase = static_cast<std::uint32_t>(trainer.shared.page->phase.load());
  view.stopped = is_stopped(trainer, view.since_progress);
  const bool waits_for_others = trainer.line.waits();
  view.in_step = !waits_for_others && view.phase != PAWL_PHASE_ASIDE && view.phase != PAWL_PHASE_FINISH;
  if (!hangs(view, std::chrono::milliseconds(context_.mirror.spec().hang_ms), context_.deadlines)) return;
  mover_.report(
      {FaultKind::trainer_hang, context_.self, trainer.seat,
       text("no progress for ", view.since_progress / 1ms, " ms", view.stopped ? ", the process is stopped" : ""), 0});
}

void TrainerWatch::check_returning(TrainerProcess& trainer) {
  ReturningView view;
  view.now = context_.clock->now();
  view.generation = context_.mirror.generation();
  view.restoring_since = context_.followed.restoring_since;
  view.spawned_at = trainer.spawned_at;
  view.since_progress = since_progress(trainer);
  view.waits_for_others = trainer.line.waits();
  view.waits_to_join = trainer.line.waits_for(MessageKind::join);
  view.stopped = is_stopped(trainer, view.since_progress);
  view.was_there = trainer.shared.page != nullptr && trainer.shared.page->generation.load() > 0;
  view.seated = trainer.seated;
  view.done = trainer.done;
  const ReturningVerdict verdict = decide_returning(
      view, trainer.returning, std::chrono::milliseconds(context_.mirror.spec().start_ms), context_.deadlines);
  trainer.returning = verdict.notes;
  if (verdict.kill) kill(trainer, *verdict.kill);
}

}  // namespace pawl::job
