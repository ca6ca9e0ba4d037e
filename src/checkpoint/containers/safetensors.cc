#include "checkpoint/containers/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/containers/foreign_file.h"
#include "checkpoint/containers/json_scan.h"
#include "checkpoint/containers/safetensors_layout.h"
#include "checkpoint/containers/torch_file.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kIndexBytesMax = 256 << 20;
constexpr std::size_t kDimensionsStoredMax = 64;
constexpr std::size_t kSafetensorsHeadBytes = 16;

Error bad_safetensors(std::string why) {
  return Error{Code::corrupt, text("safetensors: ", why)};
}

std::optional<std::uint64_t> bytes_needed(ElementType type, const std::vector<std::uint64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape)
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  return size_bytes(type, count);
}

// {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
bool scan_entry(JsonScan& scan, SafetensorsEntry& entry) {
  bool has_type = false, has_shape = false, has_range = false;
  std::string key, word;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "dtype" && !has_type) {
      has_type = true;
      if (!scan.string(word)) return false;
      const std::optional<ElementType> type = element_type_of_safetensors(word);
      if (!type) return scan.fail(text("tensor ", entry.name, ": type ", word, " is not known"));
      entry.type = *type;
    } else if (key == "shape" && !has_shape) {
      has_shape = true;
      if (!scan.numbers(entry.shape, kDimensionsStoredMax)) return false;
    } else if (key == "data_offsets" && !has_range) {
      has_range = true;
      std::uint64_t end = 0;
      scan.begin_array();
      if (!scan.next_item() || !scan.number(entry.offset_bytes) || !scan.next_item() || !scan.number(end) ||
          scan.next_item())
        return scan.fail("data_offsets are two numbers");
      if (scan.failed()) return false;
      if (end < entry.offset_bytes) return scan.fail(text("tensor ", entry.name, ": its range ends before it begins"));
      entry.size_bytes = end - entry.offset_bytes;
    } else {
      return scan.fail(text("tensor ", entry.name, ": field ", key, " is unknown, or there twice"));
    }
  }
  if (scan.failed()) return false;
  if (!has_type || !has_shape || !has_range) return scan.fail(text("tensor ", entry.name, ": a field is missing"));
  const std::optional<std::uint64_t> needed = bytes_needed(entry.type, entry.shape);
  if (!needed) return scan.fail(text("tensor ", entry.name, ": no number of bytes holds its shape"));
  if (*needed != entry.size_bytes)
    return scan.fail(text("tensor ", entry.name, ": ", entry.size_bytes, " bytes, and its shape needs ", *needed));
  return true;
}

bool scan_metadata(JsonScan& scan, SafetensorsFile& file) {
  std::string key, value;
  std::unordered_set<std::string> seen;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (!scan.string(value)) return false;
    if (!seen.insert(key).second) return scan.fail(text("metadata ", key, " is there twice"));
    file.metadata.emplace_back(key, value);
  }
  return !scan.failed();
}

bool scan_header(JsonScan& scan, SafetensorsFile& file) {
  std::string key;
  bool has_metadata = false;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "__metadata__") {
      if (has_metadata) return scan.fail("metadata twice");
      has_metadata = true;
      if (!scan_metadata(scan, file)) return false;
      continue;
    }
    SafetensorsEntry& entry = file.tensors.emplace_back();
    entry.name = key;
    if (!scan_entry(scan, entry)) return false;
  }
  return scan.finish();
}

// A table of hashes in one piece: a set of a hundred thousand strings takes longer than all the rest of a header.
Status check_names(const SafetensorsFile& file) {
  const std::size_t cells = std::bit_ceil(file.tensors.size() * 2 + 1);
  std::vector<std::uint32_t> table(cells, 0);  // 0: free; else an index, plus one
  for (std::uint32_t i = 0; i < file.tensors.size(); ++i) {
    const std::string& name = file.tensors[i].name;
    std::size_t cell = std::hash<std::string_view>()(name) & (cells - 1);
    for (; table[cell] != 0; cell = (cell + 1) & (cells - 1))
      if (file.tensors[table[cell] - 1].name == name) return bad_safetensors(text("tensor ", name, " is there twice"));
    table[cell] = i + 1;
  }
  return {};
}

