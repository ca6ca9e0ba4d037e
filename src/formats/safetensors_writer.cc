#include "formats/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "base/first_few.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "formats/state_names.h"

namespace pawl {
namespace {

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // the library's limit

struct TypeName {
  ElementType type;
  std::string_view name;
};
constexpr std::array kTypeNames = {
    TypeName{ElementType::float32, "F32"},
    TypeName{ElementType::float64, "F64"},
    TypeName{ElementType::float16, "F16"},
    TypeName{ElementType::bfloat16, "BF16"},
    TypeName{ElementType::int8, "I8"},
    TypeName{ElementType::int16, "I16"},
    TypeName{ElementType::int32, "I32"},
    TypeName{ElementType::int64, "I64"},
    TypeName{ElementType::uint8, "U8"},
    TypeName{ElementType::uint16, "U16"},
    TypeName{ElementType::uint32, "U32"},
    TypeName{ElementType::uint64, "U64"},
    TypeName{ElementType::boolean, "BOOL"},
    TypeName{ElementType::complex64, "C64"},
    TypeName{ElementType::float8_e4m3fn, "F8_E4M3"},
    TypeName{ElementType::float8_e5m2, "F8_E5M2"},
    TypeName{ElementType::float8_e4m3fnuz, "F8_E4M3FNUZ"},
    TypeName{ElementType::float8_e5m2fnuz, "F8_E5M2FNUZ"},
    TypeName{ElementType::float8_e8m0fnu, "F8_E8M0"},
    TypeName{ElementType::float4_e2m1, "F4"},
    TypeName{ElementType::float6_e2m3, "F6_E2M3"},
    TypeName{ElementType::float6_e3m2, "F6_E3M2"},
};

// How many bytes of valid UTF-8 begin at `at`: one character; 0: none does.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  const unsigned char second = byte(at + 1);  // overlong forms, surrogates, beyond U+10FFFF
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
  if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
  return length;
}

// What a tensor is written as.
struct Form {
  std::string_view type;
  Shape shape;
};

Form form_of(const SafetensorsTensor& tensor, std::uint64_t bytes) {
  if (const auto name = safetensors_name_of(tensor.type)) return {*name, tensor.shape};
  if (tensor.type == ElementType::float4_e2m1fn_x2 && !tensor.shape.empty()) {
    Form form{"F4", tensor.shape};
    form.shape.back() *= 2;
    return form;
  }
  return {"U8", {bytes}};
}

// Up to five sentences about tensors, as one error.
class Complaints {
 public:
  void add(std::string_view name, std::string_view why) { sentences_.add(text("tensor ", name, " ", why)); }
  [[nodiscard]] Status status() const {
    if (!sentences_.any()) return {};
    return Error{Code::invalid, text("safetensors: ", sentences_.sentence())};
  }

 private:
  FirstFew sentences_;
};

Result<std::vector<std::uint64_t>> sizes_of(std::span<const SafetensorsTensor> tensors) {
  std::vector<std::uint64_t> sizes;
  std::unordered_set<std::string_view> names;
  Complaints complaints;
  std::uint64_t total = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const Result<std::uint64_t> count = element_count(tensor.shape);
    const std::optional<std::uint64_t> bytes = count ? size_bytes(tensor.type, *count) : std::nullopt;
    sizes.push_back(bytes.value_or(0));
    if (!is_utf8(tensor.name))
      complaints.add(tensor.name, "has a name that is no UTF-8");
    else if (tensor.name == "__metadata__")
      complaints.add(tensor.name, "has the name that the format keeps for itself");
    else if (!names.insert(tensor.name).second)
      complaints.add(tensor.name, "would be there twice");
    else if (!bytes)
      complaints.add(tensor.name, "is no whole number of bytes");
    else if (__builtin_add_overflow(total, sizes.back(), &total) || total >> 62 != 0)
      complaints.add(tensor.name, "is too large");
  }
  PAWL_TRY(complaints.status());
  return sizes;
}

void append_entry(std::string& out, const SafetensorsTensor& tensor, std::uint64_t begin, std::uint64_t bytes) {
  const Form form = form_of(tensor, bytes);
  append_json(out, tensor.name);
  out += text(":{\"dtype\":\"", form.type, "\",\"shape\":", text_of(form.shape), ",\"data_offsets\":[", begin, ",",
              begin + bytes, "]}");
}

void append_metadata(std::string& out, const SafetensorsMetadata& metadata) {
  out += "\"__metadata__\":{";
  for (std::size_t i = 0; i < metadata.size(); ++i) {
    if (i != 0) out += ',';
    append_json(out, metadata[i].first);
    out += ':';
    append_json(out, metadata[i].second);
  }
  out += '}';
}

// Those of whole units first; then wider types first, so that every tensor begins at a multiple of its element's size;
// otherwise as given.
std::vector<std::uint32_t> order_of(std::span<const SafetensorsTensor> tensors, const SafetensorsLayout& layout,
                                    std::uint64_t unit_bytes) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::uint32_t i) {
    return std::pair(unit_bytes > kHeaderUnit && layout.size_bytes[i] % unit_bytes == 0, size_bits(tensors[i].type));
  });
  return order;
}

