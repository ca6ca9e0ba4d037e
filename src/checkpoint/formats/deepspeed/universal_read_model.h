// UniversalModel: what the copies of model_states in a universal folder say together of the model.
//
// Names, shapes and groups of the trainable parameters; which tensors are buffers, frozen or tied; how tensor-parallel
// parts join. What can't be read is a problem of the view. Twins that pawl wrote (kTwinKey) are left alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/deepspeed/model_states.h"
#include "checkpoint/formats/deepspeed/shard_file.h"
#include "checkpoint/formats/deepspeed/shard_names.h"
#include "checkpoint/formats/deepspeed/tensor_parallel.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint::deepspeed {

struct UniversalRank {  // one model_states file
  ShardName name;
  ModelStates states;
};

struct TrainableParameter {
  Shape shape;  // of the first tensor-parallel rank's part
  std::uint64_t count = 0;
  std::size_t group = 0;  // ZeRO-3: the sub-group
};

struct UniversalModel {
  std::vector<UniversalRank> ranks;  // in the order of their model-parallel and then data-parallel rank
  std::size_t tensor_ranks = 1;      // so many of heads() have the parts of a weight
  TensorParallelRules rules;
  std::map<std::string, TrainableParameter> trainable;
  std::vector<std::string> order;  // of `trainable`, as in the model
  std::set<std::string> buffers;
  std::map<std::string, std::uint64_t> frozen;  // their element counts
  std::map<std::string, std::string> ties;      // alias -> name
  std::optional<ElementType> training_type;     // by the job's configuration

  // Of each model-parallel rank the first data-parallel one's file.
  [[nodiscard]] std::vector<const UniversalRank*> heads() const;
  [[nodiscard]] bool is_alias(const std::string& name) const { return ties.contains(name); }
  [[nodiscard]] bool is_stage3() const { return !ranks.empty() && ranks[0].name.kind == ShardName::Kind::zero_model; }
};

// `entries`: the names in `folder`. The files become files of the view; ties become its aliases.
[[nodiscard]] UniversalModel read_universal_model(const std::string& folder, const std::vector<std::string>& entries,
                                                  Files& files, CheckpointView& view);

// Opens a file that is then one of the view's. A damaged one is nothing, and a problem, which begins with `prefix`.
[[nodiscard]] std::optional<ShardFile> open_shard(const std::string& path, std::string_view prefix, Files& files,
                                                  CheckpointView& view);

}  // namespace pawl::checkpoint::deepspeed
