// `pawl run` with real processes: bad input, one and two interrupts, the launcher's death, nodes that come back.
// Its pawld is a shell script that says nothing, so only the launcher and the keepers are tried here.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "base/json_access.h"
#include "base/text.h"
#include "cli/job/namespaces.h"
#include "cli/job/run_directory.h"
#include "cli/job/sign_of_life.h"
#include "env/clock.h"
#include "env/files.h"
#include "env/network.h"
#include "env/process.h"
#include "env/temporary_directory.h"
#include "job/membership/job_state.h"
#include "job/transport/messages.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Words = std::vector<std::string>;

class LauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("PAWL_RUN_DIR", directory_.path().c_str(), 1);
    unsetenv("PAWL_TOKEN_FILE");
    std::ofstream(directory_.path("daemon.sh")) << "#!/bin/sh\nexec sleep 1000\n";
    chmod(directory_.path("daemon.sh").c_str(), 0700);
  }
  void TearDown() override {
    if (launcher_.pid != 0) {
      (void)send_signal(launcher_.pidfd.get(), SIGKILL);
      (void)wait_exit(launcher_.pidfd.get(), Deadline::in(seconds(10)));
    }
  }

  Process start(Words arguments) const {
    arguments.insert(arguments.begin(), PAWL_BINARY);
    const Fd output(::open(directory_.path("output").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    SpawnOptions options;
    options.argv = arguments;
    options.stdout_fd = options.stderr_fd = output.get();
    options.parent_death_signal = SIGKILL;
    options.new_process_group = true;
    Result<Process> process = spawn(options);
    EXPECT_TRUE(process);
    return std::move(process).value();
  }
  [[nodiscard]] std::string output() const { return read_file(directory_.path("output")).value_or(""); }
  int run(const Words& arguments) const {
    const Process process = start(arguments);
    const Result<Exit> exit = wait_exit(process.pidfd.get(), Deadline::in(seconds(60)));
    return exit && !exit->by_signal ? exit->number : -1;
  }
  // Two nodes that do nothing, under the name "quiet".
  void start_quiet_job(const Words& flags) {
    Words arguments = {"run", "--nnodes", "2", "--job", "quiet", "--daemon-command", directory_.path("daemon.sh")};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"--", "/bin/true"});
    launcher_ = start(arguments);
    ASSERT_NO_FATAL_FAILURE(
        await([&] { return record().nodes.size() == 2 && record().nodes[1].keeper_pid != 0; }, "two keepers"));
    await(
        [&] {
          return path_exists(directory_.path("quiet/node-0/pawld.sock")) &&
                 path_exists(directory_.path("quiet/node-1/pawld.sock"));
        },
        "their sockets");
  }
  // Never kill(2) with what a record says without a look: 0 would be our own process group.
  static void strike(std::uint64_t pid, int signal) {
    ASSERT_GT(pid, 1u);
    ASSERT_EQ(kill(static_cast<pid_t>(pid), signal), 0);
  }
  static void age(const std::string& path, int seconds) {
    struct stat found {};
    ASSERT_EQ(stat(path.c_str(), &found), 0);
    found.st_mtim.tv_sec -= seconds;
    const timespec times[2] = {found.st_mtim, found.st_mtim};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  static LauncherRecord record() { return read_launcher_record("quiet").value_or(LauncherRecord{}); }
  template <class Condition>
  void await(Condition condition, const char* what) const {
    const Deadline deadline = Deadline::in(seconds(30));
    while (!condition()) {
      ASSERT_FALSE(deadline.passed()) << "never: " << what << "; " << output();
      real_clock().sleep(milliseconds(20));
    }
  }
  static bool gone(std::uint64_t pid) {
    const Result<char> state = process_state(static_cast<pid_t>(pid));
    return !state || *state == 'Z';
  }
  void expect_nothing_left(const LauncherRecord& before) const {
    await([&] { return gone(before.control_pid); }, "the control is gone");
    for (const LauncherNode& node : before.nodes) await([&] { return gone(node.keeper_pid); }, "the keepers are gone");
  }

  const TemporaryDirectory directory_{"/tmp"};
  Process launcher_;
};

