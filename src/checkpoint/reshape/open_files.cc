#include "checkpoint/reshape/open_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kOpenMax = 200;  // of one table; two descriptors each, and 1024 are a process's by default
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kLookMax = 16 << 20;  // of one mincore: a byte for each page

// cachestat(2), Linux 6.5: younger than our C library's headers.
struct CacheRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
struct CacheCounts {
  std::uint64_t cached = 0, dirty = 0, writeback = 0, evicted = 0, recently_evicted = 0;
};
constexpr long kCachestat = 451;

bool is_cached_by_mincore(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  const std::uint64_t begin = offset_bytes / kPage * kPage;
  const std::uint64_t size = std::min(size_bytes + (offset_bytes - begin), kLookMax);
  void* map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin));
  if (map == MAP_FAILED) return true;
  std::vector<unsigned char> pages((size + kPage - 1) / kPage);
  const bool known = ::mincore(map, size, pages.data()) == 0;
  ::munmap(map, size);
  const auto cached = std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
  return !known || 2 * static_cast<std::size_t>(cached) >= pages.size();
}

Status write_head(int fd, const TargetFile& file) {
  for (std::size_t done = 0; done < file.head.size();) {
    const ssize_t count = ::pwrite(fd, file.head.data() + done, file.head.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return disk_error("write", file.path, done, count < 0 ? errno : ENOSPC);
    done += static_cast<std::size_t>(count);
  }
  return {};
}

}  // namespace

Error disk_error(std::string_view verb, std::string_view path, std::uint64_t offset_bytes, int error) {
  Error out = system_error(text(verb, " ", path, " at ", offset_bytes), error);
  if (error == ENOSPC || error == EDQUOT) out.what += ": free some space there, or write elsewhere";
  if (error == EIO) out.what += ": the disk failed, the kernel's log says how";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == EMFILE || error == ENFILE || error == ENOMEM)
    out.code = Code::full;
  if (error == ENOENT) out.code = Code::not_found;
  if (error == EEXIST) out.code = Code::invalid;
  return out;
}

Result<std::shared_ptr<OpenFile>> OpenFile::open(const std::string& path, bool write, bool direct) {
  PAWL_TRY(check_no_address(path));
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return disk_error("open", path, 0, errno);
  if (!S_ISREG(found.st_mode)) return Error{Code::invalid, text("open ", path, ": not a regular file")};
  const int flags = O_CLOEXEC | (write ? O_RDWR : O_RDONLY);
  Fd plain(::open(path.c_str(), flags));
  if (!plain.valid()) return disk_error("open", path, 0, errno);
  Fd past_cache(direct ? ::open(path.c_str(), flags | O_DIRECT) : -1);
  return std::shared_ptr<OpenFile>(new OpenFile(path, std::move(plain), std::move(past_cache), nullptr));
}

Result<std::shared_ptr<OpenFile>> OpenFile::open_address(const std::string& path, const std::atomic<bool>* cancel) {
  PAWL_ASSIGN(std::unique_ptr<File> file, real_files().open(path, {.shared = true, .cancel = cancel}));
  return std::shared_ptr<OpenFile>(new OpenFile(path, Fd(), Fd(), std::move(file)));
}

bool OpenFile::is_cached(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
  CacheRange range{offset_bytes, size_bytes};
  CacheCounts counts;
  if (::syscall(kCachestat, plain_.get(), &range, &counts, 0) == 0) return 2 * counts.cached * kPage >= size_bytes;
  return errno != ENOSYS || is_cached_by_mincore(plain_.get(), offset_bytes, size_bytes);
}

bool OpenFiles::has_addresses() const {
  return std::ranges::any_of(paths_, [](const std::string& path) { return is_address(path); });
}

// Without the lock while it is opened: others need other ones meanwhile. The first of two counts.
Result<std::shared_ptr<OpenFile>> OpenFiles::get_address(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = addresses_.find(path); found != addresses_.end()) return found->second;
  }
  PAWL_ASSIGN(std::shared_ptr<OpenFile> opened, OpenFile::open_address(path, cancel_));
  const std::lock_guard lock(mutex_);
  return addresses_.try_emplace(path, std::move(opened)).first->second;
}

Result<std::shared_ptr<OpenFile>> OpenFiles::get(std::uint32_t file) {
  if (!write_ && is_address(paths_[file])) return get_address(paths_[file]);
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(file); found != entries_.end()) {
    latest_.splice(latest_.begin(), latest_, found->second.place);
    return found->second.file;
  }
  PAWL_ASSIGN(std::shared_ptr<OpenFile> opened, OpenFile::open(paths_[file], write_, direct_));
  if (entries_.size() >= kOpenMax) {
    entries_.erase(latest_.back());
    latest_.pop_back();
  }
  latest_.push_front(file);
  entries_[file] = {opened, latest_.begin()};
  return opened;
}

Status make_target(const TargetFile& file) {
  PAWL_TRY(check_no_address(file.path));
  if (file.head.size() > file.size_bytes)
    return Error{Code::invalid, text(file.path, ": its head is longer than the ", file.size_bytes, " bytes of it")};
  const Fd fd(::open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return disk_error("make", file.path, 0, errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(file.size_bytes)) != 0)
    return disk_error("make", file.path, file.size_bytes, errno);
  if (file.size_bytes != 0 && ::fallocate(fd.get(), 0, 0, static_cast<off_t>(file.size_bytes)) != 0 &&
      errno != EOPNOTSUPP && errno != ENOSYS)
    return disk_error("make room for", file.path, file.size_bytes, errno);
  return write_head(fd.get(), file);
}

}  // namespace pawl::checkpoint
