#include "checkpoint/formats/training/training_folder.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/containers/safetensors.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/huggingface/huggingface.h"
#include "checkpoint/formats/torch/rank_files_join.h"
#include "checkpoint/formats/torch/torch_state.h"
#include "checkpoint/formats/training/training_parts.h"
#include "checkpoint/formats/training/training_progress.h"

namespace pawl::checkpoint {
namespace {

using Form = TrainingPart::Form;

// "model", or "model_1" where there are several.
std::string label_of(std::string_view what, const std::vector<TrainingPart>& parts, const TrainingPart& part) {
  return parts.size() == 1 ? std::string(what) : text(what, '_', part.number);
}

PathStep key(std::string name) {
  return {PathStep::Kind::key, std::move(name)};
}

// What a reader saw of a model's weights, as the state of a program that keeps them under `label`.
TorchState state_of(CheckpointView view, const std::string& label, const std::string& path) {
  TorchState out;
  out.path = path;
  out.size_bytes = ~std::uint64_t{0};  // of several files; their reader has proven that the pieces lie in them
  out.files = std::move(view.files);
  out.notes = std::move(view.notes);
  out.unsupported = std::move(view.unsupported);
  out.problems = std::move(view.problems);
  std::unordered_map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : view.tensors) {
    by_name.emplace(tensor.name, &tensor);
    out.parts.push_back({{key(label), key(tensor.name)}, tensor.type, tensor.shape, tensor.pieces, {}});
  }
  for (const auto& [alias, kept] : view.aliases)
    if (const auto at = by_name.find(kept); at != by_name.end())
      out.parts.push_back({{key(label), key(alias)}, at->second->type, at->second->shape, at->second->pieces, {}});
  return out;
}

void put_under(const std::string& label, TorchState& state) {
  for (TorchPart& part : state.parts) part.path.insert(part.path.begin(), key(label));
  for (TorchOptimizer& optimizer : state.optimizers) optimizer.path.insert(optimizer.path.begin(), key(label));
  state.objects.clear();
  state.numbers.clear();
}

// What keeps a file from being read, where the other files are good without it.
bool is_of_the_file(const Error& error) {
  return error.code == Code::corrupt || error.code == Code::not_found || error.code == Code::invalid;
}

class TrainingReader {
 public:
  TrainingReader(const std::string& folder, TrainingParts parts, const ReadOptions& options, Files& files)
      : folder_(folder), parts_(std::move(parts)), options_(options), files_(files) {}
  Result<CheckpointView> read();

 private:
  Status read_weights(const TrainingPart& part);
  Status read_optimizer(const TrainingPart& part);
  Status add_file(const std::string& name, std::uint32_t rank, const std::string& label, bool is_optimizer);
  Result<CheckpointView> join_files();
  Result<CheckpointView> join_folders();
  void finish(CheckpointView& view);
  [[nodiscard]] std::string path(const std::string& name) const {
    return name.empty() ? folder_ : join_path(folder_, name);
  }
  [[nodiscard]] Error mixed_forms() const;

