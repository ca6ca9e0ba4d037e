#include "scheduler.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace pawl::sim {

namespace {
constexpr std::size_t kStackBytes = 512 << 10;  // mapped, not used: a page costs only who touches it
}  // namespace

struct Fiber {
  Scheduler* scheduler;
  Process* process;
  std::function<void()> body;
  ucontext_t context = {};
  void* stack = nullptr;
  std::uint64_t wait = 1;  // number of the wait under way
  bool entered = false;
  jmp_buf place = {};  // where it waits: jumping there costs no system call, as a switch of contexts would
  bool timed_out = false;
  bool done = false;
  WaitQueue joining = {};
};

Fiber* Scheduler::start(Process& process, std::function<void()> body) {
  auto* fiber = new Fiber{this, &process, std::move(body)};
  if (free_stacks_.empty()) {
    fiber->stack =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    PAWL_CHECK(fiber->stack != MAP_FAILED, "no memory for a fiber");
  } else {
    fiber->stack = free_stacks_.back();
    free_stacks_.pop_back();
  }
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(fiber);
  makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Scheduler::enter), 2, static_cast<unsigned>(address),
              static_cast<unsigned>(address >> 32));
  wake(fiber, fiber->wait, now_ + delay());
  return fiber;
}

void Scheduler::enter(unsigned low, unsigned high) {
  auto* fiber = reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(low) | static_cast<std::uintptr_t>(high) << 32);
  fiber->body();
  fiber->scheduler->end_current();
}

void Scheduler::end_current() {
  current_->done = true;
  notify(current_->joining);
  _longjmp(main_, 1);
}

Duration Scheduler::delay() {
  const std::uint64_t dice = random(256);
  if (dice == 0) return between(Duration(1000), long_delay);
  return Duration(static_cast<std::int64_t>(1000 + random(dice < 16 ? 200'000 : 15'000)));
}

void Scheduler::at(Duration moment, std::function<void()> action) {
  events_.push({std::max(moment, now_), order_++, nullptr, 0, new std::function<void()>(std::move(action))});
}

void Scheduler::wake(Fiber* fiber, std::uint64_t wait, Duration moment) {
  events_.push({moment, order_++, fiber, wait, nullptr});
}

void Scheduler::block() {
  if (_setjmp(current_->place) == 0) _longjmp(main_, 1);
}

void Scheduler::sleep(Duration duration) {
  if (duration <= Duration::zero()) return;
  wake(current_, current_->wait, now_ + duration + delay());
  block();
}

bool Scheduler::wait(WaitQueue& queue, Duration until) {
  if (until <= now_) return false;
  Fiber* self = current_;
  const std::uint64_t wait = self->wait;
  queue.push_back({self, wait});
  if (until != kForever) wake(self, wait, until);
  self->timed_out = true;
  block();
  if (!self->timed_out) return true;
  std::erase_if(queue, [&](const Waiting& one) { return one.fiber == self && one.wait == wait; });
  return false;
}

void Scheduler::notify(WaitQueue& queue) {
  for (const Waiting& one : queue) {
    if (one.fiber->wait != one.wait) continue;
    one.fiber->timed_out = false;
    wake(one.fiber, one.wait, now_ + delay());
  }
  queue.clear();
}

void Scheduler::join(Fiber* fiber) {
  while (!fiber->done) wait(fiber->joining, kForever);
}

void Scheduler::go_on(Process& process) {
  if (--process.stops > 0) return;
  std::vector<Fiber*> runnable;
  runnable.swap(process.runnable);
  for (Fiber* fiber : runnable) wake(fiber, fiber->wait, now_ + delay());
}

Process* Scheduler::current_process() const {
  return current_ == nullptr ? nullptr : current_->process;
}

void Scheduler::resume(Fiber* fiber) {
  ++fiber->wait;
  current_ = fiber;
  if (_setjmp(main_) == 0) {
    if (std::exchange(fiber->entered, true)) _longjmp(fiber->place, 1);
    setcontext(&fiber->context);
  }
  Fiber* const left = std::exchange(current_, nullptr);
  if (left->done) {
    free_stacks_.push_back(left->stack);
    left->body = nullptr;
  }
}

bool Scheduler::run(Duration until) {
  while (!ended_) {
    if (events_.empty() || events_.top().at > until) return false;
    const Event event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.at);
    ++events;
    if (event.action) {
      (*event.action)();
      delete event.action;
      continue;
    }
    Fiber* fiber = event.fiber;
    if (fiber->done || fiber->wait != event.wait || !fiber->process->alive) continue;
    Process& process = *fiber->process;
    if (process.stops > 0) {
      if (std::find(process.runnable.begin(), process.runnable.end(), fiber) == process.runnable.end())
        process.runnable.push_back(fiber);
      continue;
    }
    resume(fiber);
    ++process.turns;
    if (after_turn) after_turn(process);
  }
  return true;
}

// --- Tasks

namespace {

class FiberTask final : public Task {
 public:
  FiberTask(Scheduler& scheduler, Fiber* fiber) : scheduler_(scheduler), fiber_(fiber) {}
  void join() override { scheduler_.join(fiber_); }

 private:
  Scheduler& scheduler_;
  Fiber* const fiber_;
};

class FiberCondition final : public Condition {
 public:
  explicit FiberCondition(Scheduler& scheduler) : scheduler_(scheduler) {}
  void wait_for(std::unique_lock<std::mutex>& lock, Duration at_most) override {
    wait_until(lock, at_most >= kForever - scheduler_.now() ? kForever : scheduler_.now() + at_most);
  }
  void wait(std::unique_lock<std::mutex>& lock) override { wait_until(lock, kForever); }
  void notify_all() override { scheduler_.notify(waiting_); }

 private:
  void wait_until(std::unique_lock<std::mutex>& lock, Duration until) {
    lock.unlock();
    scheduler_.wait(waiting_, until);
    lock.lock();
  }
  Scheduler& scheduler_;
  WaitQueue waiting_;
};

}  // namespace

std::unique_ptr<Task> ProcessTasks::start(const std::string& /*name*/, std::function<void()> body) {
  return std::make_unique<FiberTask>(scheduler_, scheduler_.start(process_, std::move(body)));
}

std::unique_ptr<Condition> ProcessTasks::make_condition() {
  return std::make_unique<FiberCondition>(scheduler_);
}

}  // namespace pawl::sim
