#include "job/erasure/parity_kernel.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "job/erasure/galois.h"

namespace pawl::job {
namespace {

void add_product(std::byte* to, const std::byte* from, std::size_t size, std::uint8_t coefficient) {
  if (coefficient == 1) {
    for (std::size_t i = 0; i < size; ++i) to[i] ^= from[i];
    return;
  }
  const NibbleProducts& products = kNibbleProducts[coefficient];
  for (std::size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<std::uint8_t>(from[i]);
    to[i] ^= static_cast<std::byte>(products.low[byte & 15] ^ products.high[byte >> 4]);
  }
}

void portable_multiply(const ParityProduct& product) {
  constexpr std::size_t kPageBytes = 4096;  // a row's page stays in the cache until all sources are added
  for (std::size_t at = 0; at < product.size; at += kPageBytes) {
    const std::size_t size = product.size - at < kPageBytes ? product.size - at : kPageBytes;
    for (std::size_t row = 0; row < product.to.size(); ++row) {
      if (product.write != ParityWrite::add) std::memset(product.to[row] + at, 0, size);
      for (std::size_t source = 0; source < product.sources.size(); ++source)
        add_product(product.to[row] + at, product.sources[source] + at, size,
                    product.coefficients[row * product.sources.size() + source]);
    }
  }
}

constexpr ParityKernel kPortableParity{"portable", [] { return true; }, &portable_multiply, nullptr};

struct ParityKernels {
  std::vector<const ParityKernel*> here;
  const ParityKernel* chosen = nullptr;
};

ParityKernels find_kernels() {
  ParityKernels kernels;
  for (const std::span<const ParityKernel> some : {x86_parity_kernels(), arm_parity_kernels()}) {
    for (const ParityKernel& kernel : some)
      if (kernel.runs_here()) kernels.here.push_back(&kernel);
  }
  kernels.here.push_back(&kPortableParity);
  const char* wanted = std::getenv("PAWL_PARITY_KERNEL");
  for (const ParityKernel* kernel : kernels.here)
    if (wanted != nullptr && kernel->name == std::string_view(wanted)) kernels.chosen = kernel;
  if (kernels.chosen == nullptr) kernels.chosen = kernels.here.front();
  return kernels;
}

const ParityKernels& kernels() {
  static const ParityKernels found = find_kernels();
  return found;
}

}  // namespace

std::span<const ParityKernel* const> parity_kernels() {
  return kernels().here;
}

const ParityKernel* find_parity_kernel(std::string_view name) {
  for (const ParityKernel* kernel : parity_kernels())
    if (kernel->name == name) return kernel;
  return nullptr;
}

const ParityKernel& parity_kernel() {
  return *kernels().chosen;
}

}  // namespace pawl::job
