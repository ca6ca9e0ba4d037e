#include "job/recovery/local_trainer.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::job {

using namespace std::chrono_literals;

ReturningVerdict decide_returning(const ReturningView& view, ReturningNotes notes, Duration start,
                                  const Deadlines& deadlines) {
  const Duration now = view.now;
  if (view.waits_for_others) notes.busy_at = now;
  if (!view.stopped)
    notes.stopped_since = Duration::zero();
  else if (notes.stopped_since == Duration::zero())
    notes.stopped_since = now;
  if (view.stopped && now - notes.stopped_since > deadlines.silence) return {notes, "the process was stopped"};
  if (view.done == view.generation || view.waits_to_join) return {notes, std::nullopt};
  if (view.seated.value > 0 && view.seated < view.generation) {  // it has not come back yet
    const bool moves = view.since_progress < deadlines.silence;
    const Duration patience = moves ? 3 * deadlines.trainer_free : deadlines.trainer_free;
    if (now - view.restoring_since > patience) return {notes, "could not be freed within its deadline"};
    return {notes, std::nullopt};
  }
  if (view.was_there && now - notes.busy_at > deadlines.restore && view.since_progress > deadlines.restore)
    return {notes, text("it was not restored within ", deadlines.restore / 1s, " s")};
  const Duration started = std::max({view.spawned_at, notes.busy_at, view.restoring_since});
  if (!view.was_there && now - started > start)
    return {notes, text("it was not ready within ", start / 1s, " s (--start-timeout)")};
  return {notes, std::nullopt};
}

std::string how_it_ended(const std::string& how, const std::string& killed_why, std::optional<Step> step) {
  if (!killed_why.empty()) return "killed: " + killed_why;
  if (!step) return how;
  const std::string_view exited = "exited 0";
  if (how.rfind(exited, 0) != 0) return text(how, " in or after step ", *step);
  return text("ended (exit 0) after step ", *step,
              " without finishing: a trainer may end when pawl_finish has answered "
              "(job.steps() has run to its end), or when pawl says stop",
              how.substr(exited.size()));
}

bool ended_by_itself(const std::string& how) {
  return how.rfind("exited ", 0) == 0;
}

Respawn decide_respawn(const RespawnView& view) {
  Respawn respawn;
  respawn.pause = view.had_seat ? 0ms : 100ms;
  respawn.early_exits = view.early_exits;
  const bool soon = !view.had_seat && view.now - view.spawned_at < kEarly;
  if (!soon || ++respawn.early_exits < kEarlyExitsMax) return respawn;
  if (!view.job_formed || view.is_member) {
    respawn.give_up = text("its trainer ended ", respawn.early_exits, " times before it had a seat (", view.ended, ")");
  } else {
    respawn.unfit = true;
    respawn.pause = kUnfitPause;
  }
  return respawn;
}

std::string why_unfit_for_seat(int exits, const std::string& ended, const std::string& layout_refusal) {
  if (exits < kEarlyExitsMax) return {};
  return text("its trainer ended ", exits, " times before the job ran (", ended, ")",
              layout_refusal.empty() ? "" : ": ", layout_refusal);
}

std::optional<Cause> cause_of_death(const JobState& state, NodeLife self, Seat seat, const std::string& ended) {
  const bool again = std::any_of(state.attempts.begin(), state.attempts.end(), [&](const Attempt& past) {
    return past.kind == FaultKind::trainer_exit && past.seat == seat;
  });
  if (ended.empty() && again) return std::nullopt;
  if (state.phase != JobPhase::running && state.phase != JobPhase::restoring) return std::nullopt;
  return Cause{FaultKind::trainer_exit, self, seat, ended.empty() ? "its process died" : ended, 0};
}

std::variant<Cause, StateMove> decide_give_up(const JobState* state, NodeLife self, const std::string& why) {
  if (state != nullptr && state->ran.value > 0) return Cause{FaultKind::node_lost, self, std::nullopt, why, 0};
  JobState failed = state != nullptr ? *state : JobState{};
  failed.phase = JobPhase::failed;
  failed.verdict = text("node ", self.node, ": ", why);
  std::string verdict = failed.verdict;
  return StateMove{std::move(failed), std::move(verdict)};
}

}  // namespace pawl::job
