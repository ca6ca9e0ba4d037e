#include "job/trainer/capture.h"

#include <chrono>
#include <utility>

#include "base/text.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::uint64_t kNotifyBytes = 1 << 20;
// How often a closed gate is asked again: soon at first, since an acknowledgement is usually on its way.
constexpr Duration kChooseIntervalSoon = microseconds(200);
constexpr Duration kChooseIntervalLater = milliseconds(1);
constexpr int kChooseSoonCount = 100;
constexpr Duration kInterruptionInterval = milliseconds(2);

void add(PageWord& word, std::uint64_t value) {
  word.fetch_add(value, std::memory_order_relaxed);
}

}  // namespace

// --- The training thread.

Status Capture::open(Generation generation, Step step, std::uint64_t samples) {
  if (open_) return Error{Code::invalid, text("the window of step ", result_.step, " is open: pawl_fence comes first")};
  if (threads_.empty()) PAWL_TRY(start_threads());
  std::lock_guard lock(mutex_);
  generation_ = generation;
  step_ = step;
  samples_ = samples;
  result_ = WindowResult{step, false, 0, {}};
  last_chance_ = volatile_ready_ = false;
  cancelled_ = false;
  why_cancelled_.clear();
  next_bucket_ = 0;
  ++window_count_;
  open_ = true;
  staged_ = false;
  stage_ = Stage::choosing;
  changed_.notify_all();
  return {};
}

void Capture::stage_done() {
  staged_ = true;
  std::lock_guard lock(mutex_);
  volatile_ready_ = true;
  changed_.notify_all();
}

void Capture::fail(std::string why) {
  staged_ = true;  // nothing better will come
  std::lock_guard lock(mutex_);
  cancel(std::move(why));
}

void Capture::cancel(std::string why) {
  if (cancelled_ || stage_ == Stage::idle || stage_ == Stage::resolved) return;
  why_cancelled_ = std::move(why);
  cancelled_ = true;
  changed_.notify_all();
}

WindowResult Capture::fence(FenceOptions options) {
  std::unique_lock lock(mutex_);
  last_chance_ = !options.waits_for_slot;
  changed_.notify_all();
  while (stage_ != Stage::resolved) {
    if (source_.interrupted()) {
      cancel("a recovery or a stop is pending");
    } else if (options.deadline.passed()) {
      cancel("the fence's deadline passed (PAWL_FENCE_DEADLINE_MS)");
    }
    // The trainer is alive, whatever the hang watch thinks of its waiting. A cancelled window is resolved within the
    // copy of one bucket.
    source_.page().progress_at_ns.store(static_cast<std::uint64_t>(real_clock().now().count()));
    changed_.wait_for(lock, std::min(options.deadline.left(), kInterruptionInterval) + microseconds(10));
  }
  stage_ = Stage::idle;
  open_ = false;
  return result_;
}

void Capture::stop(std::string why) {
  if (threads_.empty()) return;
  {
    std::lock_guard lock(mutex_);
    cancel(std::move(why));
    ending_ = true;
    changed_.notify_all();
  }
  threads_.clear();  // joins
  ending_ = false;
  stage_ = Stage::idle;
  open_ = false;
}

Status Capture::start_threads() {
  for (std::uint32_t i = 0; i < options_.thread_count; ++i) {
    const bool leads = i == 0;
    Result<Thread> thread = Thread::start(text("pawl-copy", i), [this, leads] { leads ? lead() : help(); });
    if (!thread && leads) return std::move(thread).error();
    if (!thread) break;  // fewer will do
    threads_.push_back(std::move(*thread));
  }
  return {};
}

// --- The leading copy thread.

void Capture::lead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || stage_ == Stage::choosing; });
    if (stage_ == Stage::choosing) capture_window(lock);  // also when ending: it is cancelled then
    if (ending_) return;
  }
}

