#include "checkpoint/formats/torch/rank_files.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "base/text.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/torch/rank_files_join.h"
#include "checkpoint/formats/torch/torch_state.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kRanksMax = 1 << 20;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// "step_12_rank_3.pt": "step_#_rank_#.pt" and 12, 3.
struct NumberedName {
  std::string skeleton;
  std::vector<std::string> numbers;
};

NumberedName numbered(std::string_view name) {
  NumberedName out;
  for (std::size_t i = 0; i < name.size();) {
    if (!is_digit(name[i])) {
      out.skeleton.push_back(name[i++]);
      continue;
    }
    std::size_t end = i;
    while (end < name.size() && is_digit(name[end])) ++end;
    out.numbers.emplace_back(name.substr(i, end - i));
    out.skeleton.push_back('#');
    i = end;
  }
  return out;
}

// The name with its numbers put back, but for one.
std::string pattern_of(const NumberedName& name, std::size_t open) {
  std::string out;
  std::size_t next = 0;
  for (const char c : name.skeleton) {
    if (c != '#' || next++ == open) {
      out.push_back(c);
    } else {
      out.append(name.numbers[next - 1]);
    }
  }
  return out;
}

// Where a number stands that follows the word rank, or none.
std::size_t rank_position(const NumberedName& name) {
  std::size_t position = 0;
  std::size_t found = name.numbers.size();
  for (std::size_t i = 0; i < name.skeleton.size(); ++i) {
    if (name.skeleton[i] != '#') continue;
    std::string_view before = std::string_view(name.skeleton).substr(0, i);
    while (!before.empty() && (before.back() == '_' || before.back() == '-' || before.back() == '.'))
      before.remove_suffix(1);
    if (before.ends_with("rank") || before.ends_with("Rank") || before.ends_with("RANK")) found = position;
    ++position;
  }
  return found;
}

bool says_rank(std::string_view pattern) {
  const std::size_t at = pattern.find('#');  // stands for the number
  if (at == std::string::npos) return false;
  std::string word(pattern.substr(0, at));
  while (!word.empty() && !std::isalpha(static_cast<unsigned char>(word.back()))) word.pop_back();
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view known : {"rank", "shard", "worker", "gpu", "device", "process", "proc"})
    if (word.ends_with(known)) return true;
  return false;
}

using Named = std::vector<std::pair<NumberedName, std::string>>;

// The number that tells ranks apart: the one after "rank", or else the last that is not the same everywhere.
std::size_t open_position(const Named& group) {
  const std::size_t count = group[0].first.numbers.size();
  if (const std::size_t said = rank_position(group[0].first); said != count) return said;
  for (std::size_t p = count; p-- > 0;)
    for (const auto& [name, file] : group)
      if (name.numbers[p] != group[0].first.numbers[p]) return p;
  return count;
}

void add_set(std::vector<RankFileSet>& out, const Named& group, std::size_t position) {
  std::map<std::string, RankFileSet> sets;  // by all other numbers
  for (const auto& [name, file] : group) {
    std::uint64_t number = 0;
    if (!parse_number(std::string_view(name.numbers[position]), number)) continue;  // of more than 19 digits
    RankFileSet& set = sets[pattern_of(name, position)];
    set.files.emplace_back(number, file);
  }
  for (auto& [pattern, set] : sets) {
    set.pattern = pattern;
    std::ranges::sort(set.files);
    out.push_back(std::move(set));
  }
}

}  // namespace

std::vector<RankFileSet> rank_file_sets(std::span<const std::string> names) {
  std::map<std::string, Named> groups;
  for (const std::string& name : names) {
    NumberedName parts = numbered(name);
    if (!parts.numbers.empty() && name.find('#') == std::string::npos)
      groups[parts.skeleton].emplace_back(std::move(parts), name);
  }
  std::vector<RankFileSet> out;
  for (const auto& [skeleton, group] : groups)
    if (const std::size_t position = open_position(group); position != group[0].first.numbers.size())
      add_set(out, group, position);
  return out;
}

