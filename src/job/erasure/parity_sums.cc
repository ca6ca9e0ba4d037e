#include "job/erasure/parity_sums.h"

#include <algorithm>
#include <array>

#include "base/crc32c.h"
#include "base/crc32c_math.h"
#include "job/erasure/parity_kernel.h"

namespace pawl::job {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kProductsAtOnce = 4;

std::uint32_t crc32c_of_zeros(std::uint64_t bytes) {
  return ~crc32c_multiply(crc32c_power(8 * bytes), ~0U);
}

void add_products(std::span<const std::byte> page, std::span<const std::uint8_t> coefficients,
                  std::span<std::uint32_t> sums) {
  alignas(64) std::array<std::byte, kProductsAtOnce * kPageBytes> products;
  std::array<std::byte*, kProductsAtOnce> rows{};
  for (std::size_t i = 0; i < coefficients.size(); ++i) rows[i] = products.data() + i * kPageBytes;
  const std::byte* const source = page.data();
  parity_kernel().multiply({std::span(&source, 1), std::span(rows).first(coefficients.size()), coefficients,
                            page.size(), ParityWrite::assign});
  for (std::size_t i = 0; i < coefficients.size(); ++i) sums[i] = crc32c({rows[i], page.size()}, sums[i]);
}

}  // namespace

std::uint32_t crc32c_of_xor(std::span<const std::uint32_t> sums, std::uint64_t bytes) {
  // A sum is linear but for what its seed and its final inversion add, which is the sum of zeros: once in each of them.
  std::uint32_t all = sums.size() % 2 == 0 ? crc32c_of_zeros(bytes) : 0;
  for (const std::uint32_t sum : sums) all ^= sum;
  return all;
}

void multiplied_crc32c(std::span<const std::byte> data, std::span<const std::uint8_t> coefficients,
                       std::span<std::uint32_t> sums) {
  for (std::size_t at = 0; at < data.size(); at += kPageBytes) {
    const std::span<const std::byte> page = data.subspan(at, std::min(kPageBytes, data.size() - at));
    for (std::size_t first = 0; first < coefficients.size(); first += kProductsAtOnce) {
      const std::size_t count = std::min(kProductsAtOnce, coefficients.size() - first);
      add_products(page, coefficients.subspan(first, count), sums.subspan(first, count));
    }
  }
}

}  // namespace pawl::job
