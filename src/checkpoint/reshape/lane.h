// Lane: one of the executor's threads, with its memory and its requests in flight: takes slabs and does them.
//
// A lane reads a slab's ranges into slots, copies what lies in them to where it belongs, means versions, and writes
// the ranges. Several lanes keep the disk and the cores busy at once; they share nothing but what is in LaneShared.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "checkpoint/reshape/decoded_files.h"
#include "checkpoint/reshape/disk_queue.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/open_files.h"
#include "checkpoint/reshape/peer_writes.h"
#include "checkpoint/reshape/slabs.h"

namespace pawl::checkpoint {

// How a lane divides its share of the budget.
struct LaneMemory {
  std::uint64_t slots = 0;
  std::uint64_t slot_bytes = 0;  // multiples of kDirectUnit; with room for alignment
  std::uint64_t staged_bytes = 0;
  SlabLimits limits;
};
[[nodiscard]] LaneMemory divide_memory(std::uint64_t bytes);

// From the thread that plans to the lanes; bounded.
class SlabQueue {
 public:
  explicit SlabQueue(std::size_t slabs_max) : slabs_max_(slabs_max) {}
  // False, and the slab is lost: `stopped` said so while there was no room.
  bool push(Slab slab, const std::function<bool()>& stopped);
  void close();
  [[nodiscard]] std::optional<Slab> pop(const std::function<bool()>& stopped);  // nothing: closed and empty, or stopped

 private:
  std::size_t slabs_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slab> slabs_;
  bool closed_ = false;
};

class LaneShared {
 public:
  LaneShared(const CopySource& source, const CopyTarget& target, const ExecuteOptions& options,
             std::uint64_t decoded_bytes_max, std::size_t slabs_max);

  const ExecuteOptions& options;
  const std::vector<StoredFile>* stored;
  OpenFiles sources;
  OpenFiles targets;
  PeerMemory* peers;
  DecodedFiles decoded;
  SlabQueue slabs;

  // Whether to end: something failed, or somebody wants it.
  [[nodiscard]] bool stopped() const {
    return failed_ || (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed));
  }
  void fail(Error error);  // the first one counts
  [[nodiscard]] Status status();
  void add_done(std::uint64_t bytes);
  void report_progress(bool is_last);

 private:
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::optional<Error> error_;
  std::atomic<std::uint64_t> done_{0};
  std::mutex progress_mutex_;
  std::int64_t reported_ms_ = 0;
};

// Anonymous memory, on huge pages where the system gives them.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  [[nodiscard]] Status map(std::uint64_t size_bytes);
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  void* mapped_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
};

class Lane {
 public:
  Lane(LaneShared& shared, const LaneMemory& memory);
  void run();  // until there are no more slabs

  // After run().
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }
  [[nodiscard]] std::uint64_t bytes_written() const { return bytes_written_; }
  [[nodiscard]] bool used_io_uring() const { return queue_ && queue_->uses_io_uring(); }
  [[nodiscard]] std::uint64_t buffer_bytes() const { return buffer_bytes_; }
  [[nodiscard]] const std::map<std::uint32_t, std::uint64_t>& overflows() const { return overflows_; }

 private:
  struct Staged {
    FileRange range;
    std::byte* memory = nullptr;
  };
  // One request, and what it is for.
  struct Reading {
    std::shared_ptr<OpenFile> file;
    std::size_t range = 0;
    std::byte* data = nullptr;  // of the range's first byte
    DiskRequest request;
    bool direct = false;
    bool in_place = false;  // read to where it belongs
  };
  struct Slot {
    std::byte* memory = nullptr;
    std::uint64_t used = 0;
    std::size_t pending = 0;
    std::vector<Reading> readings;
  };
  struct Writing {
    std::shared_ptr<OpenFile> file;
    DiskRequest request;
    bool direct = false;
  };
  // A range written through the page cache, on its way to the disk.
  struct Leaving {
    std::shared_ptr<OpenFile> file;
    std::uint64_t begin = 0, end = 0;
  };
  struct Encoded {
    std::uint32_t file = 0, part = 0, source = 0;
  };

  [[nodiscard]] Status prepare();
  [[nodiscard]] Status process(Slab& slab);
  [[nodiscard]] Status stage(Slab& slab);
  [[nodiscard]] std::byte* take(std::uint64_t bytes, std::uint64_t congruent_to);
  [[nodiscard]] Status sort_sources();
  [[nodiscard]] PlacedEnd window_of(PlacedEnd end) const;
  [[nodiscard]] PlacedEnd target_of(std::uint32_t part, std::uint32_t source, const Box& box) const;
  void copy(std::uint32_t part, std::uint32_t source, const Box& box, const std::byte* from);
  void deliver(const PlacedCopy& placed, const PlacedEnd& target, const BoxCopy& copy);
  [[nodiscard]] Status read_extents(const std::vector<ReadRange>& ranges);
  [[nodiscard]] Status fill_slot(Slot& slot, std::uint64_t number, const std::vector<ReadRange>& ranges,
                                 std::size_t& next);
  [[nodiscard]] bool goes_in_place(const ReadRange& range, std::byte*& to) const;
  [[nodiscard]] Status settle_reading(Slot& slot, const DiskAnswer& answer, const std::vector<ReadRange>& ranges);
  void empty_slot(Slot& slot, const std::vector<ReadRange>& ranges);
  void show(const Reading& reading, const ReadRange& range) const;
  [[nodiscard]] Status copy_decoded(const Encoded& encoded, std::string_view bytes);
  [[nodiscard]] Status copy_encoded();
  void average_parts();
  [[nodiscard]] Status write_windows();
  [[nodiscard]] Status cut_window(const Staged& staged, std::vector<Writing>& writings);
  [[nodiscard]] Status send_to_disk(const std::vector<Writing>& writings);

  LaneShared& shared_;
  const LaneMemory memory_;
  std::unique_ptr<DiskQueue> queue_;
  std::uint32_t in_flight_ = 0;
  PinnedBuffer slot_memory_;
  PinnedBuffer staged_memory_;
  std::uint64_t staged_bytes_ = 0;  // that it has
  std::vector<Slot> slots_;
  PeerWrites peer_writes_;
  ReadAllowance allowance_;
  std::uint64_t bytes_read_ = 0, bytes_written_ = 0, buffer_bytes_ = 0;
  std::map<std::uint32_t, std::uint64_t> overflows_;
  std::vector<Leaving> leaving_;

  // Of the slab in hand.
  Slab* slab_ = nullptr;
  std::uint64_t staged_used_ = 0;
  std::vector<Staged> staged_;
  std::vector<std::byte*> versions_;  // of each part with several sources: their dense boxes, one after another
  std::vector<ReadPiece> pieces_;
  std::vector<Encoded> encoded_;
};

}  // namespace pawl::checkpoint
