#include "checkpoint/formats/huggingface/huggingface.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/contains.h"
#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/containers/damaged.h"
#include "checkpoint/containers/json_scan.h"
#include "checkpoint/containers/safetensors.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::string_view kIndex = ".index.json";
constexpr std::string_view kShardingInfo = "DCP_SHARDING_INFO";
constexpr std::uint64_t kIndexBytesMax = 256 << 20;
constexpr std::uint64_t kConfigBytesMax = 16 << 20;

std::vector<std::string> ending(const std::vector<std::string>& names, std::string_view with) {
  std::vector<std::string> out;
  for (const std::string& name : names)
    if (name.ends_with(with)) out.push_back(name);
  return out;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) append_text(out, text(out.empty() ? "" : ", ", name));
  return out;
}

// --- Shards of a distributed save.

// {"<name>": {"saved_offsets": [4, 0]}, ...}
Result<std::unordered_map<std::string, Shape>> parse_sharding_info(std::string_view json) {
  JsonScan scan(json);
  std::unordered_map<std::string, Shape> out;
  std::string name, key;
  scan.begin_object();
  while (scan.next_key(name)) {
    Shape offset;
    scan.begin_object();
    while (scan.next_key(key)) {
      if (key != "saved_offsets") {
        (void)scan.skip();
        continue;
      }
      scan.begin_array();
      while (scan.next_item()) {
        std::uint64_t at = 0;
        if (!scan.number(at)) break;
        if (offset.size() == kDimensionsMax) (void)scan.fail("too many dimensions");
        offset.push_back(at);
      }
    }
    if (!out.emplace(name, std::move(offset)).second) (void)scan.fail(text("tensor ", name, " is there twice"));
  }
  if (!scan.finish()) return scan.error().within(std::string(kShardingInfo));
  return out;
}

std::string_view metadata_of(const SafetensorsFile& file, std::string_view key) {
  for (const auto& [name, value] : file.metadata)
    if (name == key) return value;
  return {};
}

class ShardJoiner {
 public:
  Status add(const std::string& path, const SafetensorsFile& file);
  Result<CheckpointView> finish(std::size_t shards);

 private:
  Status add(const SafetensorsEntry& entry, const Shape& offset, std::uint32_t file);
  CheckpointView view_;
  std::vector<std::uint64_t> file_bytes_;
  std::unordered_map<std::string, std::size_t> index_;
};

Status ShardJoiner::add(const std::string& path, const SafetensorsFile& file) {
  Result<std::unordered_map<std::string, Shape>> info = parse_sharding_info(metadata_of(file, kShardingInfo));
  if (!info) return std::move(info).error().within(path);
  const auto number = static_cast<std::uint32_t>(view_.files.size());
  view_.files.push_back({path});
  file_bytes_.push_back(file.header_bytes);
  for (const SafetensorsEntry& entry : file.tensors) {
    file_bytes_.back() = std::max(file_bytes_.back(), entry.offset_bytes + entry.size_bytes);
    const auto offset = info->find(entry.name);
    if (offset == info->end()) return damaged(text(path, ": tensor ", entry.name, " is not in ", kShardingInfo));
    if (Status status = add(entry, offset->second, number); !status)
      return std::move(status).error().within(text(path, ": tensor ", entry.name));
  }
  return {};
}

Status ShardJoiner::add(const SafetensorsEntry& entry, const Shape& offset, std::uint32_t file) {
  if (entry.shape.size() > kDimensionsMax) return Error{Code::invalid, "more than eight dimensions"};
  if (offset.size() != entry.shape.size()) return damaged("its offset has another number of dimensions");
  const auto [found, is_new] = index_.emplace(entry.name, view_.tensors.size());
  if (is_new) view_.tensors.push_back({entry.name, "weight", entry.type, Shape(entry.shape.size(), 0)});
  StoredTensor& tensor = view_.tensors[found->second];
  if (tensor.type != entry.type || tensor.shape.size() != entry.shape.size())
    return damaged("another file has another type or number of dimensions of it");
  for (std::size_t d = 0; d < offset.size(); ++d) {
    std::uint64_t end = 0;
    if (__builtin_add_overflow(offset[d], entry.shape[d], &end)) return damaged("its end overflows");
    tensor.shape[d] = std::max(tensor.shape[d], end);
  }
  if (entry.size_bytes == 0) return {};
  StoredPiece piece = whole_piece(entry.shape, file, entry.offset_bytes);
  std::ranges::copy(offset, piece.box.begin.begin());
  tensor.pieces.push_back(piece);
  return {};
}

