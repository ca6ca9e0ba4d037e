// Box: a Region without the heap, for the loops that cut and intersect millions of them.
//
// What always holds: dimensions past `dimensions` are zero. A box of no dimensions is a scalar: one element.
// Pure. All of pawl's layout arithmetic comes down to the two functions here: intersect, and what is left over.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "tensor/region.h"

namespace pawl {

using PerDimension = std::array<std::uint64_t, kDimensionsMax>;

struct Box {
  std::uint32_t dimensions = 0;
  PerDimension begin{};
  PerDimension size{};
  bool operator==(const Box&) const = default;
};

[[nodiscard]] inline std::uint64_t volume(const Box& box) {
  std::uint64_t product = 1;
  for (std::uint32_t d = 0; d < box.dimensions; ++d) product *= box.size[d];
  return product;
}

// Both lie in one tensor. An intersection that is empty has volume 0.
[[nodiscard]] inline Box intersection(const Box& a, const Box& b) {
  Box both{a.dimensions, {}, {}};
  for (std::uint32_t d = 0; d < a.dimensions; ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    const std::uint64_t end = std::min(a.begin[d] + a.size[d], b.begin[d] + b.size[d]);
    both.size[d] = end > both.begin[d] ? end - both.begin[d] : 0;
  }
  return both;
}

// Appends what is left of `from` without `hole`, which lies in it: at most two boxes a dimension, none overlapping.
inline void append_difference(Box from, const Box& hole, std::vector<Box>& out) {
  for (std::uint32_t d = 0; d < from.dimensions; ++d) {
    const std::uint64_t before = hole.begin[d] - from.begin[d];
    const std::uint64_t after = from.size[d] - before - hole.size[d];
    if (before != 0) {
      out.push_back(from);
      out.back().size[d] = before;
    }
    if (after != 0) {
      out.push_back(from);
      out.back().begin[d] = hole.begin[d] + hole.size[d];
      out.back().size[d] = after;
    }
    from.begin[d] = hole.begin[d];
    from.size[d] = hole.size[d];
  }
}

[[nodiscard]] inline Box whole_box(const Shape& shape) {
  Box box{static_cast<std::uint32_t>(shape.size()), {}, {}};
  std::ranges::copy(shape, box.size.begin());
  return box;
}

[[nodiscard]] inline Region region_of(const Box& box) {
  return {Shape(box.begin.begin(), box.begin.begin() + box.dimensions),
          Shape(box.size.begin(), box.size.begin() + box.dimensions)};
}

}  // namespace pawl
