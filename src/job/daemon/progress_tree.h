// ProgressTree: this node's place in the tree that finds out which steps are committed.
//
// Reports flow up: each node combines its own seats' with its children's, and the root turns them into a Progress
// (job/redundancy/progress.h), which flows down. Reports may be lost: each new link begins with both. What a link that
// does not stand can't bring comes by the control (progress_detour.h). Only while the generation runs here.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "job/daemon/node_context.h"
#include "job/daemon/progress_detour.h"
#include "job/redundancy/progress.h"
#include "job/transport/frame.h"

namespace pawl::job {

class ProgressTree {
 public:
  struct Hooks {
    std::function<bool(NodeId, const Frame&)> send;      // false: no link stands
    std::function<SeatReport(Progress)> own_report;      // of this node's seats
    std::function<void(Progress, bool committed)> show;  // to this node's trainers; `committed`: that has grown
    std::function<void()> on_committed;
    std::function<bool(NodeId)> is_up = {};  // a link stands; not set: each does
    // Of this node and all below it, about to be told or, at the root, judged; `anew`: the parent may know nothing.
    std::function<void(const SeatReport&, bool anew)> before_report = {};
  };
  ProgressTree(NodeContext& context, Hooks hooks)
      : context_(context), hooks_(std::move(hooks)), detour_(context, [this] { return unsaid(); }) {}

  void begin(Progress progress);  // of a generation that now runs
  void report();                  // something may have changed
  void on_report(NodeId child, Generation generation, const SeatReport& report);
  void on_progress(Generation generation, Progress progress);
  void on_link_up(NodeId node);
  void tick();                                                    // every heartbeat interval
  void on_key(const std::string& key, const std::string& value);  // any key of the job, in the order of its revisions

  [[nodiscard]] std::vector<NodeId> neighbours() const;  // its parent and children; none: no member
  [[nodiscard]] Progress progress() const { return progress_; }
  [[nodiscard]] const std::atomic<std::uint64_t>& bits() const { return bits_; }  // packed, for threads

 private:
  void set(Progress progress);
  [[nodiscard]] bool takes(Generation generation) const;
  [[nodiscard]] std::optional<ProgressNews> unsaid() const;
  struct Heard {
    Generation generation;
    ProgressNews news;
  };
  void take(NodeId node, const Heard& heard);

  NodeContext& context_;
  Hooks hooks_;
  Progress progress_;
  std::atomic<std::uint64_t> bits_{0};
  std::map<NodeId, SeatReport> child_reports_;
  std::optional<SeatReport> last_report_;  // as the parent was sent it
  SeatReport report_;                      // the newest
  std::map<NodeId, Heard> heard_;          // by the control, the newest of each node
  ProgressDetour detour_;
};

}  // namespace pawl::job
