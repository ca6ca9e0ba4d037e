// BucketCopier: copies the trainer's memory into one slot, bucket by bucket, with as many threads as call copy_until.
//
// Each bucket is taken by one thread, in order. Once cancelled, no thread takes another bucket. Which slot, and when
// threads copy, is decided elsewhere (job/trainer/capture.h).
// Threads: any may call copy_until, at the same time; cancel and cancelled at any time. All other calls only while no
// thread copies; a lock of the caller's must order them with copy_until.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.h"
#include "env/clock.h"
#include "job/snapshot/arena.h"
#include "job/trainer/capture_source.h"
#include "job/trainer/copy_plan.h"

namespace pawl::job {

class BucketCopier {
 public:
  // All must outlive this object.
  BucketCopier(const CaptureSource& source, const CopyKernel& kernel, Clock& clock = real_clock())
      : source_(source), kernel_(kernel), clock_(clock) {}

  // A new window: from bucket 0 on, not cancelled.
  void reset() {
    cancelled_ = false;
    failure_.reset();
    copied_ = 0;
    next_ = 0;
    notify_at_ns_ = 0;
  }
  // Where to, opened for this step.
  void set_slot(Slot slot, Generation generation, Step step) {
    slot_ = slot;
    generation_ = generation;
    step_ = step;
  }
  [[nodiscard]] const Slot& slot() const { return slot_; }
  // The threads that found nothing to take have counted past the end: on with this bucket.
  void continue_at(std::uint32_t bucket) { next_ = bucket; }

  // Takes buckets up to `end` until there are none or the window is cancelled. Notifies pawld of the first one, then not
  // more often than kNoticeInterval, all threads together, and at the end; counts the time in the page. What lies on a GPU
  // is copied as it is: the window's mark has been reached (Gpu::reach_window), or the window is cancelled. `alone`: others may not
  // be there; who isn't leaves the work to them if there is no memory for what it needs.
  void copy_until(std::uint32_t end, bool alone = true);
  // So many buckets of this window are copied.
  [[nodiscard]] std::uint32_t copied() const { return copied_.load(std::memory_order_relaxed); }
  // Why the window was cancelled in here: a GPU couldn't be read. Any thread.
  [[nodiscard]] std::optional<std::string> failure() const {
    std::lock_guard lock(failure_mutex_);
    return failure_;
  }

  // A notice costs both ends a system call and pawld a turn of its loop: by time it is the same at any speed of memory.
  // In so much time a wire gets a few MB.
  static constexpr Duration kNoticeInterval = std::chrono::milliseconds(1);

  void cancel() { cancelled_ = true; }
  [[nodiscard]] bool cancelled() const { return cancelled_; }

 private:
  [[nodiscard]] bool is_time_to_notify();
  void copy_from_host(std::uint32_t end);
  [[nodiscard]] Status copy_from_gpu(std::uint32_t end, bool alone);
  void bucket_done(std::uint32_t index, std::uint32_t sum, bool& unannounced);
  const CaptureSource& source_;
  const CopyKernel& kernel_;
  Clock& clock_;
  Slot slot_;
  Generation generation_;
  Step step_;
  std::atomic<bool> cancelled_{false};
  std::atomic<std::uint32_t> next_{0};
  std::atomic<std::uint32_t> copied_{0};
  std::atomic<std::int64_t> notify_at_ns_{0};  // not before
  mutable std::mutex failure_mutex_;           // guards what follows
  std::optional<std::string> failure_;
};

}  // namespace pawl::job
