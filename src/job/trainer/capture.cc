#include "job/trainer/capture.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/text.h"
#include "job/trainer/fence_budget.h"

namespace pawl::job {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How often a closed gate is asked again: soon at first, since an acknowledgement is usually on its way.
constexpr Duration kChooseIntervalSoon = microseconds(200);
constexpr Duration kChooseIntervalLater = milliseconds(1);
constexpr int kChooseSoonCount = 100;
constexpr Duration kInterruptionInterval = milliseconds(2);
// Of how many buckets the sums are taken when a window opens: one that is compared later, and any other.
constexpr std::uint32_t kSummedBucketsMax = 256;
constexpr std::uint32_t kSummedBuckets = 1;
constexpr std::uint32_t kForecastPart = 16;  // of a copy: sooner its pace says nothing
constexpr const char* kTooLate = "the copy needs more time than fences may wait (PAWL_FENCE_SHARE)";
constexpr const char* kWritten = "stable state was written while its window was open";

void add(PageWord& word, std::uint64_t value) {
  word.fetch_add(value, std::memory_order_relaxed);
}

}  // namespace

// --- The training thread.

Status Capture::open(Generation generation, Step step, std::uint64_t samples) {
  if (open_)
    return Error{Code::invalid, text("the window of step ", window_.result.step, " is open: pawl_fence comes first")};
  if (threads_.empty()) PAWL_TRY(start_threads());
  const bool compared = compared_left_ > 0;
  if (source_.gpu != nullptr && source_.gpu->holds_some()) PAWL_TRY(source_.gpu->mark_window());
  PAWL_TRY(check_.begin(paranoid_  ? UINT32_MAX
                        : compared ? kSummedBucketsMax
                                   : kSummedBuckets,
                        paranoid_ || compared ? WindowCheck::Gpus::read : WindowCheck::Gpus::skipped,
                        source_.interrupted));
  opened_at_ = real_clock().now();
  std::lock_guard lock(mutex_);
  state_ = {generation, step, samples};
  copier_.reset();
  window_.begin(step, compared, pace_.thread_count() - 1);
  open_ = true;
  staged_ = false;
  changed_.notify_all();
  return {};
}

void Capture::stage_done() {
  staged_ = true;
  std::lock_guard lock(mutex_);
  window_.volatile_ready = true;
  changed_.notify_all();
}

void Capture::settle() {
  std::unique_lock lock(mutex_);
  window_.needed = true;  // all seats stand at this step: nothing that they could agree on better comes
  settle(lock, Deadline::never());
}

void Capture::unsettle() {
  std::lock_guard lock(mutex_);
  window_.settled = false;
}

// Only the sums are taken outside of the lock.
void Capture::settle(std::unique_lock<std::mutex>& lock, const Deadline& deadline) {
  if (window_.settled) return;
  lock.unlock();
  const Result<WrittenEntry> written =
      check_.find_write([&] { return copier_.cancelled() || deadline.passed() || source_.interrupted(); });
  lock.lock();
  if (!written) {
    cancel(written.error().what);
  } else if (*written) {
    window_.result.written = *written;
    cancel(kWritten);
  }
  window_.settled = true;
  changed_.notify_all();
}

void Capture::fail(std::string why) {
  staged_ = true;  // nothing better will come
  std::lock_guard lock(mutex_);
  cancel(std::move(why));
  mark_if_sealed();
}

void Capture::mark_if_sealed() const {
  if (window_.stage == Stage::resolved && window_.result.captured)
    copier_.slot().mark_torn(state_.generation, state_.step);
}

void Capture::cancel(std::string why) {
  if (copier_.cancelled() || !window_.can_be_cancelled()) return;
  window_.why_cancelled = std::move(why);
  copier_.cancel();
  changed_.notify_all();
}

