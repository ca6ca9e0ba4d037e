#include "job/erasure/parity_kernel_parts.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace pawl::job {
namespace {

constexpr int kXorOfThree = 0x96;  // of vpternlog

#define PAWL_KERNEL __attribute__((target(PAWL_KERNEL_TARGET), always_inline)) PAWL_RACY
#define PAWL_KERNEL_ENTRY __attribute__((target(PAWL_KERNEL_TARGET), noinline)) PAWL_RACY

// What is loaded passes an empty statement, or else the compiler loads a line anew for each of its uses.
//
// What all kernels with lines of two halves do alike, and all with a line in one register.
#define PAWL_HALVES                                                                             \
  struct Line {                                                                                 \
    __m256i first, second;                                                                      \
  };                                                                                            \
  PAWL_KERNEL inline Line load(const std::byte* from) {                                         \
    __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));                 \
    __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));           \
    asm("" : "+x"(first), "+x"(second));                                                        \
    return {first, second};                                                                     \
  }                                                                                             \
  PAWL_KERNEL inline void store(std::byte* to, const Line& line) {                              \
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), line.first);                            \
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), line.second);                      \
  }                                                                                             \
  PAWL_KERNEL inline void stream(std::byte* to, const Line& line) {                             \
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), line.first);                            \
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), line.second);                      \
  }                                                                                             \
  PAWL_KERNEL inline Line nothing() {                                                           \
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};                                    \
  }                                                                                             \
  PAWL_KERNEL inline void add(Line& sum, const Line& line) {                                    \
    sum = {_mm256_xor_si256(sum.first, line.first), _mm256_xor_si256(sum.second, line.second)}; \
  }                                                                                             \
  template <std::size_t kRows>                                                                  \
  constexpr std::size_t kLinesAtOnce = kRows <= 2 ? 2 : 1;
#define PAWL_WHOLE                                                  \
  struct Line {                                                     \
    __m512i all;                                                    \
  };                                                                \
  PAWL_KERNEL inline Line load(const std::byte* from) {             \
    __m512i all = _mm512_loadu_si512(from);                         \
    asm("" : "+v"(all));                                            \
    return {all};                                                   \
  }                                                                 \
  PAWL_KERNEL inline void store(std::byte* to, const Line& line) {  \
    _mm512_storeu_si512(to, line.all);                              \
  }                                                                 \
  PAWL_KERNEL inline void stream(std::byte* to, const Line& line) { \
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line.all);  \
  }                                                                 \
  PAWL_KERNEL inline Line nothing() {                               \
    return {_mm512_setzero_si512()};                                \
  }                                                                 \
  PAWL_KERNEL inline void add(Line& sum, const Line& line) {        \
    sum.all = _mm512_xor_si512(sum.all, line.all);                  \
  }                                                                 \
  template <std::size_t kRows>                                      \
  constexpr std::size_t kLinesAtOnce = 4;

// --- A byte times a coefficient is a product of a matrix of bits with it: one instruction.
#define PAWL_BIT_MATRICES                                      \
  using Factor = std::uint64_t;                                \
  Factor factor_of(std::uint8_t c) {                           \
    return kBitMatrices[c];                                    \
  }                                                            \
  using Parts = Line;                                          \
  PAWL_KERNEL inline const Parts& parts_of(const Line& line) { \
    return line;                                               \
  }

namespace gfni {
#define PAWL_KERNEL_TARGET "gfni,avx2"
PAWL_HALVES
PAWL_BIT_MATRICES
PAWL_KERNEL inline void add_product(Line& sum, const Parts& parts, Factor factor) {
  const __m256i matrix = _mm256_set1_epi64x(static_cast<long long>(factor));
  add(sum,
      {_mm256_gf2p8affine_epi64_epi8(parts.first, matrix, 0), _mm256_gf2p8affine_epi64_epi8(parts.second, matrix, 0)});
}
#include "job/erasure/parity_kernel_lanes.h"
#undef PAWL_KERNEL_TARGET
}  // namespace gfni

namespace avx512_gfni {
#define PAWL_KERNEL_TARGET "gfni,avx512f,avx512bw,vpclmulqdq,avx2,sse4.2"
PAWL_WHOLE
PAWL_BIT_MATRICES
PAWL_KERNEL inline void add_product(Line& sum, const Parts& parts, Factor factor) {
  add(sum, {_mm512_gf2p8affine_epi64_epi8(parts.all, _mm512_set1_epi64(static_cast<long long>(factor)), 0)});
}
struct LineSum {
  __m512i all{};
};
PAWL_KERNEL inline void add_to_sum(LineSum& sum, const Line& line) {  // as base/memory_kernel_x86.cc folds lines
  const __m512i by = _mm512_set_epi64(kFoldSecond, kFoldFirst, kFoldSecond, kFoldFirst, kFoldSecond, kFoldFirst,
                                      kFoldSecond, kFoldFirst);
  sum.all = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum.all, by, 0x00),
                                      _mm512_clmulepi64_epi128(sum.all, by, 0x11), line.all, kXorOfThree);
}
PAWL_KERNEL inline void begin_sum(LineSum& sum, std::uint32_t state) {  // which is added to the first four bytes
  sum.all = _mm512_xor_si512(sum.all, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
}
PAWL_KERNEL inline std::uint32_t remainder_of(const LineSum& sum) {
  std::uint64_t state = 0;
  PAWL_UNROLLED for (int i = 0; i < 8; ++i) {
    state = _mm_crc32_u64(state, static_cast<unsigned long long>(sum.all[i]));
  }
  return static_cast<std::uint32_t>(state);
}
#include "job/erasure/parity_kernel_lanes.h"
//
#include "job/erasure/parity_kernel_copies.h"
#undef PAWL_KERNEL_TARGET
}  // namespace avx512_gfni

