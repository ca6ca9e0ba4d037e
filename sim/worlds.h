// Worlds: which seats a simulated job has in each generation, and from which seats before they go on; and who asks for another
// world, beside the faults.
//
// Seats vanish, come back and change their order. What the job is asked for is kept here, and what each seat must have in its
// memory follows from that alone, whatever the job's own state says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "job/membership/job_state.h"

namespace pawl::sim {

class Cluster;

class Worlds {
 public:
  explicit Worlds(std::uint32_t seats);
  void wish(std::vector<Seat> before);  // for the next recovery, if that may be
  void give_up() { wished_.reset(); }
  [[nodiscard]] const std::optional<std::vector<Seat>>& wished() const { return wished_; }
  // A state in which a recovery is decided. Empty, or what is wrong: another world than the one before, or one that was asked for.
  [[nodiscard]] std::string decided(const job::JobState& state);
  [[nodiscard]] const std::vector<Seat>& first() const { return by_generation_.begin()->second; }
  [[nodiscard]] const std::vector<Seat>& now() const { return by_generation_.rbegin()->second; }
  [[nodiscard]] const std::vector<Seat>& in(Generation generation) const;
  [[nodiscard]] std::uint32_t changes() const { return static_cast<std::uint32_t>(by_generation_.size() - 1); }

 private:
  std::map<std::uint64_t, std::vector<Seat>>
      by_generation_;  // from which each is the world: of each seat the seat before
  std::vector<std::vector<Seat>> given_;
  std::optional<std::vector<Seat>> wished_;
};

// At some time drawn from the seed another world is wished, and most often a trainer dies then; perhaps the first one after that, and
// so on, a few times. `on_end`: nothing is wished any more.
void change_worlds(Cluster& cluster, std::function<void()> on_end);

}  // namespace pawl::sim
