// BadCollectors: what goes wrong with the reports that a collector puts (job/recovery/report_groups.h), by its death, a slow
// control, or a fault of its own.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "control.h"
#include "scheduler.h"

namespace pawl::sim {

class BadCollectors {
 public:
  BadCollectors(Scheduler& scheduler, std::uint64_t seed, bool may_die)
      : scheduler_(scheduler), may_die_(may_die), random_(seed * 0x9e3779b97f4a7c15ull + 31) {}
  // Of a key below :reports/: what happens to it. Half of the collected ones are put as they are.
  [[nodiscard]] PutFault strike(Process& client, const std::string& key, std::string& value);

 private:
  enum class Trouble { dies_before, dies_after, late, never, drops, changes, stale, count };
  Scheduler& scheduler_;
  const bool may_die_;
  std::mt19937_64 random_;
  std::string last_;  // that was put as it is: of this generation, or the last one
  Duration no_death_before_{};
};

}  // namespace pawl::sim
