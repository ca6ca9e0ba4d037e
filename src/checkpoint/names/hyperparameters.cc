#include "checkpoint/names/hyperparameters.h"

#include <charconv>
#include <cmath>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/containers/json_text.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kItemsMax = 8;         // of one that is a list: betas are two
constexpr std::size_t kTextMax = 64;         // bytes of a name, or of one that is a text
constexpr std::size_t kValuesMax = 64;       // of a group
constexpr std::size_t kItemsPerValue = 4;    // groups share their keys, and a file's few values may be all that it has
constexpr std::size_t kBytesMax = 16 << 20;  // of what all groups of a list say: one long text may be said very often
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
bool append_value(std::string& out, const Pickle& pickle, Pickle::Value value, const TensorNumber& number,
                  bool is_inner = false) {
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
        if (!append_value(out, pickle, items[i], number, true)) return false;
      }
      out += ']';
      return true;
    }
    default: {
      const std::optional<double> known = number ? number(value) : std::nullopt;
      return known && append_number(out, *known);
    }
  }
}

// Which group it is, where it is: its parameters, a label, DeepSpeed's marks. Another training's have their own.
bool is_label(std::string_view key) {
  return key == kParameters || key == "param_names" || key == "name" || key == "moe" || key.starts_with('_');
}

// `json`: nullptr where JSON has no word for it.
void add_word(HyperGroup& group, std::string_view key, const std::string* json) {
  if (key.empty() || is_label(key) || key.size() > kTextMax || !is_utf8(key)) return;
  const std::string name(key);
  const bool has_room = group.values.size() + group.left_out.size() < kValuesMax || group.values.contains(name);
  if (has_room && json != nullptr) {
    group.values[name] = *json;
    return;
  }
  group.values.erase(name);  // the last one of a name is the dict's
  if (group.left_out.size() < kValuesMax) group.left_out.push_back(name);
}

std::size_t size_of(const HyperGroup& group) {
  std::size_t bytes = sizeof group;
  for (const auto& [key, json] : group.values) bytes += key.size() + json.size();
  for (const std::string& key : group.left_out) bytes += key.size();
  return bytes;
}

std::string json_of(const std::vector<std::string>& names, const HyperValues& values) {
  std::string out = "{";
  append_json(out, kParameters);
  out += ":[";
  for (std::size_t i = 0; i < names.size(); ++i) append_json(out += i == 0 ? "" : ",", names[i]);
  out += ']';
  for (const auto& [key, json] : values) {
    append_json(out += ',', key);
    out += text(':', json);
  }
  return out + '}';
}

// Empty where there is none, or one parameter has two values; then `claimed` is its name. Groups keep their places,
// also those of which no parameter is known: who has no names (DeepSpeed) takes groups by their order.
std::string values_of_groups(const std::vector<HyperGroup>& groups, const CheckpointView& view, std::string& claimed) {
  std::unordered_set<std::string_view> with_state, weights;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role != "buffer" && is_utf8(tensor.name))
      (tensor.role == "weight" ? weights : with_state).insert(tensor.name);
  std::unordered_map<std::string_view, const HyperValues*> told;
  std::string out;
  bool any = false;
  for (const HyperGroup& group : groups) {
    std::vector<std::string> mine;
    bool is_known = false;
    const std::unordered_set<std::string_view>& names = group.is_stateless ? weights : with_state;
    for (const std::string& parameter : group.parameters) {
      const auto name = names.find(parameter);
      if (name == names.end()) continue;
      is_known = true;
      const auto [before, is_new] = told.emplace(*name, &group.values);
      if (!is_new && *before->second != group.values) {  // which of them holds is not known
        claimed = parameter;
        return {};
      }
      if (is_new) mine.push_back(parameter);  // else of another rank, and the same
    }
    any = any || (!mine.empty() && !group.values.empty());
    if (!mine.empty() || !is_known) out += (out.empty() ? "{\"param_groups\":[" : ",") + json_of(mine, group.values);
  }
  return any ? out + "]}" : std::string();
}

}  // namespace

