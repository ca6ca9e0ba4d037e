#include "job/recovery/draining.h"

#include <algorithm>

#include "base/text.h"
#include "job/recovery/members.h"
#include "job/recovery/spares.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {

// Spares that could take the seats of `leaving`, which is no spare for itself.
std::vector<NodeLife> free_spares(const JobState& state, std::span<const NodeRecord> nodes,
                                  std::span<const NodeId> cordoned, NodeLife leaving) {
  const std::size_t needed = seats_of(state, leaving).size();
  std::vector<NodeLife> free;
  for (const NodeRecord& node : spares_of(state, nodes, cordoned))
    if (node.parked >= needed && node.life.node != leaving.node) free.push_back(node.life);
  return free;
}

bool all_paused(const DrainView& view) {
  return std::ranges::all_of(survivors_of(view.state), [&view](NodeLife life) {
    const auto found = view.orders.paused.find(life.node);
    return found != view.orders.paused.end() && found->second == view.orders.pause->revision;
  });
}

std::optional<NodeLife> opener(const JobState& state, NodeLife leaving) {
  for (const NodeLife& life : survivors_of(state))
    if (life != leaving) return life;
  return std::nullopt;
}

std::vector<NodeLife> orders_over(const DrainView& view) {
  std::vector<NodeLife> over;
  for (const NodeLife& life : view.orders.leaving)
    if (view.state.phase == JobPhase::running && !is_survivor(view.state, life)) over.push_back(life);
  return over;
}

enum class SpareAnswer { answers, unknown, silent };

SpareAnswer answer_of_spares(const DrainView& view, std::span<const NodeLife> free) {
  const auto answers = [&](NodeLife life) { return !contains(view.silent, life) && !contains(view.unprobed, life); };
  if (std::ranges::any_of(free, answers)) return SpareAnswer::answers;
  const auto unknown = [&](NodeLife life) { return contains(view.unprobed, life); };
  if (free.empty()) return SpareAnswer::unknown;  // it may come back
  return std::ranges::any_of(free, unknown) ? SpareAnswer::unknown : SpareAnswer::silent;
}

std::string why_silent(std::span<const NodeLife> free) {
  std::vector<std::string> names;
  for (const NodeLife& life : free) names.push_back(text(life.node));
  return text("no spare answers on its data link (node ", joined(names, ", "),
              "): look at its network, or start another spare");
}

// Of the leaving node, whose trainer stands before the step that the others may be in, or after the last one.
std::string why_given_up(const DrainView& view, bool agreed, const Deadlines& deadlines) {
  if (agreed && view.voided)
    return text("step ", view.orders.pause->step, " could not be captured, so it is never committed: drain it again");
  const Duration patience = std::chrono::milliseconds(view.spec.start_ms) + deadlines.restore;
  if (view.waits.before == Step(0) && view.leading > patience)
    return view.committed == Step(0) ? text("no step was committed within ", patience / 1s,
                                            " s, so there is nothing to move yet: drain it again when the job trains")
                                     : text("its trainer has begun no step for ", patience / 1s,
                                            " s, or not ended one: drain it again when it trains");
  if (view.waits.before == Step(0)) return {};
  const Duration waited = view.now - view.waits.since;
  if (!agreed && waited > deadlines.silence) return "not all members agreed to wait after the same step";
  if (agreed && waited > deadlines.restore)
    return text("step ", view.orders.pause->step, " is not committed in time: look at `degraded` in `pawl status`");
  return {};
}

bool is_to_leave(const DrainView& view, NodeLife life) {
  return view.state.phase == JobPhase::running && view.spec.replica_count > 0 && is_survivor(view.state, life) &&
         contains(view.orders.leaving, life);
}

bool is_paused_for(const DrainView& view, NodeLife leaving) {
  const std::optional<Pause>& pause = view.orders.pause;
  return pause && pause->generation == view.state.generation && pause->leaving == leaving;
}

}  // namespace

// A pause that stands is for all, whatever they know of spares and of later orders: else some go on while others wait.
std::optional<NodeLife> who_leaves(const DrainView& view) {
  if (const auto& pause = view.orders.pause;
      pause && is_paused_for(view, pause->leaving) && is_to_leave(view, pause->leaving))
    return pause->leaving;
  if (!view.knows_nodes) return std::nullopt;
  for (const NodeLife& life : view.orders.leaving)
    if (is_to_leave(view, life) && !lacks_spare(view, life)) return life;
  return std::nullopt;
}

