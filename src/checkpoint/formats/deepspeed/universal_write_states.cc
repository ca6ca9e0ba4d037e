#include "checkpoint/formats/deepspeed/universal_write_states.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/reshape/cast.h"
#include "checkpoint/reshape/stored_file.h"

namespace pawl::checkpoint::deepspeed {
namespace {

constexpr std::size_t kNameBytesMax = 255;

bool is_wanted(const std::string& role, const WriteOptions& options) {
  return options.roles.empty() || std::ranges::find(options.roles, role) != options.roles.end();
}

}  // namespace

Result<UniversalStates> choose_states(const CheckpointView& view, const WriteOptions& options) {
  std::set<std::string_view> with_master;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role == "master" && is_wanted(tensor.role, options)) with_master.insert(tensor.name);
  UniversalStates out;
  FirstFew bad_names;
  for (std::uint32_t i = 0; i < view.tensors.size(); ++i) {
    const StoredTensor& tensor = view.tensors[i];
    const bool is_weight = tensor.role == "weight";
    if (tensor.role == "buffer" || !is_wanted(tensor.role, options) || (is_weight && with_master.contains(tensor.name)))
      continue;
    if (tensor.role != "step" && tensor.type != ElementType::float32 && !can_cast(tensor.type, ElementType::float32)) {
      ++out.left_out;
      continue;
    }
    const std::string state = is_weight || tensor.role == "master" ? "fp32" : tensor.role;
    if (!is_plain_file_name(tensor.name) || tensor.name.size() > kNameBytesMax || !is_plain_file_name(state))
      bad_names.add(text(tensor.name, " (", tensor.role, ")"));
    out.parameters[tensor.name][state] = i;
    out.has_optimizer = out.has_optimizer || state != "fp32";
  }
  if (bad_names.any())
    return Error{Code::invalid, text("a universal checkpoint has a folder for each parameter, but these names can't be "
                                     "folder names: ",
                                     bad_names.sentence(), "; DeepSpeed never uses such names")};
  if (std::ranges::none_of(out.parameters, [](const auto& entry) { return entry.second.contains("fp32"); }))
    return Error{Code::not_found, "the checkpoint holds no weights: there is nothing to convert"};
  return out;
}

StepCounts find_steps(const CheckpointView& view, Files& files) {
  StepCounts out;
  for (const auto& [key, value] : view.facts)
    if (std::uint64_t number = 0; key == "step" && parse_number(value, number)) out.job = number;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role == "step" && !out.optimizer) out.optimizer = number_in(tensor, view, files);
  if (out.optimizer && !out.job && *out.optimizer >= 0 && *out.optimizer < 1e15)
    out.job = static_cast<std::uint64_t>(*out.optimizer);
  return out;
}

void append_step(const StepCounts& steps, TorchWriter& writer) {
  const auto step = static_cast<float>(steps.of_optimizer());
  std::string bytes(sizeof step, '\0');
  std::memcpy(bytes.data(), &step, sizeof step);
  writer.tensor(ElementType::float32, {}, std::move(bytes));
}

}  // namespace pawl::checkpoint::deepspeed
