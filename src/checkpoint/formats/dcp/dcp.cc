#include "checkpoint/formats/dcp/dcp.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/index_table.h"
#include "base/text.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/containers/torch_file.h"
#include "env/huge_pages.h"
#include "tensor/box.h"

namespace pawl::checkpoint {
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

// A class of torch's. Picklers write a global once, so its names are seldom looked at.
struct KnownClass {
  std::string_view name;
  Value known = kNothing;  // of the pickle that is being read
};

bool is_class(const Pickle& pickle, Value value, KnownClass& known) {
  if (!pickle.is(value, PickleKind::object)) return false;
  const Value callable = pickle.object(value).callable;
  if (callable == known.known) return true;
  const PickleSymbol& symbol = pickle.symbol(callable);
  if (symbol.name != known.name || (symbol.module != kModule && symbol.module != kOldModule)) return false;
  known.known = callable;
  return true;
}

// Names that objects by the hundred thousand have their fields under; these are the first keys' numbers.
constexpr std::array<std::string_view, 10> kFieldNames = {
    "fqn",        "offset", "relative_path", "length",  "transform_descriptors",
    "properties", "size",   "chunks",        "offsets", "sizes"};
enum Field : std::uint32_t {
  kFqn,
  kOffset,
  kRelativePath,
  kLength,
  kTransforms,
  kProperties,
  kSize,
  kChunks,
  kOffsets,
  kSizes,
};

Value field(const Pickle& pickle, Value object, std::string_view name) {
  return pickle.find(pickle.object(object).state, name);
}

Status read_shape(const Pickle& pickle, Value value, std::string_view what, Shape& out) {
  PAWL_TRY(read_torch_sizes(pickle, value, what, out));
  if (out.size() > kDimensionsMax) return Error{Code::invalid, text(what, " of ", out.size(), " dimensions")};
  return {};
}

// What a place is looked up by: the key's number and, of a tensor's chunk, its offset.
struct PlaceKey {
  std::uint32_t key = 0;
  std::uint32_t dimensions = 0;
  PerDimension offset{};
  bool operator==(const PlaceKey&) const = default;
};
constexpr std::uint32_t kObject = ~0u;  // as dimensions: no tensor's

// For an IndexTable: tensors that have one place have their cells in a row.
std::uint64_t hash_of(const PlaceKey& key) {
  std::uint64_t hash = 0;
  for (std::uint32_t d = 0; key.dimensions != kObject && d < key.dimensions; ++d)
    hash = (hash ^ key.offset[d] ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
  const std::uint64_t mixed = (hash ^ (std::uint64_t{key.key} << 32 | key.dimensions)) * 0x9e3779b97f4a7c15u;
  return mixed >> 32 << 32 | static_cast<std::uint32_t>(key.key + (hash >> 32));
}

struct Found {
  PlaceKey key;
  DcpPlace place;
  bool is_lost = false;  // its bytes aren't there
};

// Places by their keys, in the order in which they came.
class Places {
 public:
  void clear(std::size_t expected) {
    found_.clear();
    found_.reserve(expected);
    prefer_huge_pages(found_);
    numbers_.clear(expected);
  }
  // False if the key is there. At most as many as were expected.
  bool add(Found found) {
    const auto next = static_cast<std::uint32_t>(found_.size());
    const auto is_equal = [&](std::uint32_t number) { return found_[number].key == found.key; };
    if (numbers_.find_or_add(hash_of(found.key), next, is_equal) != next) return false;
    found_.push_back(std::move(found));
    return true;
  }
  [[nodiscard]] const Found* find(const PlaceKey& key) const {
    const std::uint32_t number = numbers_.find(hash_of(key), [&](std::uint32_t n) { return found_[n].key == key; });
    return number == IndexTable::kNone ? nullptr : &found_[number];
  }

 private:
  std::vector<Found> found_;
  IndexTable numbers_;
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
  void forget(std::uint32_t texts);
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
  std::uint32_t add_key(std::string_view key);
  Value field_of(const Pickle& pickle, Value object, Field name);
  std::optional<ElementType> type_of(const Pickle& pickle, Value type);
  std::vector<std::string> path_of(const Pickle& pickle, std::uint32_t key);
  void note_files(const std::vector<std::string>& names);

  static constexpr std::uint32_t kNone = ~0u;
  struct Key {  // of one metadata file
    std::string_view text;
    Value path = kNothing;
    std::uint32_t order = 0;
    std::uint32_t tensor = kNone;  // in out_
    bool is_object = false;        // one of out_'s
    DataFile* file = nullptr;      // if it is a file's name that was asked for
  };

  std::string folder_;
  Files& files_;
  DcpCheckpoint out_;
  std::map<std::string, DataFile, std::less<>> data_files_;
  std::vector<Key> keys_;
  IndexTable key_numbers_;
  std::vector<std::uint32_t> numbers_;  // by the pickle's text_number: the key that it is; kNone: not asked yet
  KnownClass metadata_{"Metadata"}, index_{"MetadataIndex"}, tensor_{"TensorStorageMetadata"},
      object_{"BytesStorageMetadata"};
  Value known_type_ = kNothing;
  std::optional<ElementType> type_;                // what known_type_ is
  Shape place_offset_, chunk_begin_, chunk_size_;  // used again and again
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
  if (files_.exists(join_path(folder_, ".metadata"))) {
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
  forget(pickle.text_count());
  if (!is_class(pickle, pickle.root(), metadata_))
    return damaged(text("not a Metadata: ", pickle.describe(pickle.root())));
  read_facts(pickle);
  PAWL_TRY(read_places(pickle, field(pickle, pickle.root(), "storage_data")));
  const Value entries = field(pickle, pickle.root(), "state_dict_metadata");
  if (!pickle.is(entries, PickleKind::dict)) return damaged("no state_dict_metadata");
  read_paths(pickle, field(pickle, pickle.root(), "planner_data"));
  const std::span<const Value> pairs = pickle.items(entries);
  out_.tensors.reserve(out_.tensors.size() + pairs.size() / 2);
  prefer_huge_pages(out_.tensors);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) PAWL_TRY(read_key(pickle, pairs[i], pairs[i + 1]));
  return {};
}

// What was known of the metadata file before.
void DcpReader::forget(std::uint32_t texts) {
  for (KnownClass* known : {&metadata_, &index_, &tensor_, &object_}) known->known = kNothing;
  known_type_ = kNothing;
  type_.reset();
  numbers_.assign(texts, kNone);
  key_numbers_.clear(texts + kFieldNames.size());
  keys_.clear();
  for (const std::string_view name : kFieldNames) {
    add_key(name);
  }
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

// Of a string. Picklers write each once, so that its text is looked up once.
std::uint32_t DcpReader::number_of(const Pickle& pickle, Value key) {
  std::uint32_t& number = numbers_[pickle.text_number(key)];
  if (number != kNone) return number;
  return number = add_key(pickle.text(key));
}

std::uint32_t DcpReader::add_key(std::string_view key) {
  const auto next = static_cast<std::uint32_t>(keys_.size());
  const std::uint64_t hash = std::hash<std::string_view>()(key);
  const std::uint32_t number =
      key_numbers_.find_or_add(hash, next, [&](std::uint32_t one) { return keys_[one].text == key; });
  if (number == next) keys_.push_back({key});
  return number;
}

// What the object's state holds under that name: the last one, as Python has it.
Value DcpReader::field_of(const Pickle& pickle, Value object, Field name) {
  const Value state = pickle.object(object).state;
  if (!pickle.is(state, PickleKind::dict)) return kNothing;
  const std::span<const Value> pairs = pickle.items(state);
  for (std::size_t i = pairs.size(); i >= 2; i -= 2)
    if (pickle.is(pairs[i - 2], PickleKind::string) && number_of(pickle, pairs[i - 2]) == name) return pairs[i - 1];
  return kNothing;
}

std::optional<ElementType> DcpReader::type_of(const Pickle& pickle, Value type) {
  if (type != known_type_) type_ = torch_type(pickle, type);
  known_type_ = type;
  return type_;
}

Status DcpReader::read_places(const Pickle& pickle, Value storage_data) {
  if (!pickle.is(storage_data, PickleKind::dict)) return damaged("no storage_data");
  const std::span<const Value> pairs = pickle.items(storage_data);
  places_.clear(pairs.size() / 2);
  keys_.reserve(keys_.size() + pairs.size() / 2);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) PAWL_TRY(read_place(pickle, pairs[i], pairs[i + 1]));
  return {};
}

Status DcpReader::read_place(const Pickle& pickle, Value index, Value info) {
  const Value key = field_of(pickle, index, kFqn);
  if (!is_class(pickle, index, index_) || !pickle.is(key, PickleKind::string))
    return damaged(text("storage_data: a key is ", pickle.describe(index)));
  const std::string_view name = pickle.text(key);
  const Value offset = field_of(pickle, index, kOffset);
  PlaceKey at{number_of(pickle, key), kObject, {}};
  if (offset != kNothing && !pickle.is(offset, PickleKind::none)) {
    Status read = read_shape(pickle, offset, "offset", place_offset_);
    if (!read) return std::move(read).error().within(std::string(name));
    at = place_key(at.key, place_offset_);
  }
  const Value path = field_of(pickle, info, kRelativePath);
  const std::optional<std::uint64_t> begin = pickle.unsigned_(field_of(pickle, info, kOffset));
  const std::optional<std::uint64_t> length = pickle.unsigned_(field_of(pickle, info, kLength));
  if (!pickle.is(path, PickleKind::string) || !begin || !length)
    return damaged(text("the place of ", name, " is incomplete"));
  const std::uint32_t file_key = number_of(pickle, path);
  if (keys_[file_key].file == nullptr) {
    PAWL_ASSIGN(keys_[file_key].file, file_named(pickle.text(path)));
  }
  DataFile* const file = keys_[file_key].file;
  const std::uint64_t file_bytes = out_.file_bytes[file->number];
  Found found{at, {file->number, *begin, *length, {}}};
  found.is_lost = file->is_missing || *begin > file_bytes || *length > file_bytes - *begin;
  if (found.is_lost && ++file->lost <= kNamesMax) file->lost_keys.emplace_back(name);
  for (const Value transform : pickle.items(field_of(pickle, info, kTransforms)))
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
  if (is_class(pickle, entry, tensor_)) {
    Status status = read_tensor(pickle, number, entry);
    if (!status) return std::move(status).error().within(text("tensor ", pickle.text(key)));
    return {};
  }
  if (is_class(pickle, entry, object_)) return read_object(pickle, number);
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
  const Value properties = field_of(pickle, entry, kProperties);
  const Value state = pickle.object(properties).state;  // (dtype, layout, ...), or a dict
  const std::span<const Value> parts = pickle.items(state);
  const Value type = pickle.is(state, PickleKind::tuple) && !parts.empty() ? parts[0] : pickle.find(state, "dtype");
  const std::optional<ElementType> known = type_of(pickle, type);
  if (!known) return damaged(text("its type is ", pickle.describe(type)));
  tensor.type = *known;
  PAWL_TRY(read_shape(pickle, field_of(pickle, entry, kSize), "size", tensor.shape));
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
  const Value chunks = field_of(pickle, entry, kChunks);
  if (!pickle.is(chunks, PickleKind::list)) return damaged("no list of chunks");
  if (out.chunks.empty()) out.chunks.reserve(pickle.items(chunks).size());
  for (const Value chunk : pickle.items(chunks)) PAWL_TRY(read_chunk(pickle, key, chunk, out));
  return {};
}

Status DcpReader::read_chunk(const Pickle& pickle, std::uint32_t key, Value chunk, DcpTensor& tensor) {
  DcpChunk out;
  PAWL_TRY(read_shape(pickle, field_of(pickle, chunk, kOffsets), "offsets", chunk_begin_));
  PAWL_TRY(read_shape(pickle, field_of(pickle, chunk, kSizes), "sizes", chunk_size_));
  Result<Box> box = box_inside(chunk_begin_, chunk_size_, tensor.shape);
  if (!box) return damaged(box.error().what);
  out.box = *box;
  const Found* found = places_.find({key, out.box.dimensions, out.box.begin});
  if (found == nullptr) {
    if (volume(out.box) == 0) return {};  // planned, and not always written
    return damaged(text("the chunk at ", text_of(chunk_begin_), " has no place"));
  }
  if (found->is_lost) return {};
  out.place = found->place;
  tensor.chunks.push_back(std::move(out));
  return {};
}

Result<DcpCheckpoint> open_dcp(const std::string& folder, Files& files) {
  return DcpReader(folder, files).read();
}

}  // namespace pawl::checkpoint
