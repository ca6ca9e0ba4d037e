#include "env/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/text.h"
#include "env/fd.h"
#include "env/huge_pages.h"

namespace pawl {
namespace {

Code code_of(int errno_value) {
  switch (errno_value) {
    case ENOENT:
      return Code::not_found;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return Code::full;
    case EEXIST:
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return Code::invalid;
    default:
      return Code::io;
  }
}

Error file_error(std::string_view verb, std::string_view path, int errno_value) {
  Error error = system_error(text(verb, " ", path), errno_value);
  error.code = code_of(errno_value);
  return error;
}

class RealFile final : public File {
 public:
  RealFile(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Status write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return file_error("write", path_, written < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      offset_bytes += static_cast<std::uint64_t>(written);
    }
    return {};
  }

  Result<std::size_t> read_at(std::uint64_t offset_bytes, std::span<std::byte> buffer) override {
    std::size_t total = 0;
    while (total < buffer.size()) {
      const ssize_t count =
          ::pread(fd_.get(), buffer.data() + total, buffer.size() - total, static_cast<off_t>(offset_bytes + total));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return file_error("read", path_, errno);
      if (count == 0) break;
      total += static_cast<std::size_t>(count);
    }
    return total;
  }

  void will_need(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    // The kernel takes such reads for the begin of a whole file's, and would fetch megabytes after each.
    if (!std::exchange(is_told_, true)) (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM);
    (void)::posix_fadvise(fd_.get(), static_cast<off_t>(offset_bytes), static_cast<off_t>(size_bytes),
                          POSIX_FADV_WILLNEED);
  }

  Status sync() override {
    if (::fsync(fd_.get()) != 0) return file_error("sync", path_, errno);
    return {};
  }

  Status reserve(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    if (::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_bytes), static_cast<off_t>(size_bytes)) !=
        0)
      return file_error("reserve room in", path_, errno);
    return {};
  }

  Status truncate(std::uint64_t size_bytes) override {
    if (::ftruncate(fd_.get(), static_cast<off_t>(size_bytes)) != 0) return file_error("truncate", path_, errno);
    return {};
  }

  Result<std::uint64_t> size() override {
    struct stat found {};
    if (::fstat(fd_.get(), &found) != 0) return file_error("size of", path_, errno);
    return static_cast<std::uint64_t>(found.st_size);
  }

  Status close() override {
    if (::close(fd_.release()) != 0 && errno != EINTR) return file_error("close", path_, errno);
    return {};
  }

 private:
  Fd fd_;
  std::string path_;
  bool is_told_ = false;  // what will be needed
};

class DiskFiles final : public Files {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    int flags = O_CLOEXEC | (options.write ? O_RDWR : O_RDONLY);
    if (options.create) flags |= O_CREAT;
    if (options.truncate) flags |= O_TRUNC;
    if (options.exclusive) flags |= O_EXCL;
    Fd fd(::open(path.c_str(), flags, 0600));
    if (!fd.valid()) return file_error("open", path, errno);
    return std::unique_ptr<File>(std::make_unique<RealFile>(std::move(fd), path));
  }

  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return file_error(text("rename ", from, " to"), to, errno);
    return {};
  }

  Status remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return file_error("remove", path, errno);
    return {};
  }

  Result<std::vector<std::string>> list(const std::string& directory) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
    if (!stream) return file_error("list", directory, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(stream.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) return file_error("list", directory, errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status sync_directory(const std::string& directory) override {
    Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid() || ::fsync(fd.get()) != 0) return file_error("sync", directory, errno);
    return {};
  }

  bool exists(const std::string& path) override { return ::access(path.c_str(), F_OK) == 0; }
};

