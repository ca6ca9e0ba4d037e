// PinnedBuffer: anonymous memory for the executor's requests, on huge pages where the system gives them.
//
// Pages that nobody touches take no memory. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace pawl::checkpoint {

class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  // Replaces what it had. Fails: `full`.
  [[nodiscard]] Status map(std::uint64_t size_bytes);
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  void* mapped_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace pawl::checkpoint
