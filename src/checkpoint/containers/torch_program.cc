#include "checkpoint/containers/torch_program.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/containers/damaged.h"
#include "checkpoint/containers/json_scan.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kTableBytesMax = 256 << 20;
constexpr std::size_t kNameBytesMax = 4096;  // it stands before each tensor of a class of its own
constexpr std::string_view kFormatRecord = "/archive_format";
constexpr std::string_view kProgramBefore28 = "serialized_exported_program.json";
constexpr std::uint64_t kStridedLayout = 7;

// Where tensors of one kind lie in an archive with a folder, and how the table of a program's is called.
struct Kind {
  std::string_view folder;
  std::string_view table_end;
};
constexpr Kind kKinds[] = {{"data/weights/", "_weights_config.json"}, {"data/constants/", "_constants_config.json"}};

// The numbers that torch.export gives to types.
std::optional<ElementType> type_numbered(std::uint64_t number) {
  switch (number) {
    case 1:
      return ElementType::uint8;
    case 2:
      return ElementType::int8;
    case 3:
      return ElementType::int16;
    case 4:
      return ElementType::int32;
    case 5:
      return ElementType::int64;
    case 6:
      return ElementType::float16;
    case 7:
      return ElementType::float32;
    case 8:
      return ElementType::float64;
    case 9:
      return ElementType::complex32;
    case 10:
      return ElementType::complex64;
    case 11:
      return ElementType::complex128;
    case 12:
      return ElementType::boolean;
    case 13:
      return ElementType::bfloat16;
    case 28:
      return ElementType::uint16;
    case 29:
      return ElementType::float8_e4m3fn;
    case 30:
      return ElementType::float8_e5m2;
    case 31:
      return ElementType::float8_e4m3fnuz;
    case 32:
      return ElementType::float8_e5m2fnuz;
    case 33:
      return ElementType::float8_e8m0fnu;
    case 34:
      return ElementType::uint32;
    case 35:
      return ElementType::uint64;
    default:
      return std::nullopt;
  }
}

// One tensor of a table.
struct Payload {
  std::string name;
  std::string record;
  bool is_parameter = false;
  bool is_pickled = false;
  bool has_meta = false;
  std::uint64_t type = 0;
  std::uint64_t layout = kStridedLayout;
  std::uint64_t storage_offset = 0;
  bool requires_grad = false;
  std::vector<std::uint64_t> sizes = {};
  std::vector<std::uint64_t> strides = {};
};

bool scan_boolean(JsonScan& scan, bool& out) {
  out = scan.peek() == 't';
  return scan.skip();
}

// {"as_int": 4}; a size that is an expression is of an input, not of a weight.
bool scan_size(JsonScan& scan, std::uint64_t& out) {
  std::string key;
  bool is_number = false;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key != "as_int" || is_number) return scan.fail(text("a size is given as ", key));
    is_number = true;
    if (!scan.number(out)) return false;
  }
  return is_number ? !scan.failed() : scan.fail("a size that is no number");
}

bool scan_sizes(JsonScan& scan, std::vector<std::uint64_t>& out) {
  out.clear();
  scan.begin_array();
  while (scan.next_item()) {
    if (out.size() == kTorchDimensionsMax) return scan.fail("too many dimensions");
    if (!scan_size(scan, out.emplace_back())) return false;
  }
  return !scan.failed();
}

bool scan_meta(JsonScan& scan, Payload& out) {
  if (scan.peek() == 'n') return scan.skip();  // null: an object that is no tensor
  std::string key;
  out.has_meta = true;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "dtype") {
      (void)scan.number(out.type);
    } else if (key == "sizes") {
      (void)scan_sizes(scan, out.sizes);
    } else if (key == "strides") {
      (void)scan_sizes(scan, out.strides);
    } else if (key == "storage_offset") {
      (void)scan_size(scan, out.storage_offset);
    } else if (key == "layout") {
      (void)scan.number(out.layout);
    } else if (key == "requires_grad") {
      (void)scan_boolean(scan, out.requires_grad);
    } else {
      (void)scan.skip();
    }
  }
  return !scan.failed();
}

bool scan_payload(JsonScan& scan, Payload& out) {
  std::string key;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "path_name") {
      (void)scan.string(out.record);
    } else if (key == "is_param") {
      (void)scan_boolean(scan, out.is_parameter);
    } else if (key == "use_pickle") {
      (void)scan_boolean(scan, out.is_pickled);
    } else if (key == "tensor_meta") {
      (void)scan_meta(scan, out);
    } else {
      (void)scan.skip();
    }
  }
  return !scan.failed();
}

