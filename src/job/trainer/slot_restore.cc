#include "job/trainer/slot_restore.h"

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "base/text.h"
#include "env/clock.h"
#include "env/thread.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLook = 200us;    // less than a few buckets take on the wire
constexpr Duration kNoNewsMax = 1s;  // pawld is then asked again: another one may be there

}  // namespace

bool SlotRestore::copy(const Slot& slot, std::uint32_t bucket) const {
  const std::uint32_t sum = scatter(plan_.bucket(bucket), default_copy_kernel(), slot.bucket(bucket).data(), to_);
  return sum == slot.buckets()[bucket].crc32c.load(std::memory_order_relaxed);
}

void SlotRestore::copy_what_comes(const Slot& slot, SlotWord filling, const std::function<bool()>& interrupted) {
  Duration news_at = real_clock().now();
  while (next_ < plan_.bucket_count()) {
    if (interrupted()) return;
    if (slot.bucket_ready(next_, filling.generation, filling.step)) {
      if (!copy(slot, next_)) return;
      ++next_;
      progress_();  // each time: the next bucket may be long in coming
      news_at = real_clock().now();
    } else if (real_clock().now() - news_at >= kNoNewsMax) {
      return;
    } else {
      real_clock().sleep(kLook);
    }
  }
}

Status SlotRestore::copy_rest(const Slot& slot) {
  const std::uint32_t end = plan_.bucket_count();
  std::atomic<std::uint32_t> next{next_};
  std::atomic<std::uint32_t> first_bad{end};
  const auto copy_some = [&](bool tells) {
    while (first_bad.load(std::memory_order_relaxed) == end) {
      const std::uint32_t bucket = next.fetch_add(1, std::memory_order_relaxed);
      if (bucket >= end) return;
      if (!copy(slot, bucket)) {
        std::uint32_t known = end;
        while (bucket < known && !first_bad.compare_exchange_weak(known, bucket)) {
        }
      } else if (tells) {
        progress_();
      }
    }
  };
  {
    std::vector<Thread> others;  // joined where they go
    for (std::uint32_t i = 1; i < thread_count_ && i < end - next_; ++i) {
      Result<Thread> thread = Thread::start(text("pawl-restore", i), [&copy_some] { copy_some(false); });
      if (!thread) break;
      others.push_back(std::move(*thread));
    }
    copy_some(true);
  }
  next_ = first_bad;  // whatever comes before it was taken, and was right
  if (next_ == end) return {};
  return Error{Code::corrupt, text("bucket ", next_, ": checksum differs")};
}

}  // namespace pawl::job
