#include "fake_cuda/cuda_abi.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "fake_cuda/engine.h"

using fake_cuda::current_context;
using fake_cuda::current_contexts;
using fake_cuda::Engine;
using fake_cuda::find_memory;
using fake_cuda::Lock;
using fake_cuda::Memory;
using fake_cuda::Operation;

namespace {

constexpr int kDriverVersion = 12040;
constexpr uint64_t kLegacyHandle = 1;  // CU_STREAM_LEGACY; null means the same
constexpr unsigned kNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
constexpr int kMemoryType = 2;         // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int kDeviceOrdinal = 9;      // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned kHostType = 1;      // CU_MEMORYTYPE_HOST
constexpr unsigned kDeviceType = 2;    // CU_MEMORYTYPE_DEVICE

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
  bool breaks_context;
};
constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error", false},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument", false},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory", false},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error", false},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down", false},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal", false},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context", false},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error", true},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle", false},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready", false},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access", true},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "launch timed out", true},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed", false},
    {CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert", true},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "already pinned", false},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "not pinned", false},
    {CUDA_ERROR_HARDWARE_STACK_ERROR, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error", true},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "launch failure", true},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted", false},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not while capturing", false},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error", false},
};

const ErrorText* find_error(CUresult code) {
  const auto* const found = std::ranges::find(kErrors, code, &ErrorText::code);
  return found == std::end(kErrors) ? nullptr : found;
}

// What a call must find before it does anything.
enum class Needs { kNothing, kDriver, kContext };

