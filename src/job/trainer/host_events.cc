#include "job/trainer/host_events.h"

#include "job/redundancy/progress.h"

namespace pawl::job {

void HostEvents::set_joined(Generation generation, Seat seat) {
  std::lock_guard lock(mutex_);
  joined_ = generation.value;
  seat_ = seat.value;
  if (recovery_ <= generation.value) recovery_ = 0;
}

bool HostEvents::recovery_pending() const {
  return page_.get().recover_generation.load(std::memory_order_acquire) > joined_.load(std::memory_order_relaxed);
}

bool HostEvents::collect() {
  bool is_urgent = false;
  std::lock_guard lock(mutex_);
  const TrainerPage& now = page_.get();
  const std::uint64_t recovery = now.recover_generation.load(std::memory_order_acquire);
  if (recovery > joined_ && recovery > recovery_told_) {
    recovery_ = recovery_told_ = recovery;
    is_urgent = true;
  }
  if (now.stop.load(std::memory_order_acquire) != 0 && !stop_told_) is_urgent = stop_ = stop_told_ = true;
  const std::uint64_t committed = Progress::unpack(now.progress.load(std::memory_order_acquire)).committed.value;
  if (committed > committed_told_) committed_ = committed_told_ = committed;
  if (recovery_ != 0 || stop_ || committed_ != 0) {
    event_.raise();
  } else {
    event_.lower();
  }
  return is_urgent;
}

bool HostEvents::next(pawl_event& event) {
  std::lock_guard lock(mutex_);
  if (recovery_ != 0) {
    event.kind = PAWL_EVENT_RECOVERY;
    event.value = std::exchange(recovery_, 0);
  } else if (stop_) {
    stop_ = false;
    event.kind = PAWL_EVENT_STOP;
    event.value = 0;
  } else if (committed_ != 0) {
    event.kind = PAWL_EVENT_COMMITTED;
    event.value = std::exchange(committed_, 0);
  } else {
    return false;
  }
  if (recovery_ == 0 && !stop_ && committed_ == 0) event_.lower();
  return true;
}

void HostEvents::clear() {
  std::lock_guard lock(mutex_);
  recovery_ = committed_ = 0;
  if (!stop_) event_.lower();
}

}  // namespace pawl::job
