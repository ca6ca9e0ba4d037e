// Execution: what the lanes of one execute() share: options, files, the queue of slabs, progress, and the first error.
//
// Thread-safe. It outlives its lanes. It reads and copies nothing itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "checkpoint/reshape/decoded_files.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/open_files.h"
#include "checkpoint/reshape/slab_queue.h"

namespace pawl::checkpoint {

class Execution {
 public:
  Execution(const CopySource& source, const CopyTarget& target, const ExecuteOptions& options,
            std::uint64_t decoded_bytes_max, std::size_t slabs_max);

  const ExecuteOptions& options;
  const std::vector<StoredFile>* stored;
  OpenFiles sources;
  const bool has_addresses;  // among the sources
  OpenFiles targets;
  PeerMemory* peers;
  DecodedFiles decoded;
  SlabQueue slabs;

  // Whether the lanes shall end: something failed, or the caller cancelled.
  [[nodiscard]] bool stopped() const {
    return failed_ || (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed));
  }
  void fail(Error error);  // the first one counts
  [[nodiscard]] Status status();
  void add_done(std::uint64_t bytes);
  void report_progress(bool is_last);

 private:
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::optional<Error> error_;
  std::atomic<std::uint64_t> done_{0};
  std::mutex progress_mutex_;
  std::int64_t reported_ms_ = 0;
};

}  // namespace pawl::checkpoint
