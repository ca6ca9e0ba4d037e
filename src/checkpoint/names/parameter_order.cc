#include "checkpoint/names/parameter_order.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/containers/json_scan.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kWaysMax = 4096;  // states to keep a name: more are as good as two ways
constexpr std::size_t kNamesMax = 1 << 20;
constexpr std::uint64_t kWorkMax = 200'000'000;  // numbers of all states looked at
constexpr std::string_view kRemedy =
    "; say it with --param-names FILE: the parameters' names in the optimizer's order, one a line, and an empty line "
    "between its groups";

Error refused(const std::string& why) {
  return {Code::invalid, text(why, kRemedy)};
}

bool fits(const std::optional<Shape>& entry, const std::optional<Shape>& name) {
  return !entry || !name || *entry == *name;
}

std::uint64_t count_of(const Shape& shape) {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape)
    if (__builtin_mul_overflow(product, extent, &product)) return ~std::uint64_t{0};
  return product;
}

std::string word_of(const std::optional<Shape>& shape) {
  return shape ? text_of(*shape) : std::string("any shape");
}

// Deals names to groups, one name after another, and keeps every state that can still come out even: how far each group
// has got. A name is dealt to a group whose next number has its shape, or to none.
class Dealer {
 public:
  Dealer(std::span<const NamedShape> names, std::span<const IndexedGroup> groups) : names_(names), groups_(groups) {
    for (const IndexedGroup& group : groups_) {
      entries_ += group.size();
      auto& at = positions_.emplace_back();
      for (std::uint32_t i = 0; i < group.size(); ++i) {
        if (group[i]) at[*group[i]].push_back(i);
        exact_ = exact_ && group[i].has_value();
      }
    }
    for (const NamedShape& name : names_) {
      exact_ = exact_ && name.shape.has_value();
      if (name.shape) ++left_[*name.shape];
    }
  }

  Result<NameIndices> deal();

 private:
  using State = std::vector<std::uint32_t>;  // of each group: how many of its numbers have a name
  struct Way {
    std::uint32_t count = 0;    // ways that lead here; 2: several
    std::uint32_t from = 0;     // in the layer before
    std::uint32_t group = ~0u;  // the name went there; none
  };
  struct Layer {
    std::vector<State> states;
    std::vector<Way> ways;
    std::map<State, std::uint32_t> index;
  };

  Status step(std::uint32_t name, const Layer& before, Layer& after);
  [[nodiscard]] bool may_skip(std::uint32_t name, const State& state) const;
  [[nodiscard]] Error none_fits(std::uint32_t name, const Layer& before) const;
  static void add(Layer& layer, State state, std::uint32_t count, std::uint32_t from, std::uint32_t group);

  std::span<const NamedShape> names_;
  std::span<const IndexedGroup> groups_;
  std::vector<std::map<Shape, std::vector<std::uint32_t>>> positions_;  // of each group's numbers with that shape
  std::map<Shape, std::uint64_t> left_;                                 // names of that shape, from the current one on
  std::uint64_t entries_ = 0;
  std::uint64_t work_ = 0;
  bool exact_ = true;  // all shapes are known
};

void Dealer::add(Layer& layer, State state, std::uint32_t count, std::uint32_t from, std::uint32_t group) {
  const auto [at, is_new] = layer.index.emplace(std::move(state), static_cast<std::uint32_t>(layer.ways.size()));
  if (is_new) {
    layer.states.push_back(at->first);
    layer.ways.push_back({count, from, group});
  } else {
    layer.ways[at->second].count = 2;
  }
}

// Without this name, are there still enough for the numbers that are left, of all shapes and of its own?
bool Dealer::may_skip(std::uint32_t name, const State& state) const {
  const std::uint64_t dealt = std::accumulate(state.begin(), state.end(), std::uint64_t{0});
  if (entries_ - dealt > names_.size() - name - 1) return false;
  if (!exact_) return true;
  const Shape& shape = *names_[name].shape;
  std::uint64_t needed = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto at = positions_[g].find(shape);
    if (at == positions_[g].end()) continue;
    needed += static_cast<std::uint64_t>(at->second.end() - std::ranges::lower_bound(at->second, state[g]));
  }
  return needed <= left_.at(shape) - 1;
}

