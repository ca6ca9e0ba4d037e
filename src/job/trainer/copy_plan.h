// CopyPlan: which bytes of which declared entry fill which bucket. Made once, when the layout is sealed.
//
// What always holds: the ranges of a bucket cover it exactly, in order; bytes that no entry has are padding (zero).
// Pure. The copying is a CopyKernel's: by default the processor's fastest (base/memory_kernel.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/memory_kernel.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {

inline constexpr std::uint32_t kPadding = ~0u;

struct EntryRange {
  std::uint32_t entry = kPadding;  // index in SeatLayout::entries
  std::uint64_t offset = 0;        // in the entry's bytes
  std::uint64_t bytes = 0;
};

class CopyPlan {
 public:
  CopyPlan() = default;
  CopyPlan(const SeatLayout& layout, std::uint32_t bucket_bytes);

  [[nodiscard]] std::uint32_t bucket_count() const { return static_cast<std::uint32_t>(first_.size()) - 1; }
  // Buckets from this one on hold volatile bytes (the first of them perhaps stable ones too).
  [[nodiscard]] std::uint32_t first_volatile_bucket() const { return first_volatile_bucket_; }
  // Buckets before this one hold stable bytes (the last of them perhaps volatile ones too).
  [[nodiscard]] std::uint32_t stable_bucket_count() const { return stable_bucket_count_; }
  [[nodiscard]] bool is_stable(const EntryRange& range) const {
    return range.entry != kPadding && stable_entries_[range.entry];
  }
  [[nodiscard]] std::span<const EntryRange> bucket(std::uint32_t index) const {
    return std::span(ranges_).subspan(first_[index], first_[index + 1] - first_[index]);
  }

 private:
  void append(std::uint32_t entry, std::uint64_t bytes, std::uint32_t bucket_bytes);
  std::vector<EntryRange> ranges_;
  std::vector<std::size_t> first_{0};  // of each bucket, and the end
  std::uint64_t filled_ = 0;           // of the last bucket
  std::uint32_t first_volatile_bucket_ = 0;
  std::uint32_t stable_bucket_count_ = 0;
  std::vector<bool> stable_entries_;  // by index
};

// memcpy that returns the CRC32C of what `seed` is the CRC of, followed by exactly the bytes it stored. gather and
// scatter order what it stores.
struct CopyKernel {
  const char* name;
  std::uint32_t (*copy)(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t seed);
};
[[nodiscard]] const CopyKernel& default_copy_kernel();

// Where each entry's bytes begin, by its index; nullptr where there are none.
using EntryBases = std::span<std::byte* const>;

// As gather and scatter below; where a range begins is what `from` or `to` answers to it and its place in the bucket.
template <class From>
std::uint32_t gather_from(std::span<const EntryRange> ranges, const CopyKernel& kernel, std::byte* to, From from);
template <class To>
std::uint32_t scatter_to(std::span<const EntryRange> ranges, const CopyKernel& kernel, const std::byte* from, To to);

// A bucket's ranges, one after another, to `to`. Returns the CRC32C of all that was stored, which is ordered before any
// later store of this thread; of scatter likewise.
std::uint32_t gather(std::span<const EntryRange> ranges, const CopyKernel& kernel, EntryBases from, std::byte* to);
// A bucket's bytes to its ranges. Returns the CRC32C of all that was read.
std::uint32_t scatter(std::span<const EntryRange> ranges, const CopyKernel& kernel, const std::byte* from,
                      EntryBases to);

template <class From>
std::uint32_t gather_from(std::span<const EntryRange> ranges, const CopyKernel& kernel, std::byte* to, From from) {
  std::uint32_t sum = 0;
  std::uint64_t offset = 0;
  for (const EntryRange& range : ranges) {
    if (range.entry == kPadding) {
      std::memset(to + offset, 0, range.bytes);
      sum = crc32c({to + offset, range.bytes}, sum);
    } else {
      sum = kernel.copy(to + offset, from(range, offset), range.bytes, sum);
    }
    offset += range.bytes;
  }
  memory_fence();
  return sum;
}

template <class To>
std::uint32_t scatter_to(std::span<const EntryRange> ranges, const CopyKernel& kernel, const std::byte* from, To to) {
  std::uint32_t sum = 0;
  std::uint64_t offset = 0;
  for (const EntryRange& range : ranges) {
    sum = range.entry == kPadding ? crc32c({from + offset, range.bytes}, sum)
                                  : kernel.copy(to(range, offset), from + offset, range.bytes, sum);
    offset += range.bytes;
  }
  memory_fence();
  return sum;
}

}  // namespace pawl::job
