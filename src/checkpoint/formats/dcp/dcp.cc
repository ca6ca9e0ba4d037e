#include "checkpoint/formats/dcp/dcp.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "checkpoint/containers/copy_budget.h"
#include "checkpoint/containers/damaged.h"
#include "checkpoint/containers/foreign_file.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/dcp/dcp_data_files.h"
#include "checkpoint/formats/dcp/dcp_lookup.h"
#include "env/huge_pages.h"
#include "tensor/box.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kMetadataBytesMax = std::uint64_t{1} << 30;
constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kOldModule = "torch.distributed._shard.checkpoint.metadata";  // torch 1.12, 1.13

using Value = Pickle::Value;

// A class of torch's. Picklers write a global once, so its names are seldom looked at.
struct KnownClass {
  std::string_view name;
  Value known = kNothing;  // of the pickle that is being read
};

struct KnownClasses {
  KnownClass metadata{"Metadata"};
  KnownClass index{"MetadataIndex"};
  KnownClass tensor{"TensorStorageMetadata"};
  KnownClass object{"BytesStorageMetadata"};
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

Value field(const Pickle& pickle, Value object, std::string_view name) {
  return pickle.find(pickle.object(object).state, name);
}

Status read_shape(const Pickle& pickle, Value value, std::string_view what, Shape& out) {
  PAWL_TRY(read_torch_sizes(pickle, value, what, out));
  if (out.size() > kDimensionsMax) return Error{Code::invalid, text(what, " of ", out.size(), " dimensions")};
  return {};
}

}  // namespace

// One metadata file after another, joined in out_.
class DcpReader {
 public:
  DcpReader(std::string folder, Files& files) : folder_(folder), files_(files), data_files_(std::move(folder), files) {}
  Result<DcpCheckpoint> read();

 private:
  Result<std::vector<std::string>> metadata_files(const std::vector<std::string>& names);
  Status read_metadata(const std::string& name);
  void forget(const Pickle& pickle);
  Status read_places(const Pickle& pickle, Value storage_data);
  Status read_place(const Pickle& pickle, Value index, Value info);
  Status read_key(const Pickle& pickle, Value key, Value entry);
  Status read_object(const Pickle& pickle, std::uint32_t key);
  Status read_tensor(const Pickle& pickle, std::uint32_t key, Value entry);
  Status read_chunk(const Pickle& pickle, std::uint32_t key, Value chunk, DcpTensor& tensor);
  void read_paths(const Pickle& pickle, Value planner_data);
  void read_facts(const Pickle& pickle);
  std::optional<ElementType> type_of(const Pickle& pickle, Value type);
  Result<std::vector<std::string>> path_of(const Pickle& pickle, std::uint32_t key);

  std::string folder_;
  Files& files_;
  DcpCheckpoint out_;
  DcpDataFiles data_files_;
  CopyBudget copies_;
  std::vector<std::uint64_t> object_bytes_;  // of each data file: what objects take of it
  DcpKeys keys_;
  KnownClasses classes_;
  Value known_type_ = kNothing;
  std::optional<ElementType> type_;                // what known_type_ is
  Shape place_offset_, chunk_begin_, chunk_size_;  // used again and again
  DcpPlaces places_;
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
      out_.notes.push_back(text(ranks.front().second, " is ignored because .metadata exists; if the save without ",
                                "collectives is newer, move .metadata away"));
    return std::vector<std::string>{".metadata"};
  }
  if (ranks.empty())
    return Error{Code::not_found,
                 text(folder_, ": no .metadata: the save did not finish, or this is not such a folder")};
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
  data_files_.note(names, out_);
  return std::move(out_);
}

Status DcpReader::read_metadata(const std::string& name) {
  PAWL_ASSIGN(const std::string bytes, read_file(join_path(folder_, name), kMetadataBytesMax, files_));
  Result<Pickle> parsed = parse_pickle(bytes);
  MemoryBytes source(bytes);
  std::optional<Error> foreign = parsed || bytes.starts_with('\x80') ? std::nullopt : foreign_file(source);
  if (foreign) return std::move(*foreign).within(name);
  PAWL_ASSIGN(const Pickle pickle, std::move(parsed));
  if (pickle.source_bytes() != bytes.size())
    return damaged(text("offset ", pickle.source_bytes(), ": bytes after the end"));
  forget(pickle);
  copies_.add_source(bytes.size());
  if (!is_class(pickle, pickle.root(), classes_.metadata))
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
void DcpReader::forget(const Pickle& pickle) {
  classes_ = {};
  known_type_ = kNothing;
  type_.reset();
  keys_.clear(pickle);
}

void DcpReader::read_facts(const Pickle& pickle) {
  if (out_.facts.size() > 1) return;  // the first rank's stand for all
  const Value version = field(pickle, pickle.root(), "version");
  if (pickle.is(version, PickleKind::string)) {
    out_.facts.emplace_back("metadata version", pickle.text(version));
    if (pickle.text(version) != "1.0.0")
      out_.notes.push_back(text("the metadata have version ", pickle.text(version), "; only 1.0.0 is known"));
  }
  const Value save = field(pickle, field(pickle, pickle.root(), "storage_meta"), "save_id");
  if (pickle.is(save, PickleKind::string)) out_.facts.emplace_back("save id", pickle.text(save));
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
  keys_.expect(pairs.size() / 2);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) PAWL_TRY(read_place(pickle, pairs[i], pairs[i + 1]));
  return {};
}

