#include "env/process.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/text.h"
#include "env/files.h"
#include "env/network.h"
#include "env/processes_conformance.h"
#include "env/temporary_directory.h"

namespace pawl {
namespace {

using namespace std::chrono_literals;

struct Output {
  std::string text;
  Exit exit;
};

// Runs a shell script to its end.
Output run_shell(const std::string& script, SpawnOptions options = {}) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  options.argv = {"sh", "-c", script};
  options.stdout_fd = write_end.get();
  Result<Process> process = spawn(options);
  EXPECT_TRUE(process) << (process ? "" : process.error().what);
  if (!process) return {};
  write_end.reset();
  Output output;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(read_end.get(), buffer, sizeof buffer)) > 0;) output.text.append(buffer, n);
  output.exit = wait_exit(process->pidfd.get(), Deadline::in(20s)).value_or(Exit{.known = false});
  return output;
}

// Waits for `state`, as process_state tells it; false after some seconds.
bool reaches_state(pid_t pid, char state) {
  for (const Deadline deadline = Deadline::in(10s); !deadline.passed(); real_clock().sleep(1ms))
    if (process_state(pid).value_or('?') == state) return true;
  return false;
}

TEST(Spawn, TellsHowItEnded) {
  EXPECT_EQ(run_shell("exit 0").exit.describe(), "exited 0");
  EXPECT_TRUE(run_shell("exit 0").exit.clean());
  EXPECT_EQ(run_shell("exit 3").exit.describe(), "exited 3");
  EXPECT_EQ(run_shell("kill -9 $$").exit.describe(), "killed by SIGKILL");
  EXPECT_FALSE(run_shell("kill -9 $$").exit.clean());
}

TEST(Spawn, GivesWhatWasAskedForAndNothingElse) {
  SpawnOptions options;
  options.environment = std::vector<std::string>{"PATH=/usr/bin:/bin", "COLOR=blue green"};
  options.directory = "/";
  EXPECT_EQ(run_shell("echo $COLOR-$HOME-$(pwd)", options).text, "blue green--/\n");
  EXPECT_EQ(run_shell("cat; echo $?").text, "0\n");  // standard input is /dev/null
}

TEST(Spawn, ClosesAllDescriptorsThatWereNotHandedOver) {
  const Fd leaky(open("/dev/null", O_RDONLY));  // not close-on-exec, as a careless library leaves it
  const std::string look = text("test -e /proc/$$/fd/", leaky.get(), " && echo there || echo none");
  EXPECT_EQ(run_shell(look).text, "none\n");
  SpawnOptions options;
  options.keep_fds = {leaky.get()};
  EXPECT_EQ(run_shell(look, options).text, "there\n");
}

TEST(Spawn, HandsDescriptorsOverEvenWhereNumbersCross) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd a(ends[0]);
  const Fd b(ends[1]);
  SpawnOptions options;
  options.inherited_fds = {{a.get(), b.get()}, {b.get(), a.get()}};  // swapped
  const Output output = run_shell(text("echo hello >&", a.get(), "; read x <&", b.get(), "; echo got $x"), options);
  EXPECT_EQ(output.text, "got hello\n");
}

TEST(Spawn, KeepsADescriptorUnderItsNumber) {
  Fd file(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  SpawnOptions options;
  options.keep_fds = {file.get()};
  EXPECT_NE(run_shell(text("read line <&", file.get(), " && echo $line"), options).text, "");
}

TEST(Spawn, StartsWithDefaultSignals) {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  void (*handler)(int) = signal(SIGTERM, SIG_IGN);
  const Output output = run_shell("kill -15 $$; sleep 5");
  signal(SIGTERM, handler);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(output.exit.describe(), "killed by SIGTERM");
}

TEST(Spawn, SaysAtOnceWhatIsWrong) {
  SpawnOptions options;
  EXPECT_EQ(spawn(options).error().code, Code::invalid);
  options.argv = {"no-such-program-anywhere"};
  EXPECT_EQ(spawn(options).error().code, Code::not_found);
  options.argv = {"/no/such/program"};
  EXPECT_EQ(spawn(options).error().code, Code::not_found);
  options.argv = {"/etc/passwd"};
  const Result<Process> not_executable = spawn(options);
  ASSERT_FALSE(not_executable);
  EXPECT_EQ(not_executable.error().code, Code::io);
  options.argv = {"true"};
  options.directory = "/no/such/directory";
  const Result<Process> nowhere = spawn(options);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, Code::not_found);
  EXPECT_NE(nowhere.error().what.find("/no/such/directory"), std::string::npos);
  options.directory.clear();
  options.inherited_fds = {{900, 3}};
  EXPECT_EQ(spawn(options).error().code, Code::invalid);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a failed start left a zombie";
}

TEST(Spawn, AChildInItsOwnGroup) {
  SpawnOptions options;
  options.new_process_group = true;
  const Output output = run_shell("cut -d' ' -f1,5 /proc/$$/stat", options);
  const std::size_t blank = output.text.find(' ');
  ASSERT_NE(blank, std::string::npos);
  EXPECT_EQ(output.text.substr(0, blank) + "\n", output.text.substr(blank + 1));
}

