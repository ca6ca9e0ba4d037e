#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/formats/torch/rank_files_join.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kGroupsMax = 4096;

// Words under which optimizers keep a tensor of the parameter's own shape.
bool has_parameter_shape(std::string_view word) {
  static const std::set<std::string_view> kWords = {"exp_avg", "exp_avg_sq",   "max_exp_avg_sq", "momentum_buffer",
                                                    "sum",     "square_avg",   "acc_delta",      "grad_avg",
                                                    "exp_inf", "prev",         "step_size",      "ax",
                                                    "slow",    "exp_avg_diff", "master_param"};
  return kWords.contains(word);
}

bool may_be_parameter(ElementType type) {
  const std::string_view name = name_of(type);
  return name.starts_with("float") || name.starts_with("bfloat") || name.starts_with("complex");
}

// One optimizer in one file.
struct Instance {
  std::uint32_t state = 0;
  const TorchOptimizer* optimizer = nullptr;
  std::vector<IndexedGroup> groups = {};
  std::unordered_map<std::string_view, std::size_t> group_of = {};  // key -> group; kNoItem: several
  std::vector<std::size_t> join_groups = {};                        // of each group: index in the join's
  std::unordered_map<std::string, std::string> names = {};          // key -> name; empty: not told
  bool is_own = false;  // not told, and other ranks' numbers may mean others
};

// Names that may be an optimizer's parameters: those of one dict, in its order.
struct Container {
  std::vector<NamedShape> names;
  std::unordered_map<std::string, std::size_t> by_bare_name;
};

// What is asked of each container: names for the numbers of one optimizer, or of its parts on the ranks.
struct Question {
  std::vector<std::vector<IndexedGroup>> ranks;
  bool alike = false;         // all ranks have the same groups
  std::uint64_t numbers = 0;  // names that are needed
};

class OptimizerNamer {
 public:
  OptimizerNamer(Join& join, const std::optional<ParameterNames>& given) : join_(join), given_(given) {}
  Status run();

 private:
  void collect();
  void collect_groups();
  void find_shapes();
  void find_containers();
  void add_to(std::map<std::string, std::size_t>& index, std::string key, std::string name, const JoinItem& item);
  Status resolve(std::vector<Instance*>& instances);
  Status resolve_in(const Container& container, const Question& question,
                    std::vector<std::vector<std::string>>& out) const;
  Status resolve_given(const Container& container, const Question& question,
                       std::vector<std::vector<std::string>>& out) const;
  Result<std::vector<std::vector<NamedShape>>> given_names(const Container& container) const;
  void add_items();

