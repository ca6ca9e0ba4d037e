#include "env/cuda_driver.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

#include "base/text.h"

namespace pawl {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// Kept for the life of the process, as the library is: its threads may call until the end.
const CudaDriver* look_up() {
  void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr) return nullptr;
  static CudaDriver driver;
  const bool whole =
      find(library, "cuInit", driver.init) && find(library, "cuDeviceGet", driver.device_get) &&
      find(library, "cuDevicePrimaryCtxRetain", driver.primary_context_retain) &&
      find(library, "cuDevicePrimaryCtxRelease_v2", driver.primary_context_release) &&
      find(library, "cuCtxPushCurrent_v2", driver.context_push) &&
      find(library, "cuCtxPopCurrent_v2", driver.context_pop) &&
      find(library, "cuCtxSynchronize", driver.context_synchronize) &&
      find(library, "cuPointerGetAttribute", driver.pointer_attribute) &&
      find(library, "cuStreamCreate", driver.stream_create) &&
      find(library, "cuStreamDestroy_v2", driver.stream_destroy) &&
      find(library, "cuStreamSynchronize", driver.stream_synchronize) &&
      find(library, "cuStreamWaitEvent", driver.stream_wait_event) &&
      find(library, "cuStreamIsCapturing", driver.stream_is_capturing) &&
      find(library, "cuEventCreate", driver.event_create) && find(library, "cuEventDestroy_v2", driver.event_destroy) &&
      find(library, "cuEventRecord", driver.event_record) && find(library, "cuEventQuery", driver.event_query) &&
      find(library, "cuEventSynchronize", driver.event_synchronize) &&
      find(library, "cuMemHostAlloc", driver.host_alloc) && find(library, "cuMemFreeHost", driver.host_free) &&
      find(library, "cuMemcpyDtoHAsync_v2", driver.copy_to_host) &&
      find(library, "cuMemcpyHtoDAsync_v2", driver.copy_to_device) &&
      find(library, "cuGetErrorString", driver.error_string);
  return whole ? &driver : nullptr;
}

}  // namespace

const CudaDriver* loaded_cuda_driver() {
  static std::atomic<const CudaDriver*> found{nullptr};
  if (const CudaDriver* driver = found.load(std::memory_order_acquire)) return driver;
  static std::mutex one_at_a_time;
  std::lock_guard lock(one_at_a_time);
  if (found.load() == nullptr) found.store(look_up(), std::memory_order_release);
  return found.load();
}

std::string cuda_sentence(const CudaDriver& driver, CudaAnswer answer) {
  const char* words = nullptr;
  if (driver.error_string(answer, &words) != 0 || words == nullptr) words = "unknown error";
  return text(words, " (CUDA error ", answer, ")");
}

}  // namespace pawl
