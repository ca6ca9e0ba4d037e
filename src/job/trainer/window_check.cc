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

const std::byte* WindowCheck::bytes_of(const EntryRange& range, std::vector<std::byte>& scratch) const {
  const std::byte* live = bases_[range.entry] + range.offset;
  if (!on_gpu(range)) return live;
  return gpu_->read_checked(live, range.bytes, scratch) ? scratch.data() : nullptr;
}

std::optional<std::uint32_t> WindowCheck::sum_of(const EntryRange& range, std::vector<std::byte>& scratch) const {
  const std::byte* bytes = bytes_of(range, scratch);
  return bytes == nullptr ? std::nullopt : std::optional(crc32c({bytes, range.bytes}));
}

void WindowCheck::begin(std::uint32_t bucket_count, Gpus gpus) {
  sums_.clear();
  reads_gpu_ = gpus == Gpus::read && gpu_ != nullptr && gpu_->holds_some() && gpu_->mark_check();
  const std::uint32_t all = plan_.stable_bucket_count();
  const std::uint32_t count = std::min(bucket_count, all);
  if (count == 0) return;
  const std::uint64_t first = next_random(random_state_) % all;
  std::vector<std::byte> scratch;
  for (std::uint64_t i = 0; i < count; ++i) {
    for (const EntryRange& range : plan_.bucket(static_cast<std::uint32_t>((first + i * all / count) % all))) {
      if (!plan_.is_stable(range) || (on_gpu(range) && !reads_gpu_)) continue;
      if (const std::optional<std::uint32_t> sum = sum_of(range, scratch)) sums_.push_back({range, *sum});
    }
  }
}

WrittenEntry WindowCheck::find_write() const {
  if (reads_gpu_ && !gpu_->mark_check()) return std::nullopt;
  std::vector<std::byte> scratch;
  const auto changed = std::find_if(sums_.begin(), sums_.end(), [&](const RangeSum& each) {
    return sum_of(each.range, scratch).value_or(each.sum) != each.sum;
  });
  return changed == sums_.end() ? std::nullopt : WrittenEntry(changed->range.entry);
}

WrittenEntry WindowCheck::find_difference(const Slot& slot, const std::function<bool()>& stops) const {
  std::vector<std::byte> scratch;
  for (std::uint32_t i = 0; i < plan_.stable_bucket_count() && !stops(); ++i) {
    const std::byte* copied = slot.bucket(i).data();
    for (const EntryRange& range : plan_.bucket(i)) {
      if (plan_.is_stable(range) && (!on_gpu(range) || reads_gpu_)) {
        const std::byte* live = bytes_of(range, scratch);
        if (live != nullptr && std::memcmp(copied, live, range.bytes) != 0) return range.entry;
      }
      copied += range.bytes;
    }
  }
  return std::nullopt;
}

}  // namespace pawl::job
