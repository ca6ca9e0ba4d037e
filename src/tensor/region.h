// Region: a box in a tensor's index space. Row-major, elements, at most eight dimensions; none: a scalar.
//
// Pure. An extent of 0 makes an empty region, which is allowed: a rank may hold nothing of a tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pawl {

inline constexpr std::size_t kDimensionsMax = 8;

using Shape = std::vector<std::uint64_t>;  // extent of each dimension, outermost first

struct Region {
  Shape offset;  // as many as extents
  Shape shape;   // extents of the box
  bool operator==(const Region&) const = default;
  [[nodiscard]] static Region whole(const Shape& global) { return {Shape(global.size(), 0), global}; }
};

// Fails: `invalid` if there are more than eight dimensions or the product passes 2^63.
[[nodiscard]] Result<std::uint64_t> element_count(const Shape& shape);
// Fails: `invalid`, naming the dimension, unless the region lies inside `global`.
[[nodiscard]] Status check_inside(const Region& region, const Shape& global);

[[nodiscard]] std::string text_of(const Shape& shape);  // "[4,8]", "[]"
// Exactly what text_of writes. Fails: `corrupt`.
[[nodiscard]] Result<Shape> parse_shape(std::string_view text);

}  // namespace pawl
