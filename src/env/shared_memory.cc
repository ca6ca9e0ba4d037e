#include "env/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "env/files.h"

namespace pawl {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// The number after `label` in `content`; kUnlimited where it is not there.
std::uint64_t field(const std::string& content, std::string_view label) {
  const std::size_t at = content.find(label);
  if (at == std::string::npos) return kUnlimited;
  const std::size_t first = content.find_first_of("0123456789", at + label.size());
  if (first == std::string::npos) return kUnlimited;
  const std::size_t last = content.find_first_not_of("0123456789", first);
  std::uint64_t number = 0;
  return parse_number(std::string_view(content).substr(first, last - first), number) ? number : kUnlimited;
}

std::uint64_t field_bytes(const std::string& content, std::string_view label) {  // which is given in kB
  const std::uint64_t kilobytes = field(content, label);
  return kilobytes == kUnlimited ? kUnlimited : kilobytes * 1024;
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

// What the tightest of the control groups (version 2) above this process leaves it of "memory", or of "hugetlb.2MB".
std::uint64_t control_group_left_bytes(const std::string& what) {
  const Result<std::string> own = read_file("/proc/self/cgroup");
  if (!own) return kUnlimited;
  const std::size_t at = own->find("0::/");
  if (at == std::string::npos) return kUnlimited;
  std::string group = own->substr(at + 3, own->find('\n', at) - at - 3);
  std::uint64_t left = kUnlimited;
  for (;;) {
    const std::string files = text("/sys/fs/cgroup", group == "/" ? "" : group, "/", what);
    const std::uint64_t limit = number_in(files + ".max");
    std::uint64_t used = number_in(files + ".current");
    if (limit != kUnlimited && used != kUnlimited) {
      used -= std::min(used, file_pages_bytes(read_file(files + ".stat").value_or("")));
      left = std::min(left, limit > used ? limit - used : 0);
    }
    if (group == "/") return left;
    group = parent_path(group);
  }
}

// The word in brackets, of a setting whose file lists all: "always [never]".
std::string chosen_in(const std::string& path) {
  const std::string content = read_file(path, 4096).value_or("");
  const std::size_t open = content.find('['), close = content.find(']');
  return open < close && close != std::string::npos ? content.substr(open + 1, close - open - 1) : "";
}

Error too_little_memory(const std::string& name, std::uint64_t size_bytes) {
  return Error{Code::full, text("segment ", name, ": needs ", (size_bytes + (1 << 20) - 1) >> 20, " MiB of memory, ",
                                available_memory_bytes() >> 20,
                                " MiB are available: free memory, raise the memory limit of the container, or protect "
                                "less state per node")};
}

// No call of the kernel is given more than this at once: it holds locks for which another thread's mmap waits, and with
// it malloc; and it can't be interrupted. A millisecond or two of a busy memory.
constexpr std::uint64_t kPieceBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kLookEveryBytes = std::uint64_t{16} << 20;  // at what is left of the memory

// What populates one mapping. Linux 5.14 and later; EINVAL before.
struct Populating {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  const std::atomic<bool>* slowly_until = nullptr;
  std::uint64_t left_bytes_min = 0;
  std::atomic<std::uint64_t> next{0};  // which byte the next piece begins at
  std::atomic<int> cause{0};           // errno of a piece that failed
};

std::chrono::nanoseconds time_of_this_thread() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

void* populate_pieces(void* argument) {
  Populating& work = *static_cast<Populating*>(argument);
  while (work.cause.load() == 0) {
    const std::uint64_t offset = work.next.fetch_add(kPieceBytes);
    if (offset >= work.size_bytes) break;
    const std::uint64_t length = std::min(kPieceBytes, work.size_bytes - offset);
    const bool looks = work.left_bytes_min > 0 && offset % kLookEveryBytes == 0;
    const std::uint64_t next_bytes = std::min(kLookEveryBytes, work.size_bytes - offset);
    if (looks && available_memory_bytes() < work.left_bytes_min + next_bytes) {
      work.cause.store(EDQUOT);
      break;
    }
    const std::chrono::nanoseconds began = time_of_this_thread();
    int done = 0;
    do {
      done = madvise(work.data + offset, length, MADV_POPULATE_WRITE);
    } while (done != 0 && (errno == EINTR || errno == EAGAIN));
    if (done != 0) work.cause.store(errno);
    if (work.slowly_until == nullptr) continue;
    // Not by a low priority: who waits long for a core here holds locks that others wait for. By the time that it had a
    // core: where many want one, it has rested already.
    std::this_thread::sleep_for(3 * (time_of_this_thread() - began));
    if (*work.slowly_until) work.cause.store(ECANCELED);
  }
  return nullptr;
}

// Zeroing pages takes as long as memory does, and longer where a host gives them first: on half of the cores, so that
// others can go on training. 0, or errno.
int populate(std::byte* data, std::uint64_t size_bytes, SegmentOptions options) {
  Populating work;
  work.data = data;
  work.size_bytes = size_bytes;
  work.slowly_until = options.slowly_until;
  work.left_bytes_min = options.left_bytes_min;
  const std::uint64_t pieces = (size_bytes + kPieceBytes - 1) / kPieceBytes;
  const std::uint64_t threads = options.slowly_until != nullptr
                                    ? 1
                                    : std::min<std::uint64_t>({pieces, std::thread::hardware_concurrency() / 2, 8});
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

// From its end, so that what is left stays one piece. Larger pages than ours can't be parted: then all at once.
void unmap(void* data, std::uint64_t size_bytes) {
  auto* const begin = static_cast<std::byte*>(data);
  for (std::uint64_t left = size_bytes; left > 0;) {
    const std::uint64_t keep = (left - 1) / kPieceBytes * kPieceBytes;
    if (munmap(begin + keep, left - keep) != 0) {
      munmap(begin, left);
      return;
    }
    left = keep;
  }
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
Status allocate_pages(int fd, const std::string& name, std::uint64_t size_bytes, SegmentOptions options) {
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int cause = data == MAP_FAILED ? errno : 0;
  if (cause == 0) {
    madvise(data, size_bytes, MADV_HUGEPAGE);  // best effort: most systems don't allow it for shared memory
    cause = populate(static_cast<std::byte*>(data), size_bytes, options);
    unmap(data, size_bytes);
  }
  if (cause == EINVAL) cause = allocate(fd, size_bytes);
  if (cause == 0) return {};
  if (cause == ECANCELED) return Error{Code::cancelled, text("segment ", name, ": not wanted any more")};
  if (cause == EDQUOT)
    return Error{Code::full, text("segment ", name, ": its making was ended: less than ", options.left_bytes_min >> 20,
                                  " MiB of memory would be left to the other programs of this machine")};
  // EFAULT: a page could not be had, which a writer would have been told by SIGBUS.
  if (cause == ENOSPC || cause == ENOMEM || cause == EFAULT) return too_little_memory(name, size_bytes);
  return system_error(text("segment ", name, ": allocate"), cause);
}

// Of pages of one kind, whose size divides `size_bytes`.
Result<Fd> make_segment(const std::string& name, std::uint64_t size_bytes, unsigned flags, SegmentOptions options) {
  Fd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!fd.valid()) return system_error(text("segment ", name, ": create"), errno);
  if (ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    if (errno == ENOMEM || errno == EFBIG) return too_little_memory(name, size_bytes);
    return system_error(text("segment ", name, ": size it"), errno);
  }
  PAWL_TRY(allocate_pages(fd.get(), name, size_bytes, options));
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error(text("segment ", name, ": seal its size"), errno);
  return fd;
}

std::uint64_t whole_pages(std::uint64_t size_bytes, std::uint64_t page_bytes) {
  return (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

// What is rounded up is lost: an eighth at most.
bool is_worth_huge_pages(std::uint64_t size_bytes, const HugePages& huge) {
  if (huge.page_bytes == 0) return false;
  const std::uint64_t whole = whole_pages(size_bytes, huge.page_bytes);
  return whole <= huge.free_bytes && whole - size_bytes <= size_bytes / 8;
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
  return std::min(free_bytes, control_group_left_bytes("memory"));
}

std::uint64_t bytes_for_segments(const AvailableMemory& available, std::uint64_t segment_bytes) {
  HugePages huge;
  huge.page_bytes = available.huge_page_bytes;
  huge.free_bytes = available.huge_bytes;
  if (segment_bytes == 0 || !is_worth_huge_pages(segment_bytes, huge)) return available.small_bytes;
  const std::uint64_t of_huge = available.huge_bytes / whole_pages(segment_bytes, huge.page_bytes) * segment_bytes;
  return available.small_bytes > kUnlimited - of_huge ? kUnlimited : available.small_bytes + of_huge;
}

const char* name_of(Pages pages) {
  return pages == Pages::huge ? "huge" : pages == Pages::transparent ? "transparent" : "small";
}

HugePages find_huge_pages() {
  HugePages found;
  const std::string root = "/sys/kernel/mm/transparent_hugepage/";
  found.transparent_mode = chosen_in(root + "shmem_enabled");
  // Newer kernels have a setting for each size, which says "inherit" by default.
  const std::string of_size = chosen_in(root + "hugepages-2048kB/shmem_enabled");
  if (!of_size.empty() && of_size != "inherit") found.transparent_mode = of_size;
  found.transparent = found.transparent_mode == "advise" || found.transparent_mode == "always" ||
                      found.transparent_mode == "within_size" || found.transparent_mode == "force";
  const Result<std::string> machine = read_file("/proc/meminfo");
  if (!machine) return found;
  const std::uint64_t size = field_bytes(*machine, "Hugepagesize:"), total = field(*machine, "HugePages_Total:");
  const std::uint64_t free = field(*machine, "HugePages_Free:"), promised = field(*machine, "HugePages_Rsvd:");
  if (size == kUnlimited || total == kUnlimited || free == kUnlimited || promised == kUnlimited) return found;
  found.page_bytes = size;
  found.reserved_bytes = total * size;
  found.free_bytes = (free - std::min(free, promised)) * size;
  if (found.free_bytes > 0) {
    const std::string unit = size >= (1 << 30) ? text(size >> 30, "GB") : text(size >> 20, "MB");
    found.free_bytes = std::min(found.free_bytes, control_group_left_bytes("hugetlb." + unit));
  }
  return found;
}

Pages pages_of(int fd) {
  struct statfs system {};
  if (fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC) return Pages::huge;
  return find_huge_pages().transparent ? Pages::transparent : Pages::small;
}

Result<Fd> create_segment(const std::string& name, std::uint64_t size_bytes, SegmentOptions options,
                          const HugePages& huge) {
  if (size_bytes == 0) return Error{Code::invalid, text("segment ", name, ": size 0")};
  if (is_worth_huge_pages(size_bytes, huge)) {
    // Others may take them meanwhile, or a control group or a node of the machine has fewer: known once all are there.
    SegmentOptions of_huge = options;
    of_huge.left_bytes_min = 0;  // nobody else can use those pages
    Result<Fd> made = make_segment(name, whole_pages(size_bytes, huge.page_bytes), MFD_HUGETLB, of_huge);
    if (made || made.error().code == Code::cancelled) return made;
    log_info("huge_pages_refused", "segment", name, "needed_bytes", whole_pages(size_bytes, huge.page_bytes),
             "free_bytes_before", huge.free_bytes);
  }
  // Asked first, because on many machines the kernel would rather kill someone than refuse.
  if (size_bytes > available_memory_bytes()) return too_little_memory(name, size_bytes);
  return make_segment(name, size_bytes, 0, options);
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
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this == &other) return *this;
  reset();
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  return *this;
}

void Mapping::reset() {
  if (data_ != nullptr) unmap(data_, mapped_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
  mapped_bytes_ = 0;
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
  struct statfs system {};  // only whole pages can be unmapped
  const bool huge = fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
  const std::uint64_t mapped = huge ? whole_pages(size_bytes, static_cast<std::uint64_t>(system.f_bsize)) : size_bytes;
  return Mapping(static_cast<std::byte*>(data), size_bytes, mapped);
}

namespace {

class RealSharedMemory final : public SharedMemory {
 public:
  AvailableMemory available() override {
    const HugePages huge = find_huge_pages();
    return {available_memory_bytes(), huge.free_bytes, huge.page_bytes};
  }
  Result<Fd> create(const std::string& name, std::uint64_t size_bytes) override {
    return create_segment(name, size_bytes);
  }
  Result<Fd> create_slowly(const std::string& name, std::uint64_t size_bytes, const std::atomic<bool>& until,
                           std::uint64_t left_bytes_min) override {
    return create_segment(name, size_bytes, {.slowly_until = &until, .left_bytes_min = left_bytes_min});
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
