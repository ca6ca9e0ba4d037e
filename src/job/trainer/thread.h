// Thread: one of libpawl's own threads inside the training process.
//
// All signals are blocked in it, so that the trainer's handlers run where the trainer expects them; it has a name for
// people ("pawl-copy0"). Unlike std::thread, failing to start is an error to return, not an exception.
// Must be joined before it goes.
#pragma once

#include <pthread.h>

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace pawl::job {

class Thread {
 public:
  // Fails: `io` when the system has no more threads to give.
  [[nodiscard]] static Result<Thread> start(const std::string& name, std::function<void()> body);
  Thread() = default;
  Thread(Thread&& other) noexcept : body_(std::move(other.body_)), handle_(other.handle_) {}
  Thread& operator=(Thread&& other) noexcept;
  ~Thread() { join(); }
  void join();  // no thread: nothing
  [[nodiscard]] bool running() const { return body_ != nullptr; }

 private:
  std::unique_ptr<std::function<void()>> body_;  // nullptr: no thread
  pthread_t handle_{};
};

}  // namespace pawl::job
