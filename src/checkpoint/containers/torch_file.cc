#include "checkpoint/containers/torch_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/containers/damaged.h"
#include "checkpoint/containers/foreign_file.h"
#include "checkpoint/containers/torch_program.h"
#include "checkpoint/containers/value_parts.h"
#include "checkpoint/reshape/cast.h"
#include "checkpoint/reshape/stored_file.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kPickleBytesMax = std::uint64_t{1} << 30;
// Steps of the walk for each value: sharing can make a small file look endless.
constexpr std::uint64_t kStepsPerValue = 64;
constexpr std::uint64_t kStepsAtLeast = 10'000;
constexpr std::size_t kShownBytesMax = 256;  // in a sentence
constexpr std::string_view kZipMagic = "PK\3\4";
// The number that begins a stream: in protocol 2 and later, and as the decimal of protocols 0 and 1.
constexpr std::string_view kLegacyMagic{"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12};
constexpr std::string_view kLegacyDecimal = "L119547037146038801333356L\n.";
constexpr std::size_t kHeadBytesMin = 16;

using Value = Pickle::Value;

std::string layout_name(const Pickle& pickle, Value value) {  // torch.serialization._get_layout('torch.sparse_coo')
  const std::span<const Value> arguments = pickle.items(pickle.object(value).arguments);
  std::string_view name = arguments.empty() ? std::string_view() : pickle.text(arguments[0]);
  if (name.starts_with("torch.")) name.remove_prefix(6);
  return std::string(name);
}

bool is_key(std::string_view key) {
  return !key.empty() && key.size() <= 40 && key.find_first_not_of("0123456789") == std::string_view::npos;
}

// What a persistent id says of a storage. Views of the pickle.
struct StorageId {
  std::string_view module;
  std::string_view class_name;
  std::string_view key;
  std::string_view location;
  std::optional<std::uint64_t> count;
  bool is_view = false;  // of another storage
};

// Takes what lies before `end` off the front of `text`, and `end`.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view end) {
  const std::size_t at = text.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view out = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return out;
}

// Protocol 0 has the id as Python prints it: ('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 12), in a stream with
// ", None" at its end.
std::optional<StorageId> storage_id_of_text(std::string_view printed) {
  constexpr std::string_view kBegin = "('storage', <class '";
  if (!printed.starts_with(kBegin)) return std::nullopt;
  printed.remove_prefix(kBegin.size());
  const auto class_ = take_until(printed, "'>, '");
  const auto key = class_ ? take_until(printed, "', '") : std::nullopt;
  const auto location = key ? take_until(printed, "', ") : std::nullopt;
  if (!location || class_->rfind('.') == std::string_view::npos) return std::nullopt;
  const std::size_t dot = class_->rfind('.');
  StorageId out;
  out.module = class_->substr(0, dot);
  out.class_name = class_->substr(dot + 1);
  out.key = *key;
  out.location = *location;
  const std::size_t end = std::min(printed.find_first_not_of("0123456789"), printed.size());
  std::uint64_t count = 0;
  if (parse_number(printed.substr(0, end), count)) out.count = count;
  printed.remove_prefix(end);
  out.is_view = printed != ")" && printed != ", None)";
  return out;
}

// In streams a class of a module may come with its source, which is not looked at.
bool is_class_id(const Pickle& pickle, Value id) {
  const std::span<const Value> parts = pickle.items(id);
  return (!parts.empty() && pickle.text(parts[0]) == "module") || pickle.text(id).starts_with("('module', ");
}

// ('storage', class, key, location, numel), and in a stream also None.
std::optional<StorageId> storage_id(const Pickle& pickle, Value id) {
  if (pickle.is(id, PickleKind::string)) return storage_id_of_text(pickle.text(id));
  const std::span<const Value> parts = pickle.items(id);
  if (!pickle.is(id, PickleKind::tuple) || parts.size() < 5 || parts.size() > 6 || pickle.text(parts[0]) != "storage")
    return std::nullopt;
  StorageId out;
  out.module = pickle.symbol(parts[1]).module;
  out.class_name = pickle.symbol(parts[1]).name;
  out.key = pickle.text(parts[2]);
  out.location = pickle.text(parts[3]);
  out.count = pickle.unsigned_(parts[4]);
  out.is_view = parts.size() == 6 && !pickle.is(parts[5], PickleKind::none);
  return out;
}

}  // namespace

bool begins_like_torch_file(std::string_view head) {
  if (head.size() < kHeadBytesMin) return false;
  return head.starts_with(kZipMagic) || head.starts_with(kLegacyDecimal) ||
         (head[0] == '\x80' && head.find(kLegacyMagic) != std::string_view::npos);  // protocol 4 puts a frame before it
}

std::optional<TorchReach> reach_of(const TorchTensor& tensor) {
  if (tensor.shape.size() != tensor.strides.size()) return std::nullopt;  // a sparse tensor, or a wrapper
  TorchReach reach{1, tensor.storage_offset};
  const bool empty = std::ranges::find(tensor.shape, std::uint64_t{0}) != tensor.shape.end();
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    std::uint64_t step = 0;
    if (empty) continue;
    if (__builtin_mul_overflow(reach.count, tensor.shape[i], &reach.count) || reach.count >> 63 != 0)
      return std::nullopt;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &step) ||
        __builtin_add_overflow(reach.last, step, &reach.last) || reach.last >> 63 != 0)
      return std::nullopt;
  }
  if (empty) reach.count = 0;
  return reach;
}

StoredFile stored_file_of(const TorchStorage& storage, const std::string& path) {
  StoredFile file;
  file.path = path;
  if (!storage.deflated) return file;
  file.codec = StoredFile::Codec::deflate;
  file.offset_bytes = storage.offset_bytes;
  file.length_bytes = storage.packed_bytes;
  file.decoded_bytes = storage.size_bytes;
  return file;
}

