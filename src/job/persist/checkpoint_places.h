// CheckpointPlaces: the checkpoints of a job wherever their path says that they are: s3://BUCKET/PREFIX, or a folder.
//
// Object storage is reached with the credentials of this process's environment (env/s3/credentials.h), which are read when it is first
// needed. No path, record or log has them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/persist/checkpoint_store.h"

namespace pawl::job {

// Each call goes to the store of its path; it fails also where object storage can't be reached.
[[nodiscard]] std::unique_ptr<CheckpointStore> checkpoint_store_by_path();

[[nodiscard]] bool is_in_object_storage(const std::string& path);

// claim_checkpoint_folder() or claim_s3_folder(), as the path is.
[[nodiscard]] Status claim_checkpoints(const std::string& path, const std::string& job, const std::string& token_digest,
                                       bool resumes);
// What is there; nothing, where there is no such folder.
[[nodiscard]] Result<std::vector<checkpoint::ListedCheckpoint>> list_job_checkpoints(const std::string& path);

}  // namespace pawl::job
