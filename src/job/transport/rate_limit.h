// RateLimit: when the next bytes may be sent, so that no more than so many a second are.
//
// A token bucket that may be overdrawn by one piece: a piece is sent whole as soon as nothing is owed, and what it costs
// is owed then. In any time t at most rate * (t + kRateBurst) bytes and one piece are let through. Pure: `now` is an
// argument, of any clock that is steady. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "base/ids.h"

namespace pawl::job {

inline constexpr Duration kRateBurst =
    std::chrono::milliseconds(50);  // what was not sent for so long may be made up for

class RateLimit {
 public:
  explicit RateLimit(std::uint64_t bytes_a_second) : bytes_a_second_(bytes_a_second) {}  // 0: no limit
  // Zero: the bytes may be sent now, and are counted. Else nothing is counted: ask again after so long.
  [[nodiscard]] Duration take(std::uint64_t bytes, Duration now) {
    if (bytes_a_second_ == 0) return Duration::zero();
    const Duration paid_at = std::max(paid_at_, now - kRateBurst);
    if (paid_at > now) return paid_at - now;
    const double cost_s = static_cast<double>(bytes) / static_cast<double>(bytes_a_second_);
    paid_at_ = paid_at + Duration(static_cast<std::int64_t>(std::ceil(std::min(cost_s, kCostMaxS) * 1e9)));
    return Duration::zero();
  }
  [[nodiscard]] std::uint64_t bytes_a_second() const { return bytes_a_second_; }

 private:
  static constexpr double kCostMaxS = 1e9;  // a lifetime: no sum of these overflows
  std::uint64_t bytes_a_second_;
  Duration paid_at_ = Duration::min() / 2;  // when nothing will be owed any more
};

}  // namespace pawl::job