Result<std::vector<std::uint64_t>> torch_sizes(const Pickle& pickle, Value value, std::string_view what) {
  std::vector<std::uint64_t> out;
  PAWL_TRY(read_torch_sizes(pickle, value, what, out));
  return out;
}

Status read_torch_sizes(const Pickle& pickle, Value value, std::string_view what, std::vector<std::uint64_t>& out) {
  // torch.Size is a call with one tuple.
  if (pickle.is(value, PickleKind::object) && pickle.class_of(value).is("torch", "Size")) {
    const std::span<const Value> arguments = pickle.items(pickle.object(value).arguments);
    value = arguments.size() == 1 ? arguments[0] : kNothing;
  }
  if (!pickle.is(value, PickleKind::tuple) && !pickle.is(value, PickleKind::list))
    return damaged(text(what, " is ", pickle.describe(value)));
  const std::span<const Value> items = pickle.items(value);
  if (items.size() > kTorchDimensionsMax) return damaged(text("a tensor of ", items.size(), " dimensions"));
  out.clear();
  out.reserve(items.size());
  for (const Value item : items) {
    const std::optional<std::uint64_t> number = pickle.unsigned_(item);
    if (!number) return damaged(text(what, " holds ", pickle.describe(item)));
    out.push_back(*number);
  }
  return {};
}

std::optional<ElementType> torch_type(const Pickle& pickle, Value value) {
  const PickleSymbol& symbol = pickle.symbol(value);
  return symbol.module == "torch" ? element_type_named(symbol.name) : std::nullopt;
}

bool looks_like_torch_file(const std::string& path, Files& files) {
  const Result<std::string> head = read_head(path, kTorchHeadBytes, files);
  return head && begins_like_torch_file(*head);
}

class TorchReader {
 public:
  explicit TorchReader(ByteSource& source, bool is_part = false) : source_(source), is_part_(is_part) {}
  Result<TorchFile> read();

 private:
  Status read_zip();
  Status read_object();     // of archive_
  Status read_constants();  // of TorchScript
  Status read_legacy();
  Status read_folder(const ZipDirectory& directory, std::string& folder);
  Result<Pickle> next_pickle(std::uint64_t& at);

  // From values to storages and tensors.
  Status find_storages();
  Status add_storage(Value value);
  Status find_tensors();
  Status add_tensor(Value value);
  Status build(Value value, const PickleSymbol& function, std::span<const Value> arguments, TorchTensor& out,
               bool& is_tensor);
  Status build_strided(std::span<const Value> arguments, TorchTensor& out);
  Status build_sparse(Value value, std::span<const Value> arguments, TorchTensor& out);
  Status build_wrapper(std::span<const Value> arguments, TorchTensor& out);
  Status build_copy(std::span<const Value> arguments, TorchTensor& out);
  void read_metadata(Value metadata, TorchTensor& out);

  // From values to names.
  void mark_interesting();
  Status walk();
  Status enter(Value value);
  void find_tensor_keys(Value value);
  void note_unreached();
  struct Frame {  // a value on the way down
    Value value;
    std::vector<ValuePart> children;
    std::size_t next = 0;
  };
  Status children_of(Value value, std::vector<ValuePart>& out);
  Status take_copy_of(Value value, const TorchTensor& tensor);

  [[nodiscard]] const Pickle& pickle() const { return file_.pickle_; }

  ByteSource& source_;
  bool is_part_;  // of an archive of torch.export
  TorchFile file_;
  bool legacy_ = false;
  std::string folder_;
  std::string archive_ = "data";  // data.pkl, and data/ with its storages
  ZipDirectory directory_;
  std::unordered_map<std::string, std::uint32_t> storage_by_key_;
  std::unordered_map<Value, std::uint32_t> storage_of_;
  std::unordered_map<Value, TorchTensor> tensor_of_;
  std::unordered_map<Value, std::vector<ValuePart>> parts_of_;  // of tensors made of tensors
  std::vector<bool> interesting_;                               // a tensor lies in or below it
  std::vector<Frame> stack_;                                    // of the walk
  std::vector<PathStep> path_;                                  // to its topmost value
  std::vector<bool> on_path_;
  std::unordered_set<Value> reached_;         // tensors
  std::map<Value, std::string> tensor_keys_;  // tensors that are keys: of which dict
};

Result<TorchFile> TorchReader::read() {
  PAWL_ASSIGN(const std::string head,
              read_text(source_, 0, std::min<std::uint64_t>(source_.size_bytes(), kTorchHeadBytes)));
  if (!begins_like_torch_file(head)) {
    if (std::optional<Error> foreign = foreign_file(source_)) return std::move(*foreign);
    return damaged("offset 0: neither a zip file nor a stream of torch.save");
  }
  if (!head.starts_with(kZipMagic)) {
    PAWL_TRY(read_legacy());
    return std::move(file_);
  }
  PAWL_ASSIGN(directory_, ZipDirectory::read(source_));
  if (is_torch_program(directory_)) {
    if (is_part_) return Error{Code::invalid, "an archive of torch.export inside another"};
    return read_torch_program(source_, std::move(directory_));
  }
  if (std::optional<Error> foreign = foreign_archive(directory_)) return std::move(*foreign);
  PAWL_TRY(read_zip());
  return std::move(file_);
}

Status TorchReader::read_folder(const ZipDirectory& directory, std::string& folder) {
  if (directory.records().empty()) return damaged("an archive without records");
  const std::string& first = directory.records().front().name;
  const std::size_t slash = first.find('/');
  if (slash == std::string::npos) return damaged(text("record ", first, " lies in no folder"));
  folder = first.substr(0, slash + 1);
  for (const ZipRecord& record : directory.records())
    if (!record.name.starts_with(folder))
      return damaged(text("record ", record.name, " lies beside the folder ", folder));
  return {};
}

