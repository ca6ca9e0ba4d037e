#include "checkpoint/formats/torch/optimizer_names.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "checkpoint/names/model_pairs.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kGroupsMax = 4096;

bool may_be_parameter(ElementType type) {
  const std::string_view name = name_of(type);
  return name.starts_with("float") || name.starts_with("bfloat") || name.starts_with("complex");
}

// A name that was given, in a dict: bare, or with what leads to the dict. Nothing: it is not there.
std::optional<std::size_t> find_given(const NameDict& dict, std::string_view name) {
  if (const auto at = dict.by_bare_name.find(bare_name(name)); at != dict.by_bare_name.end()) return at->second;
  const std::string& root = dict.root;
  if (root.empty() || !name.starts_with(root) || name.size() <= root.size() + 1 || name[root.size()] != '.')
    return std::nullopt;
  const auto at = dict.by_bare_name.find(bare_name(name.substr(root.size() + 1)));
  return at == dict.by_bare_name.end() ? std::nullopt : std::optional<std::size_t>(at->second);
}

// Whether they are given with what leads to the dict: a name that it has only so.
bool says_root(const NameDict& dict, const ParameterNames& given) {
  return std::ranges::any_of(given.sections, [&](const std::vector<ParameterNames::Entry>& section) {
    return std::ranges::any_of(section, [&](const ParameterNames::Entry& entry) {
      return !dict.by_bare_name.contains(bare_name(entry.name)) && find_given(dict, entry.name);
    });
  });
}

// The first of the given names that the dict doesn't have; nullptr: it has all.
const std::string* unknown_in(const NameDict& dict, const ParameterNames& given) {
  for (const std::vector<ParameterNames::Entry>& section : given.sections)
    for (const ParameterNames::Entry& entry : section)
      if (!find_given(dict, entry.name)) return &entry.name;
  return nullptr;
}

