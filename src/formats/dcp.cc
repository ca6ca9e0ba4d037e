#include "formats/dcp.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "formats/pickle.h"
#include "formats/torch_file.h"
#include "tensor/box.h"

namespace pawl {
namespace {

constexpr std::uint64_t kMetadataBytesMax = std::uint64_t{1} << 30;
constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kOldModule = "torch.distributed._shard.checkpoint.metadata";  // torch 1.12, 1.13
constexpr std::size_t kNamesMax = 5;                                                     // in one sentence

using Value = Pickle::Value;
constexpr Value kNothing = Pickle::kNothing;

Error damaged(std::string why) {
  return Error{Code::corrupt, std::move(why)};
}

bool is_class(const Pickle& pickle, Value value, std::string_view name) {
  if (!pickle.is(value, PickleKind::object)) return false;
  const PickleSymbol& symbol = pickle.class_of(value);
  return symbol.name == name && (symbol.module == kModule || symbol.module == kOldModule);
}

Value field(const Pickle& pickle, Value object, std::string_view name) {
  return pickle.find(pickle.object(object).state, name);
}

Result<Shape> shape_of(const Pickle& pickle, Value value, std::string_view what) {
  PAWL_ASSIGN(Shape shape, torch_sizes(pickle, value, what));
  if (shape.size() > kDimensionsMax) return Error{Code::invalid, text(what, " of ", shape.size(), " dimensions")};
  return shape;
}

// What a place is looked up by: the key's number and, of a tensor's chunk, its offset.
struct PlaceKey {
  std::uint32_t key = 0;
  std::uint32_t dimensions = 0;
  PerDimension offset{};
  bool operator==(const PlaceKey&) const = default;
};
constexpr std::uint32_t kObject = ~0u;  // as dimensions: no tensor's

std::uint64_t hash_of(const PlaceKey& key) {
  std::uint64_t hash = (std::uint64_t{key.key} << 32 | key.dimensions) * 0x9e3779b97f4a7c15u;
  for (std::uint32_t d = 0; key.dimensions != kObject && d < key.dimensions; ++d)
    hash = (hash ^ key.offset[d] ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
  return hash ^ hash >> 32;
}

struct Found {
  PlaceKey key;
  DcpPlace place;
  bool is_lost = false;  // its bytes aren't there
};

// Places by their keys. In one piece and in the order in which they came, since a hundred thousand small allocations
// and misses of the cache would take longer than all the rest.
class Places {
 public:
  void clear(std::size_t expected) {
    found_.clear();
    found_.reserve(expected);
    slots_.assign(std::bit_ceil(expected * 2 + 1), 0);
  }
  // False if the key is there. At most as many as were expected.
  bool add(Found found) {
    std::uint32_t& slot = slot_of(found.key);
    if (slot != 0) return false;
    found_.push_back(std::move(found));
    slot = static_cast<std::uint32_t>(found_.size());
    return true;
  }
  [[nodiscard]] const Found* find(const PlaceKey& key) {
    const std::uint32_t slot = slot_of(key);
    return slot == 0 ? nullptr : &found_[slot - 1];
  }

 private:
  std::uint32_t& slot_of(const PlaceKey& key) {
    std::size_t at = hash_of(key) & (slots_.size() - 1);
    while (slots_[at] != 0 && found_[slots_[at] - 1].key != key) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  std::vector<Found> found_;
  std::vector<std::uint32_t> slots_;  // 0: free; else an index, plus one
};

PlaceKey place_key(std::uint32_t key, const Shape& offset) {
  PlaceKey out{key, static_cast<std::uint32_t>(offset.size()), {}};
  std::ranges::copy(offset, out.offset.begin());
  return out;
}

// A file that metadata names, and what is wrong with it.
struct DataFile {
  std::uint32_t number = 0;  // in DcpCheckpoint::files
  bool is_missing = false;
  std::size_t lost = 0;                     // items that lie in it, or beyond its end
  std::vector<std::string> lost_keys = {};  // the first of them
};

std::string list_of(const std::vector<std::string>& names, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) append_text(out, text(i == 0 ? "" : ", ", names[i]));
  if (count > names.size()) append_text(out, text(", and ", count - names.size(), " more"));
  return out;
}

}  // namespace

// One metadata file after another, joined in out_.
class DcpReader {
 public:
  DcpReader(std::string folder, Files& files) : folder_(std::move(folder)), files_(files) {}
  Result<DcpCheckpoint> read();

