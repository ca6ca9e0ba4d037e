// DeviceGroup: a NCCL group behind a managed one, and how it ends.
//
// NCCL's kernels wait on the device for peers, for ever if one is gone. Only an abort ends them, and it may take long or
// never return. So a group ends on a thread of its own, which also frees it: nobody else runs the destructor, which
// joins NCCL's threads. What always holds: it ends once, by an abort or, where nothing has failed, by a shutdown that
// completes what is enqueued; no lock is held meanwhile; and whoever enqueues when it ends is let out first, if that
// doesn't take long, since NCCL frees the communicator under those who use it.
//
// Threads: all calls from any thread. `await_freed` not with Python's lock held.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "torch_headers.h"

namespace pawl {

class DeviceGroup : public std::enable_shared_from_this<DeviceGroup> {
 public:
  static constexpr std::chrono::seconds kEndMax{10};  // who waits for the end goes on after that

  // `abort`, `shutdown`: how the backend is ended, called once on a thread of their own.
  struct Ends {
    std::function<void()> abort, shutdown;
  };
  DeviceGroup(BackendPointer backend, at::Device device, Ends ends);

  // As long as it lives nobody frees the communicator. False: the group ends, nothing may be enqueued.
  class Use {
   public:
    explicit Use(DeviceGroup* group);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    explicit operator bool() const { return entered_; }

   private:
    DeviceGroup* group_;
    bool entered_;
  };

  [[nodiscard]] at::Device device() const { return device_; }
  // What NCCL's own watchdog has found, also where no work is left that could tell. Before torch 2.7: nothing.
  [[nodiscard]] std::optional<std::string> error() const;

  // Between start and end NCCL runs nothing. Works of the host's backend that are issued meanwhile are waited for at the
  // end, since only one work is answered for all. The training thread's.
  void start_coalescing();
  [[nodiscard]] bool is_coalescing() const { return coalescing_ != nullptr; }
  void add_coalesced(WorkPointer host_work) { coalesced_.push_back(std::move(host_work)); }
  WorkPointer end_coalescing();  // null: nothing was enqueued

  // Both begin the end and return at once; only the first call of either counts.
  void abort() { end(ends_.abort); }
  void shutdown() { end(ends_.shutdown); }
  // Until the thread has ended and freed it, but not longer than kEndMax after the end began; false: it goes on.
  // Whoever calls this holds no reference to the backend.
  bool await_freed();

 private:
  void end(const std::function<void()>& how);
  void await_users() const;
  void free();

  const at::Device device_;
  const Ends ends_;
  BackendPointer backend_;  // until it is freed
  std::atomic<int> users_{0};
  std::atomic<bool> ending_{false};
  mutable std::atomic<bool> tells_errors_{true};
  std::unique_ptr<Use> coalescing_;
  std::vector<WorkPointer> coalesced_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool freed_ = false;
  std::chrono::steady_clock::time_point ends_until_;
};

}  // namespace pawl