namespace {

// Which files of the folder are the ranks'.
struct Choice {
  std::vector<std::pair<std::uint64_t, std::string>> files;  // rank, name; several of one rank may be
  std::vector<std::string> patterns;
  std::vector<std::string> beside;  // files of torch.save that are not read
  std::vector<std::string> problems;
  bool says_rank = false;
};

std::string joined(const std::vector<std::string>& words, std::string_view with) {
  std::string out;
  for (std::size_t i = 0; i < words.size() && i < 8; ++i) append_text(out, text(i == 0 ? "" : with, words[i]));
  return words.size() > 8 ? text(out, with, "and ", words.size() - 8, " more") : out;
}

// Ranks are counted from 0; parts that are not called so ("-00001-of-00004") may be from 1.
void check_numbers(const RankFileSet& set, std::uint64_t last, Choice& out) {
  const std::uint64_t first = set.files[0].first == 1 && !says_rank(set.pattern) ? 1 : 0;
  std::vector<std::string> missing;
  std::uint64_t next = first;
  for (const auto& [number, name] : set.files) {
    for (; next < number && missing.size() < 16; ++next) missing.push_back(text(next));
    next = number + 1;
  }
  for (; next <= last && missing.size() < 16; ++next) missing.push_back(text(next));
  if (!missing.empty())
    out.problems.push_back(text("of ", set.pattern, " rank ", joined(missing, ", "), " is missing"));
}

Result<Choice> choose(const std::string& folder, const std::vector<std::string>& names, const std::string& tag) {
  std::vector<RankFileSet> sets = rank_file_sets(names);
  if (!tag.empty()) std::erase_if(sets, [&](const RankFileSet& set) { return set.pattern != tag; });
  const bool any_pair = std::ranges::any_of(sets, [](const RankFileSet& set) { return set.files.size() > 1; });
  if (any_pair) std::erase_if(sets, [](const RankFileSet& set) { return set.files.size() < 2; });
  Choice out;
  std::map<std::string, std::string> skeletons;
  std::set<std::string> taken;
  std::uint64_t last = 0;
  for (const RankFileSet& set : sets) {
    const std::string skeleton = numbered(set.files[0].second).skeleton;
    if (const auto [at, is_new] = skeletons.emplace(skeleton, set.pattern); !is_new)
      return Error{Code::invalid, text(folder, ": several checkpoints: files ", at->second, " and ", set.pattern,
                                       "; choose with --tag '", set.pattern, "'")};
    out.patterns.push_back(set.pattern);
    out.says_rank = out.says_rank || says_rank(set.pattern);
    for (const auto& [number, name] : set.files) {
      if (number >= kRanksMax)
        return Error{Code::invalid, text(join_path(folder, name), ": its number is not a rank's")};
      if (!out.files.empty() && out.files.back() == std::pair(number, name)) continue;
      out.files.emplace_back(number, name);
      taken.insert(name);
      last = std::max(last, number);
    }
  }
  for (const RankFileSet& set : sets) {
    check_numbers(set, last, out);
    for (std::size_t i = 1; i < set.files.size(); ++i)
      if (set.files[i].first == set.files[i - 1].first)
        return Error{Code::invalid,
                     text(folder, ": ", set.files[i - 1].second, " and ", set.files[i].second, " are of one rank")};
  }
  for (const std::string& name : names)
    if (!taken.contains(name)) out.beside.push_back(name);
  if (out.files.empty()) {  // no numbers at all: each file is a part of one state, as model.pt and optimizer.pt are
    for (const std::string& name : out.beside) out.files.emplace_back(0, name);
    out.beside.clear();
    out.says_rank = true;
  }
  std::ranges::stable_sort(out.files, {}, [](const auto& file) { return file.first; });
  return out;
}

// Files of one rank are parts of one state (its model, its optimizer): what is in two of them is of two checkpoints.
Status check_parts(const std::string& folder, std::span<const RankState> ranks) {
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t end = first;
    std::map<std::string, std::size_t> seen;
    for (; end < ranks.size() && ranks[end].rank == ranks[first].rank; ++end)
      for (const TorchPart& part : ranks[end].state.parts) {
        const auto [at, is_new] = seen.emplace(key_of(part.path), end);
        if (is_new || at->second == end) continue;
        return Error{Code::invalid, text(folder, ": ", last_name(ranks[at->second].state.path), " and ",
                                         last_name(ranks[end].state.path), " both hold ", name_of(part.path),
                                         ": several checkpoints? Give the path of one file")};
      }
    first = end;
  }
  return {};
}

