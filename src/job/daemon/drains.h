// Drains: this node's part in draining a node: what its trainers' pages say of it, and what it tells the others.
//
// What is due is decided in job/recovery/draining.h. Whoever waits too long is let go here, also if the control is away.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "job/daemon/drain_spares.h"
#include "job/daemon/events.h"
#include "job/daemon/node_context.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/trainers.h"
#include "job/recovery/draining.h"
#include "job/redundancy/progress.h"

namespace pawl::job {

class Drains {
 public:
  struct Hooks {
    std::function<Progress()> progress;
    DrainSpares::Hooks spares = {};
  };
  Drains(NodeContext& context, Trainers& trainers, StateMover& mover, Events& events, Hooks hooks)
      : context_(context),
        trainers_(trainers),
        mover_(mover),
        events_(events),
        hooks_(std::move(hooks)),
        spares_(context, hooks_.spares) {}

  void consider();  // something may have changed; idempotent

 private:
  [[nodiscard]] TrainerProcess* first_trainer();  // in this node's lowest seat
  void look_at(const TrainerProcess* first);
  [[nodiscard]] DrainOrders orders() const;
  [[nodiscard]] DrainDuties duties_of(const DrainOrders& ordered);
  void write_pages(const DrainDuties& duties, const TrainerProcess* first);
  void propose(const Pause& pause);
  void acknowledge();
  void open(const Cause& cause);
  void give_up(NodeLife leaving, const std::string& why);
  void withdraw(NodeId leaving);
  void forget(const std::vector<NodeLife>& done);

  NodeContext& context_;
  Trainers& trainers_;
  StateMover& mover_;
  Events& events_;
  Hooks hooks_;
  DrainSpares spares_;
  PausedTrainer waits_;
  std::int64_t acknowledged_ = 0;  // the pause's revision
  std::int64_t expired_ = 0;       // likewise
  bool proposing_ = false;
  std::optional<NodeLife> given_up_;  // whose drain, until the order is gone
  Duration withdrawn_at_{};
  std::optional<Duration> leading_since_;  // it is this node's turn to leave
  Generation led_in_;
  Generation told_in_;
  Generation forgotten_in_;
};

}  // namespace pawl::job
