// PaceWatch: how long this node's trainers compute in a step, and, at the root of the tree, which seats hold up the job.
//
// Looks at their phases at every tick while the job runs here. Full windows go up the tree, and each node adds its own to
// those of its children. What follows is in job/recovery/stragglers.h. A new generation begins with nothing.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/node_context.h"
#include "job/daemon/trainers.h"
#include "job/recovery/stragglers.h"
#include "job/transport/frame.h"

namespace pawl::job {

class PaceWatch {
 public:
  struct Hooks {
    std::function<void(NodeId, const Frame&)> send;
  };
  PaceWatch(NodeContext& context, Trainers& trainers, Events& events, Hooks hooks)
      : context_(context), trainers_(trainers), events_(events), hooks_(std::move(hooks)) {}

  void tick();
  void on_paces(NodeId child, Generation generation, const std::string& paces);
  // At the root; elsewhere empty.
  [[nodiscard]] const std::vector<Straggler>& stragglers() const { return notes_.named; }

 private:
  void enter();  // the state's generation
  [[nodiscard]] bool look();
  void pass_on();
  void judge(const PaceSummary& all);
  void tell(const char* kind, const Straggler& straggler);

  NodeContext& context_;
  Trainers& trainers_;
  Events& events_;
  Hooks hooks_;
  Generation watched_;
  std::map<Seat, PaceWindow> windows_;
  std::map<Seat, SeatPace> paces_;  // of this node's seats, of their last full windows
  std::map<NodeId, PaceSummary> children_;
  StragglerNotes notes_;
};

}  // namespace pawl::job
