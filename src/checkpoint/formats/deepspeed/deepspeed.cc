#include "checkpoint/formats/deepspeed/deepspeed.h"

#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/missing_files.h"
#include "checkpoint/formats/deepspeed/model.h"
#include "checkpoint/formats/deepspeed/optimizers.h"
#include "checkpoint/formats/deepspeed/parameters.h"
#include "checkpoint/formats/deepspeed/save_folder.h"
#include "checkpoint/formats/deepspeed/tag_folder.h"
#include "checkpoint/formats/deepspeed/weights.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint {
namespace deepspeed {
namespace {

std::string layout_text(const SaveFolder& save, const ParallelDegrees& degrees, std::uint64_t stage,
                        std::uint64_t expert_degree) {
  std::string out;
  if (degrees.pipeline > 1 || !save.shards_of(ShardName::Kind::layer).empty())
    out += text("pp=", degrees.pipeline, ' ');
  if (degrees.tensor > 1) out += text("tp=", degrees.tensor, ' ');
  out += text("dp=", degrees.data, " zero=", stage);
  if (expert_degree > 1) out += text(" ep=", expert_degree);
  return out;
}

// Format and facts, for people.
void describe(const SaveFolder& save, const SavedModel& model, const ParallelDegrees& degrees,
              const OptimizerFacts& optimizers, CheckpointView& view) {
  const ModelStates nothing;
  const ModelStates& states = model.first() == nullptr ? nothing : *model.first();
  const ModelFacts& first = states.facts;
  const bool has_zero_files = !save.shards_of(ShardName::Kind::optimizer).empty();
  const std::uint64_t stage = has_zero_files ? optimizers.stage : first.stage;
  const std::string& version = optimizers.writer_version.empty() ? first.writer_version : optimizers.writer_version;
  view.format = text("DeepSpeed ZeRO-", stage);
  const auto fact = [&](std::string_view key, std::string value) { view.facts.emplace_back(key, std::move(value)); };
  fact("writer", text("DeepSpeed ", version.empty() ? "of an unknown version" : version));
  if (first.step) fact("step", text(*first.step));
  fact("world", text(degrees.data * degrees.model_ranks()));
  fact("layout", layout_text(save, degrees, stage, optimizers.expert_degree));
  std::string optimizer = optimizers.class_name;
  if (!first.optimizer_name.empty()) optimizer = text(first.optimizer_name, optimizer.empty() ? "" : " in ", optimizer);
  if (!optimizer.empty()) fact("optimizer", std::move(optimizer));
  if (optimizers.loss_scale) fact("loss scale", text(*optimizers.loss_scale));
  if (first.iteration) fact("iteration", text(*first.iteration));
  view.objects = states.objects;
}

// Tied names whose weight is in the view.
void append_aliases(const SavedModel& model, CheckpointView& view) {
  std::set<std::string> names;
  for (const StoredTensor& tensor : view.tensors) names.insert(tensor.name);
  for (const auto& [alias, name] : model.ties)
    if (names.contains(model_name(name)) && !names.contains(model_name(alias)))
      view.aliases.emplace_back(model_name(alias), model_name(name));
}

// Of a save that holds no tensor.
Error nothing_held(const SaveFolder& save, const CheckpointView& view) {
  if (save.first_damage()) return *save.first_damage();
  return {Code::corrupt,
          view.problems.empty() ? text(save.path(), ": it has DeepSpeed's files but no tensor") : view.problems[0]};
}

Result<CheckpointView> view_tag(TagFolder folder, const ReadOptions& options, Files& files) {
  ParameterNaming naming;
  PAWL_ASSIGN(naming.given, given_names(options, files));

  // The model's files say how the job was cut, which all other files are read by.
  CheckpointView view;
  SaveFolder save(std::move(folder), files, view);
  SavedModel model = read_model(save);
  PAWL_ASSIGN(const ParallelDegrees degrees, find_degrees(save, model));
  leave_out_stale_ranks(degrees, model, save);
  Result<TensorParallelRules> rules = read_rules(model);
  if (!rules) {
    save.problem(std::move(rules.error().what));
    rules = TensorParallelRules();
  }

  // Each rank's parts of the parameters, until all are known: then they are joined.
  ParameterTable table(degrees.tensor);
  naming.weights = add_weights(save, model, degrees, table);
  const OptimizerFacts optimizers = add_optimizers(save, model, degrees, naming, table);
  const std::vector<std::string> missing = missing_files(save, model, degrees, optimizers.expert_degree);
  if (!missing.empty())
    save.problem(text(save.path(), ": ", missing.size() == 1 ? "a file is" : text(missing.size(), " files are"),
                      " missing: ", listed(missing)));
  table.finish(*rules, view);

  add_hyper_groups(optimizers.param_groups, view);
  append_aliases(model, view);
  describe(save, model, degrees, optimizers, view);
  if (view.tensors.empty()) return nothing_held(save, view);
  if (Status sound = check_view(view, save.file_sizes()); !sound) return std::move(sound).error().within(save.path());
  return view;
}

}  // namespace
}  // namespace deepspeed

Result<CheckpointView> view_deepspeed(const std::string& folder, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(deepspeed::TagFolder found, deepspeed::find_tag_folder(folder, options, files));
  return deepspeed::view_tag(std::move(found), options, files);
}

}  // namespace pawl::checkpoint
