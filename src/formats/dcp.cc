#include "formats/dcp.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "formats/pickle.h"
#include "formats/safetensors.h"
#include "formats/torch_file.h"

namespace pawl {
namespace {

constexpr std::uint64_t kMetadataBytesMax = std::uint64_t{1} << 30;
constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";

using Value = Pickle::Value;
constexpr Value kNothing = Pickle::kNothing;

Error damaged(std::string why) {
  return Error{Code::corrupt, std::move(why)};
}

bool is_class(const Pickle& pickle, Value value, std::string_view name) {
  return pickle.is(value, PickleKind::object) && pickle.class_of(value).is(kModule, name);
}

Value field(const Pickle& pickle, Value object, std::string_view name) {
  return pickle.find(pickle.object(object).state, name);
}

Result<Shape> shape_of(const Pickle& pickle, Value value, std::string_view what) {
  PAWL_ASSIGN(Shape shape, torch_sizes(pickle, value, what));
  if (shape.size() > kDimensionsMax) return Error{Code::invalid, text(what, " of ", shape.size(), " dimensions")};
  return shape;
}

}  // namespace

// One metadata file after another, joined in out_.
class DcpReader {
 public:
  DcpReader(std::string folder, Files& files) : folder_(std::move(folder)), files_(files) {}
  Result<DcpCheckpoint> read();

 private:
  Result<std::vector<std::string>> metadata_files();
  Status read_metadata(const std::string& name);
  Status read_places(const Pickle& pickle, Value storage_data);
  Status read_place(const Pickle& pickle, Value index, Value info);
  Status read_key(const Pickle& pickle, Value key, Value entry);
  Status read_tensor(const Pickle& pickle, std::string key, Value entry);
  Status read_chunk(const Pickle& pickle, Value chunk, DcpTensor& tensor);
  void read_paths(const Pickle& pickle, Value planner_data);
  Result<std::uint32_t> file_named(std::string_view name);
  void note_holes();

  std::string folder_;
  Files& files_;
  DcpCheckpoint out_;
  std::vector<std::uint64_t> file_bytes_;
  std::map<std::string, std::uint32_t, std::less<>> file_index_;
  std::unordered_map<std::string, DcpPlace> places_;                 // of one metadata file: key \n offset
  std::unordered_map<std::string, std::vector<std::string>> paths_;  // by flat key
  std::unordered_map<std::string, std::size_t> tensor_index_;
  std::set<std::string> object_keys_;
};

Result<std::vector<std::string>> DcpReader::metadata_files() {
  if (path_exists(join_path(folder_, ".metadata"))) return std::vector<std::string>{".metadata"};
  PAWL_ASSIGN(const std::vector<std::string> names, files_.list(folder_));
  std::vector<std::pair<std::uint32_t, std::string>> ranks;  // by number: 10 comes after 9
  for (const std::string& name : names) {
    std::uint32_t rank = 0;
    if (!name.starts_with("__") || !name.ends_with(".metadata")) continue;
    if (parse_number(std::string_view(name).substr(2, name.size() - 11), rank)) ranks.emplace_back(rank, name);
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
  PAWL_ASSIGN(const std::vector<std::string> names, metadata_files());
  for (const std::string& name : names)
    if (Status status = read_metadata(name); !status) return std::move(status).error().within(join_path(folder_, name));
  note_holes();
  return std::move(out_);
}

Status DcpReader::read_metadata(const std::string& name) {
  PAWL_ASSIGN(const std::string bytes, read_file(join_path(folder_, name), kMetadataBytesMax, files_));
  PAWL_ASSIGN(const Pickle pickle, parse_pickle(bytes));
  if (pickle.source_bytes() != bytes.size())
    return damaged(text("offset ", pickle.source_bytes(), ": bytes after the end"));
  if (!is_class(pickle, pickle.root(), "Metadata"))
    return damaged(text("not a Metadata: ", pickle.describe(pickle.root())));
  const Value version = field(pickle, pickle.root(), "version");
  if (pickle.is(version, PickleKind::string) && pickle.text(version) != "1.0.0")
    out_.notes.push_back(text(name, " says version ", pickle.text(version)));
  places_.clear();
  PAWL_TRY(read_places(pickle, field(pickle, pickle.root(), "storage_data")));
  read_paths(pickle, field(pickle, pickle.root(), "planner_data"));
  const Value entries = field(pickle, pickle.root(), "state_dict_metadata");
  if (!pickle.is(entries, PickleKind::dict)) return damaged("no state_dict_metadata");
  const std::span<const Value> pairs = pickle.items(entries);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) PAWL_TRY(read_key(pickle, pairs[i], pairs[i + 1]));
  return {};
}

Status DcpReader::read_places(const Pickle& pickle, Value storage_data) {
  if (!pickle.is(storage_data, PickleKind::dict)) return damaged("no storage_data");
  const std::span<const Value> pairs = pickle.items(storage_data);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) PAWL_TRY(read_place(pickle, pairs[i], pairs[i + 1]));
  return {};
}

