// Work that never raises, and the list of all work that is still to be checked.
//
// DrainingWork wraps the inner backend's work. When that fails, the wait and the future swallow the error, the open
// generation fails with it (generation.h), and the outputs that are only received are zero-filled, so that the step
// runs out on defined numbers. An exception out of the middle of backward would leave DDP and FSDP broken. LocalWork is
// complete from the start: what a collective gives in loopback or while draining.
//
// Every DrainingWork is on the list from its issue until it was checked once, by a wait, by its future, by `wait_all`
// or by who gives it up (stuck_watch.h); so none is forgotten whose handle the user dropped. What was given up has
// failed like any other, but gloo's own work goes on waiting in a thread of its own and is never freed.
//
// Threads: as with any Work, all calls from any thread. Nothing here needs Python's lock.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "build_log.h"
#include "inner_group.h"
#include "torch_headers.h"

namespace pawl {

// The phases of libpawl's hang watch that collectives report (see collective_phase in groups.py).
void set_collective_phase(int before, int waiting);
void report_before_collective();
void report_waiting();

class LocalWork final : public ::c10d::Work {
 public:
  LocalWork(::c10d::OpType type, Tensors outputs, int source_rank);
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  int sourceRank() const override { return source_rank_; }
  Tensors result() override { return outputs_; }
  void synchronize() override {}
  bool wait(std::chrono::milliseconds timeout) override { return true; }
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  Tensors outputs_;
  int source_rank_;
};

class DrainingWork final : public ::c10d::Work {
 public:
  struct Issue {
    ::c10d::OpType type;
    const char* name;                          // of the collective; outlives the work
    std::uint64_t generation;                  // whose failure an error is
    int source_rank;                           // what a failed receive from anyone reports
    std::chrono::milliseconds timeout;         // of a wait that gives none
    std::shared_ptr<Connections> connections;  // of the inner group; null: its works end by themselves
    std::optional<BuildLog::Place> logged;     // where its results are recorded
  };
  // `received`: outputs that hold nothing of this rank, zero-filled at an error.
  DrainingWork(WorkPointer inner, const Issue& issue, Tensors outputs, Tensors received);

  bool isCompleted() override;
  bool isSuccess() const override { return true; }
  std::exception_ptr exception() const override { return nullptr; }
  int sourceRank() const override;
  Tensors result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override { return inner_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

  // Of StuckWatch's thread alone. Whether nothing that its group still does could complete it, and somebody waits.
  [[nodiscard]] bool hopeless();
  // Once a second while it is hopeless; `rested`: no worker of gloo has run since the last call.
  void tick(bool rested);

 private:
  friend class OutstandingWorks;
  bool wait_inner(std::chrono::milliseconds timeout);
  bool wait_for_collective(std::chrono::milliseconds timeout);
  // Checked: `error` is null if it succeeded. Only the first call counts; it has returned before any other does.
  void settle(const char* error);
  void give_up();
  [[nodiscard]] c10::intrusive_ptr<c10::ivalue::Future> own_future(const c10::ivalue::Future& inner);
  void complete_future(c10::IValue value);

  const WorkPointer inner_;
  const Issue issue_;
  const Tensors outputs_;
  const Tensors received_;
  std::once_flag settled_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> given_up_{false};
  std::atomic<bool> waited_for_{false};  // in a send or a receive, by who called wait
  int ticks_ = 0;                        // StuckWatch's thread's
  bool seen_ = false;                    // StuckWatch's thread's
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // if somebody asked, and the group has connections
  std::atomic<bool> future_completed_{false};
  std::list<c10::intrusive_ptr<DrainingWork>>::iterator place_;  // on the list, until settled
};

class OutstandingWorks {
 public:
  static OutstandingWorks& all();

  OutstandingWorks(const OutstandingWorks&) = delete;
  OutstandingWorks& operator=(const OutstandingWorks&) = delete;

  void add(const c10::intrusive_ptr<DrainingWork>& work);
  void remove(DrainingWork& work);
  void count_given_up() { ++given_up_; }
  // Waits until every work that is on the list now was checked. Not with Python's lock held.
  void wait_all();
  // Frees who waits for a send or a receive: shutting sockets down does not end a receive from anyone.
  void abort_point_to_point();
  [[nodiscard]] std::vector<c10::intrusive_ptr<DrainingWork>> hopeless() const;
  [[nodiscard]] std::size_t count() const;
  // Works that were ever given up. Each keeps its memory, and its group's threads and descriptors, for ever.
  [[nodiscard]] std::size_t given_up_count() const { return given_up_; }

 private:
  OutstandingWorks() = default;
  [[nodiscard]] std::vector<c10::intrusive_ptr<DrainingWork>> now() const;

  mutable std::mutex mutex_;
  std::list<c10::intrusive_ptr<DrainingWork>> works_;
  std::atomic<std::size_t> given_up_{0};
};

}  // namespace pawl
