// The items of a DCP folder: where in each of them its elements lie.

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "checkpoint/containers/damaged.h"
#include "checkpoint/containers/safetensors.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/dcp/dcp_groups.h"
#include "checkpoint/formats/dcp/dcp_optimizers.h"
#include "checkpoint/formats/torch/rank_files_join.h"
#include "checkpoint/names/state_names.h"
#include "checkpoint/reshape/stored_file.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kHeadBytes = 4096;  // of an item: its pickle lies there, and the headers of its records
constexpr std::uint64_t kTailBytes = 2048;  // its directory
constexpr std::size_t kAheadItems = 1024;
constexpr std::size_t kFormsMax = 4096;
constexpr std::uint32_t kNoFile = ~0u;
constexpr std::size_t kProblemsMax = 5;

// An item, both of whose ends are at hand, in memory that outlives this: files of torch.save are read from there.
class ItemBytes final : public ByteSource {
 public:
  // Between the ends the bytes are read from `between`; nullptr: they can't be read again.
  ItemBytes(ByteSource* between, std::uint64_t size_bytes, std::string_view head, std::string_view tail)
      : between_(between), size_bytes_(size_bytes), head_(head), tail_(tail) {}

  [[nodiscard]] std::uint64_t size_bytes() const override { return size_bytes_; }
  [[nodiscard]] Status read(std::uint64_t offset_bytes, std::span<std::byte> buffer) override {
    if (buffer.empty()) return {};
    const auto inside = [&](std::string_view bytes, std::uint64_t begin) {
      if (offset_bytes < begin || offset_bytes - begin > bytes.size()) return false;
      if (buffer.size() > bytes.size() - (offset_bytes - begin)) return false;
      std::memcpy(buffer.data(), bytes.data() + (offset_bytes - begin), buffer.size());
      return true;
    };
    if (inside(head_, 0) || inside(tail_, size_bytes_ - tail_.size())) return {};
    if (between_ == nullptr) return damaged(text("offset ", offset_bytes, ": this item is not a file of one tensor"));
    return between_->read(offset_bytes, buffer);
  }
  [[nodiscard]] std::string_view head() const { return head_; }
  [[nodiscard]] std::string_view end(std::size_t bytes) const {
    const std::string_view last = tail_.empty() ? head_ : tail_;
    return last.substr(last.size() - std::min(bytes, last.size()));
  }

 private:
  ByteSource* between_;
  std::uint64_t size_bytes_;
  std::string_view head_;
  std::string_view tail_;
};

// Reads the ends of items that come in the order of their files. Small ones many at a time: each byte of them is an
// end anyway.
class ItemEnds {
 public:
  // The item lies inside its file, whose number is `file`. Good until the next call.
  Result<ItemBytes> read(ByteSource& source, std::uint32_t file, std::uint64_t offset, std::uint64_t size,
                         ByteSource& item) {
    if (size <= kHeadBytes + kTailBytes) {
      PAWL_ASSIGN(const std::string_view all, read_small(source, file, offset, size));
      return ItemBytes(&item, size, all, {});
    }
    PAWL_ASSIGN(head_, read_text(item, 0, kHeadBytes));
    PAWL_ASSIGN(tail_, read_text(item, size - kTailBytes, kTailBytes));
    return ItemBytes(&item, size, head_, tail_);
  }

 private:
  static constexpr std::uint64_t kBlockBytes = 64 << 10;

  Result<std::string_view> read_small(ByteSource& source, std::uint32_t file, std::uint64_t offset,
                                      std::uint64_t size) {
    const bool is_there = file == file_ && offset >= begin_ && offset - begin_ <= block_.size() &&
                          size <= block_.size() - (offset - begin_);
    if (!is_there) {
      file_ = kNoFile;
      block_.resize(std::min(kBlockBytes, source.size_bytes() - offset));
      PAWL_TRY(source.read(offset, std::as_writable_bytes(std::span(block_))));
      file_ = file;
      begin_ = offset;
    }
    return std::string_view(block_).substr(offset - begin_, size);
  }

  std::string head_;
  std::string tail_;
  std::string block_;
  std::uint32_t file_ = kNoFile;  // that the block is from
  std::uint64_t begin_ = 0;       // in it
};

