#include "draining_work.h"

#include <set>

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
  // gloo's sends and receives know only the timeout that the inner group was made with, which is that of its making.
  if (timeout == kNoTimeout && point_to_point(issue_.type)) timeout = issue_.timeout;
  return inner_->wait(timeout);
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
  return inner->then(
      [self](c10::ivalue::Future& done) -> c10::IValue {
        if (!done.hasError()) {
          self->settle(nullptr);
          return done.value();
        }
        self->settle(done.tryRetrieveErrorMessage().c_str());
        return c10::IValue(self->outputs_);
      },
      inner->elementType());
}

void DrainingWork::settle(const char* error) {
  std::call_once(settled_, [&] {
    if (error != nullptr) {
      failed_ = true;
      Generation::current().fail(issue_.generation, issue_.name, error);
      loopback::zero(received_);
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

std::size_t OutstandingWorks::count() const {
  std::lock_guard lock(mutex_);
  return works_.size();
}

}  // namespace pawl
