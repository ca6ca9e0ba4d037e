// DeviceWork: a work of NCCL, which the device does after the host has gone on.
//
// Waiting for it orders the caller's stream after it, as with NCCL alone, and proves nothing: the device may not have
// begun. So each work stays on a list until the device is known to have done it (wait_all), which is when its result may
// be relied upon. From the wait on the list has only a mark in the stream: no tensor is kept alive until then. Nothing
// raises: an error fails the generation, and in a failed one all works count as failed, so that nobody waits for what an
// abort may never end.
//
// Threads: as with any Work, all calls from any thread. Nothing here needs Python's lock. `wait_all` is the training
// thread's.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "build_log.h"
#include "device_group.h"
#include "torch_headers.h"

namespace pawl {

struct DeviceIssue {
  ::c10d::OpType type;
  const char* name;                       // of the collective; outlives the work
  std::uint64_t generation;               // whose failure an error is
  int source_rank;                        // what a failed receive from anyone reports
  std::shared_ptr<DeviceGroup> group;     // that does it
  std::optional<BuildLog::Place> logged;  // where its results are recorded
};

// What is known of a work until the device has done it.
class PendingWork {
 public:
  PendingWork(WorkPointer inner, const DeviceIssue& issue, Tensors outputs);

  [[nodiscard]] const DeviceIssue& issue() const { return issue_; }
  [[nodiscard]] bool is_open() const;  // its generation is, so that it may still be done
  // The current stream comes after it. Waits for the device only where the result is recorded.
  void ordered();
  // Whether the device has done it. Throws what NCCL or the device tell.
  [[nodiscard]] bool is_done() const;
  // Nobody needs to wait for it any more. Throws likewise.
  [[nodiscard]] bool is_over() const;
  // Until it is done, or its generation is over.
  void finish();
  void fail(const std::string& error) const;

 private:
  [[nodiscard]] WorkPointer inner() const;
  void await() const;
  void record();

  const DeviceIssue issue_;
  mutable std::mutex mutex_;
  WorkPointer inner_;  // until a stream was ordered after it, where streams can be marked
  Tensors outputs_;    // until then, and until they are recorded
  std::shared_ptr<c10::Event> mark_;
  bool is_ordered_ = false;
};

class DeviceWork final : public ::c10d::Work {
 public:
  // `inner` is null where NCCL has enqueued it in the current stream.
  DeviceWork(WorkPointer inner, std::shared_ptr<PendingWork> pending, Tensors outputs);

  bool isCompleted() override;
  bool isSuccess() const override { return true; }
  std::exception_ptr exception() const override { return nullptr; }
  int sourceRank() const override;
  Tensors result() override;
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() { wait(kNoTimeout); }  // not in every supported version of torch
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;  // of its group: the generation fails
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override { return inner_ ? inner_->getDuration() : 0; }
  std::uint64_t getSequencenumber() const override { return inner_ ? inner_->getSequencenumber() : 0; }

 private:
  const WorkPointer inner_;
  const std::shared_ptr<PendingWork> pending_;
  const Tensors outputs_;
};

class DeviceWorks {
 public:
  static DeviceWorks& all();

  DeviceWorks(const DeviceWorks&) = delete;
  DeviceWorks& operator=(const DeviceWorks&) = delete;

  void add(const std::shared_ptr<PendingWork>& work);
  // Until the device has done all that are on the list now, or the generation has failed; failed() says which. Not with
  // Python's lock held.
  void wait_all();
  [[nodiscard]] std::size_t count();  // that are not known to be done
  void forget();                      // those of a generation that is over

 private:
  DeviceWorks() = default;
  void drop_done(std::size_t count_max);  // from the front, under the lock

  std::mutex mutex_;
  std::list<std::shared_ptr<PendingWork>> works_;
};

}  // namespace pawl
