// RecoveryTally: what people are told of deaths and recoveries, from a job's events (docs/protocol.md).
//
// Pure. Events of one node come in order; those of several may overtake each other by a little, and wall clocks differ
// by a little.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_access.h"

namespace pawl::job {

// Of `pawl status` and of the event `recovery_waits`: "seat 3 waits for 412 MiB from node 2, 4.1 s so far".
[[nodiscard]] std::string wait_text(const json& wait);
// Of `pawl status` and of the event `paths_differ`: "seat 1 differs from seat 0 and 2 others since step 20, in bytes 0-".
[[nodiscard]] std::string difference_text(const json& one);

class RecoveryTally {
 public:
  // A sentence for people, if the event is worth one.
  [[nodiscard]] std::optional<std::string> note(const json& event);
  // Of all recoveries so far; empty: there was none.
  [[nodiscard]] std::string totals() const;
  // A script failed when the job had done its last step: it may not have saved what came of it.
  [[nodiscard]] bool failed_after_all() const { return failed_after_all_; }

 private:
  [[nodiscard]] std::optional<std::string> note_running(const json& event);
  // What a trainer said at its end is quoted once: all seats may end for one reason. The verdict quotes it again.
  [[nodiscard]] std::string note_ended(const json& event);

  std::uint64_t ran_ = 0;                  // the last generation that did
  std::optional<std::uint64_t> fault_ms_;  // the first since then
  std::uint64_t begun_step_ = 0;           // by any seat, when it was frozen since then
  std::uint64_t recoveries_ = 0;
  std::uint64_t redone_ = 0;
  std::uint64_t took_ms_ = 0;
  bool failed_after_all_ = false;
  std::vector<std::string> quoted_;
};

}  // namespace pawl::job
