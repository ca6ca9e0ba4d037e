#include "formats/hyperparameters.h"

#include <charconv>
#include <cmath>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "formats/safetensors_writer.h"

namespace pawl {
namespace {

constexpr std::size_t kItemsMax = 8;    // of one that is a list: betas are two
constexpr std::size_t kTextMax = 64;    // bytes of a name, or of one that is a text
constexpr std::size_t kValuesMax = 64;  // of a group
constexpr std::string_view kParameters = "params";

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
  switch (value < pickle.count() ? pickle.kind(value) : PickleKind::object) {
    case PickleKind::none:
      out += "null";
      return true;
    case PickleKind::boolean:
      out += pickle.boolean(value) ? "true" : "false";
      return true;
    case PickleKind::integer:
      out += text(pickle.integer(value).value_or(0));
      return true;
    case PickleKind::real:
      return append_number(out, pickle.real(value));
    case PickleKind::string:
      if (pickle.text(value).size() > kTextMax || !is_utf8(pickle.text(value))) return false;
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

std::string json_of(const std::vector<std::string>& names, const HyperValues& values) {
  std::string out = "{";
  append_json(out, kParameters);
  for (std::size_t i = 0; i < names.size(); ++i) append_json(out += i == 0 ? ":[" : ",", names[i]);
  out += ']';
  for (const auto& [key, json] : values) {
    append_json(out += ',', key);
    out += text(':', json);
  }
  return out + '}';
}

}  // namespace

void add_hyperparameter(HyperValues& values, std::string_view key, const Pickle& pickle, Pickle::Value value) {
  if (key.empty() || key == kParameters || key == "param_names" || key.size() > kTextMax || !is_utf8(key)) return;
  std::string json;
  if (values.size() < kValuesMax && append_value(json, pickle, value)) values[std::string(key)] = std::move(json);
}

std::string values_of_groups(const std::vector<HyperGroup>& groups, const CheckpointView& view) {
  std::unordered_set<std::string_view> names;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role != "weight" && tensor.role != "buffer" && is_utf8(tensor.name)) names.insert(tensor.name);
  std::unordered_map<std::string_view, const HyperValues*> told;
  std::string out;
  for (const HyperGroup& group : groups) {
    if (group.values.empty()) continue;
    std::vector<std::string> mine;
    for (const std::string& parameter : group.parameters) {
      const auto name = names.find(parameter);
      if (name == names.end()) continue;
      const auto [before, is_new] = told.emplace(*name, &group.values);
      if (!is_new && *before->second != group.values) return {};  // which of them holds is not known
      if (is_new) mine.push_back(parameter);                      // else of another rank, and the same
    }
    if (!mine.empty()) out += (out.empty() ? "{\"param_groups\":[" : ",") + json_of(mine, group.values);
  }
  return out.empty() ? out : out + "]}";
}

}  // namespace pawl
