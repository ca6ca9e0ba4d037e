#include "job/daemon/holds.h"

#include <chrono>

namespace pawl::job {

using namespace std::chrono_literals;

bool Holds::is_phase(const std::string& phase) {
  for (const char* known : {"suspect", "ack", "frozen", "decide", "import", "seated"})
    if (phase == known) return true;
  return false;
}

void Holds::set(const std::string& phase) {
  std::lock_guard lock(mutex_);
  holds_[phase] = false;
}

void Holds::release_all() {
  {
    std::lock_guard lock(mutex_);
    holds_.clear();
  }
  changed_->notify_all();
}

bool Holds::is_held_at(const std::string& phase) {
  std::lock_guard lock(mutex_);
  auto found = holds_.find(phase);
  if (found == holds_.end()) return false;
  found->second = true;
  return true;
}

void Holds::wait_at(const std::string& phase, const std::atomic<bool>& ended) {
  std::unique_lock lock(mutex_);
  auto held = [&] { return holds_.count(phase) > 0 && !ended; };
  if (!held()) return;
  holds_[phase] = true;
  while (held()) changed_->wait_for(lock, 5ms);
}

void Holds::wake() {
  changed_->notify_all();
}

std::map<std::string, bool> Holds::view() const {
  std::lock_guard lock(mutex_);
  return holds_;
}

}  // namespace pawl::job
