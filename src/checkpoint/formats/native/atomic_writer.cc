// The writer; atomic.cc has the other way.
#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/first_few.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/containers/json_text.h"
#include "checkpoint/containers/safetensors_layout.h"
#include "checkpoint/formats/native/atomic.h"
#include "checkpoint/names/state_names.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kFolderBytesMax = 200;  // of 255 that file systems take
constexpr std::size_t kHashBytes = 17;        // '~' and 16 digits

bool is_plain(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
         letter == '.' || letter == '_' || letter == '-';
}

char lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

void append_hex(std::string& out, std::uint64_t value, std::uint32_t digits) {
  while (digits-- > 0) out += "0123456789ABCDEF"[value >> 4 * digits & 15];
}

// FNV-1a: only to tell long names apart, which the number behind '~' would do as well; but it does not depend on the
// other names there are.
std::uint64_t hash_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return hash;
}

std::string folder_of(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool is_hidden = name[i] == '.' && (i == 0 || i + 1 == name.size());
    if (is_plain(name[i]) && !is_hidden) {
      out += name[i];
      continue;
    }
    out += '%';
    append_hex(out, static_cast<unsigned char>(name[i]), 2);
  }
  if (out.empty()) return "%";
  if (out.size() <= kFolderBytesMax) return out;
  out.resize(kFolderBytesMax - kHashBytes);
  out += '~';
  append_hex(out, hash_of(name), 16);
  return out;
}

// The view's tensor and what it is called.
struct State {
  std::string role;
  std::uint32_t tensor = 0;
};

std::string written_role(const StoredTensor& tensor) {
  return tensor.role == "master" ? "weight" : tensor.role;
}

// Masters stand for their weights.
Result<std::vector<std::uint32_t>> choose(const CheckpointView& view, const WriteOptions& options,
                                          std::size_t& left_out) {
  WriteOptions all = options;
  const bool wants_weights = std::ranges::find(options.roles, std::string("weight")) != options.roles.end();
  std::unordered_set<std::string_view> with_master;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role == "master") with_master.insert(tensor.name);
  if (wants_weights && !with_master.empty()) all.roles.emplace_back("master");
  PAWL_ASSIGN(std::vector<std::uint32_t> chosen, with_roles(view, all.roles));
  const std::size_t before = chosen.size();
  if (options.roles.empty() || wants_weights)
    std::erase_if(chosen, [&](std::uint32_t i) {
      return view.tensors[i].role == "weight" && with_master.contains(view.tensors[i].name);
    });
  left_out = before - chosen.size();
  return chosen;
}

void widen(const CheckpointView& view, OutputPlan& plan) {
  for (PlannedTensor& tensor : plan.tensors) {
    if (tensor.type != ElementType::bfloat16 && tensor.type != ElementType::float16) continue;
    if (view.tensors[tensor.tensor].role == "step") continue;
    tensor.type = ElementType::float32;
    plan.data_bytes += tensor.size_bytes;
    tensor.size_bytes *= 2;
  }
}

Status plan_file(const CheckpointView& view, OutputPlan& plan, PlannedTensor& tensor, std::string name) {
  const StoredTensor& stored = view.tensors[tensor.tensor];
  const std::array<SafetensorsTensor, 1> entry = {SafetensorsTensor{tensor.key, tensor.type, stored.shape}};
  PAWL_ASSIGN(SafetensorsLayout layout, lay_out_safetensors(entry, {{"format", "pt"}}));
  tensor.file = static_cast<std::uint32_t>(plan.files.size());
  tensor.offset_bytes = layout.offset_bytes[0];
  PlannedFile& file = plan.files.emplace_back();
  file.name = std::move(name);
  file.size_bytes = layout.file_bytes;
  file.texts.push_back({0, std::move(layout.header)});
  plan.all_bytes += file.size_bytes;
  return {};
}

std::string step_of(const CheckpointView& view) {
  for (const auto& [key, value] : view.facts)
    if (key == "step" && is_utf8(value)) return value;
  return {};
}

}  // namespace

