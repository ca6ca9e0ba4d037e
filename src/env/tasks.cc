#include "env/tasks.h"

#include <pthread.h>

#include <condition_variable>
#include <thread>
#include <utility>

namespace pawl {
namespace {

class RealTask final : public Task {
 public:
  explicit RealTask(std::thread thread) : thread_(std::move(thread)) {}
  ~RealTask() override {
    if (thread_.joinable()) thread_.detach();
  }
  void join() override { thread_.join(); }

 private:
  std::thread thread_;
};

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
  std::unique_ptr<Task> start(const std::string& name, std::function<void()> body) override {
    std::thread thread(std::move(body));
    (void)pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
    return std::make_unique<RealTask>(std::move(thread));
  }
  std::unique_ptr<Condition> make_condition() override { return std::make_unique<RealCondition>(); }
};

}  // namespace

Tasks& real_tasks() {
  static RealTasks* tasks = new RealTasks;  // never destroyed: threads may still ask while the process exits
  return *tasks;
}

}  // namespace pawl
