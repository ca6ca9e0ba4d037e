#include "base/memory_kernel_parts.h"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>
#include <sys/auxv.h>

namespace pawl {
namespace {

constexpr unsigned long kHasCrc32 = 1ul << 7;  // HWCAP_CRC32 of asm/hwcap.h

using Word [[gnu::may_alias, gnu::aligned(1)]] = std::uint64_t;

// Clang before 16 knows the extension by its bare name only.
#if defined(__clang__) && __clang_major__ < 16
#define PAWL_CRC_TARGET target("crc")
#else
#define PAWL_CRC_TARGET target("+crc")
#endif
#define PAWL_CRC __attribute__((PAWL_CRC_TARGET, always_inline)) PAWL_RACY inline

// The instruction of arm_acle.h, which some compilers declare only where it is on for a whole file.
PAWL_CRC std::uint32_t add_word(std::uint32_t state, std::uint64_t word) {
  asm("crc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
  return state;
}
PAWL_CRC std::uint32_t add_byte(std::uint32_t state, std::uint32_t byte) {
  asm("crc32cb %w0, %w0, %w1" : "+r"(state) : "r"(byte));
  return state;
}

// Without a multiplication without carries (an extension of its own): a byte at a time, by a table for each length that
// lanes have most, else bit by bit.
constexpr std::array<std::array<std::uint32_t, 256>, 4> shift_tables(std::uint32_t factor) {
  std::array<std::array<std::uint32_t, 256>, 4> tables{};
  for (std::uint32_t place = 0; place < 4; ++place) {
    for (std::uint32_t byte = 1; byte < 256; ++byte) {
      const std::uint32_t rest = byte & (byte - 1);  // linear: the entry without its lowest bit, plus that bit's own
      tables[place][byte] =
          rest != 0 ? tables[place][rest] ^ tables[place][byte ^ rest] : crc32c_multiply(factor, byte << (8 * place));
    }
  }
  return tables;
}
constexpr auto kPageShift = shift_tables(crc32c_power(8 * kLaneLines * kLineBytes));
constexpr std::array<std::uint32_t, kLaneLines + 1> kLineFactors = [] {
  std::array<std::uint32_t, kLaneLines + 1> factors{};
  for (std::size_t n = 1; n <= kLaneLines; ++n) factors[n] = crc32c_power(8 * kLineBytes * n);
  return factors;
}();

namespace neon {
#define PAWL_KERNEL __attribute__((PAWL_CRC_TARGET, always_inline)) PAWL_RACY
#define PAWL_KERNEL_ENTRY __attribute__((PAWL_CRC_TARGET, noinline)) PAWL_RACY

struct Line {
  uint64x2_t pair[4];
};
struct Sum {
  std::uint32_t state = 0;
};
PAWL_KERNEL inline std::uint32_t shift(std::uint32_t state, std::size_t lines) {
  if (lines != kLaneLines) return crc32c_multiply(kLineFactors[lines], state);
  return kPageShift[0][state & 255] ^ kPageShift[1][state >> 8 & 255] ^ kPageShift[2][state >> 16 & 255] ^
         kPageShift[3][state >> 24];
}
PAWL_KERNEL inline Line load(const std::byte* from) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  return {{vreinterpretq_u64_u8(vld1q_u8(bytes)), vreinterpretq_u64_u8(vld1q_u8(bytes + 16)),
           vreinterpretq_u64_u8(vld1q_u8(bytes + 32)), vreinterpretq_u64_u8(vld1q_u8(bytes + 48))}};
}
PAWL_KERNEL inline void store(std::byte* to, const Line& line) {
  for (std::size_t i = 0; i < 4; ++i)
    vst1q_u8(reinterpret_cast<std::uint8_t*>(to) + 16 * i, vreinterpretq_u8_u64(line.pair[i]));
}
PAWL_KERNEL inline void stream(std::byte* to, const Line& line) {
  asm volatile("stnp %q1, %q2, [%0]\n\tstnp %q3, %q4, [%0, #32]" ::"r"(to), "w"(line.pair[0]), "w"(line.pair[1]),
               "w"(line.pair[2]), "w"(line.pair[3])
               : "memory");
}
PAWL_KERNEL inline void add(Sum& sum, const Line& line) {
  for (const uint64x2_t& pair : line.pair) {
    sum.state = add_word(sum.state, vgetq_lane_u64(pair, 0));
    sum.state = add_word(sum.state, vgetq_lane_u64(pair, 1));
  }
}
PAWL_KERNEL inline void add(Sum& sum, const std::byte* from) {
  for (std::size_t i = 0; i < kLineBytes; i += 8)
    sum.state = add_word(sum.state, *reinterpret_cast<const Word*>(from + i));
}
PAWL_KERNEL inline std::uint32_t remainder(const Sum& sum) {
  return sum.state;
}
template <bool kStores, bool kSums>
PAWL_KERNEL inline std::uint32_t add_bytes(std::byte* to, const std::byte* from, std::size_t size,
                                           std::uint32_t state) {
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const Word word = *reinterpret_cast<const Word*>(from + i);
    if constexpr (kStores) *reinterpret_cast<Word*>(to + i) = word;
    if constexpr (kSums) state = add_word(state, word);
  }
  for (; i < size; ++i) {
    const std::byte byte = from[i];
    if constexpr (kStores) to[i] = byte;
    if constexpr (kSums) state = add_byte(state, static_cast<std::uint32_t>(byte));
  }
  return state;
}
#include "base/memory_kernel_lanes.h"

#undef PAWL_KERNEL_ENTRY
#undef PAWL_KERNEL
}  // namespace neon
#undef PAWL_CRC

constexpr std::array kKernels{
    MemoryKernel{"neon", [] { return (getauxval(AT_HWCAP) & kHasCrc32) != 0; }, &neon::sum, &neon::copy_and_sum,
                 &neon::copy_rows},
};

}  // namespace

std::span<const MemoryKernel> arm_memory_kernels() {
  return kKernels;
}

}  // namespace pawl

#else

namespace pawl {
std::span<const MemoryKernel> arm_memory_kernels() {
  return {};
}
}  // namespace pawl

#endif