// In a file of torch.save of one tensor: its place, relative to the file.
Result<StoredPiece> locate_in_archive(ByteSource& item, ElementType type, const Box& box) {
  PAWL_ASSIGN(const TorchFile file, TorchFile::read(item));
  if (file.tensors().size() != 1 || !file.tensors()[0].path.empty()) return damaged("its item is not a single tensor");
  const TorchTensor& tensor = file.tensors()[0];
  if (tensor.type != type || tensor.shape != shape_of(box))
    return damaged(text("its item is ", text_of(Shape(tensor.shape)), ' ', name_of(tensor.type), ", the metadata say ",
                        text_of(shape_of(box)), ' ', name_of(type)));
  CheckpointView view = view_of(file, "its item");
  if (view.tensors.size() != 1)
    return Error{Code::invalid, view.unsupported.empty() ? std::string("not read") : view.unsupported.back()};
  if (view.tensors[0].pieces.empty()) return StoredPiece{whole_box(shape_of(box))};  // no element
  return view.tensors[0].pieces[0];
}

Result<StoredPiece> locate_in_safetensors(const SafetensorsEntry& entry, const DcpTensor& tensor, const Box& box) {
  if (entry.type != tensor.type || entry.shape != shape_of(box))
    return damaged(text("the file has ", text_of(Shape(entry.shape)), ' ', name_of(entry.type), " of it, the metadata ",
                        text_of(shape_of(box)), ' ', name_of(tensor.type)));
  return whole_piece(entry.shape, 0, entry.offset_bytes);
}

// A file of items is one of the two: FileSystemWriter can be told to write safetensors.
Result<bool> is_safetensors(ByteSource& source) {
  if (source.size_bytes() < 10) return false;
  PAWL_ASSIGN(const std::string head, read_text(source, 0, 9));
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), 8);
  return head[8] == '{' && length <= source.size_bytes() - 8 && !head.starts_with("PK\3\4");
}

StoredPiece at_box(StoredPiece piece, const DcpChunk& chunk) {
  piece.box.begin = chunk.box.begin;
  piece.file = chunk.place.file;
  return piece;
}

// "__12_0.distcp", perhaps with a word in front: 12.
std::uint32_t rank_of(std::string_view path) {
  const std::string name = last_name(path);
  const std::size_t begin = name.find("__");
  if (begin == std::string::npos) return kNoRank;
  const std::size_t end = name.find('_', begin + 2);
  std::uint32_t rank = 0;
  if (end == std::string::npos || !parse_number(std::string_view(name).substr(begin + 2, end - begin - 2), rank))
    return kNoRank;
  return rank;
}

bool has_elements(const Box& box) {
  return volume(box) != 0;
}

// Locates item after item of a folder. Items that begin and end alike have their elements at the same place, so that
// only the first of a kind is taken apart.
class ItemReader {
 public:
  ItemReader(const DcpCheckpoint& checkpoint, Files& files, CheckpointView& view)
      : checkpoint_(checkpoint), files_(files), view_(view), sources_(checkpoint.files.size()) {}

  Result<StoredPiece> locate(const DcpTensor& tensor, const DcpChunk& chunk);
  // That this chunk is among those which will be located soon.
  void announce(const DcpChunk& chunk);

 private:
  struct Form {        // of items of one type, shape and length
    std::string head;  // up to the first element
    std::string end;
    StoredPiece piece;
  };
  using FormKey =
      std::tuple<ElementType, std::uint64_t, std::uint32_t, PerDimension>;  // type, length, dimensions, size
  static constexpr std::size_t kEndBytes = 22;                              // the archive's last record

  Result<ByteSource*> source(std::uint32_t file);
  std::vector<Form>& forms_of(const DcpTensor& tensor, const DcpChunk& chunk);
  Result<StoredPiece> locate_stored(ByteSource& source, const DcpTensor& tensor, const DcpChunk& chunk);
  Result<StoredPiece> locate_packed(ByteSource& source, const DcpTensor& tensor, const DcpChunk& chunk);
  Result<const std::unordered_map<std::string, SafetensorsEntry>*> entries(std::uint32_t file);

  const DcpCheckpoint& checkpoint_;
  Files& files_;
  CheckpointView& view_;
  std::vector<std::unique_ptr<ByteSource>> sources_;
  ItemEnds ends_;
  std::map<FormKey, std::vector<Form>> forms_;
  std::pair<const FormKey, std::vector<Form>>* last_forms_ = nullptr;
  std::size_t form_count_ = 0;
  // Of files that are safetensors: what they hold.
  std::map<std::uint32_t, std::optional<std::unordered_map<std::string, SafetensorsEntry>>> entries_;
};

