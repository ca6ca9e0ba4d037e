#include "checkpoint/formats/dcp/dcp_groups.h"

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/containers/copy_budget.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/names/hyperparameters.h"
#include "checkpoint/names/state_names.h"

namespace pawl::checkpoint {
namespace {

using Path = std::vector<std::string>;

constexpr std::string_view kGroups = "param_groups";
constexpr std::string_view kFlat = "param_groups.";

// A key below an optimizer's groups, taken apart.
struct GroupKey {
  std::string root;   // what leads to the optimizer
  std::string group;  // its number; of a flattened one the parameter
  std::string word;   // empty: the list of all groups, as one object
  bool is_flat = false;
};

std::optional<GroupKey> group_key(const Path& path) {
  const std::span<const std::string> steps(path);
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] == kGroups) {
      const std::size_t below = path.size() - i - 1;
      if (below == 0) return GroupKey{stored_name(steps.first(i)), {}, {}};
      return below == 2 ? std::optional(GroupKey{stored_name(steps.first(i)), path[i + 1], path[i + 2]}) : std::nullopt;
    }
    // Flat from here on; or from before, in a key of which no nesting is known: "optim.param_groups.0.weight.lr".
    const std::string_view step = path[i];
    const std::size_t dotted = step.find(".param_groups.");
    if (i + 1 != path.size() || (!step.starts_with(kFlat) && dotted == std::string_view::npos)) continue;
    const std::size_t at = step.starts_with(kFlat) ? 0 : dotted + 1;
    const std::size_t begin = at + kFlat.size();
    const std::size_t dot = step.rfind('.');
    if (dot <= begin) return std::nullopt;
    Path root(path.begin(), path.end() - 1);
    if (at != 0) root.emplace_back(step.substr(0, at - 1));
    return GroupKey{stored_name(root), std::string(step.substr(begin, dot - begin)), std::string(step.substr(dot + 1)),
                    true};
  }
  return std::nullopt;
}

// All groups of one optimizer. Flattened ones in the order in which the parameters come.
struct Optimizer {
  std::map<std::uint64_t, HyperGroup> numbered;
  std::vector<HyperGroup> of_parameters;
  std::map<std::string, std::size_t> index;  // of those, by parameter

  HyperGroup& flat(const std::string& parameter) {
    const auto [at, is_new] = index.emplace(parameter, of_parameters.size());
    if (is_new) of_parameters.emplace_back().parameters.push_back(parameter);
    return of_parameters[at->second];
  }
};
using Optimizers = std::map<std::string, Optimizer>;

// Whether `copies` had room for all: one list may be many groups', and one long name many times in it.
bool add_parameters(HyperGroup& group, const Pickle& pickle, Pickle::Value list, CopyBudget& copies) {
  for (const Pickle::Value item : pickle.items(list)) {
    if (!copies.take(sizeof(std::string) + pickle.text(item).size())) return false;
    const std::optional<std::uint64_t> number = pickle.unsigned_(item);
    group.parameters.push_back(number ? text(*number) : std::string(pickle.text(item)));
  }
  return true;
}

// The list of groups as one object.
void add_list(const Pickle& pickle, Optimizer& optimizer, CopyBudget& copies) {
  const std::span<const Pickle::Value> listed = pickle.items(pickle.root());
  std::vector<HyperGroup> read = read_hyper_groups(pickle, pickle.root());
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (!pickle.is(listed[i], PickleKind::dict) ||
        !add_parameters(read[i], pickle, pickle.find_field(listed[i], "params"), copies))
      return;
    optimizer.numbered[i] = std::move(read[i]);
  }
}

// param_groups, <i>, <key>: since torch 2.4 each an object; before, the list of groups is one.
void add_object(const GroupKey& key, const Pickle& pickle, Optimizer& optimizer) {
  std::uint64_t number = 0;
  CopyBudget copies(pickle.source_bytes());
  if (key.word.empty()) return add_list(pickle, optimizer, copies);
  if (!key.is_flat && !parse_number(key.group, number)) return;
  HyperGroup& group = key.is_flat ? optimizer.flat(key.group) : optimizer.numbered[number];
  if (!key.is_flat && key.word == "params" && !add_parameters(group, pickle, pickle.root(), copies)) return;
  add_hyperparameter(group, key.word, pickle, pickle.root());
}

void add_number(const GroupKey& key, double value, Optimizer& optimizer) {
  std::uint64_t number = 0;
  if (key.word.empty() || (!key.is_flat && !parse_number(key.group, number))) return;
  add_hyperparameter(key.is_flat ? optimizer.flat(key.group) : optimizer.numbered[number], key.word, value);
}

// A key without nesting leaves open what "param_groups.0.lr" means: a group, where that has parameters.
bool is_group_of(const GroupKey& key, const std::set<std::string>& groups) {
  return key.is_flat && groups.contains(text(key.root, '/', key.group));
}

}  // namespace

void add_dcp_groups(const DcpCheckpoint& checkpoint, const DcpFound& found, DcpObjects& objects, CheckpointView& view) {
  std::set<std::string> groups;  // "<root>/<number>" of those that say their parameters
  for (const DcpObject& object : checkpoint.objects)
    if (const std::optional<GroupKey> key = group_key(path_or_key(object.path, object.key));
        key && key->word == "params")
      groups.insert(text(key->root, '/', key->group));
  Optimizers optimizers;
  for (const DcpObject& object : checkpoint.objects) {
    std::optional<GroupKey> key = group_key(path_or_key(object.path, object.key));
    if (!key) continue;
    key->is_flat = key->is_flat && !is_group_of(*key, groups);
    if (const std::optional<TorchFile> content = objects.read(object, view))
      add_object(*key, content->pickle(), optimizers[key->root]);
  }
  for (const auto& [path, value] : found.numbers) {
    std::optional<GroupKey> key = group_key(path);
    if (!key) continue;
    key->is_flat = key->is_flat && !is_group_of(*key, groups);
    add_number(*key, value, optimizers[key->root]);
  }
  std::vector<HyperGroup> in_order;
  for (auto& [root, optimizer] : optimizers) {
    std::vector<HyperGroup> all = joined_groups(std::move(optimizer.of_parameters));
    for (auto& [number, group] : optimizer.numbered) all.push_back(std::move(group));
    for (HyperGroup& group : all) {
      group.is_stateless = true;
      for (std::string& parameter : group.parameters)
        if (const auto name = found.names.find({root, parameter}); name != found.names.end()) {
          parameter = name->second;
          group.is_stateless = false;
        }
      in_order.push_back(std::move(group));
    }
  }
  add_hyper_groups(in_order, view);
}

}  // namespace pawl::checkpoint