Status TorchReader::read_zip() {
  PAWL_TRY(read_folder(directory_, folder_));
  const ZipRecord* version = directory_.find(folder_ + "version");
  if (version == nullptr) version = directory_.find(folder_ + ".data/version");
  if (version == nullptr) return damaged("no record version");
  PAWL_ASSIGN(std::string digits, read_record(source_, *version, 32));
  while (!digits.empty() && (digits.back() == '\n' || digits.back() == ' ')) digits.pop_back();
  std::uint32_t number = 0;
  if (!parse_number(digits, number) || number < 1 || number > 10)
    return Error{Code::invalid, text("version \"", digits, "\" of the format is not known")};
  if (const ZipRecord* order = directory_.find(folder_ + "byteorder")) {
    PAWL_ASSIGN(const std::string name, read_record(source_, *order, 32));
    if (name != "little" && name != "big") return damaged(text("byte order \"", name, '"'));
    file_.big_endian_ = name == "big";
  }
  PAWL_TRY(read_object());
  if (directory_.find(folder_ + "constants.pkl") != nullptr) PAWL_TRY(read_constants());
  file_.records_ = directory_.records();
  return {};
}

Status TorchReader::read_object() {
  const std::string name = archive_ + ".pkl";
  const ZipRecord* record = directory_.find(folder_ + name);
  if (record == nullptr) return damaged(text("no record ", name));
  PAWL_ASSIGN(const std::string bytes, read_record(source_, *record, kPickleBytesMax));
  Result<Pickle> pickle = parse_pickle(bytes);
  if (!pickle) return std::move(pickle).error().within(name);
  if (pickle->source_bytes() != bytes.size())
    return damaged(text(name, ": offset ", pickle->source_bytes(), ": bytes after the end"));
  file_.pickle_ = std::move(*pickle);
  file_.copies_ = CopyBudget(bytes.size(), name);
  PAWL_TRY(find_storages());
  PAWL_TRY(find_tensors());
  return walk();
}

// A tuple, whose items the code calls CONSTANTS.c0, CONSTANTS.c1, ...: where a module was frozen, all of its weights.
Status TorchReader::read_constants() {
  file_.format_ = "TorchScript";
  file_.notes_.emplace_back("a TorchScript archive: its tensors are read, its code is not");
  TorchReader reader(source_);
  reader.folder_ = folder_;
  reader.archive_ = "constants";
  reader.directory_ = directory_;
  reader.file_.big_endian_ = file_.big_endian_;
  PAWL_TRY(reader.read_object());
  TorchFile constants = std::move(reader.file_);
  for (TorchTensor& tensor : constants.tensors_)
    if (!tensor.path.empty()) tensor.path.front() = {PathStep::Kind::attribute, text('c', tensor.path.front().text)};
  return file_.take(std::move(constants), {{PathStep::Kind::key, "CONSTANTS"}}, 0);
}

// A pickle's length is known when it has been read: a window that grows until it fits.
Result<Pickle> TorchReader::next_pickle(std::uint64_t& at) {
  const std::uint64_t left = source_.size_bytes() - at;
  for (std::uint64_t window = std::min<std::uint64_t>(left, 1 << 16);; window = std::min(left, window * 4)) {
    if (window > kPickleBytesMax)
      return Error{Code::full, text("offset ", at, ": a pickle of more than ", kPickleBytesMax, " bytes")};
    PAWL_ASSIGN(const std::string bytes, read_text(source_, at, window));
    bool ended_early = false;
    Result<Pickle> pickle = parse_pickle(bytes, {}, &ended_early);
    if (pickle) {
      at += pickle->source_bytes();
      return pickle;
    }
    if (!ended_early || window == left) return std::move(pickle).error().within(text("pickle at ", at));
  }
}

Status TorchReader::read_legacy() {
  legacy_ = true;
  std::uint64_t at = 0;
  PAWL_ASSIGN(const Pickle magic, next_pickle(at));
  if (magic.text(magic.root()) != kLegacyMagic.substr(2))
    return damaged("offset 0: not the number that begins a stream");
  PAWL_ASSIGN(const Pickle version, next_pickle(at));
  if (version.integer(version.root()) != 1001)
    return Error{Code::invalid, text("a stream of version ", version.describe(version.root()))};
  PAWL_ASSIGN(const Pickle system, next_pickle(at));
  const Value little = system.find(system.root(), "little_endian");
  if (!system.is(little, PickleKind::boolean)) return damaged("the stream does not say its byte order");
  file_.big_endian_ = !system.boolean(little);
  const std::uint64_t object_at = at;
  PAWL_ASSIGN(file_.pickle_, next_pickle(at));
  file_.copies_ = CopyBudget(at - object_at, text("pickle at ", object_at));
  PAWL_ASSIGN(const Pickle keys, next_pickle(at));
  PAWL_TRY(find_storages());
  if (!keys.is(keys.root(), PickleKind::list)) return damaged("the stream's storage keys are not a list");
  std::vector<bool> placed(file_.storages_.size(), false);
  for (const Value listed : keys.items(keys.root())) {
    const std::string key(keys.text(listed).substr(0, kShownBytesMax));
    const auto found = storage_by_key_.find(key);
    if (found == storage_by_key_.end() || placed[found->second])
      return damaged(text("storage ", key, " is listed and not used, or listed twice"));
    TorchStorage& storage = file_.storages_[found->second];
    placed[found->second] = true;
    PAWL_ASSIGN(const std::string head, read_text(source_, at, 8));
    std::int64_t count = 0;
    std::memcpy(&count, head.data(), 8);
    if (file_.big_endian_) count = static_cast<std::int64_t>(__builtin_bswap64(static_cast<std::uint64_t>(count)));
    const std::optional<std::uint64_t> bytes = count < 0 ? std::nullopt
                                               : storage.type
                                                   ? size_bytes(*storage.type, static_cast<std::uint64_t>(count))
                                                   : static_cast<std::uint64_t>(count);
    if (bytes != storage.size_bytes)
      return damaged(
          text("offset ", at, ": storage ", key, " has ", count, " elements here and another size in the object"));
    at += 8;
    if (*bytes > source_.size_bytes() - at) return damaged(text("offset ", at, ": storage ", key, " is cut off"));
    storage.offset_bytes = at;
    at += *bytes;
  }
  for (std::size_t i = 0; i < placed.size(); ++i)
    if (!placed[i] && file_.storages_[i].has_data)
      return damaged(text("storage ", file_.storages_[i].key, " is not in the stream"));
  if (at != source_.size_bytes()) return damaged(text("offset ", at, ": bytes after the last storage"));
  PAWL_TRY(find_tensors());
  return walk();
}

