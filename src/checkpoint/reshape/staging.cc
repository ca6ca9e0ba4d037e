#include "checkpoint/reshape/staging.h"

#include <utility>

#include "checkpoint/reshape/alignment.h"

namespace pawl::checkpoint {

// Ranges that are written past the page cache lie in memory as they lie in the file, counted in kDirectUnit.
std::byte* Staging::take(std::uint64_t bytes, std::uint64_t congruent_to) {
  const std::uint64_t unit = bytes >= kDirectWriteMin ? kDirectUnit : 1;
  const std::uint64_t at = rounded_up(used_, unit) + congruent_to % unit;
  used_ = at + bytes;
  return memory_.data() + at;
}

Status Staging::begin(Slab slab, StagedSlab& out) {
  out.slab = std::move(slab);
  out.ranges.clear();
  out.pieces.clear();
  out.encoded.clear();
  used_ = 0;
  const std::vector<FileRange> ranges = plan_writes(out.slab);
  out.versions.assign(out.slab.parts.size(), nullptr);
  const auto versions_bytes = [&](std::uint32_t part) {
    const PlacedCopy& copy = out.copy_of(part);
    const std::uint64_t elements = volume(out.slab.parts[part].box);
    return copy.source_count > 1 ? elements * size_bits(copy.from) / 8 * copy.source_count : 0;
  };
  std::uint64_t bytes = 0;
  for (const FileRange& range : ranges) bytes += range.end - range.begin;
  for (std::uint32_t i = 0; i < out.slab.parts.size(); ++i) bytes += versions_bytes(i);
  if (bytes == 0) return {};
  const std::uint64_t most = bytes + (bytes / kDirectWriteMin + 1) * 2 * kDirectUnit;
  if (most > bytes_) {  // the first one; later, a slab of one element may pass the limits
    const std::uint64_t wanted = std::max(most, bytes_min_);
    bytes_ = 0;
    PAWL_TRY(memory_.map(wanted));
    bytes_ = wanted;
  }
  for (const FileRange& range : ranges) out.ranges.push_back({range, take(range.end - range.begin, range.begin)});
  for (std::uint32_t i = 0; i < out.slab.parts.size(); ++i) {
    const std::uint64_t size = versions_bytes(i);
    if (size != 0) out.versions[i] = take(size, 0);
  }
  return {};
}

}  // namespace pawl::checkpoint
