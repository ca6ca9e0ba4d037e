// ToldWaits: whether a recovery that takes long says what it waits for, and goes on saying it.
//
// A wait is told soon, and then after pauses that grow (job/recovery/recovery_waits.h). One that has been told counts for as
// long as its next telling is not due; that of a node which is ready by now counts no more, whatever it said before.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/ids.h"
#include "env/clock.h"

namespace pawl::sim {

class ToldWaits {
 public:
  explicit ToldWaits(Duration patience) : patience_(patience) {}

  void begin(Duration now);  // a generation restores
  void on_event(const std::string& json, Duration now);
  void on_ready(std::uint32_t node) { ready_.insert(node); }
  // Each some milliseconds. `heard`: all can say something. False: nobody has, for too long.
  [[nodiscard]] bool look(bool restores, bool heard, Duration now);

 private:
  struct Teller {
    Duration at{};
    Duration age{};  // of the wait by then
    Duration pause{};
  };
  [[nodiscard]] bool is_told(Duration now) const;

  const Duration patience_;
  std::map<std::pair<std::uint32_t, bool>, Teller>
      tellers_;  // by node, and whether it speaks of a seat or as the leader
  std::set<std::uint32_t> ready_;
  Duration began_{};
  Duration silent_since_{};
  Duration excused_until_{};  // what could not be said is said again after its pause
};

}  // namespace pawl::sim
