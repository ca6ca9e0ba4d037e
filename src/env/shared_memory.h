// Shared memory: anonymous segments (memfd) that outlive whoever maps them, and their mappings.
//
// A segment has no name in any file system; it lives as long as a descriptor or a mapping of it, and is handed on by
// descriptor (env/network.h). All its pages are allocated and zeroed when it is made, so too little memory is an error
// then and not a SIGBUS later, and that takes about as long as to write as many bytes; its size is sealed, so no holder can
// take pages away under another's feet. Nothing here knows what is in a segment (job/snapshot). Thread-safe, except for changing one Mapping from two threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "env/fd.h"

namespace pawl {

// Bytes of memory that this process could still get: the machine's, and what its control group leaves it. Pages of files
// count as free: the kernel takes them back.
[[nodiscard]] std::uint64_t available_memory_bytes();

// A zeroed segment of `size_bytes` (>= 1), of huge pages where the system allows them for shared memory. Made by several
// threads if it is large. `name` is for people (/proc/PID/maps shows it).
// Fails: `invalid` for size 0; `full` when there is too little memory, saying how much is needed, how much there is,
// and what to do; `io`.
[[nodiscard]] Result<Fd> create_segment(const std::string& name, std::uint64_t size_bytes);

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
  Mapping(std::byte* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// The first `size_bytes` of the segment. Kept out of core dumps (they would be as large as the model); huge pages where
// the system allows them. Fails: `invalid` if the segment is shorter, or is none of ours; `full`; `io`.
[[nodiscard]] Result<Mapping> map_segment(int fd, std::uint64_t size_bytes, MapOptions options = {});

// --- The seam for whoever may run in a simulation: as the functions above. A segment is a descriptor there, too (no time
// passes in memory); but memory may run out when the simulation wants it to.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  [[nodiscard]] virtual std::uint64_t available_bytes() = 0;
  [[nodiscard]] virtual Result<Fd> create(const std::string& name, std::uint64_t size_bytes) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> size_bytes(int fd) = 0;
  [[nodiscard]] virtual Result<Mapping> map(int fd, std::uint64_t size_bytes, MapOptions options) = 0;
};

[[nodiscard]] SharedMemory& real_shared_memory();

}  // namespace pawl
