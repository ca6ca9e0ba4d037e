#include "env/clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <ctime>

#include "base/text.h"
#include "env/fd.h"

namespace pawl {
namespace {

Duration read_clock(clockid_t id) {
  timespec value{};
  clock_gettime(id, &value);
  return std::chrono::seconds(value.tv_sec) + std::chrono::nanoseconds(value.tv_nsec);
}

// In nanoseconds: on a core, waiting for one; then how many turns it had.
Duration read_wait(int schedstat) {
  std::array<char, 96> line{};
  const ssize_t got = pread(schedstat, line.data(), line.size(), 0);
  if (got <= 0) return Duration::zero();
  const std::string_view fields(line.data(), static_cast<std::size_t>(got));
  const std::size_t first = fields.find(' ');
  if (first == std::string_view::npos) return Duration::zero();
  const std::string_view rest = fields.substr(first + 1);
  std::uint64_t waited = 0;
  return parse_number(rest.substr(0, rest.find(' ')), waited) ? Duration(static_cast<std::int64_t>(waited))
                                                              : Duration::zero();
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
  Duration waited_for_core() override {
    thread_local const Fd schedstat(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
    return read_wait(schedstat.get());
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
