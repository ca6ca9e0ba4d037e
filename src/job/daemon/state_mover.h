// StateMover: how this node moves the job's state: it forms the job, reports faults, leads a recovery, ends the job.
//
// Each move is a decision of recovery/ written by compare-and-swap; whoever wins it, the state that stands is learned
// and the daemon drives on. One swap at a time: a move that comes meanwhile is dropped, and decided again later from
// the state that then stands.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/holds.h"
#include "job/daemon/node_context.h"

namespace pawl::job {

class StateMover {
 public:
  struct Handlers {
    std::function<void(const JobState&, Revision)> on_won;  // it stands
    std::function<void(const KeyValue&)> on_lost;           // this stands instead
  };
  StateMover(NodeContext& context, Events& events, Holds& holds, Handlers handlers)
      : context_(context), events_(events), holds_(holds), handlers_(std::move(handlers)) {}

  void move(const JobState& next, const std::string& why);
  // A fault that this node has seen: a further generation follows. Said once for each kind, node and seat.
  void report(Cause cause, std::vector<Struck> struck = {});
  void give_up_node(const std::string& why);  // it is no place for the job

  void consider_forming();                                           // while there is no state
  void drive();                                                      // while there is one
  void check_members(const std::function<bool(NodeId)>& is_linked);  // at every tick
  [[nodiscard]] bool is_moving() const { return moving_; }

 private:
  void push_causes();
  void lead();
  void tell_restore(const StateMove& move);

  struct PendingCause {
    Cause cause;
    std::vector<Struck> struck;
  };
  NodeContext& context_;
  Events& events_;
  Holds& holds_;
  Handlers handlers_;
  std::vector<PendingCause> causes_;
  bool moving_ = false;  // a compare-and-swap is under way
  Duration enough_nodes_since_{};
  Duration orphaned_since_{};
};

}  // namespace pawl::job
