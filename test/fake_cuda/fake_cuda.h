// A fake CUDA driver: libcuda.so.1 for tests on machines without a GPU. This is what a test calls beside the driver API.
//
// Device memory has addresses that the CPU can't touch; its bytes are elsewhere (fake_cuda_memory). A stream is a queue and
// a thread, and stream 0 is the legacy default stream. A copy moves all its bytes at its end, so that whoever uses them early
// is caught. A kernel is a cuLaunchHostFunc whose function writes to fake_cuda_memory.
// A test program that links pawl_fake_cuda has the library loaded: dlopen("libcuda.so.1", RTLD_NOLOAD) finds it. Another
// program finds it by LD_LIBRARY_PATH, and these calls by dlsym or ctypes: they are plain C.
// Handles are those of the driver API, as pointers without a type. A stream that is null is the legacy default stream of the
// current context, or of device 0. `nth` counts from the call on: 1 is the next. All calls are thread-safe.
// Not faked: kernels, managed memory, copies between devices, graphs (but see fake_cuda_set_capturing), several contexts of
// one device, per-thread default streams. Copies of different streams don't slow each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
extern "C" {

// Ends all streams, frees everything, and forgets what tests asked for: a driver before cuInit. `device_count` is 1 to 8.
// A function of cuLaunchHostFunc that runs is waited for.
void fake_cuda_reset(int device_count);

void fake_cuda_set_copy_rate(uint64_t bytes_per_second);  // 0, the default: copies take no time
void fake_cuda_hold_stream(void* stream);                 // nothing more in it begins until it is released
void fake_cuda_release_stream(void* stream);
void fake_cuda_set_capturing(void* stream, int capturing);  // as if a graph were captured from it

// The nth call of the function with that exported name ("cuMemAlloc_v2") does nothing and answers `code`. A code that breaks
// a real context (700, 719, ...) is answered by every later call but cuInit, cuDriverGetVersion and those that name an error,
// on all devices, and what is in streams is dropped.
void fake_cuda_fail_call(const char* name, uint64_t nth, int code);
void fake_cuda_break(int code);  // as if the device had just reported this error
// The nth operation that enters a stream begins in its turn, and does not end until all are released.
void fake_cuda_stall_operation(uint64_t nth);
void fake_cuda_release_operations();

void* fake_cuda_memory(uint64_t device_address);  // the bytes of device memory; null if that is none

uint64_t fake_cuda_calls(const char* name);  // by exported name, failed ones too
uint64_t fake_cuda_pageable_copies();        // copies to or from host memory that isn't pinned
uint64_t fake_cuda_waits();  // calls that wait for the device: synchronize, plain and pageable copies, free
uint64_t fake_cuda_live();   // streams, events and allocations that nobody has destroyed

// An operation that has ended, in the order of the ends.
struct fake_cuda_operation {
  void* stream;      // null: the legacy default stream
  const char* what;  // "record", "wait", "copy_to_host", "copy_to_device", "memset", "function"
  uint64_t about;    // the event's handle, the device address, or the function's argument
  uint64_t size_bytes;
  int64_t begin_ns;  // of the steady clock
  int64_t end_ns;
};
// Writes the first `count_max` of them and returns how many there are.
size_t fake_cuda_operations(struct fake_cuda_operation* operations, size_t count_max);
}
#pragma GCC visibility pop

namespace fake_cuda {

inline std::vector<fake_cuda_operation> operations() {
  std::vector<fake_cuda_operation> all(fake_cuda_operations(nullptr, 0));
  const size_t count = fake_cuda_operations(all.data(), all.size());
  all.resize(count < all.size() ? count : all.size());
  return all;
}

template <class T = char>
T* memory(uint64_t device_address) {
  return static_cast<T*>(fake_cuda_memory(device_address));
}

}  // namespace fake_cuda
