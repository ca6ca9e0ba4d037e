// Buckets between slots and a GPU's entries, by way of a lane's pieces (job/trainer/gpu.h). A piece holds buckets one after
// another, as the payload does, so an entry's bytes in neighbouring buckets are one copy. Entries in host memory are
// copied straight, as without a GPU.
// Not thread-safe: one thread's, as its lane.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "job/snapshot/arena.h"
#include "job/trainer/copy_plan.h"
#include "job/trainer/gpu.h"

namespace pawl::job {

// From the GPU. Buckets are asked for ahead, as many as the pieces hold, and taken in the order in which they were asked for.
class GpuBucketReader {
 public:
  GpuBucketReader(const CopyPlan& plan, EntryBases from, const Gpu& gpu, GpuLane& lane, std::uint32_t bucket_bytes)
      : plan_(plan),
        from_(from),
        gpu_(gpu),
        lane_(lane),
        bucket_bytes_(bucket_bytes),
        buckets_per_piece_(static_cast<std::uint32_t>(lane.piece_bytes() / bucket_bytes)) {}

  // How many buckets one call of ask() takes at most; at least 1.
  [[nodiscard]] std::uint32_t buckets_per_piece() const { return buckets_per_piece_; }
  [[nodiscard]] bool may_ask() const { return asked_ - taken_ < GpuLane::kPieces; }
  // The GPU begins to copy these buckets. Requires may_ask().
  [[nodiscard]] Status ask(std::uint32_t first, std::uint32_t count);
  [[nodiscard]] bool has_asked() const { return taken_ < asked_; }
  // Waits for the buckets that were asked for first: gather() may take these. Requires has_asked().
  struct Batch {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };
  [[nodiscard]] Result<Batch> next();
  // A bucket of the last batch to `to`; as gather of copy_plan.h.
  [[nodiscard]] std::uint32_t gather(std::uint32_t bucket, const CopyKernel& kernel, std::byte* to) const;
  void done() { ++taken_; }  // with the last batch: its piece may be filled again

 private:
  const CopyPlan& plan_;
  const EntryBases from_;
  const Gpu& gpu_;
  GpuLane& lane_;
  const std::uint32_t bucket_bytes_;
  const std::uint32_t buckets_per_piece_;
  std::array<Batch, GpuLane::kPieces> batches_;
  std::uint64_t asked_ = 0, taken_ = 0;  // batches
  std::vector<GpuRange> ranges_;
};

// To the GPU. Bytes reach it only after their bucket's sum was found right.
class GpuBucketWriter {
 public:
  GpuBucketWriter(const CopyPlan& plan, EntryBases to, const Gpu& gpu, GpuLane& lane)
      : plan_(plan), to_(to), gpu_(gpu), lane_(lane) {}

  // Fails: `corrupt` if the sum of the bytes isn't `crc32c`; `io`.
  [[nodiscard]] Status put(std::uint32_t bucket, std::span<const std::byte> from, std::uint32_t crc32c);
  // What was put is on its way / is there.
  [[nodiscard]] Status flush();
  [[nodiscard]] Status finish();

 private:
  const CopyPlan& plan_;
  const EntryBases to_;
  const Gpu& gpu_;
  GpuLane& lane_;
  std::uint32_t piece_ = 0;
  std::uint64_t filled_ = 0;  // of that piece
  std::vector<GpuRange> ranges_;
};

}  // namespace pawl::job