void add_hyperparameter(HyperGroup& group, std::string_view key, const Pickle& pickle, Pickle::Value value,
                        const TensorNumber& number) {
  std::string json;
  const bool has_word = append_value(json, pickle, value, number);
  add_word(group, key, has_word ? &json : nullptr);
}

void add_hyperparameter(HyperGroup& group, std::string_view key, double value) {
  std::string json;
  const bool has_word = append_number(json, value);
  add_word(group, key, has_word ? &json : nullptr);
}

std::vector<HyperGroup> joined_groups(std::vector<HyperGroup> of_parameters) {
  std::vector<HyperGroup> out;
  for (HyperGroup& each : of_parameters) {
    if (out.empty() || out.back().values != each.values || out.back().left_out != each.left_out) {
      out.push_back(std::move(each));
      continue;
    }
    for (std::string& parameter : each.parameters) out.back().parameters.push_back(std::move(parameter));
  }
  return out;
}

std::vector<HyperGroup> read_hyper_groups(const Pickle& pickle, Pickle::Value list, const TensorNumber& number) {
  std::vector<HyperGroup> groups;
  std::size_t left = kItemsPerValue * pickle.count();
  std::size_t bytes = 0;
  for (const Pickle::Value each : pickle.items(list)) {
    const std::span<const Pickle::Value> items = pickle.items(each);
    if (items.size() + 1 > left) return {};
    left -= items.size() + 1;
    HyperGroup& group = groups.emplace_back();
    if (!pickle.is(each, PickleKind::dict) || items.size() > Pickle::kRecordItemsMax) continue;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (pickle.is(items[i], PickleKind::string))
        add_hyperparameter(group, pickle.text(items[i]), pickle, items[i + 1], number);
    bytes += size_of(group);
    if (bytes > kBytesMax) return {};
  }
  return groups;
}

std::optional<std::string> oversized_group(const Pickle& pickle, Pickle::Value list) {
  const std::span<const Pickle::Value> groups = pickle.items(list);
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (const std::size_t items = pickle.items(groups[g]).size(); items > Pickle::kRecordItemsMax)
      return text("param_groups[", g, "] has ", items / 2, " entries, and of a group at most ",
                  Pickle::kRecordItemsMax / 2,
                  " are read: save it with fewer, or convert the weights alone (--roles weight)");
  return std::nullopt;
}

std::vector<std::optional<std::size_t>> groups_of_numbers(const Pickle& pickle, Pickle::Value list, std::size_t count) {
  std::vector<std::optional<std::size_t>> out(count);
  std::vector<bool> seen(count, false);
  const std::span<const Pickle::Value> groups = pickle.items(list);
  std::size_t left = pickle.count();  // one list of numbers may be many groups'
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::span<const Pickle::Value> numbers = pickle.is(groups[g], PickleKind::dict)
                                                       ? pickle.items(pickle.find_field(groups[g], kParameters))
                                                       : std::span<const Pickle::Value>();
    if (numbers.size() > left) return std::vector<std::optional<std::size_t>>(count);
    left -= numbers.size();
    for (const Pickle::Value each : numbers) {
      const std::optional<std::uint64_t> number = pickle.unsigned_(each);
      if (!number || *number >= count) continue;
      out[*number] = seen[*number] ? std::nullopt : std::optional(g);
      seen[*number] = true;
    }
  }
  return out;
}

void add_hyper_groups(const std::vector<HyperGroup>& groups, CheckpointView& view) {
  std::string claimed;
  view.values = values_of_groups(groups, view, claimed);
  if (!claimed.empty())
    view.notes.push_back(text("two param_groups say different things of ", claimed,
                              ", so it is not known which one is right, and none is given"));
  std::set<std::string_view> left_out;
  for (const HyperGroup& group : groups) left_out.insert(group.left_out.begin(), group.left_out.end());
  if (view.values.empty() || left_out.empty()) return;
  std::string names;
  for (const std::string_view name : left_out) append_text(names, text(names.empty() ? "" : ", ", name));
  view.notes.push_back(text("param_groups: ", names, left_out.size() == 1 ? " is" : " are",
                            " no number, text or short list, and left out"));
}

}  // namespace pawl::checkpoint
