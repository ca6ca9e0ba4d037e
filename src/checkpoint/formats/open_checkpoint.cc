#include "checkpoint/formats/open_checkpoint.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/contains.h"
#include "base/text.h"
#include "checkpoint/containers/foreign_file.h"
#include "checkpoint/containers/safetensors.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/deepspeed/deepspeed.h"
#include "checkpoint/formats/deepspeed/universal.h"
#include "checkpoint/formats/huggingface/huggingface.h"
#include "checkpoint/formats/megatron/megatron.h"
#include "checkpoint/formats/native/atomic.h"
#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/formats/torch/rank_files.h"
#include "checkpoint/formats/training/training_folder.h"
#include "checkpoint/output/partial_output.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {
namespace {

using Names = std::vector<std::string>;

constexpr std::string_view kIterationPointer = "latest_checkpointed_iteration.txt";       // Megatron
constexpr std::array<std::string_view, 2> kTagPointers = {"latest", "latest_universal"};  // DeepSpeed
constexpr std::uint64_t kPointerBytesMax = 4096;
constexpr std::size_t kListedMax = 12;
constexpr std::size_t kForeignLookedMax = 64;  // files of a folder without a checkpoint

enum class Format : std::uint8_t {
  store,
  cut_store,  // data files without their marker
  dcp,
  cut_dcp,  // data files without metadata
  megatron,
  old_megatron,
  deepspeed,
  universal,
  atomic,
  training,
  huggingface,
  torch_files,
  mixed,  // rank files of torch.save beside a safetensors file that is not named as a model's
};

std::string_view name_of(Format format) {
  constexpr std::string_view kNames[] = {"pawl",
                                         "pawl without its marker",
                                         "PyTorch DCP",
                                         "PyTorch DCP without .metadata",
                                         "Megatron-Core torch_dist",
                                         "Megatron-LM 'torch'",
                                         "DeepSpeed",
                                         "DeepSpeed universal",
                                         "atomic",
                                         "a training's folder",
                                         "Hugging Face",
                                         "files of torch.save",
                                         "files of torch.save and of safetensors"};
  return kNames[static_cast<std::size_t>(format)];
}

bool any_ends(const Names& names, std::string_view with) {
  return std::ranges::any_of(names, [&](const std::string& name) { return name.ends_with(with); });
}

bool is_rank_metadata(std::string_view name) {
  std::uint32_t rank = 0;
  return name.starts_with("__") && name.ends_with(".metadata") && name.size() > 11 &&
         parse_number(name.substr(2, name.size() - 11), rank);
}

// What a file is that no reader takes, if that can be told.
std::optional<Error> foreign_at(const std::string& path, Files& files, ForeignText texts = ForeignText::told) {
  const Result<std::unique_ptr<ByteSource>> source = open_bytes(path, files);
  return source ? foreign_file(**source, texts) : std::nullopt;
}

// Named as files with tensors are: what it says instead is worth a word.
bool is_named_as_tensors(std::string_view name) {
  constexpr std::array<std::string_view, 5> kEnds = {".safetensors", ".pt", ".pth", ".bin", ".ckpt"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

// What lies in a folder without a checkpoint, as the end of a sentence: the first file that looks like one.
std::string foreign_inside(const std::string& folder, const Names& names, Files& files) {
  for (const std::string& name : std::span(names).first(std::min(names.size(), kForeignLookedMax))) {
    const std::string path = join_path(folder, name);
    if (looks_like_safetensors(path, files)) return text("; ", name, " is of safetensors: give its own path");
    const ForeignText texts = is_named_as_tensors(name) ? ForeignText::told : ForeignText::left_out;
    if (const std::optional<Error> error = foreign_at(path, files, texts)) return text("; ", name, " is ", error->what);
  }
  return {};
}

// A Trainer saves the model at the end into the folder in which its checkpoints are.
void note_below(const Names& names, CheckpointView& view) {
  constexpr std::string_view kCheckpoint = "checkpoint-";
  std::pair<std::uint64_t, std::string> last;
  std::size_t count = 0;
  for (const std::string& name : names) {
    std::uint64_t step = 0;
    if (!name.starts_with(kCheckpoint) || !parse_number(std::string_view(name).substr(kCheckpoint.size()), step))
      continue;
    last = std::max(last, {step, name});
    ++count;
  }
  if (count == 0) return;
  view.notes.push_back(text(last.second, count > 1 ? text(" and ", count - 1, " more") : "",
                            count > 1 ? " are checkpoints of their own in this folder, and are not read; --tag "
                                      : " is a checkpoint of its own in this folder, and is not read; --tag ",
                            last.second, " reads ", count > 1 ? "the last one" : "it"));
}

// Looks into the subfolders of a folder that might hold a checkpoint.
class Opener {
 public:
  Opener(const ReadOptions& options, Files& files) : options_(options), files_(files) {}
  Result<CheckpointView> open(const std::string& path);

 private:
  Result<CheckpointView> open_file(const std::string& path);
  Result<CheckpointView> open_folder(const std::string& folder, const Names& names);
  Result<CheckpointView> open_as(Format format, const std::string& folder, std::string tag = {});
  Result<CheckpointView> follow(const std::string& folder, const std::string& name, std::string_view why);
  Result<CheckpointView> search(const std::string& folder, const Names& names);
  [[nodiscard]] std::optional<Format> format_of(const std::string& folder, const Names& names);
  [[nodiscard]] std::optional<Names> names_in(const std::string& folder);
  [[nodiscard]] std::optional<std::string> pointer(const std::string& folder, std::string_view name);
  [[nodiscard]] std::optional<std::string> pointed(const std::string& folder, const Names& names, std::string& by);
  [[nodiscard]] bool is_universal_folder(const std::string& folder, const Names& names);
  [[nodiscard]] bool has_torch_file(const std::string& folder, const Names& names);
  [[nodiscard]] bool is_mixed(const std::string& folder, const Names& names);

  const ReadOptions& options_;
  Files& files_;
};

std::optional<Names> Opener::names_in(const std::string& folder) {
  Result<Names> names = files_.list(folder);
  if (!names) return std::nullopt;
  return std::move(*names);
}

// zero/<parameter>/fp32.pt
bool Opener::is_universal_folder(const std::string& folder, const Names& names) {
  if (!contains(names, "zero")) return false;
  const std::string zero = join_path(folder, "zero");
  const std::optional<Names> parameters = names_in(zero);
  if (!parameters) return false;
  return std::ranges::any_of(*parameters, [&](const std::string& parameter) {
    return files_.exists(join_path(join_path(zero, parameter), "fp32.pt"));
  });
}

bool Opener::has_torch_file(const std::string& folder, const Names& names) {
  return std::ranges::any_of(
      names, [&](const std::string& name) { return looks_like_torch_file(join_path(folder, name), files_); });
}

// A model's folder may well hold a trainer's own files of torch.save. Files of several ranks beside a safetensors file
// that nobody calls a model are two checkpoints, and which is meant is not for us to say.
bool Opener::is_mixed(const std::string& folder, const Names& names) {
  const auto is_of_a_model = [](const std::string& name) {
    return name == "config.json" || name.ends_with(".index.json") || name.ends_with(".bin") ||
           (name.ends_with(".safetensors") && name.find("model") != std::string::npos);
  };
  if (std::ranges::any_of(names, is_of_a_model)) return false;
  Names torch_files;
  for (const std::string& name : names)
    if (looks_like_torch_file(join_path(folder, name), files_)) torch_files.push_back(name);
  return !rank_file_sets(torch_files).empty();
}

std::optional<Format> Opener::format_of(const std::string& folder, const Names& names) {
  if (is_store_folder(names)) return Format::store;
  if (is_unfinished_store(folder, names, files_)) return Format::cut_store;
  if (contains(names, kAtomicIndexName)) return Format::atomic;
  if (is_training_folder(names)) return Format::training;
  if (contains(names, ".metadata") || std::ranges::any_of(names, is_rank_metadata))
    return contains(names, "metadata.json") || contains(names, "common.pt") ? Format::megatron : Format::dcp;
  if (any_ends(names, ".distcp")) return contains(names, "common.pt") ? Format::megatron : Format::cut_dcp;
  if (is_universal_folder(folder, names)) return Format::universal;
  if (any_ends(names, "model_states.pt") || any_ends(names, "optim_states.pt")) return Format::deepspeed;
  if (is_huggingface_folder(names)) return is_mixed(folder, names) ? Format::mixed : Format::huggingface;
  for (const std::string& name : names)
    if (name.starts_with("mp_rank_") && files_.exists(join_path(join_path(folder, name), "model_optim_rng.pt")))
      return Format::old_megatron;
  if (has_torch_file(folder, names)) return Format::torch_files;
  return std::nullopt;
}

// `tag`: what is left of the person's own, once it has been followed.
Result<CheckpointView> Opener::open_as(Format format, const std::string& folder, std::string tag) {
  const ReadOptions options{.parameter_names_file = options_.parameter_names_file, .tag = std::move(tag)};
  switch (format) {
    case Format::store:
    case Format::cut_store:  // says what is missing
      return view_store(folder, files_);
    case Format::dcp:
      return view_dcp(folder, options, files_);
    case Format::cut_dcp:
      return Error{Code::corrupt, text(folder, ": an incomplete checkpoint: there are .distcp files and no .metadata, ",
                                       "which is written last; the save did not end")};
    case Format::old_megatron:
      return Error{Code::invalid, text(folder, ": Megatron-LM's older format (--ckpt-format torch) is not read; ",
                                       "Megatron-LM itself converts it to torch_dist")};
    case Format::training:
      return view_training_folder(folder, options, files_);
    case Format::huggingface:
      return view_huggingface_folder(folder, options, files_);
    case Format::megatron:
      return view_megatron(folder, options, files_);
    case Format::deepspeed:
      return view_deepspeed(folder, options, files_);
    case Format::universal:
      return view_universal(folder, options, files_);
    case Format::atomic:
      return view_atomic(folder, files_);
    case Format::torch_files:
      return view_rank_files(folder, options, files_);
    case Format::mixed:
      return Error{Code::invalid,
                   text(folder, ": several checkpoints: files of torch.save from each rank, and a file of ",
                        "safetensors; give that file's own path, or --tag and the pattern of the ranks' ",
                        "files (rank#.pt, # for the number)")};
  }
  return Error{Code::broken, text(folder, ": no such format")};
}

// What a text file names, if it is one line of a plain name.
std::optional<std::string> Opener::pointer(const std::string& folder, std::string_view name) {
  Result<std::string> content = read_file(join_path(folder, name), kPointerBytesMax, files_);
  if (!content) return std::nullopt;
  std::string_view line = *content;
  while (!line.empty() && std::string_view(" \t\r\n").find(line.back()) != std::string_view::npos)
    line.remove_suffix(1);
  while (!line.empty() && std::string_view(" \t\r\n").find(line.front()) != std::string_view::npos)
    line.remove_prefix(1);
  if (!is_plain_file_name(line)) return std::nullopt;
  return std::string(line);
}

// The subfolder that a folder's own pointer names; `by`: which pointer.
std::optional<std::string> Opener::pointed(const std::string& folder, const Names& names, std::string& by) {
  if (contains(names, kIterationPointer)) {
    by = kIterationPointer;
    if (std::optional<std::string> name = pointer(folder, kIterationPointer)) {
      std::uint64_t iteration = 0;
      if (!parse_number(*name, iteration)) return name;  // "release"
      const std::string digits = text(iteration);
      return text("iter_", std::string(digits.size() < 7 ? 7 - digits.size() : 0, '0'), digits);
    }
  }
  for (const std::string_view pointer_name : kTagPointers) {
    if (!contains(names, pointer_name)) continue;
    by = pointer_name;
    if (names_in(join_path(folder, pointer_name))) return std::string(pointer_name);  // a link to the folder itself
    if (std::optional<std::string> name = pointer(folder, pointer_name)) return name;
  }
  return std::nullopt;
}

Result<CheckpointView> Opener::follow(const std::string& folder, const std::string& name, std::string_view why) {
  const std::string below = join_path(folder, name);
  const std::optional<Names> names = is_plain_file_name(name) ? names_in(below) : std::nullopt;
  if (!names) return Error{Code::not_found, text(folder, ": ", why, " names ", name, ", and no such folder is there")};
  const std::optional<Format> format = format_of(below, *names);
  if (!format)
    return Error{Code::not_found, text(below, ": ", why, " names it, and no checkpoint is recognised in it")};
  PAWL_ASSIGN(CheckpointView view, open_as(*format, below));
  view.facts.emplace_back("folder", text(name, " (by ", why, ")"));
  return view;
}

// No pointer, nothing known here: perhaps one folder further down.
Result<CheckpointView> Opener::search(const std::string& folder, const Names& names) {
  std::vector<std::pair<std::string, std::string>> found;  // name, what it is
  for (const std::string& name : names) {
    if (name.ends_with(kPartialSuffix)) continue;  // one in the making
    const std::string below = join_path(folder, name);
    const std::optional<Names> inside = names_in(below);
    if (!inside) continue;
    std::string by;
    if (pointed(below, *inside, by)) {
      found.emplace_back(name, text("a folder of checkpoints, with ", by));
    } else if (const std::optional<Format> format = format_of(below, *inside)) {
      found.emplace_back(name, name_of(*format));
    }
  }
  if (found.size() == 1) {
    const std::string below = join_path(folder, found.front().first);
    const std::optional<Names> inside = names_in(below);
    if (inside) return open_folder(below, *inside);
  }
  if (std::optional<Error> foreign = found.empty() ? foreign_folder(names) : std::nullopt)
    return std::move(*foreign).within(text(folder, ": not a checkpoint"));
  if (found.empty())
    return Error{Code::not_found,
                 text(folder, ": no checkpoint is recognised. Looked for, here and one folder down: .metadata or ",
                      "__0.metadata (PyTorch DCP; with metadata.json Megatron-Core), *_model_states.pt and ",
                      "*_optim_states.pt (DeepSpeed), zero/<parameter>/fp32.pt (DeepSpeed universal), atomic.json, "
                      "*.safetensors, ",
                      "*.index.json and pytorch_model.bin (Hugging Face), files of torch.save; and for latest, ",
                      "latest_universal and latest_checkpointed_iteration.txt, which name a folder",
                      foreign_inside(folder, names, files_))};
  std::string list;
  for (std::size_t i = 0; i < std::min(found.size(), kListedMax); ++i)
    append_text(list, text(i == 0 ? "" : ", ", found[i].first, " (", found[i].second, ')'));
  if (found.size() > kListedMax) append_text(list, text(", and ", found.size() - kListedMax, " more"));
  return Error{Code::invalid,
               text(folder, ": several checkpoints: ", list, "; give one's own path, or --tag and its name")};
}

Result<CheckpointView> Opener::open_folder(const std::string& folder, const Names& names) {
  if (!options_.tag.empty() && contains(names, options_.tag)) return follow(folder, options_.tag, "--tag");
  std::string by;
  if (options_.tag.empty()) {
    if (const std::optional<std::string> name = pointed(folder, names, by)) {
      Result<CheckpointView> view = follow(folder, *name, by);
      if (view || view.error().code != Code::not_found || !format_of(folder, names)) return view;
    }
  }
  const std::optional<Format> format = format_of(folder, names);
  const bool is_followed = options_.tag.empty() || last_name(folder) == options_.tag;
  if (!is_followed && (format == Format::torch_files || format == Format::mixed))
    return open_as(Format::torch_files, folder, options_.tag);  // which of its sets of rank files
  if (!is_followed)
    return Error{Code::not_found, text(folder, ": --tag names ", options_.tag, ", and no such folder is there")};
  if (!format) return search(folder, names);
  PAWL_ASSIGN(CheckpointView view, open_as(*format, folder));
  note_below(names, view);
  return view;
}

Result<CheckpointView> Opener::open_file(const std::string& path) {
  const std::string name = last_name(path);
  if (name == ".metadata" || name == "metadata.json" || name == kAtomicIndexName || is_rank_metadata(name))
    return open(parent_path(path));
  if (name.ends_with(".distcp"))
    return Error{Code::invalid,
                 text(path, ": one rank's file of a PyTorch DCP checkpoint; give its folder, ", parent_path(path))};
  PAWL_ASSIGN(const std::string head, read_head(path, kTorchHeadBytes, files_));
  if (begins_like_safetensors(head)) return view_safetensors(path, files_);
  if (name.ends_with(".index.json")) return view_huggingface_index(path, files_);
  if (begins_like_torch_file(head)) return view_torch_file(path, options_, files_);
  std::optional<Error> foreign = foreign_at(path, files_);
  if (!foreign) foreign = foreign_folder(std::span(&name, 1));
  if (foreign) return std::move(*foreign).within(text(path, ": not a checkpoint"));
  if (name.ends_with(".safetensors")) return view_safetensors(path, files_);  // which says what is wrong with it
  return Error{Code::not_found, text(path, ": not a checkpoint: neither safetensors nor a file of torch.save, nor an ",
                                     "index of some (*.index.json)")};
}

Result<CheckpointView> Opener::open(const std::string& path) {
  const Result<Names> names = files_.list(path);
  const bool is_told = is_address(path);  // why, such as that there is no such bucket
  if (!names && is_told && names.error().code != Code::not_found) return names.error();
  if (!names && !files_.exists(path))
    return is_told ? names.error() : Error{Code::not_found, text(path, ": no such file or folder")};
  return names ? open_folder(path, *names) : open_file(path);
}

}  // namespace

Result<CheckpointView> open_checkpoint(const std::string& path, const ReadOptions& options, Files& files) {
  std::string bare = path;
  while (bare.size() > 1 && bare.ends_with('/') && !bare.ends_with("://")) bare.pop_back();
  return Opener(options, files).open(bare);
}

}  // namespace pawl::checkpoint
