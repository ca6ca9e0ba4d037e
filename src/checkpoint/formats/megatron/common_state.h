// CommonState: what Megatron-Core keeps beside the tensors: iteration, arguments, and the optimizer's step.
//
// One torch.save: common.pt, or the item common_state/shard_0_1 (a list of one). Anything may be missing: users save
// what they like. Executes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/containers/torch_file.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {

struct CommonState {
  std::optional<std::uint64_t> iteration;
  std::optional<double> optimizer_step;
  std::string sharding_type;        // of the distributed optimizer's state; empty: none, or an older release
  bool transformer_engine = false;  // the arguments say that the model used it
  std::optional<std::uint64_t> layers;
  std::vector<std::pair<std::string, std::string>> facts;  // for CheckpointView: layout, attention heads, ...
};

// `source` is what `file` was read from.
[[nodiscard]] CommonState read_common_state(ByteSource& source, const TorchFile& file);

// The step that a state of an optimizer says, under the keys where Megatron-Core puts it.
[[nodiscard]] std::optional<double> find_step(ByteSource& source, const TorchFile& file, Pickle::Value state);

}  // namespace pawl::checkpoint