Status TorchReader::find_storages() {
  for (Value value = 0; value < pickle().count(); ++value)
    if (pickle().is(value, PickleKind::persistent)) PAWL_TRY(add_storage(value));
  return {};
}

Status TorchReader::add_storage(Value value) {
  const Value id = pickle().object(value).arguments;
  if (legacy_ && is_class_id(pickle(), id)) return {};
  const std::optional<StorageId> said = storage_id(pickle(), id);
  if (!said) return damaged(text("a persistent id that is not a storage: ", pickle().describe(id)));
  const auto& [module, class_name, key, location, count, is_view] = *said;
  if (!is_key(key)) return damaged(text("a storage's key is \"", key.substr(0, 80), "\" in ", pickle().describe(id)));
  const bool untyped = class_name == "UntypedStorage" && (module == "torch" || module == "torch.storage");
  const std::optional<ElementType> type = module == "torch" ? element_type_of_storage(class_name) : std::nullopt;
  if (!untyped && !type) return damaged(text("storage ", key, " has the class ", module, '.', class_name));
  if (!count) return damaged(text("storage ", key, ": how many elements it has is no number"));
  if (is_view) return Error{Code::invalid, text("storage ", key, " is a view of another: an old stream")};
  TorchStorage storage{std::string(key), type, 0, 0, 0, location != "meta", false};
  // A packed type counts its numbers, and torch stores whole bytes.
  const std::optional<std::uint64_t> bytes =
      untyped                ? count
      : size_bits(*type) < 8 ? std::optional(*count / (8 / size_bits(*type)) + (*count % (8 / size_bits(*type)) != 0))
                             : size_bytes(*type, *count);
  if (!bytes) return damaged(text("storage ", key, " has ", *count, " elements"));
  storage.size_bytes = *bytes;
  if (!legacy_ && storage.has_data) {
    const ZipRecord* record = directory_.find(text(folder_, archive_, '/', key));
    if (record == nullptr && storage.size_bytes != 0) return damaged(text("no record ", archive_, '/', key));
    if (record != nullptr && size_bits(type.value_or(ElementType::uint8)) < 8 && record->unpacked_bytes <= *count)
      storage.size_bytes = record->unpacked_bytes;
    if (record != nullptr && record->unpacked_bytes != storage.size_bytes)
      return damaged(text("record ", archive_, '/', key, " has ", record->unpacked_bytes, " bytes, and its storage ",
                          storage.size_bytes));
    if (record != nullptr) {
      storage.offset_bytes = record->offset_bytes;
      storage.packed_bytes = record->size_bytes;
      storage.deflated = record->deflated;
      storage.crc32 = record->crc32;
    }
  }
  const auto [found, is_new] = storage_by_key_.emplace(storage.key, static_cast<std::uint32_t>(file_.storages_.size()));
  if (is_new) {
    file_.storages_.push_back(std::move(storage));
  } else {
    const TorchStorage& first = file_.storages_[found->second];
    if (first.size_bytes != storage.size_bytes || first.has_data != storage.has_data || first.type != storage.type)
      return damaged(text("storage ", key, " is named twice, and differs"));
  }
  storage_of_[value] = found->second;
  return {};
}

Status TorchReader::find_tensors() {
  for (Value value = 0; value < pickle().count(); ++value)  // what a call holds comes before it
    if (pickle().is(value, PickleKind::object) && pickle().object(value).call == Pickle::Call::reduce)
      PAWL_TRY(add_tensor(value));
  return {};
}

Status TorchReader::add_tensor(Value value) {
  const Pickle::Object object = pickle().object(value);
  const PickleSymbol& function = pickle().class_of(value);
  const std::span<const Value> arguments = pickle().items(object.arguments);
  TorchTensor tensor;
  tensor.class_name = "torch.Tensor";
  tensor.value = value;
  bool is_tensor = false;
  if (function.is("torch._tensor", "_rebuild_from_type_v2")) {  // (function, class, its arguments, state)
    if (arguments.size() != 4) return damaged("_rebuild_from_type_v2 without its four arguments");
    PAWL_TRY(build(value, pickle().symbol(arguments[0]), pickle().items(arguments[2]), tensor, is_tensor));
    const PickleSymbol& class_ = pickle().symbol(arguments[1]);
    tensor.class_name = text(class_.module, '.', class_.name);
    std::vector<ValuePart> parts = std::move(parts_of_[value]);
    PAWL_TRY(add_state_parts(pickle(), arguments[3], file_.copies_, parts));
    parts_of_[value] = std::move(parts);
  } else {
    PAWL_TRY(build(value, function, arguments, tensor, is_tensor));
  }
  if (!is_tensor) return {};
  PAWL_TRY(take_copy_of(value, tensor));
  Status sound = tensor.storage == kNoStorage ? Status() : check_inside(tensor, file_.storages_[tensor.storage]);
  if (!sound) return std::move(sound).error().within(text("tensor (value ", value, ")"));
  tensor_of_.emplace(value, std::move(tensor));
  return {};
}

