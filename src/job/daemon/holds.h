// Holds: the phases in which a drill holds this daemon, so that a fault strikes exactly there. Thread-safe.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "env/tasks.h"

namespace pawl::job {

class Holds {
 public:
  explicit Holds(Tasks& tasks) : changed_(tasks.make_condition()) {}

  [[nodiscard]] static bool is_phase(const std::string& phase);  // one in which a daemon can be held

  void set(const std::string& phase);
  void release_all();
  // Whether a drill holds this phase; if so, it is told that somebody is held there.
  [[nodiscard]] bool is_held_at(const std::string& phase);
  // For tasks: returns when the hold is released or `ended` turns true; at once if there is none.
  void wait_at(const std::string& phase, const std::atomic<bool>& ended);
  void wake();                                             // whoever waits looks at its `ended`
  [[nodiscard]] std::map<std::string, bool> view() const;  // phase -> somebody is held there

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  std::map<std::string, bool> holds_;
};

}  // namespace pawl::job
