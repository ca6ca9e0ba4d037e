// LastCheckpoint: a job that is to end writes the newest step of its memory to storage first (job/recovery/stop_order.h).
//
// Every node watches the order and writes its parts while it is frozen in quiescing. Whoever leads that generation begins
// the folder, publishes it when all seats are written, and ends the job: with the step's path in the verdict, or with why there is
// none. A part whose sums are wrong is struck out, and the next generation takes another copy.
// Nothing of it is done where the job writes no checkpoints.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/memory.h"
#include "job/daemon/node_context.h"
#include "job/daemon/slot_writer.h"
#include "job/recovery/decide.h"
#include "job/recovery/stop_order.h"

namespace pawl::job {

class LastCheckpoint {
 public:
  struct Hooks {
    std::function<void(Cause, std::vector<Struck>)> report;              // a further generation is wanted
    std::function<void(const JobState& ended, const std::string&)> end;  // writes that state
    std::function<std::string(Step)> stored_at;  // a checkpoint of this step is there; empty: no
    std::function<CheckpointOrder(std::uint64_t attempt, Step)> order_of;
    std::function<void(int code)> leave;  // this node ends, and the job goes on without
  };
  LastCheckpoint(NodeContext& context, Memory& memory, Events& events, CheckpointStore* store, Hooks hooks)
      : context_(context), memory_(memory), events_(events), store_(store), hooks_(std::move(hooks)) {}

  void on_key(const std::string& key, const std::string& value, Revision revision);  // any key of the job
  // This node was told to end by a signal: so is the job, if as many are that it can't go on; else this node leaves. Once
  // it knows the job's state.
  void stop_node(int signal, Duration grace);
  // Of a state in which the job is to fail: whether it is not to be written yet, since its newest step comes first.
  [[nodiscard]] bool comes_before(const JobState& failed);
  void consider_stop();  // what this node knows of the job is no older than its process
  void drive();
  void lead(const LastStep& last);  // of who leads: what is to be written

 private:
  struct Writing {
    std::uint64_t attempt = 0;
    PartTold told;
    std::shared_ptr<PartProgress> progress;
    std::size_t seat_count = 0;  // that this node has to write
  };
  struct Leading {
    std::shared_ptr<OpenCheckpoint> open;
    std::uint64_t attempt = 0;  // of `open`
    bool busy = false;
    std::uint32_t failures = 0;
    Duration not_before{};  // the next try
    Step published;         // whether the record says so or not
  };
  struct Own {  // this node's end
    std::string why;
    int code = 0;
    Duration since{};
    Duration patience{};
    bool told = false;
  };

  [[nodiscard]] bool is_on() const;
  [[nodiscard]] bool has_run() const;
  void order(std::string why, Duration patience);
  void freeze_all();
  void write_parts();
  [[nodiscard]] std::optional<SlotToWrite> slot_of(const PartToWrite& part) const;
  void wrote(std::uint64_t attempt, Generation generation, const SlotToWrite& what, SourceKind kind,
             const Status& status);
  void tell();
  void begin(const LastStep& last);
  void begun(const LastRecord& record, Result<std::unique_ptr<OpenCheckpoint>> open);
  [[nodiscard]] bool all_told(std::string& failed) const;
  void publish();
  void failed(const std::string& why);
  void count_failure();
  void drop_open();
  void swap(LastRecord next);
  void end(const std::string& what);
  [[nodiscard]] bool is_late(Duration beyond = {}) const;

  NodeContext& context_;
  Memory& memory_;
  Events& events_;
  CheckpointStore* const store_;
  Hooks hooks_;
  std::optional<StopOrder> order_;
  Duration ordered_at_{};  // as this node heard of it
  bool ordering_ = false;
  std::map<NodeId, StoppingNode> stopping_;
  std::optional<LastRecord> record_;
  Revision revision_ = 0;  // the record's
  Duration changed_at_{};  // it, or what was told of it
  std::map<NodeId, PartTold> told_;
  Writing writing_;
  Leading leading_;
  std::optional<Own> own_;
  bool ended_ = false;  // this node has asked for it
};

}  // namespace pawl::job