std::vector<std::string> atomic_folder_names(std::span<const std::string> names) {
  std::vector<std::string> folders;
  std::unordered_set<std::string> taken = {std::string(kAtomicIndexName)};
  for (const std::string& name : names) {
    const std::string plain = folder_of(name);
    std::string folder = plain, same = plain;
    const auto fold = [&] {
      same = folder;
      std::ranges::transform(same, same.begin(), lower);
      return same;
    };
    for (std::size_t number = 2; !taken.insert(fold()).second; ++number) folder = text(plain, '~', number);
    folders.push_back(std::move(folder));
  }
  return folders;
}

Result<OutputPlan> plan_atomic(const CheckpointView& view, const WriteOptions& options) {
  if (options.type && *options.type != ElementType::float32)
    return Error{Code::invalid, text("the atomic form holds float32, not ", name_of(*options.type), ": omit the type")};
  std::size_t left_out = 0;
  PAWL_ASSIGN(const std::vector<std::uint32_t> chosen, choose(view, options, left_out));
  WriteOptions as_stored;
  PAWL_ASSIGN(OutputPlan plan, plan_tensors(view, chosen, as_stored));
  widen(view, plan);
  plan.is_folder = true;
  plan.marker = kAtomicIndexName;
  if (left_out != 0)
    plan.notes.push_back(text(left_out, " weights are written as their masters, from which a training goes on"));
  std::vector<std::string> names;
  std::map<std::string_view, std::vector<std::size_t>> states;  // of each parameter, in plan.tensors
  FirstFew no_text;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const StoredTensor& stored = view.tensors[plan.tensors[i].tensor];
    plan.tensors[i].key = role_key(stored.name, written_role(stored));
    if (!is_utf8(plan.tensors[i].key)) no_text.add(stored.name);
    std::vector<std::size_t>& of_parameter = states[stored.name];
    if (of_parameter.empty()) names.push_back(stored.name);
    of_parameter.push_back(i);
  }
  if (no_text.any()) return Error{Code::invalid, text("names that are not UTF-8: ", no_text.sentence())};

  const std::vector<std::string> folders = atomic_folder_names(names);
  std::string index = "{\n  \"format\": \"pawl atomic\",\n  \"version\": 1,\n  \"step\": ";
  append_json(index, step_of(view));
  index += ",\n  \"source\": ";
  append_json(index, view.format);
  index += ",\n  \"parameters\": [";
  for (std::size_t p = 0; p < names.size(); ++p) {
    index += p == 0 ? "\n    {\"name\": " : ",\n    {\"name\": ";
    append_json(index, names[p]);
    index += ", \"folder\": ";
    append_json(index, folders[p]);
    index += ", \"states\": {";
    std::vector<std::string> roles;
    for (const std::size_t i : states[names[p]]) roles.push_back(written_role(view.tensors[plan.tensors[i].tensor]));
    const std::vector<std::string> files = atomic_folder_names(roles);
    for (std::size_t s = 0; s < roles.size(); ++s) {
      const std::string file = text(files[s], ".safetensors");
      append_json(index += s == 0 ? "" : ", ", roles[s]);
      append_json(index += ": ", file);
      PAWL_TRY(plan_file(view, plan, plan.tensors[states[names[p]][s]], text(folders[p], '/', file)));
    }
    index += "}}";
  }
  index += "\n  ],\n  \"tied\": {";
  const std::unordered_set<std::string_view> written(names.begin(), names.end());
  bool is_first = true;
  for (const auto& [alias, name] : view.aliases) {
    if (!written.contains(name) || written.contains(alias) || !is_utf8(alias)) continue;
    append_json(index += std::exchange(is_first, false) ? "" : ", ", alias);
    append_json(index += ": ", name);
  }
  index += "}\n}\n";
  PlannedFile& file = plan.files.emplace_back();
  file.name = kAtomicIndexName;
  file.size_bytes = index.size();
  file.texts.push_back({0, std::move(index)});
  plan.all_bytes += file.size_bytes;
  return plan;
}

}  // namespace pawl::checkpoint