Status Dealer::step(std::uint32_t name, const Layer& before, Layer& after) {
  work_ += before.states.size() * (groups_.size() + 1);
  if (work_ > kWorkMax) return refused("the optimizer's numbers leave too many ways to name them");
  for (std::uint32_t i = 0; i < before.states.size(); ++i) {
    const State& state = before.states[i];
    if (may_skip(name, state)) add(after, state, before.ways[i].count, i, ~0u);
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      if (state[g] == groups_[g].size() || !fits(groups_[g][state[g]], names_[name].shape)) continue;
      State next = state;
      ++next[g];
      add(after, std::move(next), before.ways[i].count, i, g);
    }
    if (after.states.size() > kWaysMax)
      return refused("the shapes leave very many ways to name the optimizer's numbers");
  }
  return {};
}

Error Dealer::none_fits(std::uint32_t name, const Layer& before) const {
  const State& state = before.states.front();
  std::string wanted;
  for (std::size_t g = 0; g < groups_.size() && wanted.empty(); ++g)
    if (state[g] < groups_[g].size())
      wanted = text("number ", state[g], " of group ", g, " (", word_of(groups_[g][state[g]]), ')');
  return refused(text("the model's names in their order don't fit the optimizer's numbers: at ", names_[name].name,
                      " (", word_of(names_[name].shape), "), where ", wanted.empty() ? "nothing" : wanted,
                      " comes next"));
}

Result<NameIndices> Dealer::deal() {
  if (entries_ > names_.size())
    return refused(text("the optimizer has ", entries_, " parameters, and only ", names_.size(), " names are known"));
  std::vector<Layer> layers(1);
  add(layers[0], State(groups_.size(), 0), 1, 0, ~0u);
  for (std::uint32_t name = 0; name < names_.size(); ++name) {
    layers.emplace_back();
    PAWL_TRY(step(name, layers[name], layers[name + 1u]));
    if (layers.back().states.empty()) return none_fits(name, layers[name]);
    layers[name].index.clear();
    layers[name].states = {};  // the way back needs only the ways
    if (names_[name].shape) --left_[*names_[name].shape];
  }
  State all;
  for (const IndexedGroup& group : groups_) all.push_back(static_cast<std::uint32_t>(group.size()));
  const auto end = layers.back().index.find(all);
  if (end == layers.back().index.end())
    return refused("the model's names in their order don't fit the shapes of the optimizer's numbers");
  if (layers.back().ways[end->second].count > 1)
    return refused("the shapes leave several ways to name the optimizer's numbers");
  NameIndices out;
  for (const IndexedGroup& group : groups_) out.emplace_back(group.size());
  std::uint32_t at = end->second;
  for (std::size_t layer = names_.size(); layer > 0; --layer) {
    const Way& way = layers[layer].ways[at];
    if (way.group != ~0u) out[way.group][--all[way.group]] = static_cast<std::uint32_t>(layer - 1);
    at = way.from;
  }
  return out;
}

// How torch.distributed.optim.ZeroRedundancyOptimizer deals: groups in order, each sorted by size, the largest first.
Result<std::vector<NameIndices>> deal(std::span<const NamedShape> names, const NameIndices& groups,
                                      std::span<const std::vector<IndexedGroup>> ranks) {
  std::vector<std::uint64_t> filled(ranks.size(), 0);
  std::vector<NameIndices> out(ranks.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (NameIndices& rank : out) rank.emplace_back();
    std::vector<std::uint32_t> order = groups[g];
    std::ranges::stable_sort(order, std::ranges::greater(), [&](std::uint32_t i) { return count_of(*names[i].shape); });
    for (const std::uint32_t name : order) {
      const std::size_t rank = static_cast<std::size_t>(std::ranges::min_element(filled) - filled.begin());
      out[rank][g].push_back(name);
      filled[rank] += count_of(*names[name].shape);
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::vector<std::uint32_t>& dealt = out[rank][g];
      bool agrees = dealt.size() == ranks[rank][g].size();
      for (std::size_t i = 0; agrees && i < dealt.size(); ++i) agrees = fits(ranks[rank][g][i], names[dealt[i]].shape);
      if (!agrees)
        return refused(text("rank ", rank, "'s group ", g,
                            " has other shapes than ZeroRedundancyOptimizer would have "
                            "dealt to it"));
    }
  }
  return out;
}

