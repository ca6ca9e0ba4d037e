#include "checkpoint/formats/huggingface/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "base/first_few.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/containers/json_text.h"
#include "checkpoint/containers/safetensors.h"
#include "checkpoint/names/state_names.h"

namespace pawl::checkpoint {
namespace {

// A file of the plan's tensors [first, end), which get their places in it.
Result<PlannedFile> plan_file(const CheckpointView& view, OutputPlan& plan, std::size_t first, std::size_t end,
                              std::string name, SafetensorsMetadata metadata = {{"format", "pt"}}) {
  std::vector<SafetensorsTensor> entries;
  for (std::size_t i = first; i < end; ++i)
    entries.push_back({plan.tensors[i].key, plan.tensors[i].type, view.tensors[plan.tensors[i].tensor].shape});
  PAWL_ASSIGN(SafetensorsLayout layout, lay_out_safetensors(entries, std::move(metadata)));
  const auto number = static_cast<std::uint32_t>(plan.files.size());
  for (std::size_t i = first; i < end; ++i) {
    plan.tensors[i].file = number;
    plan.tensors[i].offset_bytes = layout.offset_bytes[i - first];
  }
  plan.all_bytes += layout.file_bytes;
  PlannedFile file;
  file.name = std::move(name);
  file.size_bytes = layout.file_bytes;
  file.texts.push_back({0, std::move(layout.header)});
  return file;
}

Status check_keys_differ(const OutputPlan& plan) {
  std::unordered_set<std::string_view> keys;
  FirstFew twice;
  for (const PlannedTensor& tensor : plan.tensors)
    if (!keys.insert(tensor.key).second) twice.add(text("tensor ", tensor.key, " would be there twice"));
  if (!twice.any()) return {};
  return Error{Code::invalid, text("safetensors: ", twice.sentence())};
}

// The last slash of a key is the one before its role.
Status check_roles(const CheckpointView& view, const OutputPlan& plan) {
  FirstFew with_slash;
  for (const PlannedTensor& tensor : plan.tensors)
    if (const std::string& role = view.tensors[tensor.tensor].role; role.find('/') != std::string::npos)
      with_slash.add(text("the role ", role, " of ", view.tensors[tensor.tensor].name, " has a slash"));
  if (!with_slash.any()) return {};
  return Error{Code::invalid,
               text("safetensors: ", with_slash.sentence(), ": use --to pawl or dcp, or --roles without it")};
}

Status plan_index(OutputPlan& plan, const std::vector<std::uint32_t>& file_of) {
  std::vector<std::string> names;
  for (const PlannedTensor& tensor : plan.tensors) names.push_back(tensor.key);
  const auto file_count = static_cast<std::uint32_t>(plan.files.size());
  PAWL_ASSIGN(std::string index, huggingface_index(names, file_of, file_count, plan.data_bytes));
  PlannedFile file;
  file.name = std::string(kHuggingFaceIndexName);
  file.size_bytes = index.size();
  file.texts.push_back({0, std::move(index)});
  plan.all_bytes += file.size_bytes;
  plan.files.push_back(std::move(file));
  return {};
}

}  // namespace

Status take_roles_from_keys(CheckpointView& view, Files& files) {
  static constexpr std::array<std::string_view, 6> kRoles = {"weight",     "master", "exp_avg",
                                                             "exp_avg_sq", "step",   "buffer"};
  if (view.format != "safetensors" || view.tensors.empty()) return {};
  const auto role_of = [](const StoredTensor& tensor) -> std::string_view {
    const std::size_t slash = tensor.name.rfind('/');
    if (slash == std::string::npos || tensor.role != "weight") return {};
    return std::string_view(tensor.name).substr(slash + 1);
  };
  bool are_known = true;
  for (const StoredTensor& tensor : view.tensors) {
    const std::string_view role = role_of(tensor);
    if (role.empty()) return {};
    are_known = are_known && (std::ranges::find(kRoles, role) != kRoles.end() || is_optimizer_word(role));
  }
  if (!are_known) {  // only a conversion's file may have others
    if (view.files.size() != 1) return {};
    PAWL_ASSIGN(const SafetensorsFile file, open_safetensors(view.files[0].path, files));
    if (std::ranges::none_of(file.metadata,
                             [](const auto& each) { return each.first == kKeysKey && each.second == kKeysWithRoles; }))
      return {};
  }
  for (StoredTensor& tensor : view.tensors) {
    tensor.role = std::string(role_of(tensor));
    tensor.name.resize(tensor.name.size() - tensor.role.size() - 1);
  }
  return {};
}

Status take_true_types(CheckpointView& view, Files& files) {
  if (view.format.find("safetensors") == std::string::npos) return {};
  std::unordered_map<std::string, StoredTensor*> candidates;  // by the key in its file
  for (StoredTensor& tensor : view.tensors)
    if (tensor.type == ElementType::uint8 && tensor.shape.size() == 1 && tensor.pieces.size() == 1) {
      candidates.emplace(tensor.name, &tensor);
      candidates.emplace(role_key(tensor.name, tensor.role), &tensor);
    }
  for (std::size_t i = 0; i < view.files.size() && !candidates.empty(); ++i) {
    if (view.files[i].codec != StoredFile::Codec::none) continue;
    PAWL_ASSIGN(const SafetensorsFile file, open_safetensors(view.files[i].path, files));
    for (const auto& [key, value] : file.metadata) {
      if (!key.starts_with(kTrueTypeKey)) continue;
      const auto found = candidates.find(key.substr(kTrueTypeKey.size()));
      if (found == candidates.end() || found->second->pieces[0].file != i) continue;
      (void)take_true_type(*found->second, value);
    }
  }
  return {};
}

std::string huggingface_file_name(std::uint32_t file, std::uint32_t file_count) {
  if (file_count <= 1) return "model.safetensors";
  const auto padded = [](std::uint32_t number) {
    const std::string digits = text(number);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return text("model-", padded(file + 1), "-of-", padded(file_count), ".safetensors");
}

Result<std::string> huggingface_index(std::span<const std::string> names, std::span<const std::uint32_t> file_of,
                                      std::uint32_t file_count, std::uint64_t total_bytes) {
  std::string out = text("{\n  \"metadata\": {\n    \"total_size\": ", total_bytes, "\n  },\n  \"weight_map\": {");
  std::vector<std::uint32_t> order(names.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](std::uint32_t i) -> const std::string& { return names[i]; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::string& name = names[order[i]];
    if (!is_utf8(name)) return Error{Code::invalid, text("index: tensor ", name, " has a name that is not UTF-8")};
    out += i == 0 ? "\n    " : ",\n    ";
    append_json(out, name);
    out += ": ";
    append_json(out, huggingface_file_name(file_of[order[i]], file_count));
  }
  out += "\n  }\n}\n";
  return out;
}

Result<OutputPlan> plan_safetensors(const CheckpointView& view, const WriteOptions& options) {
  PAWL_ASSIGN(const std::vector<std::uint32_t> chosen, with_roles(view, options.roles));
  PAWL_ASSIGN(OutputPlan plan, plan_tensors(view, chosen, options));
  note_ties(view, plan);
  for (PlannedTensor& tensor : plan.tensors)
    tensor.key = role_key(view.tensors[tensor.tensor].name, view.tensors[tensor.tensor].role);
  PAWL_TRY(check_roles(view, plan));
  PAWL_ASSIGN(PlannedFile file, plan_file(view, plan, 0, plan.tensors.size(), options.file_name,
                                          {{"format", "pt"}, {std::string(kKeysKey), std::string(kKeysWithRoles)}}));
  plan.files.push_back(std::move(file));
  return plan;
}

Result<OutputPlan> plan_huggingface(const CheckpointView& view, const WriteOptions& options) {
  std::vector<std::uint32_t> chosen;
  PAWL_ASSIGN(chosen, with_roles(view, options.roles.empty() ? std::vector<std::string>{"weight"} : options.roles));
  for (std::uint32_t i = 0; i < view.tensors.size() && options.roles.empty(); ++i)
    if (view.tensors[i].role == "buffer") chosen.push_back(i);
  std::ranges::sort(chosen);
  PAWL_ASSIGN(OutputPlan plan, plan_tensors(view, chosen, options));
  note_ties(view, plan);
  plan.is_folder = true;
  std::vector<std::uint64_t> sizes;
  for (PlannedTensor& tensor : plan.tensors) {
    tensor.key = view.tensors[tensor.tensor].name;
    sizes.push_back(tensor.size_bytes);
  }
  PAWL_TRY(check_keys_differ(plan));
  const std::vector<std::uint32_t> file_of = split_into_files(sizes, options.file_bytes_max);
  const std::uint32_t file_count = file_of.back() + 1;
  for (std::size_t first = 0, end = 0; first < plan.tensors.size(); first = end) {  // files are filled one by one
    for (end = first; end < plan.tensors.size() && file_of[end] == file_of[first];) ++end;
    PAWL_ASSIGN(PlannedFile file, plan_file(view, plan, first, end, huggingface_file_name(file_of[first], file_count)));
    plan.files.push_back(std::move(file));
  }
  if (file_count > 1) PAWL_TRY(plan_index(plan, file_of));
  return plan;
}

}  // namespace pawl::checkpoint
