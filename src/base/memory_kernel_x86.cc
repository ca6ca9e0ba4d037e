#include "base/memory_kernel_parts.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace pawl {
namespace {

using Word [[gnu::may_alias, gnu::aligned(1)]] = long long;
using Half [[gnu::may_alias, gnu::aligned(1)]] = int;

#define PAWL_SSE42 __attribute__((target("sse4.2,pclmul"), always_inline)) PAWL_RACY inline

PAWL_SSE42 unsigned long long word_at(const std::byte* from) {
  return static_cast<unsigned long long>(*reinterpret_cast<const Word*>(from));
}

PAWL_SSE42 std::uint32_t shift_state(std::uint32_t state, std::size_t lines) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(state)),
                                               _mm_cvtsi32_si128(static_cast<int>(kLineShifts[lines])), 0);
  return static_cast<std::uint32_t>(_mm_crc32_u64(0, static_cast<unsigned long long>(_mm_cvtsi128_si64(product))));
}

template <bool kStores, bool kSums>
PAWL_SSE42 std::uint32_t add_some_bytes(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t state) {
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const Word word = *reinterpret_cast<const Word*>(from + i);
    if constexpr (kStores) *reinterpret_cast<Word*>(to + i) = word;
    if constexpr (kSums)
      state = static_cast<std::uint32_t>(_mm_crc32_u64(state, static_cast<unsigned long long>(word)));
  }
  if (i + 4 <= size) {
    const Half half = *reinterpret_cast<const Half*>(from + i);
    if constexpr (kStores) *reinterpret_cast<Half*>(to + i) = half;
    if constexpr (kSums) state = _mm_crc32_u32(state, static_cast<unsigned>(half));
    i += 4;
  }
  for (; i < size; ++i) {
    const std::byte byte = from[i];
    if constexpr (kStores) to[i] = byte;
    if constexpr (kSums) state = _mm_crc32_u8(state, static_cast<unsigned char>(byte));
  }
  return state;
}

PAWL_SSE42 std::uint64_t add_line(std::uint64_t sum, const std::byte* from) {
  for (std::size_t i = 0; i < kLineBytes; i += 8) sum = _mm_crc32_u64(sum, word_at(from + i));
  return sum;
}

PAWL_SSE42 std::uint64_t add_pair(std::uint64_t sum, __m128i pair) {
  sum = _mm_crc32_u64(sum, static_cast<unsigned long long>(_mm_cvtsi128_si64(pair)));
  return _mm_crc32_u64(sum, static_cast<unsigned long long>(_mm_extract_epi64(pair, 1)));
}

// Words one by one: g++ 12 warns of the intrinsics that take a register apart.
__attribute__((target("avx512f,sse4.2"), always_inline)) PAWL_RACY inline std::uint64_t add_words(std::uint64_t sum,
                                                                                                  const __m512i& line) {
  sum = _mm_crc32_u64(sum, static_cast<unsigned long long>(line[0]));
  sum = _mm_crc32_u64(sum, static_cast<unsigned long long>(line[1]));
  sum = _mm_crc32_u64(sum, static_cast<unsigned long long>(line[2]));
  sum = _mm_crc32_u64(sum, static_cast<unsigned long long>(line[3]));
  sum = _mm_crc32_u64(sum, static_cast<unsigned long long>(line[4]));
  sum = _mm_crc32_u64(sum, static_cast<unsigned long long>(line[5]));
  sum = _mm_crc32_u64(sum, static_cast<unsigned long long>(line[6]));
  return _mm_crc32_u64(sum, static_cast<unsigned long long>(line[7]));
}

#define PAWL_KERNEL __attribute__((target(PAWL_KERNEL_TARGET), always_inline)) PAWL_RACY
#define PAWL_KERNEL_ENTRY __attribute__((target(PAWL_KERNEL_TARGET), noinline)) PAWL_RACY
// What all of them do alike.
#define PAWL_KERNEL_COMMON                                                                           \
  PAWL_KERNEL inline std::uint32_t shift(std::uint32_t state, std::size_t lines) {                   \
    return shift_state(state, lines);                                                                \
  }                                                                                                  \
  template <bool kStores, bool kSums>                                                                \
  PAWL_KERNEL inline std::uint32_t add_bytes(std::byte* to, const std::byte* from, std::size_t size, \
                                             std::uint32_t state) {                                  \
    return add_some_bytes<kStores, kSums>(to, from, size, state);                                    \
  }

// --- The crc32 instruction takes 8 bytes, answers after 3 cycles and can start each cycle: four lanes keep it busy.

