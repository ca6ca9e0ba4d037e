#include "tensor/dtype.h"

namespace pawl {
namespace {

struct Row {
  std::string_view name;
  std::uint32_t size;
};
constexpr Row kRows[] = {
    {"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"int8", 1},   {"int16", 2}, {"int32", 4},
    {"int64", 8},   {"uint8", 1},   {"uint16", 2},  {"uint32", 4},   {"uint64", 8}, {"bool", 1},
};
static_assert(std::size(kRows) == kDTypeCount);

}  // namespace

std::string_view name_of(DType dtype) {
  return kRows[static_cast<std::uint8_t>(dtype)].name;
}

std::uint32_t size_bytes(DType dtype) {
  return kRows[static_cast<std::uint8_t>(dtype)].size;
}

std::optional<DType> dtype_named(std::string_view name) {
  for (std::uint32_t i = 0; i < kDTypeCount; ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<DType> dtype_numbered(std::uint32_t number) {
  if (number >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(number);
}

}  // namespace pawl
