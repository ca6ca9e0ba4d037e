#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/formats/torch/optimizer_names.h"
#include "checkpoint/formats/torch/rank_files_join.h"
#include "checkpoint/names/state_names.h"

namespace pawl::checkpoint {
namespace {

// One optimizer in one file.
struct Instance {
  std::uint32_t state = 0;
  const TorchOptimizer* optimizer = nullptr;
  std::vector<IndexedGroup> groups = {};
  std::unordered_map<std::string_view, std::size_t> group_of = {};  // key -> group; kNoItem: several
  std::vector<std::size_t> join_groups = {};                        // of each group: index in the join's
  std::unordered_map<std::string, std::string> names = {};          // key -> name; empty: not told
  std::unordered_map<std::string, std::size_t> weights = {};        // key -> its weight's item, where it is known
  std::optional<std::string> model = {};                            // what leads to the names, where it is known
  bool has_state = false;                                           // of any parameter
  bool is_own = false;  // not told, and other ranks' numbers may mean others
};

class OptimizerNamer {
 public:
  OptimizerNamer(Join& join, const std::optional<ParameterNames>& given) : join_(join), names_(join, given) {}
  Status run();

 private:
  void collect();
  void collect_groups();
  void find_shapes();
  void take_own_names(Instance& instance);
  Status name_numbers();
  void use(const std::vector<Instance*>& instances, const NameFit& fit);
  void leave(const std::vector<Instance*>& instances, const NumberedOptimizer& optimizer, const Error& why);
  void add_items();
  void add_flat_items();
  void add_weights();

