// Checksums that a checkpoint's own format has, proven: the CRC32s of torch.save's zip archives, the CRC32Cs of our own
// store's headers and pieces.
//
// Also of those inside DCP's files (each item is an archive of its own) and behind their compression. A checksum of 0
// was left out by the writer, and proves nothing. Legacy streams and safetensors have none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

struct ChecksumReport {
  std::uint64_t records = 0;  // that have a checksum, and agree with it
  std::uint64_t bytes = 0;    // of those
  std::uint64_t unproven_records = 0;
  std::uint64_t unproven_files = 0;  // without any checksum at all
  std::vector<std::string> wrong;    // sentences: file, record
};

// Reads all records of the files that the view names. `progress`: the bytes read so far.
// Fails: `cancelled`; `io`. What is damaged is in the report.
[[nodiscard]] Result<ChecksumReport> prove_checksums(const CheckpointView& view, const std::atomic<bool>& cancel,
                                                     const std::function<void(std::uint64_t)>& progress);

}  // namespace pawl::checkpoint
