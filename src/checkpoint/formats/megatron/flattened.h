// Flattened: optimizer states that Megatron-Core before 0.16 stored as a grid of flattened blocks.
//
// A tensor of shape [X, Y] whose ranks hold blocks of [x, y] is stored as [X/x, Y/y, x*y]; the last axis is cut into
// the intervals of the data-parallel ranks, even in one block of several pieces. The true shape is kept beside it in
// .metadata. Pure, but for the reading of those shapes.
#pragma once

#include <string>
#include <unordered_map>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// The true shapes that the folder's .metadata has (mcore_data), by key. Empty where it has none.
// Fails: `corrupt`, `io`, as reading .metadata does.
[[nodiscard]] Result<std::unordered_map<std::string, Shape>> read_true_shapes(const std::string& folder, Files& files);

// The tensor as it was before. Fails: `corrupt`, with both shapes, where they don't fit.
[[nodiscard]] Result<StoredTensor> unflatten(const StoredTensor& grid, const Shape& shape);

}  // namespace pawl::checkpoint
