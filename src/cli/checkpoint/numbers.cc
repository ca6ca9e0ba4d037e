#include "cli/checkpoint/numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "checkpoint/reshape/cast.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kBlock = 1024;  // elements that are decoded at once
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// How the eight bits of a float are laid out. Without infinity there is one NaN: all ones, or where -0 would be.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  bool has_infinity;
  bool negative_zero_is_nan;
};

double value_of(SmallFloat form, std::uint8_t bits) {
  if (form.negative_zero_is_nan && bits == 0x80) return kNaN;
  const int exponent_max = (1 << form.exponent_bits) - 1;
  const int exponent = bits >> form.mantissa_bits & exponent_max;
  const int mantissa = bits & ((1 << form.mantissa_bits) - 1);
  const double sign = bits & 0x80 ? -1 : 1;
  if (form.has_infinity && exponent == exponent_max) return mantissa == 0 ? sign * kInfinity : kNaN;
  if (!form.has_infinity && !form.negative_zero_is_nan && (bits & 0x7f) == 0x7f) return kNaN;
  const double scale = 1 << form.mantissa_bits;
  if (exponent == 0) return sign * std::ldexp(mantissa / scale, 1 - form.bias);
  return sign * std::ldexp(1 + mantissa / scale, exponent - form.bias);
}

template <class Number>
Number load(const std::byte* at) {
  Number value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class Number>
void decode_as(const std::byte* from, std::size_t count, double* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<double>(load<Number>(from + i * sizeof(Number)));
}

template <class Half>
void decode_half(const std::byte* from, std::size_t count, double* out, Half half) {
  for (std::size_t i = 0; i < count; ++i) out[i] = half(load<std::uint16_t>(from + 2 * i));
}

void decode_small(const std::byte* from, std::size_t count, double* out, SmallFloat form) {
  for (std::size_t i = 0; i < count; ++i) out[i] = value_of(form, load<std::uint8_t>(from + i));
}

// Numbers in one element: two of complex types; none: its elements have no value here.
std::size_t parts_of(ElementType type) {
  switch (type) {
    case ElementType::complex32:
    case ElementType::complex64:
    case ElementType::complex128:
      return 2;
    case ElementType::float4_e2m1fn_x2:
    case ElementType::float4_e2m1:
    case ElementType::float6_e2m3:
    case ElementType::float6_e3m2:
    case ElementType::bits8:
    case ElementType::bits16:
    case ElementType::bits1x8:
    case ElementType::bits2x4:
    case ElementType::bits4x2:
    case ElementType::qint8:
    case ElementType::quint8:
    case ElementType::qint32:
    case ElementType::quint4x2:
    case ElementType::quint2x4:
      return 0;
    default:
      return 1;
  }
}

bool is_integer(ElementType type) {
  return type >= ElementType::int8 && type <= ElementType::boolean;
}

// `count` elements of a type with numbers; complex ones give two each.
void decode(ElementType type, const std::byte* from, std::size_t count, double* out) {
  switch (type) {
    case ElementType::float32:
      return decode_as<float>(from, count, out);
    case ElementType::float64:
      return decode_as<double>(from, count, out);
    case ElementType::float16:
      return decode_half(from, count, out, float32_of_float16);
    case ElementType::bfloat16:
      return decode_half(from, count, out, float32_of_bfloat16);
    case ElementType::int8:
      return decode_as<std::int8_t>(from, count, out);
    case ElementType::int16:
      return decode_as<std::int16_t>(from, count, out);
    case ElementType::int32:
      return decode_as<std::int32_t>(from, count, out);
    case ElementType::int64:
      return decode_as<std::int64_t>(from, count, out);
    case ElementType::uint8:
    case ElementType::boolean:
      return decode_as<std::uint8_t>(from, count, out);
    case ElementType::uint16:
      return decode_as<std::uint16_t>(from, count, out);
    case ElementType::uint32:
      return decode_as<std::uint32_t>(from, count, out);
    case ElementType::uint64:
      return decode_as<std::uint64_t>(from, count, out);
    case ElementType::complex32:
      return decode_half(from, 2 * count, out, float32_of_float16);
    case ElementType::complex64:
      return decode_as<float>(from, 2 * count, out);
    case ElementType::complex128:
      return decode_as<double>(from, 2 * count, out);
    case ElementType::float8_e4m3fn:
      return decode_small(from, count, out, {4, 3, 7, false, false});
    case ElementType::float8_e5m2:
      return decode_small(from, count, out, {5, 2, 15, true, false});
    case ElementType::float8_e4m3fnuz:
      return decode_small(from, count, out, {4, 3, 8, false, true});
    case ElementType::float8_e5m2fnuz:
      return decode_small(from, count, out, {5, 2, 16, false, true});
    case ElementType::float8_e8m0fnu:
      for (std::size_t i = 0; i < count; ++i) {
        const auto bits = load<std::uint8_t>(from + i);
        out[i] = bits == 0xff ? kNaN : std::ldexp(1.0, bits - 127);
      }
      return;
    default:
      return;  // parts_of says 0
  }
}

void note(NumberDifference& out, double difference, std::uint64_t at, double a, double b) {
  const bool is_first = out.differing == 0 && out.largest == 0;
  if (!is_first && !(difference > out.largest)) return;
  out.largest = std::max(out.largest, difference);
  out.at = at;
  out.a = a;
  out.b = b;
}

// One number against another.
struct Verdict {
  bool differs = false;
  bool one_is_nan = false;
  double difference = 0;
};
Verdict judge(double a, double b, double tolerance) {
  if (a == b) return {};
  if (std::isnan(a) || std::isnan(b)) {
    const bool both = std::isnan(a) && std::isnan(b);
    return {!both, !both, 0};
  }
  const double difference = std::fabs(a - b);
  return {!(difference <= tolerance), false, difference};
}

// As numbers, a block of at most kBlock elements.
void compare_block(ElementType a_type, const std::byte* a, ElementType b_type, const std::byte* b, std::size_t count,
                   std::uint64_t first, double tolerance, NumberDifference& out) {
  std::array<double, 2 * kBlock> left, right;
  decode(a_type, a, count, left.data());
  decode(b_type, b, count, right.data());
  const std::size_t parts = parts_of(a_type);
  const std::size_t size = size_bits(a_type) / 8;
  for (std::size_t i = 0; i < count; ++i) {
    bool differs = false, nan = false;
    for (std::size_t part = i * parts; part < (i + 1) * parts; ++part) {
      const Verdict verdict = judge(left[part], right[part], tolerance);
      if (verdict.differs && !differs) {
        note(out, verdict.difference, first + i, left[part], right[part]);
        ++out.differing;
        differs = true;
      } else if (verdict.difference > out.largest) {
        note(out, verdict.difference, first + i, left[part], right[part]);
      }
      nan = nan || verdict.one_is_nan;
    }
    out.nan_on_one_side += nan;
    if (!differs && a_type == b_type && std::memcmp(a + i * size, b + i * size, size) != 0) {
      bool equal = true;
      for (std::size_t part = i * parts; part < (i + 1) * parts; ++part)
        equal = equal && judge(left[part], right[part], 0).difference == 0;
      out.bits_only += equal;
    }
  }
}

// Of 64-bit integers doubles would lose what differs.
template <class Integer>
void compare_integers(const std::byte* a, const std::byte* b, std::size_t count, std::uint64_t first, double tolerance,
                      NumberDifference& out) {
  for (std::size_t i = 0; i < count; ++i) {
    const Integer left = load<Integer>(a + i * sizeof(Integer)), right = load<Integer>(b + i * sizeof(Integer));
    if (left == right) continue;
    using Unsigned = std::make_unsigned_t<Integer>;
    const Unsigned distance = left > right ? static_cast<Unsigned>(left) - static_cast<Unsigned>(right)
                                           : static_cast<Unsigned>(right) - static_cast<Unsigned>(left);
    const auto difference = static_cast<double>(distance);
    note(out, difference, first + i, static_cast<double>(left), static_cast<double>(right));
    out.differing += difference > tolerance;
  }
}

void compare_bytes(const std::byte* a, const std::byte* b, std::size_t count, std::size_t size, std::uint64_t first,
                   NumberDifference& out) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i * size, b + i * size, size) == 0) continue;
    if (out.differing++ == 0) out.at = first + i;
  }
}

}  // namespace