void Capture::capture_window(std::unique_lock<std::mutex>& lock) {
  const std::optional<Slot> slot = choose(lock);
  if (!slot) {
    return resolve(false, cancelled_ ? why_cancelled_ : text("no slot was free: an earlier step is not yet committed"));
  }
  slot_ = *slot;
  stage_ = Stage::copying;
  changed_.notify_all();

  lock.unlock();
  copy_buckets(source_.plan->first_volatile_bucket());
  lock.lock();
  changed_.wait(lock, [this] { return (volatile_ready_ || cancelled_) && helping_ == 0; });
  next_bucket_ = source_.plan->first_volatile_bucket();  // the count was overshot
  stage_ = Stage::finishing;
  lock.unlock();
  copy_buckets(source_.plan->bucket_count());
  lock.lock();

  const bool sealed = !cancelled_ && slot_.try_seal(generation_, step_);
  std::string why;
  if (!sealed) {
    why = cancelled_ ? why_cancelled_ : slot_.word().frozen ? "a recovery is pending" : "the slot could not be sealed";
    (void)slot_.try_abandon(generation_, step_);  // frozen: pawld's to clear
  }
  resolve(sealed, std::move(why));
}

// A slot, dirty with our step; nullopt: the window is void.
std::optional<Slot> Capture::choose(std::unique_lock<std::mutex>& lock) {
  for (int attempt = 0; !cancelled_; ++attempt) {
    const bool last = last_chance_;
    lock.unlock();
    const bool interrupted = source_.interrupted();
    std::optional<Slot> slot = interrupted ? std::nullopt : try_choose();
    lock.lock();
    if (slot) return slot;
    if (interrupted) {
      cancel("a recovery or a stop is pending");
    } else if (last) {
      return std::nullopt;
    } else {
      changed_.wait_for(lock, attempt < kChooseSoonCount ? kChooseIntervalSoon : kChooseIntervalLater,
                        [this] { return cancelled_ || last_chance_; });
    }
  }
  return std::nullopt;
}

std::optional<Slot> Capture::try_choose() const {
  TrainerPage& page = source_.page();
  Progress known = Progress::unpack(page.progress.load(std::memory_order_acquire));
  if (page.gate_off.load(std::memory_order_relaxed) != 0)
    known = Progress{Step(kStepMax), 0};  // a test's, see the page
  std::vector<SlotWord> words;
  for (std::uint32_t i = 0; i < arena_.slot_count(); ++i) words.push_back(arena_.slot(i).word());
  const std::optional<std::uint32_t> chosen = choose_slot(words, known, generation_, step_);
  if (!chosen) return std::nullopt;
  const Slot slot = arena_.slot(*chosen);
  if (!slot.try_open(words[*chosen], generation_, step_, samples_)) return std::nullopt;
  page.reached.store(step_.value, std::memory_order_release);  // after the word: who reads it sees the slot dirty
  return slot;
}

void Capture::resolve(bool captured, std::string why) {
  TrainerPage& page = source_.page();
  result_.captured = captured;
  result_.why_void = std::move(why);
  if (captured) {
    result_.captured_bytes = slot_.payload().size();
    add(page.windows_captured, 1);
    add(page.captured_bytes_total, result_.captured_bytes);
  } else {
    page.reached.store(step_.value, std::memory_order_release);
    add(page.windows_voided, 1);
  }
  stage_ = Stage::resolved;
  changed_.notify_all();
  source_.notify();
}

// --- All copy threads.

void Capture::help() {
  std::uint64_t helped = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || (stage_ == Stage::copying && helped != window_count_); });
    if (ending_) return;
    helped = window_count_;
    ++helping_;
    lock.unlock();
    copy_buckets(source_.plan->first_volatile_bucket());
    lock.lock();
    --helping_;
    changed_.notify_all();
  }
}

void Capture::copy_buckets(std::uint32_t end) {
  const Duration begin = real_clock().now();
  std::uint64_t unannounced = 0;
  while (!cancelled_.load(std::memory_order_relaxed)) {
    const std::uint32_t index = next_bucket_.fetch_add(1, std::memory_order_relaxed);
    if (index >= end) break;
    const std::span<std::byte> bucket = slot_.bucket(index);
    slot_.bucket_done(index, gather(source_.plan->bucket(index), *options_.kernel, source_.bases, bucket.data()));
    unannounced += bucket.size();
    if (unannounced >= kNotifyBytes) {
      source_.notify();
      unannounced = 0;
    }
  }
  if (unannounced > 0) source_.notify();
  add(source_.page().copy_ns_total, static_cast<std::uint64_t>((real_clock().now() - begin).count()));
}

}  // namespace pawl::job
