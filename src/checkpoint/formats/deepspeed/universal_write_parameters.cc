#include "checkpoint/formats/deepspeed/universal_write_parameters.h"

#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/tensor_parallel_joins.h"

namespace pawl::checkpoint::deepspeed {
namespace {

// An object of DeepSpeed's class SubparamShape.
Status append_sub_parameters(PickleWriter& pickle, const std::string& name, const Shape& shape,
                             const TensorParallelInfo& rules, std::uint32_t pattern) {
  const SubParameters& sub = rules.subs[rules.sub_of_pattern[pattern]];
  PAWL_ASSIGN(const auto widths, even_widths(name, sub, {&shape, 1}));
  pickle.string("sub_param_shape");
  pickle.global("deepspeed.checkpoint.universal_checkpoint", "SubparamShape");
  pickle.empty_tuple();
  pickle.newobj();
  pickle.empty_dict();
  pickle.mark();
  pickle.string("patterns");
  pickle.empty_list();
  pickle.string(rules.sub_patterns.pattern(pattern));
  pickle.append_item();
  pickle.string("shape");
  pickle.mark();
  for (std::size_t d = 0; d < sub.shape.size(); ++d) {
    if (d != sub.dimension) {
      pickle.integer(sub.shape[d]);
      continue;
    }
    pickle.mark();
    for (const std::vector<std::uint64_t>& width : widths) pickle.unsigned_(width[0]);
    pickle.tuple();
  }
  pickle.tuple();
  pickle.string("partition_dim");
  pickle.unsigned_(sub.dimension);
  pickle.set_items();
  pickle.build();
  return {};
}

// How tensor-parallel ranks are to cut it.
Status append_rule(PickleWriter& pickle, const std::string& name, const Shape& shape, const TensorParallelInfo& rules) {
  if (rules.said_nothing || !rules.affine_patterns.matches(name).empty() || !rules.replicated.matches(name).empty() ||
      !rules.averaged.matches(name).empty())
    return {};
  const bool is_pair = !rules.two_sub_parameters.matches(name).empty();
  const std::vector<std::uint32_t> subs = rules.sub_patterns.matches(name);
  if (!is_pair && !subs.empty()) return append_sub_parameters(pickle, name, shape, rules, subs[0]);
  pickle.string("cat_dim");
  pickle.integer(!is_pair && !rules.row_parallel.matches(name).empty() ? 1 : 0);
  if (is_pair) {
    pickle.string("param_n_sub_params");
    pickle.integer(2);
  } else if (!rules.vocabulary.matches(name).empty()) {
    pickle.string("vocab_tensor");
    pickle.boolean(true);
  }
  return {};
}

std::string file_name(const std::string& name, const std::string& state) {
  return text("zero/", name, '/', state, ".pt");
}

// {"param": tensor, rule}; a step is the tensor alone.
Status plan_state(const std::string& name, const std::string& state, std::uint32_t tensor,
                  const TensorParallelInfo& rules, UniversalOutput& out) {
  const StoredTensor& stored = out.view.tensors[tensor];
  const bool is_step = state == "step";
  const ElementType type = is_step ? stored.type : ElementType::float32;
  TorchWriter writer;
  if (!is_step) {
    writer.pickle().empty_dict();
    writer.pickle().mark();
    writer.pickle().string("param");
  }
  writer.tensor(type, stored.shape);
  if (!is_step) {
    PAWL_TRY(append_rule(writer.pickle(), name, stored.shape, rules));
    writer.pickle().set_items();
  }
  return add_torch_file(file_name(name, state), std::move(writer), {{0, tensor, text(name, '/', state), type}}, out);
}

// Torch's Adam does not go on without; the source has one for all, and only said it.
Status plan_made_step(const std::string& name, const StepCounts& steps, UniversalOutput& out) {
  TorchWriter writer;
  append_step(steps, writer);
  return add_torch_file(file_name(name, "step"), std::move(writer), {}, out);
}

}  // namespace

Status plan_parameter_files(const UniversalStates& states, const StepCounts& steps, const TensorParallelInfo& rules,
                            UniversalOutput& out) {
  for (const auto& [name, parameter] : states.parameters) {
    for (const auto& [state, tensor] : parameter) PAWL_TRY(plan_state(name, state, tensor, rules, out));
    if (parameter.contains("exp_avg") && !parameter.contains("step") && steps.job)
      PAWL_TRY(plan_made_step(name, steps, out));
  }
  return {};
}

}  // namespace pawl::checkpoint::deepspeed
