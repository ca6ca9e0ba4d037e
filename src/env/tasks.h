// Tasks: whatever blocks runs as a task of its own. The seam where a simulation runs all tasks on one thread.
//
// A task may block only in calls of env: Clock::sleep, Condition, Stream, Poller::wait, Files, Processes. A mutex may be
// held over none of them but Condition::wait and wait_for, which let go of it meanwhile. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/ids.h"

namespace pawl {

// A running task. Destroying it neither ends it nor waits for it.
class Task {
 public:
  virtual ~Task() = default;
  virtual void join() = 0;  // until it has returned; once
};

// What tasks wait on, beside a mutex of the caller's, as with std::condition_variable. Outlives every wait.
class Condition {
 public:
  virtual ~Condition() = default;
  // Lets go of the lock until notified, or until `at_most` has passed on Clock::now(). May also return for no reason.
  virtual void wait_for(std::unique_lock<std::mutex>& lock, Duration at_most) = 0;
  virtual void wait(std::unique_lock<std::mutex>& lock) = 0;  // as wait_for, with no limit
  virtual void notify_all() = 0;                              // any task
};

class Tasks {
 public:
  virtual ~Tasks() = default;
  // `name` is for people: at most 15 characters are shown by the system. Where there is no thread to be had, the task
  // begins when there is one again, which is tried once a second, or in whoever joins it.
  virtual std::unique_ptr<Task> start(const std::string& name, std::function<void()> body) = 0;
  [[nodiscard]] virtual std::unique_ptr<Condition> make_condition() = 0;
};

[[nodiscard]] Tasks& real_tasks();  // threads

// For whoever waits in env and comes back (a real Poller does it): where not even the thread could be made that begins tasks later, this tries
// it again, once a second at most. Any thread; costs a load where nothing waits.
void help_waiting_tasks();

}  // namespace pawl