// {"config": {"<name>": {...}}}
Result<std::vector<Payload>> parse_table(std::string_view json) {
  JsonScan scan(json);
  std::vector<Payload> out;
  std::string key, name;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key != "config") {
      (void)scan.skip();
      continue;
    }
    scan.begin_object();
    while (scan.next_key(name)) {
      if (name.size() > kNameBytesMax) return damaged(text("a name of ", name.size(), " bytes"));
      out.push_back({name, {}});
      if (!scan_payload(scan, out.back())) break;
    }
  }
  if (!scan.finish()) return scan.error();
  return out;
}

}  // namespace

class TorchProgramReader {
 public:
  TorchProgramReader(ByteSource& source, ZipDirectory directory) : source_(source), directory_(std::move(directory)) {}
  Result<TorchFile> read();

 private:
  using Path = std::vector<PathStep>;

  Status read_before_28();
  Status read_folder(const std::string& root);
  Status read_kind(const std::string& folder, const Kind& kind, const std::string& program, const Path& path);
  Status add(const std::string& folder, const Payload& payload, Path path);
  Status add_raw(const ZipRecord& record, const Payload& payload, Path path);
  Result<std::uint32_t> storage_of(const ZipRecord& record, ElementType type);
  Status add_file(const ZipRecord& record, const Path& path);
  [[nodiscard]] std::vector<std::string> programs(const std::string& root) const;

  ByteSource& source_;
  ZipDirectory directory_;
  TorchFile file_;
  std::unordered_map<std::string_view, std::uint32_t> storage_of_;  // by record
  std::unordered_set<std::string_view> files_;                      // records that were read as files of torch.save
};

Result<TorchFile> TorchProgramReader::read() {
  PAWL_ASSIGN(file_.pickle_, parse_pickle("}."));  // there is no object around the tensors
  file_.format_ = "torch.export";
  file_.notes_.emplace_back("an archive of torch.export: its tensors are read, its program is not");
  const std::string& first = directory_.records().front().name;
  if (directory_.find(kProgramBefore28) != nullptr) {
    PAWL_TRY(read_before_28());
  } else {
    PAWL_TRY(read_folder(first.substr(0, first.find('/') + 1)));
  }
  file_.records_ = directory_.records();
  return std::move(file_);
}

Status TorchProgramReader::read_before_28() {
  const ZipRecord* weights = directory_.find("serialized_state_dict.pt");
  if (weights == nullptr)
    return Error{Code::invalid,
                 "an archive of torch.export without serialized_state_dict.pt: load it with the torch that wrote it, "
                 "and save it with today's"};
  PAWL_TRY(add_file(*weights, {}));
  const ZipRecord* constants = directory_.find("serialized_constants.pt");
  return constants == nullptr ? Status() : add_file(*constants, {});
}