// Tensors share tuples of sizes, classes, and what a subclass is made of.
Status TorchReader::take_copy_of(Value value, const TorchTensor& tensor) {
  std::uint64_t bytes = sizeof tensor + tensor.class_name.size() + tensor.layout.size() +
                        (tensor.shape.size() + tensor.strides.size()) * sizeof tensor.shape[0];
  if (const auto parts = parts_of_.find(value); parts != parts_of_.end())
    for (const ValuePart& part : parts->second) bytes += sizeof part + part.step.text.size();
  return file_.copies_.take(bytes);
}

Status TorchReader::build(Value value, const PickleSymbol& function, std::span<const Value> arguments, TorchTensor& out,
                          bool& is_tensor) {
  const bool utils = function.module == "torch._utils";
  is_tensor = true;
  const auto flag = [&](std::size_t i) { return i < arguments.size() && pickle().boolean(arguments[i]); };
  if (utils && (function.name == "_rebuild_tensor" || function.name == "_rebuild_tensor_v2" ||
                function.name == "_rebuild_tensor_v3" || function.name == "_rebuild_qtensor")) {
    PAWL_TRY(build_strided(arguments, out));
    const bool quantized = function.name == "_rebuild_qtensor";
    out.requires_grad = flag(quantized ? 5 : 4);
    if (quantized && arguments.size() > 4) {
      for (const Value item : pickle().items(arguments[4]))
        parts_of_[value].push_back({{PathStep::Kind::attribute, text("quantizer_", parts_of_[value].size())}, item});
    } else if (function.name == "_rebuild_tensor_v3") {
      const std::optional<ElementType> type = arguments.size() > 6 ? torch_type(pickle(), arguments[6]) : std::nullopt;
      if (!type) return damaged("_rebuild_tensor_v3 without a type we know");
      out.type = *type;
      if (arguments.size() > 7) read_metadata(arguments[7], out);
    } else if (arguments.size() > 6) {
      read_metadata(arguments[6], out);
    }
    return {};
  }
  if (utils && (function.name == "_rebuild_parameter" || function.name == "_rebuild_parameter_with_state")) {
    PAWL_TRY(build_copy(arguments, out));
    out.value = value;
    out.is_parameter = true;
    out.requires_grad = flag(1);
    if (arguments.size() > 3) PAWL_TRY(add_state_parts(pickle(), arguments[3], file_.copies_, parts_of_[value]));
    return {};
  }
  if (utils && function.name == "_rebuild_device_tensor_from_cpu_tensor") {
    PAWL_TRY(build_copy(arguments, out));
    out.value = value;
    return {};
  }
  if (utils && function.name == "_rebuild_sparse_tensor") return build_sparse(value, arguments, out);
  if (utils && function.name == "_rebuild_nested_tensor") {
    out.layout = "nested";
    for (std::size_t i = 0; i < arguments.size(); ++i)
      parts_of_[value].push_back({{PathStep::Kind::attribute, text("part_", i)}, arguments[i]});
    const auto first = arguments.empty() ? tensor_of_.end() : tensor_of_.find(arguments[0]);
    if (first != tensor_of_.end()) out.type = first->second.type;
    return {};
  }
  if (function.is("torch.nested._internal.nested_tensor", "_rebuild_njt")) {
    out.layout = "jagged";
    for (std::size_t i = 0; i < arguments.size(); ++i)
      parts_of_[value].push_back({{PathStep::Kind::attribute, text("part_", i)}, arguments[i]});
    return {};
  }
  if (utils && function.name == "_rebuild_wrapper_subclass") return build_wrapper(arguments, out);
  if (utils && function.name == "_rebuild_meta_tensor_no_storage") {  // (type, size, strides, requires_grad)
    const std::optional<ElementType> type = arguments.size() == 4 ? torch_type(pickle(), arguments[0]) : std::nullopt;
    if (!type) return damaged("_rebuild_meta_tensor_no_storage without a type we know");
    out.type = *type;
    out.layout = "meta";
    PAWL_ASSIGN(out.shape, torch_sizes(pickle(), arguments[1], "size"));
    PAWL_ASSIGN(out.strides, torch_sizes(pickle(), arguments[2], "stride"));
    out.requires_grad = flag(3);
    return {};
  }
  is_tensor = false;
  return {};
}

Status TorchReader::build_strided(std::span<const Value> arguments, TorchTensor& out) {
  if (arguments.size() < 4) return damaged("a tensor without its four arguments");
  const auto storage = storage_of_.find(arguments[0]);
  if (storage == storage_of_.end()) return damaged(text("a tensor's storage is ", pickle().describe(arguments[0])));
  out.storage = storage->second;
  const std::optional<std::uint64_t> offset = pickle().unsigned_(arguments[1]);
  if (!offset) return damaged(text("a tensor's offset is ", pickle().describe(arguments[1])));
  out.storage_offset = *offset;
  PAWL_ASSIGN(out.shape, torch_sizes(pickle(), arguments[2], "size"));
  PAWL_ASSIGN(out.strides, torch_sizes(pickle(), arguments[3], "stride"));
  out.type = file_.storages_[out.storage].type.value_or(ElementType::uint8);
  return {};
}