bool can_compare(ElementType a, ElementType b) {
  return a == b || (parts_of(a) != 0 && parts_of(a) == parts_of(b));
}

void compare(ElementType a_type, std::span<const std::byte> a, ElementType b_type, std::span<const std::byte> b,
             std::uint64_t count, std::uint64_t first, double tolerance, NumberDifference& out) {
  const bool valued = parts_of(a_type) != 0;
  const std::size_t a_size = size_bits(a_type) % 8 == 0 ? size_bits(a_type) / 8 : 1;
  const std::size_t b_size = size_bits(b_type) % 8 == 0 ? size_bits(b_type) / 8 : 1;
  out.is_valued = valued;
  out.compared += count;
  for (std::uint64_t done = 0; done < count; done += kBlock) {
    const std::size_t now = std::min<std::uint64_t>(kBlock, count - done);
    const std::byte* const left = a.data() + done * a_size;
    const std::byte* const right = b.data() + done * b_size;
    if (a_type == b_type && std::memcmp(left, right, now * a_size) == 0) continue;
    if (!valued)
      compare_bytes(left, right, now, a_size, first + done, out);
    else if (a_type == b_type && a_type == ElementType::int64)
      compare_integers<std::int64_t>(left, right, now, first + done, tolerance, out);
    else if (a_type == b_type && a_type == ElementType::uint64)
      compare_integers<std::uint64_t>(left, right, now, first + done, tolerance, out);
    else
      compare_block(a_type, left, b_type, right, now, first + done, tolerance, out);
  }
}

void count_special(ElementType type, std::span<const std::byte> elements, SpecialNumbers& out) {
  const std::size_t parts = parts_of(type);
  if (parts == 0 || is_integer(type)) return;
  std::array<double, 2 * kBlock> numbers;
  const std::size_t size = size_bits(type) / 8;
  const std::size_t count = elements.size() / size;
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t now = std::min(kBlock, count - done);
    decode(type, elements.data() + done * size, now, numbers.data());
    for (std::size_t i = 0; i < now * parts; ++i) {
      out.nan += std::isnan(numbers[i]);
      out.infinite += std::isinf(numbers[i]);
    }
  }
}

}  // namespace pawl::checkpoint
