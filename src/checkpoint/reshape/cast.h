// Casts among float32, float16 and bfloat16, and the mean of versions.
//
// Casts to fewer bits round to nearest, ties to even. NaN stays NaN (with its sign and as much of its payload as fits),
// infinity stays infinity. A cast that does arithmetic makes a NaN quiet; only bfloat16 to float32 does none. A finite
// number too large for the target becomes infinity, and is counted, so that the caller can report it. The functions of
// one element are the reference. cast and average give the same bits in blocks, by the CPU's own conversions if it has
// them (chosen at run time). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

[[nodiscard]] float float32_of_float16(std::uint16_t bits);
[[nodiscard]] float float32_of_bfloat16(std::uint16_t bits);
[[nodiscard]] std::uint16_t float16_of(float value);
[[nodiscard]] std::uint16_t bfloat16_of(float value);

// One element, little-endian, as a number. Nothing where `bytes` are not just that, or the type is no plain number.
[[nodiscard]] std::optional<double> number_of(ElementType type, std::string_view bytes);

// Between equal dtypes, and among float32, float16 and bfloat16.
[[nodiscard]] bool can_cast(ElementType from, ElementType to);
// The three above and float64.
[[nodiscard]] bool can_average(ElementType dtype);

// Casts the elements in `from` to `to`; both hold the same number of them, at any address, without overlap. can_cast.
// Returns how many finite numbers became infinite.
[[nodiscard]] std::uint64_t cast(ElementType from_dtype, std::span<const std::byte> from, ElementType to_dtype,
                                 std::span<std::byte> to);

// The arithmetic mean of `versions`, which are `count` elements each, into `to`: summed in the given order and divided
// in the tensor's own dtype, so a 16-bit sum is rounded after each step. can_average; at least one version. That is
// what torch's sum(versions) / len(versions) does, by which DeepSpeed makes one of the copies of its tensor-parallel
// ranks; each role by itself, so a 16-bit weight need not be its rounded master.
void average(ElementType dtype, std::span<const std::byte* const> versions, std::size_t count, std::byte* to);

}  // namespace pawl::checkpoint
