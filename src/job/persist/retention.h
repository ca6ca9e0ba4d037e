// Retention: which checkpoints of a job stay, as its record names them and as they lie in its folder. Pure.
//
// The record forgets a step first, with the swap that publishes a newer one; only then may its folder go. So a recovery
// never goes back to one that is being removed. Only what led to the published one, by its identity, is counted and removed: what the job, or another,
// has left behind in the same folder is of another history, and stays for whoever wants it. What the record names stays, too. Who removes them: job/daemon/retention.h.
#pragma once

#include <span>
#include <vector>

#include "checkpoint/store/checkpoint_folder.h"
#include "job/persist/persist_record.h"

namespace pawl::job {

// `record` as it is swapped in: without those of `older` that retention gives up.
[[nodiscard]] PersistRecord after_retention(PersistRecord record, checkpoint::Retention retention);
// Of what lies in the folder, when the record says this, the oldest first.
[[nodiscard]] std::vector<checkpoint::ListedCheckpoint> checkpoints_to_remove(
    const PersistRecord& record, std::span<const checkpoint::ListedCheckpoint> listed, checkpoint::Retention retention);

}  // namespace pawl::job
