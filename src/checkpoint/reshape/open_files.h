// OpenFiles: the files that the executor reads or makes, opened when needed, not too many at once.
//
// Thread-safe; an OpenFile stays open as long as somebody holds it. It reads and writes nothing: see
// range_reader.h and range_writer.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"
#include "env/fd.h"

namespace pawl::checkpoint {

class OpenFile {
 public:
  [[nodiscard]] static Result<std::shared_ptr<OpenFile>> open(const std::string& path, bool write, bool direct);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int plain() const { return plain_.get(); }
  // Past the page cache; below 0 where that isn't possible. See checkpoint/reshape/alignment.h.
  [[nodiscard]] int direct() const { return direct_refused_ ? -1 : direct_.get(); }
  void refuse_direct() { direct_refused_ = true; }
  // Whether at least half of the range is in the page cache, or nobody can say.
  [[nodiscard]] bool is_cached(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;

 private:
  OpenFile(std::string path, Fd plain, Fd direct)
      : path_(std::move(path)), plain_(std::move(plain)), direct_(std::move(direct)) {}
  std::string path_;
  Fd plain_;
  Fd direct_;
  std::atomic<bool> direct_refused_{false};
};

class OpenFiles {
 public:
  OpenFiles(std::vector<std::string> paths, bool write, bool direct)
      : paths_(std::move(paths)), write_(write), direct_(direct) {}
  [[nodiscard]] Result<std::shared_ptr<OpenFile>> get(std::uint32_t file);

 private:
  struct Entry {
    std::shared_ptr<OpenFile> file;
    std::list<std::uint32_t>::iterator place;
  };
  std::vector<std::string> paths_;
  bool write_;
  bool direct_;
  std::mutex mutex_;
  std::list<std::uint32_t> latest_;  // first: the last one asked for
  std::unordered_map<std::uint32_t, Entry> entries_;
};

// Makes the file at its full size, on reserved space where the file system can, and writes its head.
[[nodiscard]] Status make_target(const TargetFile& file);
// What a failed call says: its verb, the file, the offset, the cause; `full` where there is no room.
[[nodiscard]] Error disk_error(std::string_view verb, std::string_view path, std::uint64_t offset_bytes, int error);

}  // namespace pawl::checkpoint
