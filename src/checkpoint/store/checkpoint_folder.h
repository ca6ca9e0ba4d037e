// CheckpointFolder: the checkpoints of a job, one folder each: DIR/step-500, of this store.
//
// What is only being written, or was left by a save that did not end, is told apart; what is nothing of the kind is not
// mentioned. A checkpoint that is damaged never keeps the others from being listed. Reads manifests and sizes, no tensors' bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pawl::checkpoint {

[[nodiscard]] std::string checkpoint_name(std::uint64_t step);                            // "step-500"
[[nodiscard]] std::optional<std::uint64_t> parse_checkpoint_name(std::string_view name);  // exactly what that writes

struct ListedCheckpoint {
  std::uint64_t step = 0;
  std::string path;
  bool finished = false;       // else it is being written, or was left so
  std::string damage;          // a sentence; empty: its files are there, as long as its manifest says
  std::uint64_t bytes = 0;     // of its data files
  std::uint64_t tensors = 0;   // that are for everybody
  std::int64_t written_s = 0;  // since 1970; of the marker, or of the unfinished folder
};
// By step, unfinished ones of a step behind the finished one. `path` may also be one of these itself. Fails: `not_found`, `io`.
[[nodiscard]] Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& path);

}  // namespace pawl::checkpoint