namespace sse42 {
#define PAWL_KERNEL_TARGET "sse4.2,pclmul"
PAWL_KERNEL_COMMON
struct Line {
  __m128i pair[4];
};
struct Sum {
  std::uint64_t state = 0;
};
PAWL_KERNEL inline Line load(const std::byte* from) {
  const auto* pairs = reinterpret_cast<const __m128i*>(from);
  return {{_mm_loadu_si128(pairs), _mm_loadu_si128(pairs + 1), _mm_loadu_si128(pairs + 2), _mm_loadu_si128(pairs + 3)}};
}
PAWL_KERNEL inline void store(std::byte* to, const Line& line) {
  for (std::size_t i = 0; i < 4; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, line.pair[i]);
}
PAWL_KERNEL inline void stream(std::byte* to, const Line& line) {
  for (std::size_t i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, line.pair[i]);
}
PAWL_KERNEL inline void add(Sum& sum, const Line& line) {
  for (const __m128i& pair : line.pair) sum.state = add_pair(sum.state, pair);
}
PAWL_KERNEL inline void add(Sum& sum, const std::byte* from) {
  sum.state = add_line(sum.state, from);
}
PAWL_KERNEL inline std::uint32_t remainder(const Sum& sum) {
  return static_cast<std::uint32_t>(sum.state);
}
#include "base/memory_kernel_lanes.h"
#undef PAWL_KERNEL_TARGET
}  // namespace sse42

namespace avx2 {
#define PAWL_KERNEL_TARGET "avx2,sse4.2,pclmul"
PAWL_KERNEL_COMMON
struct Line {
  __m256i first, second;
};
struct Sum {
  std::uint64_t state = 0;
};
PAWL_KERNEL inline Line load(const std::byte* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32))};
}
PAWL_KERNEL inline void store(std::byte* to, const Line& line) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), line.first);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), line.second);
}
PAWL_KERNEL inline void stream(std::byte* to, const Line& line) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), line.first);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), line.second);
}
PAWL_KERNEL inline void add(Sum& sum, const Line& line) {
  sum.state = add_pair(sum.state, _mm256_castsi256_si128(line.first));
  sum.state = add_pair(sum.state, _mm256_extracti128_si256(line.first, 1));
  sum.state = add_pair(sum.state, _mm256_castsi256_si128(line.second));
  sum.state = add_pair(sum.state, _mm256_extracti128_si256(line.second, 1));
}
PAWL_KERNEL inline void add(Sum& sum, const std::byte* from) {
  sum.state = add_line(sum.state, from);
}
PAWL_KERNEL inline std::uint32_t remainder(const Sum& sum) {
  return static_cast<std::uint32_t>(sum.state);
}
#include "base/memory_kernel_lanes.h"
#undef PAWL_KERNEL_TARGET
}  // namespace avx2

namespace avx512 {
#define PAWL_KERNEL_TARGET "avx512f,avx2,sse4.2,pclmul"
PAWL_KERNEL_COMMON
struct Line {
  __m512i all;
};
struct Sum {
  std::uint64_t state = 0;
};
PAWL_KERNEL inline Line load(const std::byte* from) {
  return {_mm512_loadu_si512(from)};
}
PAWL_KERNEL inline void store(std::byte* to, const Line& line) {
  _mm512_storeu_si512(to, line.all);
}
PAWL_KERNEL inline void stream(std::byte* to, const Line& line) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line.all);
}
PAWL_KERNEL inline void add(Sum& sum, const Line& line) {
  sum.state = add_words(sum.state, line.all);
}
PAWL_KERNEL inline void add(Sum& sum, const std::byte* from) {
  sum.state = add_line(sum.state, from);
}
PAWL_KERNEL inline std::uint32_t remainder(const Sum& sum) {
  return static_cast<std::uint32_t>(sum.state);
}
#include "base/memory_kernel_lanes.h"
#undef PAWL_KERNEL_TARGET
}  // namespace avx512

// --- Multiplication without carries folds each line onto the next one (Gopal and others 2009, "Fast CRC Computation for
// Generic Polynomials Using PCLMULQDQ Instruction"); the crc32 instruction reduces what is left at a lane's end.

