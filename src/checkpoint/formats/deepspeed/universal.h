// Universal: a folder that DeepSpeed's ds_to_universal wrote: each parameter whole, a file for each of its states.
//
// Roles: `fp32.pt` of a trainable parameter is its master, whatever the training's own type was. A weight is what the
// copies of model_states keep in that type; ZeRO-3 and pipelines keep none there, and what DeepSpeed would load is
// given: the master, rounded. (Of a parameter that tensor-parallel ranks averaged that is not the mean of their
// weights.) Buffers and frozen parameters are those of model_states: the converter wrote them as float32 beside, or not
// at all, and DeepSpeed would load neither. Steps are each parameter's step.pt; ZeRO-3 has none, and there they are
// those of optimizer_state.pt, by sub-group. ZeRO-3 without tensor parallelism keeps flat tensors: their shapes are in
// model_states. Tied aliases are aliases, though the converter wrote them as parameters.
// DeepSpeed converts some checkpoints wrongly (round-robin gradients); the folder does not show that, so what it holds
// is read as it is. Executes nothing.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// Whether a folder is one, by what lies in it: zero/, with folders in which fp32.pt lies. Not its parent.
[[nodiscard]] bool is_universal(const std::string& folder, Files& files = real_files());

// `folder` is one, or the one above it (`latest_universal` in it names it; options.tag another). Of any name.
// Fails: `not_found` where there is none; `io`. Missing and damaged files are in the view's problems.
[[nodiscard]] Result<CheckpointView> view_universal(const std::string& folder, const ReadOptions& options = {},
                                                    Files& files = real_files());

}  // namespace pawl::checkpoint
