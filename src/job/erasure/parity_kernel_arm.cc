#include "job/erasure/parity_kernel_parts.h"

#if defined(__aarch64__)

#include <arm_neon.h>

namespace pawl::job {
namespace {
namespace neon {
#define PAWL_KERNEL __attribute__((always_inline)) PAWL_RACY
#define PAWL_KERNEL_ENTRY __attribute__((noinline)) PAWL_RACY

struct Line {
  uint8x16_t part[4];
};
PAWL_KERNEL inline Line load(const std::byte* from) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  return {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
}
PAWL_KERNEL inline void store(std::byte* to, const Line& line) {
  for (std::size_t i = 0; i < 4; ++i) vst1q_u8(reinterpret_cast<std::uint8_t*>(to) + 16 * i, line.part[i]);
}
PAWL_KERNEL inline void stream(std::byte* to, const Line& line) {
  asm volatile("stnp %q1, %q2, [%0]\n\tstnp %q3, %q4, [%0, #32]" ::"r"(to), "w"(line.part[0]), "w"(line.part[1]),
               "w"(line.part[2]), "w"(line.part[3])
               : "memory");
}
PAWL_KERNEL inline Line nothing() {
  return {{vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)}};
}
PAWL_KERNEL inline void add(Line& sum, const Line& line) {
  PAWL_UNROLLED for (std::size_t i = 0; i < 4; ++i) {
    sum.part[i] = veorq_u8(sum.part[i], line.part[i]);
  }
}
template <std::size_t kRows>
constexpr std::size_t kLinesAtOnce = 1;

using Factor = const NibbleProducts*;
Factor factor_of(std::uint8_t c) {
  return &kNibbleProducts[c];
}
struct Parts {
  Line low, high;
};
PAWL_KERNEL inline Parts parts_of(const Line& line) {
  Parts parts;
  PAWL_UNROLLED for (std::size_t i = 0; i < 4; ++i) {
    parts.low.part[i] = vandq_u8(line.part[i], vdupq_n_u8(15));
    parts.high.part[i] = vshrq_n_u8(line.part[i], 4);
  }
  return parts;
}
PAWL_KERNEL inline void add_product(Line& sum, const Parts& parts, Factor factor) {
  const uint8x16_t low = vld1q_u8(factor->low.data()), high = vld1q_u8(factor->high.data());
  PAWL_UNROLLED for (std::size_t i = 0; i < 4; ++i) {
    const uint8x16_t product = veorq_u8(vqtbl1q_u8(low, parts.low.part[i]), vqtbl1q_u8(high, parts.high.part[i]));
    sum.part[i] = veorq_u8(sum.part[i], product);
  }
}
#include "job/erasure/parity_kernel_lanes.h"

#undef PAWL_KERNEL_ENTRY
#undef PAWL_KERNEL
}  // namespace neon

constexpr std::array kKernels{ParityKernel{"neon", [] { return true; }, &neon::multiply, nullptr}};

}  // namespace

std::span<const ParityKernel> arm_parity_kernels() {
  return kKernels;
}

}  // namespace pawl::job

#else

namespace pawl::job {
std::span<const ParityKernel> arm_parity_kernels() {
  return {};
}
}  // namespace pawl::job

#endif
