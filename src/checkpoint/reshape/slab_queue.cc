#include "checkpoint/reshape/slab_queue.h"

#include <chrono>
#include <utility>

namespace pawl::checkpoint {

using namespace std::chrono_literals;

bool SlabQueue::push(Slab slab, const std::function<bool()>& stopped) {
  std::unique_lock lock(mutex_);
  while (slabs_.size() >= slabs_max_) {
    if (stopped()) return false;
    changed_.wait_for(lock, 20ms);
  }
  slabs_.push_back(std::move(slab));
  changed_.notify_all();
  return true;
}

void SlabQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::optional<Slab> SlabQueue::pop(const std::function<bool()>& stopped) {
  std::unique_lock lock(mutex_);
  while (slabs_.empty() && !closed_ && !stopped()) changed_.wait_for(lock, 20ms);
  if (slabs_.empty() || stopped()) return std::nullopt;
  Slab slab = std::move(slabs_.front());
  slabs_.pop_front();
  changed_.notify_all();
  return slab;
}

}  // namespace pawl::checkpoint