// Megatron-LM's older format: a folder for each model-parallel rank.
Status refuse_megatron(const std::string& folder, const std::vector<std::string>& names, Files& files) {
  for (const std::string& name : names)
    if (name.starts_with("mp_rank_") && files.exists(join_path(join_path(folder, name), "model_optim_rng.pt")))
      return Error{Code::invalid,
                   text(folder, ": a checkpoint of Megatron-LM's \"torch\" format (", name,
                        "/model_optim_rng.pt), which is not read here: save it with --ckpt-format torch_dist, or "
                        "convert it with Megatron's own tool first")};
  return {};
}

}  // namespace

Result<CheckpointView> view_torch_file(const std::string& path, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(const std::optional<ParameterNames> names, given_names(options, files));
  PAWL_ASSIGN(TorchState state, read_torch_state(path, files));
  std::string format = state.format;
  std::vector<RankState> ranks;
  ranks.push_back({kNoRank, std::move(state)});
  Result<CheckpointView> view = join_ranks(std::move(ranks), names, std::move(format));
  if (!view) return std::move(view).error().within(path);
  return view;
}

Result<CheckpointView> view_rank_files(const std::string& folder, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(const std::vector<std::string> all, files.list(folder));
  PAWL_TRY(refuse_megatron(folder, all, files));
  std::vector<std::string> names;
  for (const std::string& name : all)
    if (is_plain_file_name(name) && !name.starts_with('.') && looks_like_torch_file(join_path(folder, name), files))
      names.push_back(name);
  if (names.empty()) return Error{Code::not_found, text(folder, ": no files of torch.save")};
  if (names.size() == 1 && options.tag.empty()) {
    const std::vector<RankFileSet> sets = rank_file_sets(names);
    if (sets.empty()) return view_torch_file(join_path(folder, names[0]), options, files);
  }
  PAWL_ASSIGN(const std::optional<ParameterNames> given, given_names(options, files));
  PAWL_ASSIGN(Choice choice, choose(folder, names, options.tag));
  if (choice.files.empty()) return Error{Code::not_found, text(folder, ": no files ", options.tag)};
  std::vector<RankState> ranks;
  for (const auto& [rank, name] : choice.files) {
    PAWL_ASSIGN(TorchState state, read_torch_state(join_path(folder, name), files));
    ranks.push_back({static_cast<std::uint32_t>(rank), std::move(state)});
  }
  PAWL_TRY(check_parts(folder, ranks));
  if (!choice.says_rank && !shows_ranks(ranks))
    return Error{Code::invalid, text(folder, ": files ", joined(choice.patterns, " and "),
                                     " hold the same names, and nothing shows that the number is a rank: several "
                                     "checkpoints? Give the path of one file")};
  const bool is_one = ranks.size() == 1;
  Result<CheckpointView> view =
      join_ranks(std::move(ranks), given, is_one ? "torch.save" : "torch.save, one file from each rank");
  if (!view) return std::move(view).error().within(folder);
  for (std::string& problem : choice.problems) view->problems.push_back(std::move(problem));
  if (!choice.beside.empty())
    view->notes.push_back(text("beside the files ", joined(choice.patterns, " and "), " lie ",
                               joined(choice.beside, ", "), ", which were not read: give their own path for them"));
  return view;
}

}  // namespace pawl::checkpoint
