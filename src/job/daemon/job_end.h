// JobEnd: how the job ends: the step after which all stop, and the seats that have finished.
//
// Trainers ask, the answer waits until every member agrees; decisions are in ending.h and decide.h of job/recovery.
#pragma once

#include <functional>
#include <map>

#include "job/daemon/node_context.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/trainers.h"
#include "job/redundancy/progress.h"

namespace pawl::job {

class JobEnd {
 public:
  struct LastWindows {
    // The trainer's was captured, and given up since: it can't be committed.
    std::function<bool(const TrainerProcess&)> is_given_up;
    std::function<void(TrainerProcess&)> do_again;  // called once in a generation
    std::function<bool()> may_end = {};             // of a job of which every seat has ended; not set: at once
  };
  JobEnd(NodeContext& context, Trainers& trainers, StateMover& mover, std::function<Progress()> progress,
         LastWindows last_windows)
      : context_(context),
        trainers_(trainers),
        mover_(mover),
        progress_(std::move(progress)),
        last_windows_(std::move(last_windows)) {}

  void consider_stop();
  void consider_finish();

 private:
  void acknowledge_stop();
  void propose_stop(Step step);
  void put_finish(TrainerProcess& trainer);
  void redo_if_given_up(TrainerProcess& trainer);

  NodeContext& context_;
  Trainers& trainers_;
  StateMover& mover_;
  std::function<Progress()> progress_;
  LastWindows last_windows_;
  std::map<Seat, Generation> redone_;
  bool proposing_stop_ = false;
};

}  // namespace pawl::job
