#include "job/trainer/slot_restore.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "env/clock.h"
#include "env/thread.h"
#include "job/trainer/gpu_copies.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLook = 200us;      // less than a few buckets take on the wire
constexpr std::uint32_t kGpuRun = 16;  // buckets that one thread takes at once: neighbours are one copy to a GPU
constexpr Duration kNoNewsMax = 1s;    // pawld is then asked again: another one may be there

}  // namespace

// Begins at its first bucket.
class SlotRestore::Way {
 public:
  explicit Way(const SlotRestore& restore) : restore_(restore) {}

  // Fails: `corrupt`: the bucket isn't what its line says; `io`.
  [[nodiscard]] Status copy(const Slot& slot, std::uint32_t bucket) {
    const std::uint32_t sum = slot.buckets()[bucket].crc32c.load(std::memory_order_relaxed);
    const CopyPlan& plan = restore_.plan_;
    if (restore_.gpu_ == nullptr || !restore_.gpu_->holds_some()) {
      if (scatter(plan.bucket(bucket), default_copy_kernel(), slot.bucket(bucket).data(), restore_.to_) == sum)
        return {};
      return Error{Code::corrupt, text("bucket ", bucket, ": checksum differs")};
    }
    PAWL_TRY(begin());
    return writer_->put(bucket, slot.bucket(bucket), sum);
  }
  // Takes what it needs. Fails: `io`: there is no memory for another one.
  [[nodiscard]] Status begin() {
    if (restore_.gpu_ == nullptr || !restore_.gpu_->holds_some() || writer_) return {};
    PAWL_ASSIGN(GpuLaneLoan lane, restore_.gpu_->lane());
    lane_.emplace(std::move(lane));
    writer_.emplace(restore_.plan_, restore_.to_, *restore_.gpu_, **lane_);
    return {};
  }
  // What was copied is on its way / is where it belongs.
  [[nodiscard]] Status flush() { return writer_ ? writer_->flush() : Status(); }
  [[nodiscard]] Status finish() { return writer_ ? writer_->finish() : Status(); }

 private:
  const SlotRestore& restore_;
  std::optional<GpuLaneLoan> lane_;
  std::optional<GpuBucketWriter> writer_;
};

void SlotRestore::copy_what_comes(const Slot& slot, SlotWord filling, const std::function<bool()>& interrupted) {
  Way way(*this);
  std::uint32_t next = next_;
  for (Duration news_at = real_clock().now(); next < plan_.bucket_count() && !interrupted();) {
    if (slot.bucket_ready(next, filling.generation, filling.step)) {
      if (!way.copy(slot, next)) break;
      ++next;
      progress_();  // each time: the next bucket may be long in coming
      news_at = real_clock().now();
    } else if (real_clock().now() - news_at >= kNoNewsMax || !way.flush()) {
      break;
    } else {
      real_clock().sleep(kLook);
    }
  }
  if (way.finish()) next_ = next;  // else copy_rest meets the same failure, and says it
}

Status SlotRestore::copy_rest(const Slot& slot) {
  const std::uint32_t end = plan_.bucket_count();
  const std::uint32_t run = gpu_ != nullptr && gpu_->holds_some() ? kGpuRun : 1;
  std::atomic<std::uint32_t> next{next_};
  std::atomic<std::uint32_t> first_bad{end};
  std::mutex failure_mutex;
  Status failure;
  const auto note = [&](Status status) {
    if (status || status.error().code == Code::corrupt) return;
    std::lock_guard lock(failure_mutex);
    if (failure) failure = std::move(status);
  };
  const auto copy_some = [&](bool tells) {
    Way way(*this);
    if (!way.begin() && !tells) return;  // fewer will do
    while (first_bad.load(std::memory_order_relaxed) == end) {
      const std::uint32_t first = next.fetch_add(run, std::memory_order_relaxed);
      if (first >= end) break;
      for (std::uint32_t bucket = first; bucket < std::min(first + run, first_bad.load()); ++bucket) {
        if (Status copied = way.copy(slot, bucket); !copied) {
          std::uint32_t known = end;
          while (bucket < known && !first_bad.compare_exchange_weak(known, bucket)) {
          }
          note(std::move(copied));
        } else if (tells) {
          progress_();
        }
      }
    }
    note(way.finish());
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
  if (!failure) return failure;
  next_ = first_bad;  // whatever comes before it was taken, and was right
  if (next_ == end) return {};
  return Error{Code::corrupt, text("bucket ", next_, ": checksum differs")};
}

}  // namespace pawl::job
