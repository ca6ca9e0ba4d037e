#include "checkpoint/containers/zip.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text.h"
#include "checkpoint/reshape/stored_file.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::uint64_t kCentralBytes = 46;
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint64_t kDirectoryBytesMax = 256 << 20;
// A record that is read as a whole (a pickle, a table) may unpack to so much always, or to so many times its bytes.
constexpr std::uint64_t kUnpackedBytesAlways = 64 << 20;
constexpr std::uint64_t kUnpackedPerByte = 100;
constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kLocatorSignature = 0x07064b50;
constexpr std::uint32_t kEnd64Signature = 0x06064b50;
constexpr std::uint32_t kCentralSignature = 0x02014b50;
constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint16_t kFlagsKnown = 0x0808 | 0x0006;  // sizes after the data; UTF-8; how hard it was packed
constexpr std::uint16_t kZip64Field = 0x0001;
constexpr std::uint32_t kOverflow = 0xffff'ffff;

template <class Number>
Number number_at(std::string_view bytes, std::size_t offset) {  // inside, the caller knows
  Number value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

Error damaged(std::uint64_t offset, std::string why) {
  return Error{Code::corrupt, text("zip: offset ", offset, ": ", why)};
}

struct DirectoryPlace {
  std::uint64_t offset = 0;  // of the directory
  std::uint64_t size = 0;
  std::uint64_t count = 0;
};

Result<DirectoryPlace> find_directory(ByteSource& source) {
  const std::uint64_t size = source.size_bytes();
  if (size < kEndBytes) return damaged(0, text(size, " bytes are not an archive"));
  const std::uint64_t end_at = size - kEndBytes;
  PAWL_ASSIGN(const std::string end, read_text(source, end_at, kEndBytes));
  if (number_at<std::uint32_t>(end, 0) != kEndSignature)
    return damaged(end_at, "no end record: the file is cut off, or something follows the archive; get it again");
  if (number_at<std::uint16_t>(end, 20) != 0) return damaged(end_at, "an archive with a comment");
  if (number_at<std::uint16_t>(end, 4) != 0 || number_at<std::uint16_t>(end, 6) != 0)
    return damaged(end_at, "a part of a split archive");
  DirectoryPlace where{number_at<std::uint32_t>(end, 16), number_at<std::uint32_t>(end, 12),
                       number_at<std::uint16_t>(end, 10)};
  std::uint64_t directory_end = end_at;
  if (end_at >= kLocatorBytes + kEnd64Bytes) {
    const std::uint64_t locator_at = end_at - kLocatorBytes;
    PAWL_ASSIGN(const std::string locator, read_text(source, locator_at, kLocatorBytes));
    if (number_at<std::uint32_t>(locator, 0) == kLocatorSignature) {
      const std::uint64_t end64_at = number_at<std::uint64_t>(locator, 8);
      if (end64_at != locator_at - kEnd64Bytes)
        return damaged(locator_at, "the zip64 end record is not before its locator");
      PAWL_ASSIGN(const std::string end64, read_text(source, end64_at, kEnd64Bytes));
      if (number_at<std::uint32_t>(end64, 0) != kEnd64Signature ||
          number_at<std::uint64_t>(end64, 4) != kEnd64Bytes - 12)
        return damaged(end64_at, "no zip64 end record where the locator says");
      const DirectoryPlace wide{number_at<std::uint64_t>(end64, 48), number_at<std::uint64_t>(end64, 40),
                                number_at<std::uint64_t>(end64, 32)};
      if ((where.offset != kOverflow && where.offset != wide.offset) ||
          (where.size != kOverflow && where.size != wide.size) || (where.count != 0xffff && where.count != wide.count))
        return damaged(end64_at, "the two end records disagree");
      where = wide;
      directory_end = end64_at;
    }
  }
  if (where.offset > directory_end || where.size != directory_end - where.offset)
    return damaged(end_at, text("the directory (", where.size, " bytes at ", where.offset,
                                ") does not end where the end records begin"));
  if (where.size > kDirectoryBytesMax) return Error{Code::full, text("zip: a directory of ", where.size, " bytes")};
  if (where.count > where.size / kCentralBytes)
    return damaged(end_at, text(where.count, " records in a directory of ", where.size, " bytes"));
  return where;
}

// Each part is a plain word: no way up, no way to a root, nothing a terminal or a C string would take otherwise.
bool is_plain_path(std::string_view name) {
  if (name.empty() || name.size() > 4096) return false;
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == '\\' || c == 0x7f) return false;
  while (true) {
    const std::size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
    if (name.empty()) return true;  // a folder
  }
}

