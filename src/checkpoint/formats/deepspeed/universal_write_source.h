// UniversalSource: the DeepSpeed folder that a view was read from, for what a universal folder takes over from it.
//
// A view has tensors and facts; the job's own state and the optimizer's hyperparameters lie in the small files beside
// them. Reads those files; of a view of another format there is no such folder.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/containers/torch_writer.h"
#include "checkpoint/formats/deepspeed/shard_names.h"
#include "checkpoint/formats/deepspeed/tensor_parallel_info.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/byte_source.h"
#include "env/files.h"

namespace pawl::checkpoint::deepspeed {

struct UniversalSource {
  std::string path;                   // empty: the view was not read from DeepSpeed's files
  std::vector<ShardName> models;      // the model_states files, in the order of their ranks; no twins
  std::vector<ShardName> optimizers;  // likewise the optimizer's
  bool is_universal = false;
};

// Looks at names, and at each model_states file for whether it is a twin (kTwinKey).
[[nodiscard]] UniversalSource find_source(const CheckpointView& view, Files& files);

// How tensor-parallel parts join, as the first model_states file says it. Fails: as read_tensor_parallel_info, `io`.
[[nodiscard]] Result<TensorParallelInfo> read_source_rules(const UniversalSource& source, Files& files);

// A file of torch.save, opened for copying.
struct OpenedFile {
  std::unique_ptr<ByteSource> bytes;
  TorchFile torch;

  // Fails: `corrupt`, `io`, naming the file.
  [[nodiscard]] static Result<OpenedFile> open(const std::string& path, Files& files);
  [[nodiscard]] const Pickle& pickle() const { return torch.pickle(); }
  [[nodiscard]] Pickle::Value find(std::string_view key) const { return pickle().find(pickle().root(), key); }
};

// Writes the items of a dict under their own keys, but for `left_out`. The answer: keys whose values can't be copied
// (large tensors, storages).
[[nodiscard]] std::vector<std::string> copy_items_but(const std::set<std::string_view>& left_out,
                                                      const OpenedFile& from, Pickle::Value dict, TorchWriter& to,
                                                      TorchCopy& copy);

}  // namespace pawl::checkpoint::deepspeed
