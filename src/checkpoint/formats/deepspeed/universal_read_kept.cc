#include "checkpoint/formats/deepspeed/universal_read_kept.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/zero_flat.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using WeightsByName = std::map<std::string_view, const StoredTensor*>;

// ZeRO-3 leaves an empty tensor where a parameter was.
bool is_placeholder(const StoredTensor& tensor, const UniversalModel& model) {
  if (!tensor.pieces.empty()) return false;
  if (const auto at = model.trainable.find(tensor.name); at != model.trainable.end()) return at->second.count != 0;
  const auto at = model.frozen.find(tensor.name);
  return at != model.frozen.end() && at->second != 0;
}

// A weight of which each tensor-parallel rank has `pieces` in the index space of its own part, of that shape.
void append_merge(const std::string& name, ElementType type, const std::vector<Shape>& shapes,
                  const std::vector<std::vector<StoredPiece>>& pieces, const UniversalModel& model,
                  CheckpointView& view) {
  const Result<MergedParameter> merged = model.rules.merge(name, shapes);
  if (!merged) {
    view.problems.push_back(merged.error().what);
    return;
  }
  StoredTensor out;
  out.name = name;
  out.type = type;
  out.shape = merged->shape;
  out.versions = merged->versions;
  for (std::uint32_t rank = 0; rank < pieces.size(); ++rank)
    for (const StoredPiece& piece : pieces[rank]) append_merged(*merged, rank, piece, type, out.pieces);
  view.tensors.push_back(std::move(out));
}

// A weight of which each tensor-parallel rank's file has its part, whole.
void append_joined(const std::string& name, const std::vector<WeightsByName>& weights, const UniversalModel& model,
                   CheckpointView& view) {
  std::vector<Shape> shapes;
  std::vector<std::vector<StoredPiece>> pieces;
  std::optional<ElementType> type;
  for (std::size_t rank = 0; rank < model.tensor_ranks; ++rank) {
    const auto at = weights[rank].find(name);
    if (at == weights[rank].end() || at->second->type != type.value_or(at->second->type)) break;
    type = at->second->type;
    shapes.push_back(at->second->shape);
    pieces.push_back(at->second->pieces);
  }
  if (shapes.size() != model.tensor_ranks) {
    view.problems.push_back(text("weight of ", name, ": ", shapes.size(), " of ", model.tensor_ranks,
                                 " tensor-parallel ranks have it with one type"));
    return;
  }
  append_merge(name, *type, shapes, pieces, model, view);
}

// How many elements of the parameter that rank holds: 0 too where its part is not the one that it should be.
std::uint64_t append_frozen_part(const UniversalRank& rank, const ParameterShape& frozen, std::uint32_t world,
                                 std::optional<ElementType>& type, std::vector<StoredPiece>& out) {
  const auto at = rank.states.frozen_parts.find(frozen.name);
  const std::uint64_t each = part_size(frozen.count, world);
  if (at == rank.states.frozen_parts.end() || at->second.pieces.size() != 1 || at->second.shape != Shape{each} ||
      at->second.pieces[0].stride[0] != 1 || rank.name.data_rank >= world ||
      type.value_or(at->second.type) != at->second.type)
    return 0;
  type = at->second.type;
  const std::uint64_t begin = std::min(frozen.count, each * rank.name.data_rank);
  const std::uint64_t end = std::min(frozen.count, begin + each);
  StoredPiece first = at->second.pieces[0];
  first.rank = rank.name.data_rank;
  if (begin != end) append_interval(frozen.shape, begin, end, at->second.type, first, out);
  return end - begin;
}

// ZeRO-3: every data-parallel rank keeps a flat part of a frozen parameter. False: it is not stored so.
bool append_frozen_parts(const std::string& name, const std::vector<const UniversalRank*>& heads,
                         const UniversalModel& model, CheckpointView& view) {
  std::vector<Shape> shapes;
  std::vector<std::vector<StoredPiece>> local;
  std::optional<ElementType> type;
  std::uint64_t wanted = 0, found = 0;
  for (std::size_t i = 0; i < model.tensor_ranks; ++i) {
    const ParameterGroup& frozen = heads[i]->states.frozen;
    const auto at = std::ranges::find(frozen, name, &ParameterShape::name);
    if (at == frozen.end()) return false;
    shapes.push_back(at->shape);
    local.emplace_back();
    wanted += at->count;
    const auto is_of_head = [&](const UniversalRank& rank) {
      return rank.name.model_rank == heads[i]->name.model_rank;
    };
    const auto world = static_cast<std::uint32_t>(std::ranges::count_if(model.ranks, is_of_head));
    for (const UniversalRank& rank : model.ranks)
      if (is_of_head(rank)) found += append_frozen_part(rank, *at, world, type, local.back());
  }
  if (found == 0 && wanted != 0) return false;  // not stored, or whole: then zero/ has it, as float32
  if (found == wanted)
    append_merge(name, type.value_or(ElementType::float32), shapes, local, model, view);
  else
    view.problems.push_back(
        text("frozen parameter ", name, ": ", found, " of its ", wanted, " elements are in the model_states files"));
  return true;
}

}  // namespace

KeptTensors append_kept(const UniversalModel& model, CheckpointView& view) {
  KeptTensors out;
  const std::vector<const UniversalRank*> heads = model.heads();
  std::vector<WeightsByName> weights(heads.size());
  for (std::size_t i = 0; i < heads.size(); ++i)
    for (const StoredTensor& tensor : heads[i]->states.weights) weights[i].emplace(tensor.name, &tensor);
  for (const UniversalRank* head : heads)
    for (const StoredTensor& tensor : head->states.weights) {
      if (model.is_alias(tensor.name) || out.names.contains(tensor.name)) continue;
      const bool is_buffer = model.buffers.contains(tensor.name);
      if (!is_buffer && is_placeholder(tensor, model)) {
        out.placeholder_types.emplace(tensor.name, tensor.type);
        continue;
      }
      out.names.insert(tensor.name);
      if (is_buffer) {  // every rank has all of it; DeepSpeed takes no copy, so it doesn't matter which one this is
        view.tensors.push_back(tensor);
        view.tensors.back().role = "buffer";
      } else {
        append_joined(tensor.name, weights, model, view);
      }
    }
  for (const UniversalRank* head : heads)
    for (const ParameterShape& frozen : head->states.frozen)
      if (!out.names.contains(frozen.name) && !model.is_alias(frozen.name) &&
          append_frozen_parts(frozen.name, heads, model, view))
        out.names.insert(frozen.name);
  return out;
}

}  // namespace pawl::checkpoint::deepspeed
