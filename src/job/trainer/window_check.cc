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

std::uint32_t WindowCheck::sum_of(const EntryRange& range) const {
  return crc32c({bases_[range.entry] + range.offset, range.bytes});
}

void WindowCheck::begin(std::uint32_t bucket_count) {
  sums_.clear();
  const std::uint32_t all = plan_.stable_bucket_count();
  const std::uint32_t count = std::min(bucket_count, all);
  if (count == 0) return;
  const std::uint64_t first = next_random(random_state_) % all;
  for (std::uint64_t i = 0; i < count; ++i) {
    for (const EntryRange& range : plan_.bucket(static_cast<std::uint32_t>((first + i * all / count) % all))) {
      if (plan_.is_stable(range)) sums_.push_back({range, sum_of(range)});
    }
  }
}

WrittenEntry WindowCheck::find_write() const {
  const auto changed =
      std::find_if(sums_.begin(), sums_.end(), [this](const RangeSum& each) { return sum_of(each.range) != each.sum; });
  return changed == sums_.end() ? std::nullopt : WrittenEntry(changed->range.entry);
}

WrittenEntry WindowCheck::find_difference(const Slot& slot, const std::function<bool()>& stops) const {
  for (std::uint32_t i = 0; i < plan_.stable_bucket_count() && !stops(); ++i) {
    const std::byte* copied = slot.bucket(i).data();
    for (const EntryRange& range : plan_.bucket(i)) {
      if (plan_.is_stable(range) && std::memcmp(copied, bases_[range.entry] + range.offset, range.bytes) != 0) {
        return range.entry;
      }
      copied += range.bytes;
    }
  }
  return std::nullopt;
}

}  // namespace pawl::job
