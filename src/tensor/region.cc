#include "tensor/region.h"

#include "base/text.h"

namespace pawl {

Result<std::uint64_t> element_count(const Shape& shape) {
  if (shape.size() > kDimensionsMax) return Error{Code::invalid, text(shape.size(), " dimensions; at most 8")};
  // The product of the non-empty extents must fit too, so that no offset inside overflows.
  std::uint64_t product = 1;
  bool empty = false;
  for (const std::uint64_t extent : shape) {
    empty = empty || extent == 0;
    if (extent != 0 && __builtin_mul_overflow(product, extent, &product)) product = ~std::uint64_t{0};
    if (product > std::uint64_t{1} << 63) return Error{Code::invalid, text("shape ", text_of(shape), " overflows")};
  }
  return empty ? 0 : product;
}

Status check_inside(const Region& region, const Shape& global) {
  if (region.shape.size() != global.size() || region.offset.size() != global.size()) {
    return Error{Code::invalid, text("region ", text_of(region.shape), " at ", text_of(region.offset), " in shape ",
                                     text_of(global), ": other number of dimensions")};
  }
  for (std::size_t i = 0; i < global.size(); ++i) {
    if (region.offset[i] > global[i] || region.shape[i] > global[i] - region.offset[i]) {
      return Error{Code::invalid, text("region ", text_of(region.shape), " at ", text_of(region.offset),
                                       " leaves shape ", text_of(global), " in dimension ", i)};
    }
  }
  return {};
}

std::string text_of(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) out.push_back(',');
    append_text(out, shape[i]);
  }
  out.push_back(']');
  return out;
}

Result<Shape> parse_shape(std::string_view all) {
  const Error wrong{Code::corrupt, text("not a shape: ", all.substr(0, 64))};
  if (all.size() < 2 || all.front() != '[' || all.back() != ']') return wrong;
  std::string_view rest = all.substr(1, all.size() - 2);
  Shape shape;
  while (!rest.empty() || !shape.empty()) {
    const std::size_t comma = rest.find(',');
    std::uint64_t extent = 0;
    if (shape.size() == kDimensionsMax || !parse_number(rest.substr(0, comma), extent)) return wrong;
    shape.push_back(extent);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (text_of(shape) != all) return wrong;  // "[04]"
  return shape;
}

}  // namespace pawl
