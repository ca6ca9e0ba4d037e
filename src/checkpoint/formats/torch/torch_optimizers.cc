#include "checkpoint/formats/torch/torch_optimizers.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/formats/torch/parameter_state.h"

namespace pawl::checkpoint {
namespace {

using Value = Pickle::Value;
constexpr std::size_t kOptimizersMax = 64;
constexpr std::uint32_t kDepthMax = 8;
constexpr std::size_t kKeyBytesMax = 4096;
constexpr int kPartsMax = 32;  // of a name, from its front: another's may begin there

bool starts_with(std::span<const PathStep> path, std::span<const PathStep> head) {
  return path.size() >= head.size() && std::equal(head.begin(), head.end(), path.begin());
}

// A value on the way down.
struct Place {
  Value value;
  std::size_t parent;  // index in the list of places
  std::uint32_t depth;
  PathStep::Kind kind;
  Value key;          // of a dict
  std::size_t index;  // of a list
};

// What a value holds under names: a dict's pairs, or an object's attributes. Nothing: it is neither.
Value pairs_of(const Pickle& pickle, Value value, PathStep::Kind& kind) {
  kind = PathStep::Kind::key;
  if (pickle.holds_pairs(value)) return value;
  kind = PathStep::Kind::attribute;
  const Value state = pickle.object(value).state;
  return pickle.is(value, PickleKind::object) && pickle.is(state, PickleKind::dict) ? state : kNothing;
}

bool has_flat_groups(const Pickle& pickle, Value dict) {
  const std::span<const Value> items = pickle.items(dict);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (pickle.is(items[i], PickleKind::string) && pickle.text(items[i]).starts_with(kFlatGroups)) return true;
  return false;
}

// An empty defaultdict holds no pairs yet.
bool is_state(const Pickle& pickle, Value value) {
  return pickle.holds_pairs(value) || pickle.class_of(value).is("collections", "defaultdict");
}

// Nothing where it is very long: there may be many below one long key.
std::optional<std::vector<PathStep>> path_to(const Pickle& pickle, std::span<const Place> places, std::size_t at) {
  std::vector<PathStep> path;
  for (std::size_t i = at; i != 0; i = places[i].parent) {
    const bool is_index = places[i].kind == PathStep::Kind::index;
    if (!is_index && pickle.text(places[i].key).size() > kKeyBytesMax) return std::nullopt;
    path.push_back({places[i].kind, is_index ? text(places[i].index) : std::string(pickle.text(places[i].key))});
  }
  if (name_of(path).size() > kKeyBytesMax) return std::nullopt;
  std::ranges::reverse(path);
  return path;
}

// Where a tensor lies, if it lies anywhere: equal for a parameter and what a state dict has of it.
std::string place_of(const TorchTensor& tensor) {
  const std::optional<TorchReach> reach = reach_of(tensor);
  if (tensor.storage == kNoStorage || !tensor.layout.empty() || !reach || reach->count == 0) return {};
  std::string out = text(static_cast<std::uint32_t>(tensor.type), '@', tensor.storage, '+', tensor.storage_offset);
  for (std::size_t d = 0; d < tensor.shape.size(); ++d)
    append_text(out, text(',', tensor.shape[d], '*', tensor.strides[d]));
  return out;
}

bool is_in_state(const std::vector<PathStep>& path, const FoundOptimizer& optimizer) {
  return path.size() > optimizer.path.size() + 1 && path[optimizer.path.size()].text == "state" &&
         starts_with(path, optimizer.path);
}

// Up to the module or the state dict that a tensor is in.
std::span<const PathStep> root_of(const std::vector<PathStep>& path) {
  const auto part = std::ranges::find_if(path, is_module_part);
  if (part != path.end()) return {path.begin(), part};
  return {path.begin(), path.end() - (path.empty() ? 0 : 1)};
}

std::string bare_name_of(std::span<const PathStep> steps) {
  std::vector<PathStep> path(steps.begin(), steps.end());
  std::erase_if(path, is_module_part);
  return name_of(path);
}

// The model's names of parameters, by the tensors that they are: the first of several names.
class ModelNames {
 public:
  ModelNames(const TorchFile& file, std::span<const FoundOptimizer> optimizers) {
    for (const TorchTensor& tensor : file.tensors()) {
      const auto is_its_state = [&](const FoundOptimizer& one) { return is_in_state(tensor.path, one); };
      if (tensor.path.empty() || has_step(tensor.path, "param_groups") || std::ranges::any_of(optimizers, is_its_state))
        continue;
      tensors_.push_back(&tensor);
      if (tensor.value != kNothing) by_value_.emplace(tensor.value, &tensor);
      if (std::string place = place_of(tensor); !place.empty()) by_place_.emplace(std::move(place), &tensor);
    }
  }
  [[nodiscard]] const TorchTensor* find(const TorchTensor& parameter) const {
    const auto same = by_value_.find(parameter.value);
    if (same != by_value_.end()) return same->second;
    const std::string place = place_of(parameter);
    const auto found = place.empty() ? by_place_.end() : by_place_.find(place);
    return found == by_place_.end() ? nullptr : found->second;
  }
  // Whether one of the names is also one of another part of the model: two networks, a copy that is an average.
  [[nodiscard]] bool are_elsewhere(const std::vector<std::string>& names, std::span<const PathStep> root) const {
    const std::unordered_set<std::string_view> known(names.begin(), names.end());
    return std::ranges::any_of(tensors_, [&](const TorchTensor* tensor) {
      if (starts_with(tensor->path, root)) return false;
      const std::string name = bare_name_of(tensor->path);
      std::string_view rest = name;
      for (int parts = 0; parts < kPartsMax && !known.contains(rest); ++parts) {
        if (rest.find('.') == std::string_view::npos) return false;
        rest.remove_prefix(rest.find('.') + 1);
      }
      return known.contains(rest);
    });
  }

