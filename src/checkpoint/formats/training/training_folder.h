// TrainingFolder: a folder of a training library as one checkpoint: weights and optimizer, under one set of names.
//
// Reads the folders of training_parts.h with the readers of their parts: Hugging Face's files, files of torch.save, DCP
// folders. An optimizer's numbers become names as in any file of torch.save (torch/rank_files.h): where the file, the
// shapes or a person say them; else they stay, and `unnamed` says so. Where there are several models, their names may
// begin with model_0, model_1; an optimizer gets the names of the one that it fits.
//
// What always holds: see checkpoint/view/checkpoint_view.h. A part that is missing is a problem, and so is an optimizer
// that can't be read: the weights stay readable. Schedulers, generators and samplers are named among `objects`, not
// read. Executes nothing.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// Whether a folder with these names in it is one.
[[nodiscard]] bool is_training_folder(std::span<const std::string> names);

// Fails: `not_found` where it is none; `invalid` where two files claim to be the same part, or parts have forms that are
// not read together; and as the readers of the weights do.
[[nodiscard]] Result<CheckpointView> view_training_folder(const std::string& folder, const ReadOptions& options = {},
                                                          Files& files = real_files());

}  // namespace pawl::checkpoint
