#include "job/daemon/known_nodes.h"

#include <utility>

namespace pawl::job {

// Whoever was missing when looked up may have been back since, and gone again.
std::map<NodeId, NodeRecord> KnownNodes::begin_listing() {
  if (!registrations_.known) registrations_.gone_since.clear();
  return std::exchange(registrations_.nodes, {});
}

void KnownNodes::end_listing(const std::map<NodeId, NodeRecord>& before, Duration now) {
  registrations_.known = true;
  for (const auto& [node, record] : before)
    if (!registrations_.nodes.contains(node)) registrations_.note(node, nullptr, now);
}

// A member may have gone before its state came here: the two watches have no order among each other.
void KnownNodes::note_state(const JobState& state, const Roster& roster, Duration now) {
  registrations_.note_state(state);
  if (!registrations_.known) return;
  const auto note_if_gone = [&](NodeId node) {
    if (!registrations_.nodes.contains(node) && !registrations_.gone_since.contains(node))
      registrations_.note(node, nullptr, now);
  };
  for (const NodeLife& life : roster.members()) note_if_gone(life.node);
  for (const NodeLife& life : state.evicted) note_if_gone(life.node);  // they may be what a recovery reads from
}

void KnownNodes::note_looked_up(NodeId node, bool there, Duration now) {
  if (registrations_.known || there != registrations_.gone_since.contains(node)) return;
  ++registrations_.changes;
  if (there)
    registrations_.gone_since.erase(node);
  else
    registrations_.gone_since.try_emplace(node, now);
}

void KnownNodes::forget(std::span<const NodeLife> but_records_of) {
  for (const NodeLife& life : but_records_of)
    if (registrations_.has(life)) read_[life.node] = registrations_.nodes.at(life.node);
  registrations_.forget();
}

const NodeRecord* KnownNodes::record_of(NodeLife life) const {
  for (const auto* const records : {&registrations_.nodes, &read_})
    if (const auto found = records->find(life.node); found != records->end() && found->second.life == life)
      return &found->second;
  return nullptr;
}

}  // namespace pawl::job