// (layout, (indices, values, size, ...)) or (layout, (compressed, plain, values, size))
Status TorchReader::build_sparse(Value value, std::span<const Value> arguments, TorchTensor& out) {
  if (arguments.size() != 2) return damaged("a sparse tensor without its two arguments");
  out.layout = layout_name(pickle(), arguments[0]);
  const std::span<const Value> parts = pickle().items(arguments[1]);
  static constexpr std::string_view kCoordinates[] = {"indices", "values"};
  static constexpr std::string_view kCompressed[] = {"compressed", "plain", "values"};
  const std::span<const std::string_view> names =
      out.layout == "sparse_coo" ? std::span<const std::string_view>(kCoordinates) : kCompressed;
  if (!out.layout.starts_with("sparse_") || parts.size() <= names.size())
    return damaged(text("a sparse tensor of layout \"", out.layout, '"'));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto part = tensor_of_.find(parts[i]);
    if (part == tensor_of_.end())
      return damaged(text("a sparse tensor's ", names[i], " is ", pickle().describe(parts[i])));
    out.type = part->second.type;
    parts_of_[value].push_back({{PathStep::Kind::attribute, std::string(names[i])}, parts[i]});
  }
  PAWL_ASSIGN(out.shape, torch_sizes(pickle(), parts[names.size()], "size"));
  return {};
}

// (class, type, size, stride, storage_offset, layout, device, requires_grad)
Status TorchReader::build_wrapper(std::span<const Value> arguments, TorchTensor& out) {
  const std::optional<ElementType> type = arguments.size() >= 8 ? torch_type(pickle(), arguments[1]) : std::nullopt;
  if (!type) return damaged("_rebuild_wrapper_subclass without a type we know");
  out.type = *type;
  out.layout = "wrapper";
  PAWL_ASSIGN(out.shape, torch_sizes(pickle(), arguments[2], "size"));
  PAWL_ASSIGN(out.strides, torch_sizes(pickle(), arguments[3], "stride"));
  out.requires_grad = pickle().boolean(arguments[7]);
  return {};
}

Status TorchReader::build_copy(std::span<const Value> arguments, TorchTensor& out) {
  const auto data = arguments.empty() ? tensor_of_.end() : tensor_of_.find(arguments[0]);
  if (data == tensor_of_.end()) return damaged("a parameter whose data is not a tensor");
  out = data->second;
  if (const auto parts = parts_of_.find(arguments[0]); parts != parts_of_.end()) parts_of_[out.value] = parts->second;
  return {};
}

void TorchReader::read_metadata(Value metadata, TorchTensor& out) {
  out.conjugated = pickle().boolean(pickle().find_field(metadata, "conj"));
  out.negated = pickle().boolean(pickle().find_field(metadata, "neg"));
}

Status check_inside(const TorchTensor& tensor, const TorchStorage& storage) {
  if (tensor.shape.size() != tensor.strides.size())
    return damaged(text(tensor.shape.size(), " sizes and ", tensor.strides.size(), " strides"));
  const std::optional<TorchReach> reach = reach_of(tensor);
  if (!reach) return damaged("sizes, strides and offset overflow");
  if (reach->count == 0) return {};
  const std::uint32_t bits = size_bits(tensor.type);
  const std::uint64_t room = bits >= 8 ? storage.size_bytes / (bits / 8) : storage.size_bytes * (8 / bits);
  if (reach->last >= room) return damaged(text("its last element is number ", reach->last, " of a storage of ", room));
  return {};
}

Status TorchReader::children_of(Value value, std::vector<ValuePart>& out) {
  if (!tensor_of_.contains(value)) return add_parts(pickle(), value, file_.copies_, out);
  if (const auto parts = parts_of_.find(value); parts != parts_of_.end()) out = parts->second;
  return {};
}

// Values with a tensor in or below them, found upwards from the tensors: the walk down then has no dead ends.
void TorchReader::mark_interesting() {
  const Value count = pickle().count();
  interesting_.assign(count, false);
  std::vector<std::uint32_t> first(count + 1u, 0);
  const auto each_edge = [&](const auto& visit) {
    for (Value value = 0; value < count; ++value) {
      for (const Value item : pickle().items(value)) visit(value, item);
      const Pickle::Object object = pickle().object(value);
      if (object.arguments != kNothing) visit(value, object.arguments);
      if (object.state != kNothing) visit(value, object.state);
    }
  };
  each_edge([&](Value, Value child) { ++first[child + 1u]; });
  for (Value value = 0; value < count; ++value) first[value + 1u] += first[value];
  std::vector<Value> parents(first[count]);
  std::vector<std::uint32_t> next(first.begin(), first.end() - 1);
  each_edge([&](Value parent, Value child) { parents[next[child]++] = parent; });
  std::vector<Value> todo;
  for (const auto& [value, tensor] : tensor_of_) {
    interesting_[value] = true;
    todo.push_back(value);
  }
  while (!todo.empty()) {
    const Value value = todo.back();
    todo.pop_back();
    for (std::uint32_t i = first[value]; i < first[value + 1u]; ++i) {
      if (interesting_[parents[i]]) continue;
      interesting_[parents[i]] = true;
      todo.push_back(parents[i]);
    }
  }
}

Status TorchReader::enter(Value value) {
  if (const auto found = tensor_of_.find(value); found != tensor_of_.end()) {
    PAWL_TRY(take_copy_of(value, found->second));
    PAWL_TRY(file_.copies_.take(bytes_of(path_)));
    reached_.insert(value);
    file_.tensors_.push_back(found->second);
    file_.tensors_.back().path = path_;
  }
  on_path_[value] = true;
  stack_.push_back({value, {}, 0});
  PAWL_TRY(children_of(value, stack_.back().children));
  find_tensor_keys(value);
  return {};
}

