// WindowCheck: finds out whether stable state was written while a window was open, by its bytes.
//
// Whoever writes stable state in an open window makes the snapshot one of no step: some buckets are from before the
// write, others from after it, and every checksum is right. Two looks find it, and each of them names the entry:
// begin() takes the sums of some buckets when the window opens, and find_write() takes them again: it finds any write
// to those buckets, before or after they were copied. find_difference() compares a whole copy with the memory that it
// was made from: it finds any write after the copy.
// What both miss: a write that puts the same bytes back, and one before the copy to a bucket of which no sum was taken.
// Where something lies on a GPU, a look waits until its stream has come to it, unless `stops` answers true: then nothing is
// found.
// Not thread-safe: begin and find_write are the training thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "job/snapshot/arena.h"
#include "job/trainer/copy_plan.h"
#include "job/trainer/gpu.h"

namespace pawl::job {

// Index of an entry of the layout.
using WrittenEntry = std::optional<std::uint32_t>;

class WindowCheck {
 public:
  using Stops = std::function<bool()>;

  // All must outlive this object. `seed`: which buckets are looked at. `gpu`: where some entries lie; may be nullptr.
  WindowCheck(const CopyPlan& plan, EntryBases bases, std::uint64_t seed, Gpu* gpu = nullptr)
      : plan_(plan), bases_(bases), random_state_(seed), gpu_(gpu) {}

  // Takes the sums of `bucket_count` buckets (all of the stable ones if there are no more) from one drawn by chance on,
  // spread evenly. Reads that many buckets. Entries on a GPU are left out unless `gpus` says otherwise: to read them the
  // training thread waits for all that the GPU still has to do.
  // Fails: `io`, `invalid`: what the GPU or its driver says.
  enum class Gpus { skipped, read };
  [[nodiscard]] Status begin(std::uint32_t bucket_count, Gpus gpus = Gpus::skipped, const Stops& stops = never);
  // The first entry of those buckets whose bytes are not what they were. The same window may be asked again.
  // Fails as begin.
  [[nodiscard]] Result<WrittenEntry> find_write(const Stops& stops = never) const;
  // The first stable entry that isn't what its copy in `slot` is. Reads all stable state (on a GPU as it is when find_write
  // was called), and the slot, unless `stops` answers true, which is asked before each bucket.
  [[nodiscard]] Result<WrittenEntry> find_difference(const Slot& slot, const Stops& stops) const;

 private:
  struct RangeSum {
    EntryRange range;
    std::uint32_t sum;
  };
  static bool never() { return false; }
  // Its bytes as they are now, in `scratch` if they lie on a GPU.
  [[nodiscard]] Result<const std::byte*> bytes_of(const EntryRange& range, std::vector<std::byte>& scratch) const;
  [[nodiscard]] Result<std::uint32_t> sum_of(const EntryRange& range, std::vector<std::byte>& scratch) const;
  [[nodiscard]] bool on_gpu(const EntryRange& range) const { return gpu_ != nullptr && gpu_->holds(range.entry); }

  const CopyPlan& plan_;
  const EntryBases bases_;
  std::uint64_t random_state_;
  Gpu* const gpu_;
  bool reads_gpu_ = false;
  std::vector<RangeSum> sums_;
};

}  // namespace pawl::job