CUresult admit(Engine& engine, const char* name, Needs needs) {
  const uint64_t number = ++engine.counters.calls[name];
  const auto failure = engine.plan.failures.find(name);
  if (failure != engine.plan.failures.end() && failure->second.at_call == number) {
    const ErrorText* const error = find_error(failure->second.code);
    if (error != nullptr && error->breaks_context) {
      engine.break_down(error->code);
    }
    return failure->second.code;
  }
  if (needs == Needs::kNothing) {
    return CUDA_SUCCESS;
  }
  if (fake_cuda::in_stream_thread()) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (!engine.initialized) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (engine.broken != CUDA_SUCCESS) {
    return engine.broken;
  }
  if (needs == Needs::kContext) {
    const CUcontext context = current_context(engine);
    if (context == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    return context->references > 0 ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  return CUDA_SUCCESS;
}

struct Call {
  Engine& engine;
  Lock lock;
  CUcontext context;

  // Null: no such stream, or the default stream of no context.
  CUstream stream(CUstream handle) {
    if (handle == nullptr || reinterpret_cast<uint64_t>(handle) == kLegacyHandle) {
      return context == nullptr ? nullptr : engine.legacy_stream(context);
    }
    return engine.find_stream(handle);
  }
  CUevent event(CUevent handle) { return engine.events.contains(handle) ? handle : nullptr; }
};

template <class Body>
CUresult called(const char* name, Needs needs, Body body) {
  Engine& engine = Engine::get();
  Call call{engine, Lock(engine.mutex), nullptr};
  const CUresult code = admit(engine, name, needs);
  if (code != CUDA_SUCCESS) {
    return code;
  }
  call.context = current_context(engine);
  return body(call);
}

// For calls that ask for a stream.
template <class Body>
CUresult called_with_stream(const char* name, CUstream handle, Body body) {
  return called(name, Needs::kContext, [&](Call& call) -> CUresult {
    const CUstream stream = call.stream(handle);
    return stream == nullptr ? CUresult{CUDA_ERROR_INVALID_HANDLE} : body(call, stream);
  });
}

Operation operation(const char* what, uint64_t about, size_t size_bytes, std::function<void()> work) {
  Operation made;
  made.record.what = what;
  made.record.about = about;
  made.record.size_bytes = size_bytes;
  made.work = std::move(work);
  return made;
}

bool overlaps(const std::map<uint64_t, Memory>& all, uint64_t address, size_t size_bytes) {
  return std::ranges::any_of(all, [&](const auto& entry) {
    return entry.first < address + size_bytes && address < entry.first + entry.second.size_bytes;
  });
}

struct Copy {
  void* host;
  CUdeviceptr device;
  size_t size_bytes;
  bool to_host;
  bool synchronous;
};

CUresult copy(Call& call, CUstream stream, Copy copy) {
  if (copy.size_bytes == 0) {
    return CUDA_SUCCESS;
  }
  Engine& engine = call.engine;
  char* const bytes = engine.device_bytes(copy.device, copy.size_bytes);
  const auto host = reinterpret_cast<uint64_t>(copy.host);
  if (bytes == nullptr || copy.host == nullptr || overlaps(engine.device_memory, host, copy.size_bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool pageable = find_memory(engine.pinned_memory, host, copy.size_bytes) == nullptr;
  engine.counters.pageable_copies += pageable ? 1 : 0;
  Operation entering = operation(copy.to_host ? "copy_to_host" : "copy_to_device", copy.device, copy.size_bytes, [=] {
    std::memcpy(copy.to_host ? copy.host : bytes, copy.to_host ? bytes : copy.host, copy.size_bytes);
  });
  entering.is_copy = true;
  const auto entered = engine.enqueue(stream, std::move(entering));
  return copy.synchronous || pageable ? engine.wait(call.lock, {entered}) : CUresult{CUDA_SUCCESS};
}

// Frees what `address` begins, when nothing runs that may use it.
CUresult free_memory(Call& call, std::map<uint64_t, Memory>& all, uint64_t address, bool ours, CUresult unknown) {
  const auto is_known = [&] {
    const auto found = all.find(address);
    return found != all.end() && found->second.ours == ours;
  };
  if (!is_known()) {
    return unknown;
  }
  const CUresult code = call.engine.wait_for_context(call.lock, all.at(address).context);
  if (code != CUDA_SUCCESS || !is_known()) {
    return code != CUDA_SUCCESS ? code : unknown;
  }
  Engine::free(all.at(address));
  all.erase(address);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuInit(unsigned flags) {
  return called(__func__, Needs::kNothing, [](Call& call) -> CUresult {
    call.engine.initialized = true;
    return CUDA_SUCCESS;
  });
}

CUresult cuDriverGetVersion(int* version) {
  return called(__func__, Needs::kNothing, [&](Call& call) -> CUresult {
    *version = kDriverVersion;
    return CUDA_SUCCESS;
  });
}

CUresult cuGetErrorName(CUresult code, const char** name) {
  const ErrorText* const error = find_error(code);
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  const ErrorText* const error = find_error(code);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    *count = call.engine.device_count;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    if (ordinal < 0 || ordinal >= call.engine.device_count) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    if (device < 0 || device >= call.engine.device_count) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    *context = &call.engine.contexts[device];
    ++(*context)->references;
    return CUDA_SUCCESS;
  });
}

// The last release destroys what the context holds, as the real one does.
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    if (device < 0 || device >= call.engine.device_count) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    CUctx_st& context = call.engine.contexts[device];
    if (context.references == 0) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--context.references == 0) {
      call.engine.clear(call.lock, &context);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    *context = call.context;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    if (context != nullptr && context->references == 0) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    auto& stack = current_contexts(call.engine);
    if (!stack.empty()) {
      stack.pop_back();
    }
    if (context != nullptr) {
      stack.push_back(context);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    if (context == nullptr || context->references == 0) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    current_contexts(call.engine).push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    if (call.context == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (context != nullptr) {
      *context = call.context;
    }
    current_contexts(call.engine).pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize() {
  return called(__func__, Needs::kContext,
                [&](Call& call) { return call.engine.wait_for_context(call.lock, call.context); });
}

// Wants no current context: who asks does not know yet of which device the memory is.
CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    const auto* const device = find_memory(call.engine.device_memory, address, 0);
    const auto* const found = device != nullptr ? device : find_memory(call.engine.pinned_memory, address, 0);
    if (value == nullptr || found == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (attribute == kMemoryType) {
      const unsigned type = device != nullptr ? kDeviceType : kHostType;
      std::memcpy(value, &type, sizeof type);
      return CUDA_SUCCESS;
    }
    if (attribute == kDeviceOrdinal) {
      std::memcpy(value, &found->second.context->device, sizeof(int));
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return called(__func__, Needs::kContext, [&](Call& call) -> CUresult {
    if (stream == nullptr || flags > kNonBlocking) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *stream = call.engine.open_stream(call.context, flags != kNonBlocking);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  return called(__func__, Needs::kContext, [&](Call& call) -> CUresult {
    const CUstream stream = call.engine.find_stream(handle);
    if (stream == nullptr || stream == stream->context->legacy) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    call.engine.close_stream(call.lock, stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return called_with_stream(__func__, handle, [&](Call& call, CUstream stream) -> CUresult {
    return stream->capturing ? CUresult{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED}
                             : call.engine.wait(call.lock, call.engine.tails(stream, false));
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return called_with_stream(__func__, handle, [&](Call& call, CUstream stream) -> CUresult {
    if (stream->capturing) {
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return call.engine.idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  return called_with_stream(__func__, handle, [&](Call& call, CUstream stream) -> CUresult {
    const CUevent event = call.event(event_handle);
    if (event == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    Operation entering = operation("wait", reinterpret_cast<uint64_t>(event), 0, nullptr);
    if (event->recorded != nullptr && !event->recorded->done) {
      entering.after.push_back(event->recorded);
    }
    call.engine.enqueue(stream, std::move(entering));
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamIsCapturing(CUstream handle, int* status) {
  return called_with_stream(__func__, handle, [&](Call& call, CUstream stream) -> CUresult {
    *status = stream->capturing ? 1 : 0;  // CU_STREAM_CAPTURE_STATUS_ACTIVE, _NONE
    return CUDA_SUCCESS;
  });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return called(__func__, Needs::kContext, [&](Call& call) -> CUresult {
    auto made = std::make_unique<CUevent_st>(CUevent_st{call.context, nullptr});
    *event = made.get();
    call.engine.events[*event] = std::move(made);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy_v2(CUevent event) {
  return called(__func__, Needs::kContext, [&](Call& call) -> CUresult {
    return call.engine.events.erase(event) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
  return called_with_stream(__func__, handle, [&](Call& call, CUstream stream) -> CUresult {
    const CUevent event = call.event(event_handle);
    if (event == nullptr || event->context != stream->context) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    event->recorded = call.engine.enqueue(stream, operation("record", reinterpret_cast<uint64_t>(event), 0, nullptr));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventQuery(CUevent handle) {
  return called(__func__, Needs::kDriver, [&](Call& call) -> CUresult {
    const CUevent event = call.event(handle);
    if (event == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    return event->recorded == nullptr || event->recorded->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return called(__func__, Needs::kContext, [&](Call& call) -> CUresult {
    const CUevent event = call.event(handle);
    if (event == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    std::vector<std::shared_ptr<Operation>> recorded;
    if (event->recorded != nullptr) {
      recorded.push_back(event->recorded);
    }
    return call.engine.wait(call.lock, std::move(recorded));
  });
}

CUresult cuMemHostAlloc(void** host, size_t size_bytes, unsigned flags) {
  return called(__func__, Needs::kContext, [&](Call& call) -> CUresult {
    if (size_bytes == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *host = call.engine.allocate(call.context, size_bytes, false);
    return *host == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  });
}

CUresult cuMemFreeHost(void* host) {
  return called(__func__, Needs::kContext, [&](Call& call) {
    return free_memory(call, call.engine.pinned_memory, reinterpret_cast<uint64_t>(host), true,
                       CUDA_ERROR_INVALID_VALUE);
  });
}

CUresult cuMemHostRegister_v2(void* host, size_t size_bytes, unsigned flags) {
  return called(__func__, Needs::kContext, [&](Call& call) -> CUresult {
    const auto address = reinterpret_cast<uint64_t>(host);
    if (host == nullptr || size_bytes == 0 || overlaps(call.engine.device_memory, address, size_bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (overlaps(call.engine.pinned_memory, address, size_bytes)) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    call.engine.pinned_memory[address] = Memory{call.context, size_bytes, host, nullptr, false};
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* host) {
  return called(__func__, Needs::kContext, [&](Call& call) {
    return free_memory(call, call.engine.pinned_memory, reinterpret_cast<uint64_t>(host), false,
                       CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size_bytes) {
  return called(__func__, Needs::kContext, [&](Call& call) -> CUresult {
    if (size_bytes == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *address = reinterpret_cast<CUdeviceptr>(call.engine.allocate(call.context, size_bytes, true));
    return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  });
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return called(__func__, Needs::kContext, [&](Call& call) {
    return free_memory(call, call.engine.device_memory, address, true, CUDA_ERROR_INVALID_VALUE);
  });
}

CUresult cuMemcpyDtoHAsync_v2(void* host, CUdeviceptr device, size_t size_bytes, CUstream handle) {
  return called_with_stream(__func__, handle, [&](Call& call, CUstream stream) {
    return copy(call, stream, {host, device, size_bytes, true, false});
  });
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr device, const void* host, size_t size_bytes, CUstream handle) {
  return called_with_stream(__func__, handle, [&](Call& call, CUstream stream) {
    return copy(call, stream, {const_cast<void*>(host), device, size_bytes, false, false});
  });
}

CUresult cuMemcpyDtoH_v2(void* host, CUdeviceptr device, size_t size_bytes) {
  return called_with_stream(__func__, nullptr, [&](Call& call, CUstream stream) {
    return copy(call, stream, {host, device, size_bytes, true, true});
  });
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr device, const void* host, size_t size_bytes) {
  return called_with_stream(__func__, nullptr, [&](Call& call, CUstream stream) {
    return copy(call, stream, {const_cast<void*>(host), device, size_bytes, false, true});
  });
}

CUresult cuMemsetD8Async(CUdeviceptr device, unsigned char value, size_t count, CUstream handle) {
  return called_with_stream(__func__, handle, [&](Call& call, CUstream stream) -> CUresult {
    char* const bytes = call.engine.device_bytes(device, count);
    if (bytes == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    call.engine.enqueue(stream, operation("memset", device, count, [=] { std::memset(bytes, value, count); }));
    return CUDA_SUCCESS;
  });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
  return called_with_stream(__func__, handle, [&](Call& call, CUstream stream) -> CUresult {
    if (function == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    call.engine.enqueue(stream,
                        operation("function", reinterpret_cast<uint64_t>(argument), 0, [=] { function(argument); }));
    return CUDA_SUCCESS;
  });
}
