// A checkpoint's files as the source of a plan: CheckpointView in, ReshapeSource and places out.
//
// Holder: the file's index in the view. Buffer: the piece's number, counted over all tensors in order. A piece is its
// own buffer, so its offset is 0. Tensors keep their index. Both results read the view as long as they live.
// Pure: opens nothing (checkpoint/reshape/execute.h does). Thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/plan.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

struct FileSourceOptions {
  // Of a tensor that has a copy of this number, only that copy is used: how a person goes on where copies differ.
  std::optional<std::uint32_t> trusted_copy;
  // Only tensors of these roles; empty: all. The others have no tensor in the source, and indices are without them.
  std::vector<std::string> roles;
};

// The whole view, for ReshapePlan::create. Packed types (four and six bits) can only be copied whole: their boxes are
// not to be cut, so a target holds each in one piece.
[[nodiscard]] ReshapeSource source_of(const CheckpointView& view, const FileSourceOptions& options = {});
// Where those buffers lie, for execute(). The same for all options.
[[nodiscard]] CopySource places_of(const CheckpointView& view);

}  // namespace pawl::checkpoint
