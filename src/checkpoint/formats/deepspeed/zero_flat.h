// ZeroFlat: where the elements of parameters lie in the flat partitions that DeepSpeed's optimizers keep.
//
// ZeRO-1, ZeRO-2 and BF16_Optimizer join the parameters of a group, some elements of gap after each, pad the end, and
// give each rank an interval of one size. ZeRO-3 cuts each parameter by itself into equal parts and joins a rank's
// parts; what passes a parameter's end is padding. Padding and gaps are in no fragment: their bytes mean nothing.
// Pure. Sizes come from files and may be anything, so sums are checked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace pawl::checkpoint::deepspeed {

// Elements [begin, begin + count) of a parameter, row-major, lie at `at` of the rank's flat tensor. Never empty.
struct FlatFragment {
  std::uint32_t parameter = 0;  // which of those given
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
  std::uint64_t at = 0;
  bool operator==(const FlatFragment&) const = default;
};

// Where each parameter begins in the joined group, and where the last one's gap ends. `gaps` is empty or has one number
// for each. Fails: `corrupt` if a sum passes 2^63.
[[nodiscard]] Result<std::vector<std::uint64_t>> group_offsets(std::span<const std::uint64_t> counts,
                                                               std::span<const std::uint64_t> gaps);

// What rank `rank` holds when each holds `partition_size` elements of the joined group. `offsets` as group_offsets
// gives it. Cost: what it returns, and a search.
[[nodiscard]] std::vector<FlatFragment> fragments_of_partition(std::span<const std::uint64_t> counts,
                                                               std::span<const std::uint64_t> offsets,
                                                               std::uint64_t partition_size, std::uint64_t rank);

// How many elements of the group lie in that partition, gaps included: the rest of it is padding.
[[nodiscard]] std::uint64_t real_size(std::uint64_t group_size, std::uint64_t partition_size, std::uint64_t rank);

// ZeRO-3: elements that each of `world` ranks keeps of a parameter, padding included.
[[nodiscard]] inline std::uint64_t part_size(std::uint64_t count, std::uint64_t world) {
  return count / world + (count % world != 0 ? 1 : 0);
}

// ZeRO-3: what the flat tensor of `rank` holds of these parameters.
[[nodiscard]] std::vector<FlatFragment> fragments_of_parts(std::span<const std::uint64_t> counts, std::uint64_t world,
                                                           std::uint64_t rank);

// ZeRO-3: how many of `counts`, from the first on, fill a flat tensor of `flat_size` elements. Those without elements
// go with what is before them. Fails: `corrupt` if none end where it ends.
[[nodiscard]] Result<std::size_t> parameters_in(std::span<const std::uint64_t> counts, std::uint64_t world,
                                                std::uint64_t flat_size);

}  // namespace pawl::checkpoint::deepspeed
