// Parity: encoding fragments, adding contributions to parity, rebuilding what is lost.
//
// What always holds: one pass over all sources, by the best kernel of this processor (parity_kernel.h). Of what fails, nothing
// was written. Fragments of one call are equally long and don't overlap. What is written is
// ordered before any later store of this thread; what encode() and decode() write bypasses the caches if it is long.
// The caller owns all memory. Thread-safe where no two calls write the same bytes.
// Does not check bytes: whoever has their sums does (parity_sums.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "job/erasure/erasure_code.h"

namespace pawl::job {

using FragmentBytes = std::span<const std::byte>;
using FragmentRoom = std::span<std::byte>;

// Fails: `invalid` if there are not k data and m parities, or their sizes differ.
[[nodiscard]] Status encode(const ErasureCode& code, std::span<const FragmentBytes> data,
                            std::span<const FragmentRoom> parities);

struct ParityRoom {
  std::uint32_t parity = 0;  // which of the code's
  FragmentRoom bytes;
};
enum class Contribution : std::uint8_t {
  first,    // what is in the room doesn't matter
  further,  // added to it
};
// Adds what data fragment `data_index` contributes to these parities: coefficient times data. In any order of the fragments, and
// for any part of their bytes, so a parity can be filled as its data come. Once all k have contributed it is what encode()
// writes; a fragment that never does counts as zeros.
// Not idempotent: the same contribution a second time takes it out again, since it is its own negative. Whoever can't tell
// whether one has arrived begins again with `first`.
// Fails: `invalid` if there is no such fragment or parity, or sizes differ.
[[nodiscard]] Status contribute(const ErasureCode& code, std::uint32_t data_index, FragmentBytes data,
                                std::span<const ParityRoom> rooms, Contribution contribution);

// Rebuilds plan.rebuilt from plan.sources, each in the plan's order.
// Fails: `invalid` if there are more or fewer than the plan names, or sizes differ.
[[nodiscard]] Status decode(const DecodePlan& plan, std::span<const FragmentBytes> sources,
                            std::span<const FragmentRoom> rebuilt);

}  // namespace pawl::job
