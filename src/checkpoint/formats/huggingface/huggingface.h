// HuggingFace: a folder of a model's weights as transformers, or torch's HuggingFaceStorageWriter, writes it.
//
// One file or several with an index, as safetensors or, where there are none, as pytorch_model.bin; or the shards of a
// distributed save, which have no index: each file says in DCP_SHARDING_INFO where its parts of the tensors belong.
// Names are as stored. A head that is tied to the embedding is not in the files; config.json says so, and it becomes an
// alias. Executes nothing; reads no tensor's bytes.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// Whether a folder with these names in it is one.
[[nodiscard]] bool is_huggingface_folder(const std::vector<std::string>& names);

// Fails: `not_found` where a file that the index names is missing; `invalid` where several models lie in the folder;
// `corrupt` with file and reason; `io`.
[[nodiscard]] Result<CheckpointView> view_huggingface_folder(const std::string& folder, const ReadOptions& options = {},
                                                             Files& files = real_files());
// The files that an index names. As view_huggingface (checkpoint/containers/safetensors.h), and for
// pytorch_model.bin.index.json.
[[nodiscard]] Result<CheckpointView> view_huggingface_index(const std::string& index_path, Files& files = real_files());

}  // namespace pawl::checkpoint
