// PersistRoot: at the root of the progress tree, which step of the job is written to storage, and when it is published.
//
// Carries out what job/persist/persist_round.h decides: moves the key `persist`, begins the folder, publishes. One swap or task at
// a time; what the storage does not answer in five minutes is given up, and published or removed later by its own task.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job/control/control.h"
#include "job/daemon/events.h"
#include "job/daemon/node_context.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/persist_round.h"

namespace pawl::job {

[[nodiscard]] inline std::string persist_key(const JobKeys& keys) {
  return keys.root + "persist";
}

// What a node knows of the order.
struct PersistKnown {
  PersistRecord record;
  Revision revision = 0;
  Generation entered;  // the last that ran here
  Progress shown;      // what the trainers' pages may show
};

class PersistRoot {
 public:
  struct Hooks {
    std::function<PersistTally()> tally;                   // of all nodes
    std::function<void(PersistRecord, Revision)> on_swap;  // the key says this now
    std::function<void(const KeyValue&)> on_other;         // or this, which another has put there
  };
  // `known` is the node's, and outlives this; so does `store`.
  PersistRoot(NodeContext& context, Events& events, CheckpointStore* store, const PersistKnown& known, Hooks hooks)
      : context_(context), events_(events), store_(store), known_(known), hooks_(std::move(hooks)) {}

  void enter();                                    // a generation runs: known.entered
  void on_change();                                // of the record
  void on_tally(const PersistTally& tally);        // as it is now
  void drive();                                    // where this node is the root
  void drop_open();                                // what is not published is removed, which takes time
  [[nodiscard]] bool may_end() const;              // as far as storage is concerned
  [[nodiscard]] std::vector<Step> stored() const;  // of which there are checkpoints to go on from, the newest first
  [[nodiscard]] std::string path_of(Step stored) const;
  [[nodiscard]] CheckpointOrder order_of(std::uint64_t attempt, Step step) const;

 private:
  [[nodiscard]] PersistView view() const;
  [[nodiscard]] PersistRecord record_here() const;
  void act(const PersistMove& move, const PersistRecord& record);
  void swap(const PersistRecord& next);
  [[nodiscard]] std::uint64_t begin_task();
  [[nodiscard]] bool end_task(std::uint64_t task);  // false: it was given up
  void give_up_stuck_task();
  void begin_folder();
  void publish();
  void give_up(const PersistMove& move);
  void tell_published(const PersistRecord& of);

  NodeContext& context_;
  Events& events_;
  CheckpointStore* const store_;
  const PersistKnown& known_;
  Hooks hooks_;
  std::shared_ptr<OpenCheckpoint> open_;
  std::uint64_t open_attempt_ = 0;
  bool busy_ = false;                     // a swap or a task is under way
  std::uint64_t task_ = 0;                // counts them; of an earlier one nothing counts any more
  std::optional<Duration> task_since_;    // it runs
  std::optional<PersistRecord> pending_;  // how the attempt has ended, until the key says so
  PersistTally last_;
  Duration changed_at_{};  // record or tally
  Duration ran_at_{};      // the job began to run here
  Duration begun_at_{};    // the folder of the last attempt
};

}  // namespace pawl::job
