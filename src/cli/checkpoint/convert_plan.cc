#include "cli/checkpoint/convert_plan.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/containers/safetensors_layout.h"
#include "checkpoint/formats/dcp/dcp_writer.h"
#include "checkpoint/formats/huggingface/safetensors_writer.h"
#include "checkpoint/formats/native/atomic.h"
#include "checkpoint/reshape/cast.h"
#include "cli/checkpoint/convert_store.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

using To = ConvertOptions::To;

Result<std::optional<ElementType>> wanted_type(const std::string& name) {
  static constexpr std::pair<std::string_view, std::string_view> kShort[] = {
      {"bf16", "bfloat16"}, {"fp16", "float16"}, {"half", "float16"}, {"fp32", "float32"}, {"float", "float32"}};
  if (name.empty()) return std::optional<ElementType>();
  std::string_view full = name;
  for (const auto& [word, torch] : kShort)
    if (name == word) full = torch;
  const std::optional<ElementType> type = element_type_named(full);
  if (type && can_cast(ElementType::float32, *type)) return type;
  return Error{Code::invalid, text("--dtype ", name, ": expected float32, float16 or bfloat16")};
}

}  // namespace

std::string_view name_of(To to) {
  switch (to) {
    case To::safetensors:
      return "safetensors";
    case To::huggingface:
      return "huggingface";
    case To::dcp:
      return "dcp";
    case To::universal:
      return "universal";
    case To::atomic:
      return "atomic";
    case To::pawl:
      return "pawl";
  }
  return "";
}

std::vector<std::string> problems_for(const CheckpointView& view, const ConvertOptions& options) {
  const auto is_of_the_model = [](const std::string& role) { return role == "weight" || role == "buffer"; };
  const bool model_only =
      options.roles.empty() ? options.to == To::huggingface : std::ranges::all_of(options.roles, is_of_the_model);
  std::vector<std::string> problems = view.problems;
  if (model_only)
    std::erase_if(problems, [](const std::string& what) { return what.starts_with(kOfOptimizerState); });
  else
    problems.insert(problems.end(), view.unnamed.begin(), view.unnamed.end());
  return problems;
}

std::vector<std::string> take_out_unsupported(CheckpointView& view, const ConvertOptions& options) {
  std::vector<std::string> sentences = view.unsupported;
  if (options.to != To::safetensors && options.to != To::huggingface && options.to != To::atomic) return sentences;
  std::unordered_set<std::string> taken;
  std::erase_if(view.tensors, [&](const StoredTensor& tensor) {
    const bool is_chosen =
        options.roles.empty() || std::ranges::find(options.roles, tensor.role) != options.roles.end();
    if (!is_chosen || safetensors_name_of(tensor.type) || size_bits(tensor.type) % 8 != 0) return false;
    sentences.push_back(text("tensor ", tensor.name, " (", tensor.role, ") is ", name_of(tensor.type),
                             ", a type that safetensors does not have; --to dcp and --to pawl have it"));
    taken.insert(tensor.name);
    return true;
  });
  std::erase_if(view.aliases, [&](const auto& alias) { return taken.contains(alias.second); });
  return sentences;
}

Result<WriteOptions> write_options(const ConvertOptions& options) {
  WriteOptions write;
  write.roles = options.roles;
  write.file_bytes_max = options.file_bytes_max;
  write.file_name = last_name(options.target);
  write.flat_names = options.flat_names;
  PAWL_ASSIGN(write.type, wanted_type(options.dtype));
  return write;
}

Result<OutputPlan> plan_conversion(const CheckpointView& view, const ConvertOptions& options) {
  PAWL_ASSIGN(const WriteOptions write, write_options(options));
  switch (options.to) {
    case To::safetensors:
      return plan_safetensors(view, write);
    case To::huggingface:
      return plan_huggingface(view, write);
    case To::dcp:
      return plan_dcp(view, write);
    case To::atomic:
      return plan_atomic(view, write);
    case To::pawl:
      return plan_store(view, write);
    case To::universal:
      break;
  }
  return Error{Code::broken, "no such format"};
}

}  // namespace pawl::checkpoint
