#include "checkpoint/formats/dcp/dcp_optimizers.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/text.h"
#include "checkpoint/containers/copy_budget.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/torch/parameter_state.h"
#include "checkpoint/formats/torch/rank_files_join.h"
#include "checkpoint/names/module_name.h"
#include "checkpoint/names/parameter_order.h"

namespace pawl::checkpoint {
namespace {

constexpr std::string_view kGroups = "param_groups";

using Path = std::vector<std::string>;

// What leads to the optimizer of which this is a numbered parameter's state, however deep it lies in that.
std::optional<Path> numbered_root(const Path& path) {
  for (std::size_t i = path.size() < 3 ? 0 : path.size() - 2; i-- > 0;)  // as optimizer_key has it
    if (path[i] == "state" && is_number(path[i + 1]))
      return Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i));
  return std::nullopt;
}

Result<std::vector<std::string>> strings_of(const Pickle& pickle, Pickle::Value list, CopyBudget& copies) {
  std::vector<std::string> out;
  PAWL_TRY(copies.take(pickle.items(list).size(), sizeof(std::string)));
  for (const Pickle::Value item : pickle.items(list)) {
    PAWL_TRY(copies.take(pickle.text(item).size()));
    if (const std::optional<std::int64_t> number = pickle.integer(item)) {
      out.push_back(text(*number));
    } else {
      out.emplace_back(pickle.text(item));
    }
  }
  return out;
}

// param_groups, <i>, params: since torch 2.4 each an object; before, the list of groups is one.
using Groups = std::map<std::uint64_t, TorchOptimizer::Group>;

// What one object says of an optimizer's groups. `path`: from the optimizer on.
Status add_groups(const Pickle& pickle, std::span<const std::string> path, Groups& groups) {
  CopyBudget copies(pickle.source_bytes());  // groups may share a list, and lists a long name
  std::uint64_t number = 0;
  if (path.size() > 1) {
    if (!parse_number(path[1], number)) return {};
    auto& names = path.back() == "params" ? groups[number].keys : groups[number].names;
    PAWL_ASSIGN(names, strings_of(pickle, pickle.root(), copies));
    return {};
  }
  for (const Pickle::Value each : pickle.items(pickle.root())) {
    PAWL_TRY(copies.take(sizeof(Groups::value_type)));
    TorchOptimizer::Group& group = groups[number++];
    PAWL_ASSIGN(group.keys, strings_of(pickle, pickle.find_field(each, "params"), copies));
    PAWL_ASSIGN(group.names, strings_of(pickle, pickle.find_field(each, "param_names"), copies));
  }
  return {};
}

// The objects that say an optimizer's groups, by what leads to it: its own list of them, or lists of each group.
using GroupObjects = std::map<Path, std::vector<const DcpObject*>>;
GroupObjects group_objects(const DcpCheckpoint& checkpoint) {
  GroupObjects out;
  for (const DcpObject& object : checkpoint.objects) {
    const Path& path = object.path;
    const bool is_list = !path.empty() && (path.back() == "params" || path.back() == "param_names");
    if (!path.empty() && path.back() == kGroups) out[Path(path.begin(), path.end() - 1)].push_back(&object);
    if (is_list && path.size() >= 3 && path[path.size() - 3] == kGroups)
      out[Path(path.begin(), path.end() - 3)].push_back(&object);
  }
  return out;
}

Result<std::vector<TorchOptimizer::Group>> groups_of(const DcpCheckpoint& checkpoint, const Path& root,
                                                     const GroupObjects& told, DcpObjects& objects,
                                                     CheckpointView& view) {
  Groups groups;
  const auto found = told.find(root);
  if (found == told.end()) return std::vector<TorchOptimizer::Group>();
  for (const DcpObject* object : found->second) {
    const std::optional<TorchFile> content = objects.read(*object, view);
    if (!content) continue;
    Status added = add_groups(content->pickle(), std::span(object->path).subspan(root.size()), groups);
    if (!added)
      return std::move(added).error().within(text(checkpoint.files[object->place.file], ": object ", object->key));
  }
  std::vector<TorchOptimizer::Group> out;
  for (auto& [number, group] : groups) out.push_back(std::move(group));
  return out;
}

