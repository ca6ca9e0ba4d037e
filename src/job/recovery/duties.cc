#include "job/recovery/duties.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "job/recovery/absent_members.h"
#include "job/recovery/members.h"
#include "job/recovery/suspicion.h"

namespace pawl::job {
namespace {

// Of a large job not all take the next turn at once: from the fifth on so many share one.
constexpr std::size_t kSharedTurn = 4;

}  // namespace

bool is_member(const JobState& state, NodeLife life) {
  return lowest_seat_of(state, life).has_value();
}

Standing standing_of(const JobState& state, const Roster& roster, const StandingView& view) {
  const bool member = roster.is_member(view.self);
  if (state.phase == JobPhase::failed) return Standing::over;
  if (state.phase == JobPhase::finished) {
    const bool waits = member && !view.trainers_gone && view.in_state_for < kLeaveMax;
    return waits ? Standing::leaving : Standing::over;
  }
  if (view.must_linger) return Standing::lingering;
  if (roster.is_evicted(view.self) || (view.was_member && !member)) return Standing::evicted;
  return member ? Standing::member : Standing::bystander;
}

Duties duties_of(const JobState& state, const Followed& followed, CopyTasks copies) {
  Duties duties;
  const bool idle = !copies.streams && !copies.imports;
  const Generation generation = state.generation;
  duties.freeze = state.phase != JobPhase::running && followed.frozen < generation;
  duties.report_inventory = state.phase == JobPhase::quiescing && !copies.imports;
  duties.begin_restore =
      state.phase == JobPhase::restoring && followed.frozen == generation && followed.restoring < generation && idle;
  duties.end_copies = state.phase == JobPhase::running && followed.running < generation;
  duties.begin_running = duties.end_copies && idle;
  return duties;
}

Duration enough_nodes_since(const FormingView& view, Duration since, Duration now) {
  if (!can_form(view)) return Duration::zero();
  return since == Duration::zero() ? now : since;
}

// In this generation: so it is there, whatever has become of its lease meanwhile.
static bool has_reported(const std::vector<Inventory>& inventories, NodeLife life) {
  return std::ranges::any_of(inventories, [life](const Inventory& inventory) { return inventory.life == life; });
}

Duration report_patience(JobPhase phase, const JobSpec& spec, const Registrations& registrations,
                         const Deadlines& deadlines) {
  if (phase != JobPhase::restoring) return deadlines.inventory;
  // Each pawld knows better what its trainers are doing, and has patience with them (decide_returning): this is for
  // one that lives and does nothing.
  const std::uint64_t bytes = registrations.arena_bytes_max * registrations.seats_per_node_max;
  return std::chrono::milliseconds(spec.start_ms) + 2 * deadlines.restore + time_to_move(bytes);
}

Duration lingering_patience(const JobState& state, const JobSpec& spec, const Registrations& registrations,
                            const Deadlines& deadlines) {
  Duration ending{};
  for (const NodeLife& life : state.evicted) ending = std::max(ending, registrations.time_to_end(life.node));
  return report_patience(state.phase, spec, registrations, deadlines) + ending;
}

std::optional<Lead> decide_lead(LeadView view, NodeLife self, const Deadlines& deadlines) {
  const JobState& state = view.state;
  Lead lead;
  const Duration patience = report_patience(state.phase, view.spec, view.registrations, deadlines);
  const bool lingering_late = view.in_state_for > lingering_patience(state, view.spec, view.registrations, deadlines);
  const QuiescingView quiescing{view.spec,
                                state,
                                std::move(view.inventories),
                                std::move(view.nodes),
                                std::move(view.cordoned),
                                std::move(view.silent),
                                lingering_late,
                                std::move(view.stored),
                                std::move(view.wished)};
  if (state.phase == JobPhase::quiescing && is_last(state)) {
    std::variant<Wait, LastStep> decided = decide_last(quiescing);
    if (auto* last = std::get_if<LastStep>(&decided)) {
      lead.decision = Wait{text("step ", last->step, " to be written to storage"), {}, true, last->committed};
      lead.last = std::move(*last);
    } else {
      lead.decision = std::get<Wait>(std::move(decided));
    }
  } else if (state.phase == JobPhase::quiescing) {
    lead.decision = decide_restore(quiescing, self);
  } else if (state.phase == JobPhase::restoring) {
    lead.decision = decide_running(state, view.ready, self, view.ends);
  } else {
    return std::nullopt;
  }
  const Wait* wait = std::get_if<Wait>(&lead.decision);
  if (wait == nullptr || wait->without_deadline) return lead;
  std::vector<NodeLife> late = wait->late;
  std::erase_if(late, [&](NodeLife life) {
    const bool in_time = view.in_state_for <= patience + view.registrations.time_to_end(life.node);
    return in_time && (!contains(view.absent, life) || has_reported(quiescing.inventories, life));
  });
  // Trainers meet at the rendezvous, so the others may only wait for those that are absent.
  const auto is_absent = [&](NodeLife life) { return contains(view.absent, life); };
  if (state.phase == JobPhase::restoring && std::ranges::any_of(late, is_absent))
    std::erase_if(late, std::not_fn(is_absent));
  if (late.empty() || !leaves_quorum(state, view.registrations, late)) return lead;
  if (state.phase == JobPhase::quiescing && !can_restore_without(quiescing, late)) {
    lead.decision = Wait{wait->what + ", which has the only copies", {}, true};
    return lead;
  }
  for (const NodeLife& life : late)
    lead.late.push_back({FaultKind::node_silent, life, std::nullopt, "missed the deadline: " + wait->what, 0});
  return lead;
}

std::optional<Duration> lead_delay(const TurnView& view, const Deadlines& deadlines) {
  if (view.state.leader == view.self) return Duration::zero();
  if (view.quiet_for <= deadlines.leader || !is_survivor(view.state, view.self)) return std::nullopt;
  if (view.few_follow && view.registrations.known) {
    const Duration delay = deadlines.leader * (view.has_post ? 1 : 2);
    return view.quiet_for > delay ? std::optional(delay) : std::nullopt;
  }
  std::size_t turn = 0;
  for (const NodeLife& life : survivors_of(view.state)) {
    if (life == view.state.leader || (view.registrations.known && !view.registrations.has(life))) continue;
    ++turn;
    if (life == view.self) break;
  }
  if (turn > kSharedTurn) turn = kSharedTurn + (turn - 1) / kSharedTurn;
  const Duration delay = deadlines.leader * std::max<std::size_t>(turn, 1);
  return view.quiet_for > delay ? std::optional(delay) : std::nullopt;
}

std::vector<std::uint32_t> linked_positions(std::uint32_t mine, std::uint32_t count) {
  if (count == 0) return {};
  std::set<std::uint32_t> positions = {
      0, (mine + 1) % count, (mine + 2) % count, (mine + count - 1) % count, 2 * mine + 1, 2 * mine + 2};
  if (mine > 0) positions.insert((mine - 1) / 2);
  std::erase_if(positions, [&](std::uint32_t position) { return position >= count || position == mine; });
  return {positions.begin(), positions.end()};
}

std::vector<std::uint32_t> linking_positions(std::uint32_t mine, std::uint32_t count) {
  if (count == 0) return {};
  std::set<std::uint32_t> positions = {(mine + count - 1) % count, (mine + 2 * count - 2) % count, (mine + 1) % count,
                                       2 * mine + 1, 2 * mine + 2};
  if (mine > 0) positions.insert((mine - 1) / 2);
  if (mine == 0)
    for (std::uint32_t position = 1; position < count; ++position) positions.insert(position);
  std::erase_if(positions, [&](std::uint32_t position) { return position >= count || position == mine; });
  return {positions.begin(), positions.end()};
}

}  // namespace pawl::job
