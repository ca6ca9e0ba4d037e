#include "managed_group.h"

#include <algorithm>

#include "device_work.h"
#include "draining_work.h"
#include "forked.h"
#include "generation.h"
#include "interrupt.h"
#include "loopback.h"
#include "making_store.h"
#include "stuck_watch.h"

namespace pawl {
namespace {

using ::c10d::OpType;

Tensors flat(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Of equal values it gives another one, as many as there are.
bool adds(const ::c10d::ReduceOp& op) {
  using Op = ::c10d::ReduceOp::RedOpType;
  const auto of = static_cast<Op>(op);
  return of == Op::SUM || of == Op::PRODUCT || of == Op::BXOR || of == Op::PREMUL_SUM;
}

at::DeviceType device_of(const Tensors& tensors) {
  return tensors.empty() ? at::kCPU : tensors[0].device().type();
}

// Whose barrier it is: with NCCL it also waits for what the device does.
template <class Options>
at::DeviceType device_of(const Options& options) {
  if (!options.device_ids.empty()) return at::kCUDA;
  if constexpr (requires { options.device.has_value(); }) {
    if (options.device.has_value()) return options.device->type();
  }
  return at::kCPU;
}

// Torch 2.6 doesn't ask its backends; only NCCL coalesces there.
template <class Inner>
bool coalesces(const Inner& backend) {
  if constexpr (requires { backend.supportsCoalescing(); }) return backend.supportsCoalescing();
  return false;
}

// Runs of consecutive ranks, as 0-3,6,8-9.
std::string text_of(const std::vector<int64_t>& ranks, int size) {
  std::string text;
  if (ranks.empty()) return size == 1 ? "0" : "0-" + std::to_string(size - 1);
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(ranks[i]);
    if (last > i) text += '-' + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

c10::intrusive_ptr<ManagedGroup> ManagedGroup::make(int rank, int size, std::vector<int64_t> ranks,
                                                    std::chrono::milliseconds timeout) {
  auto group = c10::make_intrusive<ManagedGroup>(rank, size, text_of(ranks, size), timeout);
  Groups::all().join(group);
  if (const auto order = Groups::all().order()) {
    if (const auto why = group->connect(*order)) Generation::current().fail(order->generation, *why);
  }
  return group;
}

ManagedGroup::ManagedGroup(int rank, int size, std::string ranks, std::chrono::milliseconds timeout)
    : Backend(rank, size), ranks_(std::move(ranks)), timeout_(timeout) {
  init();
}

ManagedGroup::~ManagedGroup() {
  release_resources();
}

void ManagedGroup::release_resources() {
  if (forked()) return keep_inner();
  Groups::all().leave(this);
  disconnect();
}

std::optional<std::string> ManagedGroup::connect(InnerOrder order) {
  order.rank = rank_;
  order.size = size_;
  const std::string prefix = std::to_string(order.generation) + '/' + ranks_ + '/' + std::to_string(occurrence_) + '/';
  const auto store = c10::make_intrusive<MakingStore>(order.store, order.generation, order.deadline);
  for (const bool on_device : made_kinds()) {
    order.on_device = on_device;
    order.store = c10::make_intrusive<::c10d::PrefixStore>(prefix + (on_device ? "cuda" : "cpu"), store);
    {
      std::lock_guard lock(mutex_);
      if (destroyed_) return std::nullopt;
      order.timeout = timeout_;
    }
    InnerAnswer answer = make_inner_group(order);
    if (!answer.group) return "the group of ranks " + ranks_ + " could not be made: " + answer.why;
    std::lock_guard lock(mutex_);
    inner_[on_device ? 1 : 0] = std::move(answer.group);
  }
  store->set_made();
  return std::nullopt;
}

void ManagedGroup::disconnect() {
  std::array<std::shared_ptr<InnerGroup>, 2> dropped;
  {
    std::lock_guard lock(mutex_);
    dropped.swap(inner_);
  }
  if (!dropped[0] && !dropped[1]) return;
  for (auto& group : dropped) {
    // A thread of it waits for what never comes, and its destructor would wait for that thread: kept for ever.
    if (group && group->connections && group->connections->stuck) new std::shared_ptr<InnerGroup>(std::move(group));
  }
  // Ending gloo waits for its threads, and those may want Python's lock for a callback.
  const PythonUnlocked unlocked;
  const std::shared_ptr<DeviceGroup> device = dropped[1] ? dropped[1]->device : nullptr;
  dropped = {};
  if (!device) return;
  device->shutdown();  // unless it is aborted already
  if (!device->await_ended()) {
    std::fprintf(stderr, "pawl: NCCL has not ended the group of ranks %s within %lld s: it is left behind\n",
                 ranks_.c_str(), static_cast<long long>(DeviceGroup::kEndMax.count()));
  }
}

void ManagedGroup::keep_inner() {
  for (auto& group : inner_) {
    if (group) new std::shared_ptr<InnerGroup>(std::move(group));
  }
}

std::shared_ptr<DeviceGroup> ManagedGroup::interrupt() {
  // Under the lock, since no reference may be taken here: a thread of the inner group that dropped the last one would
  // wait for its own end.
  std::lock_guard lock(mutex_);
  for (const auto& group : inner_) {
    if (group) group->interrupt();
  }
  return inner_[1] ? inner_[1]->device : nullptr;
}

InnerGroup ManagedGroup::inner(bool on_device) const {
  std::lock_guard lock(mutex_);
  const auto& group = inner_[on_device ? 1 : 0];
  return group ? *group : InnerGroup();
}

std::chrono::milliseconds ManagedGroup::timeout() const {
  std::lock_guard lock(mutex_);
  return timeout_;
}

InnerGroup ManagedGroup::inner_or_throw(const Collective& collective) const {
  InnerGroup group = inner(goes_to_device(collective.device));
  if (group.backend) return group;
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!destroyed_, "pawl: ", collective.name, " on a group that was destroyed");
  TORCH_CHECK(false, "pawl: ", collective.name, " of a tensor on ", collective.device,
              ": the managed group works on CPU tensors, and on CUDA tensors where torch has NCCL");
}

template <class Issue, class Local>
WorkPointer ManagedGroup::run(Collective collective, Issue issue, Local local) {
  const Generation::State state = Generation::current().state();
  const auto completed = [&]() -> WorkPointer {
    return c10::make_intrusive<LocalWork>(collective.type, std::move(collective.outputs), other_rank());
  };
  const auto drained = [&]() -> WorkPointer {
    loopback::zero(collective.received);
    return completed();
  };
  const char* const in_log = collective.adds ? "all-reduce that adds" : collective.name;
  const auto place = size_ > 1 ? BuildLog::only().next(key(), in_log, collective.results) : std::nullopt;
  if (state.mode == Mode::loopback) {
    if (place) {
      BuildLog::only().replay(*place, collective.outputs, local);
    } else {
      local();
    }
    return completed();
  }
  if (state.mode == Mode::draining) return drained();
  TORCH_CHECK(state.mode == Mode::open, "pawl: ", collective.name,
              " before the groups were connected: collectives work between pawl.init() and the end of the job");
  const InnerGroup group = inner_or_throw(collective);
  const DeviceGroup::Use use(group.device.get());
  if (!use) return drained();
  const auto lost = [&group] { return group.connections ? group.connections->lost() : std::string(); };
  try {
    report_before_collective();
    WorkPointer work = issue(*group.backend);
    report_waiting();
    if (group.device) return pending(std::move(work), collective, state.number, group.device, place);
    const DrainingWork::Issue about{collective.type, collective.name,   state.number, other_rank(),
                                    timeout(),       group.connections, place};
    auto draining = c10::make_intrusive<DrainingWork>(std::move(work), about, std::move(collective.outputs),
                                                      std::move(collective.received));
    OutstandingWorks::all().add(draining);
    if (const auto device = device_group(); device && device->is_coalescing()) device->add_coalesced(draining);
    return draining;
  } catch (const c10::DistError& error) {
    Generation::current().fail(state.number, collective.name, error.what_without_backtrace(), lost());
  } catch (const c10::Error&) {
    // Before anything was sent: the caller's mistake, unless the group was cut off just now.
    if (Generation::current().state().mode == Mode::open) throw;
  } catch (const std::exception& error) {
    Generation::current().fail(state.number, collective.name, error.what(), lost());
  }
  return drained();
}

WorkPointer ManagedGroup::pending(WorkPointer work, Collective& collective, std::uint64_t generation,
                                  const std::shared_ptr<DeviceGroup>& group,
                                  const std::optional<BuildLog::Place>& place) {
  if (group->is_coalescing()) {  // NCCL has kept it for the end, where one work stands for all
    return c10::make_intrusive<LocalWork>(collective.type, std::move(collective.outputs), other_rank());
  }
  const auto known = std::make_shared<PendingWork>(
      work, DeviceIssue{collective.type, collective.name, generation, other_rank(), group, place}, collective.outputs);
  DeviceWorks::all().add(known);
  if (!work) known->ordered();  // it is in the current stream
  return c10::make_intrusive<DeviceWork>(std::move(work), known, std::move(collective.outputs));
}

WorkPointer ManagedGroup::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
  return run(
      {OpType::BROADCAST, "broadcast", device_of(tensors), tensors, options.rootRank == rank_ ? Tensors() : tensors},
      [&](Backend& inner) { return inner.broadcast(tensors, options); }, [] {});
}

WorkPointer ManagedGroup::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  return run(
      {OpType::ALLREDUCE, "all-reduce", device_of(tensors), tensors, {}, Results::shared, adds(options.reduceOp)},
      [&](Backend& inner) { return inner.allreduce(tensors, options); }, [] {});
}

WorkPointer ManagedGroup::allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  return run(
      {OpType::_ALLREDUCE_SPARSE, "sparse all-reduce", device_of(tensors), tensors, {}, Results::own},
      [&](Backend& inner) { return inner.allreduce_sparse(tensors, options); }, [] {});
}

