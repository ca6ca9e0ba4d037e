#include "checkpoint/names/state_names.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/contains.h"
#include "base/index_table.h"
#include "base/text.h"
#include "checkpoint/names/model_pairs.h"
#include "checkpoint/names/module_name.h"

namespace pawl::checkpoint {
namespace {

// Programs have a few optimizers. More than this many is no training state, and would cost their product with the keys.
constexpr std::size_t kGroupsMax = 256;
constexpr int kPartsMax = 32;  // of a key, from its front: in these a parameter's name has to begin

constexpr std::array<std::string_view, 35> kOptimizerWords = {"step",
                                                              "exp_avg",
                                                              "exp_avg_sq",
                                                              "max_exp_avg_sq",
                                                              "momentum_buffer",
                                                              "sum",
                                                              "square_avg",
                                                              "grad_avg",
                                                              "acc_delta",
                                                              "exp_inf",
                                                              "mu_product",
                                                              "mu",
                                                              "eta",
                                                              "ax",
                                                              "prev",
                                                              "step_size",
                                                              "exp_avg_slow",
                                                              "exp_avg_diff",
                                                              "exp_avg_sq_row",
                                                              "exp_avg_sq_col",
                                                              "row_var",
                                                              "col_var",
                                                              "variance",
                                                              "RMS",
                                                              "momentum",
                                                              "moment1",
                                                              "moment2",
                                                              "master_param",
                                                              "master_weight",
                                                              "master_weights",
                                                              "fp32_param",
                                                              "master",
                                                              "state1",
                                                              "state2",
                                                              "previous_grad"};
// Of those: the ones for a tensor of the parameter's own shape.
constexpr std::array<std::string_view, 15> kParameterShaped = {
    "exp_avg",    "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum",
    "square_avg", "acc_delta",  "grad_avg",       "exp_inf",         "prev",
    "step_size",  "ax",         "slow",           "exp_avg_diff",    "master_param"};
constexpr std::array<std::string_view, 7> kModelWords = {"model",       "module", "state_dict", "model_state_dict",
                                                         "model_state", "net",    "network"};
// Of a scheduler's state: its rates, which may be tensors.
constexpr std::array<std::string_view, 2> kRateLists = {"base_lrs", "_last_lr"};
constexpr std::array<std::string_view, 3> kWrappers = {"_orig_mod", "_fsdp_wrapped_module",
                                                       "_checkpoint_wrapped_module"};

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0: all of it
}

std::string joined(std::string_view above, std::string_view below) {
  if (above.empty() || below.empty()) return std::string(above.empty() ? below : above);
  return text(above, '.', below);
}

std::string without_wrappers(std::string_view name) {
  if (!name.starts_with('_') && name.find("._") == std::string_view::npos) return std::string(name);  // most
  std::string out;
  bool is_first = true;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    at = end + 1;
    if (contains(kWrappers, part)) continue;
    if (!is_first) out.push_back('.');
    is_first = false;
    out.append(part);
  }
  return out;
}

// The word for a role: optimizers have several for a parameter's copy in full precision.
std::string role_of(std::string_view word) {
  if (word == "master_param" || word == "master_weight" || word == "master_weights" || word == "fp32_param")
    return "master";
  return std::string(word);
}

// state, <parameter>, <role>: three steps, or more where the role is nested.
std::optional<OptimizerKey> nested_key(const std::vector<std::string>& path) {
  if (path.size() < 3) return std::nullopt;
  for (std::size_t i = path.size() - 2; i-- > 0;) {
    if (path[i] != "state") continue;
    const std::span<const std::string> steps(path);
    return OptimizerKey{stored_name(steps.first(i)), path[i + 1], stored_name(steps.subspan(i + 2))};
  }
  return std::nullopt;
}