// In the order of the bytes, each range begins where the one before ended, and the last ends with the file.
Status check_cover(SafetensorsFile& file, std::uint64_t data_bytes) {
  const auto is_before = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.offset_bytes, a.size_bytes, a.name) < std::tie(b.offset_bytes, b.size_bytes, b.name);
  };
  if (!std::ranges::is_sorted(file.tensors, is_before)) std::ranges::sort(file.tensors, is_before);
  std::uint64_t at = 0;
  for (SafetensorsEntry& entry : file.tensors) {
    if (entry.offset_bytes != at)
      return bad_safetensors(text("tensor ", entry.name, " begins at ", entry.offset_bytes, " of the data, ",
                                  entry.offset_bytes < at ? "inside another that ends at " : "after a hole from ", at));
    if (entry.size_bytes > data_bytes - at)
      return bad_safetensors(text("tensor ", entry.name, " passes the end of the file: is it cut off?"));
    at += entry.size_bytes;
    entry.offset_bytes += file.header_bytes;
  }
  if (at != data_bytes) return bad_safetensors(text(data_bytes - at, " bytes after the last tensor"));
  return {};
}

void add_to(CheckpointView& view, SafetensorsEntry entry, std::uint32_t file) {
  if (entry.shape.size() > kDimensionsMax) {
    view.notes.push_back(text("tensor ", entry.name, " has ", entry.shape.size(), " dimensions, and is left out"));
    return;
  }
  StoredTensor& tensor = view.tensors.emplace_back();
  tensor.name = std::move(entry.name);
  tensor.type = entry.type;
  tensor.shape = std::move(entry.shape);
  if (entry.size_bytes != 0) tensor.pieces.assign(1, whole_piece(tensor.shape, file, entry.offset_bytes));
}

// transformers may write, for a tied name that it leaves out, which one it kept.
void add_aliases(CheckpointView& view, const SafetensorsFile& file) {
  std::unordered_set<std::string_view> names;
  for (const auto& [key, value] : file.metadata) {
    if (key == "format") continue;
    if (names.empty())
      for (const SafetensorsEntry& entry : file.tensors) names.insert(entry.name);
    if (names.contains(value) && !names.contains(key)) view.aliases.emplace_back(key, value);
  }
}

// The file's first bytes are no header: because it is something else, or as `why` says.
Error no_header(ByteSource& source, std::string why) {
  const Result<std::string> head = read_text(source, 0, std::min<std::uint64_t>(source.size_bytes(), kTorchHeadBytes));
  if (head && begins_like_torch_file(*head))
    return Error{Code::invalid,
                 "a file of torch.save (or another zip archive) where safetensors should be: give its own path"};
  std::optional<Error> foreign = foreign_file(source);
  return foreign ? std::move(*foreign) : bad_safetensors(std::move(why));
}

}  // namespace

Result<SafetensorsFile> read_safetensors(ByteSource& source) {
  const std::uint64_t size = source.size_bytes();
  if (size < 8) return no_header(source, text(size, " bytes are not a file"));
  PAWL_ASSIGN(const std::string head, read_text(source, 0, 8));
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), 8);
  if (length > kSafetensorsHeaderBytesMax) return no_header(source, text("offset 0: a header of ", length, " bytes"));
  if (length > size - 8)
    return no_header(source, text("offset 0: a header of ", length, " bytes in a file of ", size, ": is it cut off?"));
  PAWL_ASSIGN(const std::string header, read_text(source, 8, length));
  if (!header.starts_with('{')) return no_header(source, "offset 8: the header does not begin with {");
  SafetensorsFile file;
  file.header_bytes = 8 + length;
  JsonScan scan(header);
  if (!scan_header(scan, file)) return scan.error().within("safetensors: header");
  PAWL_TRY(check_names(file));
  PAWL_TRY(check_cover(file, size - file.header_bytes));
  return file;
}

bool begins_like_safetensors(std::string_view head) {
  std::uint64_t length = 0;
  if (head.size() < 10) return false;
  std::memcpy(&length, head.data(), 8);
  return head[8] == '{' && length < (std::uint64_t{1} << 40);
}

