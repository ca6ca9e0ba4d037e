// The decisions of a recovery: values in, values and a reason out. The loop that asks is in daemon/.
//
// running -> quiescing(g+1): open_generation. quiescing -> restoring: decide_restore, once every member that is not
// evicted has reported its frozen inventory. restoring -> running: decide_running. Who misses a deadline is evicted by a
// further generation over the same frozen slots. Every function is pure and total; `now` is an argument; equal
// arguments give equal answers on every node, so any daemon can carry on what another began.
// Source: design section 6; DEADPOOL sections III-IV.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "membership/job_state.h"

namespace pawl {

// The first generation: enough healthy nodes with parked trainers. The lowest node ids become members, in order.
struct FormingView {
  JobSpec spec;
  std::vector<NodeRecord> nodes;
  std::uint64_t waited_ms = 0;  // since enough members were there; lets spares of a lower id come in late
};
struct Wait {
  std::string what;             // a named wait: "2 of 4 nodes", "inventory of node 3", "a spare for seat 2"
  std::vector<NodeLife> late;   // whom it waits for: evicted if the deadline passes
  bool without_deadline = false;  // e.g. for a spare
};
struct Move {
  JobState next;                // to be written by compare-and-swap
  std::string why;
};
using Decision = std::variant<Wait, Move>;

[[nodiscard]] Decision decide_forming(const FormingView& view, NodeLife self);

// g+1 because of `cause`. Dead or silent nodes of the cause are evicted, its trainer goes to `restart`. The answer is a
// Wait (with no `late`) where the state already accounts for the cause (node evicted, or not a member any more; seat
// already in `restart` of this generation) or the job has ended. What happened before in the same recovery (evicted,
// struck, restart, causes) is carried over.
[[nodiscard]] Decision open_generation(const JobState& state, const Cause& cause, NodeLife self,
                                       std::span<const Struck> struck = {});

struct QuiescingView {
  JobSpec spec;
  JobState state;
  std::vector<Inventory> inventories;  // of state.generation
  std::vector<NodeRecord> nodes;       // all that are registered: spares among them
};
// Wait, or Move to restoring, or Move to failed with the lost shards named (never a guess). A dead node's seats go to a
// healthy registered node that is no member, was not evicted and has enough parked trainers (lowest node id first).
[[nodiscard]] Decision decide_restore(const QuiescingView& view, NodeLife self);

// All members ready -> running.
[[nodiscard]] Decision decide_running(const JobState& state, std::span<const NodeLife> ready, NodeLife self);

// After all seats have finished.
[[nodiscard]] Decision decide_finished(const JobState& state, std::span<const Seat> finished, NodeLife self);

// A slot (generation, step) belongs to the lineage as decided so far: no later generation went on from before it.
[[nodiscard]] bool in_lineage(std::span<const LineageEntry> lineage, Generation slot_generation, Step step);

}  // namespace pawl
