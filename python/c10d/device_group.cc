#include "device_group.h"

#include <pthread.h>

#include <cstdio>
#include <thread>
#include <utility>

namespace pawl {
namespace {

using Clock = std::chrono::steady_clock;

// How long who enqueues is let out before the communicator is aborted under them: one who waits in NCCL itself comes out
// only by the abort.
constexpr std::chrono::milliseconds kUsersMax{200};
constexpr std::chrono::milliseconds kLook{1};
constexpr std::chrono::milliseconds kLookForOthers{20};  // who still refer to the backend

// 0: none.
template <class Backend>
int error_of(Backend& backend) {
  if constexpr (requires { backend.getError(); }) return static_cast<int>(backend.getError());
  return 0;
}

}  // namespace

PythonUnlocked::PythonUnlocked() {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) unlocked_.emplace();
}

DeviceGroup::DeviceGroup(BackendPointer backend, at::Device device, Ends ends)
    : device_(device),
      wait_proves_(backend->getBackendName() == "gloo"),
      ends_(std::move(ends)),
      backend_(std::move(backend)) {}

DeviceGroup::Use::Use(DeviceGroup* group) : group_(group), entered_(true) {
  if (group_ == nullptr) return;
  ++group_->users_;
  entered_ = !group_->ending_;
  if (entered_) return;
  --group_->users_;
}

DeviceGroup::Use::~Use() {
  if (group_ != nullptr && entered_) --group_->users_;
}

std::optional<std::string> DeviceGroup::error() const {
  const Use use(const_cast<DeviceGroup*>(this));
  if (!use || !tells_errors_) return std::nullopt;
  try {
    const int error = error_of(*backend_);
    if (error == 0) return std::nullopt;
    return error == 1 ? "a collective has timed out" : "a communicator has failed";
  } catch (const std::exception&) {
    tells_errors_ = false;  // another backend than NCCL
    return std::nullopt;
  }
}

void DeviceGroup::start_coalescing() {
  auto use = std::make_unique<Use>(this);
  if (!*use) return;
  backend_->startCoalescing();
  coalescing_ = std::move(use);
}

WorkPointer DeviceGroup::end_coalescing() {
  for (const WorkPointer& work : std::exchange(coalesced_, {})) work->wait();
  if (!coalescing_) return nullptr;
  const std::unique_ptr<Use> use = std::move(coalescing_);
  return backend_->endCoalescing();
}

void DeviceGroup::end(const std::function<void()>& how) {
  {
    std::lock_guard lock(mutex_);
    if (ending_) return;
    ends_until_ = Clock::now() + kEndMax;
    ending_ = true;
  }
  std::thread([self = shared_from_this(), &how] {
    ::pthread_setname_np(::pthread_self(), "pawl-nccl-end");
    self->await_users();
    try {
      how();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "pawl: a NCCL group did not end well: %s\n", error.what());
    }
    {
      std::lock_guard lock(self->mutex_);
      self->ended_ = true;
      self->changed_.notify_all();
    }
    self->free();
  }).detach();
}

void DeviceGroup::await_users() const {
  const auto until = Clock::now() + kUsersMax;
  while (users_ > 0 && Clock::now() < until) std::this_thread::sleep_for(kLook);
}

void DeviceGroup::free() {
  // Whoever still has it may not be the one who frees it: they go within moments.
  while (backend_.use_count() > 1 || users_ > 0) std::this_thread::sleep_for(kLookForOthers);
  backend_.reset();
}

bool DeviceGroup::await_ended() {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, ends_until_, [this] { return ended_; });
}

}  // namespace pawl
