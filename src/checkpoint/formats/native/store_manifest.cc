#include "checkpoint/formats/native/store_manifest.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/crc32c.h"
#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/containers/json_scan.h"
#include "tensor/tiling.h"

namespace pawl::checkpoint {
namespace {

std::uint32_t crc32c_of(std::string_view bytes) {
  return crc32c(std::as_bytes(std::span(bytes)));
}

bool is_attempt(std::string_view attempt) {
  const auto is_plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return !attempt.empty() && attempt.size() <= 64 && std::ranges::all_of(attempt, is_plain);
}

std::string quoted(std::string_view value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      out += text("\\u00", kDigits[byte >> 4], kDigits[byte & 15]);
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string numbers(const PerDimension& values, std::uint32_t count) {
  return text_of(Shape(values.begin(), values.begin() + count));
}

void append_piece(std::string& out, const StoreManifestPiece& piece) {
  out += text("{\"file\":", piece.file, ",\"offset\":", piece.offset_bytes, ",\"crc32c\":", piece.crc32c,
              ",\"begin\":", numbers(piece.box.begin, piece.box.dimensions),
              ",\"size\":", numbers(piece.box.size, piece.box.dimensions), "}");
}

void append_tensor(std::string& out, const StoreManifestTensor& tensor) {
  out += text("{\"name\":", quoted(tensor.name), ",\"role\":", quoted(tensor.role), ",\"dtype\":\"",
              name_of(tensor.type), "\",\"shape\":", text_of(tensor.shape), ",\"pieces\":[");
  for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
    if (i != 0) out += ',';
    append_piece(out, tensor.pieces[i]);
  }
  out += "]}";
}

// --- Reading

bool scan_number(JsonScan& scan, std::uint32_t& out) {
  std::uint64_t wide = 0;
  if (!scan.number(wide)) return false;
  if (wide > ~std::uint32_t{0}) return scan.fail("a number is too large");
  out = static_cast<std::uint32_t>(wide);
  return true;
}

bool scan_file(JsonScan& scan, StoreFile& file) {
  std::string key;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "name")
      scan.string(file.name);
    else if (key == "bytes")
      scan.number(file.size_bytes);
    else if (key == "header_bytes")
      scan.number(file.header_bytes);
    else if (key == "header_crc32c")
      scan_number(scan, file.header_crc32c);
    else
      scan.skip();
  }
  if (scan.failed()) return false;
  const std::string_view name = file.name;  // what store_file_name() gives, and so no path to elsewhere
  const std::string_view kBegin = "data-", kEnd = ".safetensors";
  std::uint32_t part = 0;
  bool is_ours = name.size() > kBegin.size() + kEnd.size() && name.starts_with(kBegin) && name.ends_with(kEnd);
  if (is_ours) {
    const std::string_view middle = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
    const std::size_t dot = middle.find('.');
    const std::string_view attempt = dot == middle.npos ? std::string_view() : middle.substr(dot + 1);
    is_ours = parse_number(middle.substr(0, dot), part) && (dot == middle.npos || is_attempt(attempt)) &&
              store_file_name(part, attempt) == name;
  }
  if (!is_ours) return scan.fail("a data file has another name than data-<part>[.<attempt>].safetensors");
  if (file.header_bytes > file.size_bytes || file.size_bytes >> 62 != 0)
    return scan.fail(text(file.name, ": sizes that cannot be"));
  return true;
}

bool scan_piece(JsonScan& scan, StoreManifestPiece& piece) {
  std::string key;
  Shape begin, size;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "file")
      scan_number(scan, piece.file);
    else if (key == "offset")
      scan.number(piece.offset_bytes);
    else if (key == "crc32c")
      scan_number(scan, piece.crc32c);
    else if (key == "begin")
      scan.numbers(begin, kDimensionsMax);
    else if (key == "size")
      scan.numbers(size, kDimensionsMax);
    else
      scan.skip();
  }
  if (scan.failed()) return false;
  if (begin.size() != size.size()) return scan.fail("a piece's begin and size have unequal numbers of dimensions");
  piece.box.dimensions = static_cast<std::uint32_t>(begin.size());
  std::ranges::copy(begin, piece.box.begin.begin());
  std::ranges::copy(size, piece.box.size.begin());
  return true;
}