WindowResult Capture::fence(FenceOptions options) {
  const Duration begun = real_clock().now();
  std::unique_lock lock(mutex_);
  settle(lock, options.deadline);
  const Deadline worth = options.wait_max == Duration::max() ? Deadline::never() : Deadline::in(options.wait_max);
  window_.last_chance = !options.waits_for_slot;
  window_.needed = options.waits_for_slot;
  changed_.notify_all();
  while (window_.stage != Stage::resolved) {
    if (source_.interrupted()) {
      cancel("a recovery or a stop is pending");
    } else if (options.deadline.passed()) {
      cancel("the fence's deadline passed (PAWL_FENCE_DEADLINE_MS)");
    } else if (comes_too_late(worth)) {
      cancel(kTooLate);
    }
    // The trainer is alive, whatever the hang watch thinks of its waiting; not so if it is its GPU that stands still. A
    // cancelled window is resolved within the copy of one bucket, or of a GPU's pieces.
    if (window_.stage != Stage::awaiting)
      source_.page().progress_at_ns.store(static_cast<std::uint64_t>(real_clock().now().count()));
    changed_.wait_for(lock,
                      std::min({options.deadline.left(), worth.left(), kInterruptionInterval}) + microseconds(10));
  }
  if (window_.result.written) mark_if_sealed();
  if (window_.copying_since > Duration::zero())
    pace_.window_closed(begun - opened_at_, window_.copied > Duration::zero() ? window_.copied : Duration::max() / 128);
  window_.stage = Stage::idle;
  open_ = false;
  // Only what was compared and found right counts; whoever writes once may do it again.
  if (window_.result.written) {
    compared_left_ = compared_window_count_;
  } else if (window_.compared && window_.result.captured) {
    --compared_left_;
  }
  return window_.result;
}

// The rest of the copy takes longer than the fence may wait. What is copied is waited for: comparing it is for the first
// windows only, and a void one would be compared again.
bool Capture::comes_too_late(const Deadline& worth) const {
  if (window_.stage == Stage::finishing || worth.is_never()) return false;
  const std::uint32_t all = source_.plan->first_volatile_bucket();
  const std::uint32_t done = copier_.copied();
  if (window_.stage != Stage::copying || done < all / kForecastPart) return worth.passed();
  const std::optional<Duration> left = time_left(real_clock().now() - window_.copying_since, done, all);
  return left ? *left > worth.left() : worth.passed();
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
  window_.stage = Stage::idle;
  open_ = false;
}

Status Capture::start_threads() {
  for (std::uint32_t i = 0; i < thread_count_; ++i) {
    Result<Thread> thread = Thread::start(text("pawl-copy", i), [this, i] { i == 0 ? lead() : help(i - 1); });
    if (!thread && i == 0) return std::move(thread).error();
    if (!thread) break;  // fewer will do
    threads_.push_back(std::move(*thread));
  }
  return {};
}

// --- The leading copy thread.

void Capture::lead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || window_.stage == Stage::choosing; });
    if (window_.stage == Stage::choosing) capture_window(lock);  // also when ending: it is cancelled then
    if (ending_) return;
  }
}

void Capture::capture_window(std::unique_lock<std::mutex>& lock) {
  const std::optional<Slot> slot = choose(lock);
  if (!slot) {
    return resolve(false, copier_.cancelled() ? window_.why_cancelled
                                              : text("no slot was free: an earlier step is not yet committed"));
  }
  copier_.set_slot(*slot, state_.generation, state_.step);
  await_gpu(lock);
  window_.stage = Stage::copying;
  window_.copying_since = real_clock().now();
  changed_.notify_all();

  lock.unlock();
  copier_.copy_until(source_.plan->first_volatile_bucket());
  lock.lock();
  note_failed_copy();
  if (!copier_.cancelled()) window_.copied = real_clock().now() - window_.copying_since;
  changed_.wait(lock, [this] { return window_.may_finish(copier_.cancelled()); });
  copier_.continue_at(source_.plan->first_volatile_bucket());
  window_.stage = Stage::finishing;
  lock.unlock();
  copier_.copy_until(source_.plan->bucket_count());
  lock.lock();
  note_failed_copy();
  compare(lock);

  const bool sealed = !copier_.cancelled() && slot->try_seal(state_.generation, state_.step);
  std::string why;
  if (!sealed) {
    why = copier_.cancelled()   ? window_.why_cancelled
          : slot->word().frozen ? "a recovery is pending"
                                : "the slot could not be sealed";
    (void)slot->try_abandon(state_.generation, state_.step);  // frozen: pawld's to clear
  }
  resolve(sealed, std::move(why));
}

