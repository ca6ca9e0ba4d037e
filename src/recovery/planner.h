// The recovery planner: from the survivors' inventories, the step to resume from and a sound source for every seat.
//
// R is the greatest step of the lineage for which every seat has a sealed source that was not struck out. Sources in
// order of nearness: own arena on a living member, then a replica. A seat's regions may later come from several places
// (data-parallel paths, parity, storage): this is the one place that knows. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "membership/job_state.h"

namespace pawl {

struct PlanInput {
  std::uint32_t seat_count = 0;
  std::span<const Inventory> inventories;       // of members that are not evicted
  std::span<const LineageEntry> lineage;
  std::span<const Struck> struck;
  std::span<const NodeLife> evicted;
};

struct Plan {
  Step resume;                     // 0: no step; see `lost`
  Step committed;                  // greatest step any survivor knew to be committed
  std::vector<Source> sources;     // one a seat when resume > 0
  std::vector<std::string> lost;   // why not `committed` or any: "seat 2: no sealed copy of step 41 (own: node 2 evicted; replica at node 3: struck out)"
};
[[nodiscard]] Plan plan_restore(const PlanInput& input);

// For `pawl exposure --if NODE,...`: what would be lost if these nodes died now, from real inventories (of all members,
// unfrozen, so a lower bound). Same code as above with the nodes' inventories left out.
struct Exposure {
  bool recoverable = false;
  Step resume;                     // to which the job would go back
  std::uint64_t steps_lost = 0;    // committed step now minus resume
  std::vector<std::string> lost;
};
[[nodiscard]] Exposure exposure_if(const PlanInput& input, std::span<const NodeId> dead, Step newest_step);

[[nodiscard]] std::uint64_t digest_of(std::span<const Source> sources, Step resume);

}  // namespace pawl
