// The engine of the fake CUDA driver: contexts, streams with a thread each, operations, memory.
//
// One mutex guards everything; an operation's work runs without it. An operation begins when it is the first of its stream
// and all operations that it comes after are done. Who waits, waits for `changed`.
// Knows nothing of the driver API's calls and of their errors (cuda_abi.cc), nor of what tests call (fake_cuda.cc).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda/cuda_abi.h"
#include "fake_cuda/fake_cuda.h"

namespace fake_cuda {

constexpr int kDevicesMax = 8;

struct Operation {
  fake_cuda_operation record{};
  std::function<void()> work;
  std::vector<std::shared_ptr<Operation>> after;
  bool is_copy = false;
  bool stalled = false;
  bool done = false;  // or dropped
};

// Device memory, or host memory that is pinned.
struct Memory {
  CUcontext context;
  size_t size_bytes;
  void* begin;
  char* bytes;  // device memory: where they are; else null
  bool ours;    // host memory: allocated here, not only registered
};

// What tests asked for.
struct Plan {
  struct Failure {
    uint64_t at_call;
    CUresult code;
  };
  uint64_t copy_rate = 0;
  std::map<std::string, Failure> failures;
  std::set<uint64_t> stalls;  // by number of the operation
};

// What tests may ask.
struct Counters {
  std::map<std::string, uint64_t> calls;
  uint64_t operations = 0;
  uint64_t pageable_copies = 0;
  uint64_t waits = 0;
};

}  // namespace fake_cuda

struct CUctx_st {
  int device = 0;
  int references = 0;
  CUstream legacy = nullptr;  // made when it is first used
};

struct CUevent_st {
  CUcontext context;
  std::shared_ptr<fake_cuda::Operation> recorded;
};

struct CUstream_st {
  CUcontext context;
  bool blocking;  // the legacy default stream and it wait for each other
  bool held = false;
  bool capturing = false;
  bool closing = false;  // destroyed: ends when its queue is empty
  bool stopped = false;  // ends now
  std::deque<std::shared_ptr<fake_cuda::Operation>> queue;
  std::shared_ptr<fake_cuda::Operation> running;
  std::shared_ptr<fake_cuda::Operation> last;
  std::thread thread;
};

namespace fake_cuda {

using Lock = std::unique_lock<std::mutex>;

// Every method wants the mutex held.
struct Engine {
  std::mutex mutex;
  std::condition_variable changed;
  bool initialized = false;
  int device_count = 1;
  uint64_t life = 1;  // grows with each reset
  CUresult broken = CUDA_SUCCESS;
  CUctx_st contexts[kDevicesMax];
  std::vector<std::shared_ptr<CUstream_st>> streams;
  std::map<CUevent, std::unique_ptr<CUevent_st>> events;
  std::map<uint64_t, Memory> device_memory;  // by address
  std::map<uint64_t, Memory> pinned_memory;
  Plan plan;
  Counters counters;
  std::vector<fake_cuda_operation> log;

  static Engine& get();

  CUstream open_stream(CUcontext context, bool blocking);
  void close_stream(Lock& lock, CUstream stream);
  CUstream legacy_stream(CUcontext context);
  CUstream find_stream(CUstream handle);  // null if there is none

  std::shared_ptr<Operation> enqueue(CUstream stream, Operation operation);
  // What a new operation of the stream comes after, and what a wait for the stream waits for.
  std::vector<std::shared_ptr<Operation>> tails(CUstream stream, bool for_new_operation);
  bool idle(CUstream stream);
  CUresult wait(Lock& lock, std::vector<std::shared_ptr<Operation>> operations);
  CUresult wait_for_context(Lock& lock, CUcontext context);

  void break_down(CUresult code);
  void clear(Lock& lock, CUcontext context);  // null: all contexts

  void* allocate(CUcontext context, size_t size_bytes, bool on_device);  // null: there is no memory
  static void free(const Memory& memory);
  char* device_bytes(uint64_t address, size_t size_bytes);  // null unless the whole range is one allocation's
};

// The memory that holds the whole range, or null.
const std::pair<const uint64_t, Memory>* find_memory(const std::map<uint64_t, Memory>& all, uint64_t address,
                                                     size_t size_bytes);

bool in_stream_thread();
std::vector<CUcontext>& current_contexts(const Engine& engine);  // of this thread; the last is current
CUcontext current_context(const Engine& engine);                 // or null

}  // namespace fake_cuda
