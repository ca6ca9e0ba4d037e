#include "job/recovery/absent_members.h"

#include "job/recovery/members.h"

namespace pawl::job {

bool Registrations::has(NodeLife life) const {
  const auto record = nodes.find(life.node);
  return record != nodes.end() && record->second.life == life;
}

bool is_evicted(const JobState& state, NodeLife life) {
  return contains(state.evicted, life) || contains(state.departed, life);
}

std::vector<Cause> absent_members(const JobState& state, const Registrations& registrations, NodeLife self,
                                  const std::function<bool(NodeId)>& is_linked, Duration now,
                                  const Deadlines& deadlines) {
  std::vector<Cause> causes;
  // A leader without a seat (it has evicted itself, or was a spare) is nobody's neighbour: only its lease tells.
  const NodeLife leader = state.leader;
  const bool sits = lowest_seat_of(state, leader).has_value();
  const bool led = state.phase == JobPhase::quiescing || state.phase == JobPhase::restoring;
  if (led && (is_evicted(state, leader) || (!sits && !registrations.has(leader))))
    causes.push_back({FaultKind::leader_lost, leader, std::nullopt, "who led is gone", 0});
  for (const Member& member : state.seats) {
    const NodeLife life = member.life;
    if (life == self || is_evicted(state, life) || is_linked(life.node)) continue;
    const auto record = registrations.nodes.find(life.node);
    if (record != registrations.nodes.end() && record->second.life.incarnation != life.incarnation)
      causes.push_back({FaultKind::node_lost, life, std::nullopt, "it began anew with another incarnation", 0});
    const auto gone = registrations.gone_since.find(life.node);
    if (gone != registrations.gone_since.end() && now - gone->second > deadlines.silence / 2)
      causes.push_back({FaultKind::node_lost, life, std::nullopt, "its lease ended", 0});
  }
  return causes;
}

Orphaned decide_orphaned(const JobState& state, const Registrations& registrations, NodeLife self, Duration since,
                         Duration now, const Deadlines& deadlines) {
  std::vector<Cause> causes;
  bool orphaned = state.phase == JobPhase::running || !registrations.has(state.leader);
  for (const Member& member : state.seats) {
    if (is_evicted(state, member.life)) continue;
    orphaned = orphaned && !registrations.has(member.life);
    causes.push_back({FaultKind::node_lost, member.life, std::nullopt, "its lease ended", 0});
  }
  const bool mine = !registrations.nodes.empty() && registrations.nodes.begin()->first == self.node;
  if (!orphaned || !mine) return {};
  if (since == Duration::zero()) since = now;
  if (now - since < deadlines.silence) return {since, std::nullopt};
  if (causes.empty()) causes.push_back({FaultKind::leader_lost, state.leader, std::nullopt, "no member is left", 0});
  Decision decision = open_generation(state, causes, self);
  if (StateMove* move = std::get_if<StateMove>(&decision)) return {since, std::move(*move)};
  return {since, std::nullopt};
}

}  // namespace pawl::job
