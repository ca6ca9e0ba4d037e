#include "job/recovery/ending.h"

namespace pawl::job {

StopDuties decide_stop(const JobState& state, const StopView& view, NodeLife self) {
  StopDuties duties;
  if (view.stop_step.value == 0) {
    duties.propose = true;
    return duties;
  }
  const auto told = [&](NodeId node) {
    const auto found = view.told.find(node);
    return found != view.told.end() && found->second == state.generation;
  };
  duties.acknowledge = !told(self.node);
  duties.answer = true;
  for (const Member& member : state.seats)
    duties.answer = duties.answer && (member.life.node == self.node || told(member.life.node));
  return duties;
}

EndedSeats ended_seats(const std::map<Seat, SeatFinish>& finishes, Generation generation) {
  EndedSeats seats;
  for (const auto& [seat, finish] : finishes) {
    if (finish.generation != generation) continue;
    seats.ended.push_back({seat, finish.step});
    if (finish.committed) seats.finished.push_back(seat);
  }
  return seats;
}

}  // namespace pawl::job
