// Weights: the model's weights and buffers, from wherever a save keeps them, into the table of parameters.
//
// They lie in the model_states files; of pipelines in layer files; of experts in files of their own. ZeRO-3 keeps only
// names and frozen parameters: the other weights come with the optimizer's masters (zero_states.h).
// What can't be read is a problem of the save. Which files are missing is not checked here (missing_files.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/formats/deepspeed/degrees.h"
#include "checkpoint/formats/deepspeed/model.h"
#include "checkpoint/formats/deepspeed/parameters.h"
#include "checkpoint/formats/deepspeed/save_folder.h"
#include "checkpoint/names/parameter_order.h"

namespace pawl::checkpoint::deepspeed {

// Names that only layer and expert files tell. Optimizers without ZeRO number their parameters in this order.
struct LayerWeight {
  std::uint32_t tensor_rank = 0;
  NamedShape name;
};
struct ExpertWeight {
  std::uint32_t layer = 0;
  std::uint32_t expert = 0;  // among all of its layer
  std::uint32_t model_rank = 0;
  NamedShape name;
};
struct FileWeights {
  std::vector<LayerWeight> layers;
  std::vector<ExpertWeight> experts;
};

// Ties that no list names are added to `model`: two names for the same bytes.
[[nodiscard]] FileWeights add_weights(SaveFolder& save, SavedModel& model, const ParallelDegrees& degrees,
                                      ParameterTable& table);

// One tensor of one rank, under its name in the model. Tied names are left out; of buffers, one rank's is kept.
void add_weight(StoredTensor tensor, ModelPosition position, const SavedModel& model, const ParallelDegrees& degrees,
                ParameterTable& table);

// What a layer's or an expert's file holds. Nothing if it can't be read; that is a problem of the save then.
[[nodiscard]] std::optional<std::vector<StoredTensor>> read_weight_file(const ShardName& shard, SaveFolder& save);

// Layer files (layer_weights.cc).
[[nodiscard]] std::vector<LayerWeight> add_layer_weights(SaveFolder& save, const SavedModel& model,
                                                         const ParallelDegrees& degrees, ParameterTable& table);

}  // namespace pawl::checkpoint::deepspeed
