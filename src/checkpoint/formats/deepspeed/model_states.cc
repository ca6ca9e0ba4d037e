#include "checkpoint/formats/deepspeed/model_states.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using Value = Pickle::Value;

// What DeepSpeed itself writes at the top. All else is the job's.
constexpr std::array<std::string_view, 28> kOwnKeys = {"module",
                                                       "buffer_names",
                                                       "optimizer",
                                                       "param_shapes",
                                                       "frozen_param_shapes",
                                                       "shared_params",
                                                       "frozen_param_fragments",
                                                       "lr_scheduler",
                                                       "data_sampler",
                                                       "random_ltd",
                                                       "sparse_tensor_module_names",
                                                       "csr_tensor_module_names",
                                                       "skipped_steps",
                                                       "global_steps",
                                                       "global_samples",
                                                       "dp_world_size",
                                                       "mp_world_size",
                                                       "checkpoint_parallel_dimensions",
                                                       "ds_config",
                                                       "ds_version",
                                                       "num_experts",
                                                       "ds_autoep_layers",
                                                       "autoep_layers",
                                                       "folding",
                                                       "universal_checkpoint_info",
                                                       "zero_stage",
                                                       "mp_size",
                                                       "dp_size"};

// The tensors whose paths begin with `top`; their names are what follows.
Result<std::vector<StoredTensor>> tensors_below(const ShardFile& file, std::string_view top,
                                                std::vector<std::string>& unsupported) {
  std::vector<StoredTensor> out;
  std::set<std::string> names;
  const std::size_t skipped = top.empty() ? 0 : 1;
  for (const TorchTensor& tensor : file.torch().tensors()) {
    if (tensor.path.size() <= skipped || (skipped == 1 && tensor.path[0].text != top)) continue;
    if (std::ranges::any_of(tensor.path, [](const PathStep& step) { return step.kind == PathStep::Kind::attribute; }))
      continue;  // a part of a tensor's wrapper
    const std::string name = name_of({tensor.path.begin() + static_cast<std::ptrdiff_t>(skipped), tensor.path.end()});
    if (!names.insert(name).second) return file.damaged(text("two tensors have the name ", name));
    Result<StoredTensor> stored = file.stored(tensor, name);
    if (stored)
      out.push_back(std::move(*stored));
    else
      unsupported.push_back(stored.error().what);
  }
  return out;
}

// A dict of name -> torch.Size, or tuple. Nothing and None are empty.
Result<ParameterGroup> read_shapes(const ShardFile& file, Value dict, std::string_view what) {
  const Pickle& pickle = file.pickle();
  ParameterGroup out;
  if (dict == kNothing || pickle.is(dict, PickleKind::none)) return out;
  const bool is_dict = pickle.holds_pairs(dict) || (pickle.is(dict, PickleKind::object) && pickle.items(dict).empty());
  if (!is_dict) return file.damaged(text(what, " is ", pickle.describe(dict)));
  const std::span<const Value> pairs = pickle.items(dict);
  std::set<std::string_view> names;
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!pickle.is(pairs[i], PickleKind::string))
      return file.damaged(text(what, " has the key ", pickle.describe(pairs[i])));
    PAWL_TRY(file.take_copies(1, sizeof(ParameterShape) + pickle.text(pairs[i]).size()));
    const std::string name(pickle.text(pairs[i]));
    if (!names.insert(pickle.text(pairs[i])).second) return file.damaged(text(what, " has ", name, " twice"));
    Result<std::vector<std::uint64_t>> shape = torch_sizes(pickle, pairs[i + 1], text(what, " of ", name));
    if (!shape) return file.damaged(shape.error().what);
    Result<std::uint64_t> count = element_count(*shape);
    if (!count) return file.damaged(text(what, " of ", name, ": ", count.error().what));
    PAWL_TRY(file.take_copies(shape->size(), sizeof(std::uint64_t)));
    out.push_back({name, std::move(*shape), *count});
  }
  return out;
}

Status read_groups(const ShardFile& file, Value value, ModelStates& out) {
  const Pickle& pickle = file.pickle();
  if (value == kNothing || pickle.is(value, PickleKind::none)) return {};
  out.has_groups = true;
  if (!pickle.is(value, PickleKind::list)) {  // of old: one dict for the only group
    PAWL_ASSIGN(ParameterGroup group, read_shapes(file, value, "param_shapes"));
    out.groups.push_back(std::move(group));
    return {};
  }
  for (const Value item : pickle.items(value)) {
    PAWL_ASSIGN(ParameterGroup group, read_shapes(file, item, text("param_shapes[", out.groups.size(), ']')));
    out.groups.push_back(std::move(group));
  }
  return {};
}

