#include "env/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

#include "base/text.h"
#include "env/files.h"

extern char** environ;

namespace pawl {
namespace {

// Which step of the child failed, and why: what it writes to its parent when it can't become the program.
struct ChildFailure {
  enum class Stage : int { descriptors, directory, parent_gone, exec };
  Stage stage;
  int errno_value;
};

// All that the child needs, made before the fork: after it, only async-signal-safe calls are allowed.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* environment;
  const char* directory;         // nullptr: stay
  std::vector<InheritedFd> fds;  // standard ones included
  std::vector<int> high_fds;     // room for their copies
  int first_high_fd;             // above every target
  int report_fd;
  pid_t parent;
  int parent_death_signal;
  bool new_process_group;
  int killed_sooner;
};

constexpr int kOomScoreMax = 1000;

[[noreturn]] void fail_in_child(int report_fd, ChildFailure::Stage stage) {
  const ChildFailure failure{stage, errno};
  [[maybe_unused]] ssize_t written = ::write(report_fd, &failure, sizeof failure);
  ::_exit(127);
}

// First copies every source above all targets, so that no target overwrites a source that is still needed; then marks
// all else close-on-exec, then puts each in its place. Returns the report pipe's new number.
int arrange_fds(ChildPlan& plan) {
  const int report = ::fcntl(plan.report_fd, F_DUPFD_CLOEXEC, plan.first_high_fd);
  if (report < 0) fail_in_child(plan.report_fd, ChildFailure::Stage::descriptors);
  for (std::size_t i = 0; i < plan.fds.size(); ++i) {
    plan.high_fds[i] = ::fcntl(plan.fds[i].from, F_DUPFD_CLOEXEC, plan.first_high_fd);
    if (plan.high_fds[i] < 0) fail_in_child(report, ChildFailure::Stage::descriptors);
  }
  ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);  // where the kernel lacks it: ours are close-on-exec from birth
  for (std::size_t i = 0; i < plan.fds.size(); ++i)
    if (::dup2(plan.high_fds[i], plan.fds[i].to) < 0) fail_in_child(report, ChildFailure::Stage::descriptors);
  return report;
}

void reset_signals() {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

std::atomic<rlim_t> files_of_children{0};  // 0: as many as this process

// Allocates nothing.
void have_as_many_files_as_before() {
  rlimit limit{};
  if (files_of_children == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, files_of_children);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Anybody may raise their own. Where it fails the process is as likely to be killed as before. Allocates nothing.
void be_killed_sooner(int by) {
  const int fd = ::open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  char digits[16] = {};
  int score = 0;
  const ssize_t count = ::read(fd, digits, sizeof digits - 1);
  if (count > 0 && std::from_chars(digits, digits + count, score).ec == std::errc()) {
    const auto end = std::to_chars(digits, digits + sizeof digits, std::min(score + by, kOomScoreMax)).ptr;
    [[maybe_unused]] const ssize_t written = ::pwrite(fd, digits, static_cast<std::size_t>(end - digits), 0);
  }
  ::close(fd);
}

[[noreturn]] void become_program(ChildPlan& plan) {
  const int report = arrange_fds(plan);
  if (plan.new_process_group) ::setpgid(0, 0);
  if (plan.parent_death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, plan.parent_death_signal);
    // The parent may have died before the line above: then no signal will ever come.
    if (::getppid() != plan.parent) fail_in_child(report, ChildFailure::Stage::parent_gone);
  }
  if (plan.directory != nullptr && ::chdir(plan.directory) != 0) fail_in_child(report, ChildFailure::Stage::directory);
  reset_signals();
  have_as_many_files_as_before();
  if (plan.killed_sooner > 0) be_killed_sooner(plan.killed_sooner);
  ::execve(plan.program, plan.argv, plan.environment);
  fail_in_child(report, ChildFailure::Stage::exec);
}

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

Error spawn_error(const ChildFailure& failure, const SpawnOptions& options) {
  const auto at = [&](std::string_view stage, std::string_view detail) {
    Error error = system_error(text("start ", options.argv.front(), ": ", stage, detail), failure.errno_value);
    if (failure.errno_value == ENOENT || failure.errno_value == ENOTDIR) error.code = Code::not_found;
    if (failure.errno_value == EBADF) error.code = Code::invalid;
    if (failure.errno_value == ENOMEM || failure.errno_value == EMFILE) error.code = Code::full;
    return error;
  };
  switch (failure.stage) {
    case ChildFailure::Stage::descriptors:
      return at("hand over descriptors", "");
    case ChildFailure::Stage::directory:
      return at("enter ", options.directory);
    case ChildFailure::Stage::parent_gone:
      return Error{Code::cancelled, "start: the parent is gone"};
    case ChildFailure::Stage::exec:
      return at("execute", "");
  }
  return at("start", "");
}

std::vector<InheritedFd> all_fds(const SpawnOptions& options, int null_fd) {
  std::vector<InheritedFd> fds = options.inherited_fds;
  for (const int fd : options.keep_fds) fds.push_back({fd, fd});
  fds.push_back({options.stdin_fd >= 0 ? options.stdin_fd : null_fd, STDIN_FILENO});
  if (options.stdout_fd >= 0) fds.push_back({options.stdout_fd, STDOUT_FILENO});
  if (options.stderr_fd >= 0) fds.push_back({options.stderr_fd, STDERR_FILENO});
  return fds;
}

// Forks with all signals blocked, so that no handler of ours runs in the child.
pid_t fork_into(ChildPlan& plan) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) become_program(plan);
  const int saved = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = saved;
  return pid;
}

