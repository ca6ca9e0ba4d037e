#include "job/recovery/report_groups.h"

#include <algorithm>
#include <chrono>

namespace pawl::job {

using std::chrono::milliseconds;

std::optional<ReportGroup> report_group_of(const JobState& state, const Roster& roster, const Ring& ring, NodeLife self,
                                           std::uint32_t size) {
  if (size == 0 || ring.position_count() <= size || !roster.is_survivor(self)) return std::nullopt;
  const std::uint32_t index = ring.position_of(*roster.lowest_seat_of(self)) / size;
  ReportGroup group{index, {}};
  const std::uint32_t end = std::min(ring.position_count(), (index + 1) * size);
  for (std::uint32_t position = index * size; position < end; ++position) {
    const Member& member = state.seats[ring.first_seat(position).value];
    if (roster.is_survivor(member.life)) group.survivors.push_back(member);
  }
  if (group.survivors.size() < 2) return std::nullopt;
  return group;
}

ReportWaits report_waits(const Deadlines& deadlines) {
  const Duration whole = deadlines.inventory;
  return {std::min<Duration>(whole / 60, milliseconds(50)), std::min<Duration>(whole / 12, milliseconds(250)),
          std::min<Duration>(whole / 3, milliseconds(1000)), std::min<Duration>(whole / 3, milliseconds(1000))};
}

Duration report_delay(std::uint32_t position, std::uint32_t count, const ReportWaits& waits) {
  return waits.taken + waits.spread * position / std::max<std::uint32_t>(count, 1);
}

SendingStep next_sending_step(const SendingView& view, const ReportWaits& waits) {
  if (view.put) return SendingStep::done;
  if (!view.phase_goes_on) return SendingStep::done;
  if (view.acknowledged) return view.since_acknowledged >= view.delay ? SendingStep::put_itself : SendingStep::wait;
  const bool late = view.since_begun >= waits.acknowledged;
  const bool is_sent = view.tried > 0 && !view.line_lost;
  if (late || view.refused) return SendingStep::put_itself;
  if (is_sent) return SendingStep::wait;
  return view.tried < view.collectors ? SendingStep::send_to_next : SendingStep::put_itself;
}

}  // namespace pawl::job