Result<ByteSource*> ItemReader::source(std::uint32_t file) {
  if (sources_[file] == nullptr) {
    PAWL_ASSIGN(sources_[file], open_bytes(checkpoint_.files[file], files_));
  }
  return sources_[file].get();
}

Result<const std::unordered_map<std::string, SafetensorsEntry>*> ItemReader::entries(std::uint32_t file) {
  const auto [found, is_new] = entries_.try_emplace(file);
  if (is_new) {
    PAWL_ASSIGN(ByteSource* const bytes, source(file));
    PAWL_ASSIGN(const bool is, is_safetensors(*bytes));
    if (is) {
      PAWL_ASSIGN(SafetensorsFile content, read_safetensors(*bytes));
      std::unordered_map<std::string, SafetensorsEntry>& map = found->second.emplace();
      for (SafetensorsEntry& entry : content.tensors) map.emplace(entry.name, std::move(entry));
    }
  }
  return found->second ? &*found->second : nullptr;
}

void ItemReader::announce(const DcpChunk& chunk) {
  const auto& [file, offset_bytes, length_bytes, transforms] = chunk.place;
  if (length_bytes <= kHeadBytes + kTailBytes || !transforms.empty()) return;  // read many at a time, or whole
  const Result<ByteSource*> bytes = source(file);
  if (!bytes) return;  // said when it is located
  (*bytes)->will_need(offset_bytes, kHeadBytes);
  (*bytes)->will_need(offset_bytes + length_bytes - kTailBytes, kTailBytes);
}

Result<StoredPiece> ItemReader::locate(const DcpTensor& tensor, const DcpChunk& chunk) {
  PAWL_ASSIGN(ByteSource* const bytes, source(chunk.place.file));
  if (!chunk.place.transforms.empty()) return locate_packed(*bytes, tensor, chunk);
  PAWL_ASSIGN(const auto* const in_file, entries(chunk.place.file));
  if (in_file == nullptr) return locate_stored(*bytes, tensor, chunk);
  const auto entry = in_file->find(tensor.key);
  if (entry == in_file->end()) return damaged("it is not in its file");
  PAWL_ASSIGN(StoredPiece piece, locate_in_safetensors(entry->second, tensor, chunk.box));
  return at_box(piece, chunk);
}

// Most often those of the item before.
std::vector<ItemReader::Form>& ItemReader::forms_of(const DcpTensor& tensor, const DcpChunk& chunk) {
  const FormKey key{tensor.type, chunk.place.length_bytes, chunk.box.dimensions, chunk.box.size};
  if (last_forms_ == nullptr || last_forms_->first != key) last_forms_ = &*forms_.try_emplace(key).first;
  return last_forms_->second;
}

Result<StoredPiece> ItemReader::locate_stored(ByteSource& source, const DcpTensor& tensor, const DcpChunk& chunk) {
  PAWL_ASSIGN(RangeBytes range, RangeBytes::open(source, chunk.place.offset_bytes, chunk.place.length_bytes));
  PAWL_ASSIGN(ItemBytes item,
              ends_.read(source, chunk.place.file, chunk.place.offset_bytes, chunk.place.length_bytes, range));
  std::vector<Form>* forms = nullptr;
  if (form_count_ < kFormsMax) {
    forms = &forms_of(tensor, chunk);
    for (const Form& form : *forms) {
      if (!item.head().starts_with(form.head) || item.end(kEndBytes) != form.end) continue;
      StoredPiece piece = at_box(form.piece, chunk);
      piece.offset_bytes += chunk.place.offset_bytes;
      return piece;
    }
  }
  PAWL_ASSIGN(StoredPiece piece, locate_in_archive(item, tensor.type, chunk.box));
  if (forms != nullptr && piece.offset_bytes != 0 && piece.offset_bytes <= item.head().size()) {
    forms->push_back({std::string(item.head().substr(0, piece.offset_bytes)), std::string(item.end(kEndBytes)), piece});
    ++form_count_;
  }
  piece = at_box(piece, chunk);
  piece.offset_bytes += chunk.place.offset_bytes;
  return piece;
}

