#include "checkpoint/store/part_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "checkpoint/reshape/alignment.h"
#include "checkpoint/reshape/disk_queue.h"
#include "checkpoint/reshape/open_files.h"
#include "checkpoint/reshape/pinned_buffer.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kChunkBytes = 1 << 20;  // of one request
constexpr std::uint64_t kInFlightMax = 16;      // of one thread: more don't make a disk faster
constexpr auto kProgressPause = std::chrono::milliseconds(100);

// Of one file, by all threads.
struct Job {
  const TargetFile& target;
  std::span<const DensePiece> pieces;
  const MemorySums* cut;
  const ExecuteOptions& options;
  const std::function<void(std::uint64_t bytes)>& pace;
  std::shared_ptr<OpenFile> file;
  std::atomic<std::uint64_t> next_chunk{0};
  std::mutex mutex{};  // of what follows
  Status failed{};
  std::vector<SummedPiece> summed{};
  std::uint64_t bytes_done = 0;
  std::chrono::steady_clock::time_point told_at{};

  [[nodiscard]] std::uint64_t chunk_count() const { return rounded_up(target.size_bytes, kChunkBytes) / kChunkBytes; }
  [[nodiscard]] bool is_cancelled() const { return options.cancel != nullptr && *options.cancel; }

  void fail(Error error) {
    const std::lock_guard lock(mutex);
    if (failed) failed = std::move(error);
    next_chunk = chunk_count();
  }
  void add_done(std::uint64_t bytes) {
    const std::lock_guard lock(mutex);
    bytes_done += bytes;
    const auto now = std::chrono::steady_clock::now();
    if (!options.progress || now - told_at < kProgressPause) return;
    told_at = now;
    options.progress({bytes_done, options.bytes_expected});
  }
};

// One chunk, as it lies in a buffer until it is on its way.
struct Chunk {
  std::byte* memory = nullptr;
  std::uint64_t begin = 0, end = 0;  // in the file
  std::uint64_t data_bytes = 0;
  std::uint32_t in_flight = 0;  // requests
  int direct = -1;              // the file, past the page cache; it may be refused meanwhile
};

class Worker {
 public:
  explicit Worker(Job& job) : job_(job) {}