// Fields that did not fit come in a block of their own, in this order.
Status read_zip64(std::string_view extra, std::uint64_t& unpacked, std::uint64_t& packed, std::uint64_t& header,
                  std::uint64_t at) {
  while (extra.size() >= 4) {
    const auto id = number_at<std::uint16_t>(extra, 0);
    const auto length = number_at<std::uint16_t>(extra, 2);
    if (length > extra.size() - 4) return damaged(at, "an extra field passes its end");
    std::string_view block = extra.substr(4, length);
    extra.remove_prefix(4u + length);
    if (id != kZip64Field) continue;
    for (std::uint64_t* field : {&unpacked, &packed, &header}) {
      if (*field != kOverflow) continue;
      if (block.size() < 8) return damaged(at, "a zip64 field is missing");
      *field = number_at<std::uint64_t>(block, 0);
      block.remove_prefix(8);
    }
    return {};
  }
  if (unpacked == kOverflow || packed == kOverflow || header == kOverflow)
    return damaged(at, "a zip64 field is missing");
  return {};
}

struct Entry {
  ZipRecord record;
  std::uint64_t header_at = 0;
};

Result<Entry> parse_entry(std::string_view directory, std::uint64_t& at, std::uint64_t base) {
  const std::uint64_t where = base + at;
  if (directory.size() - at < kCentralBytes) return damaged(where, "the directory is cut off");
  const std::string_view head = directory.substr(at, kCentralBytes);
  if (number_at<std::uint32_t>(head, 0) != kCentralSignature) return damaged(where, "no directory entry here");
  const auto flags = number_at<std::uint16_t>(head, 8);
  const auto method = number_at<std::uint16_t>(head, 10);
  const std::uint64_t name_size = number_at<std::uint16_t>(head, 28);
  const std::uint64_t extra_size = number_at<std::uint16_t>(head, 30);
  const std::uint64_t comment_size = number_at<std::uint16_t>(head, 32);
  if (directory.size() - at - kCentralBytes < name_size + extra_size + comment_size)
    return damaged(where, "a directory entry is cut off");
  Entry entry;
  ZipRecord& record = entry.record;
  record.name = directory.substr(at + kCentralBytes, name_size);
  if (!is_plain_path(record.name)) return damaged(where, "a record's name is not a plain relative path");
  if ((flags & ~kFlagsKnown) != 0)
    return damaged(where, text("record ", record.name, ": encrypted, or with unknown flags"));
  if (method != 0 && method != 8) return damaged(where, text("record ", record.name, ": packed by method ", method));
  if (number_at<std::uint16_t>(head, 34) != 0) return damaged(where, "a record of another disk");
  record.deflated = method == 8;
  record.crc32 = number_at<std::uint32_t>(head, 16);
  record.size_bytes = number_at<std::uint32_t>(head, 20);
  record.unpacked_bytes = number_at<std::uint32_t>(head, 24);
  entry.header_at = number_at<std::uint32_t>(head, 42);
  PAWL_TRY(read_zip64(directory.substr(at + kCentralBytes + name_size, extra_size), record.unpacked_bytes,
                      record.size_bytes, entry.header_at, where));
  if (!record.deflated && record.size_bytes != record.unpacked_bytes)
    return damaged(where, text("record ", record.name, ": stored, and of two sizes"));
  at += kCentralBytes + name_size + extra_size + comment_size;
  return entry;
}