 private:
  Result<std::vector<std::string>> metadata_files(const std::vector<std::string>& names);
  Status read_metadata(const std::string& name);
  Status read_places(const Pickle& pickle, Value storage_data);
  Status read_place(const Pickle& pickle, Value index, Value info);
  Status read_key(const Pickle& pickle, Value key, Value entry);
  Status read_object(const Pickle& pickle, std::uint32_t key);
  Status read_tensor(const Pickle& pickle, std::uint32_t key, Value entry);
  Status read_chunk(const Pickle& pickle, std::uint32_t key, Value chunk, DcpTensor& tensor);
  void read_paths(const Pickle& pickle, Value planner_data);
  void read_facts(const Pickle& pickle);
  Result<DataFile*> file_named(std::string_view name);
  std::uint32_t number_of(const Pickle& pickle, Value key);
  std::vector<std::string> path_of(const Pickle& pickle, std::uint32_t key);
  void note_files(const std::vector<std::string>& names);

  static constexpr std::uint32_t kNone = ~0u;
  struct Key {  // of one metadata file
    std::string_view text;
    Value path = kNothing;
    std::uint32_t order = 0;
    std::uint32_t tensor = kNone;  // in out_
    bool is_object = false;        // one of out_'s
  };

  std::string folder_;
  Files& files_;
  DcpCheckpoint out_;
  std::map<std::string, DataFile, std::less<>> data_files_;
  std::vector<Key> keys_;
  std::unordered_map<std::string_view, std::uint32_t> key_numbers_;  // views of the pickle that is being read
  std::vector<std::uint32_t> numbers_;  // by value of the pickle: the key that it is; kNone: not asked yet
  Places places_;
  bool is_joined_ = false;  // of several metadata files: what came from the ones before is found by name
  std::unordered_map<std::string, std::uint32_t> tensor_index_;
  std::unordered_set<std::string> object_keys_;
};

Result<std::vector<std::string>> DcpReader::metadata_files(const std::vector<std::string>& names) {
  std::vector<std::pair<std::uint32_t, std::string>> ranks;  // by number: 10 comes after 9
  for (const std::string& name : names) {
    std::uint32_t rank = 0;
    if (!name.starts_with("__") || !name.ends_with(".metadata") || name.size() < 12) continue;
    if (parse_number(std::string_view(name).substr(2, name.size() - 11), rank)) ranks.emplace_back(rank, name);
  }
  if (path_exists(join_path(folder_, ".metadata"))) {
    if (!ranks.empty())
      out_.notes.push_back(text(ranks.front().second, " is not looked at, since there is .metadata; if a save without ",
                                "collectives is the newer one, move .metadata away"));
    return std::vector<std::string>{".metadata"};
  }
  if (ranks.empty())
    return Error{Code::not_found, text(folder_, ": no .metadata: the save did not end, or this is no such folder")};
  std::ranges::sort(ranks);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].first != i)
      return damaged(text(folder_, ": __", i, ".metadata is missing, and __", ranks[i].first, ".metadata is there"));
    out.push_back(std::move(ranks[i].second));
  }
  return out;
}

Result<DcpCheckpoint> DcpReader::read() {
  PAWL_ASSIGN(const std::vector<std::string> names, files_.list(folder_));
  PAWL_ASSIGN(const std::vector<std::string> metadata, metadata_files(names));
  out_.facts.emplace_back("writer", "torch.distributed.checkpoint");
  is_joined_ = metadata.size() > 1;
  for (const std::string& name : metadata)
    if (Status status = read_metadata(name); !status) return std::move(status).error().within(join_path(folder_, name));
  if (metadata.front() != ".metadata") out_.facts.emplace_back("world", text(metadata.size()));
  note_files(names);
  return std::move(out_);
}

