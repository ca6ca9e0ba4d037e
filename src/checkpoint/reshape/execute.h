// The executor: does the copies of a plan: file to memory, memory to memory, file to file. Memory may belong to other
// processes of this machine, so one process can read a file for several.
//
// What always holds: each needed byte of a file is read once, however many copies want it (neighbouring ranges are read
// together if that adds at most 5 %). Bytes outside a copy's target box are not written. Bytes of a target file that no
// copy writes are zero. Memory stays within the budget; the target's own memory and the plan's come on top. Casts,
// means of versions and byte order are done on the way.
// It does not decide what goes where (checkpoint/reshape/plan.h), and knows no format (checkpoint/formats). Memory at
// both ends belongs to the caller, and outlives the call. One call uses all cores; calls may run at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl {
class PeerMemory;  // env/peer_memory.h
}  // namespace pawl

namespace pawl::checkpoint {

// Where a (holder, buffer) of a plan lies: in memory, or in a file. Nothing outside size_bytes is read or written.
struct BufferPlace {
  std::byte* memory = nullptr;     // its first byte. Null: it lies in a file
  std::uint32_t file = 0;          // index in the files beside
  std::uint64_t offset_bytes = 0;  // of its first byte, in the file's decoded bytes
  std::uint64_t size_bytes = 0;    // 0: there is no such buffer
  bool swapped = false;            // of sources: big-endian
  // Of targets: `memory` is an address in the process of this number in CopyTarget::peers.
  std::uint32_t peer = kThisProcess;
  static constexpr std::uint32_t kThisProcess = ~std::uint32_t{0};
};
using PlaceOf =
    std::function<BufferPlace(std::uint32_t holder, std::uint32_t buffer)>;  // called from one thread at a time

struct CopySource {
  const std::vector<StoredFile>* files = nullptr;  // may stay null where all is in memory
  PlaceOf place;
};

// A file that execute() makes, as the umask allows: it must not be there. All but `head` and what is copied is zero.
struct TargetFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::string head = {};  // its first bytes, e.g. a header
  // It is there, at its full size, and others may be writing it too: only what is copied is touched. `head` is ignored.
  bool is_made = false;
};

// Bytes [begin, end) of a target file.
struct FileRange {
  std::uint32_t file = 0;  // index in CopyTarget::files
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  auto operator<=>(const FileRange&) const = default;
};

// Padding in target memory is left as it is: give zeroed memory where it matters.
struct CopyTarget {
  std::vector<TargetFile> files;
  PlaceOf place;
  PeerMemory* peers = nullptr;  // joined, where a place is in one of them
};

struct ExecuteProgress {
  std::uint64_t bytes_done = 0;  // of the target's
  std::uint64_t bytes_all = 0;   // ExecuteOptions::bytes_expected
};

// Is shown each byte of data that is written to a target file, exactly once, before it is written, in any order and
// from any thread, several at once. Heads and zeros are not data.
using WriteObserver =
    std::function<void(std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes)>;

// Is shown what is read of source files that are stored as they are, when it has arrived: all that copies want, once as
// far as one tensor's copies go, and what lies between the rows of one. In any order, from any thread, several at once.
using ReadObserver = WriteObserver;

struct ExecuteOptions {
  // At least 256 KiB are used. More memory: longer ranges, fewer requests.
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  std::uint32_t threads = 0;         // 0: all cores
  bool io_uring = true;              // false, or a kernel that refuses it: pread and pwrite
  bool direct = true;                // O_DIRECT for large ranges that no cache has
  bool sync = true;                  // target files are on the disk when execute() returns
  std::uint64_t bytes_expected = 0;  // for progress only; 0: not known
  // About every 100 ms and at the end, from any thread, one call at a time.
  std::function<void(const ExecuteProgress&)> progress;
  WriteObserver observe;  // e.g. checkpoint/reshape/range_checksums.h
  ReadObserver observe_read;
  const std::atomic<bool>* cancel = nullptr;  // once true, execute() ends within 100 ms as `cancelled`
};

struct ExecuteReport {
  std::uint64_t bytes_read = 0;     // from files, with what coalescing and alignment added
  std::uint64_t bytes_written = 0;  // to files
  std::uint64_t bytes_moved = 0;    // that the copies' targets hold
  // Finite numbers that a cast made infinite: index of the tensor in the target's layout, and how many; ascending.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> overflowed;
  std::uint64_t buffer_bytes_max = 0;  // the most memory held at once for ranges and decoded files
  bool used_io_uring = false;
};

// A plan, as it streams: ReshapePlan::plan_rank or plan_all, or a list. What it fails with, execute() fails with.
using CopyStream = std::function<Status(const CopySink&)>;
[[nodiscard]] CopyStream stream_of(std::vector<PlannedCopy> copies);

// Copies of one tensor should come one after another (as plans stream them): only then is a byte that several want
// read once.
// Fails: `invalid` (a copy that leaves its buffer, a cast or a packed type cut that can't be, a target that is there);
// `corrupt` (a source file is shorter than the view says, or does not decode); `full` (no space, or an encoded tensor
// larger than the budget); `unreachable` (a peer has left); `cancelled`; `io`. Errors name file and offset. After one,
// target files are left to be removed by the caller, and target memory holds anything.
[[nodiscard]] Result<ExecuteReport> execute(const CopyStream& copies, const CopySource& source,
                                            const CopyTarget& target, const ExecuteOptions& options = {});

}  // namespace pawl::checkpoint