Status DcpReader::read_place(const Pickle& pickle, Value index, Value info) {
  const Value key = field(pickle, index, "fqn");
  if (!is_class(pickle, index, "MetadataIndex") || !pickle.is(key, PickleKind::string))
    return damaged(text("storage_data: a key is ", pickle.describe(index)));
  std::string name(pickle.text(key));
  const Value offset = field(pickle, index, "offset");
  std::string at;
  if (offset != kNothing && !pickle.is(offset, PickleKind::none)) {
    PAWL_ASSIGN(const Shape shape, shape_of(pickle, offset, "offset"));
    at = text_of(shape);
  }
  const Value path = field(pickle, info, "relative_path");
  const std::optional<std::uint64_t> begin = pickle.unsigned_(field(pickle, info, "offset"));
  const std::optional<std::uint64_t> length = pickle.unsigned_(field(pickle, info, "length"));
  if (!pickle.is(path, PickleKind::string) || !begin || !length)
    return damaged(text("the place of ", name, " is incomplete"));
  DcpPlace place;
  PAWL_ASSIGN(place.file, file_named(pickle.text(path)));
  place.offset_bytes = *begin;
  place.length_bytes = *length;
  const std::uint64_t file_bytes = file_bytes_[place.file];
  if (*begin > file_bytes || *length > file_bytes - *begin)
    return damaged(text(name, ": bytes ", *begin, " + ", *length, " pass the end of ", out_.files[place.file], " at ",
                        file_bytes));
  for (const Value transform : pickle.items(field(pickle, info, "transform_descriptors")))
    place.transforms.emplace_back(pickle.text(transform));
  if (!places_.emplace(text(name, '\n', at), std::move(place)).second)
    return damaged(text(name, " at ", at, " has two places"));
  return {};
}

Result<std::uint32_t> DcpReader::file_named(std::string_view name) {
  if (const auto found = file_index_.find(name); found != file_index_.end()) return found->second;
  if (!is_plain_file_name(name)) return damaged("a place is in a file whose name is no plain name");
  std::string path = join_path(folder_, name);
  PAWL_ASSIGN(const std::unique_ptr<ByteSource> source, open_bytes(path, files_));
  const auto number = static_cast<std::uint32_t>(out_.files.size());
  file_index_.emplace(name, number);
  file_bytes_.push_back(source->size_bytes());
  out_.files.push_back(std::move(path));
  return number;
}

// The default planner's: flat key -> the keys it was made of. Other planners keep what they like there.
void DcpReader::read_paths(const Pickle& pickle, Value planner_data) {
  if (!pickle.is(planner_data, PickleKind::dict)) return;
  const std::span<const Value> pairs = pickle.items(planner_data);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!pickle.is(pairs[i], PickleKind::string) || !pickle.is(pairs[i + 1], PickleKind::tuple)) continue;
    std::vector<std::string> path;
    for (const Value part : pickle.items(pairs[i + 1])) {
      const std::optional<std::int64_t> number = pickle.integer(part);
      path.push_back(number ? text(*number) : std::string(pickle.text(part)));
    }
    paths_.insert_or_assign(std::string(pickle.text(pairs[i])), std::move(path));
  }
}

Status DcpReader::read_key(const Pickle& pickle, Value key, Value entry) {
  if (!pickle.is(key, PickleKind::string)) return damaged(text("a key is ", pickle.describe(key)));
  std::string name(pickle.text(key));
  if (is_class(pickle, entry, "TensorStorageMetadata")) return read_tensor(pickle, std::move(name), entry);
  if (!is_class(pickle, entry, "BytesStorageMetadata")) return damaged(text(name, " is ", pickle.describe(entry)));
  const auto place = places_.find(text(name, '\n'));
  if (place == places_.end()) {
    out_.notes.push_back(text("object ", name, " is listed and was not written"));
    return {};
  }
  if (!object_keys_.insert(name).second) return {};  // every rank listed it
  const auto path = paths_.find(name);
  out_.objects.push_back({name, path == paths_.end() ? std::vector<std::string>() : path->second, place->second});
  return {};
}

