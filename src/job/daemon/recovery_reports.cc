#include "job/daemon/recovery_reports.h"

#include <algorithm>

namespace pawl::job {

void RecoveryReports::expect(const JobState& state, const Roster& roster, const Ring& ring) {
  if (state.generation != generation_) {
    inventories_.clear();
    ready_.clear();
    refused_.clear();
  }
  generation_ = state.generation;
  phase_ = state.phase;
  members_ = roster.members();
  places_.clear();
  awaited_.clear();
  for (const NodeLife& life : members_) {
    const Seat lowest = *roster.lowest_seat_of(life);
    places_.try_emplace(life.node, Place{lowest, life, !roster.is_survivor(life),
                                         ring.position_of(lowest) / std::max(group_size_, 1u)});
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
    missing = !place.evicted && (report == inventories_.end() || report->second.inventory.life != place.life ||
                                 report->second.inventory.generation != generation_);
  } else if (phase_ == JobPhase::restoring) {
    missing = !is_ready(node);
  }
  if (missing)
    awaited_.insert_or_assign(place.lowest, place.life);
  else
    awaited_.erase(place.lowest);
}

void RecoveryReports::note(const Inventory& inventory) {
  inventories_[inventory.life.node] = {inventory, true};
  look_for(inventory.life.node);
}

void RecoveryReports::forget_own_inventory() {
  inventories_.erase(self_.node);
  look_for(self_.node);
}

void RecoveryReports::note_ready(NodeLife life) {
  const auto found = places_.find(life.node);
  if (found != places_.end() && found->second.life != life) return;  // left behind by a job of the same name
  ready_.insert_or_assign(life.node, life);
  look_for(life.node);
}

void RecoveryReports::note_collected(std::uint32_t group, std::string_view key, std::string_view value) {
  std::size_t number = 0;
  for (const std::string_view report : split_reports(value)) {
    const bool taken = take_collected(group, report);
    if (!taken && refused_.emplace(key, number).second) ++refused_count_;
    ++number;
  }
}

bool RecoveryReports::take_collected(std::uint32_t group, std::string_view text) {
  auto report = parse_node_report(text);
  if (!report || report->generation != generation_) return false;
  const auto place = places_.find(report->life.node);
  // A state in which it is a member may be on its way here; till then what it says is not asked for.
  const bool is_place_known = place != places_.end();
  if (is_place_known && (place->second.life != report->life || place->second.group != group)) return false;
  if (report->kind == ReportKind::ready) {
    note_ready(report->life);
    return true;
  }
  if (!is_place_known) return false;
  const auto known = inventories_.find(report->life.node);
  if (known != inventories_.end() && known->second.inventory.life == report->life)
    return known->second.by_itself || known->second.inventory == *report->inventory;
  inventories_[report->life.node] = {std::move(*report->inventory), false};
  look_for(report->life.node);
  return true;
}

bool RecoveryReports::is_ready(NodeId node) const {
  const auto ready = ready_.find(node);
  const auto place = places_.find(node);
  return ready != ready_.end() && (place == places_.end() || place->second.life == ready->second);
}

std::vector<Inventory> RecoveryReports::inventories() const {
  std::vector<Inventory> all;
  all.reserve(inventories_.size());
  for (const auto& [node, reported] : inventories_) all.push_back(reported.inventory);
  return all;
}

std::vector<NodeLife> RecoveryReports::ready_members() const {
  std::vector<NodeLife> ready;
  for (const NodeLife& life : members_)
    if (is_ready(life.node)) ready.push_back(life);
  return ready;
}

}  // namespace pawl::job
