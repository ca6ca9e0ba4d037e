#include "job/daemon/retention.h"

#include <vector>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "job/persist/persist_round.h"

namespace pawl::job {

using Json = nlohmann::json;

// What is published in a generation, or was by the step from which it goes on: what the record says else is of another history.
bool CheckpointRetention::is_due() const {
  const JobMirror& mirror = context_.mirror;
  if (store_ == nullptr || mirror.spec().checkpoints.path.empty() || mirror.spec().checkpoints.keep_last == 0)
    return false;
  if (!context_.is_running() || !mirror.is_member() || !mirror.is_root()) return false;
  const PersistRecord& record = record_();
  if (record.published == Step(0) || done_ == std::pair(mirror.generation(), record.published)) return false;
  return record.generation == mirror.generation() || record.published <= mirror.state().resume;
}

void CheckpointRetention::drive() {
  if (running_since_ || !is_due()) return;
  const JobSpec& spec = context_.mirror.spec();
  running_since_ = context_.clock->now();
  done_ = {context_.mirror.generation(), record_().published};
  (void)context_.environment->tasks.start(
      "pawl-retention", [this, store = store_, record = record_(), folder = spec.checkpoints.path,
                         retention = retention_of(spec.checkpoints), owner = claim_text(spec.job, spec.token_digest)] {
        std::vector<Kept> kept;
        if (const Status finished = store->finish_removals(folder, owner); !finished)
          kept.push_back({folder, finished.error().what});
        const auto listed = store->list(folder);
        if (!listed) kept.push_back({folder, listed.error().what});
        std::vector<checkpoint::ListedCheckpoint> old;
        if (listed) old = checkpoints_to_remove(record, *listed, retention);
        for (const checkpoint::ListedCheckpoint& one : old) {
          const Status removed = store->remove(one, owner);
          if (removed)
            log_info("checkpoint_removed", "step", one.step, "path", one.path);
          else if (removed.error().code != Code::not_found)
            kept.push_back({one.path, removed.error().what});
        }
        context_.post([this, kept = std::move(kept)] { ended(kept); });
      });
}

void CheckpointRetention::ended(const std::vector<Kept>& kept) {
  running_since_.reset();
  for (const Kept& one : kept) {
    if (!told_.insert(one.path).second) continue;
    log_warn("checkpoint_kept", "path", one.path, "why", one.why);
    events_.tell("checkpoint_kept", Json{{"path", one.path}, {"detail", one.why}}.dump());
  }
  context_.drive();
}

bool CheckpointRetention::may_end() const {
  if (running_since_) return context_.clock->now() - *running_since_ > kPersistPatience;
  return !is_due();
}

}  // namespace pawl::job
