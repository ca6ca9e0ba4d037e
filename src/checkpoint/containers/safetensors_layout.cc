#include "checkpoint/containers/safetensors_layout.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "base/first_few.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/containers/json_text.h"

namespace pawl::checkpoint {
namespace {

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
      complaints.add(tensor.name, "has a name that is not UTF-8");
    else if (tensor.name == "__metadata__")
      complaints.add(tensor.name, "has the name that the format keeps for itself");
    else if (!names.insert(tensor.name).second)
      complaints.add(tensor.name, "would be there twice");
    else if (!bytes)
      complaints.add(tensor.name, "is not a whole number of bytes");
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

}  // namespace

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
  if (json.size() > kSafetensorsHeaderBytesMax)
    return Error{Code::full, text("safetensors: a header of ", json.size(), " bytes for ", tensors.size(),
                                  " tensors; readers take up to ", kSafetensorsHeaderBytesMax,
                                  ": convert fewer roles, or to several files")};
  const std::uint64_t length = json.size();
  layout.header.resize(8);
  std::memcpy(layout.header.data(), &length, 8);
  layout.header += json;
  for (std::uint64_t& offset : layout.offset_bytes) offset += layout.header.size();
  layout.file_bytes = layout.header.size() + at;
  return layout;
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

}  // namespace pawl::checkpoint