// What is missing or too short is a problem; what no place names is of an older save, or of something else.
void DcpReader::note_files(const std::vector<std::string>& names) {
  for (const auto& [name, file] : data_files_) {
    if (file.lost == 0) continue;
    const std::string path = join_path(folder_, name);
    const std::string what =
        file.is_missing ? text(path, " is missing") : text(path, " is cut: it ends at ", out_.file_bytes[file.number]);
    out_.problems.push_back(text(what, "; items that are lost: ", list_of(file.lost_keys, file.lost)));
  }
  std::vector<std::string> stale;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (!name.ends_with(".distcp") || data_files_.contains(name)) continue;
    const Result<std::unique_ptr<ByteSource>> source = open_bytes(join_path(folder_, name), files_);
    if (!source || (*source)->size_bytes() == 0) continue;  // a rank that had nothing to write
    if (++count <= kNamesMax) stale.push_back(name);
  }
  if (count != 0)
    out_.notes.push_back(
        text("not part of this checkpoint (left by an older save, or by another): ", list_of(stale, count)));
}

Status DcpReader::read_metadata(const std::string& name) {
  PAWL_ASSIGN(const std::string bytes, read_file(join_path(folder_, name), kMetadataBytesMax, files_));
  PAWL_ASSIGN(const Pickle pickle, parse_pickle(bytes));
  if (pickle.source_bytes() != bytes.size())
    return damaged(text("offset ", pickle.source_bytes(), ": bytes after the end"));
  if (!is_class(pickle, pickle.root(), "Metadata"))
    return damaged(text("not a Metadata: ", pickle.describe(pickle.root())));
  keys_.clear();
  key_numbers_.clear();
  numbers_.assign(pickle.count(), kNone);
  read_facts(pickle);
  PAWL_TRY(read_places(pickle, field(pickle, pickle.root(), "storage_data")));
  const Value entries = field(pickle, pickle.root(), "state_dict_metadata");
  if (!pickle.is(entries, PickleKind::dict)) return damaged("no state_dict_metadata");
  read_paths(pickle, field(pickle, pickle.root(), "planner_data"));
  const std::span<const Value> pairs = pickle.items(entries);
  out_.tensors.reserve(out_.tensors.size() + pairs.size() / 2);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) PAWL_TRY(read_key(pickle, pairs[i], pairs[i + 1]));
  return {};
}

void DcpReader::read_facts(const Pickle& pickle) {
  if (out_.facts.size() > 1) return;  // the first rank's stand for all
  const Value version = field(pickle, pickle.root(), "version");
  if (pickle.is(version, PickleKind::string)) {
    out_.facts.emplace_back("metadata version", pickle.text(version));
    if (pickle.text(version) != "1.0.0")
      out_.notes.push_back(text("the metadata say version ", pickle.text(version), "; 1.0.0 is known here"));
  }
  const Value save = field(pickle, field(pickle, pickle.root(), "storage_meta"), "save_id");
  if (pickle.is(save, PickleKind::string)) out_.facts.emplace_back("save id", pickle.text(save));
}

std::uint32_t DcpReader::number_of(const Pickle& pickle, Value key) {
  if (numbers_[key] != kNone) return numbers_[key];  // picklers write a string once
  const auto [found, is_new] = key_numbers_.emplace(pickle.text(key), static_cast<std::uint32_t>(keys_.size()));
  if (is_new) keys_.push_back({pickle.text(key)});
  return numbers_[key] = found->second;
}

Status DcpReader::read_places(const Pickle& pickle, Value storage_data) {
  if (!pickle.is(storage_data, PickleKind::dict)) return damaged("no storage_data");
  const std::span<const Value> pairs = pickle.items(storage_data);
  places_.clear(pairs.size() / 2);
  keys_.reserve(pairs.size() / 2);
  key_numbers_.reserve(pairs.size() / 2);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) PAWL_TRY(read_place(pickle, pairs[i], pairs[i + 1]));
  return {};
}