 private:
  std::vector<const TorchTensor*> tensors_;
  std::unordered_map<Value, const TorchTensor*> by_value_;
  std::unordered_map<std::string, const TorchTensor*> by_place_;
};

// None unless all parameters are the model's. What leads to all of them is no part of a name, where names stay clear.
Result<std::vector<std::string>> names_of(const std::vector<const TorchTensor*>& parameters, const ModelNames& model,
                                          CopyBudget& copies) {
  std::vector<const TorchTensor*> found;
  std::span<const PathStep> root;
  for (const TorchTensor* parameter : parameters) {
    const TorchTensor* tensor = model.find(*parameter);
    if (tensor == nullptr) return std::vector<std::string>();
    PAWL_TRY(copies.take(sizeof(std::string) + bytes_of(tensor->path)));
    const std::span<const PathStep> own = root_of(tensor->path);
    if (found.empty()) root = own;
    const auto differ = std::ranges::mismatch(root, own);
    root = root.first(static_cast<std::size_t>(differ.in1 - root.begin()));
    found.push_back(tensor);
  }
  std::vector<std::string> names;
  for (const TorchTensor* tensor : found) names.push_back(bare_name_of(std::span(tensor->path).subspan(root.size())));
  if (root.empty() || !model.are_elsewhere(names, root)) return names;
  names.clear();
  for (const TorchTensor* tensor : found) names.push_back(bare_name_of(tensor->path));
  return names;
}

// The tensors that the groups hold. None if they hold anything else.
Result<std::vector<const TorchTensor*>> parameters_in(const Pickle& pickle, const FoundOptimizer& optimizer,
                                                      const TensorsByValue& by_value, CopyBudget& copies) {
  std::vector<const TorchTensor*> out;
  for (const Value group : pickle.items(optimizer.param_groups)) {
    const std::span<const Value> held = pickle.items(pickle.find_field(group, "params"));
    PAWL_TRY(copies.take(held.size() + 1, sizeof out[0]));
    for (const Value value : held) {
      const auto found = by_value.find(value);
      if (found == by_value.end()) return std::vector<const TorchTensor*>();
      out.push_back(found->second);
    }
  }
  return out;
}

// The tensors that the state has of each parameter that is a key of it.
Status find_states(const Pickle& pickle, const FoundOptimizer& optimizer, const TensorsByValue& by_value,
                   ParameterState& of_parameter, CopyBudget& copies, HeldParameters& out) {
  const std::span<const Value> items = pickle.items(optimizer.state);
  const auto add = [&](Value value, const std::vector<PathStep>& path) -> Status {
    if (!by_value.contains(value)) return {};
    PAWL_TRY(copies.take(sizeof(HeldParameters::State) + bytes_of(path)));
    out.states.push_back({value, path});
    return {};
  };
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto number = out.number_of.find(items[i]);
    if (number == out.number_of.end()) continue;
    std::vector<PathStep> path = optimizer.path;
    path.push_back({optimizer.kind, "state"});
    path.push_back({PathStep::Kind::index, text(number->second)});
    PAWL_TRY(copies.take(bytes_of(path)));
    PAWL_TRY(of_parameter.walk(items[i + 1], std::move(path), add));
  }
  return {};
}

}  // namespace

