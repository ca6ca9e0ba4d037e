// SlabQueue: slabs on their way from the thread that plans to the lanes that execute them. Bounded; thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "checkpoint/reshape/slabs.h"

namespace pawl::checkpoint {

class SlabQueue {
 public:
  explicit SlabQueue(std::size_t slabs_max) : slabs_max_(slabs_max) {}
  // Waits for room. False if `stopped` became true meanwhile: then the slab is dropped.
  bool push(Slab slab, const std::function<bool()>& stopped);
  void close();
  // Waits for a slab. Nothing if the queue is closed and empty, or stopped.
  [[nodiscard]] std::optional<Slab> pop(const std::function<bool()>& stopped);

 private:
  std::size_t slabs_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slab> slabs_;
  bool closed_ = false;
};

}  // namespace pawl::checkpoint
