// Tiling: what boxes a flat interval makes up, and whether boxes lie side by side and leave nothing of a tensor out.
//
// The check is exact, and near-linear for what shards look like: one pass over the corners of the boxes proves that
// each element is held just once; only where it is not are the boxes cut apart to say where. Boxes made to need more
// cuts than a tensor ever has (kCutsMax a box) are `undecided`, instead of costing their square. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor/box.h"

namespace pawl {

// Appends the boxes that the row-major elements [begin, end) of an array make up, in order: at most 2 * dimensions - 1.
// The interval lies in the array.
void append_interval(const Shape& array, std::uint64_t begin, std::uint64_t end, std::vector<Box>& out);

struct Tiling {
  std::optional<std::pair<std::size_t, std::size_t>> overlap;  // two boxes, by index, that share an element
  std::optional<Box> hole;                                     // a box that none of them meets
  bool undecided = false;
  [[nodiscard]] bool is_exact() const { return !overlap && !hole && !undecided; }
};

// `boxes` lie in `whole`, not empty. Says one overlap and one hole, where there are any.
[[nodiscard]] Tiling check_tiling(const Box& whole, std::span<const Box> boxes);
// As above, but boxes may overlap: says a hole only.
[[nodiscard]] Tiling check_cover(const Box& whole, std::span<const Box> boxes);

}  // namespace pawl