// A file of the plan's tensors [first, end), which get their places in it.
Result<PlannedFile> plan_file(const CheckpointView& view, OutputPlan& plan, std::size_t first, std::size_t end,
                              std::string name) {
  std::vector<SafetensorsTensor> entries;
  for (std::size_t i = first; i < end; ++i)
    entries.push_back({plan.tensors[i].key, plan.tensors[i].type, view.tensors[plan.tensors[i].tensor].shape});
  PAWL_ASSIGN(SafetensorsLayout layout, lay_out_safetensors(entries, {{"format", "pt"}}));
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
  Complaints complaints;
  for (const PlannedTensor& tensor : plan.tensors)
    if (!keys.insert(tensor.key).second) complaints.add(tensor.key, "would be there twice");
  return complaints.status();
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

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0, length = 0; at < text.size(); at += length)
    if ((length = utf8_length(text, at)) == 0) return false;
  return true;
}

void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    if (byte >= 0x20) {
      out += c;
      continue;
    }
    out += "\\u00";
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  out += '"';
}

std::optional<std::string_view> safetensors_name_of(ElementType type) {
  const auto* const found = std::ranges::find(kTypeNames, type, &TypeName::type);
  if (found == kTypeNames.end()) return std::nullopt;
  return found->name;
}

Result<SafetensorsLayout> lay_out_safetensors(std::span<const SafetensorsTensor> tensors, SafetensorsMetadata metadata,
                                              std::uint64_t unit_bytes) {
  SafetensorsLayout layout;
  PAWL_ASSIGN(layout.size_bytes, sizes_of(tensors));
  layout.offset_bytes.resize(tensors.size());
  for (const SafetensorsTensor& tensor : tensors)
    if (!safetensors_name_of(tensor.type))
      metadata.emplace_back(text(kTrueTypeKey, tensor.name), text(name_of(tensor.type), " ", text_of(tensor.shape)));

  std::string json = "{";
  if (!metadata.empty()) append_metadata(json, metadata);
  std::uint64_t at = 0;
  for (const std::uint32_t i : order_of(tensors, layout, unit_bytes)) {
    if (json.size() > 1) json += ',';
    append_entry(json, tensors[i], at, layout.size_bytes[i]);
    layout.offset_bytes[i] = at;
    at += layout.size_bytes[i];
  }
  json += '}';
  json.resize((8 + json.size() + unit_bytes - 1) / unit_bytes * unit_bytes - 8, ' ');
  if (json.size() > kHeaderBytesMax)
    return Error{Code::full,
                 text("safetensors: a header of ", json.size(), " bytes for ", tensors.size(),
                      " tensors; readers take up to ", kHeaderBytesMax, ": convert fewer roles, or to several files")};
  const std::uint64_t length = json.size();
  layout.header.resize(8);
  std::memcpy(layout.header.data(), &length, 8);
  layout.header += json;
  for (std::uint64_t& offset : layout.offset_bytes) offset += layout.header.size();
  layout.file_bytes = layout.header.size() + at;
  return layout;
}

std::string role_key(std::string_view name, std::string_view role) {
  return text(name, "/", role);
}

void take_roles_from_keys(CheckpointView& view) {
  static constexpr std::array<std::string_view, 6> kRoles = {"weight",     "master", "exp_avg",
                                                             "exp_avg_sq", "step",   "buffer"};
  if (view.format != "safetensors" || view.tensors.empty()) return;
  const auto role_of = [](const StoredTensor& tensor) -> std::string_view {
    const std::size_t slash = tensor.name.rfind('/');
    if (slash == std::string::npos || tensor.role != "weight") return {};
    const std::string_view role = std::string_view(tensor.name).substr(slash + 1);
    return std::ranges::find(kRoles, role) != kRoles.end() || is_optimizer_word(role) ? role : std::string_view();
  };
  for (const StoredTensor& tensor : view.tensors)
    if (role_of(tensor).empty()) return;
  for (StoredTensor& tensor : view.tensors) {
    tensor.role = std::string(role_of(tensor));
    tensor.name.resize(tensor.name.size() - tensor.role.size() - 1);
  }
}

bool take_true_type(StoredTensor& tensor, std::string_view value) {
  const std::size_t blank = value.find(' ');
  if (blank == std::string_view::npos || tensor.type != ElementType::uint8 || tensor.shape.size() != 1) return false;
  const auto type = element_type_named(value.substr(0, blank));
  const Result<Shape> shape = parse_shape(value.substr(blank + 1));
  if (!type || !shape || shape->size() > kDimensionsMax) return false;
  const Result<std::uint64_t> count = element_count(*shape);
  if (!count || size_bytes(*type, *count) != tensor.shape[0]) return false;
  tensor.type = *type;
  tensor.shape = *shape;
  if (!tensor.pieces.empty())
    tensor.pieces = {whole_piece(*shape, tensor.pieces[0].file, tensor.pieces[0].offset_bytes)};
  return true;
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

std::vector<std::uint32_t> split_into_files(std::span<const std::uint64_t> size_bytes, std::uint64_t file_bytes_max) {
  std::vector<std::uint32_t> file_of;
  std::uint32_t file = 0;
  std::uint64_t filled = 0;
  for (const std::uint64_t bytes : size_bytes) {
    if (filled != 0 && (bytes > file_bytes_max || filled > file_bytes_max - bytes)) {
      ++file;
      filled = 0;
    }
    file_of.push_back(file);
    filled += bytes;
  }
  return file_of;
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
    if (!is_utf8(name)) return Error{Code::invalid, text("index: tensor ", name, " has a name that is no UTF-8")};
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
  PAWL_ASSIGN(PlannedFile file, plan_file(view, plan, 0, plan.tensors.size(), options.file_name));
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

}  // namespace pawl
