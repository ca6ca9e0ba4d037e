#include "checkpoint/reshape/execute.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/text.h"
#include "checkpoint/reshape/lane.h"
#include "checkpoint/reshape/open_files.h"
#include "checkpoint/reshape/slabs.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kMemoryMin = 256 << 10;
constexpr std::uint64_t kLanesMax = 32;
constexpr std::uint64_t kAddressLaneBytes = 16 << 20;  // of memory for each lane that reads addresses
constexpr std::uint64_t kFromMemoryBytes = 4 << 20;    // of a slab: the disk rests until the lanes' first are copied
constexpr std::uint32_t kSyncsMax = 16;                // at once
constexpr std::size_t kBatchCopiesMin = 1024;          // at the end of a tensor, this makes a batch
constexpr std::size_t kBatchCopiesMax = 64 << 10;      // and this anywhere

struct Division {
  std::uint64_t lanes = 1;
  std::uint64_t decoded_bytes = 0;
  LaneMemory lane;
};

// Lanes wait for disks, so there are twice as many as cores; unless all is in memory.
Division divide(const CopySource& source, const CopyTarget& target, const ExecuteOptions& options) {
  Division out;
  std::uint64_t memory = std::max(options.memory_bytes, kMemoryMin);
  const auto is_encoded = [](const StoredFile& file) {
    return file.codec == StoredFile::Codec::zstd || file.codec == StoredFile::Codec::deflate;
  };
  const bool has_sources = source.files != nullptr && !source.files->empty();
  if (has_sources && std::ranges::any_of(*source.files, is_encoded)) {
    out.decoded_bytes = memory / 2;
    memory -= out.decoded_bytes;
  }
  std::uint64_t cores = options.threads;
  if (cores == 0) cores = std::max(1u, std::thread::hardware_concurrency());
  out.lanes = has_sources || !target.files.empty() ? std::min(2 * cores, kLanesMax) : cores;
  // As many requests are under way as there are lanes.
  const bool has_addresses =
      has_sources && std::ranges::any_of(*source.files, [](const StoredFile& file) { return is_address(file.path); });
  if (has_addresses) out.lanes = std::clamp(memory / kAddressLaneBytes, out.lanes, kLanesMax);
  out.lanes = std::clamp<std::uint64_t>(memory / kMemoryMin, 1, out.lanes);
  out.lane = has_addresses ? divide_memory_for_addresses(memory / out.lanes) : divide_memory(memory / out.lanes);
  if (!has_sources && !target.files.empty())
    out.lane.limits.target_bytes = std::min(out.lane.limits.target_bytes, kFromMemoryBytes);
  return out;
}

// Turns a stream of copies into slabs for the lanes.
class Producer {
 public:
  Producer(const CopySource& source, const CopyTarget& target, const SlabLimits& limits, Execution& execution)
      : source_(source), target_(target), limits_(limits), execution_(execution), batch_(std::make_shared<Batch>()) {}

  void add(const PlannedCopy& copy) {
    if (execution_.stopped()) return;
    const bool is_new = !batch_->copies.empty() && batch_->copies.back().tensor != copy.tensor;
    const bool is_enough = batch_->copies.size() >= kBatchCopiesMin || bytes_ >= limits_.target_bytes;
    if ((is_new && is_enough) || batch_->copies.size() >= kBatchCopiesMax) flush();
    const std::size_t before = batch_->copies.size();
    if (Status added = append_placed_copy(copy, source_, target_, *batch_); !added)
      return execution_.fail(std::move(added).error());
    if (batch_->copies.size() == before) return;
    const std::uint64_t bytes = target_bytes(batch_->copies.back(), batch_->copies.back().box);
    bytes_ += bytes;
    moved_ += bytes;
  }

  void flush() {
    const std::shared_ptr<const Batch> batch = std::exchange(batch_, std::make_shared<Batch>());
    bytes_ = 0;
    cut_into_slabs(batch, limits_, [this](Slab slab) {
      if (!execution_.stopped()) (void)execution_.slabs.push(std::move(slab), [this] { return execution_.stopped(); });
    });
  }

  [[nodiscard]] std::uint64_t moved() const { return moved_; }

 private:
  const CopySource& source_;
  const CopyTarget& target_;
  const SlabLimits& limits_;
  Execution& execution_;
  std::shared_ptr<Batch> batch_;
  std::uint64_t bytes_ = 0, moved_ = 0;
};