class AddressReaders {
 public:
  void set(std::string scheme, Files& files) {
    const std::lock_guard lock(mutex_);
    readers_[std::move(scheme)] = &files;
  }
  Files* find(std::string_view scheme) {
    const std::lock_guard lock(mutex_);
    const auto found = readers_.find(scheme);
    return found == readers_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Files*, std::less<>> readers_;
};

AddressReaders& address_readers() {
  static AddressReaders readers;
  return readers;
}

// Of the path's "s3://"; 0: it is no address.
std::size_t scheme_bytes(std::string_view path) {
  const std::size_t end = path.find("://");
  if (end == path.npos || end == 0) return 0;
  const auto is_plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return std::all_of(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(end), is_plain) ? end + 3 : 0;
}

// Hands each path to who reads it.
class RealFiles final : public Files {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    PAWL_ASSIGN(Files* const files, of(path));
    return files->open(path, options);
  }
  Status rename(const std::string& from, const std::string& to) override {
    PAWL_TRY(check_no_address(to));
    PAWL_ASSIGN(Files* const files, of(from));
    return files->rename(from, to);
  }
  Status remove(const std::string& path) override {
    PAWL_ASSIGN(Files* const files, of(path));
    return files->remove(path);
  }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    PAWL_ASSIGN(Files* const files, of(directory));
    return files->list(directory);
  }
  Status sync_directory(const std::string& directory) override {
    PAWL_ASSIGN(Files* const files, of(directory));
    return files->sync_directory(directory);
  }
  bool exists(const std::string& path) override {
    const Result<Files*> files = of(path);
    return files && (*files)->exists(path);
  }

 private:
  Result<Files*> of(std::string_view path) {
    const std::size_t scheme = scheme_bytes(path);
    if (scheme == 0) return &disk_;
    if (Files* files = address_readers().find(path.substr(0, scheme - 3)); files != nullptr) return files;
    return Error{Code::invalid, text(path, ": addresses of ", path.substr(0, scheme),
                                     " are not read here: give a folder or a file, or an address of s3:// to the "
                                     "command or to pawl.torch.load")};
  }

  DiskFiles disk_;
};

Status write_and_sync(Files& files, const std::string& path, std::string_view content) {
  PAWL_ASSIGN(std::unique_ptr<File> file, files.open(path, {.write = true, .create = true, .truncate = true}));
  PAWL_TRY(file->write_at(0, std::as_bytes(std::span(content))));
  PAWL_TRY(file->sync());
  return file->close();
}

Result<std::string> real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> resolved(::realpath(path.c_str(), nullptr), ::free);
  if (!resolved) return file_error("resolve", path, errno);
  return std::string(resolved.get());
}

