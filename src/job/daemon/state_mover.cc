#include "job/daemon/state_mover.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "job/recovery/local_trainer.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

void StateMover::move(const JobState& next, const std::string& why) {
  if (moving_) return;
  moving_ = true;
  context_.control->compare_and_swap(
      context_.mirror.keys().state(), context_.mirror.state_revision(), to_json(next),
      [this, next, why](Result<Swapped> swap) {
        moving_ = false;
        if (!swap) {
          log_warn("control_away", "why", swap.error().what);
          return context_.drive_soon(20ms);
        }
        if (swap->won) {
          log_info("state_moved", "generation", next.generation, "phase", name_of(next.phase), "why", why);
          if (next.phase == JobPhase::failed)
            events_.tell("job_failed", Json{{"verdict", next.verdict}, {"generation", next.generation.value}}.dump());
          if (next.phase == JobPhase::finished)
            events_.tell("job_finished", Json{{"generation", next.generation.value}}.dump());
          handlers_.on_won(next, swap->revision);
        } else if (swap->current) {
          handlers_.on_lost(*swap->current);
        }
        context_.drive();
      });
}

void StateMover::consider_forming() {
  FormingView view{context_.mirror.spec(), context_.mirror.nodes(), 0};
  const Duration now = context_.clock->now();
  enough_nodes_since_ = enough_nodes_since(view, enough_nodes_since_, now);
  if (enough_nodes_since_ > Duration::zero())
    view.waited_ms = static_cast<std::uint64_t>((now - enough_nodes_since_) / 1ms);
  const Decision decision = decide_forming(view, context_.self);
  if (const StateMove* next = std::get_if<StateMove>(&decision)) move(next->next, next->why);
}

void StateMover::drive() {
  push_causes();
  if (context_.mirror.state().leader == context_.self) lead();
}

void StateMover::report(Cause cause, std::vector<Struck> struck) {
  if (context_.ending || !context_.mirror.is_member()) return;
  for (const PendingCause& pending : causes_)
    if (pending.cause.kind == cause.kind && pending.cause.node == cause.node && pending.cause.seat == cause.seat)
      return;
  cause.detected_wall_ms = static_cast<std::uint64_t>(context_.clock->wall() / 1ms);
  log_warn("fault_detected", "kind", name_of(cause.kind), "node", cause.node ? text(cause.node->node) : "-", "seat",
           cause.seat ? text(*cause.seat) : "-", "detail", cause.detail);
  Json fields{{"fault", name_of(cause.kind)}, {"detail", cause.detail}};
  if (cause.node) fields["victim_node"] = cause.node->node.value;
  if (cause.seat) fields["victim_seat"] = cause.seat->value;
  events_.tell("fault_detected", fields.dump());
  causes_.push_back({std::move(cause), std::move(struck)});
  context_.drive_soon(0ms);
}

void StateMover::push_causes() {
  if (moving_ || !context_.mirror.is_member()) return;
  if (causes_.empty() || holds_.is_held_at("suspect")) return;
  std::vector<Cause> causes;
  std::vector<Struck> struck;
  for (const PendingCause& pending : causes_) {
    causes.push_back(pending.cause);
    struck.insert(struck.end(), pending.struck.begin(), pending.struck.end());
  }
  const Decision decision = open_generation(context_.mirror.state(), causes, context_.self, struck);
  if (const StateMove* next = std::get_if<StateMove>(&decision)) return move(next->next, next->why);
  causes_.clear();  // the state accounts for them
}

void StateMover::lead() {
  if (moving_) return;
  const JobMirror& mirror = context_.mirror;
  const JobState& state = mirror.state();
  const std::vector<TrainerEnd> ends = mirror.ends();
  const Decision ended = decide_ends(state, ends, context_.self);
  if (const StateMove* next = std::get_if<StateMove>(&ended)) return move(next->next, next->why);
  // In all other phases nobody leads: a view of a large job is not worth making for each key that changes.
  if (state.phase != JobPhase::quiescing && state.phase != JobPhase::restoring) return;
  const auto lead = decide_lead({mirror.spec(), state, mirror.inventories(), mirror.nodes(), mirror.ready_members(),
                                 ends, context_.clock->now() - mirror.state_since()},
                                context_.self, context_.deadlines);
  if (!lead) return;
  if (const StateMove* next = std::get_if<StateMove>(&lead->decision)) {
    if (state.phase == JobPhase::quiescing && holds_.is_held_at("decide")) return;
    if (next->next.phase == JobPhase::restoring) tell_restore(*next);
    return move(next->next, next->why);
  }
  const Wait& wait = std::get<Wait>(lead->decision);
  if (wait.without_deadline && state.waiting != wait.what) {
    JobState waiting = state;
    waiting.waiting = wait.what;
    events_.tell("spare_waiting", Json{{"what", wait.what}}.dump());
    return move(waiting, "waiting for " + wait.what);
  }
  for (const Cause& late : lead->late) report(late);
}

void StateMover::tell_restore(const StateMove& move) {
  const JobState& state = context_.mirror.state();
  Json sources = Json::array();
  for (const Source& source : move.next.sources)
    sources.push_back({{"seat", source.seat.value}, {"kind", name_of(source.kind)}, {"node", source.from.node.value}});
  Json seats = Json::array();
  for (const Member& member : move.next.seats)
    if (member.seat.value < state.seats.size() && !(state.seats[member.seat.value].life == member.life))
      seats.push_back({{"seat", member.seat.value},
                       {"from", state.seats[member.seat.value].life.node.value},
                       {"to", member.life.node.value}});
  events_.tell("restore_decided", Json{{"resume", move.next.resume.value},
                                       {"cold", move.next.cold},
                                       {"sources", sources},
                                       {"moved", seats},
                                       {"why", move.why}}
                                      .dump());
}

// A member whose registration ended: decided by its neighbours while a link to it stands; else by whoever notices.
void StateMover::check_members(const std::function<bool(NodeId)>& is_linked) {
  const JobMirror& mirror = context_.mirror;
  if (!mirror.has_state() || mirror.is_over()) return;
  const Duration now = context_.clock->now();
  if (mirror.is_member()) {
    for (const Cause& cause :
         absent_members(mirror.state(), mirror.registrations(), context_.self, is_linked, now, context_.deadlines))
      report(cause);
    return;
  }
  const Orphaned orphaned =
      decide_orphaned(mirror.state(), mirror.registrations(), context_.self, orphaned_since_, now, context_.deadlines);
  orphaned_since_ = orphaned.since;
  if (orphaned.move) move(orphaned.move->next, orphaned.move->why);
}

void StateMover::give_up_node(const std::string& why) {
  const JobMirror& mirror = context_.mirror;
  auto decision = decide_give_up(mirror.has_state() ? &mirror.state() : nullptr, context_.self, why);
  if (Cause* cause = std::get_if<Cause>(&decision)) return report(std::move(*cause));
  const StateMove& failed = std::get<StateMove>(decision);
  move(failed.next, failed.why);
}

}  // namespace pawl::job
