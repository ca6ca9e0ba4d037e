// LaneMemory: how one lane divides its part of the memory budget.
#pragma once

#include <cstdint>

#include "checkpoint/reshape/slabs.h"

namespace pawl::checkpoint {

struct LaneMemory {
  std::uint64_t read_buffers = 0;
  std::uint64_t read_buffer_bytes = 0;  // of each: a multiple of kDirectUnit, with room for alignment
  std::uint64_t staged_bytes = 0;       // ranges to be written, and versions to be averaged
  SlabLimits limits;

  // The longest range that is read at once.
  [[nodiscard]] std::uint64_t range_bytes_max() const;
};
[[nodiscard]] LaneMemory divide_memory(std::uint64_t bytes);
// Of a lane that reads addresses: one long request at a time, since there are many lanes.
[[nodiscard]] LaneMemory divide_memory_for_addresses(std::uint64_t bytes);

}  // namespace pawl::checkpoint
