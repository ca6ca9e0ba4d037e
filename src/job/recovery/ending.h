// The end of a job: the step after which it stops, and who has finished. What one daemon does about them. Pure.
#pragma once

#include <map>
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

// The seats that have ended their steps in this generation, and of those the ones whose last window is committed.
struct EndedSeats {
  std::vector<SeatStep> ended;
  std::vector<Seat> finished;
};
[[nodiscard]] EndedSeats ended_seats(const std::map<Seat, SeatFinish>& finishes, Generation generation);

}  // namespace pawl::job
