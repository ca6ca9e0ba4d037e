#include "checkpoint/formats/deepspeed/model.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "env/byte_source.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using Kind = ShardName::Kind;

// ZeRO-3 names its files otherwise. A folder with both forms holds two saves, and the plain ones are read.
std::vector<const ShardName*> model_shards(SaveFolder& save, bool& is_zero3) {
  std::vector<const ShardName*> plain = save.shards_of(Kind::model);
  std::vector<const ShardName*> of_zero3 = save.shards_of(Kind::zero_model);
  is_zero3 = plain.empty() && !of_zero3.empty();
  if (!plain.empty() && !of_zero3.empty())
    save.problem(text(save.path(), ": ", plain[0]->name, " and ", of_zero3[0]->name,
                      " belong to two saves, one with ZeRO-3 and one without"));
  return is_zero3 ? of_zero3 : plain;
}

void compare_facts(const ModelRank& rank, const ModelFacts& facts, const std::string& path, SaveFolder& save) {
  const ModelFacts& first = rank.states.facts;
  const auto differ = [&](std::string_view what, const std::optional<std::uint64_t>& a,
                          const std::optional<std::uint64_t>& b) {
    if (a && b && *a != *b)
      save.problem(text(path, ": its ", what, " is ", *b, ", and ", rank.file.path(), " has ", *a,
                        ": the folder mixes files of different saves"));
  };
  differ("step (global_steps)", first.step, facts.step);
  differ("iteration", first.iteration, facts.iteration);
  differ("number of data-parallel ranks (dp_world_size)", first.data_world, facts.data_world);
  differ("number of model-parallel ranks (mp_world_size)", first.model_world, facts.model_world);
}

}  // namespace

SavedModel read_model(SaveFolder& save) {
  SavedModel model;
  for (const ShardName* name : model_shards(save, model.is_zero3)) {
    std::optional<ShardFile> file = save.open(*name);
    if (!file) continue;
    Result<ModelStates> states = read_model_states(*file);
    if (!states) {
      save.damage(std::move(states).error());
      continue;
    }
    if (!model.ranks.empty()) compare_facts(model.ranks[0], states->facts, file->path(), save);
    save.leave_out(states->unsupported);
    if (model.is_zero3) model.frozen_parts.push_back({name->model_rank, name->data_rank, states->frozen_parts});
    if (!model.ranks.empty() && model.ranks.back().number == name->model_rank) continue;
    model.buffers.insert(states->buffers.begin(), states->buffers.end());
    model.ties.insert(states->ties.begin(), states->ties.end());
    model.ranks.push_back({name->model_rank, std::move(*file), std::move(*states)});
  }
  return model;
}

Result<ParallelDegrees> find_degrees(const SaveFolder& save, const SavedModel& model) {
  std::uint64_t pipeline = 0, tensor = 0, ranks = 1, data = 0;
  if (model.first() != nullptr) {
    const ModelFacts& facts = model.first()->facts;
    pipeline = facts.pipeline_degree.value_or(0);
    tensor = facts.tensor_degree.value_or(0);
    ranks = std::max<std::uint64_t>(facts.model_world.value_or(1), model.ranks.back().number + 1);
    data = facts.data_world.value_or(0);
  }
  const std::vector<const ShardName*> layers = save.shards_of(Kind::layer);
  std::uint64_t model_axis = 0, data_files = 1;
  for (const ShardName* layer : layers)
    if (layer->has_model_axis) model_axis = std::max<std::uint64_t>(model_axis, layer->model_rank + 1);
  for (const ShardName* shard : save.shards_of(Kind::optimizer))
    data_files = std::max<std::uint64_t>(data_files, shard->data_rank + 1);
  if (tensor == 0) tensor = layers.empty() ? ranks : std::max<std::uint64_t>(model_axis, 1);
  if (pipeline == 0) pipeline = std::max<std::uint64_t>(ranks / tensor, 1);
  if (data == 0) data = data_files;
  const std::uint64_t ranks_max = save.believable_max() + 64;
  if (pipeline > ranks_max || tensor > ranks_max || data > ranks_max || pipeline * tensor > ranks_max)
    return Error{Code::corrupt, text(save.path(), ": its files say that there were ", data, " data-parallel, ",
                                     pipeline, " pipeline and ", tensor, " tensor-parallel ranks, and there are ",
                                     save.shards().size(), " files")};
  return ParallelDegrees{static_cast<std::uint32_t>(pipeline), static_cast<std::uint32_t>(tensor), data};
}

void leave_out_stale_ranks(const ParallelDegrees& degrees, SavedModel& model, SaveFolder& save) {
  std::vector<std::string> stale;
  std::erase_if(model.ranks, [&](const ModelRank& rank) {
    if (rank.number < degrees.model_ranks()) return false;
    stale.push_back(last_name(rank.file.path()));
    return true;
  });
  if (!stale.empty())
    save.note(text(listed(stale), " are beyond the ", degrees.model_ranks(),
                   " model-parallel ranks of this save and are ignored"));
}

Result<TensorParallelRules> read_rules(const SavedModel& model) {
  for (const ModelRank& rank : model.ranks) {
    const Pickle::Value info = rank.states.universal_info;
    if (info == Pickle::kNothing || rank.file.pickle().is(info, PickleKind::none)) continue;
    Result<TensorParallelRules> rules = TensorParallelRules::read(rank.file.pickle(), info);
    if (!rules) return std::move(rules).error().within(rank.file.path());
    return rules;
  }
  return TensorParallelRules();
}

}  // namespace pawl::checkpoint::deepspeed
