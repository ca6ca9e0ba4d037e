#include "formats/dcp_groups.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "formats/dcp_optimizers.h"
#include "formats/pickle.h"
#include "formats/safetensors_writer.h"

namespace pawl {
namespace {

using Path = std::vector<std::string>;

constexpr std::string_view kGroups = "param_groups";
constexpr std::string_view kParameters = "params";
constexpr std::size_t kItemsMax = 64;  // of a hyperparameter: betas are two

// A group's keys and values, as JSON; its parameters apart.
struct Group {
  std::vector<std::string> parameters;
  std::map<std::string, std::string> values;
};

bool append_number(std::string& out, double value) {
  if (!std::isfinite(value)) return false;
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  const std::string_view number(digits, static_cast<std::size_t>(end.ptr - digits));
  out += number;
  if (number.find_first_of(".e") == std::string_view::npos) out += ".0";
  return true;
}

// Whether JSON has a word for it.
bool append_value(std::string& out, const Pickle& pickle, Pickle::Value value, bool is_inner = false) {
  switch (pickle.kind(value)) {
    case PickleKind::none:
      out += "null";
      return true;
    case PickleKind::boolean:
      out += pickle.boolean(value) ? "true" : "false";
      return true;
    case PickleKind::integer: {
      const std::optional<std::int64_t> number = pickle.integer(value);
      if (number) out += std::to_string(*number);
      return number.has_value();
    }
    case PickleKind::real:
      return append_number(out, pickle.real(value));
    case PickleKind::string:
      if (!is_utf8(pickle.text(value))) return false;
      append_json(out, pickle.text(value));
      return true;
    case PickleKind::list:
    case PickleKind::tuple: {
      const std::span<const Pickle::Value> items = pickle.items(value);
      if (is_inner || items.size() > kItemsMax) return false;
      out += '[';
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i != 0) out += ',';
        if (!append_value(out, pickle, items[i], true)) return false;
      }
      out += ']';
      return true;
    }
    default:
      return false;
  }
}

void add_value(Group& group, const std::string& key, const Pickle& pickle, Pickle::Value value) {
  if (key == kParameters) {
    for (const Pickle::Value item : pickle.items(value)) group.parameters.emplace_back(pickle.text(item));
    return;
  }
  std::string json;
  if (key != "param_names" && is_utf8(key) && append_value(json, pickle, value)) group.values[key] = std::move(json);
}

// param_groups, <i>, <key>: since torch 2.4 each an object; before, the list of groups is one.
void add_object(const DcpCheckpoint& checkpoint, const DcpObject& object, Files& files,
                std::map<std::pair<Path, std::uint64_t>, Group>& groups) {
  const auto at = std::ranges::find(object.path, kGroups);
  const auto below = object.path.end() - at;
  std::uint64_t number = 0;
  if (below != 1 && (below != 3 || !parse_number(*(at + 1), number))) return;
  const Path root(object.path.begin(), at);
  const std::optional<Pickle> pickle = read_object(checkpoint, object.place, files);
  if (!pickle) return;
  if (below == 3) {
    add_value(groups[{root, number}], object.path.back(), *pickle, pickle->root());
    return;
  }
  for (const Pickle::Value each : pickle->items(pickle->root())) {
    Group& group = groups[{root, number++}];
    const std::span<const Pickle::Value> items = pickle->items(each);
    if (!pickle->is(each, PickleKind::dict)) continue;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      add_value(group, std::string(pickle->text(items[i])), *pickle, items[i + 1]);
  }
}

}  // namespace

std::string group_values(const DcpCheckpoint& checkpoint, const CheckpointView& view, Files& files) {
  std::unordered_set<std::string_view> names;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role != "weight" && tensor.role != "buffer") names.insert(tensor.name);
  if (names.empty()) return {};
  std::map<std::pair<Path, std::uint64_t>, Group> groups;
  for (const DcpObject& object : checkpoint.objects) add_object(checkpoint, object, files, groups);
  std::string out;
  std::unordered_set<std::string> told;
  for (auto& [number, group] : groups) {
    std::erase_if(group.parameters, [&](const std::string& name) { return !names.contains(name) || !is_utf8(name); });
    if (group.parameters.empty() || group.values.empty()) continue;
    out += out.empty() ? "{\"param_groups\":[{" : ",{";
    append_json(out, kParameters);
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      if (!told.insert(group.parameters[i]).second) return {};  // in two groups: whose values hold is not known
      append_json(out += i == 0 ? ":[" : ",", group.parameters[i]);
    }
    out += ']';
    for (const auto& [key, json] : group.values) {
      append_json(out += ',', key);
      out += text(':', json);
    }
    out += '}';
  }
  return out.empty() ? out : out + "]}";
}

}  // namespace pawl