WorkPointer ManagedGroup::allreduce_coalesced(Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options) {
  return run(
      {OpType::ALLREDUCE_COALESCED,
       "coalesced all-reduce",
       device_of(tensors),
       tensors,
       {},
       Results::shared,
       adds(options.reduceOp)},
      [&](Backend& inner) { return inner.allreduce_coalesced(tensors, options); }, [] {});
}

WorkPointer ManagedGroup::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
  return run(
      {OpType::REDUCE, "reduce", device_of(tensors), tensors, {}, Results::own},
      [&](Backend& inner) { return inner.reduce(tensors, options); }, [] {});
}

WorkPointer ManagedGroup::allgather(TensorLists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options) {
  return run(
      {OpType::ALLGATHER, "all-gather", device_of(inputs), flat(outputs), flat(outputs)},
      [&](Backend& inner) { return inner.allgather(outputs, inputs, options); },
      [&] { loopback::all_gather(outputs, inputs); });
}

WorkPointer ManagedGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const ::c10d::AllgatherOptions& options) {
  return run(
      {OpType::_ALLGATHER_BASE, "all-gather into a tensor", input.device().type(), {output}, {output}},
      [&](Backend& inner) { return inner._allgather_base(output, input, options); },
      [&] { loopback::all_gather_into(output, input, size_); });
}

