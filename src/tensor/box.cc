#include "tensor/box.h"

#include "base/text.h"

namespace pawl {
namespace {

Error other_dimensions(const Shape& begin, const Shape& size, const Shape& whole) {
  return Error{Code::invalid, text("box ", text_of(size), " at ", text_of(begin), " in shape ", text_of(whole),
                                   ": other number of dimensions")};
}

}  // namespace

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

Status check_inside(const Box& box, const Shape& whole) {
  if (box.dimensions != whole.size()) return other_dimensions(begin_of(box), shape_of(box), whole);
  for (std::uint32_t d = 0; d < box.dimensions; ++d) {
    if (box.begin[d] > whole[d] || box.size[d] > whole[d] - box.begin[d])
      return Error{Code::invalid, text("box ", text_of(box), " leaves shape ", text_of(whole), " in dimension ", d)};
  }
  return {};
}

Result<Box> box_inside(const Shape& begin, const Shape& size, const Shape& whole) {
  if (size.size() != whole.size() || begin.size() != whole.size() || whole.size() > kDimensionsMax)
    return other_dimensions(begin, size, whole);
  Box box = whole_box(size);
  std::ranges::copy(begin, box.begin.begin());
  PAWL_TRY(check_inside(box, whole));
  return box;
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

std::string text_of(const Box& box) {
  return text(text_of(shape_of(box)), " at ", text_of(begin_of(box)));
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
