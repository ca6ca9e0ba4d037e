// What the job's state asks of one node: to leave, to freeze, to report, to restore, to run; and of its leader: to move
// the state on.
//
// Any duty may come again; a daemon compares the state with what it has done (Followed) and takes the next step. The
// daemon carries them out in job/daemon/generations.h. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "job/recovery/absent_members.h"
#include "job/recovery/deadlines.h"
#include "job/recovery/decide.h"
#include "job/recovery/members.h"

namespace pawl::job {

// How far a node has followed the state: what it has done last, of which generation.
struct Followed {
  Generation frozen;  // its slots are frozen
  Generation restoring;
  Duration restoring_since{};
  Generation running;
  bool was_member = false;
};

enum class Standing {
  bystander,  // it has no seat: a spare, or it comes too late
  member,
  lingering,  // evicted, and others may still need what it holds: it freezes, reports and lets them read, no more
  evicted,    // it must end its trainers and come back as another life
  leaving,    // the job has finished, and trainers of this node still do what comes after
  over,       // the job has ended and nobody here is left
};
struct StandingView {
  NodeLife self;
  bool was_member = false;
  bool must_linger = false;    // decide.h
  bool trainers_gone = false;  // each has ended or detached
  Duration in_state_for{};     // the state has had its phase for so long
};
[[nodiscard]] bool is_member(const JobState& state, NodeLife life);
[[nodiscard]] Standing standing_of(const JobState& state, const Roster& roster, const StandingView& view);

// For members. After a freeze ask again.
struct Duties {
  bool freeze = false;
  bool report_inventory = false;
  bool begin_restore = false;
  bool end_copies = false;  // what the recovery has begun and may still touch memory
  bool begin_running = false;
};
// Tasks of this node that touch arenas.
struct CopyTasks {
  bool streams = false;  // replicas, either end, and slots that others fetch: they run
  bool imports = false;  // slots that this node fetches: they run
};
// No task outlives the phase that began it. A fetch writes into frozen slots, so nothing is said of them (inventory)
// before it has ended, and they are not let go (running) either; streams write only into live ones, and a freeze stops
// them there.
[[nodiscard]] Duties duties_of(const JobState& state, const Followed& followed, CopyTasks copies);

// The least moment since which enough nodes for a job have been there; 0: there are too few.
[[nodiscard]] Duration enough_nodes_since(const FormingView& view, Duration since, Duration now);

// Of the leader, while the job is quiescing or restoring.
struct LeadView {
  const JobSpec& spec;
  const JobState& state;
  std::vector<Inventory> inventories;  // of the state's generation
  std::vector<NodeRecord> nodes;       // that are no surviving members: as in QuiescingView
  std::vector<NodeLife> ready;
  std::vector<TrainerEnd> ends;
  Duration in_state_for{};
  const Registrations& registrations;
  std::vector<NodeLife> absent;  // members without a registration for long (is_absent)
  std::vector<NodeId> cordoned = {};
  std::vector<NodeLife> silent = {};  // as in QuiescingView
  std::vector<Step> stored = {};      // likewise
  std::optional<std::vector<Seat>> wished = {};
};
struct Lead {
  Decision decision;
  std::optional<LastStep> last = {};  // of a job that ends: to be written, while the decision waits for that
  std::vector<Cause> late;            // who has missed the deadline
};
// How long it waits for those that have not reported (quiescing) or are not ready (restoring); besides for each node what
// Registrations::time_to_end says.
[[nodiscard]] Duration report_patience(JobPhase phase, const JobSpec& spec, const Registrations& registrations,
                                       const Deadlines& deadlines);
// In quiescing: how long whoever leads, and each who was evicted and lingers, waits for the reports of those that linger.
[[nodiscard]] Duration lingering_patience(const JobState& state, const JobSpec& spec,
                                          const Registrations& registrations, const Deadlines& deadlines);
// nullopt: in this phase nobody leads. Of a recovery's members that are absent none becomes ready: they are late at once.
// Nobody is late if not half of the members would be left (leaves_quorum).
[[nodiscard]] std::optional<Lead> decide_lead(LeadView view, NodeLife self, const Deadlines& deadlines);

// Who leads: whoever the state names; and where it stands still, its members in turn, each `Deadlines::leader` later.
// Its moves are the same as the leader's, and the compare-and-swap takes one: a leader that is only slow loses nothing,
// and nobody is evicted by a takeover.
struct TurnView {
  const JobState& state;
  const Registrations& registrations;
  NodeLife self;
  Duration quiet_for{};     // neither state nor anything it waits for has changed, and this node would have heard of it
  bool few_follow = false;  // in this job only a few know who is registered (node_followers.h)
  bool has_post = true;     // and this node is always one of them
};
// How much later than the leader this node acts, if it may act now at all. Where few know who is registered these take the next turn
// together, and the one after that whoever else has come to know it by then. Of members of which it is not known whether they are
// registered all take their turns.
[[nodiscard]] std::optional<Duration> lead_delay(const TurnView& view, const Deadlines& deadlines);

// Of which node at position `mine` of a ring of `count` keeps links: those beside it (two ahead), the root, and its
// parent and children in the tree. Ascending.
[[nodiscard]] std::vector<std::uint32_t> linked_positions(std::uint32_t mine, std::uint32_t count);
// Of which nodes link to the one at `mine`: the reverse of it. Ascending.
[[nodiscard]] std::vector<std::uint32_t> linking_positions(std::uint32_t mine, std::uint32_t count);

}  // namespace pawl::job