std::vector<PathStep> steps_of(const Path& path) {
  std::vector<PathStep> out;
  for (const std::string& step : path) out.push_back({PathStep::Kind::key, step});
  return out;
}

// Where a part of a parameter's state lies. Of a flattened key its parameter is told first: it ends at the last dot.
Path path_of_part(const DcpObject& object, const OptimizerKey& key, const std::vector<PathStep>& below) {
  Path path = object.path;
  if (below.empty()) return path;
  if (std::ranges::find(path, "state") == path.end()) {
    path = {"state", key.parameter, key.role};
    if (!key.root.empty()) path.insert(path.begin(), key.root);
  }
  for (const PathStep& step : below) path.push_back(step.text);
  return path;
}

std::string name_below(const DcpObject& object, const std::vector<PathStep>& below) {
  return below.empty() ? object.key : text(object.key, ".", name_of(below));
}

// Takes the numbers of the objects that optimizers keep of parameters.
class NumberTaker {
 public:
  NumberTaker(DcpCheckpoint& checkpoint, DcpObjects& objects, CheckpointView& view)
      : checkpoint_(checkpoint), objects_(objects), view_(view) {
    for (const DcpObject& object : checkpoint.objects) copies_.add_source(object.place.length_bytes);
  }

  Status take(const DcpObject& object, const OptimizerKey& key) {
    const std::optional<TorchFile> content = objects_.read(object, view_);
    if (!content) return {};
    const Pickle& pickle = content->pickle();
    PAWL_TRY(copies_.take(pickle.source_bytes()));  // many packed ones could keep a reader busy for days
    TensorsByValue tensors;
    for (const TorchTensor& tensor : content->tensors()) tensors.emplace(tensor.value, &tensor);
    const auto add = [&](Pickle::Value value, const std::vector<PathStep>& below) -> Status {
      if (!tensors.contains(value)) return take_value(object, key, pickle, value, below);
      PAWL_TRY(copies_.take(object.key.size() + bytes_of(below)));
      view_.unsupported.push_back(
          text(name_below(object, below), " is a tensor inside an object, and of such objects numbers are read"));
      return {};
    };
    return ParameterState(pickle, tensors, {}, copies_).walk(pickle.root(), {}, add);
  }
  [[nodiscard]] const std::set<std::string>& taken() const { return taken_; }  // keys of objects

 private:
  Status take_value(const DcpObject& object, const OptimizerKey& key, const Pickle& pickle, Pickle::Value value,
                    const std::vector<PathStep>& below) {
    if (pickle.is(value, PickleKind::none) || is_state_text(pickle, value)) return {};
    PAWL_TRY(copies_.take(2 * (object.key.size() + bytes_of(below)) + sizeof(StoredTensor) + sizeof(DcpTensor)));
    PAWL_TRY(copies_.take(pickle.items(value).size(), sizeof(std::uint64_t)));
    const std::string name = name_below(object, below);
    std::optional<StateNumbers> numbers = state_numbers(pickle, value, below.empty() ? key.role : std::string_view());
    if (!numbers) {
      view_.unsupported.push_back(no_form(name, pickle, value));
      return {};
    }
    taken_.insert(object.key);
    StoredTensor& tensor = view_.tensors.emplace_back();
    tensor.name = name;
    tensor.type = numbers->type;
    tensor.shape = numbers->shape;
    tensor.pieces.push_back(whole_piece(numbers->shape, static_cast<std::uint32_t>(view_.files.size()), 0));
    view_.files.push_back({.path = text(checkpoint_.files[object.place.file], ": ", name),
                           .codec = StoredFile::Codec::content,
                           .content = std::move(numbers->elements)});
    checkpoint_.tensors.push_back({name, path_of_part(object, key, below), tensor.type, tensor.shape, {}});
    checkpoint_.tensors.back().order = static_cast<std::uint32_t>(checkpoint_.tensors.size());
    return {};
  }

