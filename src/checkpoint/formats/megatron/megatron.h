// Megatron: a folder of Megatron-Core's dist_checkpointing (torch_dist): which tensors it holds, layer by layer.
//
// On disk all layers of a kind are one tensor with a layer axis, all experts of a layer have an expert axis, and norms
// are filed under the linear layer that follows them. The view has the model's own parameters instead, with global
// layer and expert numbers (decoder.layers.3.mlp.experts.local_experts.1.linear_fc2.weight), as they would be named
// without any parallelism; what is fused in the model (QKV, the two halves of a gated fc1) stays so
// (checkpoint/names/families.h splits it). Optimizer states have the roles master, exp_avg and exp_avg_sq, of every
// kind of sharding: plain, fully_reshardable, flattened ranges of releases before 0.16, dp_reshardable and the gathered
// buffers of dp_zero_gather_scatter.
// The files of the last two don't say where a parameter lies in a bucket: the copy of the weights in the bucket does.
// Each place that the view has was proven by its contents; where that can't be, the optimizer's state is left out and
// `problems` says why. The vocabulary is as stored, with its padding: no file says what of it is real.
// Executes nothing.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// `folder` holds metadata.json, .metadata and, up to Megatron-Core 0.19, common.pt. Reads these, the head of every
// item, and, of dp_reshardable, a few elements of every parameter. Fails: `not_found` where a file is missing;
// `invalid` for another backend or version than torch_dist 1; `corrupt` with file and reason; `full`; `io`.
[[nodiscard]] Result<CheckpointView> view_megatron(const std::string& folder, const ReadOptions& options = {},
                                                   Files& files = real_files());

}  // namespace pawl::checkpoint
