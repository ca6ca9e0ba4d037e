// pawl_fake_device: a backend whose works the device does when a test says so. It behaves as NCCL does where pawl relies on
// that: wait() returns before the work is done, the future is complete from the start, a work that waits for a peer ends
// only by abort(), and the destructor joins a thread. Tensors lie in host memory.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace {

using ::c10d::OpType;
using ::c10d::Work;
using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<Work>;

// What one work of the device has come to. Shared, so that it outlives the work.
struct Progress {
  std::atomic<bool> done{false};
  std::atomic<int> waits{0};
  std::mutex mutex;
  std::string error;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Progress>> works;
  bool completes = true;  // works are done from the start
  bool keeps_outputs = true;
  bool abort_hangs = false;  // until it is released
  bool abort_raises = false;
  bool enqueue_hangs = false;  // likewise, or until an abort
  int error = 0;               // as getError() tells it
  std::atomic<int> aborts{0}, shutdowns{0}, users{0}, users_at_abort{0}, starts{0}, ends{0};
  std::atomic<bool> aborted{false};
  std::atomic<bool> freed{false};
  std::thread::id freed_by;
};

class FakeWork final : public Work {
 public:
  FakeWork(OpType type, std::shared_ptr<State> state, std::shared_ptr<Progress> progress, Tensors outputs)
      : Work(0, type), state_(std::move(state)), progress_(std::move(progress)), outputs_(std::move(outputs)) {}
  bool isCompleted() override {
    std::lock_guard lock(progress_->mutex);
    return progress_->done || !progress_->error.empty() || state_->aborted;
  }
  std::exception_ptr exception() const override {
    std::lock_guard lock(progress_->mutex);
    if (progress_->error.empty()) return nullptr;
    return std::make_exception_ptr(std::runtime_error(progress_->error));
  }
  bool wait(std::chrono::milliseconds) override {
    ++progress_->waits;
    return true;
  }
  void synchronize() override { ++progress_->waits; }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }

 private:
  const std::shared_ptr<State> state_;
  const std::shared_ptr<Progress> progress_;
  const Tensors outputs_;
};

class FakeBackend final : public ::c10d::Backend {
 public:
  FakeBackend(int rank, int size, std::shared_ptr<State> state) : Backend(rank, size), state_(std::move(state)) {}
  ~FakeBackend() override {
    state_->freed_by = std::this_thread::get_id();
    state_->freed = true;
  }
  const std::string getBackendName() const override { return "fake"; }
  WorkPointer allreduce(Tensors& tensors, const ::c10d::AllreduceOptions&) override {
    return enqueue(OpType::ALLREDUCE, tensors);
  }
  WorkPointer broadcast(Tensors& tensors, const ::c10d::BroadcastOptions&) override {
    return enqueue(OpType::BROADCAST, tensors);
  }
  WorkPointer barrier(const ::c10d::BarrierOptions&) override { return enqueue(OpType::BARRIER, {}); }
  bool supportsCoalescing() const { return true; }
  void startCoalescing() override { ++state_->starts; }
  WorkPointer endCoalescing() override {
    ++state_->ends;
    return enqueue(OpType::COALESCED, {});
  }
#if TORCH_VERSION_MINOR >= 8
  ::c10d::ErrorType getError() {
    std::lock_guard lock(state_->mutex);
    return static_cast<::c10d::ErrorType>(state_->error);
  }
#endif
  void abort() {
    ++state_->aborts;
    state_->users_at_abort = state_->users.load();
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return !state_->abort_hangs; });
    if (state_->abort_raises) throw std::runtime_error("NCCL error: internal error");
    state_->aborted = true;
    state_->changed.notify_all();
  }
  void shutdown() {
    ++state_->shutdowns;
  }

 private:
  WorkPointer enqueue(OpType type, const Tensors& tensors) {
    ++state_->users;
    auto progress = std::make_shared<Progress>();
    {
      std::unique_lock lock(state_->mutex);
      progress->done = state_->completes;
      state_->works.push_back(progress);
      state_->changed.wait(lock, [this] { return !state_->enqueue_hangs || state_->aborted; });
    }
    --state_->users;
    return c10::make_intrusive<FakeWork>(type, state_, progress, state_->keeps_outputs ? tensors : Tensors());
  }

  const std::shared_ptr<State> state_;
};

void set(State& state, bool State::*what, bool value) {
  std::lock_guard lock(state.mutex);
  state.*what = value;
  state.changed.notify_all();
}

}  // namespace

PYBIND11_MODULE(pawl_fake_device, module) {
  py::module_::import("torch.distributed");
  py::class_<State, std::shared_ptr<State>>(module, "Device")
      .def(py::init<>())
      .def("completes", [](State& state, bool value) { set(state, &State::completes, value); })
      .def("keeps_outputs", [](State& state, bool value) { set(state, &State::keeps_outputs, value); })
      .def("abort_raises", [](State& state, bool value) { set(state, &State::abort_raises, value); })
      .def("abort_hangs", [](State& state, bool value) { set(state, &State::abort_hangs, value); })
      .def("enqueue_hangs", [](State& state, bool value) { set(state, &State::enqueue_hangs, value); })
      .def("set_error",
           [](State& state, int error) {
             std::lock_guard lock(state.mutex);
             state.error = error;
           })
      .def("await_abort_holding_python",
           [](State& state, double seconds) {
             const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
             while (!state.aborted && std::chrono::steady_clock::now() < until) std::this_thread::yield();
             return state.aborted.load();
           })
      .def("finish", [](State& state, std::size_t work) { state.works.at(work)->done = true; })
      .def("fail",
           [](State& state, std::size_t work, const std::string& error) {
             std::lock_guard lock(state.works.at(work)->mutex);
             state.works.at(work)->error = error;
           })
      .def("waits", [](State& state, std::size_t work) { return state.works.at(work)->waits.load(); })
      .def_property_readonly("count", [](State& state) { return state.works.size(); })
      .def_property_readonly("aborts", [](State& state) { return state.aborts.load(); })
      .def_property_readonly("shutdowns", [](State& state) { return state.shutdowns.load(); })
      .def_property_readonly("starts", [](State& state) { return state.starts.load(); })
      .def_property_readonly("ends", [](State& state) { return state.ends.load(); })
      .def_property_readonly("users_at_abort", [](State& state) { return state.users_at_abort.load(); })
      .def_property_readonly("freed", [](State& state) { return state.freed.load(); })
      .def_property_readonly("freed_by_caller",
                             [](State& state) { return state.freed_by == std::this_thread::get_id(); })
      .def("backend", [](const std::shared_ptr<State>& state, int rank, int size) {
        return c10::make_intrusive<FakeBackend>(rank, size, state);
      });
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<FakeBackend, c10::intrusive_ptr<FakeBackend>, ::c10d::Backend>(module, "FakeBackend")
      .def("abort", &FakeBackend::abort, Unlocked())  // torch 2.6 asks Python
      .def("shutdown", &FakeBackend::shutdown, Unlocked());
}