  DcpCheckpoint& checkpoint_;
  DcpObjects& objects_;
  CheckpointView& view_;
  CopyBudget copies_;
  std::set<std::string> taken_;
};

}  // namespace

Result<bool> name_numbered_parameters(const DcpCheckpoint& checkpoint, const std::optional<ParameterNames>& given,
                                      DcpObjects& objects, std::vector<StateKey>& keys, CheckpointView& view) {
  std::set<Path> roots;
  std::vector<std::optional<Path>> root_of(checkpoint.tensors.size());
  for (std::size_t i = 0; i < checkpoint.tensors.size(); ++i) {
    root_of[i] = numbered_root(keys[i].path);
    if (root_of[i]) roots.insert(*root_of[i]);
  }
  // The state as one file of one rank would have it.
  Join join;
  TorchState& state = join.ranks.emplace_back().state;
  const GroupObjects told = group_objects(checkpoint);
  for (const Path& root : roots) {
    PAWL_ASSIGN(std::vector<TorchOptimizer::Group> groups, groups_of(checkpoint, root, told, objects, view));
    if (!groups.empty()) state.optimizers.push_back({steps_of(root), std::move(groups), true});
  }
  if (state.optimizers.empty()) return false;
  std::vector<std::size_t> order(checkpoint.tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return checkpoint.tensors[i].order; });
  for (const std::size_t i : order)
    state.parts.push_back({steps_of(keys[i].path), checkpoint.tensors[i].type, checkpoint.tensors[i].shape, {}, {}});
  for (std::size_t n = 0; n < order.size(); ++n) {
    if (root_of[order[n]]) continue;
    JoinItem item;
    item.path = state.parts[n].path;
    item.parts.push_back({0, &state.parts[n]});
    join.items.push_back(std::move(item));
  }
  PAWL_TRY(add_optimizers(join, given));
  view.notes.insert(view.notes.end(), join.view.notes.begin(), join.view.notes.end());
  view.unnamed.insert(view.unnamed.end(), join.view.unnamed.begin(), join.view.unnamed.end());
  view.unsupported.insert(view.unsupported.end(), join.view.unsupported.begin(), join.view.unsupported.end());
  for (const JoinItem& item : join.items) {
    if (!item.in_optimizer) continue;
    StateKey& key = keys[order[static_cast<std::size_t>(item.parts[0].part - state.parts.data())]];
    for (std::size_t step = 0; step < key.path.size() && step < item.path.size(); ++step)
      key.path[step] = item.path[step].text;
    key.model = item.model;
  }
  return join.keeps_roots;
}

Status take_state_numbers(DcpCheckpoint& checkpoint, DcpObjects& objects, CheckpointView& view) {
  std::set<std::string> roots;  // of optimizers
  for (const DcpObject& object : checkpoint.objects)
    if (std::optional<std::string> root = groups_root(path_or_key(object.path, object.key)))
      roots.insert(std::move(*root));
  NumberTaker taker(checkpoint, objects, view);
  for (const DcpObject& object : checkpoint.objects) {
    const Path path = path_or_key(object.path, object.key);
    const std::optional<OptimizerKey> key = optimizer_key(path);
    if (!key || groups_root(path) || !roots.contains(key->root)) continue;
    Status taken = taker.take(object, *key);
    if (!taken)
      return std::move(taken).error().within(text(checkpoint.files[object.place.file], ": object ", object.key));
  }
  const std::set<std::string>& taken = taker.taken();
  std::erase_if(view.objects, [&](const std::string& object) { return taken.contains(object); });
  std::erase_if(checkpoint.objects, [&](const DcpObject& object) { return taken.contains(object.key); });
  return {};
}

}  // namespace pawl::checkpoint
