// Wal: the write-ahead log of the embedded control server. One file, appended to, replaced as a whole now and then.
//
// What append() accepted is found by every later open(), in order, each payload once, byte for byte.
// A frame is appended only after the one before it was synced, so at most the last frame can be torn by a crash; that
// one was never acknowledged and is cut off. Anything else that does not verify is `corrupt` and refused, by file and
// offset: a log that lost its middle must not be taken for a shorter one.
// After any failed write or sync the log is closed for good: the pages' fate is unknown, only a new open() can tell. Room
// for megabytes is kept ahead, so that a disk that others fill does not close it.
// Not thread-safe; one process at a time (the server holds the data directory's lock). Knows nothing of the payloads.
//
// Frame, little-endian: magic u32, length u32, sequence u64 (1, 2, ... in each file), CRC32C of the payload u32,
// CRC32C of the 20 bytes before u32, payload.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "env/files.h"

namespace pawl::job {

struct WalOptions {
  std::string directory;   // exists, and is ours alone
  bool fsync = true;       // false: a crash of the machine (not of the process) may lose acknowledged writes
  Files* files = nullptr;  // borrowed for the log's life; null: the real ones
};

inline constexpr std::size_t kWalHeaderBytes = 24;
inline constexpr std::size_t kWalPayloadBytesMax = std::size_t{1} << 30;

class Wal {
 public:
  using Replay = std::function<Status(std::string_view payload)>;

  // Reads the log through `replay`, cuts off a torn tail, and is ready to append.
  // Fails: `corrupt` (see above, or what `replay` says, with file and offset), `io`.
  static Result<std::unique_ptr<Wal>> open(WalOptions options, const Replay& replay);
  Wal(const Wal&) = delete;
  Wal& operator=(const Wal&) = delete;

  // There was no log yet: replace() must come before the first append().
  [[nodiscard]] bool is_new() const { return file_ == nullptr && failed_.empty(); }

  // On success the payload (1 byte .. 1 GiB) is synced. Fails: `invalid` for its size, `full` (no space), `io`.
  Status append(std::string_view payload);

  // The log becomes these payloads and nothing else, all or not at all, whatever dies meanwhile. Fails: `full` where there
  // is no room for a second log: the first is as before, and goes on.
  Status replace(const std::vector<std::string>& payloads);

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::uint64_t torn_bytes() const { return torn_bytes_; }  // cut off by open()
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit Wal(WalOptions options);
  Result<std::string> read_log();
  Status write_frame(File& file, std::uint64_t offset_bytes, std::uint64_t sequence, std::string_view payload);
  Error give_up(Error error);
  void keep_room();

  WalOptions options_;
  Files* files_;
  std::string path_;
  std::string failed_;  // why nothing more is accepted
  std::unique_ptr<File> file_;
  std::uint64_t sequence_ = 0;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t reserved_bytes_ = 0;  // of the file, from its begin
  std::uint64_t torn_bytes_ = 0;
};

}  // namespace pawl::job