Status check_ranks(std::span<const std::vector<IndexedGroup>> ranks) {
  if (ranks.empty()) return Error{Code::invalid, "no rank's optimizer"};
  for (const std::vector<IndexedGroup>& rank : ranks)
    if (rank.size() != ranks[0].size()) return refused("the ranks' optimizers have different numbers of groups");
  return {};
}

// Why these are not the group's names.
std::optional<std::string> misfit(const std::vector<NamedShape>& names, const IndexedGroup& group, std::size_t number) {
  if (names.size() != group.size())
    return text("group ", number, " has ", group.size(), " parameters and ", names.size(), " names");
  for (std::size_t i = 0; i < group.size(); ++i)
    if (!fits(group[i], names[i].shape))
      return text(names[i].name, " is ", word_of(names[i].shape), ", and number ", i, " of group ", number, " is ",
                  word_of(group[i]));
  return std::nullopt;
}

// For people: the only order of the sections in which they fit the groups. It is no proof: which of a group's parameters
// of equal shape is which, their order tells, and who changed the groups' may have changed that.
std::string other_order(std::span<const std::vector<NamedShape>> sections, std::span<const IndexedGroup> groups) {
  constexpr std::size_t kOrderedMax = 64;
  if (groups.size() > kOrderedMax) return {};
  std::vector<std::size_t> order;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::size_t> fitting;
    for (std::size_t section = 0; section < sections.size(); ++section)
      if (!misfit(sections[section], groups[g], g)) fitting.push_back(section);
    if (fitting.size() != 1 || std::ranges::find(order, fitting[0]) != order.end()) return {};
    order.push_back(fitting[0]);
  }
  std::string out = ", and in the order ";
  for (std::size_t i = 0; i < order.size(); ++i) append_text(out, text(i == 0 ? "" : ", ", order[i]));
  return out + " they fit";
}

std::vector<NamedShape> joined(std::span<const std::vector<NamedShape>> sections) {
  std::vector<NamedShape> out;
  for (const std::vector<NamedShape>& section : sections) out.insert(out.end(), section.begin(), section.end());
  return out;
}

// --- What a person writes.

bool parse_shape_word(std::string_view word, Shape& out) {
  while (true) {
    const std::size_t cross = word.find('x');
    std::uint64_t extent = 0;
    if (!parse_number(word.substr(0, cross), extent) || out.size() == kDimensionsMax) return false;
    out.push_back(extent);
    if (cross == std::string_view::npos) return true;
    word.remove_prefix(cross + 1);
  }
}

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
  while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  return line;
}

ParameterNames::Entry parse_entry(std::string_view line) {
  ParameterNames::Entry entry{std::string(line), std::nullopt};
  const std::size_t gap = line.find_last_of(" \t");
  Shape shape;
  if (gap == std::string_view::npos || !parse_shape_word(line.substr(gap + 1), shape)) return entry;
  return {std::string(trimmed(line.substr(0, gap))), std::move(shape)};
}

// A list of names, or, with `levels` of lists below it, of one such list for each group, or of one such list of lists
// for each optimizer.
void scan_list(JsonScan& scan, ParameterNames& out, int levels) {
  scan.begin_array();
  std::string name;
  while (scan.next_item()) {
    if (scan.peek() != '[') {
      if (!scan.string(name)) return;
      if (out.sections.empty()) out.sections.emplace_back();
      out.sections.back().push_back(parse_entry(name));
      continue;
    }
    if (levels == 0) {
      scan.fail("a list of lists is too deep");
      return;
    }
    ParameterNames one;
    scan_list(scan, one, levels - 1);
    if (one.says_groups) {
      out.optimizers.push_back(std::move(one));
      continue;
    }
    out.says_groups = true;
    out.sections.push_back(one.sections.empty() ? std::vector<ParameterNames::Entry>() : std::move(one.sections[0]));
  }
}

