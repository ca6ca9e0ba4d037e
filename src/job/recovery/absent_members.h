// Which members the control's records show to be gone, and who takes over a job that no member speaks for any more.
//
// What links show of a member is weighed in suspicion.h. Pure.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "job/recovery/deadlines.h"
#include "job/recovery/decide.h"

namespace pawl::job {

struct Registrations {
  bool known = true;                             // all of them; else this has none, and says nothing of anybody
  std::map<NodeId, NodeRecord> nodes;            // those that are registered
  std::map<NodeId, Duration> gone_since;         // and those that are not any more
  std::map<NodeId, std::uint64_t> memory_bytes;  // of these, too: about what their pawlds have
  std::uint64_t arena_bytes_max = 0;             // of a seat, as any of them or the state ever said
  std::uint64_t state_arena_bytes = 0;           // as the state says
  std::uint64_t own_arena_bytes = 0;             // the largest of this node's seats
  std::uint32_t seats_per_node_max = 1;          // of the node that has most in the generation's topology
  std::uint64_t changes = 0;                     // that were noted
  void note(NodeId node, const NodeRecord* record, Duration now);  // nullptr: it is not registered
  void note_state(const JobState& state);
  void forget();  // who is registered: not known from now on
  [[nodiscard]] bool has(NodeLife life) const;
  [[nodiscard]] std::vector<NodeRecord> records() const;
  // How long a killed process of the node may take to end, and say nothing, before its next one can start. Of a node of which no
  // record was seen: as if its arenas were as large as the state's largest, or this node's.
  [[nodiscard]] Duration time_to_end(NodeId node) const;
};

// `life` was evicted, by the last recovery or an earlier one: it is never a member or a source again.
[[nodiscard]] bool is_evicted(const JobState& state, NodeLife life);

// The lowest registered node speaks for a job that no member speaks for; not one that was evicted and lingers.
[[nodiscard]] bool is_lowest_registered(const JobState& state, const Registrations& registrations, NodeLife self);

// For a member: a leader without a seat that is gone, and members whose nodes have begun another life. Of these only the
// neighbours speak, or the whole job would at once.
struct Links;
[[nodiscard]] std::vector<Cause> absent_members(const JobState& state, const Registrations& registrations,
                                                const Links& links, NodeLife self);

// For a node that is no member. If no member is registered, none of them can say that all are gone. They may also have
// lost the control together, and train on. So the lowest of the other nodes asks each at its own address: only if all are
// proven dead, it takes the job over, and leads. A member that answers lives; one that neither answers nor refuses may,
// and what it holds would be lost with it: it is waited for without a deadline, and that is said (`unproven`).
struct Contact;
struct Orphaned {
  Duration since{};  // the job has had no registered member since then; 0: it has one
  std::vector<NodeLife> unproven;
  std::optional<StateMove> move;
  std::vector<Cause> causes;  // of the move
};
[[nodiscard]] Orphaned decide_orphaned(const JobState& state, const Registrations& registrations,
                                       std::span<const Contact> contacts, NodeLife self, Duration since, Duration now,
                                       const Deadlines& deadlines);

}  // namespace pawl::job