Status DcpReader::read_place(const Pickle& pickle, Value index, Value info) {
  const Value key = field(pickle, index, "fqn");
  if (!is_class(pickle, index, "MetadataIndex") || !pickle.is(key, PickleKind::string))
    return damaged(text("storage_data: a key is ", pickle.describe(index)));
  const std::string_view name = pickle.text(key);
  const Value offset = field(pickle, index, "offset");
  PlaceKey at{number_of(pickle, key), kObject, {}};
  if (offset != kNothing && !pickle.is(offset, PickleKind::none)) {
    Result<Shape> shape = shape_of(pickle, offset, "offset");
    if (!shape) return std::move(shape).error().within(std::string(name));
    at = place_key(at.key, *shape);
  }
  const Value path = field(pickle, info, "relative_path");
  const std::optional<std::uint64_t> begin = pickle.unsigned_(field(pickle, info, "offset"));
  const std::optional<std::uint64_t> length = pickle.unsigned_(field(pickle, info, "length"));
  if (!pickle.is(path, PickleKind::string) || !begin || !length)
    return damaged(text("the place of ", name, " is incomplete"));
  PAWL_ASSIGN(DataFile* const file, file_named(pickle.text(path)));
  const std::uint64_t file_bytes = out_.file_bytes[file->number];
  Found found{at, {file->number, *begin, *length, {}}};
  found.is_lost = file->is_missing || *begin > file_bytes || *length > file_bytes - *begin;
  if (found.is_lost && ++file->lost <= kNamesMax) file->lost_keys.emplace_back(name);
  for (const Value transform : pickle.items(field(pickle, info, "transform_descriptors")))
    found.place.transforms.emplace_back(pickle.text(transform));
  if (!places_.add(std::move(found))) return damaged(text(name, ": one of its chunks has two places"));
  return {};
}

Result<DataFile*> DcpReader::file_named(std::string_view name) {
  if (const auto found = data_files_.find(name); found != data_files_.end()) return &found->second;
  if (!is_plain_file_name(name)) return damaged("a place is in a file whose name is no plain name");
  DataFile file{.number = static_cast<std::uint32_t>(out_.files.size())};
  out_.files.push_back(join_path(folder_, name));
  Result<std::unique_ptr<ByteSource>> source = open_bytes(out_.files.back(), files_);
  if (!source && source.error().code != Code::not_found) return std::move(source).error();
  file.is_missing = !source;
  out_.file_bytes.push_back(source ? (*source)->size_bytes() : 0);
  return &data_files_.emplace(name, std::move(file)).first->second;
}

// The default planner's: flat key -> the keys it was made of. Other planners keep what they like there.
void DcpReader::read_paths(const Pickle& pickle, Value planner_data) {
  if (!pickle.is(planner_data, PickleKind::dict)) return;
  const std::span<const Value> pairs = pickle.items(planner_data);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!pickle.is(pairs[i], PickleKind::string) || !pickle.is(pairs[i + 1], PickleKind::tuple)) continue;
    Key& key = keys_[number_of(pickle, pairs[i])];
    key.path = pairs[i + 1];
    key.order = static_cast<std::uint32_t>(i / 2);
  }
}

std::vector<std::string> DcpReader::path_of(const Pickle& pickle, std::uint32_t key) {
  std::vector<std::string> path;
  if (keys_[key].path == kNothing) return path;
  const std::span<const Value> parts = pickle.items(keys_[key].path);
  path.reserve(parts.size());
  for (const Value part : parts) {
    const std::optional<std::int64_t> number = pickle.integer(part);
    path.push_back(number ? text(*number) : std::string(pickle.text(part)));
  }
  return path;
}

