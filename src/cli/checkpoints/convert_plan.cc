#include "cli/checkpoints/convert_plan.h"

#include <algorithm>

#include "base/text.h"
#include "cli/checkpoints/text.h"
#include "env/files.h"
#include "reshape/cast.h"

namespace pawl {
namespace {

using To = ConvertOptions::To;

Result<std::vector<std::uint32_t>> choose(const CheckpointView& view, const ConvertOptions& options) {
  std::vector<std::uint32_t> chosen;
  if (options.roles.empty() && options.to == To::huggingface) {
    PAWL_ASSIGN(chosen, with_roles(view, {"weight"}));
    for (std::uint32_t i = 0; i < view.tensors.size(); ++i)
      if (view.tensors[i].role == "buffer") chosen.push_back(i);
    std::ranges::sort(chosen);
  } else {
    PAWL_ASSIGN(chosen, with_roles(view, options.roles));
  }
  if (chosen.empty()) return Error{Code::not_found, "the checkpoint holds no tensor: there is nothing to convert"};
  return chosen;
}

Result<std::optional<ElementType>> wanted_type(const std::string& name) {
  static constexpr std::pair<std::string_view, std::string_view> kShort[] = {
      {"bf16", "bfloat16"}, {"fp16", "float16"}, {"half", "float16"}, {"fp32", "float32"}, {"float", "float32"}};
  if (name.empty()) return std::optional<ElementType>();
  std::string_view full = name;
  for (const auto& [word, torch] : kShort)
    if (name == word) full = torch;
  const std::optional<ElementType> type = element_type_named(full);
  if (type && can_cast(ElementType::float32, *type)) return type;
  return Error{Code::invalid, text("--dtype ", name, ": float32, float16 and bfloat16 are possible")};
}

// Numbers of steps stay what they are: a narrower type would round them.
bool is_cast(const StoredTensor& tensor, ElementType wanted) {
  return tensor.role != "step" && can_cast(tensor.type, wanted);
}

SafetensorsTensor header_entry(const CheckpointView& view, const ConvertedTensor& tensor) {
  return {tensor.key, tensor.type, view.tensors[tensor.tensor].shape};
}

// The tensors [first, end) are those of one file, and get their places in it.
Status lay_out(const CheckpointView& view, ConvertPlan& plan, std::size_t first, std::size_t end,
               std::uint32_t file_count, const ConvertOptions& options) {
  std::vector<SafetensorsTensor> entries;
  for (std::size_t i = first; i < end; ++i) entries.push_back(header_entry(view, plan.tensors[i]));
  PAWL_ASSIGN(SafetensorsLayout layout, lay_out_safetensors(entries, {{"format", "pt"}}));
  for (std::size_t i = first; i < end; ++i) plan.tensors[i].offset_bytes = layout.offset_bytes[i - first];
  const std::uint32_t number = plan.tensors[first].file;
  const std::string name =
      options.to == To::huggingface ? huggingface_file_name(number, file_count) : last_name(options.target);
  plan.files.push_back({name, std::move(layout.header), layout.file_bytes});
  plan.all_bytes += layout.file_bytes;
  return {};
}

Status write_index(ConvertPlan& plan) {
  std::vector<std::string> names;
  std::vector<std::uint32_t> file_of;
  for (const ConvertedTensor& tensor : plan.tensors) {
    names.push_back(tensor.key);
    file_of.push_back(tensor.file);
  }
  const auto file_count = static_cast<std::uint32_t>(plan.files.size());
  PAWL_ASSIGN(plan.index, huggingface_index(names, file_of, file_count, plan.data_bytes));
  plan.all_bytes += plan.index.size();
  return {};
}

}  // namespace

std::vector<std::string> problems_for(const CheckpointView& view, const ConvertOptions& options) {
  const auto is_of_the_model = [](const std::string& role) { return role == "weight" || role == "buffer"; };
  const bool model_only =
      options.roles.empty() ? options.to == To::huggingface : std::ranges::all_of(options.roles, is_of_the_model);
  std::vector<std::string> problems = view.problems;
  if (model_only) std::erase_if(problems, [](const std::string& what) { return what.starts_with(kOfOptimizerState); });
  return problems;
}

Result<ConvertPlan> plan_conversion(const CheckpointView& view, const ConvertOptions& options) {
  ConvertPlan plan;
  PAWL_ASSIGN(const std::vector<std::uint32_t> chosen, choose(view, options));
  PAWL_ASSIGN(const std::optional<ElementType> wanted, wanted_type(options.dtype));
  std::vector<std::uint64_t> sizes;
  std::vector<SafetensorsTensor> entries;
  std::uint64_t kept = 0;
  for (const std::uint32_t i : chosen) {
    const StoredTensor& tensor = view.tensors[i];
    ConvertedTensor& out = plan.tensors.emplace_back();
    out.tensor = i;
    out.key = options.to == To::safetensors ? role_key(tensor.name, tensor.role) : tensor.name;
    out.type = wanted && is_cast(tensor, *wanted) ? *wanted : tensor.type;
    kept += wanted && out.type != *wanted;
    entries.push_back(header_entry(view, out));
  }
  PAWL_ASSIGN(const SafetensorsLayout together, lay_out_safetensors(entries));  // also: names differ
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    plan.tensors[i].size_bytes = together.size_bytes[i];
    plan.data_bytes += together.size_bytes[i];
  }
  std::uint32_t file_count = 1;
  if (options.to == To::huggingface) {
    const std::vector<std::uint32_t> file_of = split_into_files(together.size_bytes, options.file_bytes_max);
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) plan.tensors[i].file = file_of[i];
    file_count = file_of.back() + 1;
  }
  for (std::size_t first = 0, end = 0; first < plan.tensors.size(); first = end) {  // files are filled one by one
    for (end = first; end < plan.tensors.size() && plan.tensors[end].file == plan.tensors[first].file;) ++end;
    PAWL_TRY(lay_out(view, plan, first, end, file_count, options));
  }
  if (file_count > 1) PAWL_TRY(write_index(plan));
  if (kept != 0) plan.notes.push_back(text(kept, " tensors keep their type: steps, and types that are no such floats"));
  for (const auto& [alias, name] : view.aliases)
    plan.notes.push_back(text(alias, " is tied to ", name, ", and is not written a second time"));
  return plan;
}

}  // namespace pawl
