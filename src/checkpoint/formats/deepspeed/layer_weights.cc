#include <algorithm>
#include <map>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/pipeline.h"
#include "checkpoint/formats/deepspeed/weights.h"

namespace pawl::checkpoint::deepspeed {
namespace {

struct LayerFiles {
  std::vector<PipelineLayer> layers;                                                     // ascending
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<StoredTensor>> tensors;  // by layer, tensor rank
};

LayerFiles read_layer_files(SaveFolder& save, const ParallelDegrees& degrees) {
  LayerFiles out;
  for (const ShardName* shard : save.shards_of(ShardName::Kind::layer)) {
    if (shard->model_rank >= degrees.tensor) {
      save.note(
          text(shard->name, " is beyond the ", degrees.tensor, " tensor-parallel ranks of this save and is ignored"));
      continue;
    }
    if (out.layers.empty() || out.layers.back().number != shard->layer) out.layers.push_back({shard->layer, {}});
    std::optional<std::vector<StoredTensor>> held = read_weight_file(*shard, save);
    if (!held) continue;
    NamedShapes& names = out.layers.back().tensors;
    if (names.empty())
      for (const StoredTensor& tensor : *held) names.emplace_back(tensor.name, tensor.shape);
    out.tensors[{shard->layer, shard->model_rank}] = std::move(*held);
  }
  return out;
}

// What the first tensor-parallel ranks' optimizers name, stages in order.
NamedShapes optimizer_names(const SavedModel& model, const ParallelDegrees& degrees) {
  NamedShapes out;
  for (const ModelRank& rank : model.ranks)
    if (degrees.position_of(rank.number).tensor == 0)
      for (const ParameterGroup& group : rank.states.groups)
        for (const ParameterShape& parameter : group) out.emplace_back(parameter.name, parameter.shape);
  return out;
}

// The first stage whose optimizer has a name of this layer.
std::uint32_t stage_of_layer(const std::string& prefix, const SavedModel& model, const ParallelDegrees& degrees) {
  const auto names_it = [&](const ParameterShape& parameter) { return parameter.name.starts_with(prefix); };
  for (const ModelRank& rank : model.ranks)
    for (const ParameterGroup& group : rank.states.groups)
      if (std::ranges::any_of(group, names_it)) return degrees.position_of(rank.number).stage;
  return 0;
}

}  // namespace

std::vector<LayerWeight> add_layer_weights(SaveFolder& save, const SavedModel& model, const ParallelDegrees& degrees,
                                           ParameterTable& table) {
  LayerFiles files = read_layer_files(save, degrees);
  const std::vector<LayerPrefix> prefixes = layer_prefixes(files.layers, optimizer_names(model, degrees));
  std::vector<LayerWeight> out;
  for (std::size_t i = 0; i < files.layers.size(); ++i) {
    if (prefixes[i].is_second_use) continue;
    const std::uint32_t stage = stage_of_layer(prefixes[i].prefix, model, degrees);
    for (std::uint32_t rank = 0; rank < degrees.tensor; ++rank) {
      const auto held = files.tensors.find({files.layers[i].number, rank});
      if (held == files.tensors.end()) continue;
      for (StoredTensor& tensor : held->second) {
        tensor.name = prefixes[i].prefix + tensor.name;
        if (!model.buffers.contains(tensor.name)) out.push_back({rank, {tensor.name, tensor.shape}});
        add_weight(std::move(tensor), {stage, rank}, model, degrees, table);
      }
    }
  }
  return out;
}

}  // namespace pawl::checkpoint::deepspeed