// The local header says where the data begins, and nothing else that counts.
Status place(ByteSource& source, Entry& entry, std::uint64_t directory_at) {
  ZipRecord& record = entry.record;
  if (entry.header_at > directory_at || directory_at - entry.header_at < kLocalBytes + record.name.size())
    return damaged(entry.header_at, text("record ", record.name, ": its header is not before the directory"));
  PAWL_ASSIGN(const std::string head, read_text(source, entry.header_at, kLocalBytes + record.name.size()));
  if (number_at<std::uint32_t>(head, 0) != kLocalSignature)
    return damaged(entry.header_at, text("record ", record.name, ": no local header here"));
  if (number_at<std::uint16_t>(head, 26) != record.name.size() ||
      head.compare(kLocalBytes, std::string::npos, record.name) != 0)
    return damaged(entry.header_at, text("record ", record.name, ": its local header has another name"));
  record.offset_bytes = entry.header_at + head.size() + number_at<std::uint16_t>(head, 28);
  if (record.offset_bytes > directory_at || record.size_bytes > directory_at - record.offset_bytes)
    return damaged(entry.header_at, text("record ", record.name, ": its data passes into the directory"));
  return {};
}

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0);
    table[i] = value;
  }
  return table;
}

std::uint32_t crc32_more(std::uint32_t crc, std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = make_crc_table();
  crc = ~crc;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

}  // namespace

Result<ZipDirectory> ZipDirectory::read(ByteSource& source) {
  PAWL_ASSIGN(const DirectoryPlace where, find_directory(source));
  PAWL_ASSIGN(const std::string directory, read_text(source, where.offset, where.size));
  ZipDirectory out;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // from a header to the end of its data
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < where.count; ++i) {
    PAWL_ASSIGN(Entry entry, parse_entry(directory, at, where.offset));
    PAWL_TRY(place(source, entry, where.offset));
    taken.emplace_back(entry.header_at, entry.record.offset_bytes + entry.record.size_bytes);
    if (entry.record.name.back() == '/') {
      if (entry.record.unpacked_bytes != 0) return damaged(entry.header_at, "a folder with content");
      continue;
    }
    if (!out.by_name_.emplace(entry.record.name, out.records_.size()).second)
      return damaged(entry.header_at, text("record ", entry.record.name, " is there twice"));
    out.records_.push_back(std::move(entry.record));
  }
  if (at != directory.size()) return damaged(where.offset + at, "bytes after the last directory entry");
  std::ranges::sort(taken);
  for (std::size_t i = 1; i < taken.size(); ++i)
    if (taken[i].first < taken[i - 1].second) return damaged(taken[i].first, "two records overlap");
  return out;
}

const ZipRecord* ZipDirectory::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &records_[found->second];
}

Result<std::string> read_record(ByteSource& source, const ZipRecord& record, std::uint64_t size_bytes_max) {
  if (std::max(record.size_bytes, record.unpacked_bytes) > size_bytes_max)
    return Error{Code::full, text("record ", record.name, ": ", record.unpacked_bytes, " bytes")};
  if (record.unpacked_bytes > kUnpackedBytesAlways && record.unpacked_bytes / kUnpackedPerByte > record.size_bytes)
    return Error{Code::full,
                 text("record ", record.name, ": ", record.size_bytes, " bytes that unpack to ", record.unpacked_bytes,
                      ", which no known writer does: unpack the archive, and pack "
                      "it again without compression if it is yours")};
  PAWL_ASSIGN(std::string content, read_text(source, record.offset_bytes, record.size_bytes));
  if (record.deflated) {
    Result<std::string> unpacked = decode_deflate(content, record.unpacked_bytes);
    if (!unpacked) return std::move(unpacked).error().within(text("record ", record.name));
    content = std::move(*unpacked);
  }
  if (record.crc32 != 0 && crc32_more(0, content) != record.crc32)
    return Error{Code::corrupt, text("record ", record.name, ": its checksum differs")};
  return content;
}

Result<bool> checksum_agrees(ByteSource& source, const ZipRecord& record) {
  constexpr std::uint64_t kPieceBytes = 1 << 20;
  if (record.deflated) {
    PAWL_ASSIGN(const std::string packed, read_text(source, record.offset_bytes, record.size_bytes));
    Result<std::string> unpacked = decode_deflate(packed, record.unpacked_bytes);
    if (!unpacked) return std::move(unpacked).error().within(text("record ", record.name));
    return crc32_more(0, *unpacked) == record.crc32;
  }
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < record.size_bytes; done += kPieceBytes) {
    PAWL_ASSIGN(const std::string piece,
                read_text(source, record.offset_bytes + done, std::min(kPieceBytes, record.size_bytes - done)));
    crc = crc32_more(crc, piece);
  }
  return crc == record.crc32;
}

}  // namespace pawl::checkpoint