TEST_F(LauncherTest, BadInputIsASentence) {
  std::ofstream(directory_.path("notes.txt")) << "not a program";
  setenv("PAWL_RUN_DIR", directory_.path("a-folder-of-twenty-nine-chars").c_str(), 1);
  const std::vector<std::tuple<Words, int, std::string>> cases = {
      {{"run"}, 2, "no trainer named"},
      {{"run", "--no-such-flag", "--", "true"}, 2, "no such flag"},
      {{"run", "--nnodes", "two", "--", "true"}, 2, "expected N"},
      {{"run", "--nnodes", "0", "--", "true"}, 2, "at least one node"},
      {{"run", "--nnodes", "3:2", "--", "true"}, 2, "the greater number comes second"},
      {{"run", "--nproc_per_node", "gpu", "--", "true"}, 2, "expected a number"},
      {{"run", "--job", "a/b", "--", "true"}, 2, "job name"},
      {{"run", "--gate-off", "--", "true"}, 2, "--test-hooks"},
      {{"run", "--standalone", "--control", "x:1", "--", "true"}, 2, "leave out"},
      {{"run", "--node-rank", "0", "--", "true"}, 2, "--control HOST:PORT"},
      {{"run", "--control", "127.0.0.1:1", "--", "true"}, 2, "--node-rank"},
      {{"run", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h:29500", "--", "/no"},
       2,
       "--rdzv-endpoint h:29500: machines of a pawl job"},
      {{"run", "--nnodes", "1:2", "--master_addr", "h", "--", "/no"}, 2, "--master-addr h: machines of a pawl job"},
      {{"run", "--nnodes", "2", "--rdzv-endpoint", "203.0.113.77:29500", "--", "/no"}, 2, "machines of a pawl job"},
      {{"run", "--nnodes", "2", "--rdzv-endpoint", "[2001:db8:77::77]:29500", "--", "/no"},
       2,
       "machines of a pawl job"},
      {{"run", "--nnodes", "2", "--master-addr", "::1", "--rdzv-endpoint", "LOCALHOST:1", "--", "/no"}, 3, "no such"},
      {{"run", "--nnodes", "2", "--master-addr", "::", "--rdzv-endpoint", "[::1]:1", "--", "/no"}, 3, "no such"},
      {{"run", "--nnodes", "2", "--rdzv-endpoint", "0.0.0.0:29500", "--", "/no"}, 3, "no such"},
      {{"run", "--nnodes", "2", "--rdzv-endpoint", this_machine().host + ":29500", "--", "/no"}, 3, "no such"},
      {{"run", "--nnodes", "2", "--standalone", "--master-addr", "h", "--", "/no"}, 3, "no such program"},
      {{"run", "--master-addr", "h", "--", "/no"}, 3, "no such program"},
      {{"run", "--control", "127.0.0.1:1", "--node-rank", "0", "--job", "x", "--", "true"}, 2, "no token"},
      {{"run", "--tee", "7", "--", "true"}, 2, "0 (nothing)"},
      {{"run", "--", "/no/such/trainer"}, 3, "no such program"},
      {{"run", "--", "/tmp"}, 2, "a folder can't be executed"},
      {{"run", "--", directory_.path("notes.txt")}, 2, "not executable; run chmod +x"},
      {{"run", "--replicas", "1", "--", "true"}, 2, "--nnodes 1 has none, so at most 0"},
      {{"run", "--failure-signs", directory_.path("notes.txt"), "--", "true"}, 2, "line 1: expected a class"},
      {{"run", "--nnodes", "3", "--replicas", "3", "--", "true"}, 2, "3 nodes can hold at most 2"},
      {{"run", "--nnodes", "2:5", "--replicas", "2", "--", "true"}, 2, "2 nodes can hold at most 1"},
      {{"run", "--nnodes", "30", "--replicas", "30", "--", "true"}, 2, "--replicas 30: 30 nodes can hold at most 29"},
      {{"run", "--job", std::string(63, 'x'), "--", "true"}, 2, "set PAWL_RUN_DIR to a folder whose path"},
      {{"status"}, 3, "no job runs"},
      {{"events", "--job", "none"}, 3, "does not run"},
      {{"drill", "kill", "everything"}, 2, "everything"},
      {{"drill", "cut", "trainer", "0"}, 2, "only a node has a cable"},
      {{"nonsense"}, 2, ""},
  };
  for (const auto& [arguments, code, sentence] : cases) {
    EXPECT_EQ(run(arguments), code) << testing::PrintToString(arguments);
    EXPECT_NE(output().find(sentence), std::string::npos) << testing::PrintToString(arguments) << ": " << output();
  }
}

TEST_F(LauncherTest, UnreachableControlSaysWhatToDo) {
  std::ofstream(directory_.path("token")) << "secret";
  chmod(directory_.path("token").c_str(), 0600);
  EXPECT_EQ(run({"run", "--control", "127.0.0.1:1", "--node-rank", "0", "--job", "x", "--token-file",
                 directory_.path("token"), "--", "true"}),
            1);
  EXPECT_NE(output().find("check --control and the network"), std::string::npos) << output();
  chmod(directory_.path("token").c_str(), 0644);
  EXPECT_EQ(run({"run", "--control", "127.0.0.1:1", "--node-rank", "0", "--job", "x", "--token-file",
                 directory_.path("token"), "--", "true"}),
            2);
  EXPECT_NE(output().find("chmod 600"), std::string::npos) << output();
}

TEST_F(LauncherTest, DoctorGivesAVerdictForEach) {
  EXPECT_EQ(run({"doctor", "-o", "json"}), 0) << output();
  const json document = json::parse(output(), nullptr, false);
  ASSERT_GT(array_in(document, "checks").size(), 10u) << output();
  EXPECT_NE(output().find(text(", records ", kProtocolVersion, ", peers ", kPeerWireVersion, ",")), std::string::npos);
  for (const json& check : array_in(document, "checks"))
    EXPECT_EQ(string_in(check, "verdict") == "OK", string_in(check, "remedy").empty()) << check.dump();
}

TEST_F(LauncherTest, ARunDirectoryThatMachinesShareIsRefused) {
  LauncherRecord record;
  record.pid = 1;
  record.machine = {this_machine().host + "-b", ""};
  const auto leave = [&] {
    ASSERT_TRUE(make_private_directory(job_directory("shared")));
    ASSERT_TRUE(write_file_atomically(directory_.path("shared/launcher.json"), to_json(record)));
    ASSERT_TRUE(write_file_atomically(directory_.path("shared/token"), "theirs"));
  };
  leave();
  EXPECT_EQ(run({"run", "--job", "shared", "--", "/bin/true"}), 2);
  for (const char* said :
       {"-b (launcher 1)", "set PAWL_RUN_DIR to a folder that is local", "--log-dir", " s ago", "start again in "})
    EXPECT_NE(output().find(said), std::string::npos) << output();
  EXPECT_EQ(read_file(directory_.path("shared/token")).value_or(""), "theirs") << "nothing of it was touched";
  record.machine = {this_machine().host, "another"};
  leave();
  EXPECT_FALSE(make_job_directory("shared")) << "two machines may have one name";
  EXPECT_EQ(read_file(directory_.path("shared/token")).value_or(""), "theirs");
  age(directory_.path("shared/launcher.json"), 62);  // as after a power loss, in a container's volume
  EXPECT_TRUE(make_job_directory("shared"));
  EXPECT_FALSE(path_exists(directory_.path("shared/token")));
  record.machine = this_machine();  // and its pid 1 has another start time: it is dead
  leave();
  EXPECT_TRUE(make_job_directory("shared"));
  EXPECT_FALSE(path_exists(directory_.path("shared/token")));
  for (const std::string& name : real_files().list(directory_.path()).value_or({}))
    EXPECT_FALSE(name.starts_with(".")) << name;
}

TEST_F(LauncherTest, OfTwoThatMakeOneRunDirectoryOneGetsIt) {
  ASSERT_TRUE(make_job_directory("claimed"));
  EXPECT_EQ(read_launcher_record("claimed").value_or(LauncherRecord{}).pid, static_cast<std::uint64_t>(getpid()));
  EXPECT_FALSE(make_job_directory("claimed")) << "the first has not written what it starts, and is there";
  for (int round = 0; round < 100; ++round) {
    const std::string job = text("round-", round);
    std::atomic<int> made = 0;
    const auto make = [&] { made += make_job_directory(job) ? 1 : 0; };
    std::thread other(make);
    make();
    other.join();
    ASSERT_EQ(made, 1) << round;
    ASSERT_TRUE(path_exists(directory_.path(job + "/launcher.json")));
  }
}

TEST_F(LauncherTest, OneInterruptStopsCleanlyAndLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(
      start_quiet_job({"--no-namespaces", "--rdzv-endpoint", this_machine().host + ":29500", "--master-addr", "::1"}));
  for (const char* said : {"--rdzv-endpoint has no effect in pawl",
                           ":29500 is this machine, so all nodes of the job run here", "pass --control HOST:PORT"})
    EXPECT_NE(output().find(said), std::string::npos) << output();
  const LauncherRecord before = record();
  EXPECT_EQ(run({"run", "--job", "quiet", "--", "/bin/true"}), 2) << "a second job of that name";
  const std::string token = read_file(directory_.path("quiet/token")).value_or("");
  auto control = connect_control(text("unix:", directory_.path("quiet/control.sock")), {.token = token});
  ASSERT_TRUE(control) << control.error().what;
  ASSERT_TRUE((*control)->put(JobKeys("quiet").events() + "1", R"({"kind":"said"})"));
  control->reset();
  (void)send_signal(launcher_.pidfd.get(), SIGINT);
  const Result<Exit> exit = wait_exit(launcher_.pidfd.get(), Deadline::in(seconds(30)));
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->number, 130);
  launcher_.pid = 0;
  expect_nothing_left(before);
  EXPECT_TRUE(path_exists(directory_.path("quiet/node-0/log")));
  EXPECT_EQ(read_file(directory_.path("quiet/events.jsonl")).value_or(""), "{\"kind\":\"said\"}\n");
  for (const char* gone : {"quiet/token", "quiet/launcher.json", "quiet/control", "quiet/node-0/pawld.sock"})
    EXPECT_FALSE(path_exists(directory_.path(gone))) << gone;
}

