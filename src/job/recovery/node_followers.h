// Node followers: which nodes follow who is registered (`:nodes/<id>`).
//
// If all did, each node that comes or goes would be told to all, and to form a job of n nodes would be n² messages. So a job of a
// few nodes does (kAllFollowMax). In a larger one these do, and each line is so many at most:
//   * the members at the *posts*: 16 places spread over the ring, the same as long as the job lasts (spread.h);
//   * where something stands still, which those at the posts should have moved, 16 more, others with each turn: a recovery of
//     which nothing is heard, or a word against a member that nobody acts on;
//   * whoever leads a recovery, and after the first one until the largest arena is in the state;
//   * of those that are to be drained the first 16, and the first two members, of which one opens for them;
//   * of those that were evicted and may have to linger 16, others with each deadline for silence;
//   * of the nodes without a seat the 16 lowest; and, if so few nodes are registered that no member may be, all, which is to read few;
//   * the last two members;
//   * until the job has formed four, and after a while 16 more, others with each turn.
// Who follows lists first. Until then, and where nobody follows, nobody is registered, absent or a spare
// (Registrations::known), and nothing is decided that depends on it. All others say what they see (accusations, fault reports), and
// act on nothing that needs to know who is registered: those at the posts do, for all (SuspicionView::judges_all, TrainerWatch).
// Pure. Who does it: job/daemon/node_follower.h.
#pragma once

#include <cstdint>
#include <span>

#include "job/membership/job_state.h"
#include "job/recovery/deadlines.h"
#include "job/recovery/members.h"
#include "job/recovery/spread.h"

namespace pawl::job {

inline constexpr std::uint32_t kAllFollowMax = 64;  // nodes of a job, its spares among them

struct FollowLimits {
  std::uint32_t all_max = kAllFollowMax;
  std::uint32_t at_once = kSpreadPlaces;  // of a larger job, for any one reason
};

struct FollowView {
  const JobSpec& spec;
  const JobState* state;  // nullptr: the job has not formed
  const Roster& roster;
  NodeLife self;
  FollowLimits limits{};
  std::uint32_t position = 0, position_count = 0;  // in the ring
  Duration joined_for{};                           // since this node has known the spec
  Duration in_state_for{};
  Duration quiet_for{};                    // as in TurnView
  Duration accused_for{};                  // for so long somebody has accused somebody
  std::span<const NodeLife> leaving = {};  // who is to be drained
  bool few_registered = false;             // fewer than half as many as there are members
};
[[nodiscard]] bool do_all_follow(const JobSpec& spec, const FollowLimits& limits);
[[nodiscard]] bool must_follow_nodes(const FollowView& view, const Deadlines& deadlines);
// Of a node without a seat: those before it, by node, that may have none either.
[[nodiscard]] std::uint32_t bystanders_before(const FollowView& view);

}  // namespace pawl::job
