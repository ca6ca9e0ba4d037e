#include "checkpoint/formats/deepspeed/optimizers.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/optimizer_states.h"
#include "checkpoint/formats/deepspeed/plain_optimizer.h"
#include "checkpoint/formats/deepspeed/zero_states.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using Kind = ShardName::Kind;

// An optimizer's state with names by number in a file that is named as a ZeRO rank's.
bool is_plain_state(const ShardFile& file) {
  const Pickle::Value states = file.find("optimizer_state_dict");
  const Pickle& pickle = file.pickle();
  const auto has = [&](std::string_view key) { return pickle.find(states, key) != Pickle::kNothing; };
  return !has("single_partition_of_fp32_groups") && !has("fp32_flat_groups") &&
         (has("fp32_groups") || has("fp32_groups_flat") || (has("state") && has("param_groups")));
}

// Optimizers count the steps that were not skipped. One that began anew has counted fewer; none can have counted more.
void compare_steps(const ModelRank& rank, std::optional<double> optimizer_step, SaveFolder& save) {
  if (!optimizer_step || !rank.states.facts.step) return;
  const std::uint64_t skipped = rank.states.facts.skipped_steps.value_or(0);
  const auto taken = static_cast<double>(*rank.states.facts.step) - static_cast<double>(skipped);
  if (*optimizer_step == taken) return;
  const std::string sentence = text(rank.file.path(), ": the model is at step ", *rank.states.facts.step, ", of which ",
                                    skipped, " were skipped, and the optimizer at ", *optimizer_step);
  if (*optimizer_step > taken)
    save.problem(text(sentence, ": the folder mixes files of different steps"));
  else
    save.note(text(sentence, ": the optimizer was restarted, or the folder mixes files of different steps"));
}

// The parameters of a model-parallel rank that are no expert's, in the model's order.
std::vector<NamedShape> dense_names(const ModelRank& rank, const SavedModel& model, const ParallelDegrees& degrees,
                                    const std::vector<LayerWeight>& layers) {
  std::vector<NamedShape> out;
  for (const StoredTensor& tensor : rank.states.weights)
    if (model.is_parameter(tensor.name)) out.push_back({tensor.name, tensor.shape});
  for (const LayerWeight& weight : layers)  // a pipeline's: which stage has them no file says
    if (!rank.states.has_module && weight.tensor_rank == degrees.position_of(rank.number).tensor)
      out.push_back(weight.name);
  return out;
}

// The experts that an expert-parallel rank holds, in the model's order: each layer's are dealt in equal runs.
std::vector<NamedShape> expert_names(const std::vector<ExpertWeight>& experts, std::uint32_t model_rank,
                                     std::uint32_t expert_rank, std::uint64_t expert_degree) {
  std::map<std::uint32_t, std::uint64_t> count;
  for (const ExpertWeight& weight : experts)
    count[weight.layer] = std::max<std::uint64_t>(count[weight.layer], weight.expert + 1);
  std::vector<NamedShape> out;
  for (const ExpertWeight& weight : experts) {
    const std::uint64_t each = std::max<std::uint64_t>(count[weight.layer] / expert_degree, 1);
    if (weight.model_rank == model_rank && weight.expert / each == expert_rank) out.push_back(weight.name);
  }
  return out;
}

// The model_states file of a job with ZeRO lists who is in each group.
ParameterNames names_of_groups(const std::vector<ParameterGroup>& groups) {
  ParameterNames out;
  out.says_groups = true;
  for (const ParameterGroup& group : groups) {
    auto& section = out.sections.emplace_back();
    for (const ParameterShape& parameter : group) section.push_back({parameter.name, parameter.shape});
  }
  return out;
}

ZeroJob zero_job(const ModelRank& rank, const SavedModel& model, const ParallelDegrees& degrees) {
  ZeroJob job;
  job.model = &rank.states;
  job.position = degrees.position_of(rank.number);
  job.degrees = degrees;
  job.adds_weights = model.is_zero3;
  for (const StoredTensor& placeholder : rank.states.weights) job.types[placeholder.name] = placeholder.type;
  return job;
}

class OptimizerReader {
 public:
  OptimizerReader(SaveFolder& save, const SavedModel& model, const ParallelDegrees& degrees,
                  const ParameterNaming& naming, ParameterTable& table)
      : save_(save), model_(model), degrees_(degrees), naming_(naming), table_(table) {}

  OptimizerFacts read() {
    const std::vector<const ShardName*> zero = save_.shards_of(Kind::optimizer);
    if (zero.empty())
      read_plain_files();
    else
      read_zero_files(zero);
    return std::move(facts_);
  }

 private:
  void read_zero_files(const std::vector<const ShardName*>& shards);
  void read_zero_file(const ShardName& shard, const ModelRank& rank, ZeroStates& states);
  void read_plain_files();
  void add_plain(const ShardFile& file, Pickle::Value optimizer, const ModelRank& rank,
                 std::optional<std::uint32_t> expert_rank);
  [[nodiscard]] PlainNames plain_names(const ModelRank& rank, std::uint32_t expert_rank) const;
  void add_groups(std::vector<HyperGroup> groups) {
    for (HyperGroup& group : groups) facts_.param_groups.push_back(std::move(group));
  }

