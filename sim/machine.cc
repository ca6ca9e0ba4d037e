#include "machine.h"

#include <sys/stat.h>

#include <cstddef>

#include "base/text.h"

namespace pawl::sim {

using namespace std::chrono_literals;

namespace {
// Arenas stand for gigabytes; a page and the log of the rendezvous are as small as they look.
bool stands_for_gigabytes(const std::string& name) {
  return name.find(".own.") != std::string::npos || name.find(".replica.") != std::string::npos;
}
std::uint64_t inode_of(int fd) {
  struct stat found {};
  (void)fstat(fd, &found);
  return found.st_ino;
}
}  // namespace

Result<Fd> MachineMemory::create(const std::string& name, std::uint64_t size_bytes) {
  if (!stands_for_gigabytes(name)) return create_segment(name, size_bytes);
  if (!has_room) return Error{Code::full, text("allocate ", name, ": ", size_bytes, " bytes needed, 0 available")};
  scheduler_.sleep(Duration(static_cast<std::int64_t>(static_cast<double>(size_bytes) * ns_a_byte)));
  PAWL_ASSIGN(Fd fd, create_segment(name, size_bytes));
  large_.insert(inode_of(fd.get()));
  return fd;
}
Result<std::uint64_t> MachineMemory::size_bytes(int fd) {
  return segment_size_bytes(fd);
}
Result<Mapping> MachineMemory::map(int fd, std::uint64_t size_bytes, MapOptions options) {
  if (options.populate && large_.contains(inode_of(fd)))
    scheduler_.sleep(Duration(static_cast<std::int64_t>(static_cast<double>(size_bytes) * ns_a_byte / 4)));
  options.populate = false;
  return map_segment(fd, size_bytes, options);
}

World::World(Machines& machines, Process& process, std::uint32_t parent)
    : tasks(machines.scheduler(), process),
      network(machines.wires(), process, *machines.at(process.machine).clock),
      processes(machines, process, parent),
      environment{*machines.at(process.machine).clock, tasks, network, real_files(), processes,
                  *machines.at(process.machine).memory} {}

Machines::Machines(Scheduler& scheduler, std::uint32_t count, double bytes_a_second)
    : scheduler_(scheduler), wires_(scheduler, count, bytes_a_second), machines_(count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    machines_[i].index = i;
    machines_[i].clock = std::make_unique<MachineClock>(scheduler, scheduler.between(1s, 10'000s));
    machines_[i].memory = std::make_unique<MachineMemory>(scheduler);
  }
}

Process& Machines::start(std::uint32_t machine, std::string name, std::function<void(const std::string&)> on_end) {
  const std::uint32_t pid = next_pid_++;
  auto process = std::make_unique<Process>();
  process->pid = pid;
  process->name = std::move(name);
  process->machine = machine;
  on_end_[pid] = std::move(on_end);
  return *(processes_[pid] = std::move(process));
}

void Machines::kill(Process& process, const std::string& how, Duration dying, bool silent) {
  if (!process.alive) return;
  scheduler_.kill(process);
  const auto end = [this, &process, how, silent] {
    wires_.close_all(process, silent);
    scheduler_.notify(mourners_[process.pid]);
    if (auto told = std::move(on_end_[process.pid])) told(how);
    on_end_.erase(process.pid);
  };
  // A robust mutex tells of the death before the memory is gone.
  if (dying > Duration::zero()) scheduler_.notify(mourners_[process.pid]);
  if (const auto told = std::exchange(on_dying_[process.pid], nullptr)) told();
  scheduler_.after(dying, end);
}

Process* Machines::find(std::uint32_t pid) {
  const auto found = processes_.find(pid);
  return found == processes_.end() ? nullptr : found->second.get();
}

Result<std::uint64_t> MachineProcesses::start_time(pid_t pid) {
  const Process* process = machines_.find(static_cast<std::uint32_t>(pid));
  if (process == nullptr || !process->alive) return Error{Code::not_found, "no such process"};
  return std::uint64_t{process->pid};
}
Result<char> MachineProcesses::state(pid_t pid) {
  const Process* process = machines_.find(static_cast<std::uint32_t>(pid));
  if (process == nullptr || !process->alive) return Error{Code::not_found, "no such process"};
  return process->stops > 0 ? 'T' : 'S';
}
std::uint64_t MachineProcesses::resident_bytes(pid_t pid) {
  return state(pid) ? 1 << 20 : 0;
}

// The page says which process has locked its mutex.
bool MachineProcesses::wait_for_owner_death(pthread_mutex_t* mutex, const std::atomic<bool>& ended) {
  const auto* page = reinterpret_cast<const job::TrainerPage*>(reinterpret_cast<const std::byte*>(mutex) -
                                                               offsetof(job::TrainerPage, alive));
  Scheduler& scheduler = machines_.scheduler();
  const auto owner = static_cast<std::uint32_t>(page->pid.load());
  for (;;) {
    const Process* process = machines_.find(owner);
    if (ended || process == nullptr || page->phase.load() == ~std::uint64_t{0})
      return false;  // it let go in good order
    if (!process->alive) return true;
    scheduler.wait(machines_.mourners_[owner], scheduler.now() + 1s);
  }
}

}  // namespace pawl::sim
