#include "job/trainer/gpu_copies.h"

#include "base/text.h"

namespace pawl::job {

Status GpuBucketReader::ask(std::uint32_t first, std::uint32_t count) {
  const auto piece = static_cast<std::uint32_t>(asked_ % GpuLane::kPieces);
  ranges_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint64_t offset = std::uint64_t{i} * bucket_bytes_;
    for (const EntryRange& range : plan_.bucket(first + i)) {
      if (gpu_.holds(range.entry))
        append(ranges_, {range.entry, from_[range.entry] + range.offset, offset, range.bytes});
      offset += range.bytes;
    }
  }
  batches_[piece] = {first, count};
  ++asked_;
  return lane_.read(piece, ranges_);
}

Result<GpuBucketReader::Batch> GpuBucketReader::next() {
  const auto piece = static_cast<std::uint32_t>(taken_ % GpuLane::kPieces);
  PAWL_TRY(lane_.wait(piece));
  return batches_[piece];
}

std::uint32_t GpuBucketReader::gather(std::uint32_t bucket, const CopyKernel& kernel, std::byte* to) const {
  const auto piece = static_cast<std::uint32_t>(taken_ % GpuLane::kPieces);
  const std::byte* copied = lane_.piece(piece) + std::uint64_t{bucket - batches_[piece].first} * bucket_bytes_;
  return gather_from(plan_.bucket(bucket), kernel, to, [&](const EntryRange& range, std::uint64_t offset) {
    return gpu_.holds(range.entry) ? copied + offset : from_[range.entry] + range.offset;
  });
}

Status GpuBucketWriter::put(std::uint32_t bucket, std::span<const std::byte> from, std::uint32_t crc32c) {
  if (filled_ + from.size() > lane_.piece_bytes()) PAWL_TRY(flush());
  if (filled_ == 0) PAWL_TRY(lane_.wait(piece_));
  std::byte* piece = lane_.piece(piece_) + filled_;
  const std::uint32_t sum = scatter_to(
      plan_.bucket(bucket), default_copy_kernel(), from.data(), [&](const EntryRange& range, std::uint64_t offset) {
        return gpu_.holds(range.entry) ? piece + offset : to_[range.entry] + range.offset;
      });
  if (sum != crc32c) return Error{Code::corrupt, text("bucket ", bucket, ": checksum differs")};
  std::uint64_t offset = filled_;
  for (const EntryRange& range : plan_.bucket(bucket)) {
    if (gpu_.holds(range.entry)) append(ranges_, {range.entry, to_[range.entry] + range.offset, offset, range.bytes});
    offset += range.bytes;
  }
  filled_ += from.size();
  return {};
}

Status GpuBucketWriter::flush() {
  if (filled_ == 0) return {};
  PAWL_TRY(lane_.write(piece_, ranges_));
  ranges_.clear();
  filled_ = 0;
  piece_ = (piece_ + 1) % GpuLane::kPieces;
  return {};
}

Status GpuBucketWriter::finish() {
  PAWL_TRY(flush());
  return lane_.wait_for_all();
}

}  // namespace pawl::job
