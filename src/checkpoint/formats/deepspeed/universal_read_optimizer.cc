// zero/optimizer_state.pt: what the parameters of a group share.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/optimizer_states.h"
#include "checkpoint/formats/deepspeed/universal_read_zero.h"
#include "checkpoint/names/hyperparameters.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using Value = Pickle::Value;

// Groups list their flat tensors by number: ZeRO-3's sub-groups, and else themselves; model_states has the names.
void add_param_groups(const ShardFile& file, const UniversalModel& model, CheckpointView& view) {
  const Pickle& pickle = file.pickle();
  const Value list = file.find("param_groups");
  std::size_t count = 0;
  for (const auto& [name, parameter] : model.trainable) count = std::max(count, parameter.group + 1);
  const std::vector<std::optional<std::size_t>> group_of = groups_of_numbers(pickle, list, count);
  Status fault;
  std::vector<HyperGroup> groups = read_hyper_groups(pickle, list, file.numbers(fault));
  if (!fault) view.problems.push_back(text(kOfOptimizerState, ": ", fault.error().what));
  for (const std::string& name : model.order)
    if (const std::optional<std::size_t> group = group_of[model.trainable.at(name).group];
        group && *group < groups.size())
      groups[*group].parameters.push_back(name);
  add_hyper_groups(groups, view);
}

// The step of a sub-group: a tensor, or a number, or neither.
struct SharedStep {
  std::optional<StoredTensor> tensor;
  std::optional<double> number;
};

SharedStep read_shared_step(const ShardFile& file, Value states, std::size_t group) {
  SharedStep out;
  const Value step = file.pickle().find(state_of(file.pickle(), states, group), "step");
  if (const TorchTensor* tensor = file.tensor(step))
    if (Result<StoredTensor> stored = file.stored(*tensor, "step")) out.tensor = std::move(*stored);
  if (Result<std::optional<double>> number = file.number(step)) out.number = *number;
  return out;
}

void append_shared_steps(const ShardFile& file, const UniversalModel& model, const UniversalZero& zero,
                         CheckpointView& view) {
  const Value states = file.pickle().find(file.find("optimizer_state_dict"), "state");
  std::map<std::size_t, SharedStep> steps;
  for (const std::string& name : model.order) {
    if (!zero.states.contains(name)) continue;
    const std::size_t group = model.trainable.at(name).group;
    if (!steps.contains(group)) steps[group] = read_shared_step(file, states, group);
    const SharedStep& step = steps[group];
    if (step.tensor) {
      StoredTensor& out = view.tensors.emplace_back(*step.tensor);
      out.name = name;
      out.role = "step";
    } else if (step.number) {
      append_step_number(name, file.path(), *step.number, view);
    }
  }
}

}  // namespace

void read_optimizer_state(const std::string& folder, const UniversalModel& model, const UniversalZero& zero,
                          Files& files, CheckpointView& view) {
  const bool has_its_steps = model.is_stage3() && !zero.has_steps();
  const std::size_t problems = view.problems.size();
  const std::optional<ShardFile> file = open_shard(join_path(join_path(folder, "zero"), "optimizer_state.pt"),
                                                   text(kOfOptimizerState, ": "), files, view);
  if (!file && !has_its_steps) {  // then no tensor is missing
    view.notes.push_back(std::move(view.problems.back()));
    view.problems.resize(problems);
  }
  if (!file) return;
  if (has_its_steps) append_shared_steps(*file, model, zero, view);
  add_param_groups(*file, model, view);
}

}  // namespace pawl::checkpoint::deepspeed
