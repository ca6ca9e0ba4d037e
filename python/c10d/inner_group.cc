#include "inner_group.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <iterator>
#include <list>
#include <mutex>
#include <thread>

#include "generation.h"

namespace pawl {
namespace {

using Clock = std::chrono::steady_clock;

// gloo's own message at the deadline says which peer did not connect: it is worth a moment.
constexpr std::chrono::milliseconds kGrace{300};
// gloo waits that many times its timeout for a peer to connect.
constexpr double kConnectPatience = 5;

// Whether a group's timeout can be set once it is made. In PyTorch 2.8 and before it can't (gloo's own option is read only
// by the constructor), so that it must be made with the timeout of its collectives.
template <class Backend>
constexpr bool kHasTimeout = requires(Backend& backend, std::chrono::milliseconds timeout) {
  backend.setTimeout(timeout);
};

struct Makers {
  py::object device, gloo, nccl;
  int gpu = 0;
  [[nodiscard]] bool has_nccl() const { return nccl.ptr() != nullptr && nccl.ptr() != Py_None; }
};
Makers* makers = nullptr;  // never freed: Python may be gone when the process ends

// One group that is being made.
struct Making {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool left_behind = false;
  InnerGroup group;
  std::string why;

  void interrupt() {
    std::lock_guard lock(mutex);
    if (group.sockets) group.sockets->shut_down();
    changed.notify_all();
  }
};

std::mutex all_making_mutex;
std::list<std::shared_ptr<Making>> all_making;  // those whose thread runs
std::mutex device_mutex;                        // one new event loop at a time, so that it is known whose it is

double seconds_of(Clock::duration duration) {
  return std::max(0.001, std::chrono::duration<double>(duration).count());
}

// With which timeout a gloo group is made.
double seconds_to_connect(const InnerOrder& order) {
  if constexpr (kHasTimeout<::c10d::Backend>) return seconds_of(order.deadline - Clock::now()) / kConnectPatience;
  return seconds_of(order.timeout);
}

BackendPointer build(const InnerOrder& order, Making& making) {
  std::unique_lock one_device(device_mutex);  // before Python's lock, which others need to leave this section
  const py::gil_scoped_acquire python;
  try {
    py::object group;
    if (!order.on_device) {
      const std::set<int> before = WatchedSockets::event_loops();
      const py::object device = makers->device(order.address);
      {
        std::lock_guard lock(making.mutex);
        making.group.sockets = WatchedSockets::made_since(before);
      }
      one_device.unlock();
      group = makers->gloo(device, order.store, order.rank, order.size, seconds_to_connect(order));
    } else {
      one_device.unlock();
      group = makers->nccl(order.store, order.rank, order.size, seconds_of(order.timeout));
    }
    return group.cast<BackendPointer>();
  } catch (const py::error_already_set& error) {  // it must be read and freed while Python's lock is held
    throw std::runtime_error(sentence_of(error.what()));
  }
}

template <class Backend>
void set_timeout(Backend& backend, std::chrono::milliseconds timeout) {
  if constexpr (kHasTimeout<Backend>) backend.setTimeout(timeout);
}

// In older versions of torch only Python knows of these.
[[maybe_unused]] void call(::c10d::Backend* backend, std::initializer_list<const char*> names) {
  const py::gil_scoped_acquire python;
  try {
    const py::object object = py::cast(BackendPointer::reclaim_copy(backend));
    for (const char* name : names) {
      if (!py::hasattr(object, name)) continue;
      object.attr(name)();
      return;
    }
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(sentence_of(error.what()));
  }
}

template <class Backend>
DeviceGroup::Ends ends_of(Backend* backend) {
  DeviceGroup::Ends ends;
  if constexpr (requires { backend->abort(); }) {
    ends.abort = [backend] { backend->abort(); };
  } else {
    ends.abort = [backend] { call(backend, {"abort", "_abort"}); };
  }
  if constexpr (requires { backend->shutdown(); }) {
    ends.shutdown = [backend] { backend->shutdown(); };
  } else {
    ends.shutdown = [backend] { call(backend, {"shutdown", "_shutdown"}); };
  }
  return ends;
}

at::Device job_device() {
  return makers->gpu < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(makers->gpu));
}

// All ranks have come here, so that none of them waits in NCCL for one that never comes.
void meet(const InnerOrder& order) {
  if (order.store->add("arrived", 1) == order.size) order.store->set("all", std::vector<std::uint8_t>{1});
  order.store->wait({"all"});
}

bool still_open(std::uint64_t generation) {
  const Generation::State state = Generation::current().state();
  return state.mode == Mode::open && state.number == generation;
}

// NCCL connects with the first collective. (torch's own eager connection would send single messages of all pairs of ranks
// one after the other, which may block where it doesn't without pawl.)
void connect_by_collective(const InnerOrder& order, ::c10d::Backend& backend, at::Device device) {
  const c10::DeviceGuard guard(device);
  Tensors tensors{at::zeros({1}, at::TensorOptions().device(device))};
  const WorkPointer work = backend.allreduce(tensors, ::c10d::AllreduceOptions());
  while (work && !work->isCompleted()) {
    if (!still_open(order.generation)) throw std::runtime_error("the generation is over");
    if (Clock::now() > order.deadline) throw std::runtime_error("a peer did not connect to NCCL in time");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (const std::exception_ptr error = work ? work->exception() : nullptr) std::rethrow_exception(error);
}

std::shared_ptr<DeviceGroup> connect_device(const InnerOrder& order, const BackendPointer& backend) {
  if (!order.on_device) return nullptr;
  meet(order);
  connect_by_collective(order, *backend, job_device());
  return std::make_shared<DeviceGroup>(backend, job_device(), ends_of(backend.get()));
}

void run(const InnerOrder& order, const std::shared_ptr<Making>& making) {
  BackendPointer backend;
  std::shared_ptr<DeviceGroup> device;
  std::string why;
  try {
    backend = build(order, *making);
    set_timeout(*backend, order.timeout);
    device = connect_device(order, backend);
  } catch (const std::exception& error) {
    why = sentence_of(error.what());
  }
  if (!why.empty()) backend.reset();
  {
    std::lock_guard lock(making->mutex);
    if (!making->left_behind) {
      // All peers are connected, unless gloo was told to connect when it must: then no connection means nothing.
      const auto& sockets = making->group.sockets;
      if (backend && order.size > 1 && sockets && sockets->connections() == order.size - 1) {
        making->group.connections = std::make_shared<Connections>(*sockets);
      }
      making->group.backend = std::move(backend);
      making->group.device = std::move(device);
      making->why = why;
      making->done = true;
      making->changed.notify_all();
    }
  }
  backend.reset();
  if (device) device->abort();
  std::lock_guard lock(all_making_mutex);
  all_making.remove(making);
}

std::string why_left(const InnerOrder& order) {
  if (const auto failed = Generation::current().failed()) return *failed;
  return "a peer did not connect within " + std::to_string(order.deadline_after.count()) + " ms";
}

}  // namespace

std::string Connections::lost() const {
  const std::vector<std::string> left = sockets.hosts();
  std::vector<std::string> gone;
  std::set_difference(hosts.begin(), hosts.end(), left.begin(), left.end(), std::back_inserter(gone));
  gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
  std::string text;
  for (const std::string& host : gone) text += (text.empty() ? "" : " ") + host;
  return text;
}

void InnerGroup::interrupt() const {
  if (sockets) sockets->shut_down();
}

void set_makers(py::object device, py::object gloo, py::object nccl, int gpu) {
  if (makers == nullptr) makers = new Makers;
  *makers = {std::move(device), std::move(gloo), std::move(nccl), gpu};
}

bool goes_to_device(at::DeviceType type) {
  return type != at::kCPU || (makers != nullptr && makers->has_nccl() && makers->gpu < 0);
}

std::vector<bool> made_kinds() {
  if (makers == nullptr) return {};
  if (!makers->has_nccl()) return {false};
  return {false, true};
}

InnerAnswer make_inner_group(const InnerOrder& order) {
  const auto making = std::make_shared<Making>();
  {
    std::lock_guard lock(all_making_mutex);
    all_making.push_back(making);
  }
  std::thread([order, making] { run(order, making); }).detach();
  std::unique_lock lock(making->mutex);
  making->changed.wait_until(lock, order.deadline + kGrace,
                             [&] { return making->done || !still_open(order.generation); });
  if (making->done && making->group.backend) return {std::make_shared<InnerGroup>(std::move(making->group)), ""};
  if (making->done) return {nullptr, making->why};
  making->left_behind = true;
  if (making->group.sockets) making->group.sockets->shut_down();
  return {nullptr, why_left(order)};
}

void interrupt_making() {
  std::list<std::shared_ptr<Making>> now;
  {
    std::lock_guard lock(all_making_mutex);
    now = all_making;
  }
  for (const auto& making : now) making->interrupt();
}

std::size_t making_count() {
  std::lock_guard lock(all_making_mutex);
  return all_making.size();
}

}  // namespace pawl
