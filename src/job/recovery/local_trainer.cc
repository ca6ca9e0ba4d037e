#include "job/recovery/local_trainer.h"

#include <algorithm>

#include "base/text.h"
#include "job/recovery/duties.h"
#include "job/recovery/members.h"
#include "job/recovery/paths.h"

namespace pawl::job {
namespace {

bool is_done_without(NodeLife node, std::span<const Source> sources) {
  std::vector<Source> others(sources.begin(), sources.end());
  std::erase_if(others, [&](const Source& source) { return source.from == node; });
  return are_enough(others, sources);
}

}  // namespace

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

DyingVerdict decide_dying(const DyingView& view) {
  DyingVerdict verdict;
  const Duration past = view.now - view.since;
  verdict.kill = !view.killed && past > kEndToldMax;
  const Duration patience = kDyingMax + std::chrono::seconds(view.resident_bytes >> 30);
  if (past > patience)
    verdict.give_up = text("its trainer was killed ", past / 1s,
                           " s ago and does not die: look at the kernel's log, and at its state and stack in /proc");
  return verdict;
}

std::string how_it_ended(const std::string& how, const std::string& killed_why, std::optional<Step> step,
                         const std::string& failure) {
  if (!killed_why.empty()) return "killed: " + killed_why;
  const std::size_t end = std::min(how.find(", "), how.size());  // then comes where its output is
  const std::string what = how.substr(0, end);
  const std::string where = how.substr(end);
  const std::string said = failure.empty() ? "" : ": " + failure;
  if (!step) return what + said + where;
  if (what != "exited 0") return text(what, " in or after step ", *step, said, where);
  return text("ended (exit 0) after step ", *step,
              " without finishing: a trainer may end when pawl_finish has answered "
              "(job.steps() has run to its end), or when pawl says stop",
              where);
}

bool ended_by_itself(const std::string& how) {
  return how.rfind("exited ", 0) == 0;
}

Respawn decide_respawn(const RespawnView& view) {
  Respawn respawn;
  respawn.pause = view.had_seat ? 0ms : 100ms;
  respawn.early_exits = view.early_exits;
  const bool soon = !view.had_seat && view.now - view.spawned_at < kEarly;
  const bool permanent = view.sign != nullptr && view.sign->failure_class == FailureClass::permanent;
  if (!soon || (++respawn.early_exits < kEarlyExitsMax && !permanent)) return respawn;
  if (!view.job_formed || view.is_member) {
    respawn.give_up =
        permanent ? text("its trainer can't start (", view.ended, ")", view.sign->remedy.empty() ? "" : "; ",
                         view.sign->remedy)
                  : text("its trainer ended ", respawn.early_exits, " times before it had a seat (", view.ended, ")");
  } else {
    respawn.unfit = true;
    respawn.pause = kUnfitPause;
  }
  return respawn;
}

TrainerEnd next_end(TrainerEnd end, const TrainerEnd* before) {
  const bool by_peers = end.failure_class == FailureClass::transient_communication;
  const bool again = before != nullptr && before->generation < end.generation && before->step == end.step &&
                     !end.failure.empty() && same_failure(before->failure, end.failure);
  end.times = again && !by_peers ? before->times + 1 : 1;
  return end;
}

std::string why_unfit_for_seat(int exits, const std::string& ended, const std::string& layout_refusal) {
  if (exits < kEarlyExitsMax) return {};
  return text("its trainer ended ", exits, " times before the job ran (", ended, ")",
              layout_refusal.empty() ? "" : ": ", layout_refusal);
}

std::optional<Cause> cause_of_death(const JobState& state, NodeLife self, Seat seat, const std::string& ended) {
  const bool again = std::any_of(state.attempts.begin(), state.attempts.end(), [&](const Attempt& past) {
    return past.kind == FaultKind::trainer_exit && past.seat == seat && !brought_progress(state, past);
  });
  if (ended.empty() && again) return std::nullopt;
  if (state.phase != JobPhase::running && state.phase != JobPhase::restoring) return std::nullopt;
  return Cause{FaultKind::trainer_exit, self, seat, ended.empty() ? "its process died" : ended, 0};
}

bool others_fetch_from(const JobState& state, std::span<const NodeLife> ready, NodeLife self) {
  if (state.phase != JobPhase::restoring) return false;
  return std::any_of(state.sources.begin(), state.sources.end(), [&](const Source& source) {
    if (source.from != self || source.seat.value >= state.seats.size()) return false;
    const NodeLife there = state.seats[source.seat.value].life;
    if (there == self || contains(ready, there)) return false;
    return source.kind != SourceKind::path || !is_done_without(self, sources_of(state.sources, source.seat));
  });
}

std::variant<std::monostate, Cause, StateMove> decide_give_up(const JobState* state, NodeLife self,
                                                              const std::string& why) {
  if (state != nullptr && !is_member(*state, self)) return {};
  if (state != nullptr && state->ran.value > 0) return Cause{FaultKind::node_lost, self, std::nullopt, why, 0};
  JobState failed = state != nullptr ? *state : JobState{};
  failed.phase = JobPhase::failed;
  failed.verdict = text("node ", self.node, ": ", why);
  std::string verdict = failed.verdict;
  return StateMove{std::move(failed), std::move(verdict)};
}

}  // namespace pawl::job
