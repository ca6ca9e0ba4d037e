// RangeChecksums: checksums of ranges of files, computed while they are written, in whatever order their bytes come.
//
// A CRC is linear, so each stretch of bytes adds its own share, wherever it lies in its range. What always holds:
// value_of is the checksum of the whole range, in which bytes that were not added count as zeros (as they are in a file
// that the executor made). Add every byte once: a second time would cancel it.
// add() is thread-safe and takes no lock. Reads no file, and proves nothing: the formats compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"

namespace pawl::checkpoint {

enum class ChecksumKind : std::uint8_t {
  crc32,   // of zip and zlib: reflected 0xEDB88320
  crc32c,  // Castagnoli: base/crc32c.h
};

class RangeChecksums {
 public:
  // In order of file and begin, none into another. Fails: `invalid` otherwise.
  [[nodiscard]] static Result<RangeChecksums> create(std::vector<FileRange> ranges, ChecksumKind kind);

  // Bytes outside of all ranges count nowhere.
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes);
  // add(), for ExecuteOptions::observe. This must outlive it, and stay where it is.
  [[nodiscard]] WriteObserver observer();

  // Not while somebody adds. Fails: `not_found` if it is none of the ranges.
  [[nodiscard]] Result<std::uint32_t> value_of(const FileRange& range) const;
  [[nodiscard]] std::uint32_t value_at(std::size_t index) const;  // of ranges()[index]
  [[nodiscard]] const std::vector<FileRange>& ranges() const { return ranges_; }

  // Of ranges that several processes write, each its own bytes: what was added here to ranges()[index], and the same of
  // another process, which counts as if its bytes had been shown here. 0: nothing but zeros. Not while somebody adds.
  [[nodiscard]] std::uint32_t share_at(std::size_t index) const { return shares_[index]; }
  void add_share(std::size_t index, std::uint32_t share) { shares_[index] ^= share; }

 private:
  RangeChecksums(std::vector<FileRange> ranges, ChecksumKind kind);

  ChecksumKind kind_;
  std::vector<FileRange> ranges_;
  // Of each range: the exclusive or of all shares so far. Atomic by std::atomic_ref, so that this can be moved.
  std::vector<std::uint32_t> shares_;
};

// What the checksum is of what `seed` is the checksum of, followed by `bytes`.
[[nodiscard]] std::uint32_t checksum(ChecksumKind kind, std::span<const std::byte> bytes, std::uint32_t seed = 0);

}  // namespace pawl::checkpoint
