// Processes: starting one, knowing that it ended, and telling it from another that got its number.
//
// A child starts with default signal handling, an empty signal mask, /dev/null as standard input, and no descriptor but
// those it was given. What fails between fork and exec is an error of spawn, not a child that exits oddly.
// A pid alone is never proof of identity: keep the pidfd, or the pid with its start time.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "env/clock.h"
#include "env/fd.h"

namespace pawl {

struct InheritedFd {
  int from = -1;  // ours
  int to = -1;    // its number in the child
};

struct SpawnOptions {
  std::vector<std::string> argv;                        // argv[0] without a slash is looked for in PATH
  std::optional<std::vector<std::string>> environment;  // "NAME=value", all of it; unset: ours
  std::string directory;                                // empty: ours
  std::vector<InheritedFd> inherited_fds;
  std::vector<int> keep_fds;       // under their own numbers
  int stdin_fd = -1;               // -1: /dev/null
  int stdout_fd = -1;              // -1: ours
  int stderr_fd = -1;              // -1: ours
  bool new_process_group = false;  // a Ctrl-C at the terminal then doesn't reach it
  // Sent to the child when the *thread* that called spawn ends: call from one that lives as long as the process.
  // Once set, a parent that dies at any instant leaves no child behind. 0: none.
  int parent_death_signal = 0;
  // By so much sooner than its parent it is killed where the machine has no memory left (oom_score_adj, proc(5)).
  int killed_sooner = 0;
};

struct Process {
  pid_t pid = 0;
  Fd pidfd;                      // readable once it has ended
  std::uint64_t start_time = 0;  // as process_start_time
};

// Returns when the program runs. The child must be waited for (wait_exit), or it stays a zombie.
// Fails: `not_found` (program or directory), `invalid` (empty argv, bad descriptor), `full`, `io`.
[[nodiscard]] Result<Process> spawn(const SpawnOptions& options);

// The program that spawn would run for `name`. Fails: `not_found`.
[[nodiscard]] Result<std::string> find_program(const std::string& name);

struct Exit {
  bool known = true;  // false: it ended, but was not our child, so nobody tells us how
  bool by_signal = false;
  int number = 0;  // exit status, or signal
  bool dumped_core = false;

  [[nodiscard]] bool clean() const { return known && !by_signal && number == 0; }
  [[nodiscard]] std::string describe() const;  // "exited 1", "killed by SIGKILL", "ended"
};

// Fails: `not_found` when there is no such process.
[[nodiscard]] Result<Fd> open_pidfd(pid_t pid);
// Fails: `not_found` when it has ended and been waited for; `io` when it is not ours to signal.
[[nodiscard]] Status send_signal(int pidfd, int signal);
// How it ended, and reaps it; nothing while it runs.
[[nodiscard]] Result<std::optional<Exit>> try_wait_exit(int pidfd);
// Fails: `timeout`.
[[nodiscard]] Result<Exit> wait_exit(int pidfd, Deadline deadline);

// In clock ticks since boot. Fails: `not_found`.
[[nodiscard]] Result<std::uint64_t> process_start_time(pid_t pid);
// As in /proc: R running, S sleeping, D in a system call that can't be interrupted, T stopped, t traced, Z zombie.
[[nodiscard]] Result<char> process_state(pid_t pid);
// Fails: `not_found`.
[[nodiscard]] Result<pid_t> process_group(pid_t pid);
// Living processes of the group that `leader` leads, or led: a group outlives its leader.
[[nodiscard]] std::vector<pid_t> processes_of_group(pid_t leader);
// Whether it was started with this entry, "NAME=value", in its environment. False also where that can't be told.
[[nodiscard]] bool was_started_with(pid_t pid, std::string_view entry);
// This very process runs, is stopped, or still ends: a zombie is dead only when the last of its threads has ended.
[[nodiscard]] bool is_alive(pid_t pid, std::uint64_t start_time);

// As many open files as this process is allowed at all, up to 65,536, where shells allow 1,024; answers how many that are.
// What it starts has as many as before: a program that uses select() relies on the small number.
std::uint64_t allow_many_files();

// --- The seam for whoever may run in a simulation: what the daemon wants to know of the processes beside it.

class Processes {
 public:
  virtual ~Processes() = default;
  // As the functions above.
  [[nodiscard]] virtual Result<std::uint64_t> start_time(pid_t pid) = 0;
  [[nodiscard]] virtual Result<char> state(pid_t pid) = 0;
  // With all of its threads: a zombie of which one is left is alive.
  [[nodiscard]] virtual bool is_alive(pid_t pid, std::uint64_t start_time) = 0;
  [[nodiscard]] virtual std::uint64_t resident_bytes(pid_t pid) = 0;  // 0: it can't be told
  [[nodiscard]] virtual pid_t own_pid() = 0;
  [[nodiscard]] virtual pid_t parent_pid() = 0;
  [[nodiscard]] virtual uid_t own_user() = 0;  // with whose rights this process acts
  // Of this process, as it was started; unset: nullopt.
  [[nodiscard]] virtual std::optional<std::string> environment_variable(const std::string& name) = 0;
  // Waits, in a task, for the end of the process that holds this robust mutex, which lies in memory shared with it.
  // True: its owner has died. False: the mutex was unlocked, or `ended` (looked at once a second).
  [[nodiscard]] virtual bool wait_for_owner_death(pthread_mutex_t* mutex, const std::atomic<bool>& ended) = 0;
};

[[nodiscard]] Processes& real_processes();

}  // namespace pawl