Result<CheckpointView> ShardJoiner::finish(std::size_t shards) {
  for (StoredTensor& tensor : view_.tensors) {
    PAWL_TRY(element_count(tensor.shape));
    std::map<std::pair<PerDimension, PerDimension>, std::uint32_t> copies;
    for (StoredPiece& piece : tensor.pieces) piece.copy = copies[{piece.box.begin, piece.box.size}]++;
  }
  view_.format = "Hugging Face safetensors, sharded by torch.distributed.checkpoint";
  view_.facts.emplace_back("writer", "torch.distributed.checkpoint HuggingFaceStorageWriter");
  view_.facts.emplace_back("world", text(shards));
  view_.notes.push_back(text("no file says how many ranks there were, nor the tensors' whole shapes: ", shards,
                             " ranks' files are here, and a missing last one would not be noticed"));
  PAWL_TRY(check_view(view_, file_bytes_));
  return std::move(view_);
}

// "shard-00002-model-00001-of-00003.safetensors": rank 2, file 1 of 3. "model-00001-of-00003.safetensors": rank 0.
struct FileNumber {
  std::uint32_t shard = 0;
  std::uint32_t number = 0;
  std::uint32_t count = 0;
};
std::optional<FileNumber> number_of(std::string_view name) {
  FileNumber out;
  if (name.starts_with("shard-")) {
    const std::size_t dash = name.find('-', 6);
    if (dash == std::string_view::npos || !parse_number(name.substr(6, dash - 6), out.shard)) return std::nullopt;
  }
  const std::size_t of = name.rfind("-of-");
  if (of == std::string_view::npos || of == 0) return std::nullopt;
  const std::size_t end = name.find('.', of);
  const std::size_t begin = name.rfind('-', of - 1);
  if (end == std::string_view::npos || begin == std::string_view::npos) return std::nullopt;
  if (!parse_number(name.substr(begin + 1, of - begin - 1), out.number)) return std::nullopt;
  if (!parse_number(name.substr(of + 4, end - of - 4), out.count)) return std::nullopt;
  return out;
}

// Of numbered files: those that the names of the others say there are.
std::vector<std::string> missing_files(const std::vector<std::string>& names) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> there;
  std::set<std::uint32_t> shards;
  std::uint32_t count = 0;
  for (const std::string& name : names) {
    const std::optional<FileNumber> number = number_of(name);
    if (!number) return {};
    there.insert({number->shard, number->number});
    shards.insert(number->shard);
    count = std::max(count, number->count);
  }
  std::vector<std::string> out;
  if (shards.empty()) return out;
  for (std::uint32_t shard = std::min(*shards.begin(), 1u); shard <= *shards.rbegin() && out.size() < 5; ++shard) {
    if (shard == 0 && *shards.begin() != 0) continue;
    for (std::uint32_t number = 1; number <= count && out.size() < 5; ++number)
      if (!there.contains({shard, number}))
        out.push_back(text(shard == 0 ? "" : text("rank ", shard, ", "), "number ", number, " of ", count));
  }
  return out;
}

// --- Files without an index.

// A file of torch.save. One of safetensors may have such a file's name, too.
Status add_torch_file(const std::string& path, Files& files, CheckpointView& view) {
  if (looks_like_safetensors(path, files)) {
    PAWL_ASSIGN(SafetensorsFile file, open_safetensors(path, files));
    add_safetensors(std::move(file), path, view);
    return {};
  }
  PAWL_ASSIGN(const TorchFile file, TorchFile::open(path, files));
  CheckpointView part = view_of(file, path);
  const auto base = static_cast<std::uint32_t>(view.files.size());
  view.files.insert(view.files.end(), part.files.begin(), part.files.end());
  view.notes.insert(view.notes.end(), part.notes.begin(), part.notes.end());
  view.unsupported.insert(view.unsupported.end(), part.unsupported.begin(), part.unsupported.end());
  for (StoredTensor& tensor : part.tensors) {
    for (StoredPiece& piece : tensor.pieces) piece.file += base;
    view.tensors.push_back(std::move(tensor));
  }
  return {};
}