TEST_F(LauncherTest, TwoInterruptsStopAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start_quiet_job({"--no-namespaces"}));
  const LauncherRecord before = record();
  for (const LauncherNode& node : before.nodes) strike(node.keeper_pid, SIGSTOP);  // deaf to SIGTERM
  (void)send_signal(launcher_.pidfd.get(), SIGINT);
  real_clock().sleep(milliseconds(300));
  EXPECT_FALSE(*try_wait_exit(launcher_.pidfd.get())) << "it waits for its nodes";
  (void)send_signal(launcher_.pidfd.get(), SIGINT);
  const Result<Exit> exit = wait_exit(launcher_.pidfd.get(), Deadline::in(seconds(30)));
  ASSERT_TRUE(exit);
  launcher_.pid = 0;
  expect_nothing_left(before);
}

TEST_F(LauncherTest, NodesAndControlDieWithTheLauncher) {
  ASSERT_NO_FATAL_FAILURE(start_quiet_job({"--no-namespaces"}));
  const LauncherRecord before = record();
  (void)send_signal(launcher_.pidfd.get(), SIGKILL);
  (void)wait_exit(launcher_.pidfd.get(), Deadline::in(seconds(10)));
  launcher_.pid = 0;
  expect_nothing_left(before);
}

TEST_F(LauncherTest, DeadNodesAndADeadControlComeBack) {
  ASSERT_NO_FATAL_FAILURE(start_quiet_job({"--no-namespaces"}));
  const LauncherRecord before = record();
  strike(before.nodes[1].keeper_pid, SIGKILL);
  strike(before.control_pid, SIGKILL);
  await([&] { return record().nodes[1].keeper_pid != 0 && record().nodes[1].keeper_pid != before.nodes[1].keeper_pid; },
        "node 1 again");
  await([&] { return record().control_pid != 0 && record().control_pid != before.control_pid; }, "the control again");
  EXPECT_EQ(record().nodes[0].keeper_pid, before.nodes[0].keeper_pid);
  await([&] { return run({"events", "--job", "quiet"}) == 0; }, "the control knows the job again");
  age(directory_.path("quiet/launcher.json"), 1000);
  await(
      [&] {
        return since_sign_of_life(directory_.path("quiet"), directory_.path()).value_or(seconds(900)) < seconds(500);
      },
      "a sign of life of the launcher's");
}