  const std::string& folder_;
  TrainingParts parts_;
  const ReadOptions& options_;
  Files& files_;
  std::vector<RankState> states_;
  std::vector<std::string> problems_;
  std::vector<std::pair<std::string, std::string>> facts_;  // of the weights
  std::map<std::string, BlockScales> scales_;               // of weights that have some
};

Status TrainingReader::read_weights(const TrainingPart& part) {
  const std::string label = label_of("model", parts_.models, part);
  if (part.form == Form::torch) {
    for (const auto& [rank, name] : part.files) PAWL_TRY(add_file(name, rank, label, false));
    return {};
  }
  const std::string& name = part.files[0].second;
  Result<CheckpointView> view = parts_.models.size() == 1
                                    ? view_huggingface_folder(part.is_below ? path(name) : folder_, options_, files_)
                                    : view_safetensors(path(name), files_);
  if (!view) return std::move(view).error();
  facts_.insert(facts_.end(), view->facts.begin(), view->facts.end());
  for (const StoredTensor& tensor : view->tensors)
    if (!tensor.scales.block.empty()) scales_.emplace(tensor.name, tensor.scales);
  states_.push_back({kNoRank, state_of(std::move(*view), label, path(name))});
  return {};
}

Status TrainingReader::add_file(const std::string& name, std::uint32_t rank, const std::string& label,
                                bool is_optimizer) {
  Result<TorchState> state = read_torch_state(path(name), files_);
  if (!state) return std::move(state).error();
  if (is_optimizer && state->optimizers.empty())
    return Error{Code::invalid, text(path(name), ": no optimizer's state and param_groups are in it")};
  put_under(label, *state);
  states_.push_back({rank, std::move(*state)});
  return {};
}

Status TrainingReader::read_optimizer(const TrainingPart& part) {
  const std::string label = label_of("optimizer", parts_.optimizers, part);
  for (const auto& [rank, name] : part.files) {
    Status status = add_file(name, rank, label, true);
    if (status) continue;
    if (!is_of_the_file(status.error())) return status;
    problems_.push_back(text(kOfOptimizerState, ": ", status.error().what));
  }
  return {};
}

Result<CheckpointView> TrainingReader::join_files() {
  for (const TrainingPart& part : parts_.models) PAWL_TRY(read_weights(part));
  for (const TrainingPart& part : parts_.optimizers) PAWL_TRY(read_optimizer(part));
  std::ranges::stable_sort(states_, {}, [](const RankState& state) { return state.rank; });
  PAWL_ASSIGN(const std::optional<ParameterNames> names, given_names(options_, files_));
  return join_ranks(std::move(states_), names, {});
}

Result<CheckpointView> TrainingReader::join_folders() {
  std::vector<DcpPart> folders;
  for (const TrainingPart& part : parts_.models)
    folders.push_back({path(part.files[0].second),
                       parts_.models.size() == 1 ? std::string() : label_of("model", parts_.models, part), false});
  for (const TrainingPart& part : parts_.optimizers)
    folders.push_back({path(part.files[0].second),
                       parts_.optimizers.size() == 1 ? std::string() : label_of("optimizer", parts_.optimizers, part),
                       true});
  return view_dcp_parts(folders, options_, files_);
}

void TrainingReader::finish(CheckpointView& view) {
  view.format = parts_.writer;
  std::erase_if(view.facts, [](const auto& fact) { return fact.first == "writer"; });
  std::vector<std::pair<std::string, std::string>> facts = std::move(view.facts);
  view.facts = {{"writer", parts_.writer}};
  for (StoredTensor& tensor : view.tensors)
    if (const auto at = scales_.find(tensor.name); at != scales_.end() && tensor.role == "weight")
      tensor.scales = at->second;
  for (const std::vector<std::string>* const list : {&parts_.problems, &problems_})
    view.problems.insert(view.problems.end(), list->begin(), list->end());
  view.notes.insert(view.notes.end(), parts_.notes.begin(), parts_.notes.end());
  view.objects.insert(view.objects.end(), parts_.others.begin(), parts_.others.end());
  add_progress(folder_, parts_, view, files_);
  view.facts.insert(view.facts.end(), facts_.begin(), facts_.end());
  view.facts.insert(view.facts.end(), facts.begin(), facts.end());
}

Error TrainingReader::mixed_forms() const {
  std::string list;
  for (const std::vector<TrainingPart>* const each : {&parts_.models, &parts_.optimizers})
    for (const TrainingPart& part : *each) append_text(list, text(list.empty() ? "" : ", ", part.files[0].second));
  return {Code::invalid, text(folder_, ": some parts are folders of torch.distributed.checkpoint and some are files (",
                              list, "), which are not read together; give the path of one of them")};
}

Result<CheckpointView> TrainingReader::read() {
  if (!parts_.conflict.empty())
    return Error{Code::invalid, text(folder_, ": ", parts_.conflict, "; move one of them away, or give its own path")};
  std::size_t folders = 0;
  for (const std::vector<TrainingPart>* const each : {&parts_.models, &parts_.optimizers})
    folders += static_cast<std::size_t>(std::ranges::count(*each, Form::dcp, &TrainingPart::form));
  if (folders != 0 && folders != parts_.models.size() + parts_.optimizers.size()) return mixed_forms();
  PAWL_ASSIGN(CheckpointView view, folders == 0 ? join_files() : join_folders());
  finish(view);
  return view;
}

}  // namespace

bool is_training_folder(std::span<const std::string> names) {
  return find_training_parts(names).has_value();
}

Result<CheckpointView> view_training_folder(const std::string& folder, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(const std::vector<std::string> names, files.list(folder));
  std::vector<std::string> adapters;
  for (const std::string& name : names)
    if (files.exists(join_path(join_path(folder, name), "adapter_config.json"))) adapters.push_back(name);
  std::optional<TrainingParts> parts = find_training_parts(names, adapters);
  if (!parts)
    return Error{Code::not_found, text(folder, ": no weights and optimizer under the names of Trainer, Accelerate, ",
                                       "PEFT or Lightning")};
  return TrainingReader(folder, std::move(*parts), options, files).read();
}

}  // namespace pawl::checkpoint
