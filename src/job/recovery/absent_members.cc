#include "job/recovery/absent_members.h"

#include <algorithm>
#include <set>

#include "job/recovery/members.h"
#include "job/recovery/suspicion.h"

namespace pawl::job {
namespace {

bool began_anew(const Registrations& registrations, NodeLife life) {
  const auto record = registrations.nodes.find(life.node);
  return record != registrations.nodes.end() && record->second.life.incarnation > life.incarnation;
}

}  // namespace

void Registrations::note(NodeId node, const NodeRecord* record, Duration now) {
  ++changes;
  if (record != nullptr) {
    nodes[node] = *record;
    // Own arenas, and about as much of others'.
    memory_bytes[node] = 2 * record->arena_bytes * seats_per_node_max;
    arena_bytes_max = std::max(arena_bytes_max, record->arena_bytes);
    gone_since.erase(node);
  } else {
    nodes.erase(node);
    gone_since.try_emplace(node, now);
  }
}

void Registrations::note_state(const JobState& state) {
  state_arena_bytes = std::max(state_arena_bytes, state.arena_bytes);
  arena_bytes_max = std::max(arena_bytes_max, state_arena_bytes);
}

void Registrations::forget() {
  ++changes;
  known = false;
  nodes.clear();
  gone_since.clear();
  memory_bytes.clear();  // it may grow unseen
}

std::vector<NodeRecord> Registrations::records() const {
  std::vector<NodeRecord> records;
  for (const auto& [id, record] : nodes) records.push_back(record);
  return records;
}

Duration Registrations::time_to_end(NodeId node) const {
  const auto known = memory_bytes.find(node);
  const std::uint64_t unseen = 2 * std::max(state_arena_bytes, own_arena_bytes) * seats_per_node_max;
  return time_to_give_back(known != memory_bytes.end() ? known->second : unseen);
}

bool Registrations::has(NodeLife life) const {
  const auto record = nodes.find(life.node);
  return record != nodes.end() && record->second.life == life;
}

bool is_evicted(const JobState& state, NodeLife life) {
  return contains(state.evicted, life) || contains(state.departed, life);
}

bool is_lowest_registered(const JobState& state, const Registrations& registrations, NodeLife self) {
  for (const auto& [id, record] : registrations.nodes)
    if (!is_evicted(state, record.life)) return record.life == self;
  return false;
}

// Asked at every tick: all seats are searched only where something is odd.
std::vector<Cause> absent_members(const JobState& state, const Registrations& registrations, const Links& links,
                                  NodeLife self) {
  std::vector<Cause> causes;
  // A leader without a seat (it has evicted itself, or was a spare) is nobody's neighbour: only its lease tells.
  const NodeLife leader = state.leader;
  const auto sits = [&state](NodeLife life) { return lowest_seat_of(state, life).has_value(); };
  const bool led = state.phase == JobPhase::quiescing || state.phase == JobPhase::restoring;
  if (led && (is_evicted(state, leader) || (registrations.known && !registrations.has(leader) && !sits(leader))))
    causes.push_back({FaultKind::leader_lost, leader, std::nullopt, "who led is gone", 0});
  std::set<NodeLife> anew;  // so that they come in the order of their nodes
  for (const NodeLife& life : links.lives)
    if (life != self && began_anew(registrations, life) && !is_evicted(state, life) && sits(life)) anew.insert(life);
  for (const NodeLife& life : anew)
    causes.push_back({FaultKind::node_lost, life, std::nullopt, "it began anew with another incarnation", 0});
  return causes;
}

Orphaned decide_orphaned(const JobState& state, const Registrations& registrations, std::span<const Contact> contacts,
                         NodeLife self, Duration since, Duration now, const Deadlines& deadlines) {
  const bool led = state.phase == JobPhase::quiescing || state.phase == JobPhase::restoring;
  const bool mine = is_lowest_registered(state, registrations, self);
  const bool over = state.phase == JobPhase::finished || state.phase == JobPhase::failed;
  const bool is_led = led && registrations.has(state.leader) && !is_evicted(state, state.leader);
  if (over || !mine || is_led) return {};
  std::vector<Cause> causes;
  Orphaned orphaned{since == Duration::zero() ? now : since, {}, std::nullopt, {}};
  for (const NodeLife& life : survivors_of(state)) {
    if (registrations.has(life)) return {};
    const bool refused = std::ranges::any_of(
        contacts, [life](const Contact& contact) { return contact.life == life && contact.refused; });
    if (!refused && !began_anew(registrations, life)) orphaned.unproven.push_back(life);
    causes.push_back({FaultKind::node_lost, life, std::nullopt, "its lease ended and its address refuses", 0});
  }
  if (!orphaned.unproven.empty() || now - orphaned.since < deadlines.silence) return orphaned;
  if (causes.empty()) causes.push_back({FaultKind::leader_lost, state.leader, std::nullopt, "no member is left", 0});
  Decision decision = open_generation(state, causes, self);
  if (StateMove* move = std::get_if<StateMove>(&decision)) orphaned.move = std::move(*move);
  if (orphaned.move) orphaned.causes = std::move(causes);
  return orphaned;
}

}  // namespace pawl::job
