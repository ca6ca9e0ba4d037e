// RangeWriter: writes the staged ranges of a slab to their files.
//
// The aligned middle of a large range goes past the page cache, its edges through it: no page is written both ways.
// Where the page cache can't be passed by, at most two slabs of a lane are dirty pages. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/disk_queue.h"
#include "checkpoint/reshape/execution.h"
#include "checkpoint/reshape/staging.h"

namespace pawl::checkpoint {

class RangeWriter {
 public:
  explicit RangeWriter(Execution& execution) : execution_(execution) {}
  // Shows them to the observer, then writes them. Nothing is in flight when it returns. Fails: `io`, `full`.
  [[nodiscard]] Status write(const std::vector<StagedRange>& ranges, DiskQueue& queue);
  [[nodiscard]] std::uint64_t bytes_written() const { return bytes_written_; }

 private:
  struct Writing {
    std::shared_ptr<OpenFile> file;
    DiskRequest request;
    bool direct = false;
  };
  // A range written through the page cache, on its way to the disk.
  struct Leaving {
    std::shared_ptr<OpenFile> file;
    std::uint64_t begin = 0, end = 0;
  };

  [[nodiscard]] Status append_writings(const StagedRange& staged, std::vector<Writing>& writings);
  [[nodiscard]] Status write_all(std::vector<Writing>& writings, DiskQueue& queue);
  [[nodiscard]] Status send_to_disk(const std::vector<Writing>& writings);

  Execution& execution_;
  std::uint64_t bytes_written_ = 0;
  std::vector<Leaving> leaving_;
};

}  // namespace pawl::checkpoint
