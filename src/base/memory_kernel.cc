#include "base/memory_kernel.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/memory_kernel_parts.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace pawl {
namespace {

// Eight bytes at a time, by tables (Kounavis and Berry 2005, "slicing-by-8").
constexpr std::array<std::array<std::uint32_t, 256>, 8> kTables = crc32c_byte_tables();

template <bool kStores>
PAWL_RACY inline std::uint32_t run(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t state) {
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    std::array<std::byte, 8> bytes;
    for (std::size_t k = 0; k < 8; ++k) bytes[k] = from[i + k];
    if constexpr (kStores) {
      for (std::size_t k = 0; k < 8; ++k) to[i + k] = bytes[k];
    }
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      const std::uint32_t old = k < 4 ? state >> (8 * k) : 0;
      next ^= kTables[7 - k][(old ^ static_cast<std::uint32_t>(bytes[k])) & 255];
    }
    state = next;
  }
  for (; i < size; ++i) {
    const std::byte byte = from[i];
    if constexpr (kStores) to[i] = byte;
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<std::uint32_t>(byte)) & 255];
  }
  return state;
}

PAWL_RACY __attribute__((noinline)) std::uint32_t portable_sum(const std::byte* from, std::size_t size,
                                                               std::uint32_t state) {
  return run<false>(nullptr, from, size, state);
}

PAWL_RACY __attribute__((noinline)) std::uint32_t portable_copy_and_sum(std::byte* to, const std::byte* from,
                                                                        std::size_t size, std::uint32_t state) {
  return run<true>(to, from, size, state);
}

void portable_copy_rows(const RowCopy& copy) {
  for (std::uint64_t row = 0; row < copy.rows; ++row)
    std::memcpy(copy.to + row * copy.to_stride, copy.from + row * copy.from_stride, copy.bytes);
}

constexpr MemoryKernel kPortable{"portable", [] { return true; }, &portable_sum, &portable_copy_and_sum,
                                 &portable_copy_rows};

struct Kernels {
  std::vector<const MemoryKernel*> here;
  std::string names;
  const MemoryKernel* chosen = nullptr;
};

Kernels find_kernels() {
  Kernels kernels;
  for (const std::span<const MemoryKernel> some : {x86_memory_kernels(), arm_memory_kernels()}) {
    for (const MemoryKernel& kernel : some)
      if (kernel.runs_here()) kernels.here.push_back(&kernel);
  }
  kernels.here.push_back(&kPortable);
  const char* wanted = std::getenv("PAWL_KERNEL");
  for (const MemoryKernel* kernel : kernels.here) {
    if (!kernels.names.empty()) kernels.names += ", ";
    kernels.names += kernel->name;
    if (wanted != nullptr && kernel->name == std::string_view(wanted)) kernels.chosen = kernel;
  }
  if (kernels.chosen == nullptr) kernels.chosen = kernels.here.front();
  return kernels;
}

const Kernels& kernels() {
  static const Kernels found = find_kernels();
  return found;
}

}  // namespace

std::span<const MemoryKernel* const> memory_kernels() {
  return kernels().here;
}

const MemoryKernel* find_memory_kernel(std::string_view name) {
  for (const MemoryKernel* kernel : memory_kernels())
    if (kernel->name == name) return kernel;
  return nullptr;
}

const char* memory_kernel_names() {
  return kernels().names.c_str();
}

const MemoryKernel& memory_kernel() {
  static const MemoryKernel& chosen = *kernels().chosen;
  return chosen;
}

void memory_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace pawl
