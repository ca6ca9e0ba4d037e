#include "checkpoint/formats/torch/rank_files_join.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/names/state_names.h"
#include "checkpoint/view/pieces.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kSentencesMax = 8;  // of one kind

// The first few, and how many more.
void add_sentences(std::vector<std::string>& out, const std::vector<std::string>& sentences, std::string_view what) {
  for (std::size_t i = 0; i < sentences.size() && i < kSentencesMax; ++i) out.push_back(sentences[i]);
  if (sentences.size() > kSentencesMax)
    out.push_back(text("and ", sentences.size() - kSentencesMax, " more such ", what));
}

bool is_under_optimizer(const TorchState& state, const TorchPart& part) {
  return std::ranges::any_of(state.optimizers, [&](const TorchOptimizer& optimizer) {
    const std::size_t depth = optimizer.path.size();
    return part.path.size() >= depth + 3 && part.path[depth].text == "state" &&
           std::equal(optimizer.path.begin(), optimizer.path.end(), part.path.begin());
  });
}

void add_model(Join& join) {
  std::unordered_map<std::string, std::size_t> index;
  for (std::uint32_t s = 0; s < join.ranks.size(); ++s)
    for (const TorchPart& part : join.ranks[s].state.parts) {
      if (is_under_optimizer(join.ranks[s].state, part)) continue;
      const auto [at, is_new] = index.emplace(key_of(part.path), join.items.size());
      if (is_new) {
        join.items.emplace_back();
        join.items.back().path = part.path;
      }
      join.items[at->second].parts.push_back({s, &part});
    }
}

// Where a part lies, if it lies anywhere: equal for tensors that share all of their bytes.
std::string place_of(const TorchPart& part) {
  if (part.pieces.empty()) return {};
  std::string out = text(static_cast<std::uint32_t>(part.type), text_of(part.shape));
  for (const StoredPiece& piece : part.pieces) {
    append_text(out, text('|', piece.file, '+', piece.offset_bytes));
    for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
      append_text(out, text(',', piece.box.begin[d], ':', piece.box.size[d], '*', piece.stride[d]));
  }
  return out;
}

// Tied names: their bytes are the same on every rank that holds them.
void find_aliases(Join& join) {
  std::unordered_map<std::string, std::size_t> first;  // by the first part's rank and place
  for (std::size_t i = 0; i < join.items.size(); ++i) {
    JoinItem& item = join.items[i];
    const std::string place = place_of(*item.parts[0].part);
    if (place.empty() || is_flat_parameter(*item.parts[0].part)) continue;
    const auto [at, is_new] = first.emplace(text(item.parts[0].state, '@', place), i);
    if (is_new) continue;
    const JoinItem& kept = join.items[at->second];
    bool same = kept.parts.size() == item.parts.size();
    for (std::size_t p = 0; same && p < item.parts.size(); ++p)
      same =
          kept.parts[p].state == item.parts[p].state && place_of(*kept.parts[p].part) == place_of(*item.parts[p].part);
    if (same) item.alias_of = at->second;
  }
}

// What ranks hold of one path is one tensor: copies of all of it, or boxes, of which equal ones are copies.
Result<StoredTensor> merged(Join& join, const JoinItem& item) {
  const TorchPart& first = *item.parts[0].part;
  StoredTensor out;
  out.type = first.type;
  out.shape = first.shape;
  std::unordered_map<std::string, std::uint32_t> copies;  // of equal boxes
  for (const JoinPart& each : item.parts) {
    const TorchPart& part = *each.part;
    const std::string& at = rank_label(join.ranks[each.state]);
    if (part.type != first.type)
      return Error{Code::corrupt,
                   text("it is ", name_of(first.type), " on ", rank_label(join.ranks[item.parts[0].state]), " and ",
                        name_of(part.type), " on ", at)};
    if (part.shape != first.shape)
      return Error{Code::corrupt, text("it is ", text_of(first.shape), " on ",
                                       rank_label(join.ranks[item.parts[0].state]), " and ", text_of(part.shape),
                                       " on ", at, ": the files don't say how it was cut, or are of several jobs")};
    if (part.layout != first.layout)
      return Error{Code::corrupt,
                   text("it lies as \"", first.layout, "\" on ", rank_label(join.ranks[item.parts[0].state]),
                        " and as \"", part.layout, "\" on ", at)};
    std::string boxes;
    for (const StoredPiece& piece : part.pieces) append_text(boxes, text_of(piece.box));
    const std::uint32_t copy = part.pieces.empty() ? 0 : copies[boxes]++;
    for (StoredPiece piece : part.pieces) {
      piece.file = join.view_file(each.state, piece.file);
      piece.rank = join.ranks[each.state].rank;
      piece.copy = copy;
      out.pieces.push_back(piece);
    }
  }
  return out;
}

