// The recovery planner: from the survivors' inventories, the step to resume from and a sound source for every seat.
//
// R becomes the committed step by decree, and the gate then gives up what is older. So R is not just the greatest step
// that is whole, but the greatest that is also kept as well as what it replaces:
//
//   whole(X)    every seat has sources of X that have its whole stream together: sealed, of the lineage, not struck out,
//               at members that are not evicted, and not torn; a mark on one copy of a seat's step counts for all of them. Those of a seat are of one slot generation and one layout. Other seats' own
//               slots of that generation are sources of what was declared equal (paths.h). They make a seat whole together
//               with any part of its own, which has the sums that prove them; or alone, where nothing of its own is left
//               and all was declared equal. Nothing proves them then, so they count only where the caller says that the
//               job would end otherwise (`unproven`); and the reason says so.
//   lacking(X)  of the copies that the placement promises (the own slot, and k replicas along the ring), at members
//               that are not evicted, the bytes of which there are no sources of X there.
//   floor       the greatest step that is known to be committed, or from which this recovery already decided to go on
//               (the lineage's last entry: spares that it seated have nothing yet, and struck copies were found since).
//
// Begin at the least whole step >= floor (at 0 if the floor is 0: it needs no copies), and climb to each greater whole
// step that lacks nothing which the step reached so far does not lack. Hence R >= every committed step, known or not:
// it lacked nothing when this recovery first decided. And R survives whatever the step at which the climb began would
// have survived. Where nothing from the floor on is whole (beyond the policy, sources struck out), R is the greatest
// whole step: going on is better than stopping.
//
// Where the world has changed a seat's state goes by the number of the seat before it (`before_of`), in slots of all
// generations: inventories and strikes speak of that, a plan's sources and sentences of the seat itself. `wished` is a further
// world, which the same slots are to fill: what was promised of a seat before is owed to the seat that goes on from it, and of
// one that nobody has now nothing was promised. Paths are declared by the seats' own numbers, so where any seat goes by
// another one nothing is read from them.
//
// Sources in order of nearness: own arena on a living member, then replicas, then those at lingering nodes (decide.h); those
// that the seat's node could not reach come after all others of its own; then paths, which wait for the sums of the others. A seat whose state lies in its own arena has that
// one; any other has all, so that they can be read side by side, and one that fails is no reason to plan anew. This is
// the one place that knows. Pure.
// Why not simply the greatest whole step: docs/decisions/0004-resume-from-the-redundant-step.md.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "job/membership/inventory.h"
#include "job/membership/job_state.h"

namespace pawl::job {

// Nothing came from there in this recovery to the node that took this seat. What lies there is sound.
struct Unreached {
  Seat seat;
  NodeLife at;
  bool operator==(const Unreached&) const = default;
};

struct PlanInput {
  std::uint32_t seat_count = 0;
  std::span<const Inventory> inventories;  // of members that are not evicted
  std::span<const LineageEntry> lineage;
  std::span<const Struck> struck;
  std::span<const NodeLife> evicted;
  Step committed;                            // known to be committed besides what the inventories say
  std::span<const Member> seats;             // who sat where, index = seat. Empty: no copies are promised
  std::uint32_t replica_count = 1;           // along their ring (job/redundancy/placement.h)
  std::span<const NodeLife> lingering = {};  // evicted, too, but they may be read from: not among `evicted`
  std::span<const Unreached> unreached = {};
  bool unproven = false;  // seats of which nothing is left go on from what others have declared equal
  // The world to plan for: of each seat the seat before it, all different. Then `seat_count` is theirs, and `seats` says who sat
  // where until now. None: the world of `seats`.
  std::optional<std::span<const Seat>> wished = {};
};

struct Plan {
  Step resume;                  // 0: no step; see `lost`
  Step committed;               // greatest step anybody knew to be committed; resume < committed: steps are redone
  std::vector<Source> sources;  // when resume > 0, as in JobState: by seats, of each the nearest first
  // Why not `committed`, or not any: what the step from `committed` on that is nearly whole lacks, a sentence a seat,
  // "seat 2: no sealed copy of step 41 (own: node 2 evicted; replica at node 3: struck out)".
  std::vector<std::string> lost;
  // Seats of which step `resume`, or a part of it, lies in one place only, though the job keeps replicas: until the next commit (for a
  // seat that moves: until its spare has imported it) a death there loses it.
  std::vector<Seat> single_copies;
  std::vector<std::string> notes;  // odd, though no reason to stop: copies whose layout is not that of the chosen one
};
// A source is: sealed and not torn, of a seat of the job, of a step > 0 in the lineage, not struck out, on a node not evicted.
// Equal for equal sets of inventories, in whatever order. Cost: O(items (log items + whole steps)).
[[nodiscard]] Plan plan_restore(const PlanInput& input);

// For `pawl exposure --if NODE,...`: what would be lost if these nodes died now, from real inventories (of all members,
// unfrozen, so a lower bound). Same code as above with the nodes' inventories left out.
// `newest_step`: the greatest step that the caller knows to be committed now.
struct Exposure {
  bool recoverable = false;      // the job goes on; from 0 if nothing was committed yet and anybody is left
  Step resume;                   // to which the job would go back
  std::uint64_t steps_lost = 0;  // committed step now minus resume
  std::vector<std::string> lost;
};
[[nodiscard]] Exposure exposure_if(const PlanInput& input, std::span<const NodeId> dead, Step newest_step);

[[nodiscard]] std::uint64_t digest_of(std::span<const Source> sources, Step resume);

}  // namespace pawl::job