void scan_object(JsonScan& scan, ParameterNames& out) {
  scan.begin_object();
  std::string key;
  while (scan.next_key(key)) {
    ParameterNames& one = out.optimizers.emplace_back();
    one.optimizer = key;
    if (scan.peek() == '[')
      scan_list(scan, one, 1);
    else if (!scan.string(one.model))
      return;
  }
}

Status parse_json(std::string_view text, ParameterNames& out) {
  JsonScan scan(text);
  if (scan.peek() == '{')
    scan_object(scan, out);
  else
    scan_list(scan, out, 2);
  scan.finish();
  if (scan.failed()) return Error{Code::invalid, scan.error().what};
  if (!out.optimizers.empty() && !out.sections.empty())
    return Error{Code::invalid, "some lists are of groups and others of optimizers"};
  return {};
}

void parse_lines(std::string_view lines, ParameterNames& out) {
  bool is_open = false;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = trimmed(lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (!line.empty() && !is_open) out.sections.emplace_back();
    is_open = !line.empty();
    if (is_open) out.sections.back().push_back(parse_entry(line));
  }
}

Status check_names(const ParameterNames& names) {
  if (!names.model.empty()) return {};
  std::unordered_set<std::string_view> seen;
  for (const std::vector<ParameterNames::Entry>& section : names.sections)
    for (const ParameterNames::Entry& entry : section) {
      if (entry.name.empty()) return Error{Code::invalid, "an empty name"};
      if (!seen.insert(entry.name).second) return Error{Code::invalid, text(entry.name, " is named twice")};
    }
  if (seen.empty()) return Error{Code::invalid, "no names"};
  return {};
}

}  // namespace

Result<NameIndices> name_by_shape(std::span<const NamedShape> names, std::span<const IndexedGroup> groups) {
  if (names.size() > kNamesMax) return Error{Code::full, text(names.size(), " names")};
  std::map<Shape, std::vector<std::uint32_t>> of_shape;
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    if (!names[i].shape) return refused(text("the shape of ", names[i].name, " is not known"));
    of_shape[*names[i].shape].push_back(i);
  }
  std::vector<bool> is_taken(names.size(), false);
  std::uint32_t* unknown = nullptr;  // the number without a shape
  NameIndices out;
  for (const IndexedGroup& group : groups) out.emplace_back(group.size());
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t i = 0; i < groups[g].size(); ++i) {
      const std::optional<Shape>& shape = groups[g][i];
      if (!shape) {
        if (unknown != nullptr) return refused("several of the optimizer's numbers have no state that tells a shape");
        unknown = &out[g][i];
        continue;
      }
      const auto found = of_shape.find(*shape);
      if (found == of_shape.end())
        return refused(text("no name is known for number ", i, " of group ", g, " (", text_of(*shape), ')'));
      const std::vector<std::uint32_t>& of_it = found->second;
      if (of_it.size() > 1)
        return refused(text(names[of_it[0]].name, " and ", names[of_it[1]].name, " both are ", text_of(*shape),
                            " and could be exchanged"));
      if (is_taken[of_it[0]])
        return refused(text("the optimizer has several parameters of ", text_of(*shape), ", the model one"));
      is_taken[of_it[0]] = true;
      out[g][i] = of_it[0];
    }
  if (unknown == nullptr) return out;
  const auto left = std::ranges::find(is_taken, false);
  if (left == is_taken.end() || std::ranges::count(is_taken, false) > 1)
    return refused("one of the optimizer's numbers has no state that tells a shape");
  *unknown = static_cast<std::uint32_t>(left - is_taken.begin());
  return out;
}

Result<NameIndices> order_parameters(std::span<const NamedShape> names, std::span<const IndexedGroup> groups) {
  if (names.size() > kNamesMax) return Error{Code::full, text(names.size(), " names")};
  if (names.empty()) return refused("no names are known");
  return Dealer(names, groups).deal();
}

