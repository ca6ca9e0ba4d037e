// Stored checksums: those that a checkpoint's own format has, and their proof: the CRC32s of torch.save's zip archives,
// the CRC32Cs of our own store's headers and pieces.
//
// Also of those inside DCP's files (each item is an archive of its own) and behind their compression. A checksum of 0
// was left out by the writer, and proves nothing. Legacy streams and safetensors have none.
// Lists are equal on all machines that see equal files. Reads directories, metadata and, for a proof, all that has a
// checksum. What is read anyway proves itself: checkpoint/formats/read_proof.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/range_checksums.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

// Of bytes [begin, end) of a file.
struct StoredChecksum {
  enum class Form : std::uint8_t {
    plain,    // of these bytes
    deflate,  // of what they unpack to
    zstd,     // they unpack to an archive, whose records have checksums
  };
  std::uint32_t path = 0;  // index in StoredChecksums::paths
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  Form form = Form::plain;
  std::uint32_t value = 0;           // not of zstd
  std::uint64_t unpacked_bytes = 0;  // of deflate; of zstd the most that it may be
  std::string name;                  // of what lies there: "item KEY: record NAME"
};

struct StoredChecksums {
  ChecksumKind kind = ChecksumKind::crc32;
  std::vector<std::string> paths;
  std::vector<StoredChecksum> all;      // in the order of the paths and places
  std::uint64_t unproven_records = 0;   // whose writer left their checksum out
  std::uint64_t unproven_files = 0;     // with such records, or without any checksum
  std::vector<std::string> wrong = {};  // sentences: what is damaged, and is not listed
};

// Those of the bytes that the view's tensors lie in; of a record that only a part is wanted of, too. What lies beside
// them is small (versions, DCP's objects, our store's headers), and is proven at once: damage is in `wrong`. Fails:
// `io`, and as the metadata of DCP and of our store do.
[[nodiscard]] Result<StoredChecksums> checksums_of(const CheckpointView& view);
// The numbers in `all` of those that the bytes of these tensors of the view have, ascending. Of several copies only one
// counts: the trusted one, or else the first.
[[nodiscard]] std::vector<std::size_t> checksums_meeting(const StoredChecksums& checksums, const CheckpointView& view,
                                                         const std::vector<std::uint32_t>& tensors,
                                                         std::optional<std::uint32_t> trusted_copy = {});

// For those who prove what is read: the numbers of the plain ones, none of which lies across another; the range of one,
// its file being the path's number; and the paths' numbers of a view's files, kNoPath where nothing is listed of one.
[[nodiscard]] std::vector<std::size_t> plain_checksums(const StoredChecksums& checksums);
[[nodiscard]] inline FileRange range_of(const StoredChecksum& checksum) {
  return {checksum.path, checksum.begin, checksum.end};
}
inline constexpr std::uint32_t kNoPath = ~std::uint32_t{0};
[[nodiscard]] std::vector<std::uint32_t> paths_of_files(const StoredChecksums& checksums,
                                                        std::span<const StoredFile> files);

struct ChecksumReport {
  std::uint64_t records = 0;  // that have a checksum, and agree with it
  std::uint64_t bytes = 0;    // of those
  std::uint64_t unproven_records = 0;
  std::uint64_t unproven_files = 0;  // without any checksum at all
  std::vector<std::string> wrong;    // sentences: file, record
};

struct ChecksumProofOptions {
  std::uint32_t threads = 0;  // 0: all cores, four at most: a disk is no faster with more
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(std::uint64_t bytes)> progress = {};  // read so far; one call at a time
};

// Reads what these have checksums of. Fails: `cancelled`. What is damaged or can't be read is in the report.
[[nodiscard]] Result<ChecksumReport> prove_checksums(const StoredChecksums& checksums,
                                                     const std::vector<std::size_t>& chosen,
                                                     const ChecksumProofOptions& options = {});
// All of the files that the view names, whatever lies there. Fails: `cancelled`; `io`.
[[nodiscard]] Result<ChecksumReport> prove_all_checksums(const CheckpointView& view,
                                                         const ChecksumProofOptions& options = {});

// "FILE: record NAME: 4096 bytes do not have the checksum that the archive gives"
[[nodiscard]] std::string sentence_of_damage(const StoredChecksums& checksums, std::size_t number);

}  // namespace pawl::checkpoint
