// FenceBudget: how long a fence may wait for the copy, so that all waits together take no more than a share of the
// training's time.
//
// Time from one window to the next earns its share, and waits spend it; what is saved is one longest wait at most, and that
// much there is at first, since the first windows are compared with the live state and take longest. A copy that needs
// more than what is left is not waited for: so a state that can't be copied within a step is still protected in some
// steps, whenever enough is saved.
// Pure: the caller reads the clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "env/clock.h"

namespace pawl::job {

struct FenceBudgetOptions {
  Duration wait_max = std::chrono::seconds(10);  // of one fence
  std::uint32_t share_percent = 10;              // of the time between windows, 0..100
};

class FenceBudget {
 public:
  explicit FenceBudget(FenceBudgetOptions options) : options_(options), left_(options.wait_max) {}

  void window_opened(Duration now) {
    if (opened_at_) left_ = std::min(options_.wait_max, left_ + (now - *opened_at_) * options_.share_percent / 100);
    opened_at_ = now;
  }
  // Of the next wait. Never less than what isn't worth a step's protection.
  [[nodiscard]] Duration allowed() const { return std::min(options_.wait_max, std::max(left_, kAlwaysAllowed)); }
  void waited(Duration duration) { left_ = std::max(Duration::zero(), left_ - duration); }

 private:
  static constexpr Duration kAlwaysAllowed = std::chrono::milliseconds(5);
  FenceBudgetOptions options_;
  Duration left_;
  std::optional<Duration> opened_at_;
};

// How long the rest of a copy takes, if it goes on as it has; nullopt: nothing is done yet.
[[nodiscard]] inline std::optional<Duration> time_left(Duration spent, std::uint32_t done, std::uint32_t all) {
  if (done == 0) return std::nullopt;
  return spent * (all - std::min(done, all)) / done;
}

}  // namespace pawl::job
