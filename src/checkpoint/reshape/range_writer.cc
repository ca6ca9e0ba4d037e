#include "checkpoint/reshape/range_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "checkpoint/reshape/alignment.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kWriteBytes = 1 << 20;  // of one request
constexpr std::uint32_t kWritesMax = 16;        // more in flight don't make a disk faster

int sync_range(const OpenFile& file, std::uint64_t begin, std::uint64_t end, unsigned flags) {
  return ::sync_file_range(file.plain(), static_cast<off64_t>(begin), static_cast<off64_t>(end - begin), flags);
}

}  // namespace

Status RangeWriter::append_writings(const StagedRange& staged, std::vector<Writing>& writings) {
  PAWL_ASSIGN(std::shared_ptr<OpenFile> file, execution_.targets.get(staged.range.file));
  const int direct_fd = file->direct();  // once: another thread may find that the file system refuses it
  const auto add = [&](std::uint64_t begin, std::uint64_t end, bool direct) {
    while (begin < end) {
      const std::uint64_t next = std::min(end, rounded_down(begin, kWriteBytes) + kWriteBytes);
      writings.push_back({file,
                          {.fd = direct ? direct_fd : file->plain(),
                           .write = true,
                           .memory = staged.memory + (begin - staged.range.begin),
                           .offset_bytes = begin,
                           .size_bytes = next - begin,
                           .enough_bytes = next - begin,
                           .tag = writings.size()},
                          direct});
      begin = next;
    }
  };
  const auto [number, begin, end] = staged.range;
  if (end - begin < kDirectWriteMin || direct_fd < 0) {
    add(begin, end, false);
    return {};
  }
  const std::uint64_t middle = rounded_up(begin, kDirectUnit), middle_end = rounded_down(end, kDirectUnit);
  add(begin, middle, false);
  add(middle, middle_end, true);
  add(middle_end, end, false);
  return {};
}

Status RangeWriter::write(const std::vector<StagedRange>& ranges, DiskQueue& queue) {
  const WriteObserver& observe = execution_.options.observe;
  for (std::size_t i = 0; observe && i < ranges.size() && !execution_.stopped(); ++i) {
    const auto& [range, memory] = ranges[i];
    observe(range.file, range.begin, {memory, range.end - range.begin});
  }
  std::vector<Writing> writings;
  for (const StagedRange& staged : ranges) PAWL_TRY(append_writings(staged, writings));
  PAWL_TRY(write_all(writings, queue));
  if (execution_.options.sync && !execution_.stopped()) return send_to_disk(writings);
  return {};
}

Status RangeWriter::write_all(std::vector<Writing>& writings, DiskQueue& queue) {
  std::uint32_t in_flight = 0;
  Status status;
  for (std::size_t next = 0;;) {
    for (; status && next < writings.size() && in_flight < kWritesMax && !execution_.stopped(); ++next) {
      queue.push(writings[next].request);
      ++in_flight;
    }
    if (in_flight == 0) return status;
    const DiskAnswer answer = queue.wait();
    Writing& writing = writings[answer.tag];
    --in_flight;
    bytes_written_ += answer.bytes;
    if (answer.error == EINVAL && writing.direct) {
      writing.file->refuse_direct();
      writing.direct = false;
      writing.request.fd = writing.file->plain();
      queue.push(writing.request);
      ++in_flight;
    } else if (answer.error != 0 && status) {
      status = disk_error("write", writing.file->path(), writing.request.offset_bytes, answer.error);
    }
  }
}

// Starts what was written through the page cache for the disk, and waits until what the slab before wrote has arrived.
// Otherwise dirty pages would pile up to the machine's (or a cgroup's) limit.
Status RangeWriter::send_to_disk(const std::vector<Writing>& writings) {
  for (const Leaving& range : std::exchange(leaving_, {})) {
    // Its answer counts: an error that is told here isn't told again by the sync at the end.
    const auto flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (sync_range(*range.file, range.begin, range.end, flags) != 0 && errno != EINVAL && errno != ENOSYS &&
        errno != ESPIPE)
      return disk_error("sync", range.file->path(), range.begin, errno);
  }
  for (const Writing& writing : writings) {  // in order of file and offset
    if (writing.file->direct() >= 0) continue;
    const std::uint64_t begin = writing.request.offset_bytes, size = writing.request.size_bytes;
    if (!leaving_.empty() && leaving_.back().file == writing.file) {
      leaving_.back().end = begin + size;
    } else {
      leaving_.push_back({writing.file, begin, begin + size});
    }
  }
  for (const Leaving& range : leaving_) (void)sync_range(*range.file, range.begin, range.end, SYNC_FILE_RANGE_WRITE);
  return {};
}

}  // namespace pawl::checkpoint