// Removes `name` in the open `directory`, and what is below it. Works on descriptors, so nobody can swap a link in.
Status remove_entry(int directory, const std::string& name, const std::string& path) {
  if (::unlinkat(directory, name.c_str(), 0) == 0 || errno == ENOENT) return {};
  if (errno != EISDIR && errno != EPERM) return file_error("remove", path, errno);
  const int fd = ::openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return file_error("remove", path, errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd), ::closedir);
  if (!stream) {
    ::close(fd);
    return file_error("remove", path, ENOMEM);
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view entry_name = entry->d_name;
    if (entry_name != "." && entry_name != "..") names.emplace_back(entry_name);
  }
  for (const std::string& below : names) PAWL_TRY(remove_entry(fd, below, join_path(path, below)));
  if (::unlinkat(directory, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
    return file_error("remove", path, errno);
  return {};
}

std::string_view without_trailing_slashes(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

}  // namespace

bool is_address(std::string_view path) {
  return scheme_bytes(path) != 0;
}

void read_addresses_by(std::string scheme, Files& files) {
  address_readers().set(std::move(scheme), files);
}

Status check_no_address(std::string_view path) {
  if (!is_address(path)) return {};
  return Error{Code::invalid, text(path,
                                   ": pawl reads addresses and doesn't write to them: write to a folder and copy it "
                                   "there, for s3:// with `aws s3 cp --recursive`")};
}

Files& real_files() {
  static RealFiles files;
  return files;
}

Result<std::uint64_t> file_size(const std::string& path, Files& files) {
  PAWL_ASSIGN(const std::unique_ptr<File> file, files.open(path, {}));
  return file->size();
}

Result<std::string> read_file(const std::string& path, std::uint64_t size_bytes_max, Files& files) {
  PAWL_ASSIGN(std::unique_ptr<File> file, files.open(path, {}));
  // Files in /proc say that they are empty: what counts is what can be read.
  std::string content;
  std::size_t chunk_bytes = 64 << 10;
  if (const Result<std::uint64_t> size = file->size(); size && *size > chunk_bytes && *size <= size_bytes_max) {
    chunk_bytes = 512 << 10;
    content.reserve(*size + chunk_bytes);
    prefer_huge_pages(content.data(), content.capacity());
  }
  for (;;) {
    const std::size_t before = content.size();
    content.resize(before + chunk_bytes);
    PAWL_ASSIGN(const std::size_t count,
                file->read_at(before, std::as_writable_bytes(std::span(content).subspan(before))));
    content.resize(before + count);
    if (content.size() > size_bytes_max)
      return Error{Code::invalid, text("read ", path, ": longer than the ", size_bytes_max, " bytes expected at most")};
    if (count < chunk_bytes) return content;
  }
}

Status write_file_atomically(const std::string& path, std::string_view content, Files& files) {
  static std::atomic<std::uint64_t> counter{0};
  const std::string temporary = text(path, ".", ::getpid(), ".", counter.fetch_add(1), ".tmp");
  Status written = write_and_sync(files, temporary, content);
  if (written) written = files.rename(temporary, path);
  if (!written) {
    (void)files.remove(temporary);  // best effort: the error that counts is the first
    return written;
  }
  return files.sync_directory(parent_path(path));
}

bool path_exists(const std::string& path, Files& files) {
  return files.exists(path);
}

Status make_directories(const std::string& path) {
  PAWL_TRY(check_no_address(path));
  if (::mkdir(path.c_str(), 0700) == 0) return {};
  if (errno == ENOENT) {
    const std::string parent = parent_path(path);
    if (parent == path) return file_error("make directory", path, ENOENT);
    PAWL_TRY(make_directories(parent));
    if (::mkdir(path.c_str(), 0700) == 0) return {};
  }
  if (errno != EEXIST) return file_error("make directory", path, errno);
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return file_error("make directory", path, errno);
  if (!S_ISDIR(found.st_mode)) return file_error("make directory", path, ENOTDIR);
  return {};
}

Status make_private_directory(const std::string& path) {
  PAWL_TRY(make_directories(path));
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return file_error("directory", path, errno);
  if (!S_ISDIR(found.st_mode)) return Error{Code::invalid, text("directory ", path, ": is a link; name its target")};
  if (found.st_uid != ::geteuid())
    return Error{Code::invalid, text("directory ", path, ": belongs to user ", found.st_uid, " and not to user ",
                                     ::geteuid(), "; name another directory")};
  if ((found.st_mode & 077) != 0)
    return Error{Code::invalid, text("directory ", path, ": others may enter it; run chmod 700 on it")};
  return {};
}

Status remove_tree(const std::string& root, const std::string& path) {
  PAWL_TRY(check_no_address(path));
  const std::string name = last_name(path);
  if (name.empty() || name == "." || name == "..")
    return Error{Code::invalid, text("remove ", path, ": not a plain name")};
  if (!path_exists(parent_path(path))) return {};
  PAWL_ASSIGN(const std::string real_root, real_path(root));
  PAWL_ASSIGN(const std::string real_parent, real_path(parent_path(path)));
  const bool inside = real_parent == real_root || real_parent.starts_with(real_root == "/" ? "/" : real_root + "/");
  if (!inside) return Error{Code::invalid, text("remove ", path, ": does not lie inside ", root)};
  Fd parent(::open(real_parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent.valid()) return file_error("remove", path, errno);
  return remove_entry(parent.get(), name, path);
}

std::string join_path(std::string_view directory, std::string_view name) {
  if (directory.empty() || name.starts_with('/') || is_address(name)) return std::string(name);
  if (name.empty()) return std::string(directory);
  return directory.ends_with('/') ? text(directory, name) : text(directory, '/', name);
}

std::string parent_path(std::string_view path) {
  path = without_trailing_slashes(path);
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  if (slash < scheme_bytes(path)) return std::string(path);
  return std::string(slash == 0 ? "/" : without_trailing_slashes(path.substr(0, slash)));
}

std::string last_name(std::string_view path) {
  path = without_trailing_slashes(path);
  const std::size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

}  // namespace pawl
