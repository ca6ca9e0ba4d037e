#include "fake_cuda/fake_cuda.h"

#include <algorithm>

#include "fake_cuda/engine.h"

using fake_cuda::Engine;
using fake_cuda::Lock;

namespace {

// The engine, locked for a test's call.
class Locked {
 public:
  Engine* operator->() const { return &engine_; }
  Engine& operator*() const { return engine_; }

 private:
  Engine& engine_ = Engine::get();
  Lock lock_{engine_.mutex};
};

// The stream of a test's call.
CUstream test_stream(Engine& engine, void* handle) {
  if (handle != nullptr) {
    return engine.find_stream(static_cast<CUstream>(handle));
  }
  const CUcontext context = fake_cuda::current_context(engine);
  return engine.legacy_stream(context == nullptr ? &engine.contexts[0] : context);
}

template <class Change>
void change_stream(void* handle, Change change) {
  const Locked engine;
  if (const CUstream stream = test_stream(*engine, handle); stream != nullptr) {
    change(*stream);
    engine->changed.notify_all();
  }
}

}  // namespace

void fake_cuda_reset(int device_count) {
  Engine& engine = Engine::get();
  Lock lock(engine.mutex);
  ++engine.life;
  engine.clear(lock, nullptr);
  engine.initialized = false;
  engine.broken = CUDA_SUCCESS;
  engine.device_count = std::clamp(device_count, 1, fake_cuda::kDevicesMax);
  for (CUctx_st& context : engine.contexts) {
    context.references = 0;
  }
  engine.plan = {};
  engine.counters = {};
  engine.log.clear();
}

void fake_cuda_set_copy_rate(uint64_t bytes_per_second) {
  const Locked engine;
  engine->plan.copy_rate = bytes_per_second;
}

void fake_cuda_hold_stream(void* stream) {
  change_stream(stream, [](CUstream_st& held) { held.held = true; });
}

void fake_cuda_release_stream(void* stream) {
  change_stream(stream, [](CUstream_st& held) { held.held = false; });
}

void fake_cuda_set_capturing(void* stream, int capturing) {
  change_stream(stream, [&](CUstream_st& captured) { captured.capturing = capturing != 0; });
}

void fake_cuda_fail_call(const char* name, uint64_t nth, int code) {
  const Locked engine;
  engine->plan.failures[name] = {engine->counters.calls[name] + nth, code};
}

void fake_cuda_break(int code) {
  const Locked engine;
  engine->break_down(code);
}

void fake_cuda_stall_operation(uint64_t nth) {
  const Locked engine;
  engine->plan.stalls.insert(engine->counters.operations + nth);
}

void fake_cuda_release_operations() {
  const Locked engine;
  engine->plan.stalls.clear();
  for (const auto& stream : engine->streams) {
    if (stream->running != nullptr) {
      stream->running->stalled = false;
    }
    for (const auto& waiting : stream->queue) {
      waiting->stalled = false;
    }
  }
  engine->changed.notify_all();
}

void* fake_cuda_memory(uint64_t device_address) {
  const Locked engine;
  return engine->device_bytes(device_address, 0);
}

uint64_t fake_cuda_calls(const char* name) {
  const Locked engine;
  const auto found = engine->counters.calls.find(name);
  return found == engine->counters.calls.end() ? 0 : found->second;
}

uint64_t fake_cuda_pageable_copies() {
  const Locked engine;
  return engine->counters.pageable_copies;
}

uint64_t fake_cuda_waits() {
  const Locked engine;
  return engine->counters.waits;
}

uint64_t fake_cuda_live() {
  const Locked engine;
  const auto streams = std::ranges::count_if(
      engine->streams, [](const auto& stream) { return !stream->closing && stream.get() != stream->context->legacy; });
  return static_cast<uint64_t>(streams) + engine->events.size() + engine->device_memory.size() +
         engine->pinned_memory.size();
}

size_t fake_cuda_operations(fake_cuda_operation* operations, size_t count_max) {
  const Locked engine;
  std::copy_n(engine->log.begin(), std::min(count_max, engine->log.size()), operations);
  return engine->log.size();
}