// A parent that is killed takes its child along, though nobody tells the child.
TEST(Spawn, AChildIsKilledSoonerForWantOfMemory) {
  const int own = std::atoi(read_file("/proc/self/oom_score_adj").value_or("0").c_str());
  SpawnOptions options;
  EXPECT_EQ(run_shell("cat /proc/self/oom_score_adj", options).text, text(own, "\n"));
  options.killed_sooner = 300;
  EXPECT_EQ(run_shell("cat /proc/self/oom_score_adj", options).text, text(std::min(own + 300, 1000), "\n"));
  options.killed_sooner = 5000;
  EXPECT_EQ(run_shell("cat /proc/self/oom_score_adj", options).text, "1000\n");
}

TEST(Spawn, AChildDiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const pid_t parent = fork();
  if (parent == 0) {
    SpawnOptions options;
    options.argv = {"sleep", "100"};
    options.parent_death_signal = SIGKILL;
    Result<Process> child = spawn(options);
    const pid_t pid = child ? child->pid : -1;
    [[maybe_unused]] ssize_t written = write(write_end.get(), &pid, sizeof pid);
    for (;;) pause();
  }
  pid_t child = -1;
  ASSERT_EQ(read(read_end.get(), &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_GT(child, 0);
  const Result<Fd> pidfd = open_pidfd(child);
  ASSERT_TRUE(pidfd);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(wait_readable(pidfd->get(), Deadline::in(10s)));  // it ended
}

TEST(Process, IsKnownByPidAndStartTime) {
  SpawnOptions options;
  options.argv = {"sleep", "100"};
  Result<Process> process = spawn(options);
  ASSERT_TRUE(process);
  EXPECT_EQ(*process_start_time(process->pid), process->start_time);
  EXPECT_TRUE(is_alive(process->pid, process->start_time));
  EXPECT_FALSE(is_alive(process->pid, process->start_time + 1));  // another one with its number
  EXPECT_FALSE(try_wait_exit(process->pidfd.get())->has_value());
  EXPECT_EQ(wait_exit(process->pidfd.get(), Deadline::in(1ms)).error().code, Code::timeout);

  ASSERT_TRUE(send_signal(process->pidfd.get(), SIGSTOP));
  EXPECT_TRUE(reaches_state(process->pid, 'T'));
  EXPECT_TRUE(is_alive(process->pid, process->start_time));
  ASSERT_TRUE(send_signal(process->pidfd.get(), SIGKILL));
  EXPECT_TRUE(reaches_state(process->pid, 'Z'));
  EXPECT_FALSE(is_alive(process->pid, process->start_time));
  EXPECT_EQ(wait_exit(process->pidfd.get(), Deadline::in(10s))->describe(), "killed by SIGKILL");

  EXPECT_EQ(send_signal(process->pidfd.get(), SIGKILL).error().code, Code::not_found);
  EXPECT_EQ(process_state(process->pid).error().code, Code::not_found);
  EXPECT_EQ(open_pidfd(process->pid).error().code, Code::not_found);
}

TEST(Process, AStrangersEndIsSeenButNotExplained) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  SpawnOptions options;
  options.argv = {"sh", "-c", "sleep 100 & echo $!; wait"};
  options.stdout_fd = write_end.get();
  Result<Process> shell = spawn(options);
  ASSERT_TRUE(shell);
  char buffer[32] = "";
  ASSERT_GT(read(read_end.get(), buffer, sizeof buffer - 1), 0);
  const Result<Fd> grandchild = open_pidfd(atoi(buffer));
  ASSERT_TRUE(grandchild);
  EXPECT_FALSE(try_wait_exit(grandchild->get())->has_value());
  ASSERT_TRUE(send_signal(grandchild->get(), SIGKILL));
  EXPECT_EQ(wait_exit(grandchild->get(), Deadline::in(10s))->describe(), "ended");
  EXPECT_TRUE(wait_exit(shell->pidfd.get(), Deadline::in(10s)));
}

// A killed process of several threads is a zombie while the last of them still gives its memory back.
TEST(Process, AZombieOfWhichAThreadIsLeftIsAlive) {
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::setpgid(0, 0);
    std::thread([] { ::pause(); }).detach();
    ::syscall(SYS_exit, 0);  // this thread alone
  }
  const Result<Fd> pidfd = open_pidfd(pid);
  ASSERT_TRUE(pidfd);
  const std::uint64_t start_time = process_start_time(pid).value_or(0);
  ASSERT_TRUE(reaches_state(pid, 'Z'));
  EXPECT_TRUE(is_alive(pid, start_time));
  EXPECT_EQ(processes_of_group(pid), std::vector<pid_t>{pid});
  EXPECT_FALSE(try_wait_exit(pidfd->get())->has_value());

  ASSERT_TRUE(send_signal(pidfd->get(), SIGKILL));
  ASSERT_TRUE(wait_readable(pidfd->get(), Deadline::in(20s)));
  EXPECT_FALSE(is_alive(pid, start_time));
  EXPECT_TRUE(processes_of_group(pid).empty());
  EXPECT_TRUE(wait_exit(pidfd->get(), Deadline::in(10s)));
}