// Where "state." begins in a step: at its front; in a whole key after the part that names an optimizer, or anywhere.
std::size_t find_state(std::string_view step, bool is_whole_key) {
  if (step.starts_with("state.") && !is_whole_key) return 0;
  std::size_t first = step.starts_with("state.") ? 0 : std::string_view::npos;
  if (!is_whole_key) return first;
  for (std::size_t at = step.find(".state."); at != std::string_view::npos; at = step.find(".state.", at + 1)) {
    if (last_part(step.substr(0, at)).find("optim") != std::string_view::npos) return at + 1;
    first = std::min(first, at + 1);
  }
  return first;
}

std::optional<OptimizerKey> flattened_key(const std::vector<std::string>& path) {
  if (path.empty()) return std::nullopt;
  const std::string_view step = path.back();
  const std::size_t at = find_state(step, path.size() == 1);
  const std::size_t dot = step.rfind('.');
  if (at == std::string_view::npos || dot <= at + 6) return std::nullopt;
  const std::string_view above = step.substr(0, at == 0 ? 0 : at - 1);
  const std::string outer = stored_name(std::span<const std::string>(path).first(path.size() - 1));
  return OptimizerKey{joined(outer, above), std::string(step.substr(at + 6, dot - at - 6)),
                      std::string(step.substr(dot + 1))};
}

struct Group {  // one optimizer
  std::string root;
  std::vector<std::size_t> keys = {};
  std::size_t words = 0;    // keys whose last part is a word of optimizers
  bool is_indexed = false;  // all parameters are numbers
  std::string model = {};   // the root under which the model has the parameters, if has_model
  bool has_model = false;
  bool is_tied = false;  // several models have them
};

// What speaks for a model as an optimizer's.
struct Votes {
  std::size_t names = 0;   // parameters that it has
  std::size_t shapes = 0;  // of those: with the shape that the optimizer's state has
};

// What leads to the model in the names that were given for an optimizer whose parameter is called so; empty: nothing.
std::string model_in(const ParameterNames& given, std::string_view parameter) {
  for (const std::vector<ParameterNames::Entry>& section : given.sections)
    for (const ParameterNames::Entry& entry : section)
      if (entry.name.size() > parameter.size() + 1 && entry.name.ends_with(parameter) &&
          entry.name[entry.name.size() - parameter.size() - 1] == '.')
        return entry.name.substr(0, entry.name.size() - parameter.size() - 1);
  return {};
}

class Namer {
 public:
  Namer(std::span<const StateKey> keys, const StateNameOptions& options) : keys_(keys), options_(options) {}
  StateNames run();

 private:
  void find_schedulers();
  void find_groups();
  [[nodiscard]] std::unordered_set<std::string> names_of_others() const;
  [[nodiscard]] bool is_of(const Group& group, const std::unordered_set<std::string>& others) const;
  void match_models();
  void vote(std::size_t key, std::string_view name);
  void trust_words();
  [[nodiscard]] bool may_begin_name(std::size_t key, std::string_view name, std::size_t at) const;
  enum class Caution : std::uint8_t { none, with_roots, with_wrappers, with_both, as_stored };
  void assign(Caution caution);
  void drop_module_prefix(const std::vector<std::size_t>& keys);
  [[nodiscard]] std::optional<std::set<Shape>> numbered_shapes() const;
  [[nodiscard]] bool has_other_model() const;
  [[nodiscard]] bool is_unique() const;
  void make_unique();
  [[nodiscard]] std::string stored(std::size_t key) const { return stored_name(keys_[key].path); }

  std::span<const StateKey> keys_;
  StateNameOptions options_;
  std::vector<Group> groups_;
  std::vector<std::optional<OptimizerKey>> optimizer_;  // of each key
  std::vector<std::size_t> group_of_;                   // of each key; groups_.size(): none
  std::vector<bool> is_hyperparameter_;
  std::vector<std::string> model_roots_;  // longest first
  struct Parameter {
    std::string name;
    std::uint32_t group;  // one that has it
    std::uint32_t next;   // the same in another group
    const Shape* shape;   // of its state there; nullptr: not known
  };
  void choose_model(Group& group, const std::unordered_map<std::string, Votes>& voted, std::size_t parameters);
  [[nodiscard]] std::uint32_t find_parameter(std::string_view name) const;
  bool add_parameter(std::string name, std::uint32_t group, const Shape* shape);
  std::vector<Parameter> parameters_;
  IndexTable parameter_numbers_;                               // by name, of the first of that name
  std::vector<std::unordered_map<std::string, Votes>> votes_;  // of each group, by root
  StateNames out_;
};

