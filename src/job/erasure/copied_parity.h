// Copy, CRC32C and parity in one pass, where parity is made beside the data: bytes come from memory once.
//
// What always holds: copies and sums are those of copy_crc32c (base/crc32c.h), parities those of parity.h. Of what fails, nothing
// was written. Sources, copies and parities don't overlap. All are ordered before any later store of this thread.
// The source has to stand still: it is copied in pieces, and parity may be made from a piece in the cache, a moment later. If somebody writes it meanwhile, the parity's sum is not the one that follows from the copies' (parity_sums.h).
// PAWL_KERNEL is not looked at where PAWL_PARITY_KERNEL's loop copies, too.
// The caller owns all memory. Thread-safe where no two calls write the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "job/erasure/parity.h"

namespace pawl::job {

struct FragmentCopy {
  FragmentBytes from;
  FragmentRoom to;
  std::uint32_t sum = 0;  // the CRC32C of what came before these bytes
};

// Copies one data fragment, and contributes it as contribute() does; for data that come one after the other. A parity is then
// read and written once for each: where all data are there, encode_copied() moves fewer bytes.
// The copy's CRC32C, after what copy.sum is of. Fails: as contribute(); `invalid` if the copy has another size than its source.
[[nodiscard]] Result<std::uint32_t> contribute_copied(const ErasureCode& code, std::uint32_t data_index,
                                                      const FragmentCopy& copy, std::span<const ParityRoom> rooms,
                                                      Contribution contribution);

// Copies all k data fragments and encodes their parities. The sum of each goes on.
// Fails: as encode(); `invalid` if a copy has another size than its source.
[[nodiscard]] Status encode_copied(const ErasureCode& code, std::span<FragmentCopy> copies,
                                   std::span<const FragmentRoom> parities);

}  // namespace pawl::job
