#include "cli/checkpoint/text.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/text.h"
#include "cli/checkpoint/progress.h"
#include "cli/output.h"

namespace pawl::checkpoint {
namespace {

constexpr std::array<std::string_view, 6> kRoleOrder = {"weight", "master", "exp_avg", "exp_avg_sq", "step", "buffer"};

std::size_t rank_of(std::string_view role) {
  return static_cast<std::size_t>(std::ranges::find(kRoleOrder, role) - kRoleOrder.begin());
}

std::string plural(std::uint64_t count, std::string_view noun) {
  return text(count, " ", noun, count == 1 ? "" : "s");
}

std::set<std::string> paths_of(const CheckpointView& view) {
  std::set<std::string> paths;
  for (const StoredFile& file : view.files)
    if (file.codec != StoredFile::Codec::content) paths.insert(file.path);
  return paths;
}

std::string pieces_text(const StoredTensor& tensor) {
  std::string out = text(tensor.pieces.size());
  if (tensor.versions > 1) out += text(", mean of ", tensor.versions);
  if (const std::uint32_t copies = copies_of(tensor); copies > 1) out += text(", ", copies, " copies");
  return out;
}

// The first `shown_max` of a list, and how many more there are.
template <class Item, class Write>
void append_first(std::string& out, const std::vector<Item>& items, std::optional<std::size_t> shown_max, Write write,
                  std::string_view noun) {
  const std::size_t shown = std::min(items.size(), shown_max.value_or(items.size()));
  for (std::size_t i = 0; i < shown; ++i) out += write(items[i]);
  if (shown < items.size()) out += text("... and ", plural(items.size() - shown, noun), " more (--all)\n");
}

std::string head_text(const CheckpointView& view, const std::string& path) {
  std::vector<std::vector<std::string>> rows = {{"format", printable(view.format)}, {"path", printable(path)}};
  for (const auto& [name, value] : view.facts) rows.push_back({printable(name), printable(value)});
  std::uint64_t elements = 0;
  for (const RoleTotal& total : totals_of(view))
    if (total.role == "weight") elements = total.elements;
  rows.push_back({"files", text(paths_of(view).size())});
  rows.push_back({"weights", plural(elements, "element")});
  return table(rows);
}

std::string totals_text(const CheckpointView& view) {
  std::vector<std::vector<std::string>> rows = {{"ROLE", "TENSORS", "ELEMENTS", "BYTES"}};
  for (const RoleTotal& total : totals_of(view))
    rows.push_back({printable(total.role), text(total.tensors), text(total.elements), bytes_text(total.bytes)});
  return table(rows);
}

std::string tensors_text(const CheckpointView& view, std::optional<std::size_t> shown_max) {
  std::vector<std::vector<std::string>> rows = {{"NAME", "ROLE", "TYPE", "SHAPE", "PIECES", "BYTES"}};
  const std::size_t shown = std::min(view.tensors.size(), shown_max.value_or(view.tensors.size()));
  for (std::size_t i = 0; i < shown; ++i) {
    const StoredTensor& tensor = view.tensors[i];
    rows.push_back({printable(tensor.name), printable(tensor.role), std::string(name_of(tensor.type)),
                    text_of(tensor.shape), pieces_text(tensor), bytes_text(bytes_of(tensor))});
  }
  std::string out = table(rows);
  if (shown < view.tensors.size())
    out += text("... and ", plural(view.tensors.size() - shown, "tensor"), " more (--all)\n");
  return out;
}

json sentences(const std::vector<std::string>& list) {
  json out = json::array();
  for (const std::string& sentence : list) out.push_back(sentence);
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  const auto escape = [&](unsigned char byte) {
    out += "\\x";
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  };
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first >= 0x20 && first < 0x7f) {
      out += text[i++];
      continue;
    }
    const std::size_t length = first >= 0xc3 && first < 0xf5 ? (first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2) : 0;
    bool is_character = length != 0 && i + length <= text.size();  // U+0080..U+009f (c2 80..9f) are control characters
    for (std::size_t k = 1; is_character && k < length; ++k)
      is_character = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
    if (!is_character) {
      escape(first);
      ++i;
      continue;
    }
    out.append(text.substr(i, length));
    i += length;
  }
  return out;
}

