#include "draining_work.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "generation.h"
#include "library.h"
#include "loopback.h"

namespace pawl {
namespace {

struct Phases {
  std::atomic<int> before{0};
  std::atomic<int> waiting{0};
  std::atomic<bool> first{true};  // no collective was issued since the phases were set
};
Phases phases;

// How long a wait for gloo lasts before it looks whether the work was given up.
constexpr std::chrono::milliseconds kDrainSlice{1000};
// How often in a row a work must be hopeless, a second apart.
constexpr int kTicks = 3;

c10::TypePtr list_of_tensors() {
  return c10::ListType::create(c10::TensorType::get());
}

std::vector<at::Device> accelerators_of(const Tensors& tensors) {
  std::set<c10::DeviceIndex> seen;
  std::vector<at::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.device().is_cpu() && seen.insert(tensor.device().index()).second) devices.push_back(tensor.device());
  }
  return devices;
}

bool point_to_point(::c10d::OpType type) {
  return type == ::c10d::OpType::SEND || type == ::c10d::OpType::RECV || type == ::c10d::OpType::RECVANYSOURCE;
}

}  // namespace

void set_collective_phase(int before, int waiting) {
  phases.before = before;
  phases.waiting = waiting;
  phases.first = true;
}

void report_before_collective() {
  if (phases.first.load(std::memory_order_relaxed) && phases.first.exchange(false)) {
    Library::loaded().progress(phases.before);
  }
}

void report_waiting() {
  Library::loaded().progress(phases.waiting.load(std::memory_order_relaxed));
}

LocalWork::LocalWork(::c10d::OpType type, Tensors outputs, int source_rank)
    : Work(-1, type), outputs_(std::move(outputs)), source_rank_(source_rank) {}

c10::intrusive_ptr<c10::ivalue::Future> LocalWork::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(list_of_tensors(), accelerators_of(outputs_));
  future->markCompleted(c10::IValue(outputs_));
  return future;
}

DrainingWork::DrainingWork(WorkPointer inner, const Issue& issue, Tensors outputs, Tensors received)
    : Work(-1, issue.type),
      inner_(std::move(inner)),
      issue_(issue),
      outputs_(std::move(outputs)),
      received_(std::move(received)) {}

bool DrainingWork::isCompleted() {
  return failed_ || inner_->isCompleted();
}

int DrainingWork::sourceRank() const {
  if (failed_) return issue_.source_rank;
  const int rank = inner_->sourceRank();
  return rank >= 0 ? rank : issue_.source_rank;
}

Tensors DrainingWork::result() {
  if (failed_) return outputs_;
  try {
    return inner_->result();
  } catch (const std::exception&) {
    return outputs_;
  }
}

void DrainingWork::synchronize() {
  try {
    inner_->synchronize();
  } catch (const std::exception& error) {
    settle(error.what());
  }
}

bool DrainingWork::wait(std::chrono::milliseconds timeout) {
  report_waiting();
  try {
    if (wait_inner(timeout)) {
      settle(nullptr);
    } else {
      settle("it was aborted");
    }
  } catch (const std::exception& error) {
    settle(error.what());
  }
  report_waiting();
  return true;
}

bool DrainingWork::wait_inner(std::chrono::milliseconds timeout) {
  if (!point_to_point(issue_.type)) return issue_.connections ? wait_for_collective(timeout) : inner_->wait(timeout);
  waited_for_ = true;
  // gloo's sends and receives know only the timeout that the inner group was made with, which is that of its making.
  const bool done = inner_->wait(timeout == kNoTimeout ? issue_.timeout : timeout);
  waited_for_ = false;
  return done;
}

bool DrainingWork::wait_for_collective(std::chrono::milliseconds timeout) {
  const auto begun = std::chrono::steady_clock::now();
  while (!given_up_) {
    const bool complete = inner_->isCompleted();
    auto slice = kDrainSlice;
    if (timeout != kNoTimeout) {
      const auto waited = std::chrono::steady_clock::now() - begun;
      slice = std::min(slice, std::chrono::ceil<std::chrono::milliseconds>(timeout - waited));
    }
    const bool last = slice <= std::chrono::milliseconds(0);
    const auto slice_begun = std::chrono::steady_clock::now();
    try {
      return inner_->wait(last ? std::chrono::milliseconds(1) : slice);
    } catch (const std::exception&) {
      // gloo's reduce-scatter into a tensor never says that it is complete.
      const bool early = std::chrono::steady_clock::now() - slice_begun < slice;
      if (complete || early || last) throw;  // its own error, or that its time is over
    }
  }
  return false;
}

void DrainingWork::abort() {
  try {
    inner_->abort();
  } catch (const std::exception&) {
    // Most kinds of work cannot be aborted; closed sockets end those.
  }
}

