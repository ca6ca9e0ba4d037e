// Lane: one of the executor's threads: takes slabs and executes them, one after another.
//
// A slab goes through four steps: it gets its staging memory, its sources are read and copied to where they belong,
// versions are averaged, and what lies in staged ranges is written to files. Several lanes keep the disk and the cores
// busy at once; they share nothing but the Execution.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "checkpoint/reshape/disk_queue.h"
#include "checkpoint/reshape/execution.h"
#include "checkpoint/reshape/lane_memory.h"
#include "checkpoint/reshape/range_reader.h"
#include "checkpoint/reshape/range_writer.h"
#include "checkpoint/reshape/slab_copier.h"
#include "checkpoint/reshape/staging.h"

namespace pawl::checkpoint {

class Lane {
 public:
  Lane(Execution& execution, const LaneMemory& memory);
  void run();  // until there are no more slabs

  // After run().
  [[nodiscard]] std::uint64_t bytes_read() const { return reader_.bytes_read(); }
  [[nodiscard]] std::uint64_t bytes_written() const { return writer_.bytes_written(); }
  [[nodiscard]] bool used_io_uring() const { return queue_ && queue_->uses_io_uring(); }
  [[nodiscard]] std::uint64_t buffer_bytes() const { return reader_.buffer_bytes() + staging_.buffer_bytes(); }
  [[nodiscard]] const std::map<std::uint32_t, std::uint64_t>& overflows() const { return copier_.overflows(); }

 private:
  [[nodiscard]] Status process(Slab slab);
  [[nodiscard]] Status sort_sources();
  [[nodiscard]] DiskQueue& queue();
  [[nodiscard]] DiskQueue& reading_queue();

  Execution& execution_;
  const LaneMemory memory_;
  std::unique_ptr<DiskQueue> queue_;          // made when a file is read or written
  std::unique_ptr<DiskQueue> address_queue_;  // instead, to read where there are addresses
  Staging staging_;
  SlabCopier copier_;
  RangeReader reader_;
  RangeWriter writer_;
  ReadAllowance allowance_;
  StagedSlab slab_;  // in hand
};

}  // namespace pawl::checkpoint
