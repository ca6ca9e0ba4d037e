// RangeReader: reads the ranges of source files that a slab needs, many at once, and gives their pieces to the copier.
//
// A range goes to a read buffer; or, if its one piece lies at its target as it lies in the file, right there. Large
// ranges that no cache has are read past the page cache. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/disk_queue.h"
#include "checkpoint/reshape/execution.h"
#include "checkpoint/reshape/lane_memory.h"
#include "checkpoint/reshape/pinned_buffer.h"
#include "checkpoint/reshape/slab_copier.h"
#include "checkpoint/reshape/staging.h"

namespace pawl::checkpoint {

inline constexpr std::uint32_t kRequestsMax = 256;  // in flight, divided among the read buffers

class RangeReader {
 public:
  RangeReader(Execution& execution, const LaneMemory& memory) : execution_(execution), lane_memory_(memory) {}

  // Whatever happens, nothing is in flight when it returns. Fails: `io`, `corrupt` (a file is too short), `full`.
  [[nodiscard]] Status read(const StagedSlab& slab, const std::vector<ReadRange>& ranges, DiskQueue& queue,
                            SlabCopier& copier);

  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }
  [[nodiscard]] std::uint64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  // One request, and what it is for.
  struct Reading {
    std::shared_ptr<OpenFile> file;
    std::size_t range = 0;      // index
    std::byte* data = nullptr;  // of the range's first byte
    DiskRequest request;
    bool direct = false;
    bool in_place = false;  // read to where it belongs
  };
  struct ReadBuffer {
    std::byte* memory = nullptr;
    std::uint64_t used = 0;
    std::size_t pending = 0;
    std::vector<Reading> readings;
  };
  // What read() was called with.
  struct Task {
    const StagedSlab& slab;
    const std::vector<ReadRange>& ranges;
    DiskQueue& queue;
    SlabCopier& copier;
  };

  [[nodiscard]] Status prepare();
  [[nodiscard]] Status fill(ReadBuffer& buffer, std::uint64_t number, const Task& task, std::size_t& next);
  [[nodiscard]] bool add_reading(ReadBuffer& buffer, const ReadRange& range, const StagedSlab& slab, Reading reading);
  [[nodiscard]] Status settle(ReadBuffer& buffer, const DiskAnswer& answer, const Task& task);
  void empty(ReadBuffer& buffer, const Task& task);
  void show(const Reading& reading, const ReadRange& range, const StagedSlab& slab) const;

  Execution& execution_;
  const LaneMemory lane_memory_;
  PinnedBuffer memory_;
  std::vector<ReadBuffer> buffers_;
  std::uint32_t in_flight_ = 0;
  std::uint64_t bytes_read_ = 0, buffer_bytes_ = 0;
};

}  // namespace pawl::checkpoint