// The item is one frame of zstd, and becomes a file of its own in the view. Its frame need not say what it decodes to,
// so it is decoded once to know; only its ends are kept.
Result<StoredPiece> ItemReader::locate_packed(ByteSource& source, const DcpTensor& tensor, const DcpChunk& chunk) {
  if (chunk.place.transforms != std::vector<std::string>{"stream.zstd/1"})
    return Error{Code::invalid, text("it is packed by ", chunk.place.transforms[0], ", which is not known here")};
  const std::optional<std::uint64_t> most = decoded_bytes_max(tensor, chunk);
  if (!most) return damaged("no number of bytes holds its chunk");
  PAWL_ASSIGN(RangeBytes range, RangeBytes::open(source, chunk.place.offset_bytes, chunk.place.length_bytes));
  PAWL_ASSIGN(const ZstdEnds ends, zstd_ends(range, *most, 1 << 16));
  ItemBytes item(nullptr, ends.size_bytes, ends.head, ends.tail);
  PAWL_ASSIGN(StoredPiece piece, locate_in_archive(item, tensor.type, chunk.box));
  piece = at_box(piece, chunk);
  piece.file = static_cast<std::uint32_t>(view_.files.size());
  view_.files.push_back({.path = checkpoint_.files[chunk.place.file],
                         .codec = StoredFile::Codec::zstd,
                         .offset_bytes = chunk.place.offset_bytes,
                         .length_bytes = chunk.place.length_bytes,
                         .decoded_bytes = ends.size_bytes});
  return piece;
}

struct ChunkNumber {
  std::uint32_t file;
  std::uint32_t tensor;
  std::uint64_t offset_bytes;
  std::uint32_t chunk;
};

// All chunks that hold an element, in the order in which they lie in the files.
std::vector<ChunkNumber> in_file_order(const DcpCheckpoint& checkpoint) {
  std::vector<ChunkNumber> out;
  out.reserve(checkpoint.tensors.size());
  for (std::uint32_t t = 0; t < checkpoint.tensors.size(); ++t) {
    const std::vector<DcpChunk>& chunks = checkpoint.tensors[t].chunks;
    for (std::uint32_t c = 0; c < chunks.size(); ++c)
      if (has_elements(chunks[c].box)) out.push_back({chunks[c].place.file, t, chunks[c].place.offset_bytes, c});
  }
  std::ranges::sort(out, {}, [](const ChunkNumber& number) {
    return std::tuple(number.file, number.offset_bytes, number.tensor, number.chunk);
  });
  return out;
}

// Equal boxes of a tensor are copies of each other, in the order of the metadata.
void number_copies(StoredTensor& tensor) {
  if (tensor.pieces.size() < 2) return;
  std::map<std::pair<PerDimension, PerDimension>, std::uint32_t> copies;
  for (StoredPiece& piece : tensor.pieces) piece.copy = copies[{piece.box.begin, piece.box.size}]++;
}

Result<CheckpointView> located(const DcpCheckpoint& checkpoint, Files& files) {
  CheckpointView view;
  view.format = "PyTorch DCP";
  view.facts = checkpoint.facts;
  view.notes = checkpoint.notes;
  view.problems = checkpoint.problems;
  std::vector<std::uint32_t> ranks;
  for (const std::string& path : checkpoint.files) {
    view.files.push_back({path});
    ranks.push_back(rank_of(path));
  }
  StoredPiece nothing;  // not located
  nothing.file = kNoFile;
  view.tensors.reserve(checkpoint.tensors.size());
  for (const DcpTensor& tensor : checkpoint.tensors) {
    view.tensors.push_back({tensor.key, "weight", tensor.type, tensor.shape});
    view.tensors.back().pieces.resize(tensor.chunks.size(), nothing);
  }
  for (const DcpObject& object : checkpoint.objects) view.objects.push_back(object.key);
  ItemReader reader(checkpoint, files, view);
  std::size_t damaged_items = 0;
  const std::vector<ChunkNumber> order = in_file_order(checkpoint);
  const auto chunk_of = [&](const ChunkNumber& number) -> const DcpChunk& {
    return checkpoint.tensors[number.tensor].chunks[number.chunk];
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i % kAheadItems == 0) {  // a disk answers hundreds of short reads in the time of a few, if it has them at once
      const std::size_t end = std::min(order.size(), i + kAheadItems);
      for (std::size_t next = i; next < end; ++next) reader.announce(chunk_of(order[next]));
    }
    const auto& [file, tensor, offset, chunk] = order[i];
    const DcpChunk& wanted = chunk_of(order[i]);
    Result<StoredPiece> piece = reader.locate(checkpoint.tensors[tensor], wanted);
    if (piece) {
      piece->rank = ranks[file];
      view.tensors[tensor].pieces[chunk] = *piece;
      continue;
    }
    Error error = std::move(piece).error().within(
        text(checkpoint.files[file], ": offset ", offset, ": tensor ", checkpoint.tensors[tensor].key));
    if (error.code != Code::corrupt) return error;
    if (++damaged_items <= kProblemsMax) view.problems.push_back(std::move(error.what));
  }
  if (damaged_items > kProblemsMax)
    view.problems.push_back(
        text(damaged_items - kProblemsMax, " more items are damaged: are these files of one save?"));
  for (StoredTensor& tensor : view.tensors) {
    std::erase_if(tensor.pieces, [](const StoredPiece& piece) { return piece.file == kNoFile; });
    number_copies(tensor);
  }
  std::vector<std::uint64_t> file_bytes = checkpoint.file_bytes;
  file_bytes.resize(view.files.size());  // of packed items the view itself knows
  PAWL_TRY(check_view(view, file_bytes));
  return view;
}

