// Shared memory: anonymous segments (memfd) that outlive whoever maps them, and their mappings.
//
// A segment has no name in any file system; it lives as long as a descriptor or a mapping of it, and is handed on by
// descriptor (env/network.h). All its pages are allocated and zeroed when it is made, so too little memory is an error
// then and not a SIGBUS later, and that takes about as long as to write as many bytes; its size is sealed, so no holder can
// take pages away under another's feet. Large ones are of huge pages: of those that the system has reserved for it
// (hugetlb) if enough are free, else of those that it makes where it is advised to, else of small pages. A segment of
// reserved pages is a whole number of them, so it may be longer than what was asked for. Nothing here knows what is in a segment (job/snapshot). Thread-safe, except for changing one Mapping from two threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "env/fd.h"

namespace pawl {

// Bytes of memory that this process could still get: the machine's, and what its control group leaves it. Pages of files
// count as free: the kernel takes them back. Reserved huge pages don't count.
[[nodiscard]] std::uint64_t available_memory_bytes();

// What segments can still be made of: one is of pages of one kind.
struct AvailableMemory {
  std::uint64_t small_bytes = 0;
  std::uint64_t huge_bytes = 0;  // reserved ones
  std::uint64_t huge_page_bytes = 0;
};
// What segments of `segment_bytes` each could have of it: of the reserved pages whole segments only. Pure.
[[nodiscard]] std::uint64_t bytes_for_segments(const AvailableMemory& available, std::uint64_t segment_bytes);

// What pages a segment is of. `transparent`: huge ones wherever the kernel finds some, which nobody is told.
enum class Pages : std::uint8_t { small, transparent, huge };
[[nodiscard]] const char* name_of(Pages pages);

// What huge pages this machine gives shared memory now.
struct HugePages {
  std::uint64_t page_bytes = 0;      // of one reserved page; 0: the kernel has none
  std::uint64_t reserved_bytes = 0;  // by the administrator, free or not
  std::uint64_t free_bytes = 0;      // of those, what this process may take, as its control group allows
  bool transparent = false;          // shared memory gets them where it is advised to
  std::string transparent_mode;      // the kernel's word for that ("never"); empty: unknown
};
[[nodiscard]] HugePages find_huge_pages();
[[nodiscard]] Pages pages_of(int fd);  // of a segment, as long as the machine's settings stay as they are

struct SegmentOptions {
  // Made by one thread that rests three times as long as it works, while it is not set; `cancelled` once it is.
  // nullptr: made as fast as half of the cores can.
  const std::atomic<bool>* slowly_until = nullptr;
  // Then of small pages only as long as so much is left to others; looked at before each piece. `full` otherwise, and
  // nothing of it stays.
  std::uint64_t left_bytes_min = 0;
};

// A zeroed segment of `size_bytes` (>= 1), or of the next whole number of reserved huge pages if it gets those. If they
// can't be had after all, it is of other pages, and the log says so. `name` is for people (/proc/PID/maps shows it).
// Fails: `invalid` for size 0; `full` when there is too little memory, saying how much is needed, how much there is,
// and what to do; `cancelled`; `io`.
[[nodiscard]] Result<Fd> create_segment(const std::string& name, std::uint64_t size_bytes, SegmentOptions options = {},
                                        const HugePages& huge = find_huge_pages());

// Fails: `invalid` where the descriptor is no segment of ours: its size could change under a mapping.
[[nodiscard]] Result<std::uint64_t> segment_size_bytes(int fd);

struct MapOptions {
  bool read_only = false;
  bool populate = false;  // enter all pages into the page table now: no faults in the first step; 0.1 s a GiB
};

// Owns one mapping; unmaps it when it goes. Needs no descriptor once it is made.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { reset(); }
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }  // page-aligned; nullptr when empty
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_bytes_}; }
  void reset();

 private:
  friend Result<Mapping> map_segment(int fd, std::uint64_t size_bytes, MapOptions options);
  Mapping(std::byte* data, std::size_t size_bytes, std::size_t mapped_bytes)
      : data_(data), size_bytes_(size_bytes), mapped_bytes_(mapped_bytes) {}
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::size_t mapped_bytes_ = 0;  // whole pages, which may be huge
};

// The first `size_bytes` of the segment. Kept out of core dumps (they would be as large as the model); huge pages where
// the system allows them. Fails: `invalid` if the segment is shorter, or is none of ours; `full`; `io`.
[[nodiscard]] Result<Mapping> map_segment(int fd, std::uint64_t size_bytes, MapOptions options = {});

// --- The seam for whoever may run in a simulation: as the functions above. A segment is a descriptor there, too (no time
// passes in memory); but memory may run out when the simulation wants it to.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  [[nodiscard]] virtual AvailableMemory available() = 0;
  [[nodiscard]] virtual Result<Fd> create(const std::string& name, std::uint64_t size_bytes) = 0;
  // With SegmentOptions::slowly_until and left_bytes_min.
  [[nodiscard]] virtual Result<Fd> create_slowly(const std::string& name, std::uint64_t size_bytes,
                                                 const std::atomic<bool>& until, std::uint64_t /*left_bytes_min*/) {
    return until ? Result<Fd>(Error{Code::cancelled, "segment " + name + ": not wanted any more"})
                 : create(name, size_bytes);
  }
  [[nodiscard]] virtual Result<std::uint64_t> size_bytes(int fd) = 0;
  [[nodiscard]] virtual Pages pages_of(int fd) { return pawl::pages_of(fd); }
  [[nodiscard]] virtual Result<Mapping> map(int fd, std::uint64_t size_bytes, MapOptions options) = 0;
};

[[nodiscard]] SharedMemory& real_shared_memory();

}  // namespace pawl