Result<CheckpointView> view_files(const std::string& folder, const std::vector<std::string>& names, Files& files) {
  std::vector<std::pair<std::string, std::optional<SafetensorsFile>>> read;  // none: of torch.save, by its bytes
  std::size_t sharded = 0;
  for (const std::string& name : names) {
    if (looks_like_torch_file(join_path(folder, name), files)) {
      read.emplace_back(name, std::nullopt);
      continue;
    }
    PAWL_ASSIGN(SafetensorsFile file, open_safetensors(join_path(folder, name), files));
    sharded += metadata_of(file, kShardingInfo).empty() ? 0 : 1;
    read.emplace_back(name, std::move(file));
  }
  if (sharded != 0 && sharded != read.size())
    return Error{Code::invalid, text(folder, ": some files are shards of a distributed save and some are not: ",
                                     list_of(names), "; name one, or move the others away")};
  if (sharded != 0) {
    ShardJoiner joiner;
    std::set<std::uint32_t> shards;
    for (const auto& [name, file] : read) {
      PAWL_TRY(joiner.add(join_path(folder, name), *file));
      if (const std::optional<FileNumber> number = number_of(name)) shards.insert(number->shard);
    }
    PAWL_ASSIGN(CheckpointView view, joiner.finish(shards.size()));
    for (const std::string& missing : missing_files(names))
      view.problems.push_back(text(folder, ": a file is missing: ", missing));
    return view;
  }
  CheckpointView view;
  std::unordered_map<std::string, std::string> file_of;
  for (auto& [name, file] : read) {
    const std::size_t before = view.tensors.size();
    if (file) {
      add_safetensors(std::move(*file), join_path(folder, name), view);
    } else {
      PAWL_TRY(add_torch_file(join_path(folder, name), files, view));
      view.notes.push_back(text(name, " is a file of torch.save, whatever its name says"));
    }
    if (read.size() == 1) break;
    for (std::size_t i = before; i < view.tensors.size(); ++i) {
      const auto [found, is_new] = file_of.emplace(view.tensors[i].name, name);
      if (!is_new)
        return Error{Code::invalid, text(folder, ": tensor ", view.tensors[i].name, " is in ", found->second,
                                         " and in ", name, ", and no index says which; name one of the files")};
    }
  }
  if (names.size() > 1) view.notes.push_back(text("no index: all of ", names.size(), " files were taken together"));
  for (const std::string& missing : missing_files(names))
    view.problems.push_back(text(folder, ": a file is missing: ", missing));
  return view;
}

// --- pytorch_model.bin.

Result<CheckpointView> view_torch_index(const std::string& index_path, const HuggingFaceIndex& index, Files& files) {
  CheckpointView view;
  view.format = "Hugging Face pytorch_model.bin";
  std::unordered_map<std::string, std::string_view> wanted;
  for (const auto& [tensor, file] : index.file_of) wanted.emplace(tensor, file);
  for (const std::string& name : index.files) {
    CheckpointView part;
    PAWL_TRY(add_torch_file(join_path(parent_path(index_path), name), files, part));
    const auto base = static_cast<std::uint32_t>(view.files.size());
    view.files.insert(view.files.end(), part.files.begin(), part.files.end());
    view.notes.insert(view.notes.end(), part.notes.begin(), part.notes.end());
    view.unsupported.insert(view.unsupported.end(), part.unsupported.begin(), part.unsupported.end());
    for (StoredTensor& tensor : part.tensors) {
      const auto place = wanted.find(tensor.name);
      if (place == wanted.end() || place->second != name) {
        view.notes.push_back(text("tensor ", tensor.name, " of ", name, " is not in the index"));
        continue;
      }
      wanted.erase(place);
      for (StoredPiece& piece : tensor.pieces) piece.file += base;
      view.tensors.push_back(std::move(tensor));
    }
  }
  if (!wanted.empty())
    return damaged(text(index_path, ": tensor ", wanted.begin()->first, " is not in ", wanted.begin()->second));
  return view;
}

// --- What config.json says.

struct Config {
  bool is_tied = false;
  std::string model_type;
  std::string architecture;
  Shape block;  // elements that share a scale, of a model quantised in blocks
};

// {"quant_method": "fp8", "weight_block_size": [128, 128], ...}
void parse_quantization(JsonScan& scan, Shape& block) {
  std::string key;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key != "weight_block_size" || scan.peek() != '[') {
      (void)scan.skip();
      continue;
    }
    scan.begin_array();
    block.clear();
    while (scan.next_item())
      if (scan.peek() != '0' || block.size() == kDimensionsMax || !scan.number(block.emplace_back())) (void)scan.skip();
  }
}

Config parse_config(std::string_view json) {
  Config out;
  JsonScan scan(json);
  std::string key;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "tie_word_embeddings") {
      out.is_tied = scan.peek() == 't';
      (void)scan.skip();
    } else if (key == "quantization_config" && scan.peek() == '{') {
      parse_quantization(scan, out.block);
    } else if (key == "model_type" && scan.peek() == '"') {
      (void)scan.string(out.model_type);
    } else if (key == "architectures" && scan.peek() == '[') {
      scan.begin_array();
      while (scan.next_item())
        if (!out.architecture.empty() || scan.peek() != '"' || !scan.string(out.architecture)) (void)scan.skip();
    } else {
      (void)scan.skip();
    }
  }
  return scan.finish() ? out : Config();  // it is not ours to complain about
}

bool has_head(std::string_view architecture) {
  return architecture.find("ForCausalLM") != std::string_view::npos ||
         architecture.find("LMHeadModel") != std::string_view::npos;
}

