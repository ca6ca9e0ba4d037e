#include "checkpoint/formats/deepspeed/weights.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/zero_flat.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint::deepspeed {
namespace {

// A tie that no list names: two names for the same bytes.
void find_ties(const ModelStates& states, SavedModel& model) {
  std::map<std::tuple<std::uint64_t, Shape, PerDimension, ElementType>, std::string> first_name;
  for (const StoredTensor& tensor : states.weights) {
    if (tensor.pieces.empty() || model.buffers.contains(tensor.name)) continue;
    const StoredPiece& piece = tensor.pieces[0];
    const auto [at, is_new] =
        first_name.try_emplace({piece.offset_bytes, tensor.shape, piece.stride, tensor.type}, tensor.name);
    if (!is_new && !model.ties.contains(tensor.name) && !model.ties.contains(at->second))
      model.ties[tensor.name] = at->second;
  }
}

// Names in the module's order; their weights come with the optimizer's masters. Buffers are real.
void add_zero3_names(const ModelRank& rank, const SavedModel& model, const ParallelDegrees& degrees, SaveFolder& save,
                     ParameterTable& table) {
  const ModelPosition position = degrees.position_of(rank.number);
  std::unordered_map<std::string, const ParameterShape*> shapes;
  for (const ParameterGroup& group : rank.states.groups)
    for (const ParameterShape& parameter : group) shapes[parameter.name] = &parameter;
  for (const ParameterShape& parameter : rank.states.frozen) shapes[parameter.name] = &parameter;
  std::vector<std::string> without_shape;
  for (const StoredTensor& tensor : rank.states.weights) {
    const auto known = shapes.find(tensor.name);
    const bool is_placeholder = tensor.shape == Shape{0} && !model.buffers.contains(tensor.name);
    if (known != shapes.end())  // without pieces yet: what no rank's file brings is seen to be missing
      table.add(tensor.name, position, known->second->shape, "weight", tensor.type, {});
    else if (is_placeholder && !model.ties.contains(tensor.name))
      without_shape.push_back(tensor.name);
    else
      add_weight(tensor, position, model, degrees, table);
  }
  if (!without_shape.empty())
    save.note(text(rank.file.path(), " does not say which shapes these have: ", listed(without_shape)));
}

// One data-parallel rank's part of a frozen parameter. `flat` has its elements and perhaps padding.
void add_frozen_part(const ParameterShape& parameter, const StoredTensor& flat, ModelPosition position,
                     std::uint32_t data_rank, const ParallelDegrees& degrees, SaveFolder& save, ParameterTable& table) {
  const std::uint64_t each = part_size(parameter.count, degrees.data);
  const std::uint64_t real = real_size(parameter.count, each, data_rank);
  if (flat.shape.size() != 1 || flat.shape[0] < real ||
      (!flat.pieces.empty() && flat.pieces[0].stride[0] != 1 && flat.shape[0] > 1))
    return save.problem(text("frozen parameter ", parameter.name, ": the part of data-parallel rank ", data_rank,
                             " has the shape ", text_of(flat.shape), ", where ", real, " elements are expected"));
  std::vector<StoredPiece> pieces;
  if (real != 0) {
    StoredPiece first = flat.pieces[0];
    first.rank = degrees.rank_of(position, data_rank);
    append_interval(parameter.shape, each * data_rank, each * data_rank + real, flat.type, first, pieces);
  }
  table.add(parameter.name, position, parameter.shape, "weight", flat.type, pieces);
}

void add_frozen_parts(const SavedModel& model, const ParallelDegrees& degrees, SaveFolder& save,
                      ParameterTable& table) {
  for (const FrozenParts& held : model.frozen_parts) {
    const auto rank = std::ranges::find(model.ranks, held.model_rank, &ModelRank::number);
    if (rank == model.ranks.end()) continue;
    for (const ParameterShape& parameter : rank->states.frozen) {
      const auto part = held.parts.find(parameter.name);
      if (part == held.parts.end() || parameter.count == 0) continue;
      add_frozen_part(parameter, part->second, degrees.position_of(held.model_rank), held.data_rank, degrees, save,
                      table);
    }
  }
}

std::vector<ExpertWeight> add_expert_weights(SaveFolder& save, const SavedModel& model, const ParallelDegrees& degrees,
                                             ParameterTable& table) {
  std::vector<ExpertWeight> out;
  for (const ShardName* shard : save.shards_of(ShardName::Kind::expert)) {
    if (shard->model_rank >= degrees.model_ranks()) continue;
    std::optional<std::vector<StoredTensor>> held = read_weight_file(*shard, save);
    if (!held) continue;
    for (StoredTensor& tensor : *held) {
      out.push_back({shard->layer, shard->expert, shard->model_rank, {tensor.name, tensor.shape}});
      add_weight(std::move(tensor), degrees.position_of(shard->model_rank), model, degrees, table);
    }
  }
  return out;
}

}  // namespace

std::optional<std::vector<StoredTensor>> read_weight_file(const ShardName& shard, SaveFolder& save) {
  const std::optional<ShardFile> file = save.open(shard);
  if (!file) return std::nullopt;
  Result<std::vector<StoredTensor>> held = read_weights(*file, save.view().unsupported);
  if (held) return std::move(*held);
  save.problem(std::move(held.error().what));
  return std::nullopt;
}

void add_weight(StoredTensor tensor, ModelPosition position, const SavedModel& model, const ParallelDegrees& degrees,
                ParameterTable& table) {
  if (model.ties.contains(tensor.name)) return;
  if (model.buffers.contains(tensor.name)) {
    if (position.tensor == 0) table.add_buffer(std::move(tensor));
    return;
  }
  for (StoredPiece& piece : tensor.pieces) piece.rank = degrees.rank_of(position, 0);
  table.add(tensor.name, position, tensor.shape, "weight", tensor.type, tensor.pieces);
}

FileWeights add_weights(SaveFolder& save, SavedModel& model, const ParallelDegrees& degrees, ParameterTable& table) {
  for (const ModelRank& rank : model.ranks) {
    if (model.is_zero3) {
      add_zero3_names(rank, model, degrees, save, table);
      continue;
    }
    find_ties(rank.states, model);
    for (const StoredTensor& tensor : rank.states.weights)
      add_weight(tensor, degrees.position_of(rank.number), model, degrees, table);
  }
  FileWeights out;
  out.layers = add_layer_weights(save, model, degrees, table);
  out.experts = add_expert_weights(save, model, degrees, table);
  if (model.is_zero3) add_frozen_parts(model, degrees, save, table);
  return out;
}

}  // namespace pawl::checkpoint::deepspeed
