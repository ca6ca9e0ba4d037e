// Machine: one simulated host: its clocks, its memory, its processes, and the seams of env as one of its processes sees
// them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "env/environment.h"
#include "job/snapshot/trainer_page.h"
#include "network.h"
#include "scheduler.h"

namespace pawl::sim {

// CLOCK_MONOTONIC stands still while the machine sleeps, CLOCK_BOOTTIME does not, the wall may jump.
class MachineClock final : public Clock {
 public:
  MachineClock(Scheduler& scheduler, Duration since_boot) : scheduler_(scheduler), since_boot_(since_boot) {}
  Duration now() override { return scheduler_.now() + since_boot_ - asleep; }
  Duration boottime() override { return scheduler_.now() + since_boot_; }
  Duration wall() override { return std::chrono::hours(490'000) + scheduler_.now() + wall_ahead; }
  void sleep(Duration duration) override { scheduler_.sleep(duration); }

  Duration asleep{};
  Duration wall_ahead{};

 private:
  Scheduler& scheduler_;
  const Duration since_boot_;
};

// Segments are real ones, small. Making and mapping them takes time by their bytes, and memory may have run out.
class MachineMemory final : public SharedMemory {
 public:
  MachineMemory(Scheduler& scheduler) : scheduler_(scheduler) {}
  AvailableMemory available() override { return {std::uint64_t{1} << 40}; }  // `has_room` says when it has run out
  Result<Fd> create(const std::string& name, std::uint64_t size_bytes) override;
  Result<std::uint64_t> size_bytes(int fd) override;
  Result<Mapping> map(int fd, std::uint64_t size_bytes, MapOptions options) override;

  double ns_a_byte = 0.1;  // to allocate
  bool has_room = true;    // for arenas; a page always fits

 private:
  Scheduler& scheduler_;
  std::set<std::uint64_t> large_;  // inodes
};

class Machines;

class MachineProcesses final : public Processes {
 public:
  MachineProcesses(Machines& machines, Process& self, std::uint32_t parent)
      : machines_(machines), self_(self), parent_(parent) {}
  Result<std::uint64_t> start_time(pid_t pid) override;
  Result<char> state(pid_t pid) override;
  bool is_alive(pid_t pid, std::uint64_t started) override {
    const auto found = start_time(pid);
    const auto there = state(pid);
    return found && *found == started && there && *there != 'Z' && *there != 'X';
  }
  std::uint64_t resident_bytes(pid_t pid) override;
  pid_t own_pid() override { return static_cast<pid_t>(self_.pid); }
  pid_t parent_pid() override { return static_cast<pid_t>(parent_); }
  uid_t own_user() override { return 0; }
  std::optional<std::string> environment_variable(const std::string&) override { return std::nullopt; }
  bool wait_for_owner_death(pthread_mutex_t* mutex, const std::atomic<bool>& ended) override;

 private:
  Machines& machines_;
  Process& self_;
  const std::uint32_t parent_;
};

// What one process sees of the world. Never destroyed: fibers of a killed process still point to it.
struct World {
  ProcessTasks tasks;
  ProcessNetwork network;
  MachineProcesses processes;
  Environment environment;
  World(Machines& machines, Process& process, std::uint32_t parent);
};

struct Machine {
  std::uint32_t index = 0;
  std::unique_ptr<MachineClock> clock;
  std::unique_ptr<MachineMemory> memory;
};

class Machines {
 public:
  Machines(Scheduler& scheduler, std::uint32_t count, double bytes_a_second);

  Scheduler& scheduler() { return scheduler_; }
  Wires& wires() { return wires_; }
  Machine& at(std::uint32_t index) { return machines_[index]; }
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(machines_.size()); }

  // `on_end` is called once, on no fiber, when the process has ended and its sockets are closed.
  Process& start(std::uint32_t machine, std::string name, std::function<void(const std::string& how)> on_end);
  // Called once, on no fiber, when it runs no more: a robust mutex of its tells that before the memory is gone.
  void when_dying(const Process& process, std::function<void()> told) { on_dying_[process.pid] = std::move(told); }
  // SIGKILL; its memory and its sockets go `dying` later. silent: the machine loses its power.
  void kill(Process& process, const std::string& how, Duration dying = Duration::zero(), bool silent = false);
  [[nodiscard]] Process* find(std::uint32_t pid);

 private:
  friend class MachineProcesses;
  Scheduler& scheduler_;
  Wires wires_;
  std::vector<Machine> machines_;
  std::map<std::uint32_t, std::unique_ptr<Process>> processes_;
  std::map<std::uint32_t, std::function<void(const std::string&)>> on_end_;
  std::map<std::uint32_t, std::function<void()>> on_dying_;
  std::map<std::uint32_t, WaitQueue> mourners_;
  std::uint32_t next_pid_ = 1000;
};

}  // namespace pawl::sim
