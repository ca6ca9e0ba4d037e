#include "checkpoint/reshape/range_checksums.h"

#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>

#include "base/crc32c.h"
#include "base/text.h"

namespace pawl::checkpoint {
namespace {

// Both kinds start with a register of ones and flip it at the end. Without that they are linear ("plain" below): the
// checksum of a range is the exclusive or of its stretches' plain sums, each moved to its place, and of the register.
constexpr std::uint32_t kOnes = 0xFFFF'FFFF;

std::uint32_t plain_sum(ChecksumKind kind, std::span<const std::byte> bytes) {
  return checksum(kind, bytes, kOnes) ^ kOnes;
}

// The plain sum, followed by so many zeros.
std::uint32_t moved(ChecksumKind kind, std::uint32_t sum, std::uint64_t zeros) {
  if (zeros == 0 || sum == 0) return sum;
  if (kind == ChecksumKind::crc32c) return crc32c_combine(sum, 0, zeros);
  return static_cast<std::uint32_t>(::crc32_combine(sum, 0, static_cast<z_off_t>(zeros)));
}

}  // namespace

std::uint32_t checksum(ChecksumKind kind, std::span<const std::byte> bytes, std::uint32_t seed) {
  if (kind == ChecksumKind::crc32c) return crc32c(bytes, seed);
  const auto* data = reinterpret_cast<const Bytef*>(bytes.data());
  return bytes.empty() ? seed : static_cast<std::uint32_t>(::crc32_z(seed, data, bytes.size()));
}

RangeChecksums::RangeChecksums(std::vector<FileRange> ranges, ChecksumKind kind)
    : kind_(kind), ranges_(std::move(ranges)), shares_(ranges_.size(), 0) {}

Result<RangeChecksums> RangeChecksums::create(std::vector<FileRange> ranges, ChecksumKind kind) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const FileRange& range = ranges[i];
    const bool is_after = i == 0 || ranges[i - 1].file < range.file ||
                          (ranges[i - 1].file == range.file && ranges[i - 1].end <= range.begin);
    if (!is_after || range.begin > range.end)
      return Error{Code::invalid, text("checksums: range ", i, " (file ", range.file, ", ", range.begin, " to ",
                                       range.end, ") does not lie after the one before it")};
  }
  return RangeChecksums(std::move(ranges), kind);
}

void RangeChecksums::add(std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  const std::uint64_t end = offset_bytes + bytes.size();
  auto range = std::ranges::partition_point(
      ranges_, [&](const FileRange& one) { return std::tuple(one.file, one.end) <= std::tuple(file, offset_bytes); });
  for (; range != ranges_.end() && range->file == file && range->begin < end; ++range) {
    const std::uint64_t from = std::max(offset_bytes, range->begin), to = std::min(end, range->end);
    if (from >= to) continue;
    const std::uint32_t sum = plain_sum(kind_, bytes.subspan(from - offset_bytes, to - from));
    std::atomic_ref<std::uint32_t> share(shares_[static_cast<std::size_t>(range - ranges_.begin())]);
    share.fetch_xor(moved(kind_, sum, range->end - to), std::memory_order_relaxed);
  }
}

WriteObserver RangeChecksums::observer() {
  return [this](std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
    add(file, offset_bytes, bytes);
  };
}

Result<std::uint32_t> RangeChecksums::value_of(const FileRange& range) const {
  const auto found = std::ranges::lower_bound(ranges_, range);
  if (found == ranges_.end() || *found != range)
    return Error{Code::not_found,
                 text("checksums: no range of file ", range.file, ", ", range.begin, " to ", range.end)};
  return value_at(static_cast<std::size_t>(found - ranges_.begin()));
}

std::uint32_t RangeChecksums::value_at(std::size_t index) const {
  const FileRange& range = ranges_[index];
  return shares_[index] ^ moved(kind_, kOnes, range.end - range.begin) ^ kOnes;
}

}  // namespace pawl::checkpoint
