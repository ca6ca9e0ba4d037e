// Poller, Event, Timer: waiting for many descriptors at once (epoll, eventfd, timerfd).
//
// Level-triggered: what is not drained is reported again. One thread waits on a Poller; any thread may add, modify,
// remove. Event::raise is safe from any thread and from a signal handler.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "env/fd.h"

namespace pawl {

struct Interest {
  bool read = false;
  bool write = false;
};
inline constexpr Interest kRead{true, false};
inline constexpr Interest kWrite{false, true};
inline constexpr Interest kReadWrite{true, true};

struct Ready {
  std::uint64_t key = 0;
  bool readable = false;  // also when the peer closed, or on an error: the next read tells
  bool writable = false;
  bool hung_up = false;  // closed by the peer, or broken
};

class Poller {
 public:
  // Fails: `io`.
  [[nodiscard]] static Result<Poller> make();

  // `fd` stays the caller's and must be removed before it is closed. `key` comes back in Ready.
  [[nodiscard]] Status add(int fd, std::uint64_t key, Interest interest);
  [[nodiscard]] Status modify(int fd, std::uint64_t key, Interest interest);
  // One that is not there is no error.
  void remove(int fd);

  // Waits until something is ready, `timeout` passes (negative: for ever) or a signal comes; then `ready` holds what
  // is ready, perhaps nothing.
  [[nodiscard]] Status wait(Duration timeout, std::vector<Ready>& ready);
  [[nodiscard]] int fd() const { return epoll_.get(); }

 private:
  explicit Poller(Fd epoll) : epoll_(std::move(epoll)) {}
  Fd epoll_;
};

// A flag that a Poller can wait for.
class Event {
 public:
  [[nodiscard]] static Result<Event> make();
  void raise() const;  // fd() is readable from now on
  bool lower() const;  // no longer; true if it was raised
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  explicit Event(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// One moment on Clock::now() that a Poller can wait for.
class Timer {
 public:
  [[nodiscard]] static Result<Timer> make();
  void arm_at(Duration moment) const;  // fd() is readable from then on; a moment in the past: at once
  void arm_in(Duration duration) const;
  void disarm() const;
  bool lower() const;  // no longer readable until armed again; true if it had fired
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  explicit Timer(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace pawl
