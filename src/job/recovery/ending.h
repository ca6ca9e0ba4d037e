// The end of a job: the step after which it stops, and who has finished. What one daemon does about them. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "job/recovery/decide.h"

namespace pawl::job {

// A seat's trainer waits for the end of the job.
struct SeatFinish {
  Generation generation;
  Step step;               // the last that the seat has begun
  bool committed = false;  // its last window
  bool operator==(const SeatFinish&) const = default;
};

// The first proposal of a last step is the one. Who asked is answered when every member has it in its trainers' pages,
// so that no seat can miss it (a new page has it from the first).
struct StopView {
  Step stop_step;                     // the job's last; 0: nobody has asked for an end
  std::map<NodeId, Generation> told;  // nodes whose trainers see it, as of which generation
};
struct StopDuties {
  bool acknowledge = false;  // this node's trainers see it: tell the others
  bool answer = false;       // all trainers see it
  bool propose = false;      // nobody has asked yet: propose what a trainer here asks for
};
[[nodiscard]] StopDuties decide_stop(const JobState& state, const StopView& view, NodeLife self);

// Who waits for the end, as an index: every node asks it at each key that comes, while all of thousands of seats end.
class Finishes {
 public:
  void note(Seat seat, const SeatFinish& finish);
  void forget(Seat seat);
  void clear();
  [[nodiscard]] const SeatFinish* of(Seat seat) const;  // nullptr: the seat has told nothing
  [[nodiscard]] std::size_t size() const { return by_seat_.size(); }
  // The two that ended with the least steps in this generation: one of them is another seat than the one that asks.
  [[nodiscard]] std::vector<SeatStep> earliest(Generation generation) const;
  [[nodiscard]] std::size_t finished_count(Generation generation) const;        // seats whose last window is committed
  [[nodiscard]] std::vector<Seat> finished_seats(Generation generation) const;  // these; linear in all

 private:
  struct Ended {
    std::set<std::pair<Step, Seat>> by_step;
    std::size_t finished = 0;
  };
  std::map<Seat, SeatFinish> by_seat_;
  std::map<Generation, Ended> by_generation_;
};

}  // namespace pawl::job
