#include "checkpoint/library/view_json.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "checkpoint/names/families.h"

namespace pawl::checkpoint {
namespace {

// Length of the character at `at`, if it is UTF-8: 0 where it isn't.
std::size_t character_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || at + length > text.size()) return 0;
  for (std::size_t i = at + 1; i < at + length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const unsigned second = byte(at + 1);
  const bool is_overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_beyond = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return is_overlong || is_beyond ? 0 : length;
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_length(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    if (length == 0) {
      out += "\\ufffd";
    } else if (byte < 0x20) {
      out += "\\u00";
      out += "0123456789abcdef"[byte >> 4];
      out += "0123456789abcdef"[byte & 15];
    } else {
      if (byte == '"' || byte == '\\') out += '\\';
      out.append(text, at, length);
    }
    at += std::max<std::size_t>(length, 1);
  }
  out += '"';
}

template <class Items, class Write>
void append_list(std::string& out, const Items& items, Write write) {
  out += '[';
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) out += ',';
    is_first = false;
    write(item);
  }
  out += ']';
}

void append_strings(std::string& out, const std::vector<std::string>& strings) {
  append_list(out, strings, [&](const std::string& each) { append_string(out, each); });
}

void append_pairs(std::string& out, const std::vector<std::pair<std::string, std::string>>& pairs) {
  append_list(out, pairs, [&](const auto& pair) {
    out += '[';
    append_string(out, pair.first);
    out += ',';
    append_string(out, pair.second);
    out += ']';
  });
}

void append_tensor(std::string& out, const StoredTensor& tensor) {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : tensor.shape) elements *= extent;
  std::uint32_t copies = 1;
  for (const StoredPiece& piece : tensor.pieces) copies = std::max(copies, piece.copy + 1);
  out += "{\"name\":";
  append_string(out, tensor.name);
  out += ",\"role\":";
  append_string(out, tensor.role);
  out += text(",\"dtype\":\"", name_of(tensor.type), "\",\"shape\":", text_of(tensor.shape),
              ",\"bytes\":", size_bytes(tensor.type, elements).value_or(0), ",\"pieces\":", tensor.pieces.size(),
              ",\"versions\":", tensor.versions, ",\"copies\":", copies, '}');
}

void append_names(std::string& out, const CheckpointView& view) {
  const std::optional<Family> megatron = family_of_megatron(view);
  const std::optional<Family> family = megatron ? megatron : family_of_huggingface(view);
  out += text(",\"family\":", family ? text('"', name_of(*family), '"') : "null");
  out += text(",\"names\":", megatron ? "\"megatron\"" : family ? "\"huggingface\"" : "null");
}

}  // namespace

std::string json_of(const CheckpointView& view) {
  std::string out = "{\"format\":";
  append_string(out, view.format);
  out += ",\"facts\":";
  append_pairs(out, view.facts);
  out += ",\"tensors\":";
  append_list(out, view.tensors, [&](const StoredTensor& tensor) { append_tensor(out, tensor); });
  out += ",\"aliases\":";
  append_pairs(out, view.aliases);
  for (const auto& [key, strings] :
       {std::pair("objects", &view.objects), std::pair("notes", &view.notes), std::pair("unnamed", &view.unnamed),
        std::pair("unsupported", &view.unsupported), std::pair("problems", &view.problems)}) {
    out += text(",\"", key, "\":");
    append_strings(out, *strings);
  }
  append_names(out, view);
  out += text(",\"values\":", view.values.empty() ? "null" : view.values, '}');
  return out;
}

}  // namespace pawl::checkpoint