// A tensor of one element at most, or of a shape that is not known; or no tensor.
bool may_be_number(const StateKey& key) {
  return key.shape == nullptr || std::ranges::all_of(*key.shape, [](std::uint64_t size) { return size <= 1; });
}

bool is_rate(const StateKey& key) {
  const std::vector<std::string>& path = key.path;
  return path.size() >= 2 && contains(kRateLists, path[path.size() - 2]) && is_number(path.back()) &&
         may_be_number(key);
}

// What schedulers keep is no weight: their rates, and the numbers beside those that are no optimizer's.
void Namer::find_schedulers() {
  std::unordered_set<std::string> roots;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    const std::span<const std::string> path(keys_[i].path);
    if (!is_rate(keys_[i])) continue;
    is_hyperparameter_[i] = true;
    if (path.size() > 2) roots.insert(stored_name(path.first(path.size() - 2)));
  }
  for (std::size_t i = 0; i < keys_.size() && !roots.empty(); ++i) {
    const std::span<const std::string> path(keys_[i].path);
    if (!may_be_number(keys_[i]) || optimizer_key(keys_[i].path)) continue;
    if (groups_root(keys_[i].path)) continue;
    for (std::size_t steps = 1; steps < path.size() && !is_hyperparameter_[i]; ++steps)
      is_hyperparameter_[i] = roots.contains(stored_name(path.first(steps)));
  }
}

// All that no optimizer keeps: with and without the first step, which may lead to a model.
std::unordered_set<std::string> Namer::names_of_others() const {
  std::unordered_set<std::string> out;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    const std::span<const std::string> path(keys_[i].path);
    if (!keys_[i].is_tensor || optimizer_[i] || is_hyperparameter_[i]) continue;
    out.insert(stored_name(path));
    if (path.size() > 1) out.insert(stored_name(path.subspan(1)));
  }
  return out;
}

// Whether its parameters are all tensors elsewhere, by whole names: then its words may be any.
bool Namer::is_of(const Group& group, const std::unordered_set<std::string>& others) const {
  return std::ranges::all_of(group.keys, [&](std::size_t key) {
    return nested_key(keys_[key].path) && others.contains(optimizer_[key]->parameter);
  });
}

void Namer::find_groups() {
  std::unordered_map<std::string, std::size_t> by_root;
  std::unordered_set<std::string> with_groups;
  optimizer_.resize(keys_.size());
  is_hyperparameter_.resize(keys_.size());
  find_schedulers();
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (is_hyperparameter_[i]) continue;
    if (std::optional<std::string> root = groups_root(keys_[i].path)) {
      is_hyperparameter_[i] = true;
      with_groups.insert(std::move(*root));
      continue;
    }
    optimizer_[i] = optimizer_key(keys_[i].path);
    if (!optimizer_[i]) continue;
    const auto [found, is_new] = by_root.emplace(optimizer_[i]->root, groups_.size());
    if (is_new) groups_.push_back({.root = optimizer_[i]->root});
    Group& group = groups_[found->second];
    group.keys.push_back(i);
    group.words += is_optimizer_word(optimizer_[i]->role) ? 1 : 0;
  }
  std::optional<std::unordered_set<std::string>> others;
  std::erase_if(groups_, [&](const Group& group) {
    if (group.words * 2 > group.keys.size() || with_groups.contains(group.root)) return false;
    if (!others) others = names_of_others();
    return !is_of(group, *others);
  });
  if (groups_.size() > kGroupsMax) {
    out_.notes.push_back(text(groups_.size(), " optimizers in one state: all names are as stored"));
    groups_.clear();
  }
  group_of_.assign(keys_.size(), groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    group.is_indexed = true;
    for (const std::size_t key : group.keys) {
      group_of_[key] = g;
      group.is_indexed = group.is_indexed && !keys_[key].model && is_number(optimizer_[key]->parameter);
      if (!keys_[key].model) continue;
      group.model = without_wrappers(*keys_[key].model);
      group.has_model = true;
    }
    out_.is_indexed = out_.is_indexed || group.is_indexed;
    if (group.is_indexed)
      out_.notes.push_back(
          text("the optimizer's state", group.root.empty() ? "" : " of ", group.root,
               " is keyed by number: its tensors keep their stored names; --param-names gives theirs"));
  }
}

