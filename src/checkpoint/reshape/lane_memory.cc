#include "checkpoint/reshape/lane_memory.h"

#include <algorithm>

#include "checkpoint/reshape/alignment.h"

namespace pawl::checkpoint {

std::uint64_t LaneMemory::range_bytes_max() const {
  return read_buffer_bytes - 2 * kDirectUnit;
}

LaneMemory divide_memory(std::uint64_t bytes) {
  // More than eight requests at once from each of two lanes per core only wait; meanwhile the kernel joins them.
  constexpr std::uint64_t kBuffersMin = 4, kBuffersMax = 8;
  constexpr std::uint64_t kBufferBytes = 512 << 10;  // for one request: longer ones are no faster, and queue worse
  constexpr std::uint64_t kStagedMax = 32 << 20;
  constexpr std::uint64_t kTargetMax = 16 << 20;
  constexpr std::uint64_t kRunsMax = 32 << 10;
  LaneMemory memory;
  memory.read_buffers = std::clamp(bytes / 4 / kBufferBytes, kBuffersMin, kBuffersMax);
  memory.read_buffer_bytes = std::min(kBufferBytes, rounded_down(bytes / 4 / memory.read_buffers, kDirectUnit));
  memory.staged_bytes = std::min(kStagedMax, bytes / 2);
  // Each large range to be written has up to a page of room before it.
  memory.limits.staged_bytes = memory.staged_bytes / 16 * 15;
  memory.limits.target_bytes = std::min(kTargetMax, memory.limits.staged_bytes);
  memory.limits.runs =
      std::min(kRunsMax, std::max<std::uint64_t>(16, bytes / 4 / (sizeof(ReadPiece) + sizeof(CopyPart))));
  return memory;
}

LaneMemory divide_memory_for_addresses(std::uint64_t bytes) {
  constexpr std::uint64_t kRequestMax = 8 << 20;  // what a connection carries in some tens of round trips
  LaneMemory memory = divide_memory(bytes);
  memory.read_buffers = 1;
  memory.read_buffer_bytes = std::min(kRequestMax, rounded_down(bytes / 4, kDirectUnit));
  memory.limits.target_bytes = std::min(kRequestMax, memory.limits.target_bytes);
  return memory;
}

}  // namespace pawl::checkpoint
