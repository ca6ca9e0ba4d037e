#include "env/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "base/text.h"
#include "env/files.h"

namespace pawl {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// The number after `label` in `content`, in bytes where it is given in kB; kUnlimited where it is not there.
std::uint64_t field_bytes(const std::string& content, std::string_view label) {
  const std::size_t at = content.find(label);
  if (at == std::string::npos) return kUnlimited;
  const std::size_t first = content.find_first_of("0123456789", at + label.size());
  if (first == std::string::npos) return kUnlimited;
  const std::size_t last = content.find_first_not_of("0123456789", first);
  std::uint64_t kilobytes = 0;
  if (!parse_number(std::string_view(content).substr(first, last - first), kilobytes)) return kUnlimited;
  return kilobytes * 1024;
}

std::uint64_t number_in(const std::string& path) {
  const Result<std::string> content = read_file(path);
  if (!content) return kUnlimited;
  std::uint64_t number = kUnlimited;
  const bool ok = parse_number(std::string_view(*content).substr(0, content->find('\n')), number);
  return ok ? number : kUnlimited;  // "max" is no number
}

// What the tightest of the control groups (version 2) above this process leaves it.
std::uint64_t control_group_left_bytes() {
  const Result<std::string> own = read_file("/proc/self/cgroup");
  if (!own) return kUnlimited;
  const std::size_t at = own->find("0::/");
  if (at == std::string::npos) return kUnlimited;
  std::string group = own->substr(at + 3, own->find('\n', at) - at - 3);
  std::uint64_t left = kUnlimited;
  for (;;) {
    const std::string directory = text("/sys/fs/cgroup", group == "/" ? "" : group);
    const std::uint64_t limit = number_in(directory + "/memory.max");
    const std::uint64_t used = number_in(directory + "/memory.current");
    if (limit != kUnlimited && used != kUnlimited) left = std::min(left, limit > used ? limit - used : 0);
    if (group == "/") return left;
    group = parent_path(group);
  }
}

Error too_little_memory(const std::string& name, std::uint64_t size_bytes) {
  return Error{Code::full, text("segment ", name, ": needs ", (size_bytes + (1 << 20) - 1) >> 20, " MiB of memory, ",
                                available_memory_bytes() >> 20,
                                " MiB are available: free memory, raise the memory limit of the container, or protect "
                                "less state per node")};
}

// In pieces: an interrupted fallocate gives back all that it had, so a large one might never end under a timer.
Status allocate_pages(int fd, const std::string& name, std::uint64_t size_bytes) {
  const std::uint64_t piece_bytes = std::uint64_t{256} << 20;
  for (std::uint64_t offset = 0; offset < size_bytes;) {
    const std::uint64_t length = std::min(piece_bytes, size_bytes - offset);
    if (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(length)) == 0) {
      offset += length;
    } else if (errno == ENOSPC || errno == ENOMEM) {
      return too_little_memory(name, size_bytes);
    } else if (errno != EINTR) {
      return system_error(text("segment ", name, ": allocate"), errno);
    }
  }
  return {};
}

}  // namespace

std::uint64_t available_memory_bytes() {
  const Result<std::string> machine = read_file("/proc/meminfo");
  const std::uint64_t free_bytes = machine ? field_bytes(*machine, "MemAvailable:") : kUnlimited;
  return std::min(free_bytes, control_group_left_bytes());
}

Result<Fd> create_segment(const std::string& name, std::uint64_t size_bytes) {
  if (size_bytes == 0) return Error{Code::invalid, text("segment ", name, ": size 0")};
  // Asked first, because on many machines the kernel would rather kill someone than refuse.
  if (size_bytes > available_memory_bytes()) return too_little_memory(name, size_bytes);
  Fd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return system_error(text("segment ", name, ": create"), errno);
  if (ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    if (errno == ENOMEM || errno == EFBIG) return too_little_memory(name, size_bytes);
    return system_error(text("segment ", name, ": size it"), errno);
  }
  PAWL_TRY(allocate_pages(fd.get(), name, size_bytes));
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error(text("segment ", name, ": seal its size"), errno);
  return fd;
}

Result<std::uint64_t> segment_size_bytes(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Error{Code::invalid, text("descriptor ", fd, ": not a segment of sealed size")};
  struct stat found {};
  if (fstat(fd, &found) != 0) return system_error("segment: size", errno);
  return static_cast<std::uint64_t>(found.st_size);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this == &other) return *this;
  reset();
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  return *this;
}

void Mapping::reset() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
}

Result<Mapping> map_segment(int fd, std::uint64_t size_bytes, MapOptions options) {
  PAWL_ASSIGN(const std::uint64_t segment_bytes, segment_size_bytes(fd));
  if (size_bytes == 0 || size_bytes > segment_bytes)
    return Error{Code::invalid, text("map ", size_bytes, " bytes of a segment of ", segment_bytes)};
  const int protection = options.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = mmap(nullptr, size_bytes, protection, MAP_SHARED | (options.populate ? MAP_POPULATE : 0), fd, 0);
  if (data == MAP_FAILED) {
    const int cause = errno;
    Error error = system_error(text("map ", size_bytes, " bytes"), cause);
    if (cause == ENOMEM) error.code = Code::full;
    return error;
  }
  madvise(data, size_bytes, MADV_DONTDUMP);
  madvise(data, size_bytes, MADV_HUGEPAGE);  // best effort: many systems don't allow it for shared memory
  return Mapping(static_cast<std::byte*>(data), size_bytes);
}

namespace {

class RealSharedMemory final : public SharedMemory {
 public:
  Result<Fd> create(const std::string& name, std::uint64_t size_bytes) override {
    return create_segment(name, size_bytes);
  }
  Result<std::uint64_t> size_bytes(int fd) override { return segment_size_bytes(fd); }
  Result<Mapping> map(int fd, std::uint64_t size_bytes, MapOptions options) override {
    return map_segment(fd, size_bytes, options);
  }
};

}  // namespace

SharedMemory& real_shared_memory() {
  static RealSharedMemory* memory = new RealSharedMemory;  // never destroyed, as the rest of the environment
  return *memory;
}

}  // namespace pawl
