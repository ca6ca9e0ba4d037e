// CudaDriver: CUDA's driver API, as far as pawl uses it. Declared here and looked up in the library that the process has
// loaded, so that nothing of CUDA is needed to build pawl or to run it on CPUs.
//
// Numbers and signatures are those of NVIDIA's "CUDA Driver API" (cuda.h, since CUDA 11). Names are cuda.h's without
// `cu`; functions that have versions are `_v2`. All of them want a current context of the calling thread, except those of
// devices and pointers. Thread-safe, as the driver is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pawl {

using CudaAddress = unsigned long long;         // CUdeviceptr
using CudaContext = struct CudaContextObject*;  // CUcontext
using CudaStream = struct CudaStreamObject*;    // CUstream; nullptr: the legacy default stream
using CudaEvent = struct CudaEventObject*;      // CUevent
using CudaAnswer = int;                         // CUresult; 0: done

struct CudaDriver {
  CudaAnswer (*init)(unsigned flags);
  CudaAnswer (*device_get)(int* device, int ordinal);
  CudaAnswer (*primary_context_retain)(CudaContext* context, int device);
  CudaAnswer (*primary_context_release)(int device);
  CudaAnswer (*context_push)(CudaContext context);
  CudaAnswer (*context_pop)(CudaContext* context);
  CudaAnswer (*context_synchronize)();
  CudaAnswer (*pointer_attribute)(void* value, int attribute, CudaAddress address);
  CudaAnswer (*stream_create)(CudaStream* stream, unsigned flags);
  CudaAnswer (*stream_destroy)(CudaStream stream);
  CudaAnswer (*stream_synchronize)(CudaStream stream);
  CudaAnswer (*stream_wait_event)(CudaStream stream, CudaEvent event, unsigned flags);
  CudaAnswer (*stream_is_capturing)(CudaStream stream, int* status);
  CudaAnswer (*event_create)(CudaEvent* event, unsigned flags);
  CudaAnswer (*event_destroy)(CudaEvent event);
  CudaAnswer (*event_record)(CudaEvent event, CudaStream stream);
  CudaAnswer (*event_query)(CudaEvent event);
  CudaAnswer (*event_synchronize)(CudaEvent event);
  CudaAnswer (*host_alloc)(void** memory, std::size_t bytes, unsigned flags);  // pinned
  CudaAnswer (*host_free)(void* memory);
  CudaAnswer (*copy_to_host)(void* to, CudaAddress from, std::size_t bytes, CudaStream stream);
  CudaAnswer (*copy_to_device)(CudaAddress to, const void* from, std::size_t bytes, CudaStream stream);
  CudaAnswer (*error_string)(CudaAnswer answer, const char** text);
};

inline constexpr CudaAnswer kCudaNotReady = 600;
inline constexpr int kCudaPointerContext = 1;  // attributes of pointers
inline constexpr int kCudaMemoryType = 2;
inline constexpr int kCudaIsManaged = 8;
inline constexpr int kCudaDeviceOrdinal = 9;
inline constexpr unsigned kCudaMemoryOfDevice = 2;  // values of kCudaMemoryType
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventBlockingSync = 1;  // who waits for it sleeps
inline constexpr unsigned kCudaEventWithoutTiming = 2;
inline constexpr unsigned kCudaHostPortable = 1;  // pinned for all contexts

// The driver, if the process has it loaded by now (libcuda.so.1: whoever has memory on a GPU has). nullptr: it hasn't, or
// that library lacks a function of those. Any thread; a look costs less than a microsecond once it was found.
[[nodiscard]] const CudaDriver* loaded_cuda_driver();

// "an illegal memory access was encountered (CUDA error 700)".
[[nodiscard]] std::string cuda_sentence(const CudaDriver& driver, CudaAnswer answer);

}  // namespace pawl
