// Numbers: what elements of any type are worth, compared and counted. For diff and verify.
//
// Pure. Buffers are dense, little-endian, at any address. Complex elements count as two numbers, of eight-bit floats
// each byte is one; packed types and those without a meaning of their own (bits8, quint4x2) are compared as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/element_type.h"

namespace pawl::checkpoint {

struct NumberDifference {
  std::uint64_t compared = 0;   // elements
  std::uint64_t differing = 0;  // by value, beyond the tolerance; NaN against a number always
  std::uint64_t nan_on_one_side = 0;
  std::uint64_t bits_only = 0;  // equal in value, of one type, and not in bits: the sign of zero, a NaN's payload
  double largest = 0;           // absolute, of numbers; infinity where one side is
  std::uint64_t at = 0;         // the element where that is; without numbers that differ, the first that differs
  double a = 0, b = 0;          // the numbers there
  bool is_valued = true;        // false: these types are compared as bytes, and have no largest difference
};

// Whether elements of these two types can be compared: numbers with numbers, the rest with their own type only.
[[nodiscard]] bool can_compare(ElementType a, ElementType b);

// Compares `count` elements, of which the first is element `first` of the tensor, and adds what it finds. can_compare.
// Of packed types `count` is in bytes of the buffers.
void compare(ElementType a_type, std::span<const std::byte> a, ElementType b_type, std::span<const std::byte> b,
             std::uint64_t count, std::uint64_t first, double tolerance, NumberDifference& out);

struct SpecialNumbers {
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
};
// Counts those among floating-point and complex elements; of other types there are none.
void count_special(ElementType type, std::span<const std::byte> elements, SpecialNumbers& out);

}  // namespace pawl::checkpoint