bool looks_like_safetensors(const std::string& path, Files& files) {
  const Result<std::string> head = read_head(path, kSafetensorsHeadBytes, files);
  return head && begins_like_safetensors(*head);
}

Result<SafetensorsFile> open_safetensors(const std::string& path, Files& files) {
  PAWL_ASSIGN(const std::unique_ptr<ByteSource> source, open_bytes(path, files));
  Result<SafetensorsFile> file = read_safetensors(*source);
  if (!file) return std::move(file).error().within(path);
  return file;
}

Result<HuggingFaceIndex> parse_huggingface_index(std::string_view json) {
  JsonScan scan(json);
  HuggingFaceIndex index;
  std::string key, tensor, file;
  std::unordered_set<std::string> seen;
  bool has_map = false;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key != "weight_map") {
      (void)scan.skip();
      continue;
    }
    if (has_map) (void)scan.fail("weight_map twice");
    has_map = true;
    scan.begin_object();
    while (scan.next_key(tensor)) {
      if (!scan.string(file)) break;
      if (!is_plain_file_name(file))
        (void)scan.fail(text("tensor ", tensor, " lies in a file whose name is not a plain name"));
      if (!seen.insert(tensor).second) (void)scan.fail(text("tensor ", tensor, " is there twice"));
      index.file_of.emplace_back(tensor, file);
      index.files.push_back(file);
    }
  }
  if (!scan.finish()) return scan.error().within("index");
  if (!has_map) return Error{Code::corrupt, "index: no weight_map"};
  std::ranges::sort(index.files);
  index.files.erase(std::unique(index.files.begin(), index.files.end()), index.files.end());
  return index;
}

void add_safetensors(SafetensorsFile file, const std::string& path, CheckpointView& view) {
  const auto number = static_cast<std::uint32_t>(view.files.size());
  view.files.push_back({path});
  add_aliases(view, file);
  view.tensors.reserve(view.tensors.size() + file.tensors.size());
  for (SafetensorsEntry& entry : file.tensors) add_to(view, std::move(entry), number);
}

Result<CheckpointView> view_safetensors(const std::string& path, Files& files) {
  PAWL_ASSIGN(SafetensorsFile file, open_safetensors(path, files));
  CheckpointView view;
  view.format = "safetensors";
  for (const auto& [key, value] : file.metadata)
    if (key == "DCP_SHARDING_INFO")
      view.notes.emplace_back(
          "a rank's file of a distributed save: its tensors may be parts; its folder has them whole");
  add_safetensors(std::move(file), path, view);
  return view;
}

Result<CheckpointView> view_huggingface(const std::string& index_path, Files& files) {
  PAWL_ASSIGN(const std::string json, read_file(index_path, kIndexBytesMax, files));
  Result<HuggingFaceIndex> index = parse_huggingface_index(json);
  if (!index) return std::move(index).error().within(index_path);
  std::unordered_map<std::string_view, std::string_view> wanted;  // tensor -> file
  for (const auto& [tensor, file] : index->file_of) wanted.emplace(tensor, file);
  CheckpointView view;
  view.format = "Hugging Face safetensors";
  for (const std::string& name : index->files) {
    const auto number = static_cast<std::uint32_t>(view.files.size());
    view.files.push_back({join_path(parent_path(index_path), name)});
    PAWL_ASSIGN(const SafetensorsFile file, open_safetensors(view.files.back().path, files));
    for (const SafetensorsEntry& entry : file.tensors) {
      const auto place = wanted.find(entry.name);
      if (place == wanted.end() || place->second != name) {
        view.notes.push_back(text("tensor ", entry.name, " of ", name, " is not in the index"));
        continue;
      }
      add_to(view, entry, number);
      wanted.erase(place);
    }
    add_aliases(view, file);
  }
  if (!wanted.empty())
    return Error{Code::corrupt,
                 text(index_path, ": tensor ", wanted.begin()->first, " is not in ", wanted.begin()->second)};
  return view;
}

}  // namespace pawl::checkpoint
