// Survival: how much more may die now, or after some nodes have died. A pure function of the protection plan and of what
// the memories hold, for `pawl exposure`. What would be lost, and to which step a job would go back: planner.h.
#pragma once

#include <span>

#include "job/recovery/planner.h"
#include "job/redundancy/protection.h"

namespace pawl::job {

// The plan by which a job with these members keeps its copies: each seat's state is a group of one, of a byte.
[[nodiscard]] ProtectionPlan plan_of_copies(std::span<const Member> seats, std::uint32_t replica_count);

// Of `step`, with the inventories of `dead` left out: any so many failure domains may die at once besides, where they really
// are by now. Counts the plan's own shelves only, and whole ones: so it may be better, and is never worse.
[[nodiscard]] Survival survival_if(const ProtectionPlan& plan, const PlanInput& input, std::span<const NodeId> dead,
                                   Step step);

}  // namespace pawl::job
