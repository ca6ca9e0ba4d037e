// ParityKernel: one processor's way of multiplying and adding many bytes in GF(2^8) (galois.h).
//
// What always holds: all kernels write the same bytes as the portable one, for every size and alignment, and nothing outside
// the given ranges: the page beyond may be unmapped. Of each 64 bytes up to four rows are computed while each source is
// loaded once; more rows go page by page, so each byte of a source comes from memory once. The first of each
// four rows costs no multiplication if it is all ones. Ranges don't overlap.
// Streamed rows bypass the caches, which memory does fastest; memory_fence() (base/memory_kernel.h) orders such stores.
// Thread-safe. Chosen once, at the first use: the best that runs here, or the one that PAWL_PARITY_KERNEL names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace pawl::job {

enum class ParityWrite : std::uint8_t {
  assign,  // through the caches
  stream,  // past them, where all rows lie alike within their lines; else as assign
  add,     // to what is there
};

// to[row][i] = the sum over all sources of coefficients[row * sources + source] * source[i].
struct ParityProduct {
  std::span<const std::byte* const> sources;   // 1 .. 32
  std::span<std::byte* const> to;              // 1 .. 32; rows times sources: at most 256
  std::span<const std::uint8_t> coefficients;  // rows times sources
  std::size_t size = 0;                        // of each
  ParityWrite write = ParityWrite::assign;
};

struct ParityKernel {
  const char* name;
  bool (*runs_here)();
  void (*multiply)(const ParityProduct& product);
  // Besides, copies each source past the caches, and takes its raw CRC32C on from states[source] (as a MemoryKernel does), while
  // each of its bytes is loaded once, with up to four rows (more load it again, from the cache). Whole lines of 64 bytes; copies begin on lines, and so do streamed rows. nullptr: this
  // kernel can't, or not faster than one after the other.
  void (*copy_and_multiply)(const ParityProduct& product, std::span<std::byte* const> copies,
                            std::span<std::uint32_t> states);
};

// Those that run here, the best one first, the portable one last. Never empty.
[[nodiscard]] std::span<const ParityKernel* const> parity_kernels();
// nullptr: there is none of this name, or this processor can't run it.
[[nodiscard]] const ParityKernel* find_parity_kernel(std::string_view name);
// The one in use. If PAWL_PARITY_KERNEL names none that runs here: the best one.
[[nodiscard]] const ParityKernel& parity_kernel();

// Each architecture's, best first: one of the two is empty.
[[nodiscard]] std::span<const ParityKernel> x86_parity_kernels();
[[nodiscard]] std::span<const ParityKernel> arm_parity_kernels();

}  // namespace pawl::job
