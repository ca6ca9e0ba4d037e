#include "tensor/element_type.h"

#include <array>

namespace pawl {
namespace {

struct Row {
  std::string_view torch;
  std::string_view safetensors;  // empty: it has none
  std::string_view storage;      // likewise
  std::uint8_t bits;
  std::uint8_t swapped;
};

constexpr std::array<Row, kElementTypeCount> kRows = {{
    {"float32", "F32", "FloatStorage", 32, 4},
    {"float64", "F64", "DoubleStorage", 64, 8},
    {"float16", "F16", "HalfStorage", 16, 2},
    {"bfloat16", "BF16", "BFloat16Storage", 16, 2},
    {"int8", "I8", "CharStorage", 8, 1},
    {"int16", "I16", "ShortStorage", 16, 2},
    {"int32", "I32", "IntStorage", 32, 4},
    {"int64", "I64", "LongStorage", 64, 8},
    {"uint8", "U8", "ByteStorage", 8, 1},
    {"uint16", "U16", "", 16, 2},
    {"uint32", "U32", "", 32, 4},
    {"uint64", "U64", "", 64, 8},
    {"bool", "BOOL", "BoolStorage", 8, 1},
    {"complex32", "", "", 32, 2},
    {"complex64", "C64", "ComplexFloatStorage", 64, 4},
    {"complex128", "", "ComplexDoubleStorage", 128, 8},
    {"float8_e4m3fn", "F8_E4M3", "", 8, 1},
    {"float8_e5m2", "F8_E5M2", "", 8, 1},
    {"float8_e4m3fnuz", "F8_E4M3FNUZ", "", 8, 1},
    {"float8_e5m2fnuz", "F8_E5M2FNUZ", "", 8, 1},
    {"float8_e8m0fnu", "F8_E8M0", "", 8, 1},
    {"float4_e2m1fn_x2", "", "", 8, 1},
    {"float4_e2m1", "F4", "", 4, 1},
    {"float6_e2m3", "F6_E2M3", "", 6, 1},
    {"float6_e3m2", "F6_E3M2", "", 6, 1},
    {"bits8", "", "", 8, 1},
    {"bits16", "", "", 16, 2},
    {"bits1x8", "", "", 8, 1},
    {"bits2x4", "", "", 8, 1},
    {"bits4x2", "", "", 8, 1},
    {"qint8", "", "QInt8Storage", 8, 1},
    {"quint8", "", "QUInt8Storage", 8, 1},
    {"qint32", "", "QInt32Storage", 32, 4},
    {"quint4x2", "", "QUInt4x2Storage", 4, 1},
    {"quint2x4", "", "QUInt2x4Storage", 2, 1},
}};

const Row& row_of(ElementType type) {
  return kRows[static_cast<std::size_t>(type)];
}

std::optional<ElementType> find(std::string_view Row::*column, std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].*column == name) return static_cast<ElementType>(i);
  return std::nullopt;
}

}  // namespace

std::string_view name_of(ElementType type) {
  return row_of(type).torch;
}
std::uint32_t size_bits(ElementType type) {
  return row_of(type).bits;
}
std::uint32_t swapped_bytes(ElementType type) {
  return row_of(type).swapped;
}

std::optional<ElementType> captured_type_named(std::string_view name) {
  const std::optional<ElementType> type = find(&Row::torch, name);
  return type && is_captured(*type) ? type : std::nullopt;
}
std::optional<ElementType> captured_type_numbered(std::uint32_t number) {
  if (number >= kCapturedTypeCount) return std::nullopt;
  return static_cast<ElementType>(number);
}

std::optional<ElementType> element_type_named(std::string_view torch_name) {
  return find(&Row::torch, torch_name);
}
std::optional<ElementType> element_type_of_safetensors(std::string_view name) {
  return find(&Row::safetensors, name);
}
std::optional<ElementType> element_type_of_storage(std::string_view name) {
  return find(&Row::storage, name);
}

std::optional<std::uint64_t> size_bytes(ElementType type, std::uint64_t count) {
  const std::uint64_t bits = size_bits(type);
  const std::uint64_t rest_bits = count % 8 * bits;  // eight elements are whole bytes, of every type
  std::uint64_t bytes = 0;
  if (rest_bits % 8 != 0 || __builtin_mul_overflow(count / 8, bits, &bytes) ||
      __builtin_add_overflow(bytes, rest_bits / 8, &bytes) || bytes >> 63 != 0)
    return std::nullopt;
  return bytes;
}

}  // namespace pawl
