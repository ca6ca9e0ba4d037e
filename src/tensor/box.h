// Box: a rectangular part of a tensor's index space, and Shape: the extents of a whole tensor.
//
// Row-major, counted in elements, at most eight dimensions; a box of no dimensions is a scalar: one element. A box has
// no memory on the heap, because the planners cut and intersect millions of them. A size of 0 makes an empty box, which
// is allowed: a rank may hold nothing of a tensor.
// What always holds: entries of `begin` and `size` from `dimensions` on are zero. So == compares boxes.
// Pure. All of pawl's layout arithmetic comes down to intersection() and append_difference().
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pawl {

inline constexpr std::size_t kDimensionsMax = 8;

using Shape = std::vector<std::uint64_t>;  // extent of each dimension, outermost first
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

// All of a tensor of this shape. Of a shape of more than eight dimensions (element_count rejects it): the first eight.
[[nodiscard]] inline Box whole_box(const Shape& shape) {
  const std::size_t dimensions = std::min(shape.size(), kDimensionsMax);
  Box box{static_cast<std::uint32_t>(dimensions), {}, {}};
  std::copy_n(shape.begin(), dimensions, box.size.begin());
  return box;
}

// The strides, in elements, of a dense row-major array of the box's extents.
[[nodiscard]] inline PerDimension dense_stride(const Box& box) {
  PerDimension stride{};
  std::uint64_t step = 1;
  for (std::uint32_t d = box.dimensions; d-- > 0; step *= box.size[d]) stride[d] = step;
  return stride;
}

[[nodiscard]] inline Shape begin_of(const Box& box) {
  return Shape(box.begin.begin(), box.begin.begin() + box.dimensions);
}
[[nodiscard]] inline Shape shape_of(const Box& box) {
  return Shape(box.size.begin(), box.size.begin() + box.dimensions);
}

// Fails: `invalid` if there are more than eight dimensions or the product passes 2^63.
[[nodiscard]] Result<std::uint64_t> element_count(const Shape& shape);
// Fails: `invalid`, naming the dimension, unless the box lies inside a tensor of this shape.
[[nodiscard]] Status check_inside(const Box& box, const Shape& whole);
// A box from numbers that somebody else wrote. Fails: `invalid` unless both lists have as many entries as `whole`, and
// the box lies inside it.
[[nodiscard]] Result<Box> box_inside(const Shape& begin, const Shape& size, const Shape& whole);

[[nodiscard]] std::string text_of(const Shape& shape);  // "[4,8]", "[]"
[[nodiscard]] std::string text_of(const Box& box);      // "[4,8] at [0,16]": size, then begin; for messages
// Exactly what text_of writes of a shape. Fails: `corrupt`.
[[nodiscard]] Result<Shape> parse_shape(std::string_view text);

}  // namespace pawl