// A name may begin where a step of the path does; anywhere after a dot, where nesting isn't known; and after "module.".
bool Namer::may_begin_name(std::size_t key, std::string_view name, std::size_t at) const {
  const std::vector<std::string>& path = keys_[key].path;
  if (at == 0 || path.size() == 1) return true;
  if (name.substr(0, at).ends_with(".module.") || name.substr(0, at) == "module.") return true;
  std::size_t begin = 0;
  for (const std::string& step : path) {
    if (begin == at) return true;
    if (begin > at) return false;
    begin += without_wrappers(step).size() + 1;
  }
  return false;
}

std::uint32_t Namer::find_parameter(std::string_view name) const {
  return parameter_numbers_.find(std::hash<std::string_view>()(name),
                                 [&](std::uint32_t one) { return parameters_[one].name == name; });
}

// Groups come one after another: if the group has it already, it was the last to be added to the name's.
bool Namer::add_parameter(std::string name, std::uint32_t group, const Shape* shape) {
  const auto next = static_cast<std::uint32_t>(parameters_.size());
  const std::uint32_t first = parameter_numbers_.find_or_add(
      std::hash<std::string_view>()(name), next, [&](std::uint32_t one) { return parameters_[one].name == name; });
  if (first == next) {
    parameters_.push_back({std::move(name), group, IndexTable::kNone, shape});
    return true;
  }
  const std::uint32_t last = parameters_[first].next == IndexTable::kNone ? first : parameters_[first].next;
  if (parameters_[last].group == group) {
    if (shape != nullptr) parameters_[last].shape = shape;
    return false;
  }
  parameters_.push_back({{}, group, parameters_[first].next, shape});
  parameters_[first].next = next;
  return true;
}

void Namer::vote(std::size_t key, std::string_view name) {
  std::size_t at = 0;
  for (int parts = 0; parts < kPartsMax; ++parts) {
    const std::uint32_t found = find_parameter(name.substr(at));
    if (found != IndexTable::kNone && may_begin_name(key, name, at))
      for (std::uint32_t one = found; one != IndexTable::kNone; one = parameters_[one].next) {
        Votes& votes = votes_[parameters_[one].group][std::string(name.substr(0, at == 0 ? 0 : at - 1))];
        ++votes.names;
        const Shape* shape = parameters_[one].shape;
        votes.shapes += shape != nullptr && keys_[key].shape != nullptr && *shape == *keys_[key].shape ? 1 : 0;
      }
    const std::size_t dot = name.find('.', at);
    if (dot == std::string_view::npos) return;
    at = dot + 1;
  }
}

