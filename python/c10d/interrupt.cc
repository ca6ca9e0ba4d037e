#include "interrupt.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <stdexcept>

#include "generation.h"
#include "library.h"

namespace pawl {
namespace {

// An event may be lowered and raised between two sleeps; the flag itself is looked at that often in any case.
constexpr int kLookEveryMs = 100;

void add(int loop, int descriptor, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  ::epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &event);
}

}  // namespace

InterruptThread& InterruptThread::only() {
  // Never destroyed: at the end of the process its thread may still run.
  static auto* thread = new InterruptThread;
  return *thread;
}

void InterruptThread::start() {
  stop();
  const int event_fd = Library::loaded().event_fd();
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC);
  if (stop_fd_ < 0) throw std::runtime_error("pawl: no file descriptor is left for the interrupt thread");
  thread_ = std::thread(watch, event_fd, stop_fd_);
}

void InterruptThread::stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  while (::write(stop_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
  ::close(stop_fd_);
  stop_fd_ = -1;
}

bool InterruptThread::check() {
  if (!Library::loaded().interrupted()) return false;
  const Generation::State state = Generation::current().state();
  Generation::current().fail(state.number, "interrupted: generation " + std::to_string(state.number));
  return true;
}

void InterruptThread::watch(int event_fd, int stop_fd) {
  ::pthread_setname_np(::pthread_self(), "pawl-interrupt");
  const int loop = ::epoll_create1(EPOLL_CLOEXEC);
  if (loop < 0) return;
  add(loop, stop_fd, EPOLLIN);
  // Edge-triggered: an event that its reader leaves unread must not keep this thread awake.
  if (event_fd >= 0) add(loop, event_fd, EPOLLIN | EPOLLET);
  for (bool stopped = false; !stopped;) {
    epoll_event events[2];
    const int count = ::epoll_wait(loop, events, 2, kLookEveryMs);
    for (int i = 0; i < count; ++i) stopped = stopped || events[i].data.fd == stop_fd;
    if (!stopped) check();
  }
  ::close(loop);
}

}  // namespace pawl
