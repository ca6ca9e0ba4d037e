// ManagedGroup: the group that DDP, ZeRO, FSDP, DTensor and DeviceMesh hold, for as long as the process lives.
//
// It forwards each collective to an inner group (inner_group.h) that is made anew for each generation, so nobody who
// holds it needs to know of a recovery. What always holds:
//  - While a generation is open, results are bit for bit those of the inner backend.
//  - A failure raises nowhere: the generation drains (generation.h), works complete (draining_work.h), collectives are
//    local no-ops, outputs that are only received are zero.
//  - A caller's mistake (a wrong shape, a wrong rank) raises at the call, as it does without pawl.
//  - In loopback no peer is needed: loopback.h says what each collective gives.
// A group is known among the job's processes by its ranks and by its place among groups of equal ranks, and so must be
// made in the same order by all its members.
//
// Groups is the register of all of them. Threads: all calls from any thread, none with Python's lock held for long.
#pragma once

#include <array>
#include <mutex>

#include "build_log.h"
#include "inner_group.h"
#include "torch_headers.h"

namespace pawl {

class ManagedGroup final : public ::c10d::Backend {
 public:
  // `ranks`: of the job, in the group's order; empty: all. Made and registered, with its inner group if a generation is
  // open; a failure of that lets the generation fail.
  static c10::intrusive_ptr<ManagedGroup> make(int rank, int size, std::vector<int64_t> ranks,
                                               std::chrono::milliseconds timeout);
  ManagedGroup(int rank, int size, std::string ranks, std::chrono::milliseconds timeout);
  ~ManagedGroup() override;

  [[nodiscard]] const std::string& ranks_text() const { return ranks_; }
  [[nodiscard]] int occurrence() const { return occurrence_; }
  [[nodiscard]] std::string key() const { return ranks_ + '/' + std::to_string(occurrence_); }
  void set_occurrence(int occurrence) { occurrence_ = occurrence; }

  // The inner groups of the generation of `order` (whose rank, size, store prefix and timeout are this group's own
  // affair); the sentence is why they could not be made.
  std::optional<std::string> connect(InnerOrder order);
  void disconnect();
  // Cuts gloo off. NCCL's group, if there is one, is left to the caller to be aborted, without any lock.
  std::shared_ptr<DeviceGroup> interrupt();
  [[nodiscard]] std::shared_ptr<DeviceGroup> device_group() const { return inner(true).device; }

  const std::string getBackendName() const override { return "pawl"; }
  WorkPointer broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const ::c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const ::c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const ::c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const ::c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const ::c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const ::c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const ::c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const ::c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int rank, int tag) override;
  WorkPointer recv(Tensors& tensors, int rank, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const ::c10d::BarrierOptions& options) override;
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Only NCCL coalesces; without it there is nothing to start.
  bool supportsCoalescing() const;
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  void setSequenceNumberForGroup() override {}  // each generation's inner groups count from 0 on every rank
  uint64_t getSequenceNumberForGroup() override;
  void eagerConnectSingleDevice(at::Device device) override;

  // Not in every supported version of torch: see torch_headers.h.
  c10::intrusive_ptr<Options> getBackendOptions();
  void setTimeout(std::chrono::milliseconds timeout);  // also of the inner groups that are made later
  void abort();                                        // of this group: the generation fails
  void shutdown();                                     // destroyed by its user; its collectives raise from now on

  // The last strong reference is gone, or it is freed.
  void release_resources() override;

 private:
  struct Collective {
    ::c10d::OpType type;
    const char* name;
    at::DeviceType device;  // of its tensors
    Tensors outputs;
    Tensors received;  // those of the outputs that hold nothing of this rank
    Results results = Results::shared;
    bool adds = false;  // what it gives follows from how many ranks there are
  };
  // `issue`: on the inner backend. `local`: what loopback does instead.
  template <class Issue, class Local>
  WorkPointer run(Collective collective, Issue issue, Local local);
  void keep_inner();  // for ever, since its end would wait for threads
  WorkPointer pending(WorkPointer work, Collective& collective, std::uint64_t generation,
                      const std::shared_ptr<DeviceGroup>& group, const std::optional<BuildLog::Place>& place);
  [[nodiscard]] InnerGroup inner(bool on_device) const;  // empty: there is none
  [[nodiscard]] InnerGroup inner_or_throw(const Collective& collective) const;
  [[nodiscard]] std::chrono::milliseconds timeout() const;
  [[nodiscard]] int other_rank() const { return (rank_ + 1) % size_; }

  const std::string ranks_;
  int occurrence_ = 0;
  mutable std::mutex mutex_;
  std::chrono::milliseconds timeout_;
  bool destroyed_ = false;
  std::array<std::shared_ptr<InnerGroup>, 2> inner_;  // of CPU and of CUDA tensors
};

class Groups {
 public:
  static Groups& all();

  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // Makes the inner groups of all living groups, in the order in which those were made. Why it failed, if it did.
  std::optional<std::string> open(std::uint64_t generation, StorePointer store, std::string address,
                                  std::chrono::milliseconds timeout);
  // Drops them: those of a generation that fails, or that still works on something, are cut off first.
  void close();
  void interrupt_all();
  // Now and then, in any thread: whether NCCL has found an error that nobody waits for.
  void look();

  void join(const c10::intrusive_ptr<ManagedGroup>& group);
  void leave(const ManagedGroup* group);
  // What a group needs that is made while a generation is open; nothing if none is.
  [[nodiscard]] std::optional<InnerOrder> order() const;
  [[nodiscard]] std::size_t live_count() const;
  [[nodiscard]] std::size_t created_count() const;
  [[nodiscard]] std::size_t count_of(const std::string& ranks_text) const;  // living ones of these ranks

 private:
  Groups();
  [[nodiscard]] std::vector<c10::intrusive_ptr<ManagedGroup>> living() const;

  struct Entry {
    ManagedGroup* group;
    c10::weak_intrusive_ptr<ManagedGroup> reference;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::size_t created_ = 0;
  InnerOrder order_;
};

}  // namespace pawl
