#include "fake_cuda/fake_cuda.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda/cuda_abi.h"

namespace fake_cuda {
namespace {

using namespace std::chrono_literals;

constexpr size_t kBytes = 10000;  // no whole number of pages
constexpr unsigned kNonBlocking = 1;

// A context on device 0 with device memory of kBytes and pinned memory of as many.
class FakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_cuda_reset(2);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc_v2(&device_, kBytes), CUDA_SUCCESS);
    void* host = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&host, kBytes, 0), CUDA_SUCCESS);
    host_ = static_cast<char*>(host);
  }
  void TearDown() override { fake_cuda_reset(1); }

  static CUstream stream(unsigned flags = kNonBlocking) {
    CUstream made = nullptr;
    EXPECT_EQ(cuStreamCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }
  static CUevent event() {
    CUevent made = nullptr;
    EXPECT_EQ(cuEventCreate(&made, 0), CUDA_SUCCESS);
    return made;
  }
  // True soon, or never.
  template <class Condition>
  static bool soon(Condition condition) {
    for (int tries = 0; tries < 5000 && !condition(); ++tries) {
      std::this_thread::sleep_for(1ms);
    }
    return condition();
  }
  // What would happen by now, if nothing were in its way.
  static void let_it_run() { std::this_thread::sleep_for(20ms); }
  static const fake_cuda_operation& find(const std::vector<fake_cuda_operation>& all, const std::string& what) {
    const auto found = std::ranges::find_if(all, [&](const auto& operation) { return operation.what == what; });
    EXPECT_NE(found, all.end()) << what;
    return found == all.end() ? all.front() : *found;
  }

  CUcontext context_ = nullptr;
  CUdeviceptr device_ = 0;
  char* host_ = nullptr;
};

TEST(FakeCudaLibrary, IsLoadedUnderTheNameOfTheRealOne) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_EQ(dlsym(library, "cuMemcpyDtoHAsync_v2"), reinterpret_cast<void*>(&cuMemcpyDtoHAsync_v2));
  EXPECT_EQ(dlsym(library, "fake_cuda_memory"), reinterpret_cast<void*>(&fake_cuda_memory));
  Dl_info where{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&cuInit), &where), 0);
  EXPECT_EQ(std::string(where.dli_fname), FAKE_CUDA_FOLDER "/libcuda.so.1");
  dlclose(library);
}