bool is_module_part(const PathStep& step) {
  return step.kind == PathStep::Kind::attribute &&
         (step.text == "_modules" || step.text == "_parameters" || step.text == "_buffers");
}

bool has_step(const std::vector<PathStep>& path, std::string_view text) {
  return std::ranges::any_of(path, [&](const PathStep& step) { return step.text == text; });
}

std::vector<FoundOptimizer> find_optimizers(const Pickle& pickle) {
  std::vector<FoundOptimizer> out;
  if (pickle.root() >= pickle.count()) return out;
  std::vector<Place> places = {{pickle.root(), 0, 0, PathStep::Kind::key, kNothing, 0}};
  std::vector<bool> seen(pickle.count(), false);
  seen[pickle.root()] = true;
  for (std::size_t at = 0; at < places.size() && out.size() < kOptimizersMax; ++at) {
    const Place place = places[at];
    FoundOptimizer found;
    const Value pairs = pairs_of(pickle, place.value, found.kind);
    found.state = pickle.find(pairs, "state");
    found.param_groups = pickle.find(pairs, "param_groups");
    const bool is_nested = is_state(pickle, found.state) && pickle.is(found.param_groups, PickleKind::list);
    if (is_nested || (found.kind == PathStep::Kind::key && has_flat_groups(pickle, pairs))) {
      std::optional<std::vector<PathStep>> path = path_to(pickle, places, at);
      if (path && is_nested) {
        found.path = std::move(*path);
        found.value = place.value;
        out.push_back(std::move(found));
      } else if (path) {
        out.push_back({.path = std::move(*path), .kind = found.kind, .flat = pairs});
      }
      if (is_nested || !path) continue;  // what lies below a flat one may be another
    }
    if (place.depth >= kDepthMax) continue;
    const auto enter = [&](Value value, Place below) {
      PathStep::Kind kind{};
      const bool is_list = pickle.is(value, PickleKind::list) || pickle.is(value, PickleKind::tuple);
      if (value >= seen.size() || seen[value]) return;
      const Value pairs_inside = pairs_of(pickle, value, kind);
      if (!is_list && pairs_inside == kNothing) return;
      if (pairs_inside < seen.size() && pairs_inside != value) {  // many objects may name one dict
        if (seen[pairs_inside]) return;
        seen[pairs_inside] = true;
      }
      seen[value] = true;
      places.push_back(below);
    };
    const std::span<const Value> items = pickle.items(pairs == kNothing ? place.value : pairs);
    for (std::size_t i = 0; i + 1 < items.size() && pairs != kNothing; i += 2)
      if (pickle.is(items[i], PickleKind::string))
        enter(items[i + 1], {items[i + 1], at, place.depth + 1, found.kind, items[i], 0});
    for (std::size_t i = 0; i < items.size() && pairs == kNothing; ++i)
      enter(items[i], {items[i], at, place.depth + 1, PathStep::Kind::index, kNothing, i});
  }
  return out;
}

Result<std::vector<std::optional<HeldParameters>>> held_parameters(const TorchFile& file,
                                                                   std::span<const FoundOptimizer> optimizers,
                                                                   const TensorsByValue& by_value, CopyBudget& copies) {
  std::vector<std::optional<HeldParameters>> out;
  std::optional<ModelNames> model;
  ParameterState of_parameter(file.pickle(), by_value, optimizers, copies);
  for (const FoundOptimizer& optimizer : optimizers) {
    std::optional<HeldParameters>& held = out.emplace_back();
    PAWL_ASSIGN(const std::vector<const TorchTensor*> parameters,
                parameters_in(file.pickle(), optimizer, by_value, copies));
    if (parameters.empty()) continue;
    if (!model) model.emplace(file, optimizers);
    held.emplace();
    PAWL_ASSIGN(held->names, names_of(parameters, *model, copies));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const bool is_first = held->number_of.emplace(parameters[i]->value, i).second;
      if (!held->names.empty() || !is_first) continue;
      PAWL_TRY(copies.take(sizeof(HeldParameters::State) + bytes_of(optimizer.path)));
      held->parameters.push_back({parameters[i]->value, optimizer.path});
      held->parameters.back().path.push_back({optimizer.kind, "parameters"});
      held->parameters.back().path.push_back({PathStep::Kind::index, text(i)});
    }
    PAWL_TRY(find_states(file.pickle(), optimizer, by_value, of_parameter, copies, *held));
  }
  return out;
}

}  // namespace pawl::checkpoint
