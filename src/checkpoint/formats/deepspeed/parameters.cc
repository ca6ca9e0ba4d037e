#include "checkpoint/formats/deepspeed/parameters.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {

std::string model_name(const std::string& stored) {
  std::string_view name = stored;
  for (;;) {
    if (name.starts_with("module."))
      name.remove_prefix(7);
    else if (name.starts_with("_orig_mod."))
      name.remove_prefix(10);
    else
      break;
  }
  return std::string(name);
}

ParameterTable::Parameter* ParameterTable::find(const std::string& name, ModelPosition position) {
  const auto [at, is_new] = index_.try_emplace(name, parameters_.size());
  if (is_new) {
    Parameter& added = parameters_.emplace_back();
    added.name = name;
    added.stage = position.stage;
    added.local.resize(tensor_degree_);
  }
  Parameter& found = parameters_[at->second];
  return found.stage == position.stage && !found.buffer && position.tensor < tensor_degree_ ? &found : nullptr;
}

std::optional<std::uint32_t> ParameterTable::stage_of(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? std::nullopt : std::optional(parameters_[found->second].stage);
}

bool ParameterTable::declare(const std::string& name, ModelPosition position, const Shape& local_shape) {
  Parameter* parameter = find(name, position);
  if (parameter == nullptr) return false;
  std::optional<Shape>& known = parameter->local[position.tensor];
  if (!known) known = local_shape;
  if (*known == local_shape) return true;
  problems_.push_back(text("parameter ", name, " has the shape ", text_of(*known), " in one file and ",
                           text_of(local_shape), " in another, of tensor-parallel rank ", position.tensor));
  return false;
}

void ParameterTable::add(const std::string& name, ModelPosition position, const Shape& local_shape,
                         std::string_view role, ElementType type, std::span<const StoredPiece> pieces) {
  if (!declare(name, position, local_shape)) return;
  Parameter& parameter = parameters_[index_[name]];
  auto found = std::ranges::find(parameter.roles, role, &Role::word);
  if (found == parameter.roles.end()) {
    parameter.roles.push_back({std::string(role), type, {}});
    parameter.roles.back().pieces.resize(tensor_degree_);
    found = std::prev(parameter.roles.end());
  }
  if (found->type != type) {
    problems_.push_back(text("parameter ", name, ": its ", role, " is ", pawl::name_of(found->type),
                             " on one rank and ", pawl::name_of(type), " on another"));
    return;
  }
  std::vector<StoredPiece>& out = found->pieces[position.tensor];
  out.insert(out.end(), pieces.begin(), pieces.end());
}

void ParameterTable::add_step(const std::string& name, ModelPosition position, double step, std::string_view found_in) {
  Parameter* parameter = find(name, position);
  if (parameter == nullptr || parameter->step) return;
  parameter->step = step;
  parameter->step_found_in = std::string(found_in);
}

void ParameterTable::add_buffer(StoredTensor tensor) {
  const auto [at, is_new] = index_.try_emplace(tensor.name, parameters_.size());
  if (!is_new) return;
  Parameter& added = parameters_.emplace_back();
  added.name = tensor.name;
  added.buffer = std::move(tensor);
}

std::optional<ParameterTable::Held> ParameterTable::held(const std::string& name, std::uint32_t tensor,
                                                         std::string_view role) const {
  const auto found = index_.find(name);
  if (found == index_.end() || tensor >= tensor_degree_) return std::nullopt;
  for (const Role& candidate : parameters_[found->second].roles)
    if (candidate.word == role) return Held{candidate.type, candidate.pieces[tensor]};
  return std::nullopt;
}

void ParameterTable::finish_parameter(Parameter& parameter, const TensorParallelRules& rules, CheckpointView& view) {
  std::vector<Shape> shapes;
  std::uint32_t known = 0;
  while (known + 1 < tensor_degree_ && !parameter.local[known]) ++known;
  if (!parameter.local[known]) return;  // a step without a parameter: nothing to show
  for (const std::optional<Shape>& shape : parameter.local) shapes.push_back(shape.value_or(*parameter.local[known]));
  Result<MergedParameter> merged = rules.merge(parameter.name, shapes);
  if (!merged) {
    problems_.push_back(merged.error().what);
    // One rank's part, so that it is seen: the problem keeps it from being taken for the whole.
    merged = MergedParameter{shapes[known], 1, 1, std::vector<std::vector<MergedPart>>(tensor_degree_), ""};
    if (std::ranges::find(shapes[known], std::uint64_t{0}) == shapes[known].end())
      merged->ranks[known].push_back({whole_box(shapes[known]), whole_box(shapes[known])});
  }
  for (const Role& role : parameter.roles) {
    StoredTensor& out = view.tensors.emplace_back();
    out.name = model_name(parameter.name);
    out.role = role.word;
    out.type = role.type;
    out.shape = merged->shape;
    out.versions = merged->versions;
    for (std::uint32_t rank = 0; rank < tensor_degree_; ++rank)
      for (const StoredPiece& piece : role.pieces[rank]) append_merged(*merged, rank, piece, role.type, out.pieces);
  }
}

void ParameterTable::finish_step(const Parameter& parameter, CheckpointView& view) {
  if (!parameter.step) return;
  const auto step = static_cast<float>(*parameter.step);
  const auto [at, is_new] = step_files_.try_emplace(step, static_cast<std::uint32_t>(view.files.size()));
  if (is_new) {
    StoredFile& file = view.files.emplace_back();
    file.path = parameter.step_found_in;
    file.codec = StoredFile::Codec::content;
    file.content.resize(sizeof step);
    std::memcpy(file.content.data(), &step, sizeof step);
  }
  StoredTensor& out = view.tensors.emplace_back();
  out.name = model_name(parameter.name);
  out.role = "step";
  out.pieces.push_back(whole_piece({}, at->second, 0));
}

void ParameterTable::finish(const TensorParallelRules& rules, CheckpointView& view) {
  for (Parameter& parameter : parameters_) {
    if (parameter.buffer) {
      parameter.buffer->name = model_name(parameter.buffer->name);
      parameter.buffer->role = "buffer";
      view.tensors.push_back(std::move(*parameter.buffer));
      continue;
    }
    finish_parameter(parameter, rules, view);
    if (!parameter.roles.empty()) finish_step(parameter, view);
  }
  // A wrong degree makes the same problem for each parameter: the first few say enough.
  constexpr std::size_t kProblemsMax = 5;
  for (std::size_t i = 0; i < std::min(problems_.size(), kProblemsMax); ++i)
    view.problems.push_back(std::move(problems_[i]));
  if (problems_.size() > kProblemsMax)
    view.problems.push_back(text("and ", problems_.size() - kProblemsMax, " parameters more with such problems"));
}

}  // namespace pawl::checkpoint::deepspeed