TEST(FakeCudaLibrary, AnswersNothingBeforeInit) {
  fake_cuda_reset(1);
  int number = 0;
  EXPECT_EQ(cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuDriverGetVersion(&number), CUDA_SUCCESS);
  EXPECT_GE(number, 11000);
  fake_cuda_fail_call("cuInit", 1, CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGetCount(&number), CUDA_SUCCESS);
  EXPECT_EQ(number, 1);
  EXPECT_EQ(cuDeviceGet(&number, 1), CUDA_ERROR_INVALID_DEVICE);
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(cuGetErrorName(12345, &text), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, AContextIsCurrentInOneThread) {
  CUcontext other = nullptr;
  CUcontext current = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxPushCurrent_v2(other), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, other);
  EXPECT_EQ(cuCtxPopCurrent_v2(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, other);
  EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, context_);
  const CUevent known = event();
  std::thread([&] {
    CUcontext none = context_;
    EXPECT_EQ(cuCtxGetCurrent(&none), CUDA_SUCCESS);
    EXPECT_EQ(none, nullptr);
    CUstream made = nullptr;
    CUevent made_event = nullptr;
    CUdeviceptr address = 0;
    EXPECT_EQ(cuCtxPopCurrent_v2(&none), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuStreamCreate(&made, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuEventCreate(&made_event, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemAlloc_v2(&address, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemHostRegister_v2(&address, 1, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemcpyDtoH_v2(host_, device_, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_, device_, 1, nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuEventRecord(known, nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuEventQuery(known), CUDA_SUCCESS);
  }).join();
}

TEST_F(FakeCuda, TheLastReleaseDestroysWhatAContextHolds) {
  stream();
  event();
  EXPECT_EQ(fake_cuda_live(), 4u);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(fake_cuda_live(), 4u);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(fake_cuda_live(), 0u);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(FakeCuda, EverythingCanBeDestroyedByHand) {
  const CUstream made = stream();
  const CUevent recorded = event();
  EXPECT_EQ(cuEventRecord(recorded, made), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy_v2(recorded), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy_v2(recorded), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(recorded), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy_v2(made), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy_v2(made), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamQuery(made), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMemFree_v2(device_ + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(device_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(device_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(host_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(host_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fake_cuda_live(), 0u);
}

TEST_F(FakeCuda, TheProcessorCannotTouchDeviceMemory) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  auto* const address = std::bit_cast<void*>(device_);
  EXPECT_EQ(write(ends[1], address, 1), -1);  // the kernel's load: what would be SIGSEGV here is EFAULT there
  EXPECT_EQ(errno, EFAULT);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  EXPECT_EQ(read(ends[0], address, 1), -1);
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(FakeCuda, SaysWhatAPointerIs) {
  unsigned type = 0;
  int ordinal = -1;
  CUcontext second = nullptr;
  CUdeviceptr there = 0;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent_v2(second), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc_v2(&there, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuPointerGetAttribute(&type, 2, device_ + kBytes - 1), CUDA_SUCCESS);
  EXPECT_EQ(type, 2u);
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, 9, there), CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 1);
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, 9, device_), CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(cuPointerGetAttribute(&type, 2, reinterpret_cast<CUdeviceptr>(host_)), CUDA_SUCCESS);
  EXPECT_EQ(type, 1u);
  EXPECT_EQ(cuPointerGetAttribute(&type, 2, device_ + kBytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuPointerGetAttribute(&type, 2, reinterpret_cast<CUdeviceptr>(&type)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, RegisteredMemoryIsPinnedUntilItIsNotRegistered) {
  std::vector<char> plain(kBytes);
  const CUstream copies = stream();
  EXPECT_EQ(cuMemHostRegister_v2(plain.data(), kBytes, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister_v2(plain.data() + 1, 1, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  fake_cuda_hold_stream(copies);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(plain.data(), device_, kBytes, copies), CUDA_SUCCESS);  // returns
  EXPECT_EQ(fake_cuda_pageable_copies(), 0u);
  fake_cuda_release_stream(copies);
  EXPECT_EQ(cuMemFreeHost(plain.data()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostUnregister(plain.data()), CUDA_SUCCESS);  // after the copy
  EXPECT_EQ(cuStreamQuery(copies), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(plain.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(FakeCuda, CopiesOfPageableMemoryAreSynchronousAndCounted) {
  std::vector<char> plain(kBytes, 'p');
  const CUstream copies = stream();
  fake_cuda_set_copy_rate(kBytes * 20);  // 50 ms
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(device_, plain.data(), kBytes, copies), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(copies), CUDA_SUCCESS);
  EXPECT_EQ(memory(device_)[kBytes - 1], 'p');
  EXPECT_EQ(fake_cuda_pageable_copies(), 1u);
  EXPECT_EQ(fake_cuda_waits(), 1u);
  fake_cuda_hold_stream(copies);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_, device_, kBytes, copies), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(copies), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(fake_cuda_pageable_copies(), 1u);
  EXPECT_EQ(fake_cuda_waits(), 1u);
}

TEST_F(FakeCuda, RefusesRangesThatItDoesNotKnow) {
  EXPECT_EQ(cuMemcpyDtoH_v2(host_, device_ + 1, kBytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(reinterpret_cast<CUdeviceptr>(host_), host_, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8Async(device_, 0, kBytes + 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH_v2(std::bit_cast<void*>(device_), device_, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fake_cuda_memory(device_ + kBytes), nullptr);
}

// A step: a kernel, and a copy in another stream that waits for its event.
TEST_F(FakeCuda, ACopyBeginsAfterTheEventThatItsStreamWaitsFor) {
  const CUstream compute = stream();
  const CUstream copies = stream();
  const CUevent computed = event();
  fake_cuda_hold_stream(compute);
  const auto kernel = [](void* at) { std::memset(at, 'k', kBytes); };
  EXPECT_EQ(cuMemsetD8Async(device_, 'z', kBytes, compute), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchHostFunc(compute, kernel, fake_cuda_memory(device_)), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(computed, compute), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(copies, computed, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_, device_, kBytes, copies), CUDA_SUCCESS);
  let_it_run();
  EXPECT_EQ(cuEventQuery(computed), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(copies), CUDA_ERROR_NOT_READY);
  EXPECT_TRUE(operations().empty());
  fake_cuda_release_stream(compute);
  EXPECT_EQ(cuStreamSynchronize(copies), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(computed), CUDA_SUCCESS);
  EXPECT_EQ(std::string(host_, kBytes), std::string(kBytes, 'k'));
  const auto all = operations();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_STREQ(all.front().what, "memset");
  const auto& record = find(all, "record");
  const auto& copied = find(all, "copy_to_host");
  EXPECT_EQ(record.stream, compute);
  EXPECT_EQ(record.about, reinterpret_cast<uint64_t>(computed));
  EXPECT_EQ(copied.stream, copies);
  EXPECT_EQ(copied.about, device_);
  EXPECT_EQ(copied.size_bytes, kBytes);
  EXPECT_GE(record.begin_ns, find(all, "function").end_ns);
  EXPECT_GE(copied.begin_ns, record.end_ns);
  EXPECT_GE(copied.end_ns, copied.begin_ns);
}

TEST_F(FakeCuda, AWaitIsForTheRecordBeforeIt) {
  const CUstream compute = stream();
  const CUstream copies = stream();
  const CUevent computed = event();
  EXPECT_EQ(cuEventQuery(computed), CUDA_SUCCESS);  // never recorded
  EXPECT_EQ(cuStreamWaitEvent(copies, computed, 0), CUDA_SUCCESS);
  fake_cuda_hold_stream(compute);
  EXPECT_EQ(cuEventRecord(computed, compute), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(copies), CUDA_SUCCESS);  // its wait came before the record
  std::thread releaser([&] {
    let_it_run();
    fake_cuda_release_stream(compute);
  });
  EXPECT_EQ(cuEventSynchronize(computed), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(computed), CUDA_SUCCESS);
  releaser.join();
}

TEST_F(FakeCuda, TheDefaultStreamAndBlockingStreamsWaitForEachOther) {
  const CUstream blocking = stream(0);
  const CUstream other = stream(0);
  const CUstream free = stream();
  fake_cuda_hold_stream(blocking);
  EXPECT_EQ(cuMemsetD8Async(device_, 1, 1, blocking), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(device_ + 1, 1, 1, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(device_ + 2, 1, 1, other), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(device_ + 3, 1, 1, free), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(free), CUDA_SUCCESS);
  let_it_run();
  EXPECT_EQ(operations().size(), 1u);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
  fake_cuda_release_stream(blocking);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  const auto all = operations();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[1].stream, blocking);
  EXPECT_EQ(all[2].stream, nullptr);
  EXPECT_EQ(all[3].stream, other);
}

TEST_F(FakeCuda, TheDefaultStreamDoesNotWaitForANonBlockingStream) {
  const CUstream free = stream();
  fake_cuda_hold_stream(free);
  EXPECT_EQ(cuMemsetD8Async(device_, 1, 1, free), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH_v2(host_, device_, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(free), CUDA_ERROR_NOT_READY);
}

TEST_F(FakeCuda, ACopyTakesItsTime) {
  const CUstream copies = stream();
  fake_cuda_set_copy_rate(kBytes * 10);  // 100 ms
  memory(device_)[0] = 'd';
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_, device_, kBytes, copies), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(copies), CUDA_SUCCESS);
  EXPECT_EQ(host_[0], 'd');
  const auto all = operations();
  EXPECT_GE(all.at(0).end_ns - all.at(0).begin_ns, 99'000'000);
  fake_cuda_set_copy_rate(0);
  EXPECT_EQ(cuMemcpyHtoD_v2(device_ + 5, host_, 1), CUDA_SUCCESS);
  EXPECT_EQ(memory(device_)[5], 'd');
}

TEST_F(FakeCuda, TheNthCallFails) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc_v2(&address, size_t{1} << 62), CUDA_ERROR_OUT_OF_MEMORY);
  fake_cuda_fail_call("cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1), CUDA_SUCCESS);
  EXPECT_EQ(fake_cuda_calls("cuMemAlloc_v2"), 6u);  // one is SetUp's
  EXPECT_EQ(fake_cuda_calls("cuMemsetD8Async"), 0u);
}

TEST_F(FakeCuda, AnErrorThatBreaksTheContextStays) {
  const CUstream copies = stream();
  const CUevent copied = event();
  fake_cuda_hold_stream(copies);
  host_[0] = 'h';
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_, device_, 1, copies), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(copied, copies), CUDA_SUCCESS);
  fake_cuda_fail_call("cuStreamQuery", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamQuery(copies), CUDA_ERROR_ILLEGAL_ADDRESS);
  fake_cuda_release_stream(copies);
  EXPECT_EQ(cuStreamQuery(copies), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuEventQuery(copied), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuMemFree_v2(device_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_TRUE(operations().empty());
  EXPECT_EQ(host_[0], 'h');
}

TEST_F(FakeCuda, ABreakingKernelEndsEveryWait) {
  const CUstream compute = stream();
  const CUstream held = stream();
  fake_cuda_hold_stream(held);
  EXPECT_EQ(cuMemsetD8Async(device_, 1, 1, held), CUDA_SUCCESS);
  std::atomic<CUresult> answer = CUDA_SUCCESS;
  std::thread waiter([&] {
    cuCtxSetCurrent(context_);
    answer = cuStreamSynchronize(held);
  });
  EXPECT_TRUE(soon([] { return fake_cuda_waits() == 1; }));
  fake_cuda_stall_operation(2);
  EXPECT_EQ(cuLaunchHostFunc(
                compute, [](void*) { fake_cuda_break(CUDA_ERROR_LAUNCH_FAILED); }, nullptr),
            CUDA_SUCCESS);
  cuMemsetD8Async(device_, 1, 1, compute);
  EXPECT_EQ(cuStreamSynchronize(compute), CUDA_ERROR_LAUNCH_FAILED);
  waiter.join();
  EXPECT_EQ(answer, CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(FakeCuda, AStalledCopyMovesItsBytesWhenItIsReleased) {
  const CUstream copies = stream();
  host_[1] = host_[2] = 'h';
  memory(device_)[1] = memory(device_)[2] = 'd';
  fake_cuda_stall_operation(2);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_ + 1, device_ + 1, 1, copies), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_ + 2, device_ + 2, 1, copies), CUDA_SUCCESS);
  EXPECT_TRUE(soon([] { return operations().size() == 1; }));
  let_it_run();
  EXPECT_EQ(cuStreamQuery(copies), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(host_[1], 'd');
  EXPECT_EQ(host_[2], 'h');
  fake_cuda_release_operations();
  EXPECT_EQ(cuStreamSynchronize(copies), CUDA_SUCCESS);
  EXPECT_EQ(host_[2], 'd');
}

TEST_F(FakeCuda, ResetEndsWhatWouldNeverEnd) {
  const CUstream copies = stream();
  fake_cuda_stall_operation(1);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_, device_, 1, copies), CUDA_SUCCESS);
  std::atomic<CUresult> answer = CUDA_SUCCESS;
  std::thread waiter([&] {
    cuCtxSetCurrent(context_);
    answer = cuStreamSynchronize(copies);
  });
  EXPECT_TRUE(soon([] { return fake_cuda_waits() == 1; }));
  fake_cuda_reset(1);
  waiter.join();
  EXPECT_EQ(answer, CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(fake_cuda_live(), 0u);
}

TEST_F(FakeCuda, ADestroyedStreamStillDoesItsWork) {
  const CUstream copies = stream();
  fake_cuda_set_copy_rate(20);
  memory(device_)[0] = 'd';
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_, device_, 1, copies), CUDA_SUCCESS);  // 50 ms
  EXPECT_EQ(cuStreamDestroy_v2(copies), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(copies), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(host_[0], 'd');
}

TEST_F(FakeCuda, AHostFunctionMayNotCallTheDriver) {
  const CUstream compute = stream();
  CUresult answer = CUDA_SUCCESS;
  const auto calls = [](void* at) { *static_cast<CUresult*>(at) = cuCtxSynchronize(); };
  EXPECT_EQ(cuLaunchHostFunc(compute, calls, &answer), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(compute), CUDA_SUCCESS);
  EXPECT_EQ(answer, CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(FakeCuda, ACapturedStreamSaysSo) {
  const CUstream captured = stream();
  int status = -1;
  EXPECT_EQ(cuStreamIsCapturing(captured, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, 0);
  fake_cuda_set_capturing(captured, 1);
  EXPECT_EQ(cuStreamIsCapturing(captured, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, 1);
  EXPECT_EQ(cuStreamSynchronize(captured), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

}  // namespace
}  // namespace fake_cuda
