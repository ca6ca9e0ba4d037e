// RecoveryReports: what the nodes have reported in the state's generation, and whose reports are still missing.
//
// Kept as they come, so that a leader need not look through all nodes for each. Pure. JobMirror fills it.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "job/membership/inventory.h"
#include "job/membership/job_state.h"
#include "job/recovery/members.h"

namespace pawl::job {

class RecoveryReports {
 public:
  explicit RecoveryReports(NodeLife self) : self_(self) {}

  // At each new state. Of another generation nothing has been reported yet.
  void expect(const JobState& state, const Roster& roster);
  void clear();  // as if nothing had been
  void note(const Inventory& inventory);
  void forget_own_inventory();
  void note_ready(NodeLife life);  // nothing, if another life has the node's seats

  [[nodiscard]] bool has_own_inventory() const { return inventories_.contains(self_.node); }
  [[nodiscard]] std::vector<Inventory> inventories() const;
  [[nodiscard]] bool is_ready(NodeId node) const { return ready_.contains(node); }
  [[nodiscard]] std::vector<NodeLife> ready_members() const;
  // By their lowest seats, in quiescing: the survivors whose inventories are not here; in restoring: the members that are
  // not ready. Else none.
  [[nodiscard]] const std::map<Seat, NodeLife>& awaited() const { return awaited_; }

 private:
  void look_for(NodeId node);

  struct Place {
    Seat lowest;
    NodeLife life;
    bool evicted = false;
  };
  const NodeLife self_;
  Generation generation_;
  JobPhase phase_ = JobPhase::forming;
  std::vector<NodeLife> members_;
  std::map<NodeId, Place> places_;
  std::map<NodeId, Inventory> inventories_;
  std::set<NodeId> ready_;
  std::map<Seat, NodeLife> awaited_;
};

}  // namespace pawl::job