  Status run(std::uint64_t memory_bytes) {
    const std::uint64_t count = std::clamp<std::uint64_t>(memory_bytes / kChunkBytes, 2, kInFlightMax);
    PAWL_TRY(buffer_.map(count * kChunkBytes));
    queue_ = make_disk_queue(static_cast<std::uint32_t>(2 * count), job_.options.io_uring);
    chunks_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      chunks_[i].memory = buffer_.data() + i * kChunkBytes;
      free_.push_back(i);
    }
    Status status = write_all();
    while (in_flight_ > 0) {
      Status settled = settle();
      if (status) status = std::move(settled);
    }
    if (status) status = wait_for_disk();
    const std::lock_guard lock(job_.mutex);
    job_.summed.insert(job_.summed.end(), summed_.begin(), summed_.end());
    return status;
  }

 private:
  Status write_all() {
    for (std::uint64_t number = job_.next_chunk++; number < job_.chunk_count(); number = job_.next_chunk++) {
      if (job_.is_cancelled()) return Error{Code::cancelled, "cancelled"};
      while (free_.empty()) PAWL_TRY(settle());
      const std::size_t slot = free_.back();
      free_.pop_back();
      Chunk& chunk = chunks_[slot];
      chunk.begin = number * kChunkBytes;
      chunk.end = std::min(chunk.begin + kChunkBytes, job_.target.size_bytes);
      const std::optional<std::uint64_t> filled = fill_chunk({job_.target.head, job_.pieces, job_.cut}, chunk.begin,
                                                             {chunk.memory, chunk.end - chunk.begin}, summed_);
      chunk.data_bytes = filled.value_or(0);
      if (!filled) {
        free_.push_back(slot);
        continue;
      }
      if (job_.pace) job_.pace(chunk.end - chunk.begin);
      if (job_.is_cancelled()) {
        free_.push_back(slot);
        return Error{Code::cancelled, "cancelled"};
      }
      chunk.direct = chunk.end - chunk.begin >= kDirectWriteMin ? job_.file->direct() : -1;
      const std::uint64_t direct_end = chunk.direct >= 0 ? rounded_down(chunk.end, kDirectUnit) : chunk.begin;
      push(slot, chunk.begin, direct_end, true);
      push(slot, direct_end, chunk.end, false);
    }
    return {};
  }

  void push(std::size_t slot, std::uint64_t begin, std::uint64_t end, bool direct) {
    if (begin == end) return;
    Chunk& chunk = chunks_[slot];
    ++chunk.in_flight;
    ++in_flight_;
    queue_->push({.fd = direct ? chunk.direct : job_.file->plain(),
                  .write = true,
                  .memory = chunk.memory + (begin - chunk.begin),
                  .offset_bytes = begin,
                  .size_bytes = end - begin,
                  .enough_bytes = end - begin,
                  .tag = 2 * slot + (direct ? 1 : 0)});
  }

  // One answer.
  Status settle() {
    const DiskAnswer answer = queue_->wait();
    const std::size_t slot = answer.tag / 2;
    Chunk& chunk = chunks_[slot];
    --chunk.in_flight;
    --in_flight_;
    if (answer.error == EINVAL && answer.tag % 2 == 1) {
      job_.file->refuse_direct();
      chunk.direct = -1;
      push(slot, chunk.begin, rounded_down(chunk.end, kDirectUnit), false);
      return {};
    }
    if (answer.error != 0) return disk_error("write", job_.target.path, chunk.begin, answer.error);
    if (chunk.in_flight > 0) return {};
    job_.add_done(chunk.data_bytes);
    free_.push_back(slot);
    if (chunk.direct < 0) return send_to_disk(chunk.begin, chunk.end);
    return {};
  }

  // What went through the page cache leaves it as it goes: dirty pages would pile up to the machine's limit.
  Status send_to_disk(std::uint64_t begin, std::uint64_t end) {
    PAWL_TRY(wait_for_disk());
    leaving_ = {begin, end};
    (void)sync_range(SYNC_FILE_RANGE_WRITE);
    return {};
  }

  // Its answer counts: an error that is told here isn't told again by the sync at the end.
  Status wait_for_disk() {
    if (!leaving_) return {};
    const int error = sync_range(SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    const std::uint64_t begin = std::exchange(leaving_, std::nullopt)->first;
    if (error == 0 || error == EINVAL || error == ENOSYS || error == ESPIPE) return {};
    return disk_error("sync", job_.target.path, begin, error);
  }

  int sync_range(unsigned flags) const {
    const auto [begin, end] = *leaving_;
    const auto size = static_cast<off64_t>(end - begin);
    return ::sync_file_range(job_.file->plain(), static_cast<off64_t>(begin), size, flags) == 0 ? 0 : errno;
  }

  Job& job_;
  PinnedBuffer buffer_;
  std::unique_ptr<DiskQueue> queue_;  // goes before the buffer
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> free_;
  std::uint32_t in_flight_ = 0;
  std::vector<SummedPiece> summed_;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> leaving_;  // of the file
};

}  // namespace

Result<WrittenPieces> write_dense_pieces(const TargetFile& file, std::span<const DensePiece> pieces,
                                         const MemorySums* cut, const ExecuteOptions& options,
                                         const std::function<void(std::uint64_t bytes)>& pace) {
  PAWL_ASSIGN(std::shared_ptr<OpenFile> open, OpenFile::open(file.path, true, options.direct));
  Job job{file, pieces, cut, options, pace, std::move(open)};
  std::uint64_t count = options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  count =
      std::clamp<std::uint64_t>(std::min(count, job.chunk_count()), 1, options.memory_bytes / (2 * kChunkBytes) + 1);
  const auto work = [&] {
    Worker worker(job);
    if (Status done = worker.run(options.memory_bytes / count); !done) job.fail(std::move(done).error());
  };
  std::vector<std::thread> others;
  for (std::uint64_t i = 1; i < count; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  PAWL_TRY(std::move(job.failed));
  if (job.options.progress) job.options.progress({job.bytes_done, options.bytes_expected});
  return joined_pieces(std::move(job.summed), pieces.size());
}

}  // namespace pawl::checkpoint