// --- A product of each half of a byte is looked up in 16 entries, one instruction for a whole register (Plank and others
// 2013, "Screaming Fast Galois Field Arithmetic Using Intel SIMD Instructions").
#define PAWL_NIBBLES                    \
  using Factor = const NibbleProducts*; \
  Factor factor_of(std::uint8_t c) {    \
    return &kNibbleProducts[c];         \
  }

namespace avx2 {
#define PAWL_KERNEL_TARGET "avx2"
PAWL_HALVES
PAWL_NIBBLES
struct Parts {
  Line low, high;
};
PAWL_KERNEL inline Parts parts_of(const Line& line) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {{_mm256_and_si256(line.first, mask), _mm256_and_si256(line.second, mask)},
          {_mm256_and_si256(_mm256_srli_epi16(line.first, 4), mask),
           _mm256_and_si256(_mm256_srli_epi16(line.second, 4), mask)}};
}
PAWL_KERNEL inline void add_product(Line& sum, const Parts& parts, Factor factor) {
  const __m256i low = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i*>(factor->low.data()));
  const __m256i high = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i*>(factor->high.data()));
  add(sum, {_mm256_shuffle_epi8(low, parts.low.first), _mm256_shuffle_epi8(low, parts.low.second)});
  add(sum, {_mm256_shuffle_epi8(high, parts.high.first), _mm256_shuffle_epi8(high, parts.high.second)});
}
#include "job/erasure/parity_kernel_lanes.h"
#undef PAWL_KERNEL_TARGET
}  // namespace avx2

namespace avx512 {
#define PAWL_KERNEL_TARGET "avx512f,avx512bw,avx2"
PAWL_WHOLE
PAWL_NIBBLES
struct Parts {
  __m512i low, high;
};
PAWL_KERNEL inline Parts parts_of(const Line& line) {
  const __m512i mask = _mm512_set1_epi8(15);
  return {_mm512_and_si512(line.all, mask), _mm512_and_si512(_mm512_srli_epi16(line.all, 4), mask)};
}
PAWL_KERNEL inline void add_product(Line& sum, const Parts& parts, Factor factor) {
  // With a mask of all: g++ 12 warns of what its unmasked form leaves undefined.
  const __m512i low = _mm512_maskz_broadcast_i32x4(0xffff, *reinterpret_cast<const __m128i*>(factor->low.data()));
  const __m512i high = _mm512_maskz_broadcast_i32x4(0xffff, *reinterpret_cast<const __m128i*>(factor->high.data()));
  sum.all = _mm512_ternarylogic_epi64(sum.all, _mm512_shuffle_epi8(low, parts.low),
                                      _mm512_shuffle_epi8(high, parts.high), kXorOfThree);
}
#include "job/erasure/parity_kernel_lanes.h"
#undef PAWL_KERNEL_TARGET
}  // namespace avx512

#undef PAWL_NIBBLES
#undef PAWL_BIT_MATRICES
#undef PAWL_WHOLE
#undef PAWL_HALVES
#undef PAWL_KERNEL_ENTRY
#undef PAWL_KERNEL

bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0;
}
bool has_gfni() {
  return has_avx2() && __builtin_cpu_supports("gfni") != 0;
}
bool has_avx512_gfni() {
  return has_avx512() && has_gfni() && __builtin_cpu_supports("vpclmulqdq") != 0 &&
         __builtin_cpu_supports("sse4.2") != 0;
}

constexpr std::array kKernels{
    ParityKernel{"avx512-gfni", &has_avx512_gfni, &avx512_gfni::multiply, &avx512_gfni::copy_and_multiply},
    ParityKernel{"gfni", &has_gfni, &gfni::multiply, nullptr},
    ParityKernel{"avx512", &has_avx512, &avx512::multiply, nullptr},
    ParityKernel{"avx2", &has_avx2, &avx2::multiply, nullptr},
};

}  // namespace

std::span<const ParityKernel> x86_parity_kernels() {
  __builtin_cpu_init();
  return kKernels;
}

}  // namespace pawl::job

#else

namespace pawl::job {
std::span<const ParityKernel> x86_parity_kernels() {
  return {};
}
}  // namespace pawl::job

#endif
