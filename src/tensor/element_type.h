// ElementType: what one element of a tensor is: every type that torch or safetensors can write.
//
// The first sixteen have the numbers of pawl_dtype (include/pawl/pawl.h): a running job can capture and restore them.
// The others only appear in files: pawl copies and counts them, without arithmetic. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pawl {

enum class ElementType : std::uint8_t {
  float32 = 0,
  float64,
  float16,
  bfloat16,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean = 12,
  complex32,
  complex64,
  complex128 = 15,  // the last one that can be captured
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  float4_e2m1fn_x2,  // torch's: two numbers in one element of a byte
  float4_e2m1,
  float6_e2m3,
  float6_e3m2,  // safetensors': one number an element, packed
  bits8,
  bits16,
  bits1x8,
  bits2x4,
  bits4x2,
  qint8,
  quint8,
  qint32,
  quint4x2,
  quint2x4,
};
inline constexpr std::uint32_t kElementTypeCount = 35;
inline constexpr std::uint32_t kCapturedTypeCount = 16;

[[nodiscard]] std::string_view name_of(ElementType type);  // torch's name: "float8_e4m3fn"; "bool"
[[nodiscard]] std::uint32_t size_bits(ElementType type);   // of one element; 4 and 6 where elements are packed
// How many bytes are swapped as one where the file's byte order is the other one: half an element of complex types.
[[nodiscard]] std::uint32_t swapped_bytes(ElementType type);
// Whether a running job can capture it. The two after it know only such types: nothing for any other.
[[nodiscard]] constexpr bool is_captured(ElementType type) {
  return static_cast<std::uint32_t>(type) < kCapturedTypeCount;
}
[[nodiscard]] std::optional<ElementType> captured_type_named(std::string_view name);
[[nodiscard]] std::optional<ElementType> captured_type_numbered(std::uint32_t number);  // of pawl_dtype, or of the wire
[[nodiscard]] std::optional<ElementType> element_type_named(std::string_view torch_name);
[[nodiscard]] std::optional<ElementType> element_type_of_safetensors(std::string_view name);  // "BF16", "F8_E4M3"
// Torch's classes of typed storages: "FloatStorage". UntypedStorage has no element type.
[[nodiscard]] std::optional<ElementType> element_type_of_storage(std::string_view class_name);
// Bytes of `count` elements; nothing if that is no whole number of bytes or passes 2^63.
[[nodiscard]] std::optional<std::uint64_t> size_bytes(ElementType type, std::uint64_t count);

}  // namespace pawl