Status TorchReader::walk() {
  mark_interesting();
  on_path_.assign(pickle().count(), false);
  std::uint64_t steps = 0;
  const std::uint64_t steps_max = kStepsAtLeast + kStepsPerValue * pickle().count();
  if (interesting_[pickle().root()]) PAWL_TRY(enter(pickle().root()));
  while (!stack_.empty()) {
    Frame& top = stack_.back();
    if (top.next == top.children.size()) {
      on_path_[top.value] = false;
      stack_.pop_back();
      if (!path_.empty()) path_.pop_back();
      continue;
    }
    auto& [step, value] = top.children[top.next++];
    if (++steps > steps_max) return Error{Code::full, text("too many paths lead to the same tensors")};
    if (!interesting_[value] || on_path_[value]) continue;
    path_.push_back(std::move(step));
    PAWL_TRY(enter(value));
  }
  note_unreached();
  return {};
}

Status TorchFile::take(TorchFile part, const std::vector<PathStep>& path, std::uint64_t base_bytes) {
  if (part.big_endian_ != big_endian_ && !part.storages_.empty())
    return Error{Code::invalid, text(name_of(path), ": its byte order is not that of the archive around it")};
  const auto first = static_cast<std::uint32_t>(storages_.size());
  for (TorchStorage& storage : part.storages_) {
    storage.offset_bytes += base_bytes;
    storages_.push_back(std::move(storage));
  }
  const std::string prefix = path.empty() ? "" : text(name_of(path), ": ");
  copies_.add_source(part.pickle_.source_bytes());
  PAWL_TRY(copies_.take(part.tensors_.size(), bytes_of(path)));
  PAWL_TRY(copies_.take(part.notes_.size() + part.unreached_.size(), prefix.size()));
  for (TorchTensor& tensor : part.tensors_) {
    tensor.path.insert(tensor.path.begin(), path.begin(), path.end());
    if (tensor.storage != kNoStorage) tensor.storage += first;
    tensor.value = kNothing;
    tensors_.push_back(std::move(tensor));
  }
  for (const std::string& note : part.notes_) notes_.push_back(prefix + note);
  for (const std::string& what : part.unreached_) unreached_.push_back(prefix + what);
  for (const std::string& problem : part.problems_) problems_.push_back(prefix + problem);
  return {};
}

namespace {

// For a sentence: the first of the name.
std::string shown_name(const std::vector<PathStep>& path) {
  std::string out;
  for (std::size_t i = 0; i < path.size() && out.size() < kShownBytesMax; ++i)
    append_text(out, text(i == 0 ? "" : ".", std::string_view(path[i].text).substr(0, kShownBytesMax)));
  return out.substr(0, kShownBytesMax);
}

}  // namespace

void TorchReader::find_tensor_keys(Value value) {
  if (!pickle().holds_pairs(value)) return;
  const std::span<const Value> items = pickle().items(value);
  std::optional<std::string> name;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (!tensor_of_.contains(items[i])) continue;
    if (!name) name = shown_name(path_);
    tensor_keys_.try_emplace(items[i], *name);
  }
}

void TorchReader::note_unreached() {
  for (const auto& [value, dict] : tensor_keys_)
    if (!reached_.contains(value))
      file_.unreached_.push_back(text("a tensor ", text_of(Shape(tensor_of_.at(value).shape)), " is a key of the dict ",
                                      dict.empty() ? "at the top" : dict, ": only what it leads to is read"));
}

Result<TorchFile> TorchFile::read(ByteSource& source) {
  return TorchReader(source).read();
}

Result<TorchFile> TorchFile::read_saved(ByteSource& source) {
  return TorchReader(source, true).read();
}

Result<TorchFile> TorchFile::open(const std::string& path, Files& files) {
  PAWL_ASSIGN(const std::unique_ptr<ByteSource> source, open_bytes(path, files));
  Result<TorchFile> file = read(*source);
  if (!file) return std::move(file).error().within(path);
  return file;
}

std::uint64_t bytes_of(const std::vector<PathStep>& path) {
  std::uint64_t bytes = path.size() * sizeof(PathStep);
  for (const PathStep& step : path) bytes += step.text.size();
  return bytes;
}

std::string name_of(const std::vector<PathStep>& path) {
  std::string out;
  for (const PathStep& step : path) {
    if (&step != &path.front()) out.push_back('.');
    out.append(step.text);
  }
  return out;
}

std::string accessor_of(const std::vector<PathStep>& path) {
  std::string out;
  for (const PathStep& step : path) {
    if (step.kind == PathStep::Kind::attribute) append_text(out, text('.', step.text));
    if (step.kind == PathStep::Kind::index) append_text(out, text('[', step.text, ']'));
    if (step.kind == PathStep::Kind::key) append_text(out, text("['", step.text, "']"));
  }
  return out;
}

namespace {

void swap_each(std::string& bytes, std::uint32_t size) {
  for (std::size_t i = 0; size > 1 && i + size <= bytes.size(); i += size)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i), bytes.begin() + static_cast<std::ptrdiff_t>(i + size));
}

// Signs of little-endian floating-point numbers: every one, or each second one (imaginary parts).
void flip_signs(std::string& bytes, std::uint32_t size, bool imaginary_only) {
  for (std::size_t i = imaginary_only ? 2 * size - 1 : size - 1; i < bytes.size();
       i += imaginary_only ? 2 * size : size)
    bytes[i] = static_cast<char>(bytes[i] ^ '\x80');
}

Result<std::string> read_storage(ByteSource& source, const TorchStorage& storage, std::uint64_t offset_bytes,
                                 std::uint64_t size_bytes) {
  if (!storage.deflated) return read_text(source, storage.offset_bytes + offset_bytes, size_bytes);
  PAWL_ASSIGN(const std::string packed, read_text(source, storage.offset_bytes, storage.packed_bytes));
  PAWL_ASSIGN(std::string whole, decode_deflate(packed, storage.size_bytes));
  return whole.substr(offset_bytes, size_bytes);
}

}  // namespace

