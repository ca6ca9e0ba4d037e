#include "job/daemon/drains.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "job/recovery/members.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {

constexpr Duration kWithdrawAgain = 1s;

}  // namespace

TrainerProcess* Drains::first_trainer() {
  TrainerProcess* first = nullptr;
  for (TrainerProcess& trainer : trainers_.places())
    if (trainer.seat && trainer.shared.page != nullptr && (first == nullptr || *trainer.seat < *first->seat))
      first = &trainer;
  return first;
}

void Drains::look_at(const TrainerProcess* first) {
  const Step before(first != nullptr ? first->shared.page->paused_before.load(std::memory_order_acquire) : 0);
  if (before != waits_.before) waits_ = {before, context_.clock->now()};
}

DrainOrders Drains::orders() const {
  DrainOrders orders = context_.orders.drains();
  if (orders.pause && orders.pause->revision == expired_) orders.pause.reset();
  if (given_up_) std::erase(orders.leaving, *given_up_);
  return orders;
}

void Drains::consider() {
  const JobMirror& mirror = context_.mirror;
  if (!mirror.has_state() || context_.ending) return;
  TrainerProcess* const first = first_trainer();
  look_at(first);
  if (given_up_ && !contains(context_.orders.drains().leaving, *given_up_)) given_up_.reset();
  if (given_up_ && context_.clock->now() - withdrawn_at_ >= kWithdrawAgain) withdraw(given_up_->node);
  const DrainOrders ordered = orders();
  const DrainDuties duties = duties_of(ordered);
  write_pages(duties, first);
  if (duties.expired) {
    log_warn("drain_pause_expired", "step", ordered.pause->step);
    expired_ = ordered.pause->revision;
  }
  if (!duties.give_up.empty()) return give_up(*duties.leaving, duties.give_up);
  if (duties.propose) propose(*duties.propose);
  if (duties.acknowledge) acknowledge();
  if (duties.open) open(*duties.open);
  if (!duties.done.empty()) forget(duties.done);
}

DrainDuties Drains::duties_of(const DrainOrders& ordered) {
  const JobMirror& mirror = context_.mirror;
  if (!context_.is_running() || ordered.leaving.empty()) {
    spares_.forget();
    leading_since_.reset();
    return {};
  }
  const std::vector<NodeRecord> nodes = mirror.registrations().records();
  DrainView view{
      mirror.spec(), mirror.state(),       ordered, nodes, context_.orders.cordoned(), hooks_.progress().committed,
      waits_,        context_.clock->now()};
  view.knows_nodes = context_.knows_nodes();
  const bool leads = who_leaves(view) == context_.self;
  const bool anew = std::exchange(led_in_, mirror.generation()) != mirror.generation();
  if (!leads)
    leading_since_.reset();
  else if (!leading_since_ || anew)
    leading_since_ = view.now;
  view.leading = leading_since_ ? view.now - *leading_since_ : Duration::zero();
  view.voided = ordered.pause && hooks_.progress().is_void(ordered.pause->step);
  spares_.look(view);
  return decide_draining(view, context_.self, context_.deadlines);
}

void Drains::write_pages(const DrainDuties& duties, const TrainerProcess* first) {
  for (TrainerProcess& trainer : trainers_.places()) {
    if (trainer.shared.page == nullptr) continue;
    const Step last = !trainer.seat ? Step(0) : &trainer == first ? duties.first_page : duties.page;
    trainer.shared.page->pause_step.store(last.value, std::memory_order_release);
  }
}

void Drains::propose(const Pause& pause) {
  if (std::exchange(proposing_, true)) return;
  const Json value{{"generation", pause.generation.value},
                   {"node", pause.leaving.node.value},
                   {"incarnation", pause.leaving.incarnation.value},
                   {"step", pause.step.value}};
  events_.tell("drain_paused", Json{{"step", pause.step.value}}.dump());
  context_.control->put(context_.mirror.keys().pause(), value.dump(), [this](const Status& put) {
    proposing_ = false;  // it comes as any key does
    if (!put) context_.drive_soon(20ms);
  });
}

void Drains::acknowledge() {
  const JobMirror& mirror = context_.mirror;
  const std::int64_t revision = context_.orders.drains().pause->revision;
  if (std::exchange(acknowledged_, revision) == revision) return;
  context_.control->put(mirror.keys().pause_ack(mirror.generation(), context_.self.node),
                        Json{{"pause", revision}}.dump(), [this](const Status& put) {
                          if (put) return;
                          acknowledged_ = 0;
                          context_.drive_soon(20ms);
                        });
}

// Decided anew from the state that stands, each time: never kept, as a fault is.
void Drains::open(const Cause& cause) {
  if (mover_.is_moving()) return;
  const JobState& state = context_.mirror.state();
  Cause now = cause;
  now.detected_wall_ms = static_cast<std::uint64_t>(context_.clock->wall() / 1ms);
  const Decision decision = open_generation(state, now, context_.self);
  const StateMove* next = std::get_if<StateMove>(&decision);
  if (next == nullptr) return;
  if (std::exchange(told_in_, state.generation) != state.generation)
    events_.tell("drain_begun", Json{{"leaving", cause.node->node.value},
                                     {"step", hooks_.progress().committed.value},
                                     {"waited_ms", (context_.clock->now() - waits_.since) / 1ms}}
                                    .dump());
  mover_.move(next->next, next->why);
}

void Drains::give_up(NodeLife leaving, const std::string& why) {
  given_up_ = leaving;
  log_warn("drain_given_up", "why", why);
  events_.tell("drain_given_up", Json{{"leaving", leaving.node.value}, {"why", why}}.dump());
  withdraw(leaving.node);
}

// Again until it is seen to be gone: the control may be away.
void Drains::withdraw(NodeId leaving) {
  withdrawn_at_ = context_.clock->now();
  context_.control->tell([keys = context_.mirror.keys(), leaving](Control& control) {
    (void)control.erase(keys.pause());
    (void)control.erase(keys.drain(leaving));
  });
  context_.drive_soon(kWithdrawAgain);
}

void Drains::forget(const std::vector<NodeLife>& done) {
  const JobMirror& mirror = context_.mirror;
  if (std::exchange(forgotten_in_, mirror.generation()) == mirror.generation()) return;
  context_.control->tell([keys = mirror.keys(), done](Control& control) {
    for (const NodeLife& life : done) (void)control.erase(keys.drain(life.node));
  });
}

}  // namespace pawl::job