namespace vpclmul {
#define PAWL_KERNEL_TARGET "vpclmulqdq,avx2,sse4.2,pclmul"
PAWL_KERNEL_COMMON
struct Line {
  __m256i first, second;
};
struct Sum {
  __m256i first{}, second{};
};
PAWL_KERNEL inline Line load(const std::byte* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32))};
}
PAWL_KERNEL inline void store(std::byte* to, const Line& line) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), line.first);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), line.second);
}
PAWL_KERNEL inline void stream(std::byte* to, const Line& line) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), line.first);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), line.second);
}
PAWL_KERNEL inline __m256i fold(__m256i sum, __m256i next) {
  const __m256i by = _mm256_set_epi64x(kFoldSecond, kFoldFirst, kFoldSecond, kFoldFirst);
  const __m256i folded =
      _mm256_xor_si256(_mm256_clmulepi64_epi128(sum, by, 0x00), _mm256_clmulepi64_epi128(sum, by, 0x11));
  return _mm256_xor_si256(folded, next);
}
PAWL_KERNEL inline void add(Sum& sum, const Line& line) {
  sum.first = fold(sum.first, line.first);
  sum.second = fold(sum.second, line.second);
}
PAWL_KERNEL inline void add(Sum& sum, const std::byte* from) {
  add(sum, load(from));
}
PAWL_KERNEL inline std::uint32_t remainder(const Sum& sum) {
  std::uint64_t state = add_pair(0, _mm256_castsi256_si128(sum.first));
  state = add_pair(state, _mm256_extracti128_si256(sum.first, 1));
  state = add_pair(state, _mm256_castsi256_si128(sum.second));
  return static_cast<std::uint32_t>(add_pair(state, _mm256_extracti128_si256(sum.second, 1)));
}
#include "base/memory_kernel_lanes.h"
#undef PAWL_KERNEL_TARGET
}  // namespace vpclmul

namespace avx512_vpclmul {
#define PAWL_KERNEL_TARGET "avx512f,vpclmulqdq,avx2,sse4.2,pclmul"
PAWL_KERNEL_COMMON
struct Line {
  __m512i all;
};
struct Sum {
  __m512i all{};
};
PAWL_KERNEL inline Line load(const std::byte* from) {
  return {_mm512_loadu_si512(from)};
}
PAWL_KERNEL inline void store(std::byte* to, const Line& line) {
  _mm512_storeu_si512(to, line.all);
}
PAWL_KERNEL inline void stream(std::byte* to, const Line& line) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line.all);
}
PAWL_KERNEL inline void add(Sum& sum, const Line& line) {
  const __m512i by = _mm512_set_epi64(kFoldSecond, kFoldFirst, kFoldSecond, kFoldFirst, kFoldSecond, kFoldFirst,
                                      kFoldSecond, kFoldFirst);
  constexpr int kXorOfThree = 0x96;
  sum.all = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum.all, by, 0x00),
                                      _mm512_clmulepi64_epi128(sum.all, by, 0x11), line.all, kXorOfThree);
}
PAWL_KERNEL inline void add(Sum& sum, const std::byte* from) {
  add(sum, load(from));
}
PAWL_KERNEL inline std::uint32_t remainder(const Sum& sum) {
  return static_cast<std::uint32_t>(add_words(0, sum.all));
}
#include "base/memory_kernel_lanes.h"
#undef PAWL_KERNEL_TARGET
}  // namespace avx512_vpclmul

#undef PAWL_KERNEL_COMMON
#undef PAWL_KERNEL_ENTRY
#undef PAWL_KERNEL
#undef PAWL_SSE42

bool has_sse42() {
  return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0;
}
bool has_avx2() {
  return has_sse42() && __builtin_cpu_supports("avx2") != 0;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0;
}
bool has_vpclmul() {
  return has_avx2() && __builtin_cpu_supports("vpclmulqdq") != 0;
}
bool has_avx512_vpclmul() {
  return has_avx512() && has_vpclmul();
}

constexpr std::array kKernels{
    MemoryKernel{"avx512-vpclmul", &has_avx512_vpclmul, &avx512_vpclmul::sum, &avx512_vpclmul::copy_and_sum,
                 &avx512_vpclmul::copy_rows},
    MemoryKernel{"vpclmul", &has_vpclmul, &vpclmul::sum, &vpclmul::copy_and_sum, &vpclmul::copy_rows},
    MemoryKernel{"avx512", &has_avx512, &avx512::sum, &avx512::copy_and_sum, &avx512::copy_rows},
    MemoryKernel{"avx2", &has_avx2, &avx2::sum, &avx2::copy_and_sum, &avx2::copy_rows},
    MemoryKernel{"sse4.2", &has_sse42, &sse42::sum, &sse42::copy_and_sum, &sse42::copy_rows},
};

}  // namespace

std::span<const MemoryKernel> x86_memory_kernels() {
  __builtin_cpu_init();
  return kKernels;
}

}  // namespace pawl

#else

namespace pawl {
std::span<const MemoryKernel> x86_memory_kernels() {
  return {};
}
}  // namespace pawl

#endif
