// What the kernels of all processors share (base/memory_kernel_lanes.h); for these files and the parity kernels
// (job/erasure/parity_kernel_parts.h) only.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/crc32c_math.h"
#include "base/memory_kernel.h"

// Kernels read slots that a trainer may be overwriting (Slot::verify throws the sum away when the slot's word has moved),
// which is a race on purpose. What is called from outside is never inlined: its caller's instrumentation would come over it.
#define PAWL_RACY __attribute__((no_sanitize("thread")))
// A line that is streamed in parts, with others between, may reach memory part by part: on some processors 25 times as
// slow as any other copy. The compiler moves no store of another line before this.
#define PAWL_LINE_ENDS asm volatile("" ::: "memory")

namespace pawl {

enum class Store { none, plain, stream };

inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kLanes = 4;
inline constexpr std::size_t kLaneLines = 4096 / kLineBytes;  // a page: what one prefetcher follows
// Below it a piece goes through the cache: its lanes would be too short to be worth their beginnings and ends.
inline constexpr std::size_t kStreamedBytesMin = 1024;
inline constexpr std::size_t kStreamedRowBytesMin = 2048;

struct Lanes {
  std::array<std::byte*, kLanes> to;
  std::array<const std::byte*, kLanes> from;
};

constexpr std::size_t smaller_of(std::size_t a, std::size_t b) {
  return a < b ? a : b;
}

inline std::size_t bytes_to_next_line(const std::byte* at) {
  return static_cast<std::size_t>(-reinterpret_cast<std::uintptr_t>(at) & (kLineBytes - 1));
}

// [n]: the factor by which n lines of zeros shift a state, divided by the x^33 that multiplying without carries and then
// reducing by the crc32 instruction adds.
inline constexpr std::array<std::uint32_t, kLaneLines + 1> kLineShifts = [] {
  std::array<std::uint32_t, kLaneLines + 1> shifts{};
  const std::uint32_t line = crc32c_power(8 * kLineBytes);
  shifts[1] = crc32c_power(8 * kLineBytes - 33);
  for (std::size_t n = 2; n <= kLaneLines; ++n) shifts[n] = crc32c_multiply(shifts[n - 1], line);
  return shifts;
}();

// Multiplying 64 bits of a reflected remainder by these folds them onto bits that come 512 bits later. The product of two
// reflected numbers, read in place, has one x too many.
constexpr long long fold_factor(std::uint32_t power) {
  const std::uint64_t upper_half = std::uint64_t{power} << 32;
  return static_cast<long long>(upper_half);
}
inline constexpr long long kFoldFirst = fold_factor(crc32c_power(512 + 63));
inline constexpr long long kFoldSecond = fold_factor(crc32c_power(512 - 1));

// Long rows one after another, shorter ones in fours, short ones through the cache.
template <class CopyRow, class CopyFourRows>
void copy_all_rows(const RowCopy& copy, CopyRow copy_row, CopyFourRows copy_four_rows) {
  constexpr std::size_t kPageBytes = kLaneLines * kLineBytes;
  std::uint64_t row = 0;
  if (copy.bytes >= kLanes * kPageBytes || (copy.bytes >= 2 * kPageBytes && copy.rows < kLanes)) {
    for (; row < copy.rows; ++row)
      copy_row(copy.to + row * copy.to_stride, copy.from + row * copy.from_stride, copy.bytes);
  } else if (copy.bytes >= kStreamedRowBytesMin) {
    for (; row + kLanes <= copy.rows; row += kLanes) {
      RowCopy four = copy;
      four.to += row * copy.to_stride;
      four.from += row * copy.from_stride;
      copy_four_rows(four);
    }
  }
  for (; row < copy.rows; ++row)
    std::memcpy(copy.to + row * copy.to_stride, copy.from + row * copy.from_stride, copy.bytes);
}

}  // namespace pawl
