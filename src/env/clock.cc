#include "env/clock.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

namespace pawl {
namespace {

Duration read_clock(clockid_t id) {
  timespec value{};
  clock_gettime(id, &value);
  return std::chrono::seconds(value.tv_sec) + std::chrono::nanoseconds(value.tv_nsec);
}

class RealClock final : public Clock {
 public:
  Duration now() override { return read_clock(CLOCK_MONOTONIC); }
  Duration boottime() override { return read_clock(CLOCK_BOOTTIME); }
  Duration wall() override { return read_clock(CLOCK_REALTIME); }
  void sleep(Duration duration) override {
    if (duration <= Duration::zero()) return;
    const Duration end = now() + duration;
    timespec until{};
    until.tv_sec = static_cast<time_t>(end.count() / 1'000'000'000);
    until.tv_nsec = static_cast<long>(end.count() % 1'000'000'000);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }
};

}  // namespace

Clock& real_clock() {
  static RealClock* clock = new RealClock;  // never destroyed: threads may still ask while the process exits
  return *clock;
}

Deadline Deadline::in(Duration duration, Clock& clock) {
  const Duration now = clock.now();
  return {duration > Duration::max() - now ? Duration::max() : now + duration, clock};
}

Duration Deadline::left() const {
  if (is_never()) return Duration::max();
  return std::max(at_ - clock_->now(), Duration::zero());
}

int Deadline::left_for_poll_ms() const {
  if (is_never()) return -1;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left()).count();
  return static_cast<int>(std::min<decltype(ms)>(ms, INT_MAX));
}

}  // namespace pawl