// How a connection to `address` from inside the fabric of `launcher` fails; empty: it stands.
std::string connect_in_fabric(pid_t launcher, const std::string& address) {
  int ends[2];
  if (pipe(ends) != 0) return "pipe";
  const pid_t child = fork();
  if (child == 0) {
    const int fabric = ::open(text("/proc/", launcher, "/ns/net").c_str(), O_RDONLY | O_CLOEXEC);
    std::string what = "no such namespace";
    if (setns(fabric, CLONE_NEWNET) == 0) {
      const Result<Fd> connected = connect_tcp(*Address::parse(address), Deadline::in(seconds(5)));
      what = connected ? "" : connected.error().what;
    }
    [[maybe_unused]] ssize_t written = write(ends[1], what.data(), what.size());
    _exit(0);
  }
  close(ends[1]);
  waitpid(child, nullptr, 0);
  char buffer[512];
  const ssize_t size = read(ends[0], buffer, sizeof buffer);
  close(ends[0]);
  return {buffer, size > 0 ? static_cast<std::size_t>(size) : 0};
}

TEST_F(LauncherTest, ADeadNodesAddressRefusesAndACutOneIsSilent) {
  if (!probe_namespaces()) GTEST_SKIP() << "no right to make network namespaces (CAP_SYS_ADMIN)";
  ASSERT_NO_FATAL_FAILURE(start_quiet_job({"--namespaces", "require", "--no-restart-dead-nodes"}));
  const LauncherRecord before = record();
  EXPECT_EQ(connect_in_fabric(launcher_.pid, "10.77.0.10:7000"), "");
  EXPECT_EQ(connect_in_fabric(launcher_.pid, "10.77.0.11:7000"), "");
  strike(before.nodes[1].keeper_pid, SIGKILL);
  await([&] { return gone(before.nodes[1].keeper_pid) || record().nodes[1].keeper_pid == 0; }, "node 1 is dead");
  await([&] { return connect_in_fabric(launcher_.pid, "10.77.0.11:7000").ends_with("(ECONNREFUSED)"); }, "refused");
  EXPECT_EQ(connect_in_fabric(launcher_.pid, "10.77.0.10:7000"), "");
  ASSERT_TRUE(set_link(before.netns, before.nodes[0].link, false));
  EXPECT_NE(connect_in_fabric(launcher_.pid, "10.77.0.10:7000"), "");
  ASSERT_TRUE(set_link(before.netns, before.nodes[0].link, true));
  await([&] { return connect_in_fabric(launcher_.pid, "10.77.0.10:7000").empty(); }, "healed");
  // Nothing is shared: another /dev/shm, another host name.
  struct stat ours {
  }, theirs{};
  ASSERT_EQ(stat("/dev/shm", &ours), 0);
  ASSERT_EQ(stat(text("/proc/", before.nodes[0].keeper_pid, "/root", "/dev/shm").c_str(), &theirs), 0);
  EXPECT_NE(ours.st_dev, theirs.st_dev);
}

}  // namespace
}  // namespace pawl::job