// Under which root do most of the optimizer's parameters lie?
void Namer::choose_model(Group& group, const std::unordered_map<std::string, Votes>& voted, std::size_t parameters) {
  // Votes; then the same place in a list, or the same name but for its kind; then a model's usual name.
  const auto rank = [&](const auto& each) {
    const std::string& root = each.first;
    return std::tuple(each.second.names, each.second.shapes, last_part(root) == last_part(group.root),
                      are_paired(group.root, root), !is_average(root), contains(kModelWords, last_part(root)));
  };
  const std::pair<const std::string, Votes>* best = nullptr;
  const std::string* other = nullptr;  // as good
  for (const auto& each : voted) {
    if (best == nullptr || rank(each) > rank(*best)) {
      best = &each;
      other = nullptr;
    } else if (rank(each) == rank(*best)) {
      other = &each.first;
    }
  }
  if (best == nullptr || best->second.names * 2 < parameters) return;
  group.is_tied = other != nullptr;
  group.has_model = other == nullptr;
  if (group.has_model) {
    group.model = best->first;
    return;
  }
  const auto [first, second] = std::minmax(best->first, *other);
  out_.unnamed.push_back(text("the optimizer", group.root.empty() ? "" : " ", group.root, " may be that of ", first,
                              " or of ", second,
                              ", which have the same parameters: its tensors keep their stored names; ",
                              "say it with --param-names FILE: {\"", group.root, "\": \"", first, "\"}"));
}

void Namer::match_models() {
  std::vector<std::size_t> parameters(groups_.size(), 0);
  parameters_.reserve(keys_.size());
  parameter_numbers_.clear(keys_.size());
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].is_indexed || groups_[g].has_model) continue;
    for (const std::size_t key : groups_[g].keys) {
      const Shape* shape = has_parameter_shape(optimizer_[key]->role) ? keys_[key].shape : nullptr;
      parameters[g] += add_parameter(without_wrappers(optimizer_[key]->parameter), g, shape) ? 1 : 0;
    }
  }
  votes_.resize(groups_.size());
  for (std::size_t i = 0; i < keys_.size(); ++i)
    if (keys_[i].is_tensor && group_of_[i] == groups_.size() && !is_hyperparameter_[i])
      vote(i, without_wrappers(stored(i)));
  std::set<std::string> roots;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g].has_model) choose_model(groups_[g], votes_[g], parameters[g]);
    if (groups_[g].has_model) roots.insert(groups_[g].model);
  }
  model_roots_.assign(roots.begin(), roots.end());
  std::ranges::sort(model_roots_, [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

// The only dict that is called as models are, if there is one and no optimizer says otherwise.
void Namer::trust_words() {
  if (!model_roots_.empty() || !options_.trust_model_words) return;
  std::set<std::string> roots;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    const std::vector<std::string>& path = keys_[i].path;
    if (!keys_[i].is_tensor || group_of_[i] != groups_.size() || is_hyperparameter_[i]) continue;
    for (std::size_t step = 0; step + 1 < path.size(); ++step) {
      if (!contains(kModelWords, path[step])) continue;
      roots.insert(stored_name(std::span<const std::string>(path).first(step + 1)));
      break;
    }
  }
  if (roots.size() == 1) model_roots_.assign(roots.begin(), roots.end());
}

// Each caution's names are nearer to the stored ones.
void Namer::assign(Caution caution) {
  out_.names.assign(keys_.size(), {});
  std::vector<std::vector<std::size_t>> of_root(model_roots_.size() + 1);  // the last: below none
  const auto cleaned = [caution](std::string_view name) {
    return caution < Caution::with_wrappers ? without_wrappers(name) : std::string(name);
  };
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    StateName& out = out_.names[i];
    out.name = stored(i);
    out.is_object = !keys_[i].is_tensor || is_hyperparameter_[i];
    if (out.is_object || caution == Caution::as_stored) continue;
    if (group_of_[i] != groups_.size()) {
      const Group& group = groups_[group_of_[i]];
      out.key = *optimizer_[i];
      out.role = role_of(out.key->role);
      const bool is_bare = caution == Caution::none || caution == Caution::with_wrappers;
      if (group.is_indexed || group.is_tied || (!is_bare && !group.has_model)) {
        out.name = joined(joined(group.root, "state"), out.key->parameter);
        continue;
      }
      out.name = cleaned(out.key->parameter);
      const auto root = group.has_model ? std::ranges::find(model_roots_, group.model) : model_roots_.end();
      of_root[static_cast<std::size_t>(root - model_roots_.begin())].push_back(i);
      continue;
    }
    out.name = cleaned(out.name);
    std::size_t root = 0;
    while (root < model_roots_.size() && !model_roots_[root].empty() && !out.name.starts_with(model_roots_[root] + "."))
      ++root;
    of_root[root].push_back(i);
    if (root < model_roots_.size() && !model_roots_[root].empty()) out.name.erase(0, model_roots_[root].size() + 1);
  }
  for (std::size_t root = 0; root < of_root.size(); ++root) {
    if (caution < Caution::with_wrappers && (root < model_roots_.size() || model_roots_.empty()))
      drop_module_prefix(of_root[root]);
    if (root == model_roots_.size() || (caution != Caution::with_roots && caution != Caution::with_both)) continue;
    std::string_view shown = model_roots_[root];
    if (caution == Caution::with_roots && last_part(shown) == "module")  // a data-parallel wrapper's
      shown.remove_suffix(std::min(shown.size(), std::string_view(".module").size()));
    for (const std::size_t key : of_root[root]) out_.names[key].name = joined(shown, out_.names[key].name);
  }
}

