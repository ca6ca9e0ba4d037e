#include "job/recovery/duties.h"

#include <set>

#include "job/recovery/absent_members.h"
#include "job/recovery/members.h"

namespace pawl::job {

bool is_member(const JobState& state, NodeLife life) {
  return lowest_seat_of(state, life).has_value();
}

Standing standing_of(const JobState& state, const StandingView& view) {
  const bool member = is_member(state, view.self);
  if (state.phase == JobPhase::failed) return Standing::over;
  if (state.phase == JobPhase::finished) {
    const bool waits = member && !view.trainers_gone && view.in_state_for < kLeaveMax;
    return waits ? Standing::leaving : Standing::over;
  }
  if (is_evicted(state, view.self) || (view.was_member && !member)) return Standing::evicted;
  return member ? Standing::member : Standing::bystander;
}

Duties duties_of(const JobState& state, const Followed& followed, bool copies_idle) {
  Duties duties;
  const Generation generation = state.generation;
  duties.freeze = state.phase != JobPhase::running && followed.frozen < generation;
  duties.report_inventory = state.phase == JobPhase::quiescing;
  duties.begin_restore = state.phase == JobPhase::restoring && followed.frozen == generation &&
                         followed.restoring < generation && copies_idle;
  duties.begin_running = state.phase == JobPhase::running && followed.running < generation;
  return duties;
}

Duration enough_nodes_since(const FormingView& view, Duration since, Duration now) {
  if (!can_form(view)) return Duration::zero();
  return since == Duration::zero() ? now : since;
}

std::optional<Lead> decide_lead(const LeadView& view, NodeLife self, const Deadlines& deadlines) {
  const JobState& state = view.state;
  Lead lead;
  Duration patience = deadlines.inventory;
  if (state.phase == JobPhase::quiescing) {
    lead.decision = decide_restore({view.spec, state, view.inventories, view.nodes}, self);
  } else if (state.phase == JobPhase::restoring) {
    lead.decision = decide_running(state, view.ready, self, view.ends);
    // Each pawld knows better what its trainers are doing, and has patience with them (decide_returning): this is for
    // one that lives and does nothing.
    patience = std::chrono::milliseconds(view.spec.start_ms) + 2 * deadlines.restore;
  } else {
    return std::nullopt;
  }
  const Wait* wait = std::get_if<Wait>(&lead.decision);
  if (wait == nullptr || wait->without_deadline || view.in_state_for <= patience) return lead;
  for (const NodeLife& late : wait->late)
    lead.late.push_back({FaultKind::node_silent, late, std::nullopt, "missed the deadline: " + wait->what, 0});
  return lead;
}

std::vector<std::uint32_t> linked_positions(std::uint32_t mine, std::uint32_t count) {
  if (count == 0) return {};
  std::set<std::uint32_t> positions = {
      0, (mine + 1) % count, (mine + 2) % count, (mine + count - 1) % count, 2 * mine + 1, 2 * mine + 2};
  if (mine > 0) positions.insert((mine - 1) / 2);
  std::erase_if(positions, [&](std::uint32_t position) { return position >= count || position == mine; });
  return {positions.begin(), positions.end()};
}

}  // namespace pawl::job
