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
  Step committed;                               // known to be committed besides what the inventories say
  std::span<const Member> seats;                // who sat where, index = seat; only to name places. May be empty
};

struct Plan {
  Step resume;                     // 0: no step; see `lost`
  Step committed;                  // greatest step anybody knew to be committed; resume < committed: steps are redone
  std::vector<Source> sources;     // one a seat when resume > 0
  // Why not `committed`, or not any: what the step from `committed` on that is nearly whole lacks, a sentence a seat,
  // "seat 2: no sealed copy of step 41 (own: node 2 evicted; replica at node 3: struck out)".
  std::vector<std::string> lost;
  std::vector<std::string> notes;  // odd, though no reason to stop: copies whose layout is not that of the chosen one
};
// A source is: sealed, of a seat of the job, of a step > 0 in the lineage, not struck out, on a node not evicted.
// Equal for equal sets of inventories, in whatever order. Cost: O(items log items).
[[nodiscard]] Plan plan_restore(const PlanInput& input);

// For `pawl exposure --if NODE,...`: what would be lost if these nodes died now, from real inventories (of all members,
// unfrozen, so a lower bound). Same code as above with the nodes' inventories left out.
// `newest_step`: the greatest step that the caller knows to be committed now.
struct Exposure {
  bool recoverable = false;        // the job goes on; from 0 if nothing was committed yet and anybody is left
  Step resume;                     // to which the job would go back
  std::uint64_t steps_lost = 0;    // committed step now minus resume
  std::vector<std::string> lost;
};
[[nodiscard]] Exposure exposure_if(const PlanInput& input, std::span<const NodeId> dead, Step newest_step);

[[nodiscard]] std::uint64_t digest_of(std::span<const Source> sources, Step resume);

}  // namespace pawl