bool scan_tensor(JsonScan& scan, StoreManifestTensor& tensor) {
  std::string key, type;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "name") {
      scan.string(tensor.name);
    } else if (key == "role") {
      scan.string(tensor.role);
    } else if (key == "dtype") {
      scan.string(type);
    } else if (key == "shape") {
      scan.numbers(tensor.shape, kDimensionsMax);
    } else if (key == "pieces") {
      scan.begin_array();
      while (scan.next_item())
        if (!scan_piece(scan, tensor.pieces.emplace_back())) return false;
    } else {
      scan.skip();
    }
  }
  if (scan.failed()) return false;
  const std::optional<ElementType> known = element_type_named(type);
  if (!known) return scan.fail(text("tensor ", tensor.name, ": type ", type, " is not known"));
  tensor.type = *known;
  if (!element_count(tensor.shape)) return scan.fail(text("tensor ", tensor.name, ": its shape is too large"));
  return true;
}

bool scan_aliases(JsonScan& scan, StoreManifest& manifest) {
  std::string alias, kept;
  scan.begin_object();
  while (scan.next_key(alias)) {
    if (!scan.string(kept)) return false;
    manifest.aliases.emplace_back(alias, kept);
  }
  return !scan.failed();
}

struct Head {
  std::string format;
  std::uint64_t version = 0;
};

bool scan_manifest(JsonScan& scan, std::string_view json, StoreManifest& manifest, Head& head) {
  std::string key;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "format") {
      scan.string(head.format);
    } else if (key == "version") {
      scan.number(head.version);
      if (head.version > kStoreVersion) return scan.fail("it is of a later version");
    } else if (key == "files") {
      scan.begin_array();
      while (scan.next_item())
        if (!scan_file(scan, manifest.files.emplace_back())) return false;
    } else if (key == "tensors") {
      scan.begin_array();
      while (scan.next_item())
        if (!scan_tensor(scan, manifest.tensors.emplace_back())) return false;
    } else if (key == "aliases") {
      if (!scan_aliases(scan, manifest)) return false;
    } else if (key == "values") {
      (void)scan.peek();  // past white space
      const std::size_t begin = scan.offset();
      if (scan.skip()) manifest.values = std::string(json.substr(begin, scan.offset() - begin));
    } else {
      scan.skip();
    }
  }
  return scan.finish();
}

std::string fault_of(const StoreManifestTensor& tensor, const StoreManifestPiece& piece,
                     const StoreManifest& manifest) {
  if (piece.file >= manifest.files.size()) return "a piece in a file that is not listed";
  if (volume(piece.box) == 0) return "an empty piece";
  if (!check_inside(piece.box, tensor.shape)) return "a piece that leaves it";
  const StoreFile& file = manifest.files[piece.file];
  const std::uint64_t bytes = piece_bytes(tensor, piece);
  if (bytes == 0) return "a piece that is not a whole number of bytes";
  if (piece.offset_bytes < file.header_bytes || piece.offset_bytes > file.size_bytes ||
      bytes > file.size_bytes - piece.offset_bytes)
    return text("a piece that leaves ", file.name);
  return {};
}

Status check_pieces(const StoreManifest& manifest) {
  FirstFew faults;
  for (const StoreManifestTensor& tensor : manifest.tensors)
    for (const StoreManifestPiece& piece : tensor.pieces)
      if (const std::string fault = fault_of(tensor, piece, manifest); !fault.empty())
        faults.add(text("tensor ", tensor.name, " (", tensor.role, "): ", fault));
  if (faults.any()) return Error{Code::corrupt, text("manifest: ", faults.sentence())};
  return {};
}

std::string box_text(const Box& box) {
  std::string out = "[";
  for (std::uint32_t d = 0; d < box.dimensions; ++d)
    out += text(d == 0 ? "" : ",", box.begin[d], ":", box.begin[d] + box.size[d]);
  return out + "]";
}

std::string type_text(const StoreManifestTensor& tensor) {
  return text(name_of(tensor.type), " ", text_of(tensor.shape));
}

}  // namespace

std::string store_file_name(std::uint32_t part, std::string_view attempt) {
  const std::string digits = text(part);
  return text("data-", std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0'), digits, attempt.empty() ? "" : ".",
              attempt, ".safetensors");
}

std::string store_manifest_name(std::string_view attempt) {
  return attempt.empty() ? std::string(kStoreManifestName) : text("manifest.", attempt, ".json");
}

bool is_manifest_name(std::string_view name) {
  constexpr std::string_view kBegin = "manifest.", kEnd = ".json";
  if (name == kStoreManifestName) return true;
  return name.size() > kBegin.size() + kEnd.size() && name.starts_with(kBegin) && name.ends_with(kEnd) &&
         is_attempt(name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size()));
}

