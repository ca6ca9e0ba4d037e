// ZipDirectory: which records a zip archive holds and where their bytes lie. For archives that torch writes.
//
// Strict: the end records close the file, the directory lies just before them, names are plain relative paths and
// differ, records do not overlap and lie before the directory, each local header agrees with the directory on the name.
// Zip64 is read. Nothing is written anywhere, whatever a name says; deflated records are unpacked in memory, and only
// where their packed bytes justify what the directory promises (checkpoint/reshape/stored_file.h).
// Checksums are verified only on request: some writers leave them out (then they are 0) or leave holes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {

struct ZipRecord {
  std::string name;
  std::uint64_t offset_bytes = 0;  // of its data, in the archive
  std::uint64_t size_bytes = 0;    // as they lie there
  std::uint64_t unpacked_bytes = 0;
  std::uint32_t crc32 = 0;  // of the unpacked bytes
  bool deflated = false;    // else stored: its bytes are its content
};

class ZipDirectory {
 public:
  // Reads the directory of the archive that `source` is, from its first byte to its last. Fails: `corrupt` with offset
  // and reason; `full` beyond 256 MiB of directory; `io`.
  [[nodiscard]] static Result<ZipDirectory> read(ByteSource& source);
  [[nodiscard]] const std::vector<ZipRecord>& records() const { return records_; }  // in the directory's order
  [[nodiscard]] const ZipRecord* find(std::string_view name) const;                 // null if there is none

 private:
  std::vector<ZipRecord> records_;  // without folders
  std::unordered_map<std::string, std::size_t> by_name_;
};

// The content of a record. Fails: `corrupt`, also if the record names a checksum other than 0 and it differs; `full`
// beyond `size_bytes_max`, or where few bytes unpack to very many.
[[nodiscard]] Result<std::string> read_record(ByteSource& source, const ZipRecord& record,
                                              std::uint64_t size_bytes_max);
// Whether a record's content has the checksum that the directory gives. Reads all of it: a stored one piece by piece.
[[nodiscard]] Result<bool> checksum_agrees(ByteSource& source, const ZipRecord& record);

}  // namespace pawl::checkpoint
