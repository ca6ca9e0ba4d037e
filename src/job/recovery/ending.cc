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

void Finishes::note(Seat seat, const SeatFinish& finish) {
  forget(seat);
  by_seat_.emplace(seat, finish);
  Ended& ended = by_generation_[finish.generation];
  ended.by_step.emplace(finish.step, seat);
  if (finish.committed) ++ended.finished;
}

void Finishes::forget(Seat seat) {
  const auto found = by_seat_.find(seat);
  if (found == by_seat_.end()) return;
  const SeatFinish finish = found->second;
  by_seat_.erase(found);
  const auto ended = by_generation_.find(finish.generation);
  ended->second.by_step.erase({finish.step, seat});
  if (finish.committed) --ended->second.finished;
  if (ended->second.by_step.empty()) by_generation_.erase(ended);
}

void Finishes::clear() {
  by_seat_.clear();
  by_generation_.clear();
}

const SeatFinish* Finishes::of(Seat seat) const {
  const auto found = by_seat_.find(seat);
  return found != by_seat_.end() ? &found->second : nullptr;
}

std::vector<SeatStep> Finishes::earliest(Generation generation) const {
  std::vector<SeatStep> earliest;
  const auto ended = by_generation_.find(generation);
  if (ended == by_generation_.end()) return earliest;
  for (const auto& [step, seat] : ended->second.by_step) {
    if (earliest.size() == 2) break;
    earliest.push_back({seat, step});
  }
  return earliest;
}

std::size_t Finishes::finished_count(Generation generation) const {
  const auto ended = by_generation_.find(generation);
  return ended != by_generation_.end() ? ended->second.finished : 0;
}

std::vector<Seat> Finishes::finished_seats(Generation generation) const {
  std::vector<Seat> seats;
  for (const auto& [seat, finish] : by_seat_)
    if (finish.generation == generation && finish.committed) seats.push_back(seat);
  return seats;
}

}  // namespace pawl::job