Status DcpReader::read_place(const Pickle& pickle, Value index, Value info) {
  const Value key = keys_.field_of(pickle, index, kFqn);
  if (!is_class(pickle, index, classes_.index) || !pickle.is(key, PickleKind::string))
    return damaged(text("storage_data: a key is ", pickle.describe(index)));
  const std::string_view name = pickle.text(key);
  const Value offset = keys_.field_of(pickle, index, kOffset);
  DcpPlaceKey at{keys_.number_of(pickle, key), DcpPlaceKey::kObject, {}};
  if (offset != kNothing && !pickle.is(offset, PickleKind::none)) {
    Status read = read_shape(pickle, offset, "offset", place_offset_);
    if (!read) return std::move(read).error().within(std::string(name));
    at = place_key(at.key, place_offset_);
  }
  const Value path = keys_.field_of(pickle, info, kRelativePath);
  const std::optional<std::uint64_t> begin = pickle.unsigned_(keys_.field_of(pickle, info, kOffset));
  const std::optional<std::uint64_t> length = pickle.unsigned_(keys_.field_of(pickle, info, kLength));
  if (!pickle.is(path, PickleKind::string) || !begin || !length)
    return damaged(text("the place of ", name, " is incomplete"));
  const std::uint32_t file_key = keys_.number_of(pickle, path);
  if (keys_[file_key].file == nullptr) {
    PAWL_ASSIGN(keys_[file_key].file, data_files_.named(pickle.text(path), out_));
  }
  DcpDataFile* const file = keys_[file_key].file;
  const std::uint64_t file_bytes = out_.file_bytes[file->number];
  DcpFoundPlace found{at, {file->number, *begin, *length, {}}};
  found.is_lost = file->is_missing || *begin > file_bytes || *length > file_bytes - *begin;
  if (found.is_lost) file->lose(name);
  for (const Value transform : pickle.items(keys_.field_of(pickle, info, kTransforms))) {
    PAWL_TRY(copies_.take(sizeof(std::string) + pickle.text(transform).size()));
    found.place.transforms.emplace_back(pickle.text(transform));
  }
  if (!places_.add(std::move(found))) return damaged(text(name, ": one of its chunks has two places"));
  return {};
}

// The default planner's: flat key -> the keys it was made of. Other planners keep what they like there.
void DcpReader::read_paths(const Pickle& pickle, Value planner_data) {
  if (!pickle.is(planner_data, PickleKind::dict)) return;
  const std::span<const Value> pairs = pickle.items(planner_data);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!pickle.is(pairs[i], PickleKind::string) || !pickle.is(pairs[i + 1], PickleKind::tuple)) continue;
    DcpKey& key = keys_[keys_.number_of(pickle, pairs[i])];
    key.path = pairs[i + 1];
    key.order = static_cast<std::uint32_t>(i / 2);
  }
}

Result<std::vector<std::string>> DcpReader::path_of(const Pickle& pickle, std::uint32_t key) {
  std::vector<std::string> path;
  if (keys_[key].path == kNothing) return path;
  const std::span<const Value> parts = pickle.items(keys_[key].path);
  PAWL_TRY(copies_.take(parts.size(), sizeof(std::string)));  // many keys may have one path
  path.reserve(parts.size());
  for (const Value part : parts) {
    PAWL_TRY(copies_.take(pickle.text(part).size()));
    const std::optional<std::int64_t> number = pickle.integer(part);
    path.push_back(number ? text(*number) : std::string(pickle.text(part)));
  }
  return path;
}

