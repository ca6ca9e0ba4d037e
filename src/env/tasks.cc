#include "env/tasks.h"

#include <atomic>
#include <condition_variable>
#include <list>
#include <utility>

#include "base/log.h"
#include "env/clock.h"
#include "env/thread.h"

namespace pawl {
namespace {

constexpr auto kAgain = std::chrono::seconds(1);

class RealCondition final : public Condition {
 public:
  void wait_for(std::unique_lock<std::mutex>& lock, Duration at_most) override { changed_.wait_for(lock, at_most); }
  void wait(std::unique_lock<std::mutex>& lock) override { changed_.wait(lock); }
  void notify_all() override { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

class RealTasks final : public Tasks {
 public:
  std::unique_ptr<Task> start(const std::string& name, std::function<void()> body) override;
  std::unique_ptr<Condition> make_condition() override { return std::make_unique<RealCondition>(); }
  void help() {
    if (!waits_for_help_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    const Duration now = real_clock().now();
    if (now < help_again_at_) return;
    help_again_at_ = now + kAgain;
    if (!waiting_.empty()) begin_starter();
    note_need();
  }

 private:
  struct Started {  // or not yet: then `body` is set
    std::string name;
    std::function<void()> body;
    Thread thread;
    bool detached = false;
  };
  class RealTask;
  void begin_starter();
  void run_starter();
  void start_waiting();
  void note_need() { waits_for_help_ = !has_starter_ && !waiting_.empty(); }
  static Status try_start(Started& task);

  std::mutex mutex_;
  std::condition_variable some_wait_;
  std::list<std::shared_ptr<Started>> waiting_;
  bool has_starter_ = false;
  bool lacks_ = false;  // threads; and the log says so
  std::atomic<bool> waits_for_help_{false};
  Duration help_again_at_{};
};

class RealTasks::RealTask final : public Task {
 public:
  RealTask(RealTasks& tasks, std::shared_ptr<Started> started) : tasks_(tasks), started_(std::move(started)) {}
  ~RealTask() override {
    const std::lock_guard lock(tasks_.mutex_);
    started_->detached = true;
    started_->thread.detach();
  }
  void join() override {
    std::unique_lock lock(tasks_.mutex_);
    tasks_.waiting_.remove(started_);
    Thread thread = std::move(started_->thread);
    const std::function<void()> body = std::exchange(started_->body, nullptr);
    lock.unlock();
    if (body) body();  // it was never started: here it has a thread
    thread.join();
  }

 private:
  RealTasks& tasks_;
  const std::shared_ptr<Started> started_;
};

std::unique_ptr<Task> RealTasks::start(const std::string& name, std::function<void()> body) {
  auto task = std::make_shared<Started>();
  task->name = name;
  task->body = std::move(body);
  const std::lock_guard lock(mutex_);
  begin_starter();
  const Status started = waiting_.empty() ? try_start(*task) : Status();
  if (task->body) {
    if (!started && !std::exchange(lacks_, true))
      log_error("threads_lacking", "task", name, "why", started.error().what, "remedy",
                "raise pids.max of the control group, or `ulimit -u`: the task waits");
    waiting_.push_back(task);
    note_need();
    some_wait_.notify_one();
  }
  return std::make_unique<RealTask>(*this, std::move(task));
}

// A thread that is there before they run out: whoever calls start() must not wait for one. If they have run out before
// it, those that wait in env try again.
void RealTasks::begin_starter() {
  if (has_starter_) return;
  Result<Thread> thread = Thread::start("starter", [this] { run_starter(); });
  if (!thread) return start_waiting();
  thread->detach();
  has_starter_ = true;
}

void RealTasks::run_starter() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (waiting_.empty())
      some_wait_.wait(lock);
    else
      some_wait_.wait_for(lock, kAgain);
    start_waiting();
  }
}

void RealTasks::start_waiting() {
  while (!waiting_.empty() && try_start(*waiting_.front())) waiting_.pop_front();
  if (waiting_.empty() && std::exchange(lacks_, false)) log_info("threads_enough");
}

Status RealTasks::try_start(Started& task) {
  Result<Thread> thread = Thread::start(task.name, std::move(task.body));
  if (!thread) return thread.error();
  task.body = nullptr;
  if (task.detached)
    thread->detach();
  else
    task.thread = std::move(*thread);
  return {};
}

}  // namespace

Tasks& real_tasks() {
  static RealTasks* tasks = new RealTasks;  // never destroyed: threads may still ask while the process exits
  return *tasks;
}

void help_waiting_tasks() {
  static_cast<RealTasks&>(real_tasks()).help();
}

}  // namespace pawl
