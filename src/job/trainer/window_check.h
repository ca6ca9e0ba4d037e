// WindowCheck: finds out whether stable state was written while a window was open, by its bytes.
//
// Whoever writes stable state in an open window makes the snapshot one of no step: some buckets are from before the
// write, others from after it, and every checksum is right. Two looks find it, and each of them names the entry:
// begin() takes the sums of some buckets when the window opens, and find_write() takes them again: it finds any write
// to those buckets, before or after they were copied. find_difference() compares a whole copy with the memory that it
// was made from: it finds any write after the copy.
// What both miss: a write that puts the same bytes back, and one before the copy to a bucket of which no sum was taken.
// Not thread-safe: begin and find_write are the training thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "job/snapshot/arena.h"
#include "job/trainer/copy_plan.h"

namespace pawl::job {

// Index of an entry of the layout.
using WrittenEntry = std::optional<std::uint32_t>;

class WindowCheck {
 public:
  // Both must outlive this object. `seed`: which buckets are looked at.
  WindowCheck(const CopyPlan& plan, EntryBases bases, std::uint64_t seed)
      : plan_(plan), bases_(bases), random_state_(seed) {}

  // Takes the sums of `bucket_count` buckets (all of the stable ones if there are no more) from one drawn by chance on,
  // spread evenly. Reads that many buckets.
  void begin(std::uint32_t bucket_count);
  // The first entry of those buckets whose bytes are not what they were. The same window may be asked again.
  [[nodiscard]] WrittenEntry find_write() const;
  // The first stable entry that isn't what its copy in `slot` is. Reads all stable state, and the slot, unless `stops`
  // answers true, which is asked before each bucket.
  [[nodiscard]] WrittenEntry find_difference(const Slot& slot, const std::function<bool()>& stops) const;

 private:
  struct RangeSum {
    EntryRange range;
    std::uint32_t sum;
  };
  [[nodiscard]] std::uint32_t sum_of(const EntryRange& range) const;

  const CopyPlan& plan_;
  const EntryBases bases_;
  std::uint64_t random_state_;
  std::vector<RangeSum> sums_;
};

}  // namespace pawl::job
