#include "job/trainer/copy_plan.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

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
  if (filled_ > 0) first_.push_back(pieces_.size());
  first_volatile_bucket_ = layout.stable_bytes == layout.payload_bytes
                               ? bucket_count()
                               : static_cast<std::uint32_t>(layout.stable_bytes / bucket_bytes);
}

void CopyPlan::append(std::uint32_t entry, std::uint64_t bytes, std::uint32_t bucket_bytes) {
  for (std::uint64_t offset = 0; offset < bytes;) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes - offset, bucket_bytes - filled_);
    pieces_.push_back({entry, offset, part});
    offset += part;
    filled_ += part;
    if (filled_ == bucket_bytes) {
      first_.push_back(pieces_.size());
      filled_ = 0;
    }
  }
}

const CopyKernel& default_copy_kernel() {
  static const CopyKernel kernel{"crc32c", &copy_crc32c};
  return kernel;
}

namespace {

std::uint32_t joined(std::uint32_t sum, bool first, std::uint32_t part, std::uint64_t bytes) {
  return first ? part : crc32c_combine(sum, part, bytes);
}

}  // namespace

std::uint32_t gather(std::span<const Piece> pieces, const CopyKernel& kernel, EntryBases from, std::byte* to) {
  std::uint32_t sum = 0;
  for (const Piece& piece : pieces) {
    std::uint32_t part = 0;
    if (piece.entry == kPadding) {
      std::memset(to, 0, piece.bytes);
      part = crc32c({to, piece.bytes});
    } else {
      part = kernel.copy(to, from[piece.entry] + piece.offset, piece.bytes);
    }
    sum = joined(sum, &piece == pieces.data(), part, piece.bytes);
    to += piece.bytes;
  }
  return sum;
}

std::uint32_t scatter(std::span<const Piece> pieces, const CopyKernel& kernel, const std::byte* from, EntryBases to) {
  std::uint32_t sum = 0;
  for (const Piece& piece : pieces) {
    const std::uint32_t part = piece.entry == kPadding ? crc32c({from, piece.bytes})
                                                       : kernel.copy(to[piece.entry] + piece.offset, from, piece.bytes);
    sum = joined(sum, &piece == pieces.data(), part, piece.bytes);
    from += piece.bytes;
  }
  return sum;
}

}  // namespace pawl::job