  Join& join_;
  const OptimizerNames names_;
  std::vector<std::vector<Instance>> instances_;  // [state][optimizer]
  std::map<std::string, std::vector<Instance*>> by_path_;
};

void OptimizerNamer::collect() {
  for (std::uint32_t s = 0; s < join_.ranks.size(); ++s) {
    instances_.emplace_back();
    for (const TorchOptimizer& optimizer : join_.ranks[s].state.optimizers)
      instances_.back().push_back({s, &optimizer});
  }
  for (auto& state : instances_)
    for (Instance& instance : state) by_path_[key_of(instance.optimizer->path)].push_back(&instance);
}

// Ranks that say the same of a group have one together.
void OptimizerNamer::collect_groups() {
  std::map<std::tuple<std::string, std::size_t, HyperValues>, std::size_t> index;  // by path and number
  for (auto& state : instances_)
    for (Instance& instance : state) {
      const std::string path = key_of(instance.optimizer->path);
      for (std::size_t g = 0; g < instance.optimizer->groups.size(); ++g) {
        const TorchOptimizer::Group& group = instance.optimizer->groups[g];
        const auto [at, is_new] = index.try_emplace({path, g, group.hyperparameters.values}, join_.groups.size());
        if (is_new) join_.groups.push_back({group.hyperparameters, {}, {}});
        instance.join_groups.push_back(at->second);
        for (const std::string& key : group.keys)
          if (const auto [in, is_first] = instance.group_of.try_emplace(key, g); !is_first && in->second != g)
            in->second = kNoItem;
      }
    }
}

// "optimizer.state.<key>.<word>": the optimizer's index in its state, or none.
std::size_t optimizer_of(const TorchState& state, const TorchPart& part) {
  for (std::size_t o = 0; o < state.optimizers.size(); ++o) {
    const std::vector<PathStep>& head = state.optimizers[o].path;
    if (part.path.size() >= head.size() + 3 && part.path[head.size()].text == "state" &&
        std::equal(head.begin(), head.end(), part.path.begin()))
      return o;
  }
  return kNoItem;
}

void OptimizerNamer::find_shapes() {
  for (std::uint32_t s = 0; s < join_.ranks.size(); ++s) {
    const TorchState& state = join_.ranks[s].state;
    if (state.optimizers.empty()) continue;
    std::vector<std::unordered_map<std::string_view, const Shape*>> shapes(state.optimizers.size());
    for (const TorchPart& part : state.parts) {
      const std::size_t o = optimizer_of(state, part);
      if (o == kNoItem) continue;
      instances_[s][o].has_state = true;
      const std::size_t depth = state.optimizers[o].path.size();
      if (part.path.size() == depth + 3 && has_parameter_shape(part.path[depth + 2].text))
        shapes[o].emplace(part.path[depth + 1].text, &part.shape);
    }
    for (std::size_t o = 0; o < state.optimizers.size(); ++o)
      for (const TorchOptimizer::Group& group : state.optimizers[o].groups) {
        IndexedGroup& out = instances_[s][o].groups.emplace_back();
        for (const std::string& key : group.keys) {
          const auto found = shapes[o].find(key);
          out.push_back(found == shapes[o].end() ? std::nullopt : std::optional<Shape>(*found->second));
        }
      }
  }
}

bool have_names(const std::vector<Instance*>& instances) {
  return std::ranges::all_of(instances, [](const Instance* instance) {
    return !instance->optimizer->is_indexed || std::ranges::all_of(instance->optimizer->groups, [](const auto& group) {
      return group.names.size() == group.keys.size();
    });
  });
}

void OptimizerNamer::use(const std::vector<Instance*>& instances, const NameFit& fit) {
  for (std::size_t i = 0; i < instances.size(); ++i) {
    Instance& instance = *instances[i];
    if (!fit.dict->names.empty()) instance.model = fit.dict->root;
    join_.keeps_roots = join_.keeps_roots || fit.says_root;
    std::size_t next = 0;
    for (const TorchOptimizer::Group& group : instance.optimizer->groups)
      for (const std::string& key : group.keys) {
        const std::string& name = fit.names[i][next++];
        instance.names.emplace(key, name);
        if (const std::size_t item = fit.item_of(name); item != kNoItem) instance.weights.emplace(key, item);
      }
  }
}

// Numbers stay numbers.
void OptimizerNamer::leave(const std::vector<Instance*>& instances, const NumberedOptimizer& optimizer,
                           const Error& why) {
  for (Instance* instance : instances) instance->is_own = !optimizer.alike;
  const std::string what =
      text(optimizer.label(), " numbers its parameters, and it is not known which is which: ", why.what);
  if (std::ranges::any_of(instances, [](const Instance* instance) { return instance->has_state; }))
    join_.view.unnamed.push_back(what);
  else
    join_.view.notes.push_back(text("hyperparameters are left out: ", what));
}

Status OptimizerNamer::name_numbers() {
  std::vector<NumberedOptimizer> all;
  std::vector<const std::vector<Instance*>*> whose;
  for (auto& [path, instances] : by_path_) {
    if (have_names(instances)) {
      for (Instance* instance : instances) take_own_names(*instance);
      continue;
    }
    std::vector<std::vector<IndexedGroup>> ranks;
    for (const Instance* instance : instances) ranks.push_back(instance->groups);
    all.emplace_back(instances[0]->optimizer->path, std::move(ranks));
    whose.push_back(&instances);
  }
  PAWL_ASSIGN(const std::vector<std::optional<NameFit>> given, names_.as_given(all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    Result<NameFit> fit = given[i] ? Result<NameFit>(*given[i]) : names_.by_shapes(all[i]);
    if (!fit) {
      leave(*whose[i], all[i], fit.error());
      continue;
    }
    use(*whose[i], *fit);
    join_.view.notes.push_back(
        text(all[i].label(), " numbers its ", all[i].numbers, " parameters: ",
             given[i] ? "they have the names that were given"
                      : "they were named by their shapes, which no other parameter of the model has"));
  }
  return {};
}

void OptimizerNamer::add_items() {
  std::unordered_map<std::string, std::size_t> index;
  for (std::uint32_t s = 0; s < join_.ranks.size(); ++s) {
    const TorchState& state = join_.ranks[s].state;
    for (const TorchPart& part : state.parts) {
      const std::size_t o = optimizer_of(state, part);
      if (o == kNoItem) continue;
      Instance& instance = instances_[s][o];
      JoinItem item;
      item.path = part.path;
      item.in_optimizer = true;
      const std::size_t at = instance.optimizer->path.size() + 1;
      const auto name = instance.names.find(item.path[at].text);
      const bool is_named = name != instance.names.end() || !instance.optimizer->is_indexed;
      const auto group = instance.group_of.find(item.path[at].text);
      instance.weights.erase(item.path[at].text);  // the state stands for it
      if (name != instance.names.end()) {
        item.path[at] = {PathStep::Kind::key, name->second};
        item.model = instance.model;
      } else if (instance.is_own && join_.ranks[s].rank != kNoRank) {
        item.path.insert(item.path.begin(), {PathStep::Kind::key, text("rank", join_.ranks[s].rank)});
      }
      const auto [place, is_new] = index.emplace(key_of(item.path), join_.items.size());
      if (is_new) join_.items.push_back(std::move(item));
      join_.items[place->second].parts.push_back({s, &part});
      if (is_named && group != instance.group_of.end() && group->second != kNoItem)
        join_.groups[instance.join_groups[group->second]].items.push_back(place->second);
    }
  }
}

// The parameter of a key of a flat optimizer's state: "state.<parameter>.<word>". Empty: it is no such key.
std::string_view flat_parameter(const TorchOptimizer& optimizer, const JoinItem& item) {
  constexpr std::string_view kState = "state.";
  const std::vector<PathStep>& head = optimizer.path;
  if (item.path.size() != head.size() + 1 || !std::equal(head.begin(), head.end(), item.path.begin())) return {};
  const std::string_view key = item.path.back().text;
  const std::size_t dot = key.rfind('.');
  return key.starts_with(kState) && dot > kState.size() ? key.substr(kState.size(), dot - kState.size())
                                                        : std::string_view();
}

void OptimizerNamer::add_flat_items() {
  const std::size_t count = join_.items.size();
  for (auto& state : instances_)
    for (Instance& instance : state)
      for (std::size_t i = 0; i < count && instance.optimizer->is_flat; ++i) {
        const std::string parameter(flat_parameter(*instance.optimizer, join_.items[i]));
        const auto group = instance.group_of.find(parameter);
        if (group == instance.group_of.end() || group->second == kNoItem) continue;
        instance.weights.erase(parameter);
        join_.groups[instance.join_groups[group->second]].items.push_back(i);
      }
}

// Groups without a state, as of SGD without momentum, have hyperparameters all the same.
void OptimizerNamer::add_weights() {
  for (const auto& state : instances_)
    for (const Instance& instance : state)
      for (const auto& [key, item] : instance.weights)
        if (const auto group = instance.group_of.find(key);
            group != instance.group_of.end() && group->second != kNoItem)
          join_.groups[instance.join_groups[group->second]].weights.push_back(item);
}

void OptimizerNamer::take_own_names(Instance& instance) {
  for (const TorchOptimizer::Group& group : instance.optimizer->groups)
    for (std::size_t i = 0; i < group.keys.size(); ++i) {
      const std::string& name = instance.optimizer->is_indexed ? group.names[i] : group.keys[i];
      if (instance.optimizer->is_indexed) instance.names.emplace(group.keys[i], name);
      if (const std::size_t weight = names_.find_item(name); weight != kNoItem)
        instance.weights.emplace(group.keys[i], weight);
    }
}

Status OptimizerNamer::run() {
  collect();
  collect_groups();
  find_shapes();
  PAWL_TRY(name_numbers());
  add_items();
  add_flat_items();
  add_weights();
  return {};
}

}  // namespace

Status add_optimizers(Join& join, const std::optional<ParameterNames>& names) {
  for (const RankState& rank : join.ranks)
    if (!rank.state.optimizers.empty()) return OptimizerNamer(join, names).run();
  return {};
}

}  // namespace pawl::checkpoint
