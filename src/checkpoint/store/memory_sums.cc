#include "checkpoint/store/memory_sums.h"

#include <algorithm>
#include <limits>

#include "base/crc32c.h"
#include "base/text.h"

namespace pawl::checkpoint {
namespace {

std::uint64_t address(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at);
}

}  // namespace

const std::byte* bucket_end(const MemorySums& sums, const std::byte* at) {
  const std::byte* const begin = sums.memory.data();
  const std::uint64_t size = sums.memory.size();
  if (sums.bucket_bytes == 0 || size == 0 || address(at) >= address(begin) + size)
    return reinterpret_cast<const std::byte*>(std::numeric_limits<std::uintptr_t>::max());
  if (address(at) < address(begin)) return begin;
  const std::uint64_t bucket = (address(at) - address(begin)) / sums.bucket_bytes;
  return begin + std::min(size, (bucket + 1) * sums.bucket_bytes);
}

Status prove(const MemorySums& sums, std::vector<SummedRange> known) {
  const std::uint64_t size = sums.memory.size(), unit = sums.bucket_bytes;
  const std::uint64_t count = unit == 0 ? 0 : size / unit + (size % unit != 0 ? 1 : 0);
  if (count != sums.crc32c.size() || (unit == 0 && size != 0))
    return Error{Code::invalid, text(sums.crc32c.size(), " sums for ", count, " buckets")};
  std::ranges::sort(known, {}, [](const SummedRange& one) { return address(one.memory); });
  auto next = known.begin();
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::byte* at = sums.memory.data() + i * unit;
    const std::byte* const end = sums.memory.data() + std::min(size, (i + 1) * unit);
    std::uint32_t crc = 0;
    const auto read_until = [&](const std::byte* to) {
      crc = crc32c({at, to}, crc);
      at = to;
    };
    for (; next != known.end() && address(next->memory) < address(end); ++next) {
      const bool is_ahead = address(next->memory) >= address(at);
      if (!is_ahead || next->size_bytes > address(end) - address(next->memory)) continue;
      read_until(next->memory);
      crc = crc32c_combine(crc, next->crc32c, next->size_bytes);
      at += next->size_bytes;
    }
    read_until(end);
    if (crc != sums.crc32c[i])
      return Error{Code::corrupt,
                   text("bucket ", i, " of the memory: its checksum differs from that which it was sealed with")};
  }
  return {};
}

}  // namespace pawl::checkpoint