std::string store_key(std::string_view name, std::string_view role, const Shape& shape, const Box& box) {
  return text(name, "/", role, box == whole_box(shape) ? std::string() : box_text(box));
}

std::uint64_t piece_bytes(const StoreManifestTensor& tensor, const StoreManifestPiece& piece) {
  return size_bytes(tensor.type, volume(piece.box)).value_or(0);
}

std::string text_of(const StoreManifest& manifest) {
  std::string out = text("{\"format\":", quoted(kStoreFormat), ",\"version\":", kStoreVersion, ",\n\"files\":[");
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const StoreFile& file = manifest.files[i];
    out += text(i == 0 ? "\n" : ",\n", "{\"name\":", quoted(file.name), ",\"bytes\":", file.size_bytes,
                ",\"header_bytes\":", file.header_bytes, ",\"header_crc32c\":", file.header_crc32c, "}");
  }
  out += "],\n\"tensors\":[";
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    out += i == 0 ? "\n" : ",\n";
    append_tensor(out, manifest.tensors[i]);
  }
  out += "],\n\"aliases\":{";
  for (std::size_t i = 0; i < manifest.aliases.size(); ++i)
    out += text(i == 0 ? "" : ",", quoted(manifest.aliases[i].first), ":", quoted(manifest.aliases[i].second));
  return out + text("},\n\"values\":", manifest.values, "}\n");
}

Result<StoreManifest> parse_store_manifest(std::string_view json) {
  StoreManifest manifest;
  Head head;
  JsonScan scan(json);
  const bool is_read = scan_manifest(scan, json, manifest, head);
  if (head.version > kStoreVersion)
    return Error{Code::invalid, text("manifest: version ", head.version, ", and this pawl reads up to ", kStoreVersion,
                                     ": use the pawl that wrote it, or a later one")};
  if (!is_read) return scan.error().within("manifest");
  if (head.format != kStoreFormat || head.version == 0)
    return Error{Code::corrupt, "manifest: it does not say that it is a pawl store's"};
  PAWL_TRY(check_pieces(manifest));
  return manifest;
}

Result<StoreManifest> join_manifests(std::span<const StoreManifest> shares) {
  StoreManifest all;
  FirstFew faults;
  std::unordered_map<std::string, std::size_t> known;
  std::unordered_set<std::string> files;
  for (const StoreManifest& share : shares) {
    const auto first_file = static_cast<std::uint32_t>(all.files.size());
    for (const StoreFile& file : share.files) {
      if (!files.insert(file.name).second) faults.add(text("part ", file.name, " is there twice"));
      all.files.push_back(file);
    }
    for (const StoreManifestTensor& tensor : share.tensors) {
      const auto [found, is_new] =
          known.try_emplace(text(tensor.name.size(), ":", tensor.name, tensor.role), all.tensors.size());
      if (is_new) all.tensors.push_back({tensor.name, tensor.role, tensor.type, tensor.shape, {}});
      StoreManifestTensor& joined = all.tensors[found->second];
      if (joined.type != tensor.type || joined.shape != tensor.shape)
        faults.add(text("tensor ", tensor.name, " (", tensor.role, ") is ", type_text(joined), " of one part and ",
                        type_text(tensor), " of another"));
      for (StoreManifestPiece piece : tensor.pieces) {
        piece.file += first_file;
        joined.pieces.push_back(piece);
      }
    }
  }
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  return all;
}

Status check_manifest_tiles(const StoreManifest& manifest) {
  FirstFew faults;
  std::vector<Box> boxes;
  for (const StoreManifestTensor& tensor : manifest.tensors) {
    const Box whole = whole_box(tensor.shape);
    boxes.clear();
    for (const StoreManifestPiece& piece : tensor.pieces) boxes.push_back(piece.box);
    if (volume(whole) == 0) continue;
    const Tiling tiling = check_tiling(whole, boxes);
    const auto fault = [&](std::string_view why) {
      faults.add(text("tensor ", tensor.name, " (", tensor.role, ") ", text_of(tensor.shape), ": ", why));
    };
    if (tiling.overlap)
      fault(text("pieces ", box_text(boxes[tiling.overlap->first]), " and ", box_text(boxes[tiling.overlap->second]),
                 " overlap: each element is to be written by one part only"));
    else if (tiling.hole)
      fault(text(box_text(*tiling.hole), " is in no part"));
    else if (tiling.undecided)
      fault("its pieces are cut too finely to be checked");
  }
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  return {};
}

