#include "job/trainer/copy_plan.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "base/memory_kernel.h"

namespace pawl::job {

CopyPlan::CopyPlan(const SeatLayout& layout, std::uint32_t bucket_bytes) {
  std::uint64_t end = 0;
  for (const Lifetime lifetime : {Lifetime::stable, Lifetime::volatile_}) {  // the payload's order
    for (std::uint32_t i = 0; i < layout.entries.size(); ++i) {
      const LayoutEntry& entry = layout.entries[i];
      if (entry.lifetime != lifetime || entry.bytes == 0) continue;
      append(kPadding, entry.payload_offset - end, bucket_bytes);
      append(i, entry.bytes, bucket_bytes);
      end = entry.payload_offset + entry.bytes;
    }
  }
  append(kPadding, layout.payload_bytes - end, bucket_bytes);
  if (filled_ > 0) first_.push_back(ranges_.size());
  first_volatile_bucket_ = layout.stable_bytes == layout.payload_bytes
                               ? bucket_count()
                               : static_cast<std::uint32_t>(layout.stable_bytes / bucket_bytes);
  stable_bucket_count_ = static_cast<std::uint32_t>((layout.stable_bytes + bucket_bytes - 1) / bucket_bytes);
  for (const LayoutEntry& entry : layout.entries) stable_entries_.push_back(entry.lifetime == Lifetime::stable);
}

void CopyPlan::append(std::uint32_t entry, std::uint64_t bytes, std::uint32_t bucket_bytes) {
  for (std::uint64_t offset = 0; offset < bytes;) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes - offset, bucket_bytes - filled_);
    ranges_.push_back({entry, offset, part});
    offset += part;
    filled_ += part;
    if (filled_ == bucket_bytes) {
      first_.push_back(ranges_.size());
      filled_ = 0;
    }
  }
}

const CopyKernel& default_copy_kernel() {
  static const CopyKernel kernel{memory_kernel().name,
                                 [](std::byte* to, const std::byte* from, std::size_t size, std::uint32_t seed) {
                                   return ~memory_kernel().copy_and_sum(to, from, size, ~seed);
                                 }};
  return kernel;
}

std::uint32_t gather(std::span<const EntryRange> ranges, const CopyKernel& kernel, EntryBases from, std::byte* to) {
  std::uint32_t sum = 0;
  for (const EntryRange& range : ranges) {
    if (range.entry == kPadding) {
      std::memset(to, 0, range.bytes);
      sum = crc32c({to, range.bytes}, sum);
    } else {
      sum = kernel.copy(to, from[range.entry] + range.offset, range.bytes, sum);
    }
    to += range.bytes;
  }
  memory_fence();
  return sum;
}

std::uint32_t scatter(std::span<const EntryRange> ranges, const CopyKernel& kernel, const std::byte* from,
                      EntryBases to) {
  std::uint32_t sum = 0;
  for (const EntryRange& range : ranges) {
    sum = range.entry == kPadding ? crc32c({from, range.bytes}, sum)
                                  : kernel.copy(to[range.entry] + range.offset, from, range.bytes, sum);
    from += range.bytes;
  }
  memory_fence();
  return sum;
}

}  // namespace pawl::job
