#include "job/daemon/recovery_reports.h"

namespace pawl::job {

void RecoveryReports::expect(const JobState& state, const Roster& roster) {
  if (state.generation != generation_) {
    inventories_.clear();
    ready_.clear();
  }
  generation_ = state.generation;
  phase_ = state.phase;
  members_ = roster.members();
  places_.clear();
  awaited_.clear();
  for (const NodeLife& life : members_) {
    places_.try_emplace(life.node, Place{*roster.lowest_seat_of(life), life, !roster.is_survivor(life)});
    look_for(life.node);
  }
}

void RecoveryReports::clear() {
  inventories_.clear();
  ready_.clear();
  for (const NodeLife& life : members_) look_for(life.node);
}

void RecoveryReports::look_for(NodeId node) {
  const auto found = places_.find(node);
  if (found == places_.end()) return;
  const Place& place = found->second;
  bool missing = false;
  if (phase_ == JobPhase::quiescing) {
    const auto report = inventories_.find(node);
    missing = !place.evicted && (report == inventories_.end() || report->second.life != place.life ||
                                 report->second.generation != generation_);
  } else if (phase_ == JobPhase::restoring) {
    missing = !is_ready(node);
  }
  if (missing)
    awaited_.insert_or_assign(place.lowest, place.life);
  else
    awaited_.erase(place.lowest);
}

void RecoveryReports::note(const Inventory& inventory) {
  inventories_[inventory.life.node] = inventory;
  look_for(inventory.life.node);
}

void RecoveryReports::forget_own_inventory() {
  inventories_.erase(self_.node);
  look_for(self_.node);
}

void RecoveryReports::note_ready(NodeLife life) {
  const auto found = places_.find(life.node);
  if (found != places_.end() && found->second.life != life) return;  // left behind by a job of the same name
  ready_.insert(life.node);
  look_for(life.node);
}

std::vector<Inventory> RecoveryReports::inventories() const {
  std::vector<Inventory> all;
  all.reserve(inventories_.size());
  for (const auto& [node, inventory] : inventories_) all.push_back(inventory);
  return all;
}

std::vector<NodeLife> RecoveryReports::ready_members() const {
  std::vector<NodeLife> ready;
  for (const NodeLife& life : members_)
    if (is_ready(life.node)) ready.push_back(life);
  return ready;
}

}  // namespace pawl::job
