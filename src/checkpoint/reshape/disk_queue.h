// DiskQueue: the reads and writes that one thread has in flight, by io_uring; or one by one, by pread and pwrite.
//
// A request gets one answer: when all of it is done, when the file has ended, or when it failed. Short transfers are
// continued here. The destructor waits until nothing is in flight. One thread at a time. An address (env/files.h) is read one
// by one, too: whoever wants many such requests at once has many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"

namespace pawl {
class File;  // env/files.h
}  // namespace pawl

namespace pawl::checkpoint {

struct DiskRequest {
  int fd = -1;
  File* address = nullptr;  // to be read instead, by a queue without io_uring
  bool write = false;
  std::byte* memory = nullptr;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t enough_bytes = 0;  // up to size_bytes: less is gone on with (past the cache, a file's end is no unit's)
  std::uint64_t tag = 0;           // the caller's
};

struct DiskAnswer {
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;                      // transferred; fewer than asked for: the end of the file
  int error = 0;                                // errno, or 0
  std::optional<Error> failure = std::nullopt;  // of an address
};

class DiskQueue {
 public:
  virtual ~DiskQueue() = default;
  // `depth` requests at most are in flight at once. Memory and descriptor stay until the answer.
  virtual void push(const DiskRequest& request) = 0;
  // The next answer; something is in flight.
  [[nodiscard]] virtual DiskAnswer wait() = 0;
  [[nodiscard]] virtual bool uses_io_uring() const = 0;
};

// Where the kernel refuses io_uring: as without.
[[nodiscard]] std::unique_ptr<DiskQueue> make_disk_queue(std::uint32_t depth, bool io_uring);

}  // namespace pawl::checkpoint
