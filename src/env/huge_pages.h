// Large tables in huge pages: the first touch of a small page costs more than what is written there.
//
// Advice, and best effort: a system that doesn't allow it gives small pages. Pages that nobody touches stay free.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pawl {

// For memory of `bytes` from `begin` on that has just been reserved. Small tables stay as they are.
inline void prefer_huge_pages(const void* begin, std::size_t bytes) {
  constexpr std::size_t kWorthwhileBytes = 4 << 20;
  constexpr std::uintptr_t kPageBytes = 4096;
  if (bytes < kWorthwhileBytes) return;
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(begin) + kPageBytes - 1) & ~(kPageBytes - 1);
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(begin) + bytes) & ~(kPageBytes - 1);
  (void)::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

template <class Element>
void prefer_huge_pages(const std::vector<Element>& reserved) {
  prefer_huge_pages(reserved.data(), reserved.capacity() * sizeof(Element));
}

}  // namespace pawl
