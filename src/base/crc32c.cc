#include "base/crc32c.h"

#include <array>

#include "base/crc32c_math.h"
#include "base/memory_kernel.h"

namespace pawl {
namespace {

constexpr std::array<std::uint32_t, 61> zero_bytes() {
  std::array<std::uint32_t, 61> powers{crc32c_power(8)};
  for (std::size_t i = 1; i < powers.size(); ++i) powers[i] = crc32c_multiply(powers[i - 1], powers[i - 1]);
  return powers;
}

// [k]: what 2^k zero bytes behind it multiply a CRC by.
constexpr std::array<std::uint32_t, 61> kZeroBytes = zero_bytes();

}  // namespace

std::uint32_t crc32c_reference(std::span<const std::byte> bytes, std::uint32_t seed) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc32c_byte_tables()[0];
  std::uint32_t state = ~seed;
  for (const std::byte byte : bytes) state = (state >> 8) ^ kTable[(state ^ static_cast<std::uint32_t>(byte)) & 255];
  return ~state;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
  return ~memory_kernel().sum(bytes.data(), bytes.size(), ~seed);
}

// One multiplication for each bit that is set: sizes are often powers of two.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  for (std::size_t bit = 0; first != 0 && second_bytes != 0; ++bit, second_bytes >>= 1)
    if ((second_bytes & 1) != 0) first = crc32c_multiply(kZeroBytes[bit], first);
  return first ^ second;
}

std::uint32_t copy_crc32c(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t seed) {
  const std::uint32_t state = memory_kernel().copy_and_sum(to, from, size, ~seed);
  memory_fence();
  return ~state;
}

}  // namespace pawl
