// Capture: copies one step's state into a slot of the arena while the training computes. One window at a time.
//
// A window is resolved once: sealed, or void with a reason. The leading copy thread alone resolves it; everyone else
// asks. What is found wrong with a sealed one can't be taken back: its slot is marked, so that nobody restores it without
// a word, also when this process is gone. Once the window is resolved no thread of ours reads the trainer's memory or writes the arena, and the slot
// holds either all of the step or nothing. A slot is taken only if the reuse gate lets it go (job/redundancy/progress.h);
// no slot by the time of the fence: void, never waited for. The first windows are sealed only at their fence, after all
// of them was compared with the memory that they were copied from; of later ones a bucket is looked at by chance
// (job/trainer/window_check.h).
// open, stage_done, settle, unsettle, fail, fence and stop are the training thread's. This class has the threads and
// their lock; the window's stages are job/trainer/capture_window.h, the copying is job/trainer/bucket_copier.h. Volatile
// bytes: job/trainer/declared.h.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "env/clock.h"
#include "env/thread.h"
#include "job/redundancy/progress.h"
#include "job/snapshot/arena.h"
#include "job/trainer/bucket_copier.h"
#include "job/trainer/capture_source.h"
#include "job/trainer/capture_window.h"
#include "job/trainer/copy_pace.h"
#include "job/trainer/copy_plan.h"
#include "job/trainer/window_check.h"

namespace pawl::job {

struct CaptureOptions {
  std::uint32_t thread_count = 1;  // 1..64, at most. Higher: shorter windows, where cores are free
  const CopyKernel* kernel = &default_copy_kernel();
  std::uint32_t compared_window_count = 0;  // so many are compared in full and found right
  std::uint64_t seed = 0;                   // which bucket of a later one is looked at
  std::uint32_t thread_count_min = 0;       // from there to thread_count as windows need them; 0: always thread_count
  bool paranoid = false;                    // of every window all buckets are looked at, when it opens and at its fence
};

// Whose state the open window is.
struct WindowState {
  Generation generation;
  Step step;
  std::uint64_t samples = 0;
};

class Capture {
 public:
  Capture(Arena arena, CaptureSource source, CaptureOptions options)
      : arena_(std::move(arena)),
        source_(std::move(source)),
        thread_count_(options.thread_count),
        paranoid_(options.paranoid),
        compared_window_count_(options.compared_window_count),
        compared_left_(options.compared_window_count),
        pace_(options.thread_count_min == 0 ? options.thread_count : options.thread_count_min, options.thread_count),
        check_(*source_.plan, source_.bases, options.seed, source_.gpu),
        copier_(source_, *options.kernel) {}
  ~Capture() { stop("detached"); }

  // Stable state is that of `step`: the copy threads begin. Fails: `invalid` when a window is open; `io` when no thread
  // can be started.
  [[nodiscard]] Status open(Generation generation, Step step, std::uint64_t samples);
  [[nodiscard]] bool is_open() const { return open_; }
  // Volatile state is staged: the copy threads may take it.
  void stage_done();
  [[nodiscard]] bool staged() const { return staged_; }
  // Nothing is written from here on until unsettle(), though the fence is still to come: the window may be sealed.
  void settle();
  void unsettle();
  // The window shall be void. If it is sealed already, its slot is marked as torn.
  void fail(std::string why);

  struct FenceOptions {
    Deadline deadline = Deadline::never();  // then the window is void
    Duration wait_max = Duration::max();  // likewise; and at once if the copy won't be done by then, as fast as it goes
    bool waits_for_slot = false;          // only where nothing changes any more (pawl_finish): it is captured
  };
  // Waits until the window is resolved, and closes it. An interruption makes it void. Requires an open window.
  [[nodiscard]] WindowResult fence(FenceOptions options);

  // Makes an unresolved window void and joins the threads; the next open starts them anew.
  void stop(std::string why);

 private:
  using Stage = CaptureWindow::Stage;

  [[nodiscard]] Status start_threads();
  void settle(std::unique_lock<std::mutex>& lock, const Deadline& deadline);
  void cancel(std::string why);
  void mark_if_sealed() const;

  // The leading thread's. A `lock` is held on entry and on return, not all the time in between.
  void lead();
  void capture_window(std::unique_lock<std::mutex>& lock);
  void compare(std::unique_lock<std::mutex>& lock);
  void note_failed_copy();
  void await_gpu(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::optional<Slot> choose(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::optional<Slot> try_choose(bool needed);
  void resolve(bool captured, std::string why);

  [[nodiscard]] bool comes_too_late(const Deadline& worth) const;

  void help(std::uint32_t index);

  const Arena arena_;
  const CaptureSource source_;
  const std::uint32_t thread_count_;
  const bool paranoid_;
  const std::uint32_t compared_window_count_;

  // The training thread's alone.
  bool open_ = false;
  bool staged_ = false;
  std::uint32_t compared_left_;  // windows that shall still be compared and found right
  std::vector<Thread> threads_;
  CopyPace pace_;
  Duration opened_at_{};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  CaptureWindow window_;
  bool ending_ = false;

  WindowCheck check_;  // its sums are the training thread's, and its comparison is the leading thread's

  Turns turns_;  // the leading thread's

  // Written under the mutex while no thread copies; read by those that do.
  WindowState state_;
  BucketCopier copier_;
};

}  // namespace pawl::job