// Fields of /proc/PID/stat from the third on: the second, the name, may hold anything, blanks and brackets included.
Result<std::vector<std::string>> stat_fields(pid_t pid) {
  const Result<std::string> content = read_file(text("/proc/", pid, "/stat"));
  const std::size_t name_end = content ? content->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return Error{Code::not_found, text("process ", pid, ": none")};
  std::vector<std::string> fields;
  for (std::size_t at = name_end + 2; at < content->size();) {
    const std::size_t end = std::min(content->find_first_of(" \n", at), content->size());
    fields.push_back(content->substr(at, end - at));
    at = end + 1;
  }
  return fields;
}

constexpr std::size_t kStateField = 0;  // field 3 of proc(5)
constexpr std::size_t kGroupField = 2;
constexpr std::size_t kThreadsField = 17;
constexpr std::size_t kStartTimeField = 19;  // field 22

bool is_program(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

Result<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = ::getenv("PATH");
  std::string_view left = path != nullptr ? path : "/usr/bin:/bin";
  while (!name.empty()) {
    const std::size_t colon = std::min(left.find(':'), left.size());
    const std::string_view directory = left.substr(0, colon);
    const std::string candidate = join_path(directory.empty() ? "." : directory, name);
    if (is_program(candidate)) return candidate;
    if (colon == left.size()) break;
    left.remove_prefix(colon + 1);
  }
  return Error{Code::not_found, text("program ", name, ": not in PATH")};
}

