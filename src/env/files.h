// Files: what pawl keeps on a disk, behind an interface in which tests make disks fail.
//
// Nothing here caches. A write is on the disk after File::sync; a name is, after Files::sync_directory.
// Errors: `not_found`; `full` (no space, quota, descriptors); `invalid` (a path that is refused); `io` for the rest.
// Every error names the path. Files and the free functions are thread-safe; a File is for one thread at a time.
// real_files() also reads addresses, such as s3://bucket/key, of the schemes that the program has a reader for.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pawl {

class File {
 public:
  virtual ~File() = default;  // closes; what was not synced may be lost, and no error is told
  // All of the bytes, or an error after some of them.
  [[nodiscard]] virtual Status write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) = 0;
  // Fills the buffer up to the end of the file; returns how many bytes it read.
  [[nodiscard]] virtual Result<std::size_t> read_at(std::uint64_t offset_bytes, std::span<std::byte> buffer) = 0;
  // Begins to fetch these bytes, so that they are there when they are read; from the first such call on nothing is
  // fetched that nobody asked for. Advice: nothing fails.
  virtual void will_need(std::uint64_t /*offset_bytes*/, std::uint64_t /*size_bytes*/) {}
  // After an error here the bytes count as lost: syncing again proves nothing.
  [[nodiscard]] virtual Status sync() = 0;
  [[nodiscard]] virtual Status truncate(std::uint64_t size_bytes) = 0;
  // Keeps room on the disk for these bytes, so that writing them finds it even when the disk is full; the file's size
  // stays. Where a file system can't, `io`, and nothing has changed.
  [[nodiscard]] virtual Status reserve(std::uint64_t /*offset_bytes*/, std::uint64_t /*size_bytes*/) { return {}; }
  [[nodiscard]] virtual Result<std::uint64_t> size() = 0;
  [[nodiscard]] virtual Status close() = 0;  // once; no other call after it
};

struct OpenOptions {
  bool write = false;      // else for reading only
  bool create = false;     // with mode 0600, if it is not there
  bool truncate = false;   // to nothing
  bool exclusive = false;  // fails `invalid` if it is there
  // Several threads may call read_at at once, and each call fetches what it asks for and no more. Of a file on a disk both
  // hold anyway.
  bool shared = false;
  const std::atomic<bool>* cancel = nullptr;  // ends a wait for another machine, as `cancelled`
};

class Files {
 public:
  virtual ~Files() = default;
  [[nodiscard]] virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) = 0;
  [[nodiscard]] virtual Status rename(const std::string& from, const std::string& to) = 0;        // replaces `to`
  [[nodiscard]] virtual Status remove(const std::string& path) = 0;                               // a file
  [[nodiscard]] virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;  // names, sorted
  [[nodiscard]] virtual Status sync_directory(const std::string& directory) = 0;
  [[nodiscard]] virtual bool exists(const std::string& path) = 0;  // a file or a directory
};

// Of disks, and of addresses: an address whose scheme nobody reads is `invalid`.
[[nodiscard]] Files& real_files();
[[nodiscard]] inline Result<std::unique_ptr<File>> open_file(const std::string& path, OpenOptions options) {
  return real_files().open(path, options);
}

[[nodiscard]] Result<std::uint64_t> file_size(const std::string& path, Files& files = real_files());

// All of the file. Fails also: `invalid` if it is longer than `size_bytes_max`.
[[nodiscard]] Result<std::string> read_file(const std::string& path, std::uint64_t size_bytes_max = 64 << 20,
                                            Files& files = real_files());
// Afterwards `path` holds `content`, on the disk too. On any error, or a crash at any instant, it holds what it held.
[[nodiscard]] Status write_file_atomically(const std::string& path, std::string_view content,
                                           Files& files = real_files());

// --- Addresses.
[[nodiscard]] bool is_address(std::string_view path);  // SCHEME://...
// From now on real_files() hands addresses of this scheme ("s3") to `files`, which live as long as the program. Again with
// the same scheme: the last one counts. Thread-safe.
void read_addresses_by(std::string scheme, Files& files);
// Refuses an address where only a folder or a file of this machine will do: `invalid`, with what to do instead.
[[nodiscard]] Status check_no_address(std::string_view path);

// --- Directories.
[[nodiscard]] bool path_exists(const std::string& path, Files& files = real_files());
// Makes `path` and what is missing above it, mode 0700.
[[nodiscard]] Status make_directories(const std::string& path);
// As make_directories, and refuses (`invalid`) one that is a link, is owned by someone else, or that others may enter.
[[nodiscard]] Status make_private_directory(const std::string& path);
// Removes `path` and all below it. It must lie strictly inside `root` (`invalid` otherwise); links are removed and
// never followed. One that is not there is no error.
[[nodiscard]] Status remove_tree(const std::string& root, const std::string& path);

// --- Paths are text: no look at the disk.
[[nodiscard]] std::string join_path(std::string_view directory,
                                    std::string_view name);    // an absolute name or address wins
[[nodiscard]] std::string parent_path(std::string_view path);  // "." for a bare name; an address keeps its host
[[nodiscard]] std::string last_name(std::string_view path);

}  // namespace pawl