// {"model": module.state_dict()}, and no optimizer that would say where the model is: below the dict there are only
// flat keys, and a dot in one of them is what state_dict() joins names with. Nested dicts of names would have been
// walked.
bool has_state_dicts(std::span<const StateKey> keys) {
  bool has_dot = false;
  for (const StateKey& key : keys) {
    if (!key.is_tensor) continue;
    if (key.path.size() > 2) return false;
    has_dot = has_dot || (key.path.size() == 2 && key.path.back().find('.') != std::string::npos);
  }
  return has_dot;
}

// Names and roles for what view has under its keys. Hyperparameters that are tensors become objects, and numbers of what
// is returned. Takes the paths of the checkpoint's tensors.
Result<DcpFound> name_tensors(DcpCheckpoint& checkpoint, const ReadOptions& options, Files& files, DcpObjects& objects,
                              CheckpointView& view) {
  std::vector<StateKey> keys;
  keys.reserve(checkpoint.tensors.size() + checkpoint.objects.size());
  for (DcpTensor& tensor : checkpoint.tensors)
    keys.push_back({path_or_key(std::move(tensor.path), tensor.key), true, &tensor.shape});
  for (const DcpObject& object : checkpoint.objects) keys.push_back({path_or_key(object.path, object.key), false});
  PAWL_ASSIGN(const std::optional<ParameterNames> given, given_names(options, files));
  if (given) {
    PAWL_TRY(tell_models(*given, keys));
  }
  StateNameOptions how{.trust_model_words = has_state_dicts(keys)};
  StateNames names = name_states(keys, how);
  std::vector<std::optional<OptimizerKey>> stored;  // of each tensor: as its key is stored
  std::vector<bool> numbered;
  for (std::size_t i = 0; i < view.tensors.size(); ++i) {
    stored.push_back(std::move(names.names[i].key));
    std::uint64_t number = 0;
    numbered.push_back(stored.back() && parse_number(stored.back()->parameter, number));
  }
  if (names.is_indexed) {
    PAWL_ASSIGN(how.keep_roots, name_numbered_parameters(checkpoint, given, objects, keys, view));
    names = name_states(keys, how);
  }
  view.notes.insert(view.notes.end(), names.notes.begin(), names.notes.end());
  view.unnamed.insert(view.unnamed.end(), names.unnamed.begin(), names.unnamed.end());
  DcpFound found;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < view.tensors.size(); ++i) {
    if (names.names[i].is_object) {
      view.objects.push_back(view.tensors[i].name);
      if (const std::optional<double> number = number_in(view.tensors[i], view, files))
        found.numbers.emplace_back(keys[i].path, *number);
      continue;
    }
    if (kept != i) view.tensors[kept] = std::move(view.tensors[i]);
    view.tensors[kept].name = std::move(names.names[i].name);
    view.tensors[kept].role = std::move(names.names[i].role);
    if (stored[i] && !(numbered[i] && !keys[i].model))
      found.names.try_emplace({stored[i]->root, stored[i]->parameter}, view.tensors[kept].name);
    ++kept;
  }
  view.tensors.erase(view.tensors.begin() + static_cast<std::ptrdiff_t>(kept), view.tensors.end());
  return found;
}

Result<CheckpointView> named(DcpCheckpoint& checkpoint, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(CheckpointView view, located(checkpoint, files));
  DcpObjects objects(checkpoint, files);
  PAWL_TRY(take_state_numbers(checkpoint, objects, view));
  PAWL_ASSIGN(const DcpFound found, name_tensors(checkpoint, options, files, objects, view));
  add_dcp_groups(checkpoint, found, objects, view);
  return view;
}