Result<Process> spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return Error{Code::invalid, "start: no program named"};
  PAWL_ASSIGN(const std::string program, find_program(options.argv.front()));
  const Fd null_fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error(text("start ", program), errno);
  const Fd report(ends[0]);
  Fd child_end(ends[1]);

  const std::vector<char*> argv = pointers_to(options.argv);
  std::vector<char*> environment;
  if (options.environment) environment = pointers_to(*options.environment);
  std::vector<InheritedFd> fds = all_fds(options, null_fd.get());
  int first_high_fd = 3;
  for (const InheritedFd& fd : fds) first_high_fd = std::max(first_high_fd, fd.to + 1);
  ChildPlan plan{.program = program.c_str(),
                 .argv = argv.data(),
                 .environment = options.environment ? environment.data() : environ,
                 .directory = options.directory.empty() ? nullptr : options.directory.c_str(),
                 .fds = fds,
                 .high_fds = std::vector<int>(fds.size()),
                 .first_high_fd = first_high_fd,
                 .report_fd = child_end.get(),
                 .parent = getpid(),
                 .parent_death_signal = options.parent_death_signal,
                 .new_process_group = options.new_process_group,
                 .killed_sooner = options.killed_sooner};
  const pid_t pid = fork_into(plan);
  if (pid < 0) return system_error(text("start ", program), errno);
  child_end.reset();

  // The pipe closes when the program runs; bytes in it say why it does not.
  ChildFailure failure{};
  ssize_t count = 0;
  while ((count = ::read(report.get(), &failure, sizeof failure)) < 0 && errno == EINTR) {
  }
  if (count == static_cast<ssize_t>(sizeof failure)) {
    ::waitpid(pid, nullptr, 0);
    return spawn_error(failure, options);
  }
  // Until we wait for it, its number is its own: the two calls below can't meet another process.
  PAWL_ASSIGN(Fd pidfd, open_pidfd(pid));
  return Process{pid, std::move(pidfd), process_start_time(pid).value_or(0)};
}

std::string Exit::describe() const {
  if (!known) return "ended";
  if (!by_signal) return text("exited ", number);
  const char* name = sigabbrev_np(number);
  const std::string signal = name != nullptr ? text("SIG", name) : text("signal ", number);
  return text("killed by ", signal, dumped_core ? " (core dumped)" : "");
}

Result<Fd> open_pidfd(pid_t pid) {
  Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));  // the C library's header for it lacks extern "C"
  if (fd.valid()) return fd;
  const int cause = errno;
  Error error = system_error(text("process ", pid), cause);
  if (cause == ESRCH || cause == EINVAL) error.code = Code::not_found;
  return error;
}

Status send_signal(int pidfd, int signal) {
  if (syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return {};
  const int cause = errno;
  Error error = system_error(text("send signal ", signal), cause);
  if (cause == ESRCH) error.code = Code::not_found;
  return error;
}

Result<std::optional<Exit>> try_wait_exit(int pidfd) {
  siginfo_t info{};
  int outcome = 0;
  while ((outcome = waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG)) != 0 && errno == EINTR) {
  }
  if (outcome == 0) {
    if (info.si_pid == 0) return std::optional<Exit>();
    Exit exit;
    exit.by_signal = info.si_code != CLD_EXITED;
    exit.number = info.si_status;
    exit.dumped_core = info.si_code == CLD_DUMPED;
    return std::optional<Exit>(exit);
  }
  if (errno != ECHILD) return system_error("wait for a process", errno);
  pollfd entry{pidfd, POLLIN, 0};
  if (poll(&entry, 1, 0) <= 0) return std::optional<Exit>();
  return std::optional<Exit>(Exit{.known = false});
}

Result<Exit> wait_exit(int pidfd, Deadline deadline) {
  for (;;) {
    PAWL_ASSIGN(const std::optional<Exit> exit, try_wait_exit(pidfd));
    if (exit) return *exit;
    if (deadline.passed()) return Error{Code::timeout, "wait for a process: it still runs"};
    pollfd entry{pidfd, POLLIN, 0};
    if (poll(&entry, 1, deadline.left_for_poll_ms()) < 0 && errno != EINTR)
      return system_error("wait for a process", errno);
  }
}

Result<std::uint64_t> process_start_time(pid_t pid) {
  PAWL_ASSIGN(const std::vector<std::string> fields, stat_fields(pid));
  std::uint64_t ticks = 0;
  if (fields.size() <= kStartTimeField || !parse_number(fields[kStartTimeField], ticks))
    return Error{Code::io, text("process ", pid, ": its /proc entry has no start time")};
  return ticks;
}

Result<char> process_state(pid_t pid) {
  PAWL_ASSIGN(const std::vector<std::string> fields, stat_fields(pid));
  if (fields.empty() || fields[kStateField].empty())
    return Error{Code::io, text("process ", pid, ": its /proc entry has no state")};
  return fields[kStateField].front();
}

