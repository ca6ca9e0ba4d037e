// CopyPace: how many threads copy the next window, from how long the last ones took.
//
// One more where a copy fills most of its window, so that the fence would soon wait for it; one fewer where half of the
// window would do with one fewer, many times in a row: a thread that copies is a core that doesn't train.
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "env/clock.h"

namespace pawl::job {

class CopyPace {
 public:
  // Between `least` and `most`, both at least 1; at first two, where that many are allowed.
  CopyPace(std::uint32_t least, std::uint32_t most)
      : least_(least), most_(std::max(least, most)), count_(std::clamp(2u, least_, most_)) {}

  [[nodiscard]] std::uint32_t thread_count() const { return count_; }

  // `open`: from the window's opening to its fence. `copied`: how much of it, and of the wait at the fence, the copy took.
  void window_closed(Duration open, Duration copied) {
    const auto with_one_fewer = count_ > 1 ? copied * count_ / (count_ - 1) : Duration::max();
    if (copied > open * 3 / 4) {
      count_ = std::min(most_, count_ + 1);
      roomy_windows_ = 0;
    } else if (with_one_fewer < open / 2) {
      if (++roomy_windows_ < kRoomyWindows) return;
      count_ = std::max(least_, count_ - 1);
      roomy_windows_ = 0;
    } else {
      roomy_windows_ = 0;
    }
  }

 private:
  static constexpr std::uint32_t kRoomyWindows = 16;
  const std::uint32_t least_, most_;
  std::uint32_t count_;
  std::uint32_t roomy_windows_ = 0;
};

}  // namespace pawl::job