// The names of those that have weights or constants.
std::vector<std::string> TorchProgramReader::programs(const std::string& root) const {
  std::vector<std::string> out;
  for (const Kind& kind : kKinds) {
    const std::string folder = root + std::string(kind.folder);
    for (const ZipRecord& record : directory_.records())
      for (const std::string_view end : {kind.table_end, std::string_view(".pt")}) {
        std::string_view name = record.name;
        if (!name.starts_with(folder) || !name.ends_with(end)) continue;
        name.remove_prefix(folder.size());
        name.remove_suffix(end.size());
        if (name.find('/') == std::string_view::npos) out.emplace_back(name);
      }
  }
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Status TorchProgramReader::read_folder(const std::string& root) {
  if (const ZipRecord* order = directory_.find(root + "byteorder")) {
    PAWL_ASSIGN(const std::string name, read_record(source_, *order, 32));
    if (name != "little" && name != "big") return damaged(text("byte order \"", name, '"'));
    file_.big_endian_ = name == "big";
  }
  const std::vector<std::string> names = programs(root);
  if (names.empty())
    return Error{Code::invalid,
                 "an archive of torch.export without a table of weights (compiled code alone?): give the program that "
                 "torch.export.save wrote, or the model's weights"};
  for (const std::string& program : names) {
    const Path path = names.size() == 1 ? Path() : Path{{PathStep::Kind::key, program}};
    for (const Kind& kind : kKinds) PAWL_TRY(read_kind(root + std::string(kind.folder), kind, program, path));
  }
  return {};
}

Status TorchProgramReader::read_kind(const std::string& folder, const Kind& kind, const std::string& program,
                                     const Path& path) {
  if (const ZipRecord* whole = directory_.find(text(folder, program, ".pt"))) return add_file(*whole, path);
  const ZipRecord* table = directory_.find(text(folder, program, kind.table_end));
  if (table == nullptr) return {};
  PAWL_ASSIGN(const std::string json, read_record(source_, *table, kTableBytesMax));
  file_.copies_.add_source(json.size());
  Result<std::vector<Payload>> payloads = parse_table(json);
  if (!payloads) return std::move(payloads).error().within(table->name);
  for (const Payload& payload : *payloads) {
    if (Status fits = file_.copies_.take(bytes_of(path)); !fits) return std::move(fits).error().within(table->name);
    Path below = path;
    below.push_back({PathStep::Kind::key, payload.name});
    if (Status status = add(folder, payload, std::move(below)); !status)
      return std::move(status).error().within(text(table->name, ": tensor ", payload.name));
  }
  return {};
}

Status TorchProgramReader::add(const std::string& folder, const Payload& payload, Path path) {
  const ZipRecord* record = directory_.find(folder + payload.record);
  if (record == nullptr) return damaged(text("no record ", folder, payload.record));
  if (!payload.has_meta) {
    file_.notes_.push_back(text("constant ", payload.name, " is an object and no tensor"));
    return {};
  }
  return payload.is_pickled ? add_file(*record, path) : add_raw(*record, payload, std::move(path));
}

Status TorchProgramReader::add_raw(const ZipRecord& record, const Payload& payload, Path path) {
  const std::optional<ElementType> type = type_numbered(payload.type);
  if (!type) return Error{Code::invalid, text("its type has the number ", payload.type, ", which is not known")};
  TorchTensor tensor;
  tensor.path = std::move(path);
  tensor.class_name = "torch.Tensor";
  tensor.type = *type;
  tensor.shape = payload.sizes;
  tensor.strides = payload.strides;
  tensor.storage_offset = payload.storage_offset;
  tensor.requires_grad = payload.requires_grad;
  tensor.is_parameter = payload.is_parameter;
  if (payload.layout != kStridedLayout) {
    tensor.layout = text("layout ", payload.layout);
  } else {
    PAWL_ASSIGN(tensor.storage, storage_of(record, *type));
    const std::optional<TorchReach> reach = reach_of(tensor);
    // torch writes no bytes for a weight that was none when it was exported: of a fake tensor, or on "meta".
    if (record.unpacked_bytes == 0 && reach && reach->count != 0) {
      file_.problems_.push_back(text("tensor ", name_of(tensor.path), ": its record ", record.name,
                                     " has no bytes, and its shape says ", reach->count,
                                     " elements: export the program again with its real weights"));
      return {};
    }
    PAWL_TRY(check_inside(tensor, file_.storages_[tensor.storage]));
  }
  file_.tensors_.push_back(std::move(tensor));
  return {};
}

Result<std::uint32_t> TorchProgramReader::storage_of(const ZipRecord& record, ElementType type) {
  const auto [found, is_new] = storage_of_.emplace(record.name, static_cast<std::uint32_t>(file_.storages_.size()));
  if (is_new)
    file_.storages_.push_back({record.name, type, record.offset_bytes, record.unpacked_bytes, record.size_bytes, true,
                               record.deflated, record.crc32});
  if (file_.storages_[found->second].type != type)
    return Error{Code::invalid, text("record ", record.name, " holds tensors of two types")};
  return found->second;
}

// A file of torch.save in the archive.
Status TorchProgramReader::add_file(const ZipRecord& record, const Path& path) {
  if (record.unpacked_bytes == 0) return {};
  if (record.deflated)
    return Error{Code::invalid,
                 text("record ", record.name, " was packed again: unpack the archive, and give the path of that file")};
  PAWL_ASSIGN(RangeBytes bytes, RangeBytes::open(source_, record.offset_bytes, record.size_bytes));
  if (!files_.insert(record.name).second) return damaged(text("record ", record.name, " is named twice"));
  Result<TorchFile> file = TorchFile::read_saved(bytes);
  if (!file) return std::move(file).error().within(record.name);
  if (path.empty() && file_.storages_.empty()) file_.big_endian_ = file->is_big_endian();
  return file_.take(std::move(*file), path, record.offset_bytes);
}

bool is_torch_program(const ZipDirectory& directory) {
  if (directory.find(kProgramBefore28) != nullptr) return true;
  return std::ranges::any_of(directory.records(), [](const ZipRecord& record) {
    return record.name.ends_with(kFormatRecord) && record.name.find('/') == record.name.size() - kFormatRecord.size();
  });
}

Result<TorchFile> read_torch_program(ByteSource& source, ZipDirectory directory) {
  return TorchProgramReader(source, std::move(directory)).read();
}

}  // namespace pawl::checkpoint
