// What the parity kernels of all processors share (parity_kernel_lanes.h); for these files only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/memory_kernel_parts.h"
#include "job/erasure/erasure_code.h"
#include "job/erasure/galois.h"
#include "job/erasure/parity_kernel.h"

// At -O2 g++ keeps a small array in memory, not in registers, unless the loops over it are unrolled; clang unrolls them.
#if defined(__GNUC__) && !defined(__clang__)
#define PAWL_UNROLLED _Pragma("GCC unroll 8")
#else
#define PAWL_UNROLLED
#endif

namespace pawl::job {

inline constexpr std::size_t kRowsAtOnce = 4;          // as many sums as all instruction sets have registers for
inline constexpr std::size_t kFactorsMax = 256;        // k * m of k + m = 32
inline constexpr std::size_t kParityPageBytes = 4096;  // sources of so many bytes stay in the cache from group to group

// Whether all end their lines where the others do, so that all can be streamed.
inline bool lie_alike(std::span<std::byte* const> to) {
  return std::ranges::all_of(to,
                             [&](std::byte* each) { return bytes_to_next_line(each) == bytes_to_next_line(to[0]); });
}

// The rows of a product in groups of at most kRowsAtOnce, and the factors of each in the order in which it needs them.
template <class Group, class Factor>
class RowGroups {
 public:
  RowGroups(const ParityProduct& product, Factor (*factor_of)(std::uint8_t)) {
    const std::size_t sources = product.sources.size(), all_rows = product.to.size();
    Factor* next = factors_.data();
    for (std::size_t first = 0; first < all_rows; first += kRowsAtOnce, ++count_) {
      rows_[count_] = smaller_of(kRowsAtOnce, all_rows - first);
      const auto first_row = product.coefficients.subspan(first * sources, sources);
      first_is_sum_[count_] = std::ranges::all_of(first_row, [](std::uint8_t c) { return c == 1; });
      groups_[count_] = {product.sources.data(), sources, product.to.data() + first, next};
      for (std::size_t source = 0; source < sources; ++source) {
        for (std::size_t row = first; row < first + rows_[count_]; ++row)
          *next++ = factor_of(product.coefficients[row * sources + source]);
      }
    }
  }
  RowGroups(const RowGroups&) = delete;  // groups point to factors
  RowGroups& operator=(const RowGroups&) = delete;
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] const Group& operator[](std::size_t group) const { return groups_[group]; }
  [[nodiscard]] std::size_t rows(std::size_t group) const { return rows_[group]; }
  [[nodiscard]] bool first_is_sum(std::size_t group) const { return first_is_sum_[group]; }
  // Where a pass over all groups that begins at `at` ends: with several of them, while sources are in the cache.
  [[nodiscard]] std::size_t end_of_pass(std::size_t at, std::size_t size) const {
    return count_ == 1 ? size : smaller_of(size, (at / kParityPageBytes + 1) * kParityPageBytes);
  }

 private:
  static constexpr std::size_t kGroupsMax = kFragmentsMax / kRowsAtOnce;
  std::size_t count_ = 0;
  std::array<Group, kGroupsMax> groups_;
  std::array<std::size_t, kGroupsMax> rows_{};
  std::array<bool, kGroupsMax> first_is_sum_{};
  std::array<Factor, kFactorsMax> factors_;
};

}  // namespace pawl::job
