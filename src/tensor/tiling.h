// Tiling: which boxes a flat interval consists of, and whether boxes cover a tensor exactly, without overlap.
//
// The check is exact, and near-linear for the boxes that shards have: one pass over their corners proves that each
// element is covered just once. Only if that fails are the boxes cut apart to say where. Boxes that would need more
// cuts than real tensors ever do (kCutsMax a box) are `undecided`, so that hostile input doesn't cost quadratic time.
// Pure.
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