std::string json_text(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::uint64_t count_of(const StoredTensor& tensor) {
  const Result<std::uint64_t> count = element_count(tensor.shape);
  return count ? *count : 0;
}

std::uint64_t bytes_of(const StoredTensor& tensor) {
  return size_bytes(tensor.type, count_of(tensor)).value_or(0);
}

std::uint32_t copies_of(const StoredTensor& tensor) {
  std::uint32_t copies = tensor.pieces.empty() ? 0 : 1;
  for (const StoredPiece& piece : tensor.pieces) copies = std::max(copies, piece.copy + 1);
  return copies;
}

std::vector<RoleTotal> totals_of(const CheckpointView& view) {
  std::vector<RoleTotal> totals;
  std::map<std::string_view, std::size_t> place;
  for (const StoredTensor& tensor : view.tensors) {
    const auto [at, is_new] = place.try_emplace(tensor.role, totals.size());
    if (is_new) totals.push_back({tensor.role});
    RoleTotal& total = totals[at->second];
    ++total.tensors;
    total.elements += count_of(tensor);
    total.bytes += bytes_of(tensor);
  }
  std::ranges::stable_sort(totals, {}, [](const RoleTotal& total) { return rank_of(total.role); });
  return totals;
}

std::string inspect_text(const CheckpointView& view, const std::string& path, std::optional<std::size_t> shown_max) {
  std::string out = head_text(view, path);
  if (!view.tensors.empty()) out += "\n" + totals_text(view) + "\n" + tensors_text(view, shown_max);
  if (!view.aliases.empty()) out += "\n";
  append_first(
      out, view.aliases, shown_max,
      [](const auto& alias) { return text("tied: ", printable(alias.first), " = ", printable(alias.second), "\n"); },
      "tied name");
  if (!view.objects.empty()) out += "\n";
  append_first(
      out, view.objects, shown_max, [](const auto& name) { return text("object: ", printable(name), "\n"); }, "object");
  if (!view.notes.empty()) out += "\n";
  append_first(
      out, view.notes, shown_max, [](const auto& note) { return text("note: ", printable(note), "\n"); }, "note");
  for (const std::string& what : view.unnamed) out += text("note: ", printable(what), "\n");
  append_first(
      out, view.unsupported, shown_max, [](const auto& what) { return text("NOT READ: ", printable(what), "\n"); },
      "tensor that is not read");
  if (!view.problems.empty()) out += "\n";
  for (const std::string& problem : view.problems) out += text("PROBLEM: ", printable(problem), "\n");
  return out;
}

json inspect_json(const CheckpointView& view, const std::string& path) {
  json document = {
      {"path", path},           {"format", view.format},    {"facts", json::object()},  {"roles", json::object()},
      {"files", json::array()}, {"tensors", json::array()}, {"aliases", json::object()}};
  for (const auto& [name, value] : view.facts) document["facts"][name] = value;
  for (const std::string& file : paths_of(view)) document["files"].push_back(file);
  for (const RoleTotal& total : totals_of(view))
    document["roles"][total.role] = {{"tensors", total.tensors}, {"elements", total.elements}, {"bytes", total.bytes}};
  for (const StoredTensor& tensor : view.tensors)
    document["tensors"].push_back({{"name", tensor.name},
                                   {"role", tensor.role},
                                   {"dtype", name_of(tensor.type)},
                                   {"shape", tensor.shape},
                                   {"pieces", tensor.pieces.size()},
                                   {"copies", copies_of(tensor)},
                                   {"versions", tensor.versions},
                                   {"bytes", bytes_of(tensor)}});
  for (const auto& [alias, name] : view.aliases) document["aliases"][alias] = name;
  document["objects"] = sentences(view.objects);
  document["notes"] = sentences(view.notes);
  document["unnamed"] = sentences(view.unnamed);
  document["unsupported"] = sentences(view.unsupported);
  document["problems"] = sentences(view.problems);
  return document;
}

std::optional<std::uint64_t> parse_bytes(std::string_view words) {
  static constexpr std::pair<std::string_view, std::uint64_t> kUnits[] = {{"", 1},
                                                                          {"B", 1},
                                                                          {"K", 1 << 10},
                                                                          {"M", 1 << 20},
                                                                          {"G", 1 << 30},
                                                                          {"T", std::uint64_t{1} << 40},
                                                                          {"KiB", 1 << 10},
                                                                          {"MiB", 1 << 20},
                                                                          {"GiB", 1 << 30},
                                                                          {"TiB", std::uint64_t{1} << 40},
                                                                          {"kB", 1000},
                                                                          {"KB", 1000},
                                                                          {"MB", 1000'000},
                                                                          {"GB", 1000'000'000},
                                                                          {"TB", 1000'000'000'000}};
  const std::size_t digits = std::min(words.find_first_not_of("0123456789"), words.size());
  std::uint64_t number = 0, bytes = 0;
  if (!parse_number(words.substr(0, digits), number)) return std::nullopt;
  std::string_view unit = words.substr(digits);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : kUnits)
    if (unit == name && !__builtin_mul_overflow(number, factor, &bytes)) return bytes;
  return std::nullopt;
}

}  // namespace pawl::checkpoint
