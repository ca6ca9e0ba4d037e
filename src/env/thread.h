// Thread: one thread of ours, in a process that may be somebody else's.
//
// All signals are blocked in it, so that the program's handlers run where the program expects them; it has a name for
// people ("pawl-copy0"). Unlike std::thread, failing to start is an error to return, not an exception: a machine or a
// control group may have no more of them to give (pids.max). Must be joined or detached before it goes.
#pragma once

#include <pthread.h>

#include <functional>
#include <string>

#include "base/result.h"

namespace pawl {

class Thread {
 public:
  // Fails: `io` when the system has no more threads to give; then `body` is as it was.
  [[nodiscard]] static Result<Thread> start(const std::string& name, std::function<void()>&& body);
  Thread() = default;
  Thread(Thread&& other) noexcept : running_(other.running_), handle_(other.handle_) { other.running_ = false; }
  Thread& operator=(Thread&& other) noexcept;
  ~Thread() { join(); }
  void join();    // no thread: nothing
  void detach();  // likewise
  [[nodiscard]] bool running() const { return running_; }

 private:
  bool running_ = false;
  pthread_t handle_{};
};

}  // namespace pawl
