#include "checkpoint/reshape/cast.h"

#include <algorithm>
#include <bit>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace pawl::checkpoint {
namespace {

constexpr std::uint32_t kInfinity32 = 0x7F80'0000;
constexpr std::uint32_t kQuietNan32 = 0x7FC0'0000;
constexpr std::uint32_t kLowest16 = 0x3300'0000;    // 2^-25: half the least float16; up to here all rounds to zero
constexpr std::uint32_t kNormal16 = 0x3880'0000;    // 2^-14: the least normal float16
constexpr std::uint32_t kOverflow16 = 0x477F'F000;  // 65520: from here on all rounds to infinity
constexpr std::uint32_t kOverflowBfloat16 = 0x7F7F'8000;  // likewise

// Shifts right and rounds to nearest, ties to even.
std::uint32_t shift_rounded(std::uint32_t value, std::uint32_t bits) {
  const std::uint32_t half = (std::uint32_t{1} << (bits - 1)) - 1;
  return (value + half + (value >> bits & 1)) >> bits;
}

bool is_16_bit_float(ElementType dtype) {
  return dtype == ElementType::float16 || dtype == ElementType::bfloat16;
}

template <class Number>
Number number_in(std::string_view bytes) {
  Number out{};
  std::memcpy(&out, bytes.data(), sizeof out);
  return out;
}

}  // namespace

std::optional<double> number_of(ElementType type, std::string_view bytes) {
  if (size_bits(type) % 8 != 0 || bytes.size() != size_bits(type) / 8) return std::nullopt;
  switch (type) {
    case ElementType::float32:
      return number_in<float>(bytes);
    case ElementType::float64:
      return number_in<double>(bytes);
    case ElementType::float16:
      return float32_of_float16(number_in<std::uint16_t>(bytes));
    case ElementType::bfloat16:
      return float32_of_bfloat16(number_in<std::uint16_t>(bytes));
    case ElementType::int32:
      return number_in<std::int32_t>(bytes);
    case ElementType::int64:
      return static_cast<double>(number_in<std::int64_t>(bytes));
    default:
      return std::nullopt;
  }
}

float float32_of_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float float32_of_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t rest = bits & 0x7FFF;
  if (rest > 0x7C00) return std::bit_cast<float>(sign | kQuietNan32 | (rest & 0x3FF) << 13);
  if (rest == 0x7C00) return std::bit_cast<float>(sign | kInfinity32);
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

namespace {

constexpr std::size_t kBlock = 2048;  // elements: small enough for the first cache

// At any address: files have no alignment. Pointers to them are spelt out: `auto` would forget the attributes.
using Bits16 [[gnu::aligned(1), gnu::may_alias]] = std::uint16_t;
using Bits32 [[gnu::aligned(1), gnu::may_alias]] = std::uint32_t;

bool is_overflow(std::uint32_t float32_bits, std::uint32_t first_that_overflows) {
  const std::uint32_t rest = float32_bits & 0x7FFF'FFFF;
  return rest >= first_that_overflows && rest < kInfinity32;
}

// Branches turned into selections, so that the compiler makes vectors of it; the same bits as bfloat16_of.
[[gnu::always_inline]] inline std::uint64_t narrow_bfloat16_loop(const float* from, std::size_t count, std::byte* to) {
  const Bits32* in = reinterpret_cast<const Bits32*>(from);
  Bits16* out = reinterpret_cast<Bits16*>(to);
  std::uint32_t overflows = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = in[i];
    const std::uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const std::uint32_t nan = bits >> 16 | 0x0040;
    out[i] = static_cast<std::uint16_t>((bits & 0x7FFF'FFFF) > kInfinity32 ? nan : rounded);
    overflows += is_overflow(bits, kOverflowBfloat16) ? 1 : 0;
  }
  return overflows;
}

std::uint64_t narrow_bfloat16_plain(const float* from, std::size_t count, std::byte* to) {
  return narrow_bfloat16_loop(from, count, to);
}

void widen_bfloat16(const std::byte* from, std::size_t count, std::byte* to) {
  const Bits16* in = reinterpret_cast<const Bits16*>(from);
  Bits32* out = reinterpret_cast<Bits32*>(to);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint32_t>(in[i]) << 16;
}

std::uint64_t narrow_float16_plain(const float* from, std::size_t count, std::byte* to) {
  Bits16* out = reinterpret_cast<Bits16*>(to);
  std::uint64_t overflows = 0;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = float16_of(from[i]);
    overflows += is_overflow(std::bit_cast<std::uint32_t>(from[i]), kOverflow16) ? 1 : 0;
  }
  return overflows;
}

void widen_float16_plain(const std::byte* from, std::size_t count, std::byte* to) {
  const Bits16* in = reinterpret_cast<const Bits16*>(from);
  Bits32* out = reinterpret_cast<Bits32*>(to);
  for (std::size_t i = 0; i < count; ++i) out[i] = std::bit_cast<std::uint32_t>(float32_of_float16(in[i]));
}

#if defined(__x86_64__)

bool has_avx2_and_f16c() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
  return has;
}

[[gnu::target("avx2")]] std::uint64_t narrow_bfloat16_avx2(const float* from, std::size_t count, std::byte* to) {
  return narrow_bfloat16_loop(from, count, to);
}

