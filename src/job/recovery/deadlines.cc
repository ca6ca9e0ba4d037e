#include "job/recovery/deadlines.h"

#include <algorithm>

#include "pawl/pawl.h"

namespace pawl::job {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

namespace {

constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 46;  // more is no node's

Duration time_for(std::uint64_t bytes, std::uint64_t per_second) {
  return milliseconds(std::min(bytes, kBytesMax) / (per_second / 1000));
}

}  // namespace

Duration time_to_give_back(std::uint64_t bytes) {
  return time_for(bytes, kGivenBackPerSecond);
}

Duration time_to_move(std::uint64_t bytes) {
  return time_for(bytes, kMovedPerSecond);
}

Deadlines derive_deadlines(Duration budget) {
  const Duration whole = std::clamp<Duration>(budget, milliseconds(500), minutes(10));
  Deadlines deadlines;
  deadlines.heartbeat_interval = std::clamp<Duration>(whole / 60, milliseconds(10), seconds(1));
  deadlines.silence = whole;
  deadlines.redial = std::max<Duration>(whole / 8, milliseconds(200));
  deadlines.communication_grace = std::min<Duration>(whole / 10, seconds(10));
  deadlines.trainer_exit_grace = std::clamp<Duration>(whole / 150, milliseconds(10), milliseconds(500));
  deadlines.inventory = std::max<Duration>(whole, kControlRetry);
  deadlines.trainer_free = std::max<Duration>(whole * 10 / 3, deadlines.inventory);
  deadlines.restore = std::max<Duration>(whole * 10, seconds(10));
  deadlines.fetch = deadlines.restore / 3;
  // etcd counts leases in whole seconds.
  deadlines.lease = std::max<Duration>(std::chrono::ceil<seconds>(whole * 5 / 3), seconds(2));
  deadlines.absence = deadlines.lease / 4 + whole / 4;
  deadlines.leader = whole;
  deadlines.fence = whole * 10 / 3;
  deadlines.protection = whole * 10 / 3;
  return deadlines;
}

bool must_fence(const FenceView& view, const Deadlines& deadlines) {
  if (view.lease_renewed_boottime == Duration::zero()) return false;  // it was never registered
  if (view.now_boottime - view.lease_renewed_boottime <= deadlines.lease) return false;
  const bool stalled = view.now_boottime - view.last_tick_boottime > deadlines.silence;
  // A lone node has nobody who could go on without it.
  const bool cut_off = view.members > 1 && (view.knows_all ? 2 * view.heard <= view.members : view.heard <= 1);
  return stalled || cut_off;
}

bool hangs(const TrainerView& view, Duration hang, const Deadlines& deadlines) {
  if (view.stopped) return view.since_progress > deadlines.silence;
  // Who waits inside a collective waits for somebody else, who is found by his own watch.
  const bool waits_for_others = view.phase == PAWL_PHASE_ALLREDUCE || view.phase == PAWL_PHASE_ALLGATHER;
  // These are bounded by deadlines of their own, or by nothing (evaluation, the end of the job).
  const bool outside = view.phase == PAWL_PHASE_JOIN || view.phase == PAWL_PHASE_RESTORE ||
                       view.phase == PAWL_PHASE_ASIDE || view.phase == PAWL_PHASE_FINISH;
  return view.in_step && !waits_for_others && !outside && view.since_progress > hang;
}

}  // namespace pawl::job