WorkPointer ManagedGroup::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                              const ::c10d::AllgatherOptions& options) {
  return run(
      {OpType::ALLGATHER_COALESCED, "coalesced all-gather", device_of(inputs), flat(outputs), flat(outputs)},
      [&](Backend& inner) { return inner.allgather_coalesced(outputs, inputs, options); },
      [&] { loopback::all_gather_coalesced(outputs, inputs); });
}

WorkPointer ManagedGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const ::c10d::AllgatherOptions& options) {
  return run(
      {OpType::ALLGATHER_COALESCED, "coalesced all-gather into tensors", device_of(inputs), outputs, outputs},
      [&](Backend& inner) { return inner.allgather_into_tensor_coalesced(outputs, inputs, options); },
      [&] {
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          loopback::all_gather_into(outputs[i], inputs.at(i), size_);
        }
      });
}

WorkPointer ManagedGroup::gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& options) {
  return run(
      {OpType::GATHER, "gather", device_of(inputs), flat(outputs), flat(outputs), Results::own},
      [&](Backend& inner) { return inner.gather(outputs, inputs, options); },
      [&] { loopback::all_gather(outputs, inputs); });
}

WorkPointer ManagedGroup::scatter(Tensors& outputs, TensorLists& inputs, const ::c10d::ScatterOptions& options) {
  return run(
      {OpType::SCATTER, "scatter", device_of(outputs), outputs, outputs, Results::own},
      [&](Backend& inner) { return inner.scatter(outputs, inputs, options); },
      [&] { loopback::scatter(outputs, inputs, rank_); });
}

