#include "device_work.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "draining_work.h"
#include "generation.h"

namespace pawl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kDropAtOnce = 4;  // done ones, when another work comes

// How often it is looked: at first at once, since most works are done when they are waited for.
void pause(Clock::duration waited) {
  if (waited < std::chrono::microseconds(50)) return std::this_thread::yield();
  const bool is_long = waited > std::chrono::milliseconds(50);
  std::this_thread::sleep_for(is_long ? std::chrono::microseconds(500) : std::chrono::microseconds(50));
}

// In the current stream. Null: this device has no such marks.
std::shared_ptr<c10::Event> mark_stream(at::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  auto mark = std::make_shared<c10::Event>(device.type());
  mark->record(guard.getStream(device));
  return mark;
}

}  // namespace

PendingWork::PendingWork(WorkPointer inner, const DeviceIssue& issue, Tensors outputs)
    : issue_(issue), inner_(std::move(inner)), outputs_(std::move(outputs)) {}

bool PendingWork::is_open() const {
  const Generation::State state = Generation::current().state();
  return state.mode == Mode::open && state.number == issue_.generation;
}

WorkPointer PendingWork::inner() const {
  std::lock_guard lock(mutex_);
  return inner_;
}

void PendingWork::fail(const std::string& error) const {
  Generation::current().fail(issue_.generation, issue_.name, error);
}

void PendingWork::ordered() {
  const bool is_logged = issue_.logged.has_value();
  WorkPointer inner;  // both dropped after the lock
  Tensors outputs;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(is_ordered_, true)) return;
    mark_ = mark_stream(issue_.group->device());
    if (mark_) inner = std::move(inner_);
    if (!is_logged) outputs = std::exchange(outputs_, {});
  }
  if (!is_logged) return;
  await();
  record();
}

void PendingWork::record() {
  Tensors outputs;
  {
    std::lock_guard lock(mutex_);
    outputs = std::exchange(outputs_, {});
  }
  if (is_open()) BuildLog::only().succeeded(*issue_.logged, outputs);
}

bool PendingWork::is_done() const {
  std::shared_ptr<c10::Event> mark;
  WorkPointer inner;
  {
    std::lock_guard lock(mutex_);
    mark = mark_;
    inner = inner_;
  }
  if (mark) return mark->query();
  if (!inner) return true;
  if (!inner->isCompleted()) return false;
  if (const std::exception_ptr error = inner->exception()) std::rethrow_exception(error);
  return true;
}

bool PendingWork::is_over() const {
  {
    std::lock_guard lock(mutex_);
    if (!is_ordered_) return false;
  }
  return is_done();
}

void PendingWork::finish() {
  const WorkPointer unordered = [this] {
    std::lock_guard lock(mutex_);
    return is_ordered_ ? WorkPointer() : inner_;
  }();
  try {
    if (unordered && is_open()) {
      unordered->wait(kNoTimeout);  // of the stream, so that NCCL lets go of its tensors
      ordered();
    }
  } catch (const std::exception& error) {
    fail(error.what());
  }
  await();
}

void PendingWork::await() const {
  const Clock::time_point begun = Clock::now();
  try {
    while (is_open() && !is_done()) {
      if (const auto error = issue_.group->error()) return fail("NCCL: " + *error);
      pause(Clock::now() - begun);
    }
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

DeviceWork::DeviceWork(WorkPointer inner, std::shared_ptr<PendingWork> pending, Tensors outputs)
    : Work(-1, pending->issue().type),
      inner_(std::move(inner)),
      pending_(std::move(pending)),
      outputs_(std::move(outputs)) {}

bool DeviceWork::isCompleted() {
  if (!pending_->is_open()) return true;
  try {
    return pending_->is_done();
  } catch (const std::exception& error) {
    pending_->fail(error.what());
    return true;
  }
}

int DeviceWork::sourceRank() const {
  const int rank = inner_ ? inner_->sourceRank() : -1;
  return rank >= 0 ? rank : pending_->issue().source_rank;
}

Tensors DeviceWork::result() {
  return outputs_;
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  report_waiting();
  if (pending_->is_open()) {
    try {
      if (inner_) inner_->wait(timeout);
      pending_->ordered();
    } catch (const std::exception& error) {
      pending_->fail(error.what());
    }
  }
  report_waiting();
  return true;
}

void DeviceWork::abort() {
  pending_->fail("it was aborted");
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  if (inner_ && pending_->is_open()) future = inner_->getFuture();
  if (!future) {
    future = LocalWork(retrieveOpType(), outputs_, -1).getFuture();
  } else {
    // NCCL's is complete from the start, and what is called here runs in a stream that comes after the work.
    future->addCallback([pending = pending_](c10::ivalue::Future& done) {
      if (done.hasError()) return pending->fail(done.tryRetrieveErrorMessage());
      try {
        pending->ordered();
      } catch (const std::exception& error) {
        pending->fail(error.what());
      }
    });
  }
  return future;
}

DeviceWorks& DeviceWorks::all() {
  static auto* works = new DeviceWorks;  // never destroyed: a thread of the backend may still tell one something
  return *works;
}

void DeviceWorks::drop_done(std::size_t count_max) {
  for (std::size_t i = 0; i < count_max && !works_.empty(); ++i) {
    try {
      if (!works_.front()->is_over()) return;
    } catch (const std::exception&) {
      return;  // wait_all tells
    }
    works_.pop_front();
  }
}

void DeviceWorks::add(const std::shared_ptr<PendingWork>& work) {
  std::lock_guard lock(mutex_);
  if (work->is_open()) drop_done(kDropAtOnce);
  works_.push_back(work);
}

void DeviceWorks::wait_all() {
  std::list<std::shared_ptr<PendingWork>> now;
  {
    std::lock_guard lock(mutex_);
    now.swap(works_);
  }
  for (const auto& work : now) {
    work->finish();
    report_waiting();
  }
}

std::size_t DeviceWorks::count() {
  std::list<std::shared_ptr<PendingWork>> now;
  {
    std::lock_guard lock(mutex_);
    now = works_;
  }
  return static_cast<std::size_t>(std::count_if(now.begin(), now.end(), [](const auto& work) {
    try {
      return work->is_open() && !work->is_done();
    } catch (const std::exception&) {
      return true;
    }
  }));
}

void DeviceWorks::forget() {
  std::list<std::shared_ptr<PendingWork>> past;  // dropped after the lock
  std::lock_guard lock(mutex_);
  past.swap(works_);
}

}  // namespace pawl
