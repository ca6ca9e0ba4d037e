#include "job/trainer/copy_plan.h"

#include <algorithm>

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
  return gather_from(ranges, kernel, to,
                     [&](const EntryRange& range, std::uint64_t) { return from[range.entry] + range.offset; });
}

std::uint32_t scatter(std::span<const EntryRange> ranges, const CopyKernel& kernel, const std::byte* from,
                      EntryBases to) {
  return scatter_to(ranges, kernel, from,
                    [&](const EntryRange& range, std::uint64_t) { return to[range.entry] + range.offset; });
}

}  // namespace pawl::job