WorkPointer ManagedGroup::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                         const ::c10d::ReduceScatterOptions& options) {
  return run(
      {OpType::REDUCE_SCATTER, "reduce-scatter", device_of(outputs), outputs, outputs, Results::own},
      [&](Backend& inner) { return inner.reduce_scatter(outputs, inputs, options); },
      [&] { loopback::reduce_scatter(outputs, inputs, rank_); });
}

WorkPointer ManagedGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const ::c10d::ReduceScatterOptions& options) {
  return run(
      {OpType::_REDUCE_SCATTER_BASE,
       "reduce-scatter of a tensor",
       input.device().type(),
       {output},
       {output},
       Results::own},
      [&](Backend& inner) { return inner._reduce_scatter_base(output, input, options); },
      [&] { loopback::reduce_scatter_from(output, input, rank_, size_); });
}

WorkPointer ManagedGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const ::c10d::ReduceScatterOptions& options) {
  return run(
      {OpType::COALESCED, "coalesced reduce-scatter", device_of(inputs), outputs, outputs, Results::own},
      [&](Backend& inner) { return inner.reduce_scatter_tensor_coalesced(outputs, inputs, options); },
      [&] {
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          loopback::reduce_scatter_from(outputs[i], inputs.at(i), rank_, size_);
        }
      });
}

WorkPointer ManagedGroup::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const ::c10d::AllToAllOptions& options) {
  return run(
      {OpType::ALLTOALL_BASE, "all-to-all of a tensor", input.device().type(), {output}, {output}, Results::own},
      [&](Backend& inner) { return inner.alltoall_base(output, input, output_splits, input_splits, options); },
      [&] { loopback::all_to_all_single(output, input, output_splits, input_splits, rank_, size_); });
}

WorkPointer ManagedGroup::alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options) {
  return run(
      {OpType::ALLTOALL, "all-to-all", device_of(inputs), outputs, outputs, Results::own},
      [&](Backend& inner) { return inner.alltoall(outputs, inputs, options); },
      [&] { loopback::all_to_all(outputs, inputs, rank_); });
}

WorkPointer ManagedGroup::send(Tensors& tensors, int rank, int tag) {
  return run(
      {OpType::SEND, "send", device_of(tensors), tensors, {}, Results::own},
      [&](Backend& inner) { return inner.send(tensors, rank, tag); }, [] {});
}

WorkPointer ManagedGroup::recv(Tensors& tensors, int rank, int tag) {
  return run(
      {OpType::RECV, "receive", device_of(tensors), tensors, tensors, Results::own},
      [&](Backend& inner) { return inner.recv(tensors, rank, tag); }, [&] { loopback::zero(tensors); });
}

