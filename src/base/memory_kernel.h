// MemoryKernel: one processor's way of moving many bytes, and of summing them (CRC32C) in the same pass.
//
// What always holds: all kernels answer what the portable one answers, and write the same bytes. Each byte of a source is
// loaded once, so the sum is that of the bytes stored, also while somebody writes the source. Nothing outside the given
// ranges is touched: the page beyond may be unmapped. Ranges don't overlap.
// Large pieces (from 1 KiB where they are summed, rows from 2 KiB) bypass the caches (streaming stores), four pages in turn, a whole line of each: that is what the memory
// does fastest. Such stores may become visible late: memory_fence() orders them before any later store of the thread.
// Sums here are raw: neither seed nor result is inverted (base/crc32c.h does that).
// Thread-safe. Chosen once, at the first use: the best that runs here, or the one that PAWL_KERNEL names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace pawl {

// `rows` rows of `bytes` bytes; a row begins `stride` bytes after the one before it.
struct RowCopy {
  std::byte* to = nullptr;
  std::uint64_t to_stride = 0;
  const std::byte* from = nullptr;
  std::uint64_t from_stride = 0;
  std::size_t bytes = 0;
  std::uint64_t rows = 1;
};

struct MemoryKernel {
  const char* name;
  bool (*runs_here)();
  std::uint32_t (*sum)(const std::byte* from, std::size_t size, std::uint32_t state);
  std::uint32_t (*copy_and_sum)(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t state);
  void (*copy_rows)(const RowCopy& copy);
};

// Those that run here, the best one first, the portable one last. Never empty.
[[nodiscard]] std::span<const MemoryKernel* const> memory_kernels();
// nullptr: there is none of this name, or this processor can't run it.
[[nodiscard]] const MemoryKernel* find_memory_kernel(std::string_view name);
// "avx512-vpclmul, avx512, ..., portable": those that run here.
[[nodiscard]] const char* memory_kernel_names();
// The one in use. If PAWL_KERNEL names none that runs here, the best one (a trainer that attaches, and `pawl doctor`, say so).
[[nodiscard]] const MemoryKernel& memory_kernel();

// What this thread has stored so far is visible to others before what it stores from now on.
void memory_fence();

// Each architecture's, best first: one of the two is empty.
[[nodiscard]] std::span<const MemoryKernel> x86_memory_kernels();
[[nodiscard]] std::span<const MemoryKernel> arm_memory_kernels();

}  // namespace pawl
