#include "checkpoint/formats/dcp/dcp_groups.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/formats/dcp/dcp_optimizers.h"
#include "checkpoint/names/hyperparameters.h"

namespace pawl::checkpoint {
namespace {

using Path = std::vector<std::string>;
using Groups = std::map<std::pair<Path, std::uint64_t>, HyperGroup>;

constexpr std::string_view kGroups = "param_groups";

void add_parameters(HyperGroup& group, const Pickle& pickle, Pickle::Value list) {
  for (const Pickle::Value item : pickle.items(list)) group.parameters.emplace_back(pickle.text(item));
}

// The list of groups as one object. One list of parameters may be many groups': all are no more than its values.
void add_list(const Pickle& pickle, const Path& root, Groups& groups) {
  std::size_t left = pickle.count();
  const std::span<const Pickle::Value> listed = pickle.items(pickle.root());
  std::vector<HyperGroup> read = read_hyper_groups(pickle, pickle.root());
  for (std::size_t i = 0; i < read.size(); ++i) {
    const Pickle::Value parameters = pickle.find(listed[i], "params");
    const std::size_t size = pickle.items(parameters).size() + 1;
    if (!pickle.is(listed[i], PickleKind::dict) || size > left) return;
    left -= size;
    add_parameters(read[i], pickle, parameters);
    groups[{root, i}] = std::move(read[i]);
  }
}

// param_groups, <i>, <key>: since torch 2.4 each an object; before, the list of groups is one.
void add_object(const DcpCheckpoint& checkpoint, const DcpObject& object, Files& files, Groups& groups) {
  const auto at = std::ranges::find(object.path, kGroups);
  const auto below = object.path.end() - at;
  std::uint64_t number = 0;
  if (below != 1 && (below != 3 || !parse_number(*(at + 1), number))) return;
  const Path root(object.path.begin(), at);
  const std::optional<Pickle> pickle = read_object(checkpoint, object.place, files);
  if (!pickle) return;
  if (below == 1) return add_list(*pickle, root, groups);
  HyperGroup& group = groups[{root, number}];
  if (object.path.back() == "params") add_parameters(group, *pickle, pickle->root());
  add_hyperparameter(group, object.path.back(), *pickle, pickle->root());
}

}  // namespace

void add_dcp_groups(const DcpCheckpoint& checkpoint, Files& files, CheckpointView& view) {
  Groups groups;
  for (const DcpObject& object : checkpoint.objects) add_object(checkpoint, object, files, groups);
  std::vector<HyperGroup> in_order;
  for (auto& [number, group] : groups) in_order.push_back(std::move(group));
  add_hyper_groups(in_order, view);
}

}  // namespace pawl::checkpoint