[[gnu::target("avx2,f16c")]] std::uint64_t narrow_float16_f16c(const float* from, std::size_t count, std::byte* to) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFF'FFFF);
  const __m256i below = _mm256_set1_epi32(static_cast<int>(kOverflow16 - 1));
  const __m256i infinity = _mm256_set1_epi32(static_cast<int>(kInfinity32));
  __m256i counts = _mm256_setzero_si256();  // of minus ones
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 value = _mm256_loadu_ps(from + i);
    const __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * i), half);
    const __m256i rest = _mm256_and_si256(_mm256_castps_si256(value), magnitude);
    const __m256i over = _mm256_and_si256(_mm256_cmpgt_epi32(rest, below), _mm256_cmpgt_epi32(infinity, rest));
    counts = _mm256_sub_epi32(counts, over);
  }
  alignas(32) std::uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), counts);
  std::uint64_t overflows = 0;
  for (const std::uint32_t lane : lanes) overflows += lane;
  return overflows + narrow_float16_plain(from + i, count - i, to + 2 * i);
}

[[gnu::target("avx2,f16c")]] void widen_float16_f16c(const std::byte* from, std::size_t count, std::byte* to) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
    _mm256_storeu_ps(reinterpret_cast<float*>(to + 4 * i), _mm256_cvtph_ps(half));
  }
  widen_float16_plain(from + 2 * i, count - i, to + 4 * i);
}

#else

bool has_avx2_and_f16c() {
  return false;
}
std::uint64_t narrow_bfloat16_avx2(const float* from, std::size_t count, std::byte* to) {
  return narrow_bfloat16_plain(from, count, to);
}
std::uint64_t narrow_float16_f16c(const float* from, std::size_t count, std::byte* to) {
  return narrow_float16_plain(from, count, to);
}
void widen_float16_f16c(const std::byte* from, std::size_t count, std::byte* to) {
  widen_float16_plain(from, count, to);
}

#endif

// To float32, from any of the three.
void widen(ElementType dtype, const std::byte* from, std::size_t count, std::byte* to) {
  if (dtype == ElementType::float32) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (dtype == ElementType::bfloat16) {
    widen_bfloat16(from, count, to);
  } else {
    has_avx2_and_f16c() ? widen_float16_f16c(from, count, to) : widen_float16_plain(from, count, to);
  }
}

// From float32, to any of the three. Returns how many finite numbers became infinite.
std::uint64_t narrow(ElementType dtype, const float* from, std::size_t count, std::byte* to) {
  if (dtype == ElementType::float32) {
    std::memcpy(to, from, count * sizeof(float));
    return 0;
  }
  if (dtype == ElementType::bfloat16) {
    return has_avx2_and_f16c() ? narrow_bfloat16_avx2(from, count, to) : narrow_bfloat16_plain(from, count, to);
  }
  return has_avx2_and_f16c() ? narrow_float16_f16c(from, count, to) : narrow_float16_plain(from, count, to);
}

void round_to(ElementType dtype, float* values, std::size_t count) {
  if (dtype == ElementType::float32) return;
  std::byte bits[2 * kBlock];
  (void)narrow(dtype, values, count, bits);
  widen(dtype, bits, count, reinterpret_cast<std::byte*>(values));
}

void average_float64(std::span<const std::byte* const> versions, std::size_t count, std::byte* to) {
  for (std::size_t i = 0; i < count; ++i) {
    double sum = 0;
    for (const std::byte* version : versions) {
      double value;
      std::memcpy(&value, version + i * sizeof value, sizeof value);
      sum += value;
    }
    sum /= static_cast<double>(versions.size());
    std::memcpy(to + i * sizeof sum, &sum, sizeof sum);
  }
}

}  // namespace

bool can_cast(ElementType from, ElementType to) {
  const auto floating = [](ElementType dtype) { return dtype == ElementType::float32 || is_16_bit_float(dtype); };
  return from == to || (floating(from) && floating(to));
}

bool can_average(ElementType dtype) {
  return dtype == ElementType::float64 || dtype == ElementType::float32 || is_16_bit_float(dtype);
}

std::uint64_t cast(ElementType from_dtype, std::span<const std::byte> from, ElementType to_dtype,
                   std::span<std::byte> to) {
  if (from.empty()) return 0;
  if (from_dtype == to_dtype) {
    std::memcpy(to.data(), from.data(), from.size());
    return 0;
  }
  const std::size_t from_step = size_bits(from_dtype) / 8;
  const std::size_t to_step = size_bits(to_dtype) / 8;
  const std::size_t count = from.size() / from_step;
  std::uint64_t overflows = 0;
  float block[kBlock];
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t size = std::min(kBlock, count - i);
    if (to_dtype == ElementType::float32) {
      widen(from_dtype, from.data() + i * from_step, size, to.data() + i * to_step);
      continue;
    }
    widen(from_dtype, from.data() + i * from_step, size, reinterpret_cast<std::byte*>(block));
    overflows += narrow(to_dtype, block, size, to.data() + i * to_step);
  }
  return overflows;
}

void average(ElementType dtype, std::span<const std::byte* const> versions, std::size_t count, std::byte* to) {
  if (dtype == ElementType::float64) return average_float64(versions, count, to);
  const auto number = static_cast<float>(versions.size());
  const std::size_t step = size_bits(dtype) / 8;
  float sum[kBlock];
  float next[kBlock];
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t size = std::min(kBlock, count - i);
    std::fill_n(sum, size, 0.0F);
    for (const std::byte* version : versions) {
      widen(dtype, version + i * step, size, reinterpret_cast<std::byte*>(next));
      for (std::size_t k = 0; k < size; ++k) sum[k] += next[k];
      round_to(dtype, sum, size);
    }
    for (std::size_t k = 0; k < size; ++k) sum[k] /= number;
    (void)narrow(dtype, sum, size, to + i * step);
  }
}

}  // namespace pawl::checkpoint