// "model.layers.0.weight" becomes "model_1.layers.0.weight".
void put_under(const std::string& top, std::string& key, std::vector<std::string>& path) {
  if (top.empty()) return;
  const std::size_t dot = key.find('.');
  key = dot == std::string::npos ? top : text(top, key.substr(dot));
  if (path.size() > 1) {
    path[0] = top;
  } else {
    path.clear();
  }
}

void append(DcpCheckpoint part, const std::string& top, DcpCheckpoint& all) {
  const auto files = static_cast<std::uint32_t>(all.files.size());
  const auto order = static_cast<std::uint32_t>(all.tensors.size() + all.objects.size());
  const auto move_to = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  for (DcpTensor& tensor : part.tensors) {
    put_under(top, tensor.key, tensor.path);
    tensor.order += order;
    for (DcpChunk& chunk : tensor.chunks) chunk.place.file += files;
  }
  for (DcpObject& object : part.objects) {
    put_under(top, object.key, object.path);
    object.place.file += files;
  }
  if (all.facts.empty()) all.facts = std::move(part.facts);
  move_to(part.files, all.files);
  move_to(part.file_bytes, all.file_bytes);
  move_to(part.tensors, all.tensors);
  move_to(part.objects, all.objects);
  move_to(part.notes, all.notes);
  move_to(part.problems, all.problems);
}

}  // namespace

std::optional<std::uint64_t> decoded_bytes_max(const DcpTensor& tensor, const DcpChunk& chunk) {
  constexpr std::uint64_t kArchiveBytes = 1 << 20;
  const std::optional<std::uint64_t> elements = size_bytes(tensor.type, volume(chunk.box));
  if (!elements || *elements > ~kArchiveBytes) return std::nullopt;
  return *elements + kArchiveBytes;
}

Result<StoredPiece> locate(ByteSource& source, const DcpTensor& tensor, const DcpChunk& chunk) {
  if (!chunk.place.transforms.empty())
    return Error{Code::invalid, text("tensor ", tensor.key, " is packed by ", chunk.place.transforms[0])};
  const auto found = [&]() -> Result<StoredPiece> {
    PAWL_ASSIGN(const bool is, is_safetensors(source));
    if (is) {
      PAWL_ASSIGN(const SafetensorsFile file, read_safetensors(source));
      for (const SafetensorsEntry& entry : file.tensors)
        if (entry.name == tensor.key) return locate_in_safetensors(entry, tensor, chunk.box);
      return damaged("it is not in its file");
    }
    PAWL_ASSIGN(RangeBytes range, RangeBytes::open(source, chunk.place.offset_bytes, chunk.place.length_bytes));
    ItemEnds ends;
    PAWL_ASSIGN(ItemBytes item,
                ends.read(source, chunk.place.file, chunk.place.offset_bytes, chunk.place.length_bytes, range));
    PAWL_ASSIGN(StoredPiece piece, locate_in_archive(item, tensor.type, chunk.box));
    piece.offset_bytes += chunk.place.offset_bytes;
    return piece;
  };
  Result<StoredPiece> piece = found();
  if (!piece) return std::move(piece).error().within(text("tensor ", tensor.key));
  return at_box(*piece, chunk);
}

Result<CheckpointView> view_dcp_keys(const std::string& folder, Files& files) {
  PAWL_ASSIGN(const DcpCheckpoint checkpoint, open_dcp(folder, files));
  return located(checkpoint, files);
}

Result<CheckpointView> view_dcp_keys(const DcpCheckpoint& checkpoint, Files& files) {
  return located(checkpoint, files);
}

Result<CheckpointView> view_dcp(const std::string& folder, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(DcpCheckpoint checkpoint, open_dcp(folder, files));
  return named(checkpoint, options, files);
}

Result<CheckpointView> view_dcp_parts(std::span<const DcpPart> parts, const ReadOptions& options, Files& files) {
  DcpCheckpoint all;
  for (const DcpPart& part : parts) {
    Result<DcpCheckpoint> opened = open_dcp(part.folder, files);
    if (opened) {
      append(std::move(*opened), part.top, all);
    } else if (part.is_optimizer && opened.error().code != Code::io && opened.error().code != Code::full) {
      all.problems.push_back(text(kOfOptimizerState, ": ", opened.error().what));
    } else {
      return std::move(opened).error();
    }
  }
  return named(all, options, files);
}

}  // namespace pawl::checkpoint