// Until the GPU has run what precedes the window: the copies that come then end by themselves.
void Capture::await_gpu(std::unique_lock<std::mutex>& lock) {
  if (source_.gpu == nullptr || !source_.gpu->holds_some()) return;
  window_.stage = Stage::awaiting;
  lock.unlock();
  const Result<bool> reached = source_.gpu->reach_window([this] { return copier_.cancelled(); });
  lock.lock();
  if (!reached) cancel(reached.error().what);
}

void Capture::note_failed_copy() {
  if (window_.why_cancelled.empty()) window_.why_cancelled = copier_.failure().value_or("");
}

// Of a window that is compared: once nothing is written any more.
void Capture::compare(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return window_.may_end(copier_.cancelled()); });
  if (!window_.compared || copier_.cancelled()) return;
  lock.unlock();
  const Result<WrittenEntry> written = check_.find_difference(copier_.slot(), [this] { return copier_.cancelled(); });
  lock.lock();
  if (!written) return cancel(written.error().what);
  if (!*written) return;
  window_.result.written = *written;
  cancel(kWritten);
}

// A slot, dirty with our step; nullopt: the window is void.
std::optional<Slot> Capture::choose(std::unique_lock<std::mutex>& lock) {
  turns_.open();
  for (int attempt = 0; !copier_.cancelled(); ++attempt) {
    const bool last = window_.last_chance;
    const bool needed = window_.needed;
    lock.unlock();
    const bool interrupted = source_.interrupted();
    std::optional<Slot> slot = interrupted ? std::nullopt : try_choose(needed);
    lock.lock();
    if (slot) return slot;
    if (interrupted) {
      cancel("a recovery or a stop is pending");
    } else if (last) {
      return std::nullopt;
    } else {
      changed_.wait_for(lock, attempt < kChooseSoonCount ? kChooseIntervalSoon : kChooseIntervalLater,
                        [this] { return copier_.cancelled() || window_.last_chance; });
    }
  }
  return std::nullopt;
}

std::optional<Slot> Capture::try_choose(bool needed) {
  TrainerPage& page = source_.page();
  Progress known = Progress::unpack(page.progress.load(std::memory_order_acquire));
  if (page.gate_off.load(std::memory_order_relaxed) != 0)
    known = Progress{Step(kStepMax), 0};  // a test's, see the page
  if (!turns_.takes(state_.generation, state_.step, known) && !needed) return std::nullopt;
  std::vector<SlotWord> words;
  for (std::uint32_t i = 0; i < arena_.slot_count(); ++i) words.push_back(arena_.slot(i).word_for_gate());
  const std::optional<std::uint32_t> chosen = choose_slot(words, known, state_.generation, state_.step);
  if (!chosen) return std::nullopt;
  const Slot slot = arena_.slot(*chosen);
  if (!slot.try_open(words[*chosen], state_.generation, state_.step, state_.samples)) return std::nullopt;
  page.reached.store(state_.step.value, std::memory_order_release);  // after the word: who reads it sees the slot dirty
  return slot;
}

void Capture::resolve(bool captured, std::string why) {
  TrainerPage& page = source_.page();
  if (captured) {
    const std::uint64_t bytes = copier_.slot().payload().size();
    add(page.windows_captured, 1);
    add(page.captured_bytes_total, bytes);
    window_.seal(bytes);
  } else {
    page.reached.store(state_.step.value, std::memory_order_release);
    add(page.windows_voided, 1);
    window_.make_void(std::move(why));
  }
  changed_.notify_all();
  source_.notify();
}

// --- The other copy threads.

void Capture::help(std::uint32_t index) {
  std::uint64_t helped = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || window_.wants_helper(index, helped); });
    if (ending_) return;
    helped = window_.number;
    ++window_.helping;
    lock.unlock();
    copier_.copy_until(source_.plan->first_volatile_bucket(), false);
    lock.lock();
    --window_.helping;
    changed_.notify_all();
  }
}

}  // namespace pawl::job
