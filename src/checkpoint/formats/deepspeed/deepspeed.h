// DeepSpeed: a folder of engine.save_checkpoint: which parts of which parameters lie where. Executes nothing.
//
// ZeRO-0 to 3, BF16 and FP16 optimizers, pipeline layer files, tensor parallelism as the checkpoint describes it
// (universal_checkpoint_info), experts at any expert parallelism. No file is converted: flat partitions become boxes
// of the parameters, read where they are. What always holds beside CheckpointView's promises:
//  * shapes, orders and degrees come from the files, never from names of folders; param_shapes is what says how a flat
//    partition is laid out (param_slice_mappings are wrong with round-robin gradients), and its sums have to agree;
//  * weights are the training's own. ZeRO-3 keeps none in the files: they are its fp32 masters, rounded;
//  * a rank's file that is missing or damaged is a problem that names it; what other files hold is still listed.
// In this order: find the folder (tag_folder.h) and its files (save_folder.h), learn the model and how the job was cut
// (model.h, degrees.h), add weights (weights.h) and optimizer states (optimizers.h) to one table (parameters.h), name
// the files that are missing (missing_files.h).
// Not here: universal folders (universal.h), how slices of tensor-parallel ranks join (tensor_parallel.h).
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// `folder` is the one that was saved to (`latest` in it names the tag; options.tag another), or a tag's own, of any
// name. Reads the files' pickles, no tensor's bytes but those of steps.
// Fails: `not_found` where no file of DeepSpeed is; `invalid` where a tag has to be chosen; `io`. Damage is in the
// view's problems, unless nothing is left to show: then `corrupt` with file, offset and reason.
[[nodiscard]] Result<CheckpointView> view_deepspeed(const std::string& folder, const ReadOptions& options = {},
                                                    Files& files = real_files());

}  // namespace pawl::checkpoint
