// Poller, SharedEvent, Event, Timer: waiting for many things at once (epoll, eventfd, timerfd).
//
// Level-triggered: what is not drained is reported again. One task waits on a Poller; any may add, modify, remove, wake.
// Event::raise is safe from any thread and from a signal handler.
// Poller and SharedEvent are seams: a Network makes them (env/network.h), because only it knows when its streams are
// ready. What they wait for goes by a handle: a descriptor in the real network, any number in a simulated one.
#pragma once

#include <cstdint>
#include <memory>
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
  virtual ~Poller() = default;
  // What the handle stands for stays the caller's and must be removed before it is closed. `key` comes back in Ready.
  // Fails: `io` if there is no such handle, or it was added already.
  [[nodiscard]] virtual Status add(int handle, std::uint64_t key, Interest interest) = 0;
  [[nodiscard]] virtual Status modify(int handle, std::uint64_t key, Interest interest) = 0;
  // One that is not there is no error.
  virtual void remove(int handle) = 0;

  // Waits until something is ready, `timeout` passes (negative: for ever), wake() was called or a signal comes; then
  // `ready` holds what is ready, perhaps nothing.
  [[nodiscard]] virtual Status wait(Duration timeout, std::vector<Ready>& ready) = 0;
  // The wait under way returns, or else the next one. Any task.
  virtual void wake() = 0;
};

[[nodiscard]] Result<std::unique_ptr<Poller>> make_real_poller();  // Fails: `io`.

// A flag that a Poller can wait for and that is handed to another process, which raises it too or waits for it.
class SharedEvent {
 public:
  virtual ~SharedEvent() = default;
  virtual void raise() = 0;  // handle() is readable from now on
  virtual bool lower() = 0;  // no longer; true if it was raised
  // For a Poller, and for Stream::send_with_fds.
  [[nodiscard]] virtual int handle() const = 0;
};

[[nodiscard]] Result<std::unique_ptr<SharedEvent>> make_real_shared_event();  // Fails: `io`.

// A flag as SharedEvent, always a real one: for what never runs in a simulation.
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
