// A checkpoint, opened and proven: what everything that relies on a view begins with.
//
// Reads headers and sizes, no tensor's bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

// As open_checkpoint(); also `corrupt` where a piece does not lie in its tensor or file (checkpoint/view/pieces.h).
// Boxes that no piece holds are among the view's problems; quantised tensors are `unsupported`.
[[nodiscard]] Result<CheckpointView> open_proven(const std::string& path, const ReadOptions& options);

// Of each of the view's files, in their order: the sizes that decide what a piece may reach. Fails: `corrupt` for one that is
// missing; `io`.
[[nodiscard]] Result<std::vector<std::uint64_t>> file_sizes_of(const CheckpointView& view);

}  // namespace pawl::checkpoint