Status DcpReader::read_key(const Pickle& pickle, Value key, Value entry) {
  if (!pickle.is(key, PickleKind::string)) return damaged(text("a key is ", pickle.describe(key)));
  const std::uint32_t number = number_of(pickle, key);
  if (is_class(pickle, entry, "TensorStorageMetadata")) {
    Status status = read_tensor(pickle, number, entry);
    if (!status) return std::move(status).error().within(text("tensor ", pickle.text(key)));
    return {};
  }
  if (is_class(pickle, entry, "BytesStorageMetadata")) return read_object(pickle, number);
  return damaged(text(pickle.text(key), " is ", pickle.describe(entry)));
}

Status DcpReader::read_object(const Pickle& pickle, std::uint32_t key) {
  const std::string name(keys_[key].text);
  const Found* found = places_.find({key, kObject, {}});
  if (found == nullptr) {
    out_.notes.push_back(text("object ", name, " is listed and was not written"));
    return {};
  }
  if (found->is_lost || keys_[key].is_object) return {};
  keys_[key].is_object = true;
  if (is_joined_ && !object_keys_.insert(name).second) return {};  // every rank listed it
  out_.objects.push_back({name, path_of(pickle, key), found->place});
  return {};
}

Status DcpReader::read_tensor(const Pickle& pickle, std::uint32_t key, Value entry) {
  DcpTensor tensor;
  tensor.key = keys_[key].text;
  const Value properties = field(pickle, entry, "properties");
  const Value state = pickle.object(properties).state;  // (dtype, layout, ...), or a dict
  const std::span<const Value> parts = pickle.items(state);
  const Value type = pickle.is(state, PickleKind::tuple) && !parts.empty() ? parts[0] : pickle.find(state, "dtype");
  const std::optional<ElementType> known = torch_type(pickle, type);
  if (!known) return damaged(text("its type is ", pickle.describe(type)));
  tensor.type = *known;
  PAWL_ASSIGN(tensor.shape, shape_of(pickle, field(pickle, entry, "size"), "size"));
  PAWL_TRY(element_count(tensor.shape));
  const auto next = static_cast<std::uint32_t>(out_.tensors.size());
  std::uint32_t& number = keys_[key].tensor;
  if (number == kNone) number = is_joined_ ? tensor_index_.emplace(tensor.key, next).first->second : next;
  if (number == next) {
    tensor.path = path_of(pickle, key);
    tensor.order = keys_[key].order;
    out_.tensors.push_back(std::move(tensor));
  } else if (out_.tensors[number].type != tensor.type || out_.tensors[number].shape != tensor.shape) {
    return damaged(text(text_of(tensor.shape), ' ', name_of(tensor.type), " here, ",
                        text_of(out_.tensors[number].shape), ' ', name_of(out_.tensors[number].type),
                        " in another rank's file"));
  }
  DcpTensor& out = out_.tensors[number];
  const Value chunks = field(pickle, entry, "chunks");
  if (!pickle.is(chunks, PickleKind::list)) return damaged("no list of chunks");
  for (const Value chunk : pickle.items(chunks)) PAWL_TRY(read_chunk(pickle, key, chunk, out));
  return {};
}

Status DcpReader::read_chunk(const Pickle& pickle, std::uint32_t key, Value chunk, DcpTensor& tensor) {
  DcpChunk out;
  PAWL_ASSIGN(out.region.offset, shape_of(pickle, field(pickle, chunk, "offsets"), "offsets"));
  PAWL_ASSIGN(out.region.shape, shape_of(pickle, field(pickle, chunk, "sizes"), "sizes"));
  if (Status inside = check_inside(out.region, tensor.shape); !inside) return damaged(inside.error().what);
  const Found* found = places_.find(place_key(key, out.region.offset));
  const bool is_empty = std::ranges::find(out.region.shape, std::uint64_t{0}) != out.region.shape.end();
  if (found == nullptr) {
    if (is_empty) return {};  // planned, and not always written
    return damaged(text("the chunk at ", text_of(out.region.offset), " has no place"));
  }
  if (found->is_lost) return {};
  out.place = found->place;
  tensor.chunks.push_back(std::move(out));
  return {};
}

Result<DcpCheckpoint> open_dcp(const std::string& folder, Files& files) {
  return DcpReader(folder, files).read();
}

}  // namespace pawl