c10::intrusive_ptr<c10::ivalue::Future> DrainingWork::getFuture() {
  const auto inner = inner_->getFuture();
  const auto self = c10::intrusive_ptr<DrainingWork>::reclaim_copy(this);
  const auto checked = [self](c10::ivalue::Future& done) -> c10::IValue {
    if (!done.hasError()) {
      self->settle(nullptr);
      return done.value();
    }
    self->settle(done.tryRetrieveErrorMessage().c_str());
    return c10::IValue(self->outputs_);
  };
  if (!issue_.connections) return inner->then(checked, inner->elementType());
  auto future = own_future(*inner);
  inner->addCallback([self, checked](c10::ivalue::Future& done) {
    try {
      self->complete_future(checked(done));
    } catch (const std::exception&) {
      self->future_->setErrorIfNeeded(std::current_exception());
    }
  });
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> DrainingWork::own_future(const c10::ivalue::Future& inner) {
  std::lock_guard lock(future_mutex_);
  if (!future_) future_ = c10::make_intrusive<c10::ivalue::Future>(inner.elementType());
  return future_;
}

void DrainingWork::complete_future(c10::IValue value) {
  if (!future_completed_.exchange(true)) future_->markCompleted(std::move(value));
}

bool DrainingWork::hopeless() {
  if (!issue_.connections) return false;
  if (point_to_point(issue_.type) ? !waited_for_ : inner_->isCompleted()) {
    ticks_ = 0;
    return false;
  }
  const bool seen = std::exchange(seen_, true);  // most works are gone by the second look
  return seen && issue_.connections->all_closed();
}

void DrainingWork::tick(bool rested) {
  const bool by_worker = !point_to_point(issue_.type);
  ticks_ = by_worker && !rested ? 0 : ticks_ + 1;
  if (ticks_ < kTicks) return;
  if (by_worker) {
    give_up();
  } else {
    abort();
  }
}

void DrainingWork::give_up() {
  issue_.connections->stuck = true;  // first: from here on nobody frees the group
  const auto inner = inner_->getFuture();
  // The worker that runs it comes by at its timeout, and stays. Kept with it, in a circle: the work and its tensors.
  inner->addCallback([kept = inner_, watch = std::this_thread::get_id()](c10::ivalue::Future&) {
    while (std::this_thread::get_id() != watch) ::pause();
  });
  settle("all connections are closed, and gloo goes on waiting");
  OutstandingWorks::all().count_given_up();
  given_up_ = true;
  (void)own_future(*inner);  // so that it is there, for who asks later too
  complete_future(c10::IValue(outputs_));
}

void DrainingWork::settle(const char* error) {
  std::call_once(settled_, [&] {
    if (error != nullptr) {
      failed_ = true;
      // Before anything of ours is closed.
      const std::string lost = issue_.connections ? issue_.connections->lost() : "";
      Generation::current().fail(issue_.generation, issue_.name, error, lost);
      loopback::zero(received_);
    } else if (issue_.logged) {
      BuildLog::only().succeeded(*issue_.logged, outputs_);
    }
    OutstandingWorks::all().remove(*this);
  });
}

OutstandingWorks& OutstandingWorks::all() {
  static auto* works = new OutstandingWorks;  // never destroyed: a thread of the backend may still settle one
  return *works;
}

void OutstandingWorks::add(const c10::intrusive_ptr<DrainingWork>& work) {
  std::lock_guard lock(mutex_);
  work->place_ = works_.insert(works_.end(), work);
}

void OutstandingWorks::remove(DrainingWork& work) {
  c10::intrusive_ptr<DrainingWork> last;  // dropped after the lock: it may be the last reference
  std::lock_guard lock(mutex_);
  last = std::move(*work.place_);
  works_.erase(work.place_);
}

std::vector<c10::intrusive_ptr<DrainingWork>> OutstandingWorks::now() const {
  std::lock_guard lock(mutex_);
  return {works_.begin(), works_.end()};
}

void OutstandingWorks::wait_all() {
  for (const auto& work : now()) work->wait(kNoTimeout);
}

void OutstandingWorks::abort_point_to_point() {
  for (const auto& work : now()) {
    if (point_to_point(work->issue_.type)) work->abort();
  }
}

std::vector<c10::intrusive_ptr<DrainingWork>> OutstandingWorks::hopeless() const {
  auto works = now();
  works.erase(std::remove_if(works.begin(), works.end(), [](const auto& work) { return !work->hopeless(); }),
              works.end());
  return works;
}

std::size_t OutstandingWorks::count() const {
  std::lock_guard lock(mutex_);
  return works_.size();
}

}  // namespace pawl
