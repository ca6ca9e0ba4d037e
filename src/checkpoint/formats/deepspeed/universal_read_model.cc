#include "checkpoint/formats/deepspeed/universal_read_model.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/universal_write_output.h"

namespace pawl::checkpoint::deepspeed {
namespace {

// The model_states files among `entries`, in the order of their ranks.
std::vector<ShardName> model_shards(const std::vector<std::string>& entries) {
  std::vector<ShardName> out;
  for (const std::string& entry : entries) {
    const std::optional<ShardName> name = parse_shard_name(entry);
    if (name && (name->kind == ShardName::Kind::model || name->kind == ShardName::Kind::zero_model))
      out.push_back(*name);
  }
  std::ranges::sort(out, {}, [](const ShardName& name) { return std::pair(name.model_rank, name.data_rank); });
  return out;
}

// float32 unless the job switched another one on.
std::optional<ElementType> type_of_configuration(const ShardFile& file) {
  const Pickle& pickle = file.pickle();
  const Pickle::Value config = file.find("ds_config");
  if (config == Pickle::kNothing) return std::nullopt;
  for (const std::string_view key : {"bf16", "bfloat16"})
    if (flag_at(pickle, pickle.find(config, key), "enabled")) return ElementType::bfloat16;
  return flag_at(pickle, pickle.find(config, "fp16"), "enabled") ? ElementType::float16 : ElementType::float32;
}

void read_rank(const ShardName& name, const ShardFile& file, UniversalModel& model, CheckpointView& view) {
  Result<ModelStates> states = read_model_states(file);
  if (!states) {
    view.problems.push_back(states.error().what);
    return;
  }
  view.unsupported.insert(view.unsupported.end(), states->unsupported.begin(), states->unsupported.end());
  if (model.ranks.empty()) {
    model.training_type = type_of_configuration(file);
    Result<TensorParallelRules> rules = TensorParallelRules::read(file.pickle(), states->universal_info);
    if (rules)
      model.rules = std::move(*rules);
    else
      view.problems.push_back(std::move(rules).error().within(file.path()).what);
  }
  model.ranks.push_back({name, std::move(*states)});
}

void learn_names(UniversalModel& model) {
  for (const UniversalRank& rank : model.ranks) {
    const ModelStates& states = rank.states;
    model.buffers.insert(states.buffers.begin(), states.buffers.end());
    for (const auto& [alias, name] : states.ties)
      if (alias != name) model.ties.emplace(alias, name);
    for (const ParameterShape& frozen : states.frozen) model.frozen.emplace(frozen.name, frozen.count);
    for (std::size_t group = 0; group < states.groups.size(); ++group)
      for (const ParameterShape& parameter : states.groups[group])
        if (model.trainable.emplace(parameter.name, TrainableParameter{parameter.shape, parameter.count, group}).second)
          model.order.push_back(parameter.name);
  }
}

// How many tensor-parallel ranks there are; pipelines have no weights here that would have to be joined.
void count_tensor_ranks(const std::string& folder, UniversalModel& model, CheckpointView& view) {
  const std::vector<const UniversalRank*> heads = model.heads();
  for (std::size_t i = 0; i < heads.size(); ++i)
    if (heads[i]->name.model_rank != i) {
      view.problems.push_back(text(folder, ": the model_states file of model-parallel rank ", i, " is missing"));
      break;
    }
  model.tensor_ranks = std::max<std::size_t>(heads.size(), 1);
  if (heads.empty()) return;
  const std::optional<std::uint64_t> degree = heads[0]->states.facts.tensor_degree;
  if (degree && *degree > 0 && *degree <= heads.size()) model.tensor_ranks = *degree;
}

}  // namespace

std::vector<const UniversalRank*> UniversalModel::heads() const {
  std::vector<const UniversalRank*> out;
  for (const UniversalRank& rank : ranks)
    if (out.empty() || out.back()->name.model_rank != rank.name.model_rank) out.push_back(&rank);
  return out;
}

UniversalModel read_universal_model(const std::string& folder, const std::vector<std::string>& entries, Files& files,
                                    CheckpointView& view) {
  UniversalModel model;
  for (const ShardName& name : model_shards(entries)) {
    const std::optional<ShardFile> file = open_shard(join_path(folder, name.name), "", files, view);
    if (file && file->find(kTwinKey) == Pickle::kNothing) read_rank(name, *file, model, view);
  }
  if (model.ranks.empty())
    view.problems.push_back(text(folder,
                                 ": no model_states file can be read, so it is not known which tensors are buffers or "
                                 "frozen, or which shapes flat tensors have"));
  learn_names(model);
  view.aliases.insert(view.aliases.end(), model.ties.begin(), model.ties.end());
  count_tensor_ranks(folder, model, view);
  return model;
}

std::optional<ShardFile> open_shard(const std::string& path, std::string_view prefix, Files& files,
                                    CheckpointView& view) {
  const auto index = static_cast<std::uint32_t>(view.files.size());
  view.files.push_back({path});
  Result<ShardFile> file = ShardFile::open(path, index, files);
  if (file) return std::move(*file);
  view.problems.push_back(text(prefix, file.error().what));
  return std::nullopt;
}

}  // namespace pawl::checkpoint::deepspeed
