// Retention: at the root of the tree, removes the checkpoints that the job does not keep (`pawl run --keep-last`).
//
// After the record says that one is published, and on a task. Which of them go: job/persist/retention.h. What can't be removed
// is told (`checkpoint_kept`), and tried again after the next one; neither the job nor a checkpoint fails of it. A daemon that
// was restarted looks once, and finishes what the one before was at.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "job/daemon/events.h"
#include "job/daemon/node_context.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/persist_record.h"
#include "job/persist/retention.h"

namespace pawl::job {

[[nodiscard]] inline checkpoint::Retention retention_of(const CheckpointSpec& spec) {
  return {spec.keep_last, spec.keep_every};
}

class CheckpointRetention {
 public:
  // `store`: none in a job that writes nothing; it outlives this. `record`: what the key `persist` is known to say.
  CheckpointRetention(NodeContext& context, Events& events, CheckpointStore* store,
                      std::function<const PersistRecord&()> record)
      : context_(context), events_(events), store_(store), record_(std::move(record)) {}

  void drive();
  // At the root: nothing is to be removed any more, or that takes too long to wait for it.
  [[nodiscard]] bool may_end() const;

 private:
  struct Kept {  // against the job's will
    std::string path;
    std::string why;
  };

  [[nodiscard]] bool is_due() const;
  void ended(const std::vector<Kept>& kept);

  NodeContext& context_;
  Events& events_;
  CheckpointStore* const store_;
  std::function<const PersistRecord&()> record_;
  std::pair<Generation, Step> done_{};     // as far as that was published
  std::optional<Duration> running_since_;  // a task is at it
  std::set<std::string> told_;             // of which it was said that they were kept
};

}  // namespace pawl::job
