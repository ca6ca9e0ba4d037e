#include "env/shared_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

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

// Pages of files in a control group's memory.stat: they count as used there, but go when others are needed.
std::uint64_t file_pages_bytes(const std::string& stat) {
  std::uint64_t sum = 0;
  for (const std::string_view label : {"\ninactive_file ", "\nactive_file "}) {
    const std::size_t at = stat.find(label);
    std::uint64_t bytes = 0;
    if (at == std::string::npos) continue;
    const std::size_t first = at + label.size();
    if (parse_number(std::string_view(stat).substr(first, stat.find('\n', first) - first), bytes)) sum += bytes;
  }
  return sum;
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
    std::uint64_t used = number_in(directory + "/memory.current");
    if (limit != kUnlimited && used != kUnlimited) {
      used -= std::min(used, file_pages_bytes(read_file(directory + "/memory.stat").value_or("")));
      left = std::min(left, limit > used ? limit - used : 0);
    }
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

// No call of the kernel is given more than this at once: it holds locks that mmap waits for, and can't be interrupted.
constexpr std::uint64_t kPieceBytes = std::uint64_t{16} << 20;

// What populates one mapping. Linux 5.14 and later; EINVAL before.
struct Populating {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  std::atomic<std::uint64_t> next{0};  // which byte the next piece begins at
  std::atomic<int> cause{0};           // errno of a piece that failed
};

void* populate_pieces(void* argument) {
  Populating& work = *static_cast<Populating*>(argument);
  while (work.cause.load() == 0) {
    const std::uint64_t offset = work.next.fetch_add(kPieceBytes);
    if (offset >= work.size_bytes) break;
    const std::uint64_t length = std::min(kPieceBytes, work.size_bytes - offset);
    int done = 0;
    do {
      done = madvise(work.data + offset, length, MADV_POPULATE_WRITE);
    } while (done != 0 && (errno == EINTR || errno == EAGAIN));
    if (done != 0) work.cause.store(errno);
  }
  return nullptr;
}

// Zeroing pages takes as long as memory does, and longer where a host gives them first: on half of the cores, so that
// others can go on training. 0, or errno.
int populate(std::byte* data, std::uint64_t size_bytes) {
  Populating work;
  work.data = data;
  work.size_bytes = size_bytes;
  const std::uint64_t pieces = (size_bytes + kPieceBytes - 1) / kPieceBytes;
  const std::uint64_t threads = std::min<std::uint64_t>({pieces, std::thread::hardware_concurrency() / 2, 8});
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // a new thread inherits the mask: it shall run nobody's handlers
  std::vector<pthread_t> helpers;
  while (helpers.size() + 1 < threads) {
    pthread_t helper{};
    if (pthread_create(&helper, nullptr, &populate_pieces, &work) != 0) break;  // fewer will do
    helpers.push_back(helper);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  populate_pieces(&work);
  for (const pthread_t helper : helpers) pthread_join(helper, nullptr);
  return work.cause.load();
}

// For kernels that can't populate a mapping. An interrupted fallocate gives back all that it had, hence the pieces.
int allocate(int fd, std::uint64_t size_bytes) {
  for (std::uint64_t offset = 0; offset < size_bytes;) {
    const std::uint64_t length = std::min(kPieceBytes, size_bytes - offset);
    if (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(length)) == 0)
      offset += length;
    else if (errno != EINTR)
      return errno;
  }
  return 0;
}

// Through a mapping that is advised first: huge pages are made only where a fault asks for them (shmem_enabled
// "advise"), and never of pages that are there already. Unlike fallocate's these pages are zeroed, too: nobody who maps
// them later has to wait for that.
Status allocate_pages(int fd, const std::string& name, std::uint64_t size_bytes) {
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int cause = data == MAP_FAILED ? errno : 0;
  if (cause == 0) {
    madvise(data, size_bytes, MADV_HUGEPAGE);  // best effort: most systems don't allow it for shared memory
    cause = populate(static_cast<std::byte*>(data), size_bytes);
    munmap(data, size_bytes);
  }
  if (cause == EINVAL) cause = allocate(fd, size_bytes);
  if (cause == 0) return {};
  // EFAULT: a page could not be had, which a writer would have been told by SIGBUS.
  if (cause == ENOSPC || cause == ENOMEM || cause == EFAULT) return too_little_memory(name, size_bytes);
  return system_error(text("segment ", name, ": allocate"), cause);
}

// Best effort: the pages are there, and a fault that enters one later is cheap.
void enter_pages(std::byte* data, std::uint64_t size_bytes) {
  for (std::uint64_t offset = 0; offset < size_bytes; offset += kPieceBytes)
    madvise(data + offset, std::min(kPieceBytes, size_bytes - offset), MADV_POPULATE_READ);  // writable where it may be
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
  void* data = mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const int cause = errno;
    Error error = system_error(text("map ", size_bytes, " bytes"), cause);
    if (cause == ENOMEM) error.code = Code::full;
    return error;
  }
  madvise(data, size_bytes, MADV_DONTDUMP);
  madvise(data, size_bytes, MADV_HUGEPAGE);
  if (options.populate) enter_pages(static_cast<std::byte*>(data), size_bytes);
  return Mapping(static_cast<std::byte*>(data), size_bytes);
}

namespace {

class RealSharedMemory final : public SharedMemory {
 public:
  std::uint64_t available_bytes() override { return available_memory_bytes(); }
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
