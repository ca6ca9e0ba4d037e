// Node followers: which nodes follow who is registered (`:nodes/<id>`).
//
// If all did, each node that comes or goes would be told to all, and to form a job of n nodes would be n² messages. So a job of a
// few nodes does, and in a larger one only who has to judge others by their registrations: nodes without a seat, a few until the
// job has formed, who leads or takes a turn, who is drained, who may soon bear witness against a neighbour.
// Who follows lists first. Until then, and where nobody follows, nobody is registered, absent or a spare
// (Registrations::known), and nothing is decided that depends on it: a node that begins late finds out late, never wrongly.
// Pure. Who does it: job/daemon/node_follower.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "job/membership/job_state.h"
#include "job/recovery/deadlines.h"
#include "job/recovery/members.h"
#include "job/recovery/suspicion.h"

namespace pawl::job {

inline constexpr std::uint32_t kAllFollowMax = 64;  // nodes of a job, its spares among them

struct FollowView {
  const JobSpec& spec;
  const JobState* state;  // nullptr: the job has not formed
  const Roster& roster;
  const Registrations& registrations;
  NodeLife self;
  std::uint32_t all_follow_max = kAllFollowMax;
  Duration joined_for{};  // since this node has known the spec
  Duration quiet_for{};   // as in TurnView
  std::span<const Contact> contacts = {};
  bool accuses = false;                          // a word of this node against another stands
  std::optional<Duration> attentive_since = {};  // Attention
  Duration now{};
  std::span<const NodeLife> leaving = {};  // who is to be drained
  std::span<const NodeLife> failed = {};   // whose trainers have reported faults, in the order of their seats
};
[[nodiscard]] bool must_follow_nodes(const FollowView& view, const Deadlines& deadlines);

}  // namespace pawl::job