WorkPointer ManagedGroup::recvAnysource(Tensors& tensors, int tag) {
  return run(
      {OpType::RECVANYSOURCE, "receive from anyone", device_of(tensors), tensors, tensors, Results::own},
      [&](Backend& inner) { return inner.recvAnysource(tensors, tag); }, [&] { loopback::zero(tensors); });
}

WorkPointer ManagedGroup::barrier(const ::c10d::BarrierOptions& options) {
  return run(
      {OpType::BARRIER, "barrier", device_of(options), {}, {}, Results::none},
      [&](Backend& inner) { return inner.barrier(options); }, [] {});
}

void ManagedGroup::monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) {
  run(
      {OpType::BARRIER, "monitored barrier", at::kCPU, {}, {}, Results::none},
      [&](Backend& inner) -> WorkPointer {
        try {
          inner.monitoredBarrier(options, wait_all_ranks);
        } catch (const c10::Error& error) {  // here not a mistake of the caller: a rank did not come
          throw std::runtime_error(error.what_without_backtrace());
        }
        return c10::make_intrusive<LocalWork>(OpType::BARRIER, Tensors(), other_rank());
      },
      [] {})
      ->wait();
}

bool ManagedGroup::supportsCoalescing() const {
  const BackendPointer backend = inner(true).backend;
  return backend && coalesces(*backend);
}

void ManagedGroup::startCoalescing() {
  if (Generation::current().state().mode != Mode::open) return;
  const auto device = device_group();
  TORCH_CHECK(device, "pawl: coalescing needs NCCL: the CPU's backend has none");
  device->start_coalescing();
}

WorkPointer ManagedGroup::endCoalescing() {
  const auto device = device_group();
  WorkPointer work;
  try {
    // Also in a generation that has failed: NCCL counts calls of begin and end.
    if (device) work = device->end_coalescing();
  } catch (const std::exception& error) {
    const Generation::State state = Generation::current().state();
    Generation::current().fail(state.number, "coalesced collectives", error.what());
  }
  const bool is_done = !work;
  return run(
      {OpType::COALESCED, "coalesced collectives", is_done ? at::kCPU : at::kCUDA, {}, {}, Results::none},
      [&](Backend&) -> WorkPointer {
        if (is_done) return c10::make_intrusive<LocalWork>(OpType::COALESCED, Tensors(), other_rank());
        return std::move(work);
      },
      [] {});
}

uint64_t ManagedGroup::getSequenceNumberForGroup() {
  const BackendPointer backend = inner(false).backend;
  return backend ? backend->getSequenceNumberForGroup() : 0;
}

void ManagedGroup::eagerConnectSingleDevice(at::Device) {
  // Each inner group is connected when it is made.
}

c10::intrusive_ptr<ManagedGroup::Options> ManagedGroup::getBackendOptions() {
  std::lock_guard lock(mutex_);
  return c10::make_intrusive<Options>("pawl", timeout_);
}

void ManagedGroup::setTimeout(std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  timeout_ = timeout;
  for (const auto& group : inner_) {
    if (!group) continue;
    [&](auto& backend) {
      if constexpr (requires { backend.setTimeout(timeout); }) backend.setTimeout(timeout);
    }(*group->backend);
  }
}

void ManagedGroup::abort() {
  const Generation::State state = Generation::current().state();
  Generation::current().fail(state.number, "the group of ranks " + ranks_ + " was aborted");
}

void ManagedGroup::shutdown() {
  if (forked()) return;
  {
    std::lock_guard lock(mutex_);
    destroyed_ = true;
  }
  Groups::all().leave(this);
  disconnect();
}

Groups& Groups::all() {
  static auto* groups = new Groups;  // never destroyed: groups may be freed when the process ends
  return *groups;
}

Groups::Groups() {
  Generation::current().on_failure([this] { interrupt_all(); });
}

