// What O_DIRECT asks for: offsets, sizes and memory addresses are multiples of kDirectUnit.
#pragma once

#include <cstdint>

namespace pawl::checkpoint {

inline constexpr std::uint64_t kDirectUnit = 4096;
inline constexpr std::uint64_t kDirectWriteMin = 256 << 10;  // shorter ranges are written through the page cache

[[nodiscard]] constexpr std::uint64_t rounded_down(std::uint64_t value, std::uint64_t unit) {
  return value / unit * unit;
}
[[nodiscard]] constexpr std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) {
  return rounded_down(value + unit - 1, unit);
}

}  // namespace pawl::checkpoint
