// RecoveryReports: what the nodes have reported in the state's generation, and whose reports are still missing.
//
// A report comes by itself, as its node has put it, or among others that a collector has put (report_groups.h). Of one life
// the one that it put itself counts. Of what a collector says nothing is taken that can't be so: it is counted and passed
// over. Kept as they come, so that a leader need not look through all nodes for each. Pure. JobMirror fills it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "job/membership/inventory.h"
#include "job/membership/job_state.h"
#include "job/membership/node_report.h"
#include "job/recovery/members.h"
#include "job/recovery/report_groups.h"

namespace pawl::job {

class RecoveryReports {
 public:
  explicit RecoveryReports(NodeLife self) : self_(self) {}

  void set_group_size(std::uint32_t positions) { group_size_ = positions; }  // before anything else, or as it is
  [[nodiscard]] std::uint32_t group_size() const { return group_size_; }

  // At each new state. Of another generation nothing has been reported yet.
  void expect(const JobState& state, const Roster& roster, const Ring& ring);
  void clear();  // as if nothing had been
  void note(const Inventory& inventory);
  void forget_own_inventory();
  void note_ready(NodeLife life);  // nothing, if another life has the node's seats
  // The value of a key of collected reports.
  void note_collected(std::uint32_t group, std::string_view key, std::string_view value);
  // How many of these were passed over since the last call; each once, however often its key is read.
  [[nodiscard]] std::uint64_t take_refused() { return std::exchange(refused_count_, 0); }

  [[nodiscard]] bool has_own_inventory() const { return inventories_.contains(self_.node); }
  [[nodiscard]] std::vector<Inventory> inventories() const;
  [[nodiscard]] bool is_ready(NodeId node) const;
  [[nodiscard]] std::vector<NodeLife> ready_members() const;
  // By their lowest seats, in quiescing: the survivors whose inventories are not here; in restoring: the members that are
  // not ready. Else none.
  [[nodiscard]] const std::map<Seat, NodeLife>& awaited() const { return awaited_; }

 private:
  struct Place {
    Seat lowest;
    NodeLife life;
    bool evicted = false;
    std::uint32_t group = 0;
  };
  struct Reported {
    Inventory inventory;
    bool by_itself = false;
  };
  void look_for(NodeId node);
  [[nodiscard]] bool take_collected(std::uint32_t group, std::string_view report);

  const NodeLife self_;
  std::uint32_t group_size_ = kReportGroupSize;
  Generation generation_;
  JobPhase phase_ = JobPhase::forming;
  std::vector<NodeLife> members_;
  std::map<NodeId, Place> places_;
  std::map<NodeId, Reported> inventories_;
  std::map<NodeId, NodeLife> ready_;
  std::map<Seat, NodeLife> awaited_;
  std::set<std::pair<std::string, std::size_t>, std::less<>> refused_;  // key, and which in it
  std::uint64_t refused_count_ = 0;
};

}  // namespace pawl::job
