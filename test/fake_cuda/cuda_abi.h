// The part of the CUDA driver API that the fake offers: names and signatures as exported by libcuda.so.1.
//
// Declared by us, from the public documentation. Only the fake and its test include this; who loads the library with dlsym
// has declarations of its own.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)
extern "C" {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUhostFn = void (*)(void*);

enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_UNKNOWN = 999,
};

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int* version);
CUresult cuGetErrorName(CUresult code, const char** name);
CUresult cuGetErrorString(CUresult code, const char** text);
CUresult cuDeviceGetCount(int* count);
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext* context);
CUresult cuCtxSynchronize();
CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address);

CUresult cuStreamCreate(CUstream* stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamIsCapturing(CUstream stream, int* status);
CUresult cuEventCreate(CUevent* event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);

CUresult cuMemHostAlloc(void** host, size_t size_bytes, unsigned flags);
CUresult cuMemFreeHost(void* host);
CUresult cuMemHostRegister_v2(void* host, size_t size_bytes, unsigned flags);
CUresult cuMemHostUnregister(void* host);
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size_bytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemcpyDtoHAsync_v2(void* host, CUdeviceptr device, size_t size_bytes, CUstream stream);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr device, const void* host, size_t size_bytes, CUstream stream);
CUresult cuMemcpyDtoH_v2(void* host, CUdeviceptr device, size_t size_bytes);
CUresult cuMemcpyHtoD_v2(CUdeviceptr device, const void* host, size_t size_bytes);
CUresult cuMemsetD8Async(CUdeviceptr device, unsigned char value, size_t count, CUstream stream);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument);
}
#pragma GCC visibility pop
