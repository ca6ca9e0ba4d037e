// Acceptor: takes whoever connects to a listener.
//
// Where that fails (this process has no file descriptor left, or the machine no memory) it rests for kAcceptRest: whoever waits
// stays waiting, so that the listener is readable all the time, and a loop that asked on would do nothing else.
// It belongs to its loop's thread, and doesn't outlive what it calls.
#pragma once

#include <functional>
#include <memory>

#include "job/daemon/loop.h"

namespace pawl::job {

inline constexpr Duration kAcceptRest = std::chrono::milliseconds(100);

class Acceptor {
 public:
  using Taken = std::function<void(std::unique_ptr<Stream>)>;  // may stop this acceptor
  Acceptor(Loop& loop, std::unique_ptr<Listener> listener, Taken taken)
      : loop_(loop), listener_(std::move(listener)), taken_(std::move(taken)) {}
  ~Acceptor() { *gone_ = true; }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  void start();  // does nothing if it has
  void stop();   // who waits is taken when it starts again

 private:
  void watch();
  void accept_all();

  Loop& loop_;
  const std::unique_ptr<Listener> listener_;
  const Taken taken_;
  bool started_ = false;
  bool rests_ = false;
  std::uint64_t watch_ = 0;  // 0: the listener is not watched
  Duration told_at_{};       // that it failed
  std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);
};

}  // namespace pawl::job