std::optional<std::string> Groups::open(std::uint64_t generation, StorePointer store, std::string address,
                                        std::chrono::milliseconds timeout) {
  close();
  InnerOrder order;
  {
    std::lock_guard lock(mutex_);
    order_.store = std::move(store);
    order_.address = std::move(address);
    order_.deadline_after = timeout;
    order_.generation = generation;
    order = order_;
  }
  order.deadline = std::chrono::steady_clock::now() + timeout;
  StuckWatch::only().start();
  Generation::current().open(generation);
  InterruptThread::check();  // the generation may be past already
  for (const auto& group : living()) {
    if (const auto failed = Generation::current().failed()) return failed;
    if (const auto why = group->connect(order)) {
      Generation::current().fail(generation, *why);
      return Generation::current().failed();
    }
  }
  return Generation::current().failed();
}

void Groups::close() {
  if (forked()) return;  // a lock may be held there by a thread that only the parent has
  const bool cut_off = Generation::current().state().mode == Mode::draining || OutstandingWorks::all().count() > 0 ||
                       DeviceWorks::all().count() > 0;
  Generation::current().close();
  if (cut_off) {
    interrupt_all();
    OutstandingWorks::all().wait_all();
  }
  DeviceWorks::all().forget();
  for (const auto& group : living()) group->disconnect();
  std::lock_guard lock(mutex_);
  order_.store.reset();
}

void Groups::interrupt_all() {
  std::vector<std::shared_ptr<DeviceGroup>> devices;
  {
    std::lock_guard lock(mutex_);  // keeps them alive: a group leaves before it is freed
    for (const Entry& entry : entries_) {
      if (auto device = entry.group->interrupt()) devices.push_back(std::move(device));
    }
  }
  interrupt_making();
  OutstandingWorks::all().abort_point_to_point();
  for (const auto& device : devices) device->abort();  // each on a thread of its own
}

void Groups::look() {
  const Generation::State state = Generation::current().state();
  if (state.mode != Mode::open) return;
  for (const auto& group : living()) {
    const auto device = group->device_group();
    const auto error = device ? device->error() : std::nullopt;
    if (error)
      Generation::current().fail(state.number, "NCCL, the group of ranks " + group->ranks_text() + ": " + *error);
  }
}

void Groups::join(const c10::intrusive_ptr<ManagedGroup>& group) {
  std::lock_guard lock(mutex_);
  int occurrence = 0;
  const auto taken = [&](const Entry& entry) {
    return entry.group->ranks_text() == group->ranks_text() && entry.group->occurrence() == occurrence;
  };
  while (std::any_of(entries_.begin(), entries_.end(), taken)) ++occurrence;
  group->set_occurrence(occurrence);
  entries_.push_back({group.get(), c10::weak_intrusive_ptr<ManagedGroup>(group)});
  ++created_;
  BuildLog::only().know(group->key());
}

void Groups::leave(const ManagedGroup* group) {
  std::vector<Entry> left;  // freed after the lock
  std::lock_guard lock(mutex_);
  const auto gone =
      std::stable_partition(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.group != group; });
  std::move(gone, entries_.end(), std::back_inserter(left));
  entries_.erase(gone, entries_.end());
}

std::optional<InnerOrder> Groups::order() const {
  if (Generation::current().state().mode != Mode::open) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (!order_.store) return std::nullopt;
  InnerOrder order = order_;
  order.deadline = std::chrono::steady_clock::now() + order.deadline_after;
  return order;
}

std::vector<c10::intrusive_ptr<ManagedGroup>> Groups::living() const {
  std::vector<c10::intrusive_ptr<ManagedGroup>> groups;
  std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (auto group = entry.reference.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

std::size_t Groups::live_count() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t Groups::count_of(const std::string& ranks_text) const {
  std::lock_guard lock(mutex_);
  const auto of_these = [&](const Entry& entry) { return entry.group->ranks_text() == ranks_text; };
  return static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(), of_these));
}

std::size_t Groups::created_count() const {
  std::lock_guard lock(mutex_);
  return created_;
}

}  // namespace pawl