Status DcpReader::read_tensor(const Pickle& pickle, std::string key, Value entry) {
  DcpTensor tensor;
  const Value properties = field(pickle, entry, "properties");
  const Value state = pickle.object(properties).state;  // (dtype, layout, ...), or a dict
  const std::span<const Value> parts = pickle.items(state);
  const Value type = pickle.is(state, PickleKind::tuple) && !parts.empty() ? parts[0] : pickle.find(state, "dtype");
  const std::optional<ElementType> known = torch_type(pickle, type);
  if (!known) return damaged(text("tensor ", key, " has the type ", pickle.describe(type)));
  tensor.type = *known;
  PAWL_ASSIGN(tensor.shape, shape_of(pickle, field(pickle, entry, "size"), text("size of ", key)));
  PAWL_TRY(element_count(tensor.shape));
  const auto [found, is_new] = tensor_index_.emplace(key, out_.tensors.size());
  tensor.key = std::move(key);
  if (const auto path = paths_.find(tensor.key); path != paths_.end()) tensor.path = path->second;
  if (is_new) {
    out_.tensors.push_back(std::move(tensor));
  } else if (out_.tensors[found->second].type != tensor.type || out_.tensors[found->second].shape != tensor.shape) {
    return damaged(text("tensor ", tensor.key, ": ", text_of(tensor.shape), ' ', name_of(tensor.type), " here, ",
                        text_of(out_.tensors[found->second].shape), ' ', name_of(out_.tensors[found->second].type),
                        " in another rank's file"));
  }
  const Value chunks = field(pickle, entry, "chunks");
  if (!pickle.is(chunks, PickleKind::list))
    return damaged(text("tensor ", out_.tensors[found->second].key, " has no list of chunks"));
  for (const Value chunk : pickle.items(chunks)) PAWL_TRY(read_chunk(pickle, chunk, out_.tensors[found->second]));
  return {};
}

Status DcpReader::read_chunk(const Pickle& pickle, Value chunk, DcpTensor& tensor) {
  DcpChunk out;
  PAWL_ASSIGN(out.region.offset, shape_of(pickle, field(pickle, chunk, "offsets"), text("offsets of ", tensor.key)));
  PAWL_ASSIGN(out.region.shape, shape_of(pickle, field(pickle, chunk, "sizes"), text("sizes of ", tensor.key)));
  if (Status inside = check_inside(out.region, tensor.shape); !inside)
    return damaged(text("tensor ", tensor.key, ": ", inside.error().what));
  const auto place = places_.find(text(tensor.key, '\n', text_of(out.region.offset)));
  if (place == places_.end()) {
    // Chunks without elements are planned, and not always written.
    if (std::ranges::find(out.region.shape, std::uint64_t{0}) != out.region.shape.end()) return {};
    return damaged(text("tensor ", tensor.key, ": the chunk at ", text_of(out.region.offset), " has no place"));
  }
  out.place = place->second;
  tensor.chunks.push_back(std::move(out));
  return {};
}

void DcpReader::note_holes() {
  for (const DcpTensor& tensor : out_.tensors) {
    std::set<std::pair<Shape, Shape>> boxes;
    for (const DcpChunk& chunk : tensor.chunks) boxes.emplace(chunk.region.offset, chunk.region.shape);
    std::uint64_t held = 0;
    for (const auto& [offset, shape] : boxes) held += element_count(shape).value_or(0);
    const std::uint64_t all = element_count(tensor.shape).value_or(0);
    if (held != all)
      out_.notes.push_back(
          text("tensor ", tensor.key, ' ', text_of(tensor.shape), ": its boxes hold ", held, " elements of ", all));
  }
}

Result<DcpCheckpoint> open_dcp(const std::string& folder, Files& files) {
  return DcpReader(folder, files).read();
}

