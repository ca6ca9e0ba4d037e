// Copies of boxes between strided places in memory: the inner loops of the executor.
//
// Any box, any strides (0 too), any address, with casts and byte order on the way. Long rows that are contiguous at
// both ends are stored past the cache, several at a time (base/memory_kernel.h); everything else is copied as it comes.
// Both ends hold whole elements of whole bytes, and don't overlap. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/box.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

struct BoxCopy {
  std::uint32_t dimensions = 0;
  PerDimension size{};
  const std::byte* from = nullptr;  // the first element
  PerDimension from_stride{};       // in bytes
  ElementType from_type = ElementType::uint8;
  ElementType by_type = ElementType::uint8;  // what is read is rounded to this first: from_type, or can_cast to and fro
  bool swapped = false;                      // `from` is in the other byte order
  std::byte* to = nullptr;
  PerDimension to_stride{};
  ElementType to_type = ElementType::uint8;
};

// Returns how many finite numbers became infinite (checkpoint/reshape/cast.h). can_cast.
// Others may see what it has stored only after memory_fence() (base/memory_kernel.h).
[[nodiscard]] std::uint64_t copy_box(const BoxCopy& copy);

// Turns the byte order of `size_bytes` bytes, which are whole elements.
void swap_bytes(ElementType type, std::byte* bytes, std::size_t size_bytes);

}  // namespace pawl::checkpoint
