#include "job/trainer/window_check.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

namespace pawl::job {
namespace {

// Numbers that look random, one after another (Steele, Lea, Flood 2014: SplitMix64).
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t mixed = state += 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

}  // namespace

Result<const std::byte*> WindowCheck::bytes_of(const EntryRange& range, std::vector<std::byte>& scratch) const {
  const std::byte* live = bases_[range.entry] + range.offset;
  if (!on_gpu(range)) return live;
  PAWL_TRY(gpu_->read_checked(live, range.bytes, scratch));
  return scratch.data();
}

Result<std::uint32_t> WindowCheck::sum_of(const EntryRange& range, std::vector<std::byte>& scratch) const {
  PAWL_ASSIGN(const std::byte* bytes, bytes_of(range, scratch));
  return crc32c({bytes, range.bytes});
}

Status WindowCheck::begin(std::uint32_t bucket_count, Gpus gpus, const Stops& stops) {
  sums_.clear();
  reads_gpu_ = gpus == Gpus::read && gpu_ != nullptr && gpu_->holds_some();
  if (reads_gpu_) {
    PAWL_TRY(gpu_->mark_check());
    PAWL_ASSIGN(reads_gpu_, gpu_->reach_check(stops));
  }
  const std::uint32_t all = plan_.stable_bucket_count();
  const std::uint32_t count = std::min(bucket_count, all);
  if (count == 0) return {};
  const std::uint64_t first = next_random(random_state_) % all;
  std::vector<std::byte> scratch;
  for (std::uint64_t i = 0; i < count; ++i) {
    for (const EntryRange& range : plan_.bucket(static_cast<std::uint32_t>((first + i * all / count) % all))) {
      if (!plan_.is_stable(range) || (on_gpu(range) && !reads_gpu_)) continue;
      PAWL_ASSIGN(const std::uint32_t sum, sum_of(range, scratch));
      sums_.push_back({range, sum});
    }
  }
  return {};
}

Result<WrittenEntry> WindowCheck::find_write(const Stops& stops) const {
  if (reads_gpu_) {
    PAWL_TRY(gpu_->mark_check());
    PAWL_ASSIGN(const bool reached, gpu_->reach_check(stops));
    if (!reached) return WrittenEntry();
  }
  std::vector<std::byte> scratch;
  for (const RangeSum& each : sums_) {
    PAWL_ASSIGN(const std::uint32_t sum, sum_of(each.range, scratch));
    if (sum != each.sum) return WrittenEntry(each.range.entry);
  }
  return WrittenEntry();
}

Result<WrittenEntry> WindowCheck::find_difference(const Slot& slot, const Stops& stops) const {
  std::vector<std::byte> scratch;
  for (std::uint32_t i = 0; i < plan_.stable_bucket_count() && !stops(); ++i) {
    const std::byte* copied = slot.bucket(i).data();
    for (const EntryRange& range : plan_.bucket(i)) {
      if (plan_.is_stable(range) && (!on_gpu(range) || reads_gpu_)) {
        PAWL_ASSIGN(const std::byte* live, bytes_of(range, scratch));
        if (std::memcmp(copied, live, range.bytes) != 0) return WrittenEntry(range.entry);
      }
      copied += range.bytes;
    }
  }
  return WrittenEntry();
}

}  // namespace pawl::job
