// model_states files of a source that has none, as DeepSpeed would have written them.
#include <algorithm>
#include <utility>

#include "checkpoint/formats/deepspeed/universal_write_model_states.h"

namespace pawl::checkpoint::deepspeed {
namespace {

constexpr const char* kModelStates = "mp_rank_00_model_states.pt";
constexpr const char* kTwin = "zero_pp_rank_0_mp_rank_00_model_states.pt";

// What "module" holds of one weight or buffer.
struct ModuleTensor {
  std::uint32_t tensor = 0;     // of the view
  bool is_placeholder = false;  // empty, says its type only: ZeRO-3 leaves those
};

// The same tensor under another role: what is written to two places.
std::uint32_t append_frozen_copy(std::uint32_t tensor, CheckpointView& view) {
  StoredTensor copy = view.tensors[tensor];
  copy.role = "frozen";
  view.tensors.push_back(std::move(copy));
  return static_cast<std::uint32_t>(view.tensors.size() - 1);
}

// Buffers and what no optimizer trains, as they are; placeholders of the others.
std::vector<ModuleTensor> choose_module(const UniversalStates& states, CheckpointView& view) {
  std::vector<ModuleTensor> out;
  const auto count = static_cast<std::uint32_t>(view.tensors.size());  // before copies
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool is_buffer = view.tensors[i].role == "buffer";
    if (view.tensors[i].role != "weight" && !is_buffer) continue;
    const auto at = states.parameters.find(view.tensors[i].name);
    const bool is_written = at != states.parameters.end() && at->second.contains("fp32");
    const bool is_whole = is_buffer || !is_written || !states.is_trained(at->second, view);
    out.push_back({is_whole && is_written ? append_frozen_copy(i, view) : i, !is_whole});
  }
  return out;
}

void append_module(const std::vector<ModuleTensor>& module, const CheckpointView& view, TorchWriter& writer) {
  PickleWriter& to = writer.pickle();
  to.empty_dict();
  to.mark();
  for (const ModuleTensor& held : module) {
    const StoredTensor& tensor = view.tensors[held.tensor];
    to.string(tensor.name);
    writer.tensor(tensor.type, held.is_placeholder ? Shape{0} : tensor.shape);
  }
  to.set_items();
}

void append_buffer_names(const CheckpointView& view, PickleWriter& to) {
  to.string("buffer_names");
  to.empty_list();
  to.mark();
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role == "buffer") to.string(tensor.name);
  to.append_items();
}

// Of the trained parameters, or of the frozen ones.
void append_shapes(bool are_trained, const UniversalStates& states, const CheckpointView& view, TorchWriter& writer) {
  PickleWriter& to = writer.pickle();
  to.empty_dict();
  to.mark();
  for (const auto& [name, parameter] : states.parameters) {
    const auto at = parameter.find("fp32");
    if (at == parameter.end() || states.is_trained(parameter, view) != are_trained) continue;
    to.string(name);
    writer.size(view.tensors[at->second].shape);
  }
  to.set_items();
}

void append_ties(const CheckpointView& view, PickleWriter& to) {
  to.string("shared_params");
  to.empty_dict();
  to.mark();
  for (const auto& [alias, name] : view.aliases) {
    to.string(alias);
    to.string(name);
  }
  to.set_items();
}

// That of the first trained weight.
ElementType training_type(const CheckpointView& view) {
  const auto weight = std::ranges::find(view.tensors, "weight", &StoredTensor::role);
  return weight == view.tensors.end() ? ElementType::float32 : weight->type;
}

void append_counters(const StepCounts& steps, PickleWriter& to) {
  const std::pair<std::string_view, std::uint64_t> counters[] = {
      {"skipped_steps", 0}, {"global_steps", steps.job.value_or(0)}, {"dp_world_size", 1}, {"mp_world_size", 1}};
  for (const auto& [key, value] : counters) {
    to.string(key);
    to.unsigned_(value);
  }
}

void append_versions(ElementType type, PickleWriter& to) {
  to.string("ds_version");
  to.string(kUniversalWriterVersion);
  to.string("ds_config");
  to.empty_dict();
  if (type == ElementType::bfloat16 || type == ElementType::float16) {
    to.string(type == ElementType::bfloat16 ? "bf16" : "fp16");
    to.empty_dict();
    to.string("enabled");
    to.boolean(true);
    to.set_item();
    to.set_item();
  }
  to.string("universal_checkpoint_info");
  to.empty_dict();
  to.string("universal_checkpoint_version");
  to.real(0.2);
  to.set_item();
}

// `twin_of`: empty for the file itself.
void append_states(const std::vector<ModuleTensor>& module, const std::string& twin_of, const UniversalStates& states,
                   const StepCounts& steps, const CheckpointView& view, TorchWriter& writer) {
  PickleWriter& to = writer.pickle();
  to.empty_dict();
  to.mark();
  to.string("module");
  append_module(module, view, writer);
  append_buffer_names(view, to);
  to.string("param_shapes");
  to.empty_list();
  append_shapes(true, states, view, writer);
  to.append_item();
  to.string("frozen_param_shapes");
  append_shapes(false, states, view, writer);
  to.string("frozen_param_fragments");
  to.none();
  append_ties(view, to);
  for (const std::string_view key : {"optimizer", "lr_scheduler", "data_sampler", "random_ltd"}) {
    to.string(key);
    to.none();
  }
  append_counters(steps, to);
  append_versions(training_type(view), to);
  if (!twin_of.empty()) {
    to.string(kTwinKey);
    to.string(twin_of);
  }
  to.set_items();
}

}  // namespace

Status make_model_states(const UniversalStates& states, const StepCounts& steps, UniversalOutput& out) {
  const std::vector<ModuleTensor> module = choose_module(states, out.view);
  std::vector<RecordTensor> records;
  for (std::size_t i = 0; i < module.size(); ++i) {
    const StoredTensor& tensor = out.view.tensors[module[i].tensor];
    if (!module[i].is_placeholder) records.push_back({i, module[i].tensor, tensor.name, tensor.type});
  }
  TorchWriter whole;
  append_states(module, "", states, steps, out.view, whole);
  PAWL_TRY(add_torch_file(kModelStates, std::move(whole), records, out));
  TorchWriter twin;
  append_states({}, kModelStates, states, steps, out.view, twin);
  PAWL_TRY(add_torch_file(kTwin, std::move(twin), {}, out));
  out.plan.notes.emplace_back(
      "the source has neither scheduler state nor the job's own state: load it with load_lr_scheduler_states=False, "
      "or set the scheduler's step yourself");
  return {};
}

}  // namespace pawl::checkpoint::deepspeed