Result<pid_t> process_group(pid_t pid) {
  PAWL_ASSIGN(const std::vector<std::string> fields, stat_fields(pid));
  std::uint32_t group = 0;
  if (fields.size() <= kGroupField || !parse_number(fields[kGroupField], group))
    return Error{Code::io, text("process ", pid, ": its /proc entry has no group")};
  return static_cast<pid_t>(group);
}

namespace {

// A zombie whose other threads still end holds its memory and descriptors until the last of them is gone.
bool has_ended(const std::vector<std::string>& stat) {
  if (stat.size() <= kThreadsField || stat[kStateField] == "X") return true;
  return stat[kStateField] == "Z" && stat[kThreadsField] == "1";
}

}  // namespace

std::vector<pid_t> processes_of_group(pid_t leader) {
  std::vector<pid_t> members;
  const Result<std::vector<std::string>> names = real_files().list("/proc");
  if (!names) return members;
  for (const std::string& name : *names) {
    std::uint32_t number = 0;
    if (!parse_number(name, number)) continue;
    const auto pid = static_cast<pid_t>(number);
    if (process_group(pid).value_or(0) != leader) continue;
    if (!has_ended(stat_fields(pid).value_or({}))) members.push_back(pid);
  }
  return members;
}

bool was_started_with(pid_t pid, std::string_view entry) {
  const Result<std::string> entries = read_file(text("/proc/", pid, "/environ"));
  for (std::string_view left = entries ? *entries : std::string_view(); !left.empty();) {
    const std::size_t end = std::min(left.find('\0'), left.size());
    if (left.substr(0, end) == entry) return true;
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return false;
}

bool is_alive(pid_t pid, std::uint64_t start_time) {
  const Result<std::uint64_t> found = process_start_time(pid);
  return found && *found == start_time && !has_ended(stat_fields(pid).value_or({}));
}

namespace {

class RealProcesses final : public Processes {
 public:
  Result<std::uint64_t> start_time(pid_t pid) override { return process_start_time(pid); }
  Result<char> state(pid_t pid) override { return process_state(pid); }
  bool is_alive(pid_t pid, std::uint64_t start_time) override { return pawl::is_alive(pid, start_time); }
  std::uint64_t resident_bytes(pid_t pid) override {
    const Result<std::string> statm = read_file(text("/proc/", pid, "/statm"), 256);
    if (!statm) return 0;
    const std::size_t blank = statm->find(' ');
    std::uint64_t pages = 0;
    if (blank == std::string::npos) return 0;
    const std::string_view rest = std::string_view(*statm).substr(blank + 1);
    if (!parse_number(rest.substr(0, rest.find(' ')), pages)) return 0;
    return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  }
  pid_t own_pid() override { return getpid(); }
  pid_t parent_pid() override { return getppid(); }
  uid_t own_user() override { return geteuid(); }
  std::optional<std::string> environment_variable(const std::string& name) override {
    const char* value = ::getenv(name.c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  }
  bool wait_for_owner_death(pthread_mutex_t* mutex, const std::atomic<bool>& ended) override {
    while (!ended) {
      timespec until{};
      clock_gettime(CLOCK_MONOTONIC, &until);
      until.tv_sec += 1;
      const int got = pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
      if (got == ETIMEDOUT) continue;
      if (got == EOWNERDEAD) {
        (void)pthread_mutex_consistent(mutex);
        (void)pthread_mutex_unlock(mutex);
        return true;
      }
      if (got == 0) (void)pthread_mutex_unlock(mutex);
      return false;
    }
    return false;
  }
};

}  // namespace

std::uint64_t allow_many_files() {
  constexpr rlim_t kMany = 65'536;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  rlimit more = limit;
  more.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMany));
  if (more.rlim_cur == limit.rlim_cur || setrlimit(RLIMIT_NOFILE, &more) != 0) return limit.rlim_cur;
  files_of_children = limit.rlim_cur;
  return more.rlim_cur;
}

Processes& real_processes() {
  static RealProcesses* processes =
      new RealProcesses;  // never destroyed: threads may still wait while the process exits
  return *processes;
}

}  // namespace pawl