void add_facts(Join& join) {
  CheckpointView& view = join.view;
  std::set<std::uint32_t> ranks;
  std::uint64_t world = 0;
  std::string layout;
  std::map<std::string, std::string> numbers;
  std::vector<std::string> notes, unsupported, problems;
  std::set<std::string> objects, mixed;
  for (const RankState& rank : join.ranks) {
    ranks.insert(rank.rank);
    world = std::max(world, rank.state.world);
    if (layout.empty()) layout = rank.state.layout;
    const std::string prefix = rank.rank == kNoRank ? "" : text(last_name(rank.state.path), ": ");
    for (const std::string& note : rank.state.notes) notes.push_back(prefix + note);
    for (const std::string& what : rank.state.unsupported) unsupported.push_back(prefix + what);
    for (const std::string& problem : rank.state.problems) problems.push_back(prefix + problem);
    for (const std::string& object : rank.state.objects)
      if (objects.insert(object).second) view.objects.push_back(object);
    for (const auto& [name, number] : rank.state.numbers) {
      const auto [at, is_new] = numbers.emplace(name, number);
      if (!is_new && at->second != number) mixed.insert(name);
    }
  }
  view.facts.emplace_back("writer", join.ranks.empty() ? "torch.save" : join.ranks[0].state.format);
  for (const std::string_view name : {"step", "global_step", "global_steps", "iteration", "iter", "epoch"}) {
    const auto at = numbers.find(std::string(name));
    if (at == numbers.end()) continue;
    if (mixed.contains(at->first)) {
      problems.push_back(text("the ranks' files differ in ", name, ": they are of several steps"));
    } else {
      view.facts.emplace_back(name, at->second);
    }
  }
  const bool is_folder = !ranks.contains(kNoRank);
  if (is_folder) view.facts.emplace_back("world", text(ranks.size()));
  if (!layout.empty()) view.facts.emplace_back("layout", layout);
  if (is_folder && world > ranks.size())
    notes.push_back(text("the job had ", world, " ranks, and ", ranks.size(), " have files here"));
  add_sentences(view.notes, notes, "notes");
  view.unsupported.insert(view.unsupported.end(), unsupported.begin(), unsupported.end());  // each is named
  add_sentences(view.problems, problems, "problems");
}

std::vector<StateKey> state_keys(const Join& join) {
  std::vector<StateKey> keys;
  for (const JoinItem& item : join.items) {
    StateKey& key = keys.emplace_back();
    for (const PathStep& step : item.path) key.path.push_back(step.text);
    if (key.path.empty()) key.path.emplace_back("tensor");
    key.shape = item.made ? &item.made->shape : &item.parts[0].part->shape;
    key.model = item.model;
  }
  std::set<std::string> seen;
  for (const RankState& rank : join.ranks)
    for (const TorchOptimizer& optimizer : rank.state.optimizers) {
      if (!seen.insert(key_of(optimizer.path)).second) continue;
      StateKey& key = keys.emplace_back();
      for (const PathStep& step : optimizer.path) key.path.push_back(step.text);
      key.path.emplace_back("param_groups");
      key.is_tensor = false;
    }
  return keys;
}

// `told`: of each item the name that it has in the view, if it is there.
void add_groups(Join& join, const std::vector<std::string>& told) {
  std::vector<HyperGroup> groups;
  for (JoinGroup& group : join.groups) {
    HyperGroup& out = groups.emplace_back(std::move(group.hyperparameters));
    out.is_stateless = group.items.empty();
    if (out.is_stateless) group.items = std::move(group.weights);
    std::ranges::sort(group.items);
    group.items.erase(std::unique(group.items.begin(), group.items.end()), group.items.end());
    for (const std::size_t item : group.items)
      if (!told[item].empty()) out.parameters.push_back(told[item]);
  }
  add_hyper_groups(groups, join.view);
}