// Data-parallel wrappers put it before each name, or none.
void Namer::drop_module_prefix(const std::vector<std::size_t>& keys) {
  constexpr std::string_view kPrefix = "module.";
  const auto has_prefix = [&](std::size_t key) {
    return out_.names[key].name.starts_with(kPrefix) && out_.names[key].name.size() > kPrefix.size();
  };
  if (!std::ranges::all_of(keys, has_prefix)) return;
  for (const std::size_t key : keys) out_.names[key].name.erase(0, kPrefix.size());
}

// The shapes of all numbered parameters; nothing unless the state of each tells its own.
std::optional<std::set<Shape>> Namer::numbered_shapes() const {
  std::map<std::pair<const Group*, std::string_view>, const Shape*> shape_of;
  for (const Group& group : groups_)
    for (const std::size_t key : group.keys) {
      if (!group.is_indexed) break;
      const Shape*& shape = shape_of[{&group, optimizer_[key]->parameter}];
      if (has_parameter_shape(optimizer_[key]->role) && keys_[key].shape != nullptr) shape = keys_[key].shape;
    }
  std::set<Shape> shapes;
  for (const auto& [parameter, shape] : shape_of) {
    if (shape == nullptr) return std::nullopt;
    shapes.insert(*shape);
  }
  return shapes;
}

// Whether a tensor that no optimizer keeps, and that may be a numbered parameter, lies outside all models that are known.
bool Namer::has_other_model() const {
  const std::optional<std::set<Shape>> numbered = numbered_shapes();
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (!keys_[i].is_tensor || group_of_[i] != groups_.size() || is_hyperparameter_[i]) continue;
    const std::string name = without_wrappers(stored(i));
    const auto has = [&](const std::string& root) { return root.empty() || name.starts_with(root + "."); };
    const Shape* shape = keys_[i].shape;
    const bool may_be_numbered = !numbered || shape == nullptr || numbered->contains(*shape);
    if (may_be_numbered && std::ranges::none_of(model_roots_, has)) return true;
  }
  return false;
}

bool Namer::is_unique() const {
  IndexTable seen(out_.names.size());
  for (std::uint32_t i = 0; i < out_.names.size(); ++i) {
    const StateName& name = out_.names[i];
    if (name.is_object) continue;
    const std::hash<std::string_view> hash;
    const auto is_equal = [&](std::uint32_t other) {
      return out_.names[other].name == name.name && out_.names[other].role == name.role;
    };
    if (seen.find_or_add(hash(name.name) * 31 + hash(name.role), i, is_equal) != i) return false;
  }
  return true;
}