namespace {

constexpr std::size_t kIdBytesMax = 64;

struct Marker {
  std::uint64_t manifest_bytes = 0;
  std::uint32_t manifest_crc32c = 0;
  bool has_bytes = false, has_sum = false;
  StoreIdentity identity;
  std::string manifest = std::string(kStoreManifestName);
};

bool scan_id(JsonScan& scan, std::string& id) {
  if (!scan.string(id)) return false;
  const bool is_one = id.size() <= kIdBytesMax && std::ranges::all_of(id, [](unsigned char byte) {
                        return std::isalnum(byte) != 0 || byte == '-';
                      });
  return is_one || scan.fail("no id of a checkpoint");
}

// [[step,"id"],...]
bool scan_before(JsonScan& scan, std::vector<StoreName>& before) {
  if (!scan.begin_array()) return false;
  while (scan.next_item()) {
    StoreName& name = before.emplace_back();
    if (before.size() > kHistoryMax) return scan.fail("more checkpoints before it than are ever named");
    if (!scan.begin_array() || !scan.next_item() || !scan.number(name.step)) return scan.fail("no step");
    if (!scan.next_item() || !scan_id(scan, name.id)) return scan.fail("no id of a checkpoint");
    if (scan.next_item()) return scan.fail("a step and an id are all there may be");
  }
  return !scan.failed();
}

Result<Marker> parse_marker(std::string_view text_of_it) {
  JsonScan scan(text_of_it);
  std::string key;
  Marker marker;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "manifest_bytes")
      marker.has_bytes = scan.number(marker.manifest_bytes);
    else if (key == "manifest_crc32c")
      marker.has_sum = scan_number(scan, marker.manifest_crc32c);
    else if (key == "manifest")
      scan.string(marker.manifest);
    else if (key == "id")
      scan_id(scan, marker.identity.id);
    else if (key == "before")
      scan_before(scan, marker.identity.before);
    else if (key == "written_ms")
      scan.number(marker.identity.written_ms);
    else
      scan.skip();
  }
  if (!scan.finish()) return scan.error().within(std::string(kStoreMarkerName));
  if (!marker.has_bytes || !marker.has_sum) return Error{Code::corrupt, text(kStoreMarkerName, ": a field is missing")};
  if (!is_manifest_name(marker.manifest))
    return Error{Code::corrupt, text(kStoreMarkerName, ": names a manifest that is none of a store")};
  return marker;
}

std::string text_of(const StoreIdentity& identity) {
  if (identity.id.empty()) return {};
  std::string before;
  for (std::size_t i = 0; i < std::min(identity.before.size(), kHistoryMax); ++i)
    before += text(i == 0 ? "" : ",", "[", identity.before[i].step, ",", quoted(identity.before[i].id), "]");
  return text(",\"id\":", quoted(identity.id), ",\"written_ms\":", identity.written_ms, ",\"before\":[", before, "]");
}

}  // namespace

std::string marker_of(std::string_view manifest_text, const StoreIdentity& identity, std::string_view manifest_name) {
  const std::string name = manifest_name == kStoreManifestName ? "" : text(",\"manifest\":", quoted(manifest_name));
  return text("{\"format\":", quoted(kStoreFormat), ",\"version\":", kStoreVersion, name,
              ",\"manifest_bytes\":", manifest_text.size(), ",\"manifest_crc32c\":", crc32c_of(manifest_text),
              text_of(identity), "}\n");
}

Status check_marker(std::string_view marker, std::string_view manifest_text) {
  PAWL_ASSIGN(const Marker known, parse_marker(marker));
  if (known.manifest_bytes != manifest_text.size() || known.manifest_crc32c != crc32c_of(manifest_text))
    return Error{Code::corrupt,
                 text("its manifest: ", manifest_text.size(), " bytes that are not the ", known.manifest_bytes,
                      " that ", kStoreMarkerName, " makes valid: its checksum differs")};
  return {};
}

Result<std::string> manifest_name_in(std::string_view marker) {
  PAWL_ASSIGN(Marker known, parse_marker(marker));
  return std::move(known.manifest);
}

Result<StoreIdentity> identity_in(std::string_view marker) {
  PAWL_ASSIGN(Marker known, parse_marker(marker));
  return std::move(known.identity);
}

}  // namespace pawl::checkpoint