Status make_targets(const CopyTarget& target, const Execution& execution) {
  for (const TargetFile& file : target.files) {
    if (execution.stopped()) return Error{Code::cancelled, "cancelled"};
    if (!file.is_made) PAWL_TRY(make_target(file));
  }
  return {};
}

// Of one file; 0, or an errno. File systems without sync_file_range do all of it in the last step.
int sync_step(int fd, unsigned flags) {
  if (flags == 0) return ::fdatasync(fd) == 0 ? 0 : errno;
  if (::sync_file_range(fd, 0, 0, flags) == 0) return 0;
  return errno == EINVAL || errno == ENOSYS || errno == ESPIPE ? 0 : errno;
}

Status sync_target(std::uint32_t number, unsigned flags, Execution& execution) {
  PAWL_ASSIGN(const std::shared_ptr<OpenFile> file, execution.targets.get(number));
  if (const int error = sync_step(file->plain(), flags); error != 0) return disk_error("sync", file->path(), 0, error);
  return {};
}

// Each step for all files before the next: what the page cache still has goes to the disk side by side, and the file
// system's journal has about one commit to wait for in the end. File by file it would be one for each. Then every file
// waits for the disk's own cache: side by side, since a disk empties it once for all that ask meanwhile.
Status sync_targets(const CopyTarget& target, Execution& execution) {
  const auto count = static_cast<std::uint32_t>(target.files.size());
  for (const unsigned flags : std::array<unsigned, 2>{SYNC_FILE_RANGE_WRITE, SYNC_FILE_RANGE_WAIT_BEFORE})
    for (std::uint32_t i = 0; i < count && !execution.stopped(); ++i) PAWL_TRY(sync_target(i, flags, execution));
  std::atomic<std::uint32_t> next{0};
  const auto sync_some = [&] {
    for (std::uint32_t i = next++; i < count && !execution.stopped(); i = next++)
      if (Status synced = sync_target(i, 0, execution); !synced) execution.fail(std::move(synced).error());
  };
  std::vector<std::thread> threads;
  for (std::uint32_t i = 1; i < std::min(count, kSyncsMax); ++i) threads.emplace_back(sync_some);
  sync_some();
  for (std::thread& thread : threads) thread.join();
  return execution.status();
}

ExecuteReport report_of(const std::vector<std::unique_ptr<Lane>>& lanes, Execution& execution) {
  ExecuteReport report;
  std::map<std::uint32_t, std::uint64_t> overflowed;
  for (const std::unique_ptr<Lane>& lane : lanes) {
    report.bytes_read += lane->bytes_read();
    report.bytes_written += lane->bytes_written();
    report.buffer_bytes_max += lane->buffer_bytes();
    report.used_io_uring = report.used_io_uring || lane->used_io_uring();
    for (const auto& [tensor, count] : lane->overflows()) overflowed[tensor] += count;
  }
  report.bytes_read += execution.decoded.read_bytes();
  report.buffer_bytes_max += execution.decoded.held_bytes_max();
  report.overflowed.assign(overflowed.begin(), overflowed.end());
  return report;
}

}  // namespace

CopyStream stream_of(std::vector<PlannedCopy> copies) {
  return [copies = std::move(copies)](const CopySink& sink) -> Status {
    for (const PlannedCopy& copy : copies) sink(copy);
    return {};
  };
}

Result<ExecuteReport> execute(const CopyStream& copies, const CopySource& source, const CopyTarget& target,
                              const ExecuteOptions& options) {
  const Division division = divide(source, target, options);
  Execution execution(source, target, options, division.decoded_bytes, division.lanes);
  PAWL_TRY(make_targets(target, execution));
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < division.lanes; ++i) {
    lanes.push_back(std::make_unique<Lane>(execution, division.lane));
    threads.emplace_back([lane = lanes.back().get()] { lane->run(); });
  }
  Producer producer(source, target, division.lane.limits, execution);
  if (Status planned = copies([&](const PlannedCopy& copy) { producer.add(copy); }); !planned) {
    execution.fail(std::move(planned).error());
  } else {
    producer.flush();
  }
  execution.slabs.close();
  for (std::thread& thread : threads) thread.join();
  PAWL_TRY(execution.status());
  if (options.sync) PAWL_TRY(sync_targets(target, execution));
  execution.report_progress(true);
  ExecuteReport report = report_of(lanes, execution);
  report.bytes_moved = producer.moved();
  return report;
}

}  // namespace pawl::checkpoint
