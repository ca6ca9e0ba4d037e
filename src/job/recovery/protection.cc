#include "job/recovery/protection.h"

#include <algorithm>

#include "base/text.h"
#include "job/recovery/members.h"

namespace pawl::job {
namespace {

Step furthest(const std::vector<SeatProtection>& seats) {
  Step reached;
  for (const SeatProtection& seat : seats) reached = std::max(reached, seat.reached);
  return reached;
}

bool is_live(const SlotWord& word, Generation generation, Step committed) {
  return word.state != SlotState::empty && word.generation == generation && word.step > committed;
}

}  // namespace

std::optional<ProtectionObstacle> obstacle_of(const SeatProtection& seat, Generation generation, Step committed) {
  if (seat.held > committed || seat.reached <= committed) return std::nullopt;
  for (std::size_t i = 0; i < seat.slots.size(); ++i)
    if (seat.slots[i].frozen)
      return ProtectionObstacle{text("its slot ", i, " is frozen, at step ", seat.slots[i].step), true};
  if (!seat.obstacles.empty()) {
    std::vector<std::string> whys;
    for (const auto& [holder, why] : seat.obstacles) whys.push_back(why);
    return ProtectionObstacle{joined(whys, "; "), true};
  }
  for (const SlotWord& word : seat.slots)
    if (is_live(word, generation, committed))
      return ProtectionObstacle{text("step ", word.step, " is on its way to its holders"), false};
  return ProtectionObstacle{"its own windows are void: none was copied out in time, or no slot was free", true};
}

std::string why_cut(NodeId other) {
  return text("no link stands to node ", other,
              ", by which the nodes tell each other what is held: look at the network "
              "between the two");
}

ProtectionVerdict judge_protection(const ProtectionView& view, ProtectionNotes notes, const Deadlines& deadlines) {
  const Step reached = furthest(view.seats);
  if (view.generation != notes.generation || view.committed != notes.committed) {
    const bool resumed = notes.stopped && view.committed > notes.committed;
    const bool still = notes.stopped && !resumed;  // a recovery alone protects nothing
    return {{view.generation, view.committed, reached, view.now, still},
            resumed ? ProtectionChange::resumed : ProtectionChange::none};
  }
  if (notes.stopped || view.now - notes.since <= deadlines.protection + time_to_move(view.bytes)) return {notes};
  bool ours = !view.cut.empty();
  bool blocked = ours;
  for (const SeatProtection& seat : view.seats) {
    const auto obstacle = obstacle_of(seat, view.generation, view.committed);
    ours = ours || obstacle;
    blocked = blocked || (obstacle && obstacle->blocked);
  }
  const std::uint64_t steps = reached > notes.reached ? reached.value - notes.reached.value : 0;
  if ((!ours && !view.is_root) || steps < (blocked ? kBlockedStepsMin : kSlowStepsMin)) return {notes};
  notes.stopped = true;
  return {notes, ProtectionChange::stopped};
}

}  // namespace pawl::job
