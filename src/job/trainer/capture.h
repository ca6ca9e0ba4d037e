// Capture: copies one step's state into a slot of the arena while the training computes. One window at a time.
//
// A window is resolved once: sealed, or void with a reason. The leading copy thread alone resolves it; everyone else
// asks. Once the window is resolved no thread of ours reads the trainer's memory or writes the arena, and the slot
// holds either all of the step or nothing. A slot is taken only if the reuse gate lets it go (job/redundancy/progress.h);
// no slot by the time of the fence: void, never waited for.
// open, stage_done, fail, fence and stop are the training thread's. Volatile bytes: job/trainer/declared.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "env/clock.h"
#include "job/snapshot/arena.h"
#include "job/snapshot/trainer_page.h"
#include "job/trainer/copy_plan.h"
#include "job/trainer/thread.h"

namespace pawl::job {

// What the capture needs of the trainer. All of it must outlive the Capture.
struct CaptureSource {
  const CopyPlan* plan = nullptr;
  EntryBases bases;                    // stable entries: live; volatile ones: staged
  std::function<TrainerPage&()> page;  // any thread
  std::function<void()> notify;        // tells pawld that there is something new in the arena; any thread
  std::function<bool()> interrupted;   // a recovery or a stop is pending; any thread, cheap
};

struct CaptureOptions {
  std::uint32_t thread_count = 1;  // 1..64. Higher: shorter windows, where cores are free
  const CopyKernel* kernel = &default_copy_kernel();
};

struct WindowResult {
  Step step;
  bool captured = false;
  std::uint64_t captured_bytes = 0;
  std::string why_void;
};

class Capture {
 public:
  Capture(Arena arena, CaptureSource source, CaptureOptions options)
      : arena_(std::move(arena)), source_(std::move(source)), options_(options) {}
  ~Capture() { stop("detached"); }

  // Stable state is that of `step`: the copy threads begin. Fails: `invalid` when a window is open; `io` when no thread
  // can be started.
  [[nodiscard]] Status open(Generation generation, Step step, std::uint64_t samples);
  [[nodiscard]] bool is_open() const { return open_; }
  // Volatile state is staged: the copy threads may take it.
  void stage_done();
  [[nodiscard]] bool staged() const { return staged_; }
  // The window shall be void.
  void fail(std::string why);

  struct FenceOptions {
    Deadline deadline = Deadline::never();  // then the window is void
    bool waits_for_slot = false;            // only where nothing changes any more (pawl_finish)
  };
  // Waits until the window is resolved, and closes it. An interruption makes it void. Requires an open window.
  [[nodiscard]] WindowResult fence(FenceOptions options);

  // Makes an unresolved window void and joins the threads; the next open starts them anew.
  void stop(std::string why);

 private:
  enum class Stage { idle, choosing, copying, finishing, resolved };  // finishing: helpers don't begin any more

  [[nodiscard]] Status start_threads();
  void cancel(std::string why);

  // The leading thread's. A `lock` is held on entry and on return, not all the time in between.
  void lead();
  void capture_window(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::optional<Slot> choose(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::optional<Slot> try_choose() const;
  void resolve(bool captured, std::string why);

  void help();
  // Takes buckets up to `end` until there are none or the window is cancelled.
  void copy_buckets(std::uint32_t end);

  const Arena arena_;
  const CaptureSource source_;
  const CaptureOptions options_;

  // The training thread's alone.
  bool open_ = false;
  bool staged_ = false;
  std::vector<Thread> threads_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Stage stage_ = Stage::idle;
  bool ending_ = false;
  bool last_chance_ = false;  // the fence waits: no slot now is no slot
  bool volatile_ready_ = false;
  std::string why_cancelled_;
  std::uint32_t helping_ = 0;
  std::uint64_t window_count_ = 0;
  WindowResult result_;

  // Written under the mutex while no thread copies; read by those that do.
  Slot slot_;
  Generation generation_;
  Step step_;
  std::uint64_t samples_ = 0;
  std::atomic<bool> cancelled_{false};
  std::atomic<std::uint32_t> next_bucket_{0};
};

}  // namespace pawl::job