  Join& join_;
  const std::optional<ParameterNames>& given_;
  std::vector<std::vector<Instance>> instances_;  // [state][optimizer]
  std::map<std::string, std::vector<Instance*>> by_path_;
  std::vector<Container> containers_;  // dicts first; then what lies below one top name
  std::size_t dicts_ = 0;              // how many of them
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
        if (is_new) join_.groups.push_back({group.hyperparameters, {}});
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

void OptimizerNamer::add_to(std::map<std::string, std::size_t>& index, std::string key, std::string name,
                            const JoinItem& item) {
  const auto [at, is_new] = index.emplace(std::move(key), containers_.size());
  if (is_new) containers_.emplace_back();
  Container& container = containers_[at->second];
  container.by_bare_name.emplace(bare_name(name), container.names.size());
  container.names.push_back({std::move(name), item.parts[0].part->shape});
}

void OptimizerNamer::find_containers() {
  // Statistics of a normalisation are no parameters: they stand beside a count that nothing else has.
  std::unordered_set<std::string> counted;
  for (const JoinItem& item : join_.items)
    if (const std::string name = name_of(item.path); name.ends_with("num_batches_tracked"))
      counted.insert(name.substr(0, name.size() - std::string_view("num_batches_tracked").size()));
  const auto is_statistic = [&](const std::string& name) {
    for (const std::string_view word : {"running_mean", "running_var"})
      if (name.ends_with(word) && counted.contains(name.substr(0, name.size() - word.size()))) return true;
    return false;
  };
  const auto each = [&](const auto& visit) {
    for (const JoinItem& item : join_.items)
      if (!item.path.empty() && item.alias_of == kNoItem && may_be_parameter(item.parts[0].part->type) &&
          !item.parts[0].part->is_held && !is_statistic(name_of(item.path)))
        visit(item);
  };
  std::map<std::string, std::size_t> index;
  each([&](const JoinItem& item) {
    const std::span<const PathStep> parent(item.path.data(), item.path.size() - 1);
    add_to(index, key_of(parent), item.path.back().text, item);
  });
  dicts_ = containers_.size();
  for (const JoinItem& item : join_.items) {  // a tied name is as good as the one that is kept
    if (item.alias_of == kNoItem || item.path.empty()) continue;
    const auto at = index.find(key_of(std::span<const PathStep>(item.path.data(), item.path.size() - 1)));
    if (at == index.end()) continue;
    Container& container = containers_[at->second];
    const auto kept = container.by_bare_name.find(bare_name(join_.items[item.alias_of].path.back().text));
    if (kept != container.by_bare_name.end())
      container.by_bare_name.emplace(bare_name(item.path.back().text), std::size_t{kept->second});
  }
  index.clear();
  each([&](const JoinItem& item) {
    if (item.path.size() < 2) return;
    add_to(index, key_of(std::span<const PathStep>(item.path.data(), 1)),
           name_of({item.path.begin() + 1, item.path.end()}), item);
  });
}

// The given names, as the container has them and with its shapes. Tied names are given by either.
Result<std::vector<std::vector<NamedShape>>> OptimizerNamer::given_names(const Container& container) const {
  std::vector<std::vector<NamedShape>> out;
  std::unordered_set<std::string_view> seen;
  for (const std::vector<ParameterNames::Entry>& section : given_->sections) {
    out.emplace_back();
    for (const ParameterNames::Entry& entry : section) {
      const auto found = container.by_bare_name.find(bare_name(entry.name));
      if (found == container.by_bare_name.end() && !container.names.empty())
        return Error{Code::invalid,
                     text("--param-names: ", entry.name, " is not a tensor of the model in these files")};
      if (container.names.empty()) {
        out.back().push_back({entry.name, entry.shape});
        continue;
      }
      const NamedShape& known = container.names[found->second];
      if (seen.insert(known.name).second) out.back().push_back({known.name, known.shape});
    }
  }
  return out;
}

std::vector<NamedShape> flattened(const std::vector<std::vector<NamedShape>>& sections) {
  std::vector<NamedShape> out;
  for (const std::vector<NamedShape>& section : sections) out.insert(out.end(), section.begin(), section.end());
  return out;
}

std::vector<std::string> names_at(const NameIndices& indices, const std::vector<NamedShape>& names) {
  std::vector<std::string> out;
  for (const std::vector<std::uint32_t>& group : indices)
    for (const std::uint32_t index : group) out.push_back(names[index].name);
  return out;
}

std::uint64_t numbers_in(const Instance& instance) {
  std::uint64_t count = 0;
  for (const IndexedGroup& group : instance.groups) count += group.size();
  return count;
}

bool are_alike(const std::vector<Instance*>& instances) {
  return std::ranges::all_of(instances, [&](const Instance* i) { return i->groups == instances[0]->groups; });
}

// One optimizer on all ranks, or one dealt to them. `out`: of each instance, the names in the order of its numbers.
Status OptimizerNamer::resolve_in(const Container& container, const Question& question,
                                  std::vector<std::vector<std::string>>& out) const {
  if (given_) return resolve_given(container, question, out);
  if (container.names.size() < question.numbers)  // first: there may be many small dicts
    return Error{Code::invalid, text("it has ", question.numbers, " parameters, and ", container.names.size(),
                                     " names are known: give --param-names FILE")};
  std::vector<IndexedGroup> groups;  // of all ranks, one after another
  for (std::size_t rank = 0; rank < (question.alike ? 1 : question.ranks.size()); ++rank)
    groups.insert(groups.end(), question.ranks[rank].begin(), question.ranks[rank].end());
  PAWL_ASSIGN(const NameIndices indices, name_by_shape(container.names, groups));
  auto next = indices.begin();
  for (const std::vector<IndexedGroup>& rank : question.ranks) {
    if (question.alike) next = indices.begin();
    const auto end = next + static_cast<std::ptrdiff_t>(rank.size());
    out.push_back(names_at({next, end}, container.names));
    next = end;
  }
  return {};
}

Status OptimizerNamer::resolve_given(const Container& container, const Question& question,
                                     std::vector<std::vector<std::string>>& out) const {
  PAWL_ASSIGN(const std::vector<std::vector<NamedShape>> sections, given_names(container));
  const std::vector<NamedShape> names = flattened(sections);
  Error why{Code::invalid, "the ranks' optimizers differ"};
  if (question.alike) {
    Result<NameIndices> order = given_->says_groups ? order_parameters_in(sections, question.ranks[0])
                                                    : order_parameters(names, question.ranks[0]);
    if (order) {
      out.assign(question.ranks.size(), names_at(*order, names));
      return {};
    }
    why = order.error();
  }
  if (question.ranks.size() == 1) return why;
  Result<std::vector<NameIndices>> dealt =
      given_->says_groups ? deal_parameters_in(sections, question.ranks) : deal_parameters(names, question.ranks);
  if (!dealt) return question.alike ? why : dealt.error();
  for (const NameIndices& indices : *dealt) out.push_back(names_at(indices, names));
  return {};
}

Status OptimizerNamer::resolve(std::vector<Instance*>& instances) {
  Question question;
  question.alike = are_alike(instances);
  for (const Instance* instance : instances) {
    question.ranks.push_back(instance->groups);
    if (!question.alike || question.numbers == 0) question.numbers += numbers_in(*instance);
  }
  std::vector<std::vector<std::string>> found;
  std::optional<Error> why;
  std::vector<Container> none(1);
  const bool any = !containers_.empty();
  for (std::size_t c = 0; c < (any ? containers_.size() : 1); ++c) {
    if (c == dicts_ && !found.empty()) break;
    std::vector<std::vector<std::string>> names;
    Status status = resolve_in(any ? containers_[c] : none[0], question, names);
    if (!status) {  // of several reasons that of the largest container tells most
      if (!why || containers_[c].names.size() > 8) why = status.error();
      continue;
    }
    if (!found.empty() && found != names)
      return Error{Code::invalid, "its numbers fit the names of two models: give --param-names FILE"};
    found = std::move(names);
  }
  if (found.empty()) return why ? *why : Error{Code::invalid, "no names are known: give --param-names FILE"};
  for (std::size_t i = 0; i < instances.size(); ++i) {
    std::size_t next = 0;
    for (const TorchOptimizer::Group& group : instances[i]->optimizer->groups)
      for (const std::string& key : group.keys) instances[i]->names.emplace(key, found[i][next++]);
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
      const Instance& instance = instances_[s][o];
      JoinItem item;
      item.path = part.path;
      item.in_optimizer = true;
      const std::size_t at = instance.optimizer->path.size() + 1;
      const auto name = instance.names.find(item.path[at].text);
      const bool is_named = name != instance.names.end() || !instance.optimizer->is_indexed;
      const auto group = instance.group_of.find(item.path[at].text);
      if (name != instance.names.end()) {
        item.path[at] = {PathStep::Kind::key, name->second};
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

Status OptimizerNamer::run() {
  collect();
  collect_groups();
  find_shapes();
  find_containers();
  for (auto& [path, instances] : by_path_) {
    const TorchOptimizer& first = *instances[0]->optimizer;
    if (!first.is_indexed) continue;
    std::size_t numbers = 0;
    bool named = true;
    for (Instance* instance : instances)
      for (const TorchOptimizer::Group& group : instance->optimizer->groups) {
        numbers += group.keys.size();
        named = named && group.names.size() == group.keys.size();
      }
    if (named) {
      for (Instance* instance : instances)
        for (const TorchOptimizer::Group& group : instance->optimizer->groups)
          for (std::size_t i = 0; i < group.keys.size(); ++i) instance->names.emplace(group.keys[i], group.names[i]);
      continue;
    }
    const std::string label = first.path.empty() ? "the optimizer" : text("optimizer \"", name_of(first.path), '"');
    Status status =
        first.groups.size() > kGroupsMax ? Status(Error{Code::invalid, "it has too many groups"}) : resolve(instances);
    if (!status && given_) return std::move(status).error().within(label);
    if (!status) {
      const bool alike = are_alike(instances);
      for (Instance* instance : instances) instance->is_own = !alike;
      join_.view.unnamed.push_back(
          text(label, " numbers its parameters, and it is not known which is which: ", status.error().what));
    } else {
      join_.view.notes.push_back(
          text(label, " numbers its ", numbers, " parameters: ",
               given_ ? "they have the names that were given"
                      : "they were named by their shapes, which no other parameter of the model has"));
    }
  }
  add_items();
  return {};
}

}  // namespace

Status add_optimizers(Join& join, const std::optional<ParameterNames>& names) {
  for (const RankState& rank : join.ranks)
    if (!rank.state.optimizers.empty()) return OptimizerNamer(join, names).run();
  return {};
}

}  // namespace pawl::checkpoint