// Paths that only differ in where their dots lie, or don't differ.
void Namer::make_unique() {
  std::unordered_set<std::string> taken;
  for (const StateName& name : out_.names)
    if (!name.is_object) taken.insert(name.name);
  std::unordered_map<std::string, std::size_t> times;
  for (StateName& name : out_.names) {
    if (name.is_object) continue;
    std::size_t& time = times[name.name];
    if (++time == 1) continue;
    const std::string stored = name.name;
    for (name.name = text(stored, '#', time); !taken.insert(name.name).second;) name.name = text(stored, '#', ++time);
  }
}

StateNames Namer::run() {
  find_groups();
  match_models();
  trust_words();
  // Numbers may be those of another model, whose names are to be told from these.
  const bool keeps_roots =
      options_.keep_roots || (out_.is_indexed && std::ranges::any_of(groups_, &Group::has_model) && has_other_model());
  for (const Caution caution :
       {Caution::none, Caution::with_roots, Caution::with_wrappers, Caution::with_both, Caution::as_stored}) {
    if (keeps_roots && (caution == Caution::none || caution == Caution::with_wrappers)) continue;
    assign(caution);
    if (is_unique()) {
      if (caution != (keeps_roots ? Caution::with_roots : Caution::none))
        out_.notes.emplace_back("shorter names would merge tensors that differ: names are nearer to the stored ones");
      return std::move(out_);
    }
  }
  out_.notes.emplace_back("some keys differ only in where their dots lie: the later ones end in #2, #3, ...");
  make_unique();
  return std::move(out_);
}

}  // namespace

std::optional<OptimizerKey> optimizer_key(const std::vector<std::string>& path) {
  std::optional<OptimizerKey> found = nested_key(path);
  return found ? found : flattened_key(path);
}

std::optional<std::string> groups_root(const std::vector<std::string>& path) {
  const std::span<const std::string> steps(path);
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] == "param_groups" || path[i].starts_with("param_groups.")) return stored_name(steps.first(i));
    if (path.size() != 1) continue;
    if (const std::size_t at = path[i].find(".param_groups."); at != std::string::npos) return path[i].substr(0, at);
  }
  return std::nullopt;
}

Status tell_models(const ParameterNames& given, std::span<StateKey> keys) {
  for (const ParameterNames& each : given.optimizers) {
    if (each.optimizer.empty()) continue;
    std::vector<std::pair<StateKey*, std::string>> its;  // and the parameter
    bool any_key = false;
    for (StateKey& key : keys) {
      std::optional<OptimizerKey> found = optimizer_key(key.path);
      any_key = any_key || groups_root(key.path) == each.optimizer || (found && found->root == each.optimizer);
      if (found && found->root == each.optimizer && !is_number(found->parameter))
        its.emplace_back(&key, std::move(found->parameter));
    }
    if (!any_key) return Error{Code::not_found, text("--param-names: there is no optimizer \"", each.optimizer, '"')};
    std::string model = each.model;
    for (std::size_t i = 0; i < its.size() && model.empty(); ++i) model = model_in(each, its[i].second);
    const auto is_under = [&](const StateKey& key) {
      return key.is_tensor && stored_name(key.path).starts_with(model + ".");
    };
    if (model.empty()) continue;
    if (std::ranges::none_of(keys, is_under))
      return Error{Code::not_found, text("--param-names: no tensors lie under \"", model, '"')};
    for (auto& [key, parameter] : its) key->model = model;
  }
  return {};
}

std::string stored_name(std::span<const std::string> path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i != 0) out.push_back('.');
    out.append(path[i]);
  }
  return out;
}

bool is_optimizer_word(std::string_view word) {
  return contains(kOptimizerWords, word);
}

StateNames name_states(std::span<const StateKey> keys, const StateNameOptions& options) {
  return Namer(keys, options).run();
}

bool has_parameter_shape(std::string_view word) {
  return contains(kParameterShaped, word);
}

std::string role_key(std::string_view name, std::string_view role) {
  return text(name, "/", role);
}

}  // namespace pawl::checkpoint