Status DcpReader::read_key(const Pickle& pickle, Value key, Value entry) {
  if (!pickle.is(key, PickleKind::string)) return damaged(text("a key is ", pickle.describe(key)));
  const std::uint32_t number = keys_.number_of(pickle, key);
  if (is_class(pickle, entry, classes_.tensor)) {
    Status status = read_tensor(pickle, number, entry);
    if (!status) return std::move(status).error().within(text("tensor ", pickle.text(key)));
    return {};
  }
  if (is_class(pickle, entry, classes_.object)) return read_object(pickle, number);
  return damaged(text(pickle.text(key), " is ", pickle.describe(entry)));
}

Status DcpReader::read_object(const Pickle& pickle, std::uint32_t key) {
  PAWL_TRY(copies_.take(keys_[key].text.size()));
  const std::string name(keys_[key].text);
  const DcpFoundPlace* found = places_.find({key, DcpPlaceKey::kObject, {}});
  if (found == nullptr) {
    out_.notes.push_back(text("object ", name, " is listed and was not written"));
    return {};
  }
  if (found->is_lost || keys_[key].is_object) return {};
  keys_[key].is_object = true;
  if (is_joined_ && !object_keys_.insert(name).second) return {};  // every rank listed it
  const DcpPlace& place = found->place;
  object_bytes_.resize(out_.files.size());
  if ((object_bytes_[place.file] += place.length_bytes) > out_.file_bytes[place.file])
    return damaged(text("object ", name, " at ", place.offset_bytes, " of ", out_.files[place.file],
                        ": the objects there overlap, since together they have more bytes than the file"));
  PAWL_ASSIGN(std::vector<std::string> path, path_of(pickle, key));
  out_.objects.push_back({name, std::move(path), place});
  return {};
}

Status DcpReader::read_tensor(const Pickle& pickle, std::uint32_t key, Value entry) {
  DcpTensor tensor;
  tensor.key = keys_[key].text;
  const Value properties = keys_.field_of(pickle, entry, kProperties);
  const Value state = pickle.object(properties).state;  // (dtype, layout, ...), or a dict
  const std::span<const Value> parts = pickle.items(state);
  const Value type =
      pickle.is(state, PickleKind::tuple) && !parts.empty() ? parts[0] : pickle.find_field(state, "dtype");
  const std::optional<ElementType> known = type_of(pickle, type);
  if (!known) return damaged(text("its type is ", pickle.describe(type)));
  tensor.type = *known;
  PAWL_TRY(read_shape(pickle, keys_.field_of(pickle, entry, kSize), "size", tensor.shape));
  PAWL_TRY(element_count(tensor.shape));
  const auto next = static_cast<std::uint32_t>(out_.tensors.size());
  std::uint32_t& number = keys_[key].tensor;
  if (number == DcpKey::kNone) number = is_joined_ ? tensor_index_.emplace(tensor.key, next).first->second : next;
  if (number == next) {
    PAWL_ASSIGN(tensor.path, path_of(pickle, key));
    tensor.order = keys_[key].order;
    out_.tensors.push_back(std::move(tensor));
  } else if (out_.tensors[number].type != tensor.type || out_.tensors[number].shape != tensor.shape) {
    return damaged(text(text_of(tensor.shape), ' ', name_of(tensor.type), " here, ",
                        text_of(out_.tensors[number].shape), ' ', name_of(out_.tensors[number].type),
                        " in another rank's file"));
  }
  DcpTensor& out = out_.tensors[number];
  const Value chunks = keys_.field_of(pickle, entry, kChunks);
  if (!pickle.is(chunks, PickleKind::list)) return damaged("no list of chunks");
  PAWL_TRY(copies_.take(pickle.items(chunks).size(), sizeof(DcpChunk)));  // many tensors may have one list
  if (out.chunks.empty()) out.chunks.reserve(pickle.items(chunks).size());
  for (const Value chunk : pickle.items(chunks)) PAWL_TRY(read_chunk(pickle, key, chunk, out));
  return {};
}

Status DcpReader::read_chunk(const Pickle& pickle, std::uint32_t key, Value chunk, DcpTensor& tensor) {
  DcpChunk out;
  PAWL_TRY(read_shape(pickle, keys_.field_of(pickle, chunk, kOffsets), "offsets", chunk_begin_));
  PAWL_TRY(read_shape(pickle, keys_.field_of(pickle, chunk, kSizes), "sizes", chunk_size_));
  Result<Box> box = box_inside(chunk_begin_, chunk_size_, tensor.shape);
  if (!box) return damaged(box.error().what);
  out.box = *box;
  const DcpFoundPlace* found = places_.find({key, out.box.dimensions, out.box.begin});
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
