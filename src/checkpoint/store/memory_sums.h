// MemorySums: memory whose checksums are known, bucket by bucket, and the proof that it still has them.
//
// The proof may use sums of ranges that somebody has read already, e.g. while he copied them: crc32c_combine joins them, and
// only what nobody has summed is read. Pure but for reading the memory. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace pawl::checkpoint {

// Memory is the caller's. Buckets are bucket_bytes long, the last one may be shorter; there is a CRC32C for each.
struct MemorySums {
  std::span<const std::byte> memory;
  std::uint64_t bucket_bytes = 0;
  std::vector<std::uint32_t> crc32c;
};

// What was read of some memory, once, and its CRC32C.
struct SummedRange {
  const std::byte* memory = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32c = 0;
};

// The end of the bucket that `at` lies in; outside of that memory: where it begins, or never. Cut at these, ranges spare the
// proof the reading of what they have.
[[nodiscard]] const std::byte* bucket_end(const MemorySums& sums, const std::byte* at);

// Of every bucket. Ranges outside of the memory, or in more than one bucket, count for nothing; of those that overlap the first one
// counts. Fails: `corrupt`, naming the bucket; `invalid` if there is not one sum for each bucket.
[[nodiscard]] Status prove(const MemorySums& sums, std::vector<SummedRange> known = {});

}  // namespace pawl::checkpoint
