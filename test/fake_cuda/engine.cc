#include "fake_cuda/engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace fake_cuda {
namespace {

using Clock = std::chrono::steady_clock;

thread_local bool is_stream_thread = false;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

void finish(Operation& operation) {
  operation.done = true;
  operation.work = nullptr;
  operation.after.clear();  // no chains of all that ever ran
}

bool may_begin(const CUstream_st& stream) {
  return !stream.held &&
         std::ranges::all_of(stream.queue.front()->after, [](const auto& other) { return other->done; });
}

// Waits until the operation's time is over. False: it was dropped.
bool take_time(Engine& engine, Lock& lock, const CUstream_st& stream, const Operation& operation) {
  const auto dropped = [&] { return stream.stopped || engine.broken != CUDA_SUCCESS; };
  if (operation.is_copy && engine.plan.copy_rate > 0) {
    const double seconds =
        static_cast<double>(operation.record.size_bytes) / static_cast<double>(engine.plan.copy_rate);
    engine.changed.wait_for(lock, std::chrono::duration<double>(seconds), dropped);
  }
  engine.changed.wait(lock, [&] { return !operation.stalled || dropped(); });
  return !dropped();
}

void run_stream(Engine& engine, CUstream_st& stream) {
  is_stream_thread = true;
  Lock lock(engine.mutex);
  for (;;) {
    engine.changed.wait(lock,
                        [&] { return stream.stopped || (stream.queue.empty() ? stream.closing : may_begin(stream)); });
    if (stream.stopped || stream.queue.empty()) {
      return;
    }
    stream.running = stream.queue.front();
    stream.queue.pop_front();
    Operation& operation = *stream.running;
    operation.record.begin_ns = now_ns();
    if (take_time(engine, lock, stream, operation)) {
      if (operation.work) {
        lock.unlock();
        operation.work();
        lock.lock();
      }
      operation.record.end_ns = now_ns();
      engine.log.push_back(operation.record);
    }
    finish(operation);
    stream.running = nullptr;
    engine.changed.notify_all();
  }
}

void drop_queue(CUstream_st& stream) {
  for (const auto& operation : stream.queue) {
    finish(*operation);
  }
  stream.queue.clear();
}

size_t whole_pages(size_t size_bytes) {
  return (size_bytes + 4095) / 4096 * 4096;
}

void* map(size_t size_bytes, int protection) {
  void* const at =
      mmap(nullptr, whole_pages(size_bytes), protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

}  // namespace

bool in_stream_thread() {
  return is_stream_thread;
}

std::vector<CUcontext>& current_contexts(const Engine& engine) {
  thread_local uint64_t life = 0;
  thread_local std::vector<CUcontext> stack;
  if (life != engine.life) {
    life = engine.life;
    stack.clear();
  }
  return stack;
}

CUcontext current_context(const Engine& engine) {
  const auto& stack = current_contexts(engine);
  return stack.empty() ? nullptr : stack.back();
}

// Never destroyed: other threads of a program that ends may still call.
Engine& Engine::get() {
  static Engine* const engine = [] {
    auto* const made = new Engine;
    for (int device = 0; device < kDevicesMax; ++device) {
      made->contexts[device].device = device;
    }
    return made;
  }();
  return *engine;
}

CUstream Engine::open_stream(CUcontext context, bool blocking) {
  auto stream = std::make_shared<CUstream_st>();
  stream->context = context;
  stream->blocking = blocking;
  stream->thread = std::thread([this, handle = stream.get()] { run_stream(*this, *handle); });
  streams.push_back(stream);
  return stream.get();
}

// Does not wait for operations, as the real one; a stream that has some is joined when its context is cleared.
void Engine::close_stream(Lock& lock, CUstream stream) {
  stream->closing = true;
  changed.notify_all();
  if (!idle(stream)) {
    return;
  }
  const auto place = std::ranges::find(streams, stream, &std::shared_ptr<CUstream_st>::get);
  const std::shared_ptr<CUstream_st> closed = *place;
  streams.erase(place);
  lock.unlock();
  closed->thread.join();
  lock.lock();
}

CUstream Engine::legacy_stream(CUcontext context) {
  if (context->legacy == nullptr) {
    context->legacy = open_stream(context, false);
  }
  return context->legacy;
}

CUstream Engine::find_stream(CUstream handle) {
  const auto place = std::ranges::find(streams, handle, &std::shared_ptr<CUstream_st>::get);
  return place == streams.end() || handle->closing ? nullptr : handle;
}

std::vector<std::shared_ptr<Operation>> Engine::tails(CUstream stream, bool for_new_operation) {
  const CUcontext context = stream->context;
  std::vector<std::shared_ptr<Operation>> all;
  const auto add = [&](const CUstream_st& other) {
    if (other.last != nullptr && !other.last->done) {
      all.push_back(other.last);
    }
  };
  add(*stream);
  if (stream == context->legacy) {
    for (const auto& other : streams) {
      if (other->context == context && other->blocking) {
        add(*other);
      }
    }
  } else if (for_new_operation && stream->blocking && context->legacy != nullptr) {
    add(*context->legacy);
  }
  return all;
}

std::shared_ptr<Operation> Engine::enqueue(CUstream stream, Operation operation) {
  auto entered = std::make_shared<Operation>(std::move(operation));
  for (auto& other : tails(stream, true)) {
    entered->after.push_back(std::move(other));
  }
  entered->record.stream = stream == stream->context->legacy ? nullptr : stream;
  entered->stalled = plan.stalls.erase(++counters.operations) > 0;
  stream->queue.push_back(entered);
  stream->last = entered;
  changed.notify_all();
  return entered;
}

bool Engine::idle(CUstream stream) {
  return tails(stream, false).empty();
}

CUresult Engine::wait(Lock& lock, std::vector<std::shared_ptr<Operation>> operations) {
  ++counters.waits;
  const uint64_t begun_in = life;
  changed.wait(lock, [&] {
    return life != begun_in || std::ranges::all_of(operations, [](const auto& operation) { return operation->done; });
  });
  return life != begun_in ? CUDA_ERROR_DEINITIALIZED : broken;
}

CUresult Engine::wait_for_context(Lock& lock, CUcontext context) {
  std::vector<std::shared_ptr<Operation>> all;
  for (const auto& stream : streams) {
    if (stream->context == context && stream->last != nullptr) {
      all.push_back(stream->last);
    }
  }
  return wait(lock, std::move(all));
}

void Engine::break_down(CUresult code) {
  broken = code;
  for (const auto& stream : streams) {
    drop_queue(*stream);
  }
  changed.notify_all();
}

void Engine::clear(Lock& lock, CUcontext context) {
  const auto is_cleared = [&](const CUcontext other) { return context == nullptr || other == context; };
  std::vector<std::shared_ptr<CUstream_st>> ended;
  std::erase_if(streams, [&](const auto& stream) {
    if (is_cleared(stream->context)) {
      stream->stopped = true;
      drop_queue(*stream);
      stream->context->legacy = nullptr;
      ended.push_back(stream);
      return true;
    }
    return false;
  });
  changed.notify_all();
  lock.unlock();
  for (const auto& stream : ended) {
    stream->thread.join();
  }
  lock.lock();
  std::erase_if(events, [&](const auto& event) { return is_cleared(event.second->context); });
  for (auto* const all : {&device_memory, &pinned_memory}) {
    std::erase_if(*all, [&](const auto& entry) {
      if (is_cleared(entry.second.context)) {
        free(entry.second);
        return true;
      }
      return false;
    });
  }
}

void* Engine::allocate(CUcontext context, size_t size_bytes, bool on_device) {
  void* const bytes = map(size_bytes, PROT_READ | PROT_WRITE);
  void* const begin = on_device ? map(size_bytes, PROT_NONE) : bytes;  // the addresses that nobody can touch
  if (bytes == nullptr || begin == nullptr) {
    return nullptr;
  }
  auto& all = on_device ? device_memory : pinned_memory;
  all[reinterpret_cast<uint64_t>(begin)] =
      Memory{context, size_bytes, begin, on_device ? static_cast<char*>(bytes) : nullptr, true};
  return begin;
}

void Engine::free(const Memory& memory) {
  if (memory.bytes != nullptr) {
    munmap(memory.bytes, whole_pages(memory.size_bytes));
  }
  if (memory.ours) {
    munmap(memory.begin, whole_pages(memory.size_bytes));
  }
}

char* Engine::device_bytes(uint64_t address, size_t size_bytes) {
  const auto* const found = find_memory(device_memory, address, size_bytes);
  return found == nullptr ? nullptr : found->second.bytes + (address - found->first);
}

const std::pair<const uint64_t, Memory>* find_memory(const std::map<uint64_t, Memory>& all, uint64_t address,
                                                     size_t size_bytes) {
  auto after = all.upper_bound(address);
  if (after == all.begin()) {
    return nullptr;
  }
  const auto& found = *--after;
  const uint64_t offset_bytes = address - found.first;
  const size_t whole_bytes = found.second.size_bytes;
  return offset_bytes < whole_bytes && size_bytes <= whole_bytes - offset_bytes ? &found : nullptr;
}

}  // namespace fake_cuda
