// Device: a copy of the state in the memory of a CUDA device, which pawl then protects instead of the one here.
//
// What a step changes is written here and uploaded behind it, in a stream of its own, as an optimizer's kernels would
// write it: when upload() returns it may still be going on. Uses the driver API of the machine's libcuda.so.1, looked up at
// run time. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace statebench {

class Device {
 public:
  Device() = default;
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Device 0, with so many bytes of its memory, and as many of pinned host memory. False: `why` says what is missing.
  [[nodiscard]] bool open(std::uint64_t bytes, std::string* why);
  [[nodiscard]] bool is_open() const { return stream_ != nullptr; }
  [[nodiscard]] void* host() const { return host_; }  // pinned
  [[nodiscard]] std::byte* memory() const { return reinterpret_cast<std::byte*>(memory_); }
  [[nodiscard]] void* stream() const { return stream_; }

  // Of these bytes; each returns false where the device fails. After finish() all is done.
  [[nodiscard]] bool upload(std::uint64_t begin, std::uint64_t bytes);
  [[nodiscard]] bool download(std::uint64_t begin, std::uint64_t bytes);
  [[nodiscard]] bool finish();

 private:
  struct Driver;
  Driver* driver_ = nullptr;
  unsigned long long memory_ = 0;
  void* host_ = nullptr;
  void* stream_ = nullptr;
};

}  // namespace statebench
