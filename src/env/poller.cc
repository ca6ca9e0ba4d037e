#include "env/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "base/text.h"
#include "env/clock.h"
#include "env/tasks.h"

namespace pawl {
namespace {

epoll_event event_for(std::uint64_t key, Interest interest) {
  epoll_event event{};
  event.events = EPOLLRDHUP;
  if (interest.read) event.events |= EPOLLIN;
  if (interest.write) event.events |= EPOLLOUT;
  event.data.u64 = key;
  return event;
}

bool read_counter(int fd) {
  std::uint64_t count = 0;
  return ::read(fd, &count, sizeof count) == static_cast<ssize_t>(sizeof count);
}

// Its own key is the greatest: callers count theirs from below.
constexpr std::uint64_t kWakeKey = ~std::uint64_t{0};

class EpollPoller final : public Poller {
 public:
  EpollPoller(Fd epoll, Event wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

  Status add(int fd, std::uint64_t key, Interest interest) override {
    return control(EPOLL_CTL_ADD, fd, key, interest);
  }
  Status modify(int fd, std::uint64_t key, Interest interest) override {
    return control(EPOLL_CTL_MOD, fd, key, interest);
  }
  void remove(int fd) override { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

  Status wait(Duration timeout, std::vector<Ready>& ready) override {
    ready.clear();
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
    const int timeout_ms = timeout < Duration::zero() ? -1 : static_cast<int>(std::min<long>(ms, INT_MAX));
    epoll_event events[64];
    const int count = epoll_wait(epoll_.get(), events, 64, timeout_ms);
    const int why = errno;
    help_waiting_tasks();
    if (count < 0 && why != EINTR) return system_error("wait for descriptors", why);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWakeKey) {
        wake_.lower();
        continue;
      }
      const std::uint32_t bits = events[i].events;
      const bool hung_up = (bits & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
      ready.push_back(
          {events[i].data.u64, (bits & EPOLLIN) != 0 || hung_up, (bits & (EPOLLOUT | EPOLLERR)) != 0, hung_up});
    }
    return {};
  }
  void wake() override { wake_.raise(); }

 private:
  Status control(int operation, int fd, std::uint64_t key, Interest interest) {
    epoll_event event = event_for(key, interest);
    if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) return system_error(text("poll descriptor ", fd), errno);
    return {};
  }

  const Fd epoll_;
  const Event wake_;
};

class RealSharedEvent final : public SharedEvent {
 public:
  explicit RealSharedEvent(Event event) : event_(std::move(event)) {}
  void raise() override { event_.raise(); }
  bool lower() override { return event_.lower(); }
  int handle() const override { return event_.fd(); }

 private:
  const Event event_;
};

}  // namespace

Result<std::unique_ptr<Poller>> make_real_poller() {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return system_error("make a poller", errno);
  PAWL_ASSIGN(Event wake, Event::make());
  const int wake_fd = wake.fd();
  std::unique_ptr<Poller> poller = std::make_unique<EpollPoller>(std::move(epoll), std::move(wake));
  PAWL_TRY(poller->add(wake_fd, kWakeKey, kRead));
  return poller;
}

Result<std::unique_ptr<SharedEvent>> make_real_shared_event() {
  PAWL_ASSIGN(Event event, Event::make());
  return std::unique_ptr<SharedEvent>(std::make_unique<RealSharedEvent>(std::move(event)));
}

Result<Event> Event::make() {
  Fd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return system_error("make an event", errno);
  return Event(std::move(fd));
}

void Event::raise() const {
  const int saved = errno;  // it may be called from a signal handler
  const std::uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(fd_.get(), &one, sizeof one);  // full means it is raised already
  errno = saved;
}

bool Event::lower() const {
  return read_counter(fd_.get());
}

Result<Timer> Timer::make() {
  Fd fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd.valid()) return system_error("make a timer", errno);
  return Timer(std::move(fd));
}

void Timer::arm_at(Duration moment) const {
  const auto at = std::max<Duration::rep>(moment.count(), 1);  // zero would disarm it
  itimerspec setting{};
  setting.it_value.tv_sec = static_cast<time_t>(at / 1'000'000'000);
  setting.it_value.tv_nsec = static_cast<long>(at % 1'000'000'000);
  timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &setting, nullptr);
}

void Timer::arm_in(Duration duration) const {
  arm_at(real_clock().now() + duration);
}

void Timer::disarm() const {
  const itimerspec nothing{};
  timerfd_settime(fd_.get(), 0, &nothing, nullptr);
}

bool Timer::lower() const {
  return read_counter(fd_.get());
}

}  // namespace pawl
