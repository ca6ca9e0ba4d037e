// OpenFiles: the files that the executor reads or makes, opened when needed, not too many at once.
//
// Thread-safe; an OpenFile stays open as long as somebody holds it. It reads and writes nothing: see
// range_reader.h and range_writer.h. An address (env/files.h) has no descriptor, is opened once, and then is one version of
// what lies there.
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
#include "env/files.h"

namespace pawl::checkpoint {

class OpenFile {
 public:
  [[nodiscard]] static Result<std::shared_ptr<OpenFile>> open(const std::string& path, bool write, bool direct);
  // An address, to be read. `cancel` outlives it.
  [[nodiscard]] static Result<std::shared_ptr<OpenFile>> open_address(const std::string& path,
                                                                      const std::atomic<bool>* cancel);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int plain() const { return plain_.get(); }
  [[nodiscard]] File* address() const { return address_.get(); }  // may be read by several at once; null: a file here
  // Past the page cache; below 0 where that isn't possible. See checkpoint/reshape/alignment.h.
  [[nodiscard]] int direct() const { return direct_refused_ ? -1 : direct_.get(); }
  void refuse_direct() { direct_refused_ = true; }
  // Whether at least half of the range is in the page cache, or nobody can say.
  [[nodiscard]] bool is_cached(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;

 private:
  OpenFile(std::string path, Fd plain, Fd direct, std::unique_ptr<File> address)
      : path_(std::move(path)), plain_(std::move(plain)), direct_(std::move(direct)), address_(std::move(address)) {}
  std::string path_;
  Fd plain_;
  Fd direct_;
  std::unique_ptr<File> address_;
  std::atomic<bool> direct_refused_{false};
};

class OpenFiles {
 public:
  OpenFiles(std::vector<std::string> paths, bool write, bool direct, const std::atomic<bool>* cancel)
      : paths_(std::move(paths)), write_(write), direct_(direct), cancel_(cancel) {}
  [[nodiscard]] Result<std::shared_ptr<OpenFile>> get(std::uint32_t file);
  [[nodiscard]] bool has_addresses() const;

 private:
  [[nodiscard]] Result<std::shared_ptr<OpenFile>> get_address(const std::string& path);
  struct Entry {
    std::shared_ptr<OpenFile> file;
    std::list<std::uint32_t>::iterator place;
  };
  std::vector<std::string> paths_;
  bool write_;
  bool direct_;
  const std::atomic<bool>* cancel_;
  std::mutex mutex_;
  std::list<std::uint32_t> latest_;  // first: the last one asked for
  std::unordered_map<std::uint32_t, Entry> entries_;
  std::unordered_map<std::string, std::shared_ptr<OpenFile>> addresses_;  // all that were asked for
};

// Makes the file at its full size, on reserved space where the file system can, and writes its head.
[[nodiscard]] Status make_target(const TargetFile& file);
// What a failed call says: its verb, the file, the offset, the cause; `full` where there is no room.
[[nodiscard]] Error disk_error(std::string_view verb, std::string_view path, std::uint64_t offset_bytes, int error);

}  // namespace pawl::checkpoint