// transformers leaves a tied head out of its files. It is lm_head.weight beside a model of any name; GPT-NeoX has its
// own.
void add_tied_head(CheckpointView& view) {
  constexpr std::string_view kEmbeddings[] = {".embed_tokens.weight", ".wte.weight", ".word_embeddings.weight",
                                              ".embed_in.weight"};
  const StoredTensor* embedding = nullptr;
  std::size_t count = 0;
  for (const StoredTensor& tensor : view.tensors) {
    if (tensor.name == "lm_head.weight" || tensor.name == "embed_out.weight") return;
    const auto ends = [&](std::string_view end) { return tensor.name.ends_with(end); };
    if (std::ranges::none_of(kEmbeddings, ends)) continue;
    embedding = &tensor;
    ++count;
  }
  if (count != 1) return;
  view.aliases.emplace_back(embedding->name.ends_with("embed_in.weight") ? "embed_out.weight" : "lm_head.weight",
                            embedding->name);
}

void read_config(const std::string& folder, Files& files, CheckpointView& view) {
  const Result<std::string> json = read_file(join_path(folder, "config.json"), kConfigBytesMax, files);
  if (!json) return;
  const Config config = parse_config(*json);
  if (!config.model_type.empty()) view.facts.emplace_back("model", config.model_type);
  if (!config.architecture.empty()) view.facts.emplace_back("architecture", config.architecture);
  if (!config.block.empty()) (void)mark_block_scales(view, config.block);
  if (config.is_tied && has_head(config.architecture) && view.aliases.empty()) add_tied_head(view);
}

// The file of that name, or the only one.
Result<std::string> choose(const std::string& folder, const std::vector<std::string>& names, std::string_view usual) {
  if (contains(names, usual)) return std::string(usual);
  if (names.size() == 1) return names.front();
  return Error{Code::invalid, text(folder, ": several indexes: ", list_of(names), "; name one of them")};
}

Result<CheckpointView> view_names(const std::string& folder, const std::vector<std::string>& names, Files& files) {
  const std::vector<std::string> indexes = ending(names, text(kSafetensors, kIndex));
  const std::vector<std::string> safetensors = ending(names, kSafetensors);
  if (!indexes.empty()) {
    PAWL_ASSIGN(const std::string index, choose(folder, indexes, "model.safetensors.index.json"));
    return view_huggingface_index(join_path(folder, index), files);
  }
  if (contains(safetensors, "model.safetensors")) {
    PAWL_ASSIGN(CheckpointView view, view_files(folder, {"model.safetensors"}, files));
    for (const std::string& name : safetensors)
      if (name != "model.safetensors")
        view.notes.push_back(text(name, " lies beside model.safetensors and was not read"));
    return view;
  }
  if (!safetensors.empty()) return view_files(folder, safetensors, files);
  const std::vector<std::string> torch_indexes = ending(names, text(".bin", kIndex));
  if (!torch_indexes.empty()) {
    PAWL_ASSIGN(const std::string index, choose(folder, torch_indexes, "pytorch_model.bin.index.json"));
    return view_huggingface_index(join_path(folder, index), files);
  }
  CheckpointView view;
  PAWL_TRY(add_torch_file(join_path(folder, "pytorch_model.bin"), files, view));
  view.format = "Hugging Face pytorch_model.bin";
  return view;
}

}  // namespace

bool is_huggingface_folder(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    return name.ends_with(kSafetensors) || name.ends_with(text(kSafetensors, kIndex)) ||
           name.ends_with(text(".bin", kIndex)) || name == "pytorch_model.bin";
  });
}

Result<CheckpointView> view_huggingface_index(const std::string& index_path, Files& files) {
  PAWL_ASSIGN(const std::string json, read_file(index_path, kIndexBytesMax, files));
  Result<HuggingFaceIndex> index = parse_huggingface_index(json);
  if (!index) return std::move(index).error().within(index_path);
  FirstFew missing;
  for (const std::string& name : index->files)
    if (!files.exists(join_path(parent_path(index_path), name))) missing.add(name);
  if (missing.any())
    return Error{Code::corrupt, text(index_path, ": files that it names are missing: ", missing.sentence(),
                                     "; copy the checkpoint again, or take another one")};
  const auto is_torch = [](const std::string& name) { return name.ends_with(".bin"); };
  if (!index->files.empty() && std::ranges::all_of(index->files, is_torch))
    return view_torch_index(index_path, *index, files);
  return view_huggingface(index_path, files);
}

Result<CheckpointView> view_huggingface_folder(const std::string& folder, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(const std::vector<std::string> names, files.list(folder));
  if (!is_huggingface_folder(names))
    return Error{Code::not_found, text(folder, ": no safetensors file, no index of some, no pytorch_model.bin")};
  PAWL_ASSIGN(CheckpointView view, view_names(folder, names, files));
  if (view.format.empty() || view.format == "safetensors") view.format = "Hugging Face safetensors";
  read_config(folder, files, view);
  return view;
}

}  // namespace pawl::checkpoint
