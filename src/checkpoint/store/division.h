// Division: who writes what of that which several hold: each byte once, and all of them equally much.
//
// The items of one group, which all its holders hold, lie end to end; the holders take them in their order, each as much as
// it has room for. A box is cut into rows, along its first dimension with more than one, and only into parts that are worth it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/box.h"

namespace pawl::checkpoint {

inline constexpr std::uint64_t kPartBytesMin = std::uint64_t{1} << 20;

struct DivisionItem {
  Box box;
  std::uint32_t element_bytes = 1;
};
struct DividedBox {
  std::uint32_t holder = 0;  // among the holders
  std::uint32_t item = 0;
  Box box;  // of the item's, all or rows of it
};
// `rooms`: of each holder, in bytes; the last one takes what is left, whatever its room. Empty boxes are nobody's. Cost: linear.
[[nodiscard]] std::vector<DividedBox> divide_among(std::span<const DivisionItem> items,
                                                   std::span<const std::uint64_t> rooms,
                                                   std::uint64_t part_bytes_min = kPartBytesMin);
// Of holders that have nothing else to write.
[[nodiscard]] std::vector<std::uint64_t> equal_rooms(std::uint64_t bytes, std::uint32_t holders);

}  // namespace pawl::checkpoint
