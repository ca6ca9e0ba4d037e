// Orders: what operators ask of single nodes, and how far the nodes are with it, from the job's keys
// (docs/protocol.md).
//
// Always as the control last said. Pure: no control, no clock.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "job/control/control.h"
#include "job/membership/job_state.h"
#include "job/recovery/draining.h"

namespace pawl::job {

class Orders {
 public:
  explicit Orders(std::string_view job) : keys_(job) {}

  // A key of the job, whichever. `value`: nullptr if it was erased.
  void apply(const std::string& key, const std::string* value, Revision revision);
  void apply_all(const Listing& listing);  // what is not among them is not ordered

  [[nodiscard]] const std::vector<NodeId>& cordoned() const { return cordoned_; }  // ascending
  [[nodiscard]] const DrainOrders& drains() const { return drains_; }

 private:
  const JobKeys keys_;
  std::vector<NodeId> cordoned_;
  DrainOrders drains_;
};

}  // namespace pawl::job