TEST(Process, AGroupOutlivesItsLeader) {
  SpawnOptions options;
  options.argv = {"sh", "-c", "sleep 1000 & exit 0"};
  options.environment = std::vector<std::string>{"PATH=/usr/bin:/bin", "MARK=this one"};
  options.new_process_group = true;
  Result<Process> leader = spawn(options);
  ASSERT_TRUE(leader) << leader.error().what;
  ASSERT_TRUE(reaches_state(leader->pid, 'Z'));
  const std::vector<pid_t> members = processes_of_group(leader->pid);
  ASSERT_EQ(members.size(), 1u) << "not the zombie";
  // While it becomes `sleep` it has no environment.
  for (const Deadline deadline = Deadline::in(10s);
       !deadline.passed() && !was_started_with(members[0], "MARK=this one");)
    real_clock().sleep(1ms);
  EXPECT_TRUE(was_started_with(members[0], "MARK=this one"));
  EXPECT_FALSE(was_started_with(members[0], "MARK=this"));
  EXPECT_FALSE(was_started_with(members[0], "this one"));
  ::kill(-leader->pid, SIGKILL);
  ASSERT_TRUE(wait_exit(leader->pidfd.get(), Deadline::in(20s)));
  for (const Deadline deadline = Deadline::in(10s); !deadline.passed() && !processes_of_group(leader->pid).empty();)
    real_clock().sleep(1ms);
  EXPECT_TRUE(processes_of_group(leader->pid).empty());
}

TEST(Process, ANameWithBracketsAndBlanksDoesNotConfuseIt) {
  const TemporaryDirectory directory;
  const std::string program = directory.path("a) R 1 (b");
  const Result<std::string> sleep = find_program("sleep");
  ASSERT_TRUE(sleep);
  ASSERT_EQ(symlink(sleep->c_str(), program.c_str()), 0);
  SpawnOptions options;
  options.argv = {program, "100"};
  Result<Process> process = spawn(options);
  ASSERT_TRUE(process);
  EXPECT_TRUE(reaches_state(process->pid, 'S'));
  EXPECT_GT(process->start_time, 1U);
  EXPECT_TRUE(send_signal(process->pidfd.get(), SIGKILL));
  EXPECT_TRUE(wait_exit(process->pidfd.get(), Deadline::in(10s)));
}

// --- The seam: this machine's processes.

class RealTestedProcesses final : public TestedProcesses {
 public:
  Processes& processes() override { return real_processes(); }
  Clock& clock() override { return real_clock(); }
  Tasks& tasks() override { return real_tasks(); }
  pid_t start() override {
    SpawnOptions options;
    options.argv = {"sleep", "100"};
    child_ = *spawn(options);
    return child_.pid;
  }
  void end(pid_t /*pid*/) override {
    EXPECT_TRUE(send_signal(child_.pidfd.get(), SIGKILL));
    EXPECT_TRUE(wait_exit(child_.pidfd.get(), Deadline::in(10s)));
  }
  uid_t user_of(pid_t pid) override {
    struct stat directory {};
    EXPECT_EQ(::stat(text("/proc/", pid).c_str(), &directory), 0);
    return directory.st_uid;
  }
  void set_environment_variable(const char* name, const char* value) override {
    if (value != nullptr)
      setenv(name, value, 1);
    else
      unsetenv(name);
  }
  // A thread that ends with the mutex is to the kernel what a process is.
  void hold(pthread_mutex_t* mutex) override {
    owner_ = std::thread([this, mutex] {
      EXPECT_EQ(pthread_mutex_lock(mutex), 0);
      held_.raise();
      EXPECT_TRUE(wait_readable(go_.fd(), Deadline::in(20s)));
      if (!by_dying_) pthread_mutex_unlock(mutex);
    });
    EXPECT_TRUE(wait_readable(held_.fd(), Deadline::in(20s)));
  }
  void let_go(bool by_dying) override {
    by_dying_ = by_dying;
    go_.raise();
    owner_.join();
  }

 private:
  Process child_;
  std::thread owner_;
  std::atomic<bool> by_dying_ = false;
  Event held_ = *Event::make();
  Event go_ = *Event::make();
};

std::unique_ptr<TestedProcesses> make_real() {
  return std::make_unique<RealTestedProcesses>();
}
INSTANTIATE_TEST_SUITE_P(Real, ProcessesConformance, ::testing::Values(&make_real));

TEST(Process, MayHaveManyFilesOpenAsFarAsItIsAllowed) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{std::min<rlim_t>(before.rlim_max, 200), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(allow_many_files(), std::min<rlim_t>(before.rlim_max, 65'536));
  rlimit now{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(run_shell("ulimit -n", {}).text, "200\n");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(now.rlim_cur, std::min<rlim_t>(before.rlim_max, 65'536));
  EXPECT_EQ(now.rlim_max, before.rlim_max);
}

}  // namespace
}  // namespace pawl
