#include "checkpoint/formats/deepspeed/zero_flat.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {

Result<std::vector<std::uint64_t>> group_offsets(std::span<const std::uint64_t> counts,
                                                 std::span<const std::uint64_t> gaps) {
  if (!gaps.empty() && gaps.size() != counts.size())
    return Error{Code::corrupt, text(gaps.size(), " alignment gaps for ", counts.size(), " parameters")};
  std::vector<std::uint64_t> offsets = {0};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::uint64_t next = 0;
    if (__builtin_add_overflow(offsets.back(), counts[i], &next) ||
        (!gaps.empty() && __builtin_add_overflow(next, gaps[i], &next)) || next >> 63 != 0)
      return Error{Code::corrupt, "the parameters of a group have more than 2^63 elements"};
    offsets.push_back(next);
  }
  return offsets;
}

std::vector<FlatFragment> fragments_of_partition(std::span<const std::uint64_t> counts,
                                                 std::span<const std::uint64_t> offsets, std::uint64_t partition_size,
                                                 std::uint64_t rank) {
  std::vector<FlatFragment> out;
  std::uint64_t begin = 0;
  if (partition_size == 0 || __builtin_mul_overflow(partition_size, rank, &begin) || begin >= offsets.back())
    return out;
  const std::uint64_t end = begin + std::min(partition_size, offsets.back() - begin);
  // The last parameter that begins at or before `begin`; those without elements before it don't matter.
  std::size_t i = static_cast<std::size_t>(std::ranges::upper_bound(offsets, begin) - offsets.begin()) - 1;
  for (; i < counts.size() && offsets[i] < end; ++i) {
    const std::uint64_t first = std::max(begin, offsets[i]);
    const std::uint64_t last = std::min(end, offsets[i] + counts[i]);
    if (first < last) out.push_back({static_cast<std::uint32_t>(i), first - offsets[i], last - first, first - begin});
  }
  return out;
}

std::uint64_t real_size(std::uint64_t group_size, std::uint64_t partition_size, std::uint64_t rank) {
  std::uint64_t begin = 0;
  if (__builtin_mul_overflow(partition_size, rank, &begin) || begin >= group_size) return 0;
  return std::min(partition_size, group_size - begin);
}

std::vector<FlatFragment> fragments_of_parts(std::span<const std::uint64_t> counts, std::uint64_t world,
                                             std::uint64_t rank) {
  std::vector<FlatFragment> out;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::uint64_t part = part_size(counts[i], world);
    const std::uint64_t real = real_size(counts[i], part, rank);
    if (real != 0) out.push_back({static_cast<std::uint32_t>(i), part * rank, real, at});
    at += part;
  }
  return out;
}

Result<std::size_t> parameters_in(std::span<const std::uint64_t> counts, std::uint64_t world, std::uint64_t flat_size) {
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i <= counts.size(); ++i) {
    const std::uint64_t part = i == counts.size() ? 0 : part_size(counts[i], world);
    if (filled == flat_size && (i == counts.size() || part != 0)) return i;
    if (i == counts.size() || part > flat_size - filled) break;
    filled += part;
  }
  return Error{Code::corrupt, text("parts of the parameters over ", world, " ranks don't add up to ", flat_size,
                                   " elements: another world size, or another model's file")};
}

}  // namespace pawl::checkpoint::deepspeed
