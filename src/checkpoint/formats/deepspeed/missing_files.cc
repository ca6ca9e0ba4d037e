#include "checkpoint/formats/deepspeed/missing_files.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/pipeline.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using Kind = ShardName::Kind;

std::string two_digits(std::uint64_t number) {
  return text(number < 10 ? "0" : "", number);
}

// The layers that have a file, or that an optimizer names.
std::set<std::uint32_t> expected_layers(const std::vector<const ShardName*>& layers, const SavedModel& model,
                                        const ParallelDegrees& degrees) {
  std::set<std::uint32_t> out;
  for (const ShardName* shard : layers)
    if (shard->model_rank < degrees.tensor) out.insert(shard->layer);
  for (const ModelRank& rank : model.ranks)
    for (const ParameterGroup& group : rank.states.groups)
      for (const ParameterShape& parameter : group)
        if (std::uint32_t number = 0; layer_number(parameter.name, number)) out.insert(number);
  return out;
}

void append_layers(const SaveFolder& save, const SavedModel& model, const ParallelDegrees& degrees,
                   std::vector<std::string>& out) {
  const std::vector<const ShardName*> layers = save.shards_of(Kind::layer);
  if (layers.empty()) return;
  const bool has_model_axis = layers[0]->has_model_axis;
  std::set<std::pair<std::uint32_t, std::uint32_t>> there;
  for (const ShardName* shard : layers) there.emplace(shard->layer, shard->model_rank);
  for (const std::uint32_t number : expected_layers(layers, model, degrees))
    for (std::uint32_t tensor = 0; tensor < (has_model_axis ? degrees.tensor : 1); ++tensor)
      if (!there.contains({number, tensor}))
        out.push_back(text("layer_", two_digits(number), has_model_axis ? text("-model_", two_digits(tensor)) : "",
                           "-model_states.pt"));
}

void append_experts(const SaveFolder& save, const SavedModel& model, std::vector<std::string>& out) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> there;  // layer and expert
  for (const ShardName* shard : save.shards_of(Kind::expert)) there.emplace(shard->layer, shard->expert);
  if (model.first() == nullptr || there.empty()) return;
  const std::vector<std::uint64_t>& counts = model.first()->facts.expert_counts;
  for (std::uint32_t layer = 0; layer < counts.size(); ++layer)
    for (std::uint32_t expert = 0; expert < std::min(counts[layer], save.believable_max()); ++expert)
      if (!there.contains({layer, expert}))
        out.push_back(text("layer_", layer, "_expert_", expert, "_mp_rank_00_model_states.pt"));
}

// What the names of ZeRO's optimizer files begin with in this save.
std::string optimizer_prefix(const SaveFolder& save) {
  std::string out = "zero_pp_rank_";
  for (const ShardName& shard : save.shards())
    if (shard.kind == Kind::optimizer) out = shard.name.substr(0, shard.name.find("zero_pp")) + "zero_pp_rank_";
  return out;
}

void append_ranks(const SaveFolder& save, const SavedModel& model, const ParallelDegrees& degrees,
                  std::vector<std::string>& out) {
  constexpr std::size_t kMissingMax = 10'000;  // names; more say no more
  std::set<std::tuple<Kind, std::uint32_t, std::uint32_t>> there;
  for (const ShardName& shard : save.shards()) there.emplace(shard.kind, shard.model_rank, shard.data_rank);
  const std::string prefix = optimizer_prefix(save);
  const bool is_zero = !save.shards_of(Kind::optimizer).empty() ||
                       std::ranges::any_of(model.ranks, [](const ModelRank& rank) { return rank.states.has_groups; });
  for (std::uint32_t number = 0; number < degrees.model_ranks(); ++number) {
    if (!model.is_zero3 && !there.contains({Kind::model, number, 0}))
      out.push_back(text("mp_rank_", two_digits(number), "_model_states.pt"));
    for (std::uint32_t data = 0; data < degrees.data && out.size() < kMissingMax; ++data) {
      const std::string rank = text(data, "_mp_rank_", two_digits(number));
      if (model.is_zero3 && !there.contains({Kind::zero_model, number, data}))
        out.push_back(text("zero_pp_rank_", rank, "_model_states.pt"));
      if (is_zero && !there.contains({Kind::optimizer, number, data}))
        out.push_back(text(prefix, rank, "_optim_states.pt"));
    }
  }
}

void append_expert_optimizers(const SaveFolder& save, std::uint64_t expert_degree, std::vector<std::string>& out) {
  const std::vector<const ShardName*> shards = save.shards_of(Kind::expert_optimizer);
  for (std::uint32_t rank = 0; !shards.empty() && rank < expert_degree; ++rank)
    if (std::ranges::none_of(shards, [&](const ShardName* shard) { return shard->data_rank == rank; }))
      out.push_back(text("expp_rank_", rank, "_mp_rank_00_optim_states.pt"));
}

}  // namespace

std::vector<std::string> missing_files(const SaveFolder& save, const SavedModel& model, const ParallelDegrees& degrees,
                                       std::uint64_t expert_degree) {
  std::vector<std::string> out;
  append_layers(save, model, degrees, out);
  append_experts(save, model, out);
  append_ranks(save, model, degrees, out);
  append_expert_optimizers(save, expert_degree, out);
  return out;
}

}  // namespace pawl::checkpoint::deepspeed
