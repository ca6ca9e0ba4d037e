// DType: what one element of a tensor is. The numbers are those of pawl_dtype in include/pawl/pawl.h.
//
// Pure. What a dtype means to arithmetic is the trainer's business; here it has a name and a size.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pawl {

enum class DType : std::uint8_t {
  float32 = 0,
  float64 = 1,
  float16 = 2,
  bfloat16 = 3,
  int8 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  uint8 = 8,
  uint16 = 9,
  uint32 = 10,
  uint64 = 11,
  boolean = 12,
};
inline constexpr std::uint32_t kDTypeCount = 13;

[[nodiscard]] std::string_view name_of(DType dtype);  // "float32", ..., "bool"
[[nodiscard]] std::uint32_t size_bytes(DType dtype);  // of one element
[[nodiscard]] std::optional<DType> dtype_named(std::string_view name);
[[nodiscard]] std::optional<DType> dtype_numbered(std::uint32_t number);  // from C or the wire

}  // namespace pawl
