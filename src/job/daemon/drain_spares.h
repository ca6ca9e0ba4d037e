// DrainSpares: what this node knows of the spares that may take the seats of a node that is drained: which of them answer on
// their data links, and for how long none has been free.
//
// A drain asks anew: what a spare answered to another one may be old. What follows is decided in job/recovery/draining.h.
// On the loop's thread.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "job/daemon/node_context.h"
#include "job/daemon/spare_probes.h"
#include "job/recovery/draining.h"

namespace pawl::job {

class DrainSpares {
 public:
  struct Hooks {
    // Asks spares whether they answer on their data links, and drives when one more is known. Not set: all do.
    std::function<SpareProbes::Answers(std::span<const NodeRecord>)> probe = {};
    std::function<void()> forget_probes = {};  // what they have answered
  };
  DrainSpares(NodeContext& context, Hooks hooks) : context_(context), hooks_(std::move(hooks)) {}

  void forget();               // nobody is drained
  void look(DrainView& view);  // fills in what the view says of spares

 private:
  NodeContext& context_;
  Hooks hooks_;
  SpareProbes::Answers answers_;             // what the view refers to
  std::optional<NodeLife> asked_for_;        // whose drain they were asked for
  std::optional<Duration> spareless_since_;  // none has been free for this node, which is to leave
};

}  // namespace pawl::job
