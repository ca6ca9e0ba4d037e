// Which members are gone, as one daemon sees it: by their registrations, and by the links that it has to them.
//
// A node whose keeper died is noticed by its neighbours at once (job/daemon/neighbours.h). This is for what no
// neighbour tells: a lease that ended, a leader without a seat, a job of which no member is left. Pure.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "job/recovery/deadlines.h"
#include "job/recovery/decide.h"

namespace pawl::job {

struct Registrations {
  std::map<NodeId, NodeRecord> nodes;     // those that are registered
  std::map<NodeId, Duration> gone_since;  // and those that are not any more
  [[nodiscard]] bool has(NodeLife life) const;
};

// `life` was evicted, by the last recovery or an earlier one: it is never a member or a source again.
[[nodiscard]] bool is_evicted(const JobState& state, NodeLife life);

// For a member. `is_linked`: a link to that node stands; whether it lives is decided there.
[[nodiscard]] std::vector<Cause> absent_members(const JobState& state, const Registrations& registrations,
                                                NodeLife self, const std::function<bool(NodeId)>& is_linked,
                                                Duration now, const Deadlines& deadlines);

// For a node that is no member. If all members are gone at once, none of them says so: the lowest of the other nodes
// does, after the deadline for silence, and leads.
struct Orphaned {
  Duration since{};  // the job has had no living member since then; 0: it has one
  std::optional<StateMove> move;
};
[[nodiscard]] Orphaned decide_orphaned(const JobState& state, const Registrations& registrations, NodeLife self,
                                       Duration since, Duration now, const Deadlines& deadlines);

}  // namespace pawl::job
