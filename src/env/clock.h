// Clock: what time it is, and waiting. The seam where a simulation puts its own time.
//
// Three times, each since its own zero: never subtract one from another.
// Pure code takes `now` as an argument and never holds a Clock. Thread-safe.
#pragma once

#include "base/ids.h"

namespace pawl {

class Clock {
 public:
  virtual ~Clock() = default;
  // Steady; stands still while the machine sleeps. For deadlines and for measuring (CLOCK_MONOTONIC).
  [[nodiscard]] virtual Duration now() = 0;
  // Steady, and runs on while the machine sleeps. For the age of leases (CLOCK_BOOTTIME).
  [[nodiscard]] virtual Duration boottime() = 0;
  // Since 1970, UTC; may jump. For people only, never for a decision.
  [[nodiscard]] virtual Duration wall() = 0;
  // Returns after `duration` on now(), signals notwithstanding; at once where it is not positive.
  virtual void sleep(Duration duration) = 0;
  // How long the calling thread has been ready and had to wait for a core, since it began; for telling what took long
  // from what only stood in a queue. Zero where the system does not say (it needs the kernel's scheduler statistics).
  [[nodiscard]] virtual Duration waited_for_core() { return Duration::zero(); }
};

[[nodiscard]] Clock& real_clock();

// A moment on a clock's now() by which something must be done. One deadline is handed through a chain of calls, so
// their waits don't add up. The clock outlives it. Whoever may run in a simulation names the environment's clock.
class Deadline {
 public:
  [[nodiscard]] static Deadline in(Duration duration, Clock& clock = real_clock());  // that much from now
  [[nodiscard]] static Deadline at(Duration moment, Clock& clock = real_clock()) { return {moment, clock}; }
  [[nodiscard]] static Deadline never() { return {Duration::max(), real_clock()}; }  // asks no clock

  [[nodiscard]] Duration moment() const { return at_; }
  [[nodiscard]] bool is_never() const { return at_ == Duration::max(); }
  [[nodiscard]] Duration left() const;         // never negative; Duration::max() for never()
  [[nodiscard]] int left_for_poll_ms() const;  // as poll(2) wants it: rounded up, -1 for never()
  [[nodiscard]] bool passed() const { return left() == Duration::zero(); }

 private:
  Deadline(Duration at, Clock& clock) : at_(at), clock_(&clock) {}
  Duration at_;
  Clock* clock_;
};

}  // namespace pawl
