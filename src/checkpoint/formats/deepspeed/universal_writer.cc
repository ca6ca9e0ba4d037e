#include "checkpoint/formats/deepspeed/universal_writer.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/universal_write_model_states.h"
#include "checkpoint/formats/deepspeed/universal_write_optimizer.h"
#include "checkpoint/formats/deepspeed/universal_write_parameters.h"
#include "checkpoint/formats/deepspeed/universal_write_source.h"
#include "checkpoint/formats/deepspeed/universal_write_states.h"

namespace pawl::checkpoint {
namespace {

using namespace deepspeed;

// latest_universal, the last file: it makes the others a checkpoint, and points to this very folder.
void plan_pointer(OutputPlan& plan) {
  PlannedFile pointer;
  pointer.name = "latest_universal";
  pointer.size_bytes = 1;
  pointer.texts = {{0, "."}};
  plan.files.push_back(std::move(pointer));
  plan.marker = "latest_universal";
}

void sum_up(OutputPlan& plan) {
  plan.is_folder = true;
  std::ranges::sort(plan.tensors, {}, &PlannedTensor::tensor);
  for (const PlannedTensor& tensor : plan.tensors) plan.data_bytes += tensor.size_bytes;
  for (const PlannedFile& file : plan.files) plan.all_bytes += file.size_bytes;
}

void add_notes(const UniversalStates& states, const CheckpointView& view, std::vector<std::string>& notes) {
  for (const auto& [alias, name] : view.aliases)
    notes.push_back(text(alias, " is tied to ", name, ", and is not written a second time"));
  if (states.left_out != 0)
    notes.push_back(text(states.left_out, " tensors have types that are not floats and no folder in zero/"));
  const auto is_expert = [](const auto& entry) {
    return entry.first.find(".deepspeed_moe.experts.deepspeed_experts.") != std::string::npos;
  };
  if (std::ranges::any_of(states.parameters, is_expert))
    notes.push_back(
        "experts are numbered across all ranks, but DeepSpeed looks for each rank's own numbers: load "
        "this without expert parallelism");
}

}  // namespace

Result<UniversalOutput> plan_universal(CheckpointView view, const WriteOptions& options, Files& files) {
  if (options.type && *options.type != ElementType::float32)
    return Error{Code::invalid, text("a universal checkpoint of DeepSpeed holds float32, not ", name_of(*options.type),
                                     ": omit the type")};
  UniversalOutput out;
  out.view = std::move(view);

  const UniversalSource source = find_source(out.view, files);
  PAWL_ASSIGN(const TensorParallelInfo rules, read_source_rules(source, files));
  PAWL_ASSIGN(const UniversalStates states, choose_states(out.view, options));
  const StepCounts steps = find_steps(out.view, files);

  PAWL_TRY(plan_parameter_files(states, steps, rules, out));
  PAWL_TRY(plan_optimizer_file(source, steps, files, out));
  PAWL_TRY(source.models.empty() ? make_model_states(states, steps, out) : carry_model_states(source, files, out));
  plan_pointer(out.plan);

  sum_up(out.plan);
  add_notes(states, out.view, out.plan.notes);
  return out;
}

}  // namespace pawl::checkpoint
