// Spares: which registered nodes may take the seats of another. Pure.
#pragma once

#include <span>
#include <vector>

#include "job/membership/job_state.h"

namespace pawl::job {

// Healthy nodes that are no members, were not evicted and are not cordoned; of two lives of a node the later one. Those
// among `silent` (they did not answer on their data link) come last; else those of which the job has evicted the fewest
// lives come first, of these the lowest id.
// Whether enough of a node's trainers are parked depends on what it is to take: that is for the caller to look at.
[[nodiscard]] std::vector<NodeRecord> spares_of(const JobState& state, std::span<const NodeRecord> nodes,
                                                std::span<const NodeId> cordoned = {},
                                                std::span<const NodeLife> silent = {});

}  // namespace pawl::job