namespace {

// FileSystemWriter can be told to write safetensors: then the file's own header has the positions.
Result<StoredPiece> locate_in_safetensors(ByteSource& source, const DcpTensor& tensor, const DcpChunk& chunk) {
  PAWL_ASSIGN(const SafetensorsFile file, read_safetensors(source));
  for (const SafetensorsEntry& entry : file.tensors) {
    if (entry.name != tensor.key) continue;
    if (entry.type != tensor.type || entry.shape != chunk.region.shape)
      return damaged(text("tensor ", tensor.key, ": the file has ", text_of(Shape(entry.shape)),
                          " of it, the metadata ", text_of(chunk.region.shape)));
    StoredPiece piece = whole_piece(entry.shape, chunk.place.file, entry.offset_bytes);
    std::ranges::copy(chunk.region.offset, piece.box.begin.begin());
    return piece;
  }
  return damaged(text("tensor ", tensor.key, " is not in its file"));
}

Result<StoredPiece> locate_in_item(ByteSource& source, const DcpTensor& tensor, const DcpChunk& chunk) {
  PAWL_ASSIGN(WindowBytes item, WindowBytes::open(source, chunk.place.offset_bytes, chunk.place.length_bytes));
  PAWL_ASSIGN(const TorchFile file, TorchFile::read(item));
  if (file.tensors().size() != 1 || !file.tensors()[0].path.empty())
    return damaged(text("tensor ", tensor.key, ": its item is no single tensor"));
  if (file.tensors()[0].type != tensor.type || file.tensors()[0].shape != chunk.region.shape)
    return damaged(text("tensor ", tensor.key, ": its item is ", text_of(Shape(file.tensors()[0].shape)), ' ',
                        name_of(file.tensors()[0].type), ", the metadata says ", text_of(chunk.region.shape), ' ',
                        name_of(tensor.type)));
  CheckpointView view = view_of(file, tensor.key);
  if (view.tensors.size() != 1)
    return Error{Code::invalid, view.notes.empty() ? text("tensor ", tensor.key) : view.notes.back()};
  if (view.tensors[0].pieces.empty()) return StoredPiece{whole_box(chunk.region.shape)};  // no element
  StoredPiece piece = view.tensors[0].pieces[0];
  std::ranges::copy(chunk.region.offset, piece.box.begin.begin());
  piece.file = chunk.place.file;
  piece.offset_bytes += chunk.place.offset_bytes;
  return piece;
}

}  // namespace

Result<StoredPiece> locate(ByteSource& source, const DcpTensor& tensor, const DcpChunk& chunk) {
  if (!chunk.place.transforms.empty())
    return Error{Code::invalid,
                 text("tensor ", tensor.key, " is packed by ", chunk.place.transforms[0], ", which is not read yet")};
  PAWL_ASSIGN(const std::string head,
              read_text(source, chunk.place.offset_bytes, std::min<std::uint64_t>(4, chunk.place.length_bytes)));
  const bool is_archive = head == "PK\3\4" || head.starts_with('\x80');
  return is_archive ? locate_in_item(source, tensor, chunk) : locate_in_safetensors(source, tensor, chunk);
}

Result<CheckpointView> view_dcp(const std::string& folder, Files& files) {
  PAWL_ASSIGN(const DcpCheckpoint checkpoint, open_dcp(folder, files));
  CheckpointView view;
  view.format = "PyTorch DCP";
  for (const std::string& path : checkpoint.files) view.files.push_back({path});
  view.notes = checkpoint.notes;
  std::vector<std::unique_ptr<ByteSource>> sources;
  for (const std::string& path : checkpoint.files) {
    PAWL_ASSIGN(std::unique_ptr<ByteSource> source, open_bytes(path, files));
    sources.push_back(std::move(source));
  }
  for (const DcpTensor& tensor : checkpoint.tensors) {
    StoredTensor out{tensor.key, "weight", tensor.type, tensor.shape};
    std::map<std::pair<PerDimension, PerDimension>, std::uint32_t> copies;  // of each box: how many so far
    for (const DcpChunk& chunk : tensor.chunks) {
      Result<StoredPiece> piece = locate(*sources[chunk.place.file], tensor, chunk);
      if (!piece) return std::move(piece).error().within(checkpoint.files[chunk.place.file]);
      if (volume(piece->box) == 0) continue;
      piece->copy = copies[{piece->box.begin, piece->box.size}]++;
      out.pieces.push_back(*piece);
    }
    view.tensors.push_back(std::move(out));
  }
  return view;
}

}  // namespace pawl