bool lacks_spare(const DrainView& view, NodeLife self) {
  return view.knows_nodes && is_to_leave(view, self) &&
         free_spares(view.state, view.nodes, view.cordoned, self).empty();
}

bool must_ask_spares(const DrainView& view, NodeLife self) {
  const auto leaving = who_leaves(view);
  return leaving && is_survivor(view.state, self) && (self == *leaving || self == opener(view.state, *leaving));
}

DrainDuties decide_draining(const DrainView& view, NodeLife self, const Deadlines& deadlines) {
  DrainDuties duties;
  if (view.state.leader == self) duties.done = orders_over(view);
  const Duration patience = is_paused_for(view, self) ? deadlines.silence : deadlines.restore;
  if (lacks_spare(view, self) && view.spareless > patience) {
    duties.leaving = self;
    duties.give_up = "no spare is free any more to take its seats; start one (a further node)";
    return duties;
  }
  duties.leaving = who_leaves(view);
  if (!duties.leaving || !is_survivor(view.state, self)) return duties;
  const NodeLife leaving = *duties.leaving;
  const std::optional<Pause>& pause = view.orders.pause;
  const bool paused = is_paused_for(view, leaving);
  const bool agreed = paused && all_paused(view);
  SpareAnswer spare = view.knows_nodes ? SpareAnswer::answers : SpareAnswer::unknown;
  if (view.knows_nodes && must_ask_spares(view, self)) {
    const std::vector<NodeLife> free = free_spares(view.state, view.nodes, view.cordoned, leaving);
    spare = answer_of_spares(view, free);
    if (spare == SpareAnswer::silent) duties.give_up = why_silent(free);
    if (!duties.give_up.empty()) return duties;
  }
  if (self == leaving) {
    duties.give_up = why_given_up(view, agreed, deadlines);
    if (!duties.give_up.empty()) return duties;
    // Before the first commit there is nothing to move yet.
    const bool may_begin = view.committed > Step(0) && (paused || spare == SpareAnswer::answers);
    if (may_begin && !agreed) duties.first_page = kPauseAtNext;
    if (!paused && view.committed > Step(0) && view.waits.before > Step(0))
      duties.propose = Pause{view.state.generation, leaving, view.waits.before};
  }
  if (!paused) return duties;
  // Whoever is left waiting (the leaving node can't reach the control, say) goes on; the leaving node has given up before.
  duties.expired = view.waits.before > Step(0) && view.now - view.waits.since > deadlines.restore + deadlines.silence;
  if (duties.expired) return duties;
  duties.page = pause->step;
  if (duties.first_page == Step(0)) duties.first_page = pause->step;
  const auto told = view.orders.paused.find(self.node);
  duties.acknowledge = told == view.orders.paused.end() || told->second != pause->revision;
  if (agreed && view.committed >= pause->step && opener(view.state, leaving) == self && spare == SpareAnswer::answers)
    duties.open = Cause{FaultKind::drain, leaving, std::nullopt, text("after step ", pause->step), 0};
  return duties;
}

Status may_drain(const JobSpec& spec, const JobState& state, std::span<const NodeRecord> nodes,
                 std::span<const NodeId> cordoned, std::span<const NodeLife> others, NodeLife leaving) {
  if (spec.replica_count == 0)
    return Error{Code::invalid,
                 "the job keeps no copies (--replicas 0), so another node could not take the seats over; save a "
                 "checkpoint and start the job without this node"};
  std::size_t promised = 0;
  for (const NodeLife& life : others)
    if (life != leaving && is_survivor(state, life)) ++promised;
  const std::size_t free = free_spares(state, nodes, cordoned, leaving).size();
  if (free > promised) return {};
  std::string why = text("no spare is free to take the seats of node ", leaving.node, "; start one (a further node)");
  if (promised > 0) why += text(" (", promised, " promised to other drains)");
  const bool barred = !cordoned.empty() && free_spares(state, nodes, {}, leaving).size() > free;
  if (barred) why += ", or `pawl node uncordon` one of the cordoned nodes";
  return Error{Code::full, why};
}

}  // namespace pawl::job
