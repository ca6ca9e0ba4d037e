// Scheduler: all tasks of a simulated cluster on one thread, in virtual time, in an order that one seed decides.
//
// A task is a fiber: it runs until it waits in a call of env (a sleep, a condition, a poller, a stream); then the next
// event of the queue happens, and time jumps to it. Whoever is woken runs a little later, now and then much later, as on
// a busy machine. Fibers belong to processes: a killed process' fibers never run again and nothing on their stacks is
// destroyed, as with SIGKILL. (So a simulated cluster leaks; each one runs in an operating system process of its own.)
// Nothing here is thread-safe, and nothing needs to be.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "base/ids.h"
#include "env/tasks.h"

namespace pawl::sim {

struct Fiber;

// A simulated process, as far as the scheduler knows one.
struct Process {
  std::uint32_t pid = 0;
  std::string name;
  std::uint32_t machine = 0;
  bool alive = true;
  int stops = 0;                 // as many faults keep it stopped (SIGSTOP)
  std::uint64_t turns = 0;       // how often one of its fibers has waited: its await points are numbered by this
  std::vector<Fiber*> runnable;  // would run, but it is stopped
};

struct Waiting {
  Fiber* fiber;
  std::uint64_t wait;
};
using WaitQueue = std::vector<Waiting>;

inline constexpr Duration kForever = Duration::max();

class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed) : random_(seed) {}

  [[nodiscard]] Duration now() const { return now_; }
  std::uint64_t random(std::uint64_t below) { return below == 0 ? 0 : random_() % below; }
  [[nodiscard]] bool one_in(std::uint64_t n) { return random(n) == 0; }
  Duration between(Duration least, Duration most) {
    return least + Duration(static_cast<std::int64_t>(random(static_cast<std::uint64_t>((most - least).count()) + 1)));
  }

  Fiber* start(Process& process, std::function<void()> body);
  // On no fiber: it must not wait.
  void at(Duration moment, std::function<void()> action);
  void after(Duration delay, std::function<void()> action) { at(now_ + delay, std::move(action)); }

  // Of the fiber that runs. All others wait in these.
  void sleep(Duration duration);
  bool wait(WaitQueue& queue, Duration until);  // false: the moment came first. The queue must outlive the wait
  void join(Fiber* fiber);
  [[noreturn]] void end_current();

  void notify(WaitQueue& queue);
  void kill(Process& process) { process.alive = false; }
  void stop(Process& process) { ++process.stops; }
  void go_on(Process& process);
  [[nodiscard]] Process* current_process() const;

  // Until end() or `until`. False: nothing is left to happen, or the time is over.
  bool run(Duration until);
  void end() { ended_ = true; }

  // After each turn of a fiber, on no fiber.
  std::function<void(Process&)> after_turn;
  std::uint64_t events = 0;
  // Machines may be oversubscribed: who is woken waits at most so long, rarely.
  Duration long_delay = std::chrono::milliseconds(2);

 private:
  struct Event {
    Duration at;
    std::uint64_t order;
    Fiber* fiber;
    std::uint64_t wait;
    std::function<void()>* action;  // owned
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  static void enter(unsigned low, unsigned high);
  void resume(Fiber* fiber);
  void block();
  void wake(Fiber* fiber, std::uint64_t wait, Duration moment);
  [[nodiscard]] Duration delay();

  std::mt19937_64 random_;
  Duration now_ = std::chrono::seconds(100);
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  jmp_buf main_{};
  Fiber* current_ = nullptr;
  bool ended_ = false;
  std::vector<void*> free_stacks_;
};

// The seam Tasks for one process.
class ProcessTasks final : public Tasks {
 public:
  ProcessTasks(Scheduler& scheduler, Process& process) : scheduler_(scheduler), process_(process) {}
  std::unique_ptr<Task> start(const std::string& name, std::function<void()> body) override;
  std::unique_ptr<Condition> make_condition() override;

 private:
  Scheduler& scheduler_;
  Process& process_;
};

}  // namespace pawl::sim