Result<std::vector<NameIndices>> deal_parameters(std::span<const NamedShape> names,
                                                 std::span<const std::vector<IndexedGroup>> ranks) {
  PAWL_TRY(check_ranks(ranks));
  // Group by shape: a shape's numbers, over all ranks, are of one group and as many as its names.
  std::map<Shape, std::map<std::size_t, std::uint64_t>> numbers;
  for (const std::vector<IndexedGroup>& rank : ranks)
    for (std::size_t g = 0; g < rank.size(); ++g)
      for (const std::optional<Shape>& shape : rank[g]) {
        if (!shape) return refused("some of the optimizer's numbers have no state that tells a shape");
        ++numbers[*shape][g];
      }
  NameIndices groups(ranks[0].size());
  std::map<Shape, std::uint64_t> found;
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    if (!names[i].shape) return refused(text("the shape of ", names[i].name, " is not known"));
    const auto at = numbers.find(*names[i].shape);
    if (at == numbers.end()) continue;
    if (at->second.size() > 1)
      return refused(text("parameters of shape ", text_of(at->first), " are in several of the optimizer's groups"));
    groups[at->second.begin()->first].push_back(i);
    ++found[at->first];
  }
  for (const auto& [shape, in_groups] : numbers)
    if (found[shape] != in_groups.begin()->second)
      return refused(text("the optimizers have ", in_groups.begin()->second, " parameters of shape ", text_of(shape),
                          ", and the model ", found[shape]));
  return deal(names, groups, ranks);
}

Result<NameIndices> order_parameters_in(std::span<const std::vector<NamedShape>> sections,
                                        std::span<const IndexedGroup> groups) {
  if (sections.size() != groups.size())
    return refused(text(sections.size(), " groups of names for ", groups.size(), " of the optimizer"));
  NameIndices out(groups.size());
  std::uint32_t first = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (std::optional<std::string> why = misfit(sections[g], groups[g], g))
      return refused(text(*why, other_order(sections, groups)));
    for (std::size_t i = 0; i < groups[g].size(); ++i) out[g].push_back(first++);
  }
  return out;
}

Result<std::vector<NameIndices>> deal_parameters_in(std::span<const std::vector<NamedShape>> sections,
                                                    std::span<const std::vector<IndexedGroup>> ranks) {
  PAWL_TRY(check_ranks(ranks));
  if (sections.size() != ranks[0].size())
    return refused(text(sections.size(), " groups of names for ", ranks[0].size(), " of the optimizer"));
  const std::vector<NamedShape> names = joined(sections);
  NameIndices groups;
  std::uint32_t first = 0;
  for (const std::vector<NamedShape>& section : sections) {
    groups.emplace_back(section.size());
    for (std::uint32_t& index : groups.back()) index = first++;
  }
  for (const NamedShape& name : names)
    if (!name.shape) return refused(text("the shape of ", name.name, " is not known"));
  return deal(names, groups, ranks);
}

Result<ParameterNames> parse_parameter_names(std::string_view text_) {
  ParameterNames out;
  const std::size_t first = text_.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && (text_[first] == '[' || text_[first] == '{')) {
    PAWL_TRY(parse_json(text_, out));
  } else {
    parse_lines(text_, out);
  }
  out.says_groups = out.says_groups || out.sections.size() > 1;
  if (out.optimizers.empty()) {
    PAWL_TRY(check_names(out));
  }
  std::unordered_set<std::string_view> keys;
  for (const ParameterNames& one : out.optimizers) {
    PAWL_TRY(check_names(one));
    if (!one.optimizer.empty() && !keys.insert(one.optimizer).second)
      return Error{Code::invalid, text(one.optimizer, " is there twice")};
  }
  return out;
}

Result<std::vector<std::vector<NamedShape>>> sections_by_number(std::vector<std::vector<NamedShape>> sections,
                                                                std::span<const std::size_t> group_sizes) {
  if (group_sizes.size() < 2) return sections;
  std::vector<NamedShape> names = joined(sections);
  const std::size_t count = std::accumulate(group_sizes.begin(), group_sizes.end(), std::size_t{0});
  if (names.size() != count)
    return refused(text("the optimizer's ", group_sizes.size(), " groups have ", count, " parameters, and ",
                        names.size(), " names are given as one group"));
  std::vector<std::vector<NamedShape>> out;
  auto next = std::make_move_iterator(names.begin());
  for (const std::size_t size : group_sizes) {
    out.emplace_back(next, next + static_cast<std::ptrdiff_t>(size));
    next += static_cast<std::ptrdiff_t>(size);
  }
  return out;
}

}  // namespace pawl::checkpoint