  SaveFolder& save_;
  const SavedModel& model_;
  const ParallelDegrees& degrees_;
  const ParameterNaming& naming_;
  ParameterTable& table_;
  OptimizerFacts facts_;
};

void OptimizerReader::read_zero_files(const std::vector<const ShardName*>& shards) {
  std::vector<std::string> stale;
  std::set<std::string> without_weights;
  for (const ModelRank& rank : model_.ranks) {
    ZeroStates states(zero_job(rank, model_, degrees_), table_, save_.view());
    for (const ShardName* shard : shards) {
      if (shard->model_rank != rank.number) continue;
      if (shard->data_rank < degrees_.data)
        read_zero_file(*shard, rank, states);
      else
        stale.push_back(shard->name);
    }
    compare_steps(rank, states.step(), save_);
    add_groups(states.param_groups());
    facts_.expert_degree = std::max(facts_.expert_degree, states.expert_degree());
    without_weights.insert(states.weights_left_out().begin(), states.weights_left_out().end());
  }
  if (!stale.empty())
    save_.note(text(listed(stale), stale.size() == 1 ? " is" : " are", " beyond the ", degrees_.data,
                    " data-parallel ranks of this save and ignored"));
  if (!without_weights.empty())
    save_.note(text(without_weights.size(), " weights are not in the files, and not made of the masters' type"));
}

void OptimizerReader::read_zero_file(const ShardName& shard, const ModelRank& rank, ZeroStates& states) {
  std::optional<ShardFile> file = save_.open(shard);
  if (!file) return;
  if (is_plain_state(*file)) {  // bf16 without ZeRO: each rank writes all of it
    if (shard.data_rank == 0) add_plain(*file, file->find("optimizer_state_dict"), rank, std::nullopt);
    return;
  }
  Result<OptimizerStates> read = read_optimizer_states(*file);
  if (!read) return save_.damage(std::move(read).error());
  if (Status added = states.add(*read, shard.data_rank, file->path()); !added)
    save_.problem(std::move(added.error().what));
  save_.leave_out(read->unsupported);
  facts_.stage = std::max(facts_.stage, read->stage);
  facts_.class_name = read->class_name;
  if (!facts_.loss_scale) facts_.loss_scale = read->loss_scale;
  if (facts_.writer_version.empty()) facts_.writer_version = read->writer_version;
}

void OptimizerReader::read_plain_files() {
  const std::vector<const ShardName*> of_experts = save_.shards_of(Kind::expert_optimizer);
  for (const ShardName* shard : of_experts)
    facts_.expert_degree = std::max<std::uint64_t>(facts_.expert_degree, shard->data_rank + 1);
  for (const ModelRank& rank : model_.ranks) {
    bool has_files = false;
    for (const ShardName* shard : of_experts) {
      if (shard->model_rank != rank.number) continue;
      has_files = true;
      const std::optional<ShardFile> file = save_.open(*shard);
      if (file) add_plain(*file, file->find("optimizer"), rank, shard->data_rank);
    }
    if (!has_files && rank.states.optimizer != Pickle::kNothing)
      add_plain(rank.file, rank.states.optimizer, rank, std::nullopt);
  }
}

PlainNames OptimizerReader::plain_names(const ModelRank& rank, std::uint32_t expert_rank) const {
  PlainNames out;
  out.dense = dense_names(rank, model_, degrees_, naming_.weights.layers);
  out.experts = expert_names(naming_.weights.experts, rank.number, expert_rank, facts_.expert_degree);
  out.given = rank.states.has_groups ? names_of_groups(rank.states.groups) : naming_.given;
  return out;
}

void OptimizerReader::add_plain(const ShardFile& file, Pickle::Value optimizer, const ModelRank& rank,
                                std::optional<std::uint32_t> expert_rank) {
  Result<PlainOptimizer> read = read_plain_optimizer(file, optimizer);
  if (!read) return save_.problem(text(kOfOptimizerState, ": ", read.error().what));
  facts_.class_name = read->class_name;
  if (!facts_.loss_scale) facts_.loss_scale = read->loss_scale;
  for (const PlainOptimizer::Group& group : read->groups)
    if (group.expert_degree != 0 && group.expert_degree != facts_.expert_degree)
      return save_.problem(text(file.path(), ": experts over ", group.expert_degree, " ranks beside others over ",
                                facts_.expert_degree, " are not read yet without ZeRO"));
  PlainOptions options;
  options.position = degrees_.position_of(rank.number);
  options.skips_dense = expert_rank.value_or(0) != 0;
  options.rank = degrees_.rank_of(options.position, 0);
  Result<std::vector<HyperGroup>> groups = add_plain_optimizer(file, *read, plain_names(rank, expert_rank.value_or(0)),
                                                               options, table_, save_.view().unsupported);
  if (!groups) return save_.problem(text(kOfOptimizerState, ": ", groups.error().what));
  add_groups(std::move(*groups));
}

}  // namespace

OptimizerFacts add_optimizers(SaveFolder& save, const SavedModel& model, const ParallelDegrees& degrees,
                              const ParameterNaming& naming, ParameterTable& table) {
  return OptimizerReader(save, model, degrees, naming, table).read();
}

}  // namespace pawl::checkpoint::deepspeed
