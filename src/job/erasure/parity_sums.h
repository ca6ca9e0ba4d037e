// What the CRC32C of parity must be, from sums that are made where the data are.
//
// CRC32C is linear over exclusive or, so the sum of a parity follows from those of what was added to it. Of a row of ones
// (the first parity) these are the sums of the data, which their slots have anyway. It does not follow from them for other
// coefficients: multiplying in GF(2^8) is linear for the byte's bits, but no multiple in the sum's own field. There whoever
// feeds a parity makes the sum of its bytes times the coefficient, before they go out, and sends it along. So a parity is
// proven where it lies, and against sums that were made where the bytes were born.
// Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pawl::job {

// The CRC32C of the exclusive or of some pieces of `bytes` bytes each, from the CRC32C of each. Of no piece: that of zeros.
[[nodiscard]] std::uint32_t crc32c_of_xor(std::span<const std::uint32_t> sums, std::uint64_t bytes);

// sums[i] becomes the CRC32C of what it is the CRC32C of, followed by coefficients[i] times `data`; 0 to begin with. One pass over
// the data, a page at a time; the products stay in the cache. As many sums as coefficients.
void multiplied_crc32c(std::span<const std::byte> data, std::span<const std::uint8_t> coefficients,
                       std::span<std::uint32_t> sums);

}  // namespace pawl::job