Status read_names(const ShardFile& file, ModelStates& out, Value buffers, Value ties) {
  const Pickle& pickle = file.pickle();
  for (const Value item : pickle.items(buffers)) {
    if (!pickle.is(item, PickleKind::string)) continue;
    PAWL_TRY(file.take_copies(1, sizeof(std::string) + pickle.text(item).size()));
    out.buffers.insert(std::string(pickle.text(item)));
  }
  const std::span<const Value> pairs = pickle.holds_pairs(ties) ? pickle.items(ties) : std::span<const Value>();
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!pickle.is(pairs[i], PickleKind::string) || !pickle.is(pairs[i + 1], PickleKind::string)) continue;
    const std::string_view alias = pickle.text(pairs[i]), name = pickle.text(pairs[i + 1]);
    PAWL_TRY(file.take_copies(1, 2 * sizeof(std::string) + alias.size() + name.size()));
    out.ties.emplace_back(alias, name);
  }
  return {};
}

ModelFacts read_facts(const ShardFile& file) {
  const Pickle& pickle = file.pickle();
  const Value root = pickle.root();
  ModelFacts out;
  out.step = count_at(pickle, root, "global_steps");
  out.skipped_steps = count_at(pickle, root, "skipped_steps");
  out.iteration = count_at(pickle, root, "iteration");
  out.data_world = count_at(pickle, root, "dp_world_size");
  out.model_world = count_at(pickle, root, "mp_world_size");
  const Value degrees = file.find("checkpoint_parallel_dimensions");
  out.pipeline_degree = count_at(pickle, degrees, "pp_degree");
  out.tensor_degree = count_at(pickle, degrees, "tp_degree");
  out.writer_version = text_at(pickle, root, "ds_version");
  const Value config = file.find("ds_config");
  out.stage = count_at(pickle, pickle.find(config, "zero_optimization"), "stage").value_or(0);
  out.optimizer_name = text_at(pickle, pickle.find(config, "optimizer"), "type");
  out.data_before_expert = flag_at(pickle, config, "use_data_before_expert_parallelism");
  for (const Value item : pickle.items(file.find("num_experts")))
    if (const auto count = pickle.unsigned_(item)) out.expert_counts.push_back(*count);
  return out;
}

// The keys at the top that are not DeepSpeed's own.
Result<std::vector<std::string>> objects_of_job(const ShardFile& file) {
  const Pickle& pickle = file.pickle();
  std::vector<std::string> out;
  const std::span<const Value> pairs = pickle.items(pickle.root());
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const std::string_view key = pickle.text(pairs[i]);
    if (!pickle.is(pairs[i], PickleKind::string) || std::ranges::count(kOwnKeys, key) != 0) continue;
    PAWL_TRY(file.take_copies(1, sizeof(std::string) + key.size()));
    out.emplace_back(key);
  }
  return out;
}

bool has_autoep(const ShardFile& file) {
  for (const std::string_view key : {"ds_autoep_layers", "autoep_layers"})
    if (!file.pickle().items(file.find(key)).empty()) return true;
  return false;
}

}  // namespace

Result<ModelStates> read_model_states(const ShardFile& file) {
  const Pickle& pickle = file.pickle();
  if (!pickle.holds_pairs(pickle.root()))
    return file.damaged(text("holds ", pickle.describe(pickle.root()), ", not the dict of a model's states"));
  ModelStates out;
  const Value module = file.find("module");
  if (module == kNothing) return file.damaged("has no key module: not a model's states by DeepSpeed");
  out.has_module = !pickle.is(module, PickleKind::none);
  PAWL_ASSIGN(out.weights, tensors_below(file, "module", out.unsupported));
  PAWL_TRY(read_groups(file, file.find("param_shapes"), out));
  PAWL_ASSIGN(out.frozen, read_shapes(file, file.find("frozen_param_shapes"), "frozen_param_shapes"));
  PAWL_ASSIGN(std::vector<StoredTensor> parts, tensors_below(file, "frozen_param_fragments", out.unsupported));
  for (StoredTensor& part : parts) {
    std::string name = part.name;
    out.frozen_parts.emplace(std::move(name), std::move(part));
  }
  PAWL_TRY(read_names(file, out, file.find("buffer_names"), file.find("shared_params")));
  out.facts = read_facts(file);
  out.has_autoep = has_autoep(file);
  if (const Value optimizer = file.find("optimizer"); !pickle.is(optimizer, PickleKind::none))
    out.optimizer = optimizer;
  out.universal_info = file.find("universal_checkpoint_info");
  PAWL_ASSIGN(out.objects, objects_of_job(file));
  return out;
}

Result<std::vector<StoredTensor>> read_weights(const ShardFile& file, std::vector<std::string>& unsupported) {
  return tensors_below(file, "", unsupported);
}

}  // namespace pawl::checkpoint::deepspeed
