// RecoveryWatch: says what a recovery waits for, seat by seat, before anybody has to ask; and ends waits that last too long.
//
// Looks at every tick, while the job recovers. What it sees is judged in recovery/recovery_waits.h; whom the leader waits for
// is the leader's to say. Events go to every node, so only the first few members that are not ready tell them, one for all
// of their seats, and the leader or another of the first few members; what each seat waits for, its own node answers (waits()). Of a job that starts nothing is told: its
// trainers take what they take.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/imports.h"
#include "job/daemon/memory.h"
#include "job/daemon/node_context.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/trainers.h"
#include "job/recovery/recovery_waits.h"

namespace pawl::job {

class RecoveryWatch {
 public:
  struct Parts {
    NodeContext& context;
    Trainers& trainers;
    Memory& memory;
    Imports& imports;
    StateMover& mover;
    Events& events;
  };
  explicit RecoveryWatch(Parts parts) : parts_(parts) {}

  void tick();
  struct Wait {
    std::optional<Seat> seat;  // nullopt: the job's
    SeatWait wait;
  };
  [[nodiscard]] const std::vector<Wait>& waits() const { return waits_; }  // as of the last tick

 private:
  [[nodiscard]] SeatView view_of(Seat seat) const;
  [[nodiscard]] SeatTrainer trainer_at(Seat seat) const;
  void look_at(Seat seat);
  void give_up(Seat seat, const WaitVerdict& verdict);
  [[nodiscard]] bool is_among_first(const std::vector<NodeLife>& others) const;
  [[nodiscard]] bool may_ask_who_waits(Duration waited) const;
  void tell_of_seats();
  void look_at_leader();
  void tell(const Wait& wait, std::size_t seats);

  Parts parts_;
  Generation watched_;
  JobPhase phase_ = JobPhase::forming;  // of that generation
  std::map<Seat, WaitNotes> notes_;
  WaitNotes leaders_;
  std::vector<Wait> waits_;
};

}  // namespace pawl::job
