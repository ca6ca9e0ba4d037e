#include "reshape/cast.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace pawl {
namespace {

constexpr std::uint32_t kInfinity32 = 0x7F80'0000;
constexpr std::uint32_t kLowest16 = 0x3300'0000;    // 2^-25: half the least float16; up to here all rounds to zero
constexpr std::uint32_t kNormal16 = 0x3880'0000;    // 2^-14: the least normal float16
constexpr std::uint32_t kOverflow16 = 0x477F'F000;  // 65520: from here on all rounds to infinity

// Shifts right and rounds to nearest, ties to even.
std::uint32_t shift_rounded(std::uint32_t value, std::uint32_t bits) {
  const std::uint32_t half = (std::uint32_t{1} << (bits - 1)) - 1;
  return (value + half + (value >> bits & 1)) >> bits;
}

bool is_16_bit_float(ElementType dtype) {
  return dtype == ElementType::float16 || dtype == ElementType::bfloat16;
}

float load(ElementType dtype, const std::byte* at) {
  if (dtype == ElementType::float32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == ElementType::float16 ? float32_of_float16(bits) : float32_of_bfloat16(bits);
}

void store(ElementType dtype, float value, std::byte* at) {
  if (dtype == ElementType::float32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == ElementType::float16 ? float16_of(value) : bfloat16_of(value);
  std::memcpy(at, &bits, sizeof bits);
}

float rounded_to(ElementType dtype, float value) {
  if (dtype == ElementType::float16) return float32_of_float16(float16_of(value));
  if (dtype == ElementType::bfloat16) return float32_of_bfloat16(bfloat16_of(value));
  return value;
}

}  // namespace

float float32_of_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float float32_of_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t rest = bits & 0x7FFF;
  if (rest >= 0x7C00) return std::bit_cast<float>(sign | kInfinity32 | (rest & 0x3FF) << 13);
  if (rest >= 0x0400) return std::bit_cast<float>(sign | ((rest << 13) + (std::uint32_t{112} << 23)));
  const float magnitude = static_cast<float>(rest) * 0x1p-24F;  // zero or subnormal; exact
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

std::uint16_t bfloat16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFF'FFFF) > kInfinity32) return static_cast<std::uint16_t>(bits >> 16 | 0x0040);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

std::uint16_t float16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t rest = bits & 0x7FFF'FFFF;
  std::uint32_t half = 0;
  if (rest > kInfinity32) {
    half = 0x7E00 | (rest >> 13 & 0x3FF);
  } else if (rest >= kOverflow16) {
    half = 0x7C00;
  } else if (rest >= kNormal16) {
    half = shift_rounded(rest - (std::uint32_t{112} << 23), 13);
  } else if (rest > kLowest16) {
    const std::uint32_t exponent = rest >> 23;  // 102..112: the fraction, in units of the least float16
    half = shift_rounded((rest & 0x7F'FFFF) | 0x80'0000, 126 - exponent);
  }
  return static_cast<std::uint16_t>(sign | half);
}

bool can_cast(ElementType from, ElementType to) {
  const auto floating = [](ElementType dtype) { return dtype == ElementType::float32 || is_16_bit_float(dtype); };
  return from == to || (floating(from) && floating(to));
}

bool can_average(ElementType dtype) {
  return dtype == ElementType::float64 || dtype == ElementType::float32 || is_16_bit_float(dtype);
}

std::uint64_t cast(ElementType from_dtype, std::span<const std::byte> from, ElementType to_dtype, std::span<std::byte> to) {
  if (from.empty()) return 0;
  if (from_dtype == to_dtype) {
    std::memcpy(to.data(), from.data(), from.size());
    return 0;
  }
  const std::size_t step = size_bits(to_dtype) / 8;
  const std::size_t from_step = size_bits(from_dtype) / 8;
  std::uint64_t overflows = 0;
  for (std::size_t i = 0; i < from.size() / from_step; ++i) {
    const float value = load(from_dtype, from.data() + i * from_step);
    store(to_dtype, value, to.data() + i * step);
    if (std::isfinite(value) && std::isinf(load(to_dtype, to.data() + i * step))) ++overflows;
  }
  return overflows;
}

void average(ElementType dtype, std::span<const std::byte* const> versions, std::size_t count, std::byte* to) {
  const auto number = static_cast<float>(versions.size());
  const std::size_t step = size_bits(dtype) / 8;
  for (std::size_t i = 0; i < count; ++i) {
    if (dtype == ElementType::float64) {
      double sum = 0;
      for (const std::byte* version : versions) {
        double value;
        std::memcpy(&value, version + i * step, sizeof value);
        sum += value;
      }
      sum /= static_cast<double>(versions.size());
      std::memcpy(to + i * step, &sum, sizeof sum);
      continue;
    }
    float sum = 0;
    for (const std::byte* version : versions) sum = rounded_to(dtype, sum + load(dtype, version + i * step));
    store(dtype, sum / number, to + i * step);
  }
}

}  // namespace pawl
