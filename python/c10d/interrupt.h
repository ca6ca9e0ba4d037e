// InterruptThread: sees within milliseconds that a recovery or a stop is pending, and lets the open generation fail.
//
// A native thread: Python's signal handlers and asynchronous exceptions do not run while a collective blocks, and this
// one needs no interpreter lock. It sleeps on libpawl's event fd without consuming events; they stay for their reader.
//
// Threads: start and stop are one thread's. One per process, as there is one trainer per process.
#pragma once

#include <thread>

namespace pawl {

class InterruptThread {
 public:
  static InterruptThread& only();

  InterruptThread(const InterruptThread&) = delete;
  InterruptThread& operator=(const InterruptThread&) = delete;

  void start();  // the library is attached
  void stop();   // returns when the thread has ended; no harm if there is none

  // Fails the open generation if libpawl is interrupted; true if it is. Any thread.
  static bool check();

 private:
  InterruptThread() = default;
  static void watch(int event_fd, int stop_fd);

  std::thread thread_;
  int stop_fd_ = -1;
};

}  // namespace pawl
