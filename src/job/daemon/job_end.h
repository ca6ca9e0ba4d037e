// JobEnd: how the job ends: the step after which all stop, and the seats that have finished.
//
// Trainers ask, the answer waits until every member agrees; decisions are in ending.h and decide.h of job/recovery.
#pragma once

#include "job/daemon/node_context.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/trainers.h"
#include "job/redundancy/progress.h"

namespace pawl::job {

class JobEnd {
 public:
  JobEnd(NodeContext& context, Trainers& trainers, StateMover& mover, std::function<Progress()> progress)
      : context_(context), trainers_(trainers), mover_(mover), progress_(std::move(progress)) {}

  void consider_stop();
  void consider_finish();

 private:
  void acknowledge_stop();
  void propose_stop(Step step);
  void put_finish(TrainerProcess& trainer);

  NodeContext& context_;
  Trainers& trainers_;
  StateMover& mover_;
  std::function<Progress()> progress_;
  bool proposing_stop_ = false;
};

}  // namespace pawl::job