Result<std::string> read_elements(ByteSource& source, const TorchFile& file, const TorchTensor& tensor,
                                  std::uint64_t size_bytes_max) {
  if (tensor.storage == kNoStorage || !file.storages()[tensor.storage].has_data)
    return Error{Code::invalid, text("tensor ", name_of(tensor.path), " has no bytes of its own")};
  const std::uint32_t bits = size_bits(tensor.type);
  const TorchStorage& storage = file.storages()[tensor.storage];
  const std::optional<TorchReach> reach = reach_of(tensor);
  if (bits % 8 != 0) return Error{Code::invalid, text("elements of ", bits, " bits are read as whole storages")};
  const std::optional<std::uint64_t> bytes = reach ? size_bytes(tensor.type, reach->count) : std::nullopt;
  if (!bytes || *bytes > size_bytes_max)
    return Error{Code::full, text("tensor ", name_of(tensor.path), " has more than ", size_bytes_max, " bytes")};
  const std::uint64_t element = bits / 8;
  if (reach->count == 0) return std::string();
  const std::uint64_t span = (reach->last - tensor.storage_offset + 1) * element;  // inside the storage: checked
  if (span > size_bytes_max)
    return Error{Code::full, text("tensor ", name_of(tensor.path), " is spread over ", span, " bytes")};
  PAWL_ASSIGN(const std::string stored, read_storage(source, storage, tensor.storage_offset * element, span));
  std::string out(*bytes, '\0');
  std::vector<std::uint64_t> index(tensor.shape.size(), 0);
  std::uint64_t from = 0;
  for (std::uint64_t i = 0; i < reach->count; ++i) {
    std::memcpy(out.data() + i * element, stored.data() + from * element, element);
    for (std::size_t d = index.size(); d-- > 0;) {
      from += tensor.strides[d];
      if (++index[d] < tensor.shape[d]) break;
      from -= tensor.strides[d] * tensor.shape[d];
      index[d] = 0;
    }
  }
  if (file.is_big_endian()) swap_each(out, swapped_bytes(tensor.type));
  if (tensor.negated) flip_signs(out, swapped_bytes(tensor.type), false);
  if (tensor.conjugated) flip_signs(out, swapped_bytes(tensor.type), true);
  return out;
}

Result<std::optional<double>> number_of(ByteSource& source, const TorchFile& file, const TorchTensor& tensor) {
  constexpr std::uint64_t kBytesMax = 16;  // of an element
  // A packed storage is unpacked as a whole: a large one is none of numbers, and may be named by very many of them.
  constexpr std::uint64_t kUnpackedBytesMax = 4096;
  if (tensor.shape.size() > 1 || (tensor.shape.size() == 1 && tensor.shape[0] != 1)) return std::optional<double>();
  const bool is_packed = tensor.storage != kNoStorage && file.storages()[tensor.storage].deflated;
  if (is_packed && file.storages()[tensor.storage].size_bytes > kUnpackedBytesMax) return std::optional<double>();
  PAWL_ASSIGN(const std::string bytes, read_elements(source, file, tensor, kBytesMax));
  return number_of(tensor.type, bytes);
}

Status prove_storage(ByteSource& source, const TorchFile& file, std::uint32_t storage) {
  const TorchStorage& its = file.storages()[storage];
  if (its.crc32 == 0) return {};
  const std::uint64_t packed = its.deflated ? its.packed_bytes : its.size_bytes;
  PAWL_ASSIGN(const bool agrees,
              checksum_agrees(source, {its.key, its.offset_bytes, packed, its.size_bytes, its.crc32, its.deflated}));
  if (agrees) return {};
  return damaged(text("its storage ", its.key, " does not have the checksum that the archive gives"));
}

CheckpointView view_of(const TorchFile& file, const std::string& path) {
  CheckpointView view;
  view.format = file.format();
  view.files.push_back({path});
  std::vector<std::uint32_t> file_of(file.storages().size(), 0);
  for (std::size_t i = 0; i < file.storages().size(); ++i) {
    if (!file.storages()[i].deflated) continue;
    file_of[i] = static_cast<std::uint32_t>(view.files.size());
    view.files.push_back(stored_file_of(file.storages()[i], path));
  }
  view.notes = file.notes();
  view.unsupported = file.unreached();
  view.problems = file.problems();
  for (const TorchTensor& tensor : file.tensors()) {
    const std::string name = name_of(tensor.path);
    const std::optional<TorchReach> reach = reach_of(tensor);
    const bool has_bytes = tensor.storage != kNoStorage && file.storages()[tensor.storage].has_data;
    if (!has_bytes || !reach || tensor.shape.size() > kDimensionsMax || size_bits(tensor.type) % 8 != 0 ||
        tensor.conjugated || tensor.negated) {
      view.unsupported.push_back(text("tensor ", name, " (", tensor.class_name, tensor.layout.empty() ? "" : ", ",
                                      tensor.layout, ") has no plain bytes"));
      continue;
    }
    StoredTensor& out = view.tensors.emplace_back();
    out.name = name;
    out.type = tensor.type;
    out.shape = tensor.shape;
    if (reach->count == 0) continue;
    const std::uint64_t element = size_bits(tensor.type) / 8;
    const std::uint64_t origin = origin_of(file.storages()[tensor.storage]);
    StoredPiece piece = whole_piece(tensor.shape, file_of[tensor.storage], origin + tensor.storage_offset * element);
    std::ranges::copy(tensor.strides, piece.stride.begin());
    piece.swapped = file.is_big_endian() && swapped_bytes(tensor.type) > 1;
    out.pieces.push_back(piece);
  }
  return view;
}

}  // namespace pawl::checkpoint