Status add_tensors(Join& join, const std::optional<ParameterNames>& given) {
  std::vector<StateKey> keys = state_keys(join);
  if (given) {
    PAWL_TRY(tell_models(*given, keys));
  }
  StateNames names = name_states(keys, {.trust_model_words = true, .keep_roots = join.keeps_roots});
  for (std::string& note : names.notes) join.view.notes.push_back(std::move(note));
  for (std::string& what : names.unnamed) join.view.unnamed.push_back(std::move(what));
  std::vector<std::string> problems;
  std::unordered_map<std::string, std::string> kept;
  for (std::size_t i = 0; i < join.items.size(); ++i)
    if (const std::size_t alias_of = join.items[i].alias_of; alias_of != kNoItem && !join.items[i].is_taken)
      kept.emplace(names.names[i].name, names.names[alias_of].name);
  std::unordered_set<std::string> there;
  std::vector<std::string> told(join.items.size());  // the names of those that are in the view
  for (std::size_t i = 0; i < keys.size(); ++i) {
    StateName& named = names.names[i];
    if (named.is_object || i >= join.items.size()) {
      if (i >= join.items.size() || !join.items[i].is_taken) join.view.objects.push_back(named.name);
      continue;
    }
    JoinItem& item = join.items[i];
    if (item.is_taken || item.alias_of != kNoItem) continue;
    Result<StoredTensor> tensor = item.made ? Result<StoredTensor>(std::move(*item.made)) : merged(join, item);
    if (!tensor) {
      problems.push_back(text("tensor ", named.name, " (", named.role, "): ", tensor.error().what));
      continue;
    }
    if (const auto alias = kept.find(named.name); alias != kept.end() && item.in_optimizer) named.name = alias->second;
    if (!there.insert(text(named.name, '\n', named.role)).second) {
      problems.push_back(text("tensor ", named.name, " (", named.role, ") is there twice"));
      continue;
    }
    tensor->name = named.name;
    tensor->role = named.role;
    told[i] = named.name;
    join.view.tensors.push_back(std::move(*tensor));
  }
  std::unordered_set<std::string_view> all;
  for (const StoredTensor& tensor : join.view.tensors) all.insert(tensor.name);
  for (std::size_t i = 0; i < join.items.size(); ++i) {
    const JoinItem& item = join.items[i];
    if (item.alias_of == kNoItem || item.is_taken) continue;
    const std::string& name = names.names[item.alias_of].name;
    if (all.contains(name) && name != names.names[i].name) join.view.aliases.emplace_back(names.names[i].name, name);
  }
  add_sentences(join.view.problems, problems, "tensors");
  add_groups(join, told);
  return {};
}

}  // namespace

std::uint32_t Join::view_file(std::uint32_t state, std::uint32_t file) {
  if (file_of.size() < ranks.size()) file_of.resize(ranks.size());
  std::vector<std::uint32_t>& files = file_of[state];
  if (files.empty()) files.assign(ranks[state].state.files.size(), kNoRank);
  if (files[file] == kNoRank) {
    files[file] = static_cast<std::uint32_t>(view.files.size());
    view.files.push_back(ranks[state].state.files[file]);
  }
  return files[file];
}

std::string key_of(std::span<const PathStep> path) {
  std::string out;
  for (const PathStep& step : path)
    append_text(out, text(static_cast<std::uint32_t>(step.kind), ':', step.text.size(), ':', step.text));
  return out;
}

std::string bare_name(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, end);
    const bool is_last = end == name.size();
    const bool is_wrapper = part == "_orig_mod" || part == "_fsdp_wrapped_module" ||
                            part == "_checkpoint_wrapped_module" || (part == "module" && out.empty());
    name.remove_prefix(is_last ? end : end + 1);
    if (is_wrapper && !is_last) continue;
    out.append(part);
    if (!is_last) out.push_back('.');
  }
  return out;
}

std::string rank_label(const RankState& rank) {
  return rank.rank == kNoRank ? last_name(rank.state.path) : text("rank ", rank.rank);
}

bool shows_ranks(std::span<const RankState> ranks) {
  std::set<std::string> numbers;
  std::optional<std::set<std::string>> names;
  for (const RankState& rank : ranks) {
    const TorchState& state = rank.state;
    for (const auto& [name, number] : state.numbers)
      if ((name == "rank" || name == "global_rank" || name == "dp_rank") && number == text(rank.rank)) return true;
    std::set<std::string> own;
    for (const TorchPart& part : state.parts) {
      if (!part.layout.empty() || is_flat_parameter(part)) return true;
      own.insert(key_of(part.path));
    }
    if (names && *names != own) return true;
    names = std::move(own);
  }
  return ranks.size() < 2;
}

Result<CheckpointView> join_ranks(std::vector<RankState> ranks, const std::optional<ParameterNames>& names,
                                  std::string format) {
  Join join;
  join.ranks = std::move(ranks);
  join.view.format = std::move(format);
  add_facts(join);
  add_model(join);
  find_aliases(join);
  PAWL_TRY(add_optimizers(join, names));
  PAWL_TRY(join_flat(join, names));
  PAWL_TRY(add_tensors(join, names));
  std::vector<std::uint64_t> sizes(join.view.files.size(), 0);
  for (std::size_t s = 0; s < join.file_of.size(); ++s)
    for (const std::uint32_t file : join.file_of[s])
      if (file != kNoRank) sizes[file] = join.ranks[s].state.size_bytes;
  PAWL_TRY(check_view(join.view, sizes));
  return std::move(join.view);
}

}  // namespace pawl::checkpoint