// The given names, as the dict has them and with its shapes. Tied names are given by either.
std::vector<std::vector<NamedShape>> sections_in(const NameDict& dict, const ParameterNames& given) {
  std::vector<std::vector<NamedShape>> out;
  std::unordered_set<std::string_view> seen;
  for (const std::vector<ParameterNames::Entry>& section : given.sections) {
    out.emplace_back();
    for (const ParameterNames::Entry& entry : section) {
      if (dict.names.empty()) {
        out.back().push_back({entry.name, entry.shape});
        continue;
      }
      const NamedShape& known = dict.names[*find_given(dict, entry.name)];
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

// Whether the dict has as many names of each shape. If it has more, or several of one, who is who may be unclear.
bool may_hold(const NameDict& dict, const NumberedOptimizer& optimizer) {
  if (dict.names.size() < optimizer.numbers) return false;
  return std::ranges::all_of(optimizer.shapes, [&](const auto& needed) {
    const auto found = dict.shapes.find(needed.first);
    return found != dict.shapes.end() && found->second >= needed.second;
  });
}

// Of several that fit: the one whose key is the optimizer's, or the only one that is no average.
void prefer(std::vector<const NameDict*>& fitting, const NumberedOptimizer& optimizer) {
  std::vector<const NameDict*> paired, trained;
  for (const NameDict* each : fitting) {
    if (are_paired(optimizer.key(), each->root)) paired.push_back(each);
    if (!is_average(each->root)) trained.push_back(each);
  }
  if (fitting.size() > 1 && paired.size() == 1) fitting = std::move(paired);
  if (fitting.size() > 1 && trained.size() == 1) fitting = std::move(trained);
}

// The model that a person gave to an optimizer; empty: none.
std::string_view told_model(const std::optional<ParameterNames>& given, const std::string& optimizer) {
  if (!given) return {};
  for (const ParameterNames& each : given->optimizers)
    if (each.optimizer == optimizer) return each.model;
  return {};
}

// One optimizer on all ranks, or one dealt to them.
Result<NameFit> fit_in(const NameDict& dict, const NumberedOptimizer& optimizer) {
  if (dict.names.size() < optimizer.numbers)
    return Error{Code::invalid, text("it has ", optimizer.numbers, " parameters, and ", dict.names.size(),
                                     " names are known: give --param-names FILE")};
  std::vector<IndexedGroup> groups;  // of all ranks, one after another
  for (std::size_t rank = 0; rank < (optimizer.alike ? 1 : optimizer.ranks.size()); ++rank)
    groups.insert(groups.end(), optimizer.ranks[rank].begin(), optimizer.ranks[rank].end());
  PAWL_ASSIGN(const NameIndices indices, name_by_shape(dict.names, groups));
  NameFit out{&dict};
  auto next = indices.begin();
  for (const std::vector<IndexedGroup>& rank : optimizer.ranks) {
    if (optimizer.alike) next = indices.begin();
    const auto end = next + static_cast<std::ptrdiff_t>(rank.size());
    out.names.push_back(names_at({next, end}, dict.names));
    next = end;
  }
  return out;
}

// How many parameters each group has, on all ranks together where they were dealt.
std::vector<std::size_t> sizes_of_groups(const NumberedOptimizer& optimizer) {
  std::vector<std::size_t> out;
  for (std::size_t rank = 0; rank < (optimizer.alike ? 1 : optimizer.ranks.size()); ++rank) {
    out.resize(std::max(out.size(), optimizer.ranks[rank].size()));
    for (std::size_t g = 0; g < optimizer.ranks[rank].size(); ++g) out[g] += optimizer.ranks[rank][g].size();
  }
  return out;
}

Result<NameFit> fit_given(const NameDict& dict, const NumberedOptimizer& optimizer, const ParameterNames& given) {
  const std::vector<std::vector<NamedShape>> listed = sections_in(dict, given);
  const std::vector<NamedShape> names = flattened(listed);
  NameFit out{&dict};
  out.says_root = says_root(dict, given);
  Error why{Code::invalid, "the ranks' optimizers differ"};
  const auto sections = [&](const NumberedOptimizer& of) {
    return given.says_groups ? Result<std::vector<std::vector<NamedShape>>>(listed)
                             : sections_by_number(listed, sizes_of_groups(of));
  };
  if (optimizer.alike) {
    const bool by_groups = given.says_groups || optimizer.ranks[0].size() > 1;
    PAWL_ASSIGN(const std::vector<std::vector<NamedShape>> of_groups, sections(optimizer));
    Result<NameIndices> order =
        by_groups ? order_parameters_in(of_groups, optimizer.ranks[0]) : order_parameters(names, optimizer.ranks[0]);
    if (order) {
      out.names.assign(optimizer.ranks.size(), names_at(*order, names));
      return out;
    }
    why = order.error();
  }
  if (optimizer.ranks.size() == 1) return why;
  NumberedOptimizer dealt_to = optimizer;  // equal groups may be parts, too: of ranks that were dealt equal shapes
  dealt_to.alike = false;
  const bool by_groups = given.says_groups || optimizer.ranks[0].size() > 1;
  Result<std::vector<std::vector<NamedShape>>> of_groups = sections(dealt_to);
  if (!of_groups) return optimizer.alike ? why : of_groups.error();
  Result<std::vector<NameIndices>> dealt =
      by_groups ? deal_parameters_in(*of_groups, optimizer.ranks) : deal_parameters(names, optimizer.ranks);
  if (!dealt) return optimizer.alike ? why : dealt.error();
  for (const NameIndices& indices : *dealt) out.names.push_back(names_at(indices, names));
  return out;
}

// What each list of names could be: [list][optimizer].
using Fits = std::vector<std::vector<std::optional<NameFit>>>;

// Gives lists to optimizers, as long as one of them has only one choice left.
class Shares {
 public:
  Shares(std::span<const NumberedOptimizer> optimizers, Fits fits, std::vector<std::optional<NameFit>>& out)
      : optimizers_(optimizers), fits_(std::move(fits)), out_(out) {}

  void share() {
    while (share_once()) continue;
  }
  [[nodiscard]] std::vector<std::size_t> choices(std::size_t list) const {
    std::vector<std::size_t> out;
    for (std::size_t o = 0; o < optimizers_.size(); ++o)
      if (fits_[list][o]) out.push_back(o);
    return out;
  }
  [[nodiscard]] bool is_given(std::size_t list) const { return given_.contains(list); }

 private:
  bool share_once() {
    for (std::size_t list = 0; list < fits_.size() && fits_.size() <= optimizers_.size(); ++list) {
      std::vector<std::size_t> mine = choices(list);
      if (mine.size() > 1) std::erase_if(mine, [&](std::size_t o) { return !is_paired(list, o); });
      if (mine.size() == 1) return give(list, mine[0]);
    }
    for (std::size_t o = 0; o < optimizers_.size() && optimizers_.size() <= fits_.size(); ++o) {
      std::vector<std::size_t> lists;
      for (std::size_t list = 0; list < fits_.size(); ++list)
        if (fits_[list][o]) lists.push_back(list);
      if (lists.size() == 1) return give(lists[0], o);
    }
    return share_in_order();
  }
  [[nodiscard]] bool is_paired(std::size_t list, std::size_t o) const {
    return are_paired(optimizers_[o].key(), fits_[list][o]->dict->root);
  }
  // A list of optimizers in the file goes by its order, as whoever wrote it reads it.
  bool share_in_order() {
    if (fits_.size() != optimizers_.size() || fits_.empty() || !given_.empty()) return false;
    for (std::size_t i = 0; i < fits_.size(); ++i) {
      const std::vector<PathStep>& path = optimizers_[i].path;
      if (!fits_[i][i] || path.empty() || path.back().kind != PathStep::Kind::index) return false;
    }
    for (std::size_t i = 0; i < fits_.size(); ++i) give(i, i);
    return true;
  }
  bool give(std::size_t list, std::size_t optimizer) {
    out_[optimizer] = std::move(fits_[list][optimizer]);
    for (auto& each : fits_) each[optimizer].reset();
    for (auto& each : fits_[list]) each.reset();
    given_.insert(list);
    return true;
  }

  std::span<const NumberedOptimizer> optimizers_;
  Fits fits_;
  std::vector<std::optional<NameFit>>& out_;  // of each optimizer
  std::set<std::size_t> given_;               // lists
};

}  // namespace

void OptimizerNames::add_to(std::map<std::string, std::size_t>& index, std::string key, std::string root,
                            std::string name, std::size_t item) {
  const auto [at, is_new] = index.emplace(std::move(key), dicts_.size());
  if (is_new) dicts_.push_back({std::move(root)});
  NameDict& dict = dicts_[at->second];
  const Shape& shape = join_.items[item].parts[0].part->shape;
  dict.by_bare_name.emplace(bare_name(name), dict.names.size());
  dict.names.push_back({std::move(name), shape});
  dict.items.push_back(item);
  ++dict.shapes[shape];
}

OptimizerNames::OptimizerNames(const Join& join, const std::optional<ParameterNames>& given)
    : join_(join), given_(given) {
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
    for (std::size_t i = 0; i < join_.items.size(); ++i)
      if (const JoinItem& item = join_.items[i]; !item.path.empty() && item.alias_of == kNoItem &&
                                                 may_be_parameter(item.parts[0].part->type) &&
                                                 !item.parts[0].part->is_held && !is_statistic(name_of(item.path)))
        visit(i, item);
  };
  std::map<std::string, std::size_t> index;
  each([&](std::size_t i, const JoinItem& item) {
    const std::vector<PathStep> parent(item.path.begin(), item.path.end() - 1);
    add_to(index, key_of(parent), name_of(parent), item.path.back().text, i);
  });
  plain_ = dicts_.size();
  for (const JoinItem& item : join_.items) {  // a tied name is as good as the one that is kept
    if (item.alias_of == kNoItem || item.path.empty()) continue;
    const auto at = index.find(key_of(std::span<const PathStep>(item.path.data(), item.path.size() - 1)));
    if (at == index.end()) continue;
    NameDict& dict = dicts_[at->second];
    const auto kept = dict.by_bare_name.find(bare_name(join_.items[item.alias_of].path.back().text));
    if (kept != dict.by_bare_name.end())
      dict.by_bare_name.emplace(bare_name(item.path.back().text), std::size_t{kept->second});
  }
  index.clear();
  each([&](std::size_t i, const JoinItem& item) {
    if (item.path.size() < 2) return;
    add_to(index, key_of(std::span<const PathStep>(item.path.data(), 1)), item.path[0].text,
           name_of({item.path.begin() + 1, item.path.end()}), i);
  });
  tops_ = dicts_.size();
  index.clear();
  each([&](std::size_t i, const JoinItem& item) { add_to(index, {}, {}, name_of(item.path), i); });
}

std::array<std::span<const NameDict>, 3> OptimizerNames::kinds() const {
  const std::span<const NameDict> all(dicts_);
  return {all.first(plain_), all.subspan(plain_, tops_ - plain_), all.subspan(tops_)};
}

// Where the optimizer's parameters are. Where that is nowhere: the largest, whose reason tells most.
Result<const NameDict*> OptimizerNames::choose(const NumberedOptimizer& optimizer, const ParameterNames* given) const {
  if (dicts_.empty()) return &nothing_;
  const std::string_view told = told_model(given_, optimizer.key());
  const NameDict* largest = dicts_.data();
  for (const std::span<const NameDict> kind : kinds()) {
    std::vector<const NameDict*> fitting;
    for (const NameDict& each : kind) {
      if (each.names.size() > largest->names.size()) largest = &each;
      if (!told.empty() && each.root != told) continue;
      if (given != nullptr ? unknown_in(each, *given) == nullptr : may_hold(each, optimizer)) fitting.push_back(&each);
    }
    if (given != nullptr && fitting.size() > 1)
      std::erase_if(fitting, [&](const NameDict* each) { return !may_hold(*each, optimizer); });
    prefer(fitting, optimizer);
    if (fitting.size() > 1)
      return Error{Code::invalid,
                   text(given != nullptr ? "its names are" : "its numbers may be", " those of two models, ",
                        fitting[0]->root, " and ", fitting[1]->root, ": give --param-names FILE, with names such as ",
                        fitting[0]->root, '.', fitting[0]->names[0].name)};
    if (!fitting.empty()) return fitting[0];
  }
  const std::string* unknown = given == nullptr ? nullptr : unknown_in(dicts_.back(), *given);
  if (unknown == nullptr) return largest;
  return Error{Code::invalid, text("--param-names: ", *unknown, " is not a tensor of the model in these files")};
}

std::size_t OptimizerNames::find_item(std::string_view name) const {
  for (const std::span<const NameDict> kind : kinds()) {
    std::size_t found = kNoItem;
    for (const NameDict& dict : kind) {
      const auto at = dict.by_bare_name.find(bare_name(name));
      if (at == dict.by_bare_name.end()) continue;
      if (found != kNoItem) return kNoItem;
      found = dict.items[at->second];
    }
    if (found != kNoItem) return found;
  }
  return kNoItem;
}

Result<NameFit> OptimizerNames::by_shapes(const NumberedOptimizer& optimizer) const {
  if (optimizer.ranks[0].size() > kGroupsMax) return Error{Code::invalid, "it has too many groups"};
  PAWL_ASSIGN(const NameDict* const dict, choose(optimizer, nullptr));
  return fit_in(*dict, optimizer);
}

Result<NameFit> OptimizerNames::fit(const NumberedOptimizer& optimizer, const ParameterNames& given) const {
  if (optimizer.ranks[0].size() > kGroupsMax) return Error{Code::invalid, "it has too many groups"};
  PAWL_ASSIGN(const NameDict* const dict, choose(optimizer, &given));
  return fit_given(*dict, optimizer, given);
}

Result<std::vector<std::optional<NameFit>>> OptimizerNames::as_given(std::span<const NumberedOptimizer> all) const {
  std::vector<std::optional<NameFit>> out(all.size());
  if (!given_) return out;
  const bool is_one = given_->optimizers.empty();
  const std::span<const ParameterNames> lists =
      is_one ? std::span(&*given_, 1) : std::span<const ParameterNames>(given_->optimizers);
  std::vector<const ParameterNames*> others;  // that don't say whose they are
  for (const ParameterNames& each : lists) {
    if (!each.model.empty()) continue;  // of an optimizer that has names
    if (each.optimizer.empty()) {
      others.push_back(&each);
      continue;
    }
    const auto found = std::ranges::find_if(
        all, [&](const NumberedOptimizer& optimizer) { return optimizer.key() == each.optimizer; });
    if (found == all.end()) continue;  // it has names (tell_models)
    Result<NameFit> its = fit(*found, each);
    if (!its) return std::move(its).error().within(found->label());
    out[static_cast<std::size_t>(found - all.begin())] = std::move(*its);
  }
  if (!all.empty()) {
    PAWL_TRY(share(all, others, out));
  }
  return out;
}

// Each list goes to the only optimizer that it fits and that has none yet.
Status OptimizerNames::share(std::span<const NumberedOptimizer> all, const std::vector<const ParameterNames*>& lists,
                             std::vector<std::optional<NameFit>>& out) const {
  Fits fits;
  std::vector<std::optional<Error>> why(lists.size());
  for (std::size_t list = 0; list < lists.size(); ++list) {
    fits.emplace_back(all.size());
    for (std::size_t o = 0; o < all.size(); ++o) {
      if (out[o]) continue;
      Result<NameFit> its = fit(all[o], *lists[list]);
      if (its)
        fits[list][o] = std::move(*its);
      else if (!why[list])
        why[list] = std::move(its).error().within(all[o].label());
    }
  }
  Shares shares(all, std::move(fits), out);
  shares.share();
  for (std::size_t list = 0; list < lists.size(); ++list) {
    if (shares.is_given(list)) continue;
    const std::vector<std::size_t> choices = shares.choices(list);
    if (choices.size() > 1)
      return Error{Code::invalid,
                   text("the names fit ", all[choices[0]].label(), " and ", all[choices[1]].label(),
                        ": say whose they are, in a JSON object {\"", all[choices[0]].key(), "\": [...]}")};
    if (lists.size() <= all.size() && why[list]) return *why[list];
  }
  return {};
}

NumberedOptimizer::NumberedOptimizer(std::vector<PathStep> its_path, std::vector<std::vector<IndexedGroup>> its_ranks)
    : path(std::move(its_path)), ranks(std::move(its_ranks)) {
  alike = std::ranges::all_of(ranks, [&](const auto& groups) { return groups == ranks[0]; });
  for (const std::vector<IndexedGroup>& rank : std::span(ranks).first(alike ? 1 : ranks.size()))
    for (const IndexedGroup& group : rank)
      for (const std::optional<Shape>& shape : group) {
        ++numbers;
        if (shape) ++shapes[*shape];
      }
}

std::string NumberedOptimizer::label() const {
  return path.empty() ? "the optimizer" : text("optimizer \"", key(), '"');
}

std::size_t NameFit::item_of(std::string_view name) const {
  const auto at = dict->by_bare_name.find(bare_name(name));
  return at == dict->by_bare_name.end() ? kNoItem : dict->items[at->second];
}

}  // namespace pawl::checkpoint
