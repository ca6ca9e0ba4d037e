// Memory plan: what a node's memory has to hold under the job's policy, asked before anything of it is made.
//
// A node has an arena for each of its own seats and one for each of its wards' (placement.h), all taken to be as large as
// the first seat that declares its layout. A spare needs as much as the node whose seats it gets. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace pawl::job {

struct MemoryPlan {
  std::uint64_t arena_bytes = 0;     // of one own seat: all its slots
  std::uint32_t slot_count = 2;      // of that; a ward's has two
  std::uint32_t seats_per_node = 1;  // of the node that has most
  std::uint32_t replica_count = 0;
  std::uint32_t wards_per_node =
      0;                  // of the node that has most; with failure domains maybe more than k for each own seat
  bool of_spare = false;  // asked by a node that waits for seats, for the words of the refusal
  std::uint64_t budget_bytes = 0;  // of a node, for all its arenas (`pawl run --memory`); 0: what it has
};

[[nodiscard]] std::uint32_t arenas_needed(const MemoryPlan& plan);  // of one node
[[nodiscard]] std::uint64_t bytes_needed(const MemoryPlan& plan);   // of one node, spares included

// Fails: `invalid` if that is more than `available_bytes`, or than the budget, with the arithmetic and the remedies.
[[nodiscard]] Status check_memory(const MemoryPlan& plan, std::uint64_t available_bytes);

// The least sizes of the segments that a node keeps ready for arenas to come, largest first: a spare all that it will need,
// those for wards with two slots; a member as many as its arenas still miss, of any size, and never new ones; any other
// node none.
struct ReadyView {
  bool is_spare = false;  // of a job that runs
  bool is_member = false;
  std::uint32_t arenas_here = 0;
  std::uint32_t ready = 0;
};
[[nodiscard]] std::vector<std::uint64_t> segments_wanted(const MemoryPlan& plan, const ReadyView& view);

// Which of the segments that are `ready` are kept for those that are wanted, both by size; and what is missing of these.
struct SegmentsKept {
  std::vector<std::size_t> kept;  // indexes into `ready`
  std::vector<std::uint64_t> missing;
};
[[nodiscard]] SegmentsKept keep_segments(const std::vector<std::uint64_t>& ready,
                                         const std::vector<std::uint64_t>& wanted);

}  // namespace pawl::job
