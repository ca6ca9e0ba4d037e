// The keeper with real processes: it runs in a child of the test; its pawld is this program again, as a toy that does
// what the test tells it over the node's own Unix socket and writes down what it hears.
#include "job/daemon/keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "base/text.h"
#include "env/environment.h"
#include "env/files.h"
#include "env/process.h"
#include "env/temporary_directory.h"
#include "job/daemon/pawld_death.h"
#include "job/transport/messages.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// --- the toy pawld

std::string content_of(int fd) {
  char buffer[64] = "";
  const ssize_t size = pread(fd, buffer, sizeof buffer, 0);
  return {buffer, size > 0 ? static_cast<std::size_t>(size) : 0};
}

struct Toy {
  std::string record_path;
  int death_fd = -1;
  bool silent = false;

  void record(const std::string& line) const { std::ofstream(record_path, std::ios::app) << line << "\n"; }

  static void say(const std::string& message, std::vector<int> fds = {}) {
    (void)send_with_fds(3, std::as_bytes(std::span(message)), fds, Deadline::in(seconds(1)));
  }

  void obey(const std::string& command) {
    if (command == "sulk")
      silent = true;
    else if (command == "halve") {  // its main thread ends and another lives: as if its memory took for ever to go
      std::thread([] { ::pause(); }).detach();
      syscall(SYS_exit, 0);
    } else if (command.starts_with("hold ")) {  // hold NAME CONTENT
      const std::size_t blank = command.find(' ', 5);
      const int fd = memfd_create("toy", 0);
      const std::string content = command.substr(blank + 1);
      [[maybe_unused]] ssize_t written = write(fd, content.data(), content.size());
      say(command.substr(0, blank), {fd});
      close(fd);
    } else {
      say(command);
    }
  }

  int run(int argc, char** argv) {
    std::string incarnation, held, address, lifeline;
    for (int i = 1; i + 1 < argc; ++i) {
      if (std::strcmp(argv[i], "--incarnation") == 0) incarnation = argv[i + 1];
      if (std::strcmp(argv[i], "--held") == 0) held = argv[i + 1];
      if (std::strcmp(argv[i], "--address") == 0) address = argv[i + 1];
      if (std::strcmp(argv[i], "--lifeline") == 0) lifeline = argv[i + 1];
      if (std::strcmp(argv[i], "--death-fd") == 0) death_fd = std::atoi(argv[i + 1]);
      if (std::strcmp(argv[i], "--run-dir") == 0) record_path = text(argv[i + 1], "/record");
    }
    if (death_fd >= 0 && !show_death(real_environment(), Fd(death_fd))) return 1;
    std::string contents;
    std::istringstream names(held);
    for (std::string item; std::getline(names, item, ',');) {
      const std::size_t colon = item.find(':');
      contents += text(" ", item.substr(0, colon), "=", content_of(std::atoi(item.c_str() + colon + 1)));
    }
    record(text("listens ", address, " ", lifeline));
    record(text("started ", getpid(), " ", incarnation, contents));
    for (;;) {
      if (!silent) say("alive 1");
      pollfd fds[2] = {{3, POLLIN, 0}, {5, POLLIN, 0}};
      poll(fds, 2, 30);
      if (fds[0].revents != 0) {
        char buffer[4096];
        const ssize_t size = recv(3, buffer, sizeof buffer, MSG_DONTWAIT);
        if (size == 0) return 0;
        if (size > 0) record("heard " + std::string(buffer, static_cast<std::size_t>(size)));
      }
      if (fds[1].revents != 0) {
        Result<Fd> connection = try_accept(5);
        if (!connection || !connection->valid()) continue;
        std::string command(4096, '\0');
        const auto size =
            receive_some(connection->get(), std::as_writable_bytes(std::span(command)), Deadline::in(seconds(1)));
        if (size) obey(command.substr(0, *size));
      }
    }
  }
};

// --- the test's side

class KeeperTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.job = "toy";
    options_.control = "127.0.0.1:1";
    options_.run_dir = directory_.path();
    options_.listen = {"127.0.0.1", 0};
    options_.silence = options_.daemon_silence = options_.lease = seconds(30);  // a slow machine must not look silent
    options_.daemon_argv = {"/proc/self/exe", "--toy-daemon"};
    options_.trainer_argv = {"/bin/sleep", "1000"};
  }
  void TearDown() override {
    if (keeper_ > 0) {
      kill(keeper_, SIGKILL);
      waitpid(keeper_, nullptr, 0);
    }
  }

  void start() {
    keeper_ = fork();
    if (keeper_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Result<int> code = run_keeper(options_);
    _exit(code ? *code : 99);
  }
  int wait_code() {
    int status = 0;
    waitpid(keeper_, &status, 0);
    keeper_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::vector<std::string> records(const std::string& prefix) const {
    std::vector<std::string> lines;
    std::ifstream file(directory_.path("record"));
    for (std::string line; std::getline(file, line);)
      if (line.starts_with(prefix)) lines.push_back(line);
    return lines;
  }
  std::string log() const { return read_file(node_log_path(directory_.path(), NodeId(0))).value_or(""); }
  // Once its log says so.
  void await_log(std::string_view what) const {
    const Deadline deadline = Deadline::in(seconds(20));
    while (log().find(what) == std::string::npos) {
      ASSERT_FALSE(deadline.passed()) << "not in the log: " << what << "\n" << log();
      real_clock().sleep(milliseconds(10));
    }
  }
  // The `count`-th line (from 1) that begins so, once it is there.
  std::string await(const std::string& prefix, std::size_t count = 1) const {
    const Deadline deadline = Deadline::in(seconds(20));
    while (!deadline.passed()) {
      if (const auto lines = records(prefix); lines.size() >= count) return lines[count - 1];
      real_clock().sleep(milliseconds(10));
    }
    ADD_FAILURE() << "never recorded: " << prefix;
    return "";
  }
  void command(const std::string& command) const {
    const Result<Fd> fd = connect_unix(node_socket_path(directory_.path(), NodeId(0)), Deadline::in(seconds(5)));
    ASSERT_TRUE(fd) << fd.error().what;
    ASSERT_TRUE(send_all(fd->get(), std::as_bytes(std::span(command)), Deadline::in(seconds(5))));
  }
  static std::string word(const std::string& line, int index) {
    std::istringstream words(line);
    std::string word;
    for (int i = 0; i <= index; ++i) words >> word;
    return word;
  }
  static pid_t pid_in(const std::string& line, int index) { return std::atoi(word(line, index).c_str()); }
  static bool gone_soon(pid_t pid) {
    const Deadline deadline = Deadline::in(seconds(10));
    while (!deadline.passed()) {
      const Result<char> state = process_state(pid);
      if (!state || *state == 'Z') return true;
      real_clock().sleep(milliseconds(10));
    }
    return false;
  }

  const TemporaryDirectory directory_{"/tmp"};
  KeeperOptions options_;
  pid_t keeper_ = 0;
};

// Sockets of a process, by what /proc calls them: the same name in two processes is one socket.
std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> sockets;
  for (const std::string& fd : real_files().list(text("/proc/", pid, "/fd")).value_or({})) {
    char target[64] = "";
    const std::string path = text("/proc/", pid, "/fd/", fd);
    if (readlink(path.c_str(), target, sizeof target - 1) > 0 && std::string(target).starts_with("socket:"))
      sockets.insert(target);
  }
  return sockets;
}

// A process of the node that is slow to die, here this one, still has the port that pawld shares with its keeper.
TEST_F(KeeperTest, LifelinesEndWithTheKeeperThoughItsPortIsStillHeld) {
  ASSERT_TRUE(write_file_atomically(directory_.path("token"), "secret"));
  start();
  const std::string toy = await("started");
  const std::string addresses = await("listens");
  const Address port = *Address::parse(word(addresses, 1));
  const Address lifeline = *Address::parse(word(addresses, 2));
  const Result<Fd> line = connect_tcp(lifeline, Deadline::in(seconds(10)));
  ASSERT_TRUE(line);
  Hello hello;
  hello.job = "toy";
  hello.token = "secret";
  std::uint64_t incarnation = 0;
  ASSERT_TRUE(parse_number(word(toy, 2), incarnation));
  hello.expected = Incarnation(incarnation);
  hello.purpose = Purpose::lifeline;
  ASSERT_TRUE(send_frame(line->get(), frame_of(hello), Deadline::in(seconds(10))));
  const Result<Frame> welcome = receive_frame(line->get(), Deadline::in(seconds(10)));
  ASSERT_TRUE(welcome && is<WelcomeMessage>(*welcome));

  command("spawn 0\nRANK=3\n");
  const pid_t trainer = pid_in(await("heard spawned 0"), 3);
  const pid_t pawld = pid_in(toy, 1);
  const std::set<std::string> keepers = sockets_of(keeper_);
  std::set<std::string> shared = sockets_of(pawld);
  std::erase_if(shared, [&](const std::string& socket) { return !keepers.contains(socket); });
  EXPECT_EQ(shared.size(), 2u) << "its port and its Unix path, which pawld has, too; all else is the keeper's alone";
  EXPECT_TRUE(sockets_of(trainer).empty());
  EXPECT_GE(keepers.size(), 5u) << "those, the channel, the lifelines' port, and the line";

  const Fd of_toy(static_cast<int>(syscall(SYS_pidfd_open, pawld, 0)));
  const Fd held(static_cast<int>(syscall(SYS_pidfd_getfd, of_toy.get(), 4, 0)));
  if (!held.valid()) GTEST_SKIP() << "no process may take another's descriptors here";
  kill(keeper_, SIGKILL);
  EXPECT_EQ(receive_frame(line->get(), Deadline::in(seconds(10))).error().code, Code::unreachable);
  const auto is_gone = [&] {  // its lines may end a moment before its port
    const Result<Fd> again = connect_tcp(lifeline, Deadline::in(seconds(10)));
    return !again && is_refused(again.error());
  };
  const Deadline deadline = Deadline::in(seconds(10));
  while (!is_gone()) ASSERT_FALSE(deadline.passed());
  EXPECT_TRUE(connect_tcp(port, Deadline::in(seconds(10))));
}

TEST_F(KeeperTest, KilledDaemonComesBackWithItsSegmentsAndTrainersLive) {
  start();
  const std::string first = await("started");
  command("hold page.0 abc");
  command("hold own.7 to be dropped");
  command("hold page.0 abcdef");  // a later one of the same name replaces it
  command("drop own.7");
  command("spawn 0\nRANK=3\n");
  const std::string spawned = await("heard spawned 0");
  kill(pid_in(first, 1), SIGKILL);
  const std::string second = await("started", 2);
  EXPECT_NE(word(second, 1), word(first, 1));
  EXPECT_EQ(word(second, 2), word(first, 2)) << "the incarnation is the node's, not pawld's";
  EXPECT_EQ(word(second, 3), "page.0=abcdef");
  EXPECT_EQ(word(second, 4), word(second, 3)) << "nothing else is held";  // past the end: the last word again
  EXPECT_EQ(await("heard spawned 0", 2), spawned) << "same pid and start time";
  EXPECT_EQ(*process_state(pid_in(spawned, 3)), 'S');
}

// Where a process has gigabytes to give back, its pidfd tells long after its threads have ended.
TEST_F(KeeperTest, ADaemonsDeathIsSeenBeforeItHasGivenBackItsMemory) {
  start();
  const std::string first = await("started");
  command("hold page.0 abc");
  command("halve");
  const std::string second = await("started", 2);
  EXPECT_EQ(word(second, 3), "page.0=abc");
  const std::string log = *read_file(node_log_path(directory_.path(), NodeId(0)));
  EXPECT_NE(log.find(text("pawld_died pid=", pid_in(first, 1))), std::string::npos) << log;
  EXPECT_EQ(log.find("pawld_silent"), std::string::npos) << log;
  command("end 4");
  EXPECT_EQ(wait_code(), 4);
}

TEST_F(KeeperTest, TrainerGetsItsEnvironmentAndItsEndIsTold) {
  options_.trainer_argv = {
      "/bin/sh", "-c", "echo \"$RANK $PAWL_LOCAL_INDEX $PAWL_NODE_ADDRESS $PAWL_JOB $PAWL_SOCKET\" > \"$OUT\"; exit 3"};
  start();
  await("started");
  command(text("spawn 0\nRANK=3\nOUT=", directory_.path(), "/out\n"));
  const std::string spawned = await("heard spawned 0");
  const std::string exited = await("heard exited 0");
  EXPECT_EQ(exited.find(text("heard exited 0 ", pid_in(spawned, 3), " exited 3, its output is in /")), 0u) << exited;
  EXPECT_EQ(*read_file(directory_.path("out")),
            text("3 0 127.0.0.1 toy ", node_socket_path(directory_.path(), NodeId(0)), "\n"));
}

TEST_F(KeeperTest, KillsAndStartsTrainersAnew) {
  start();
  await("started");
  command("spawn 0\n");
  const pid_t first = pid_in(await("heard spawned 0"), 3);
  command("kill 0");
  EXPECT_EQ(await("heard exited 0").find(text("heard exited 0 ", first, " killed by SIGKILL")), 0u);
  command("spawn 0\n");
  EXPECT_NE(pid_in(await("heard spawned 0", 2), 3), first);
}

TEST_F(KeeperTest, TrainerThatCannotStartIsTold) {
  options_.trainer_argv = {"no-such-trainer"};
  start();
  await("started");
  command("spawn 0\n");
  EXPECT_NE(await("heard exited 0").find("not in PATH"), std::string::npos);
}

TEST_F(KeeperTest, AllDieWithTheKeeper) {
  start();
  const pid_t daemon = pid_in(await("started"), 1);
  command("spawn 0\n");
  const pid_t trainer = pid_in(await("heard spawned 0"), 3);
  kill(keeper_, SIGKILL);
  EXPECT_EQ(wait_code(), -SIGKILL);
  EXPECT_TRUE(gone_soon(daemon));
  EXPECT_TRUE(gone_soon(trainer));
}

TEST_F(KeeperTest, ResetBeginsANewIncarnationWithNothing) {
  start();
  const std::string first = await("started");
  command("hold page.0 abc");
  command("spawn 0\n");
  const pid_t trainer = pid_in(await("heard spawned 0"), 3);
  command("reset evicted");
  const std::string second = await("started", 2);
  EXPECT_TRUE(gone_soon(trainer));
  EXPECT_GT(std::stoull(word(second, 2)), std::stoull(word(first, 2)));
  EXPECT_EQ(word(second, 3), word(second, 2)) << "no segment is given back";
  EXPECT_EQ(records("heard spawned").size(), 1u);
}

TEST_F(KeeperTest, SilentDaemonIsReplaced) {
  options_.daemon_silence = seconds(2);
  start();
  const std::string first = await("started");
  command("hold page.0 abc");
  command("sulk");
  const std::string second = await("started", 2);
  EXPECT_TRUE(gone_soon(pid_in(first, 1)));
  EXPECT_EQ(word(second, 2), word(first, 2));
  EXPECT_EQ(word(second, 3), "page.0=abc");
}

TEST_F(KeeperTest, StoppedDaemonIsReplaced) {
  options_.daemon_silence = seconds(2);
  start();
  const pid_t first = pid_in(await("started"), 1);
  kill(first, SIGSTOP);  // which is no death
  await("started", 2);
  EXPECT_TRUE(gone_soon(first));
}

TEST_F(KeeperTest, KeeperThatWasStoppedTooLongFencesItsNodeAndKeepsItsMemory) {
  options_.silence = seconds(1);
  start();
  const std::string first = await("started");
  command("hold page.0 abc");
  command("spawn 0\n");
  const pid_t trainer = pid_in(await("heard spawned 0"), 3);
  kill(keeper_, SIGSTOP);
  real_clock().sleep(options_.silence + milliseconds(500));
  EXPECT_EQ(*process_state(trainer), 'S') << "nobody could have ended it yet";
  kill(keeper_, SIGCONT);
  const std::string second = await("started", 2);
  EXPECT_TRUE(gone_soon(trainer));
  EXPECT_EQ(word(second, 2), word(first, 2)) << "whether this life was evicted is the next pawld's to find out";
  EXPECT_EQ(word(second, 3), "page.0=abc");
}

TEST_F(KeeperTest, EndLetsTrainersEndThemselves) {
  options_.trainer_grace = seconds(30);
  options_.trainer_argv = {"/bin/sh", "-c",
                           "trap 'echo bye > \"$OUT\"; exit 0' TERM; echo up > \"$OUT\"; while :; do sleep 0.02; done"};
  start();
  await("started");
  command(text("spawn 0\nOUT=", directory_.path(), "/out\n"));
  for (int i = 0; i < 1000 && read_file(directory_.path("out")).value_or("").empty(); ++i)
    real_clock().sleep(milliseconds(10));
  command("end 7");
  EXPECT_EQ(wait_code(), 7);
  EXPECT_EQ(*read_file(directory_.path("out")), "bye\n");
  EXPECT_FALSE(path_exists(node_socket_path(directory_.path(), NodeId(0))));
}

TEST_F(KeeperTest, EndKillsATrainerThatWillNot) {
  options_.trainer_argv = {"/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.02; done"};
  start();
  await("started");
  command("spawn 0\n");
  const pid_t trainer = pid_in(await("heard spawned 0"), 3);
  command("end 0");
  EXPECT_EQ(wait_code(), 0);
  EXPECT_TRUE(gone_soon(trainer));
}

TEST_F(KeeperTest, TerminatedKeeperEndsItsNode) {
  start();
  const pid_t daemon = pid_in(await("started"), 1);
  kill(keeper_, SIGTERM);
  EXPECT_EQ(wait_code(), 128 + SIGTERM);
  EXPECT_TRUE(gone_soon(daemon));
}

TEST_F(KeeperTest, DaemonThatNeverLivesEndsTheNode) {
  options_.daemon_argv = {"/bin/false"};
  start();
  EXPECT_EQ(wait_code(), 99);
  EXPECT_NE(read_file(node_log_path(directory_.path(), NodeId(0)))->find("died 5 times"), std::string::npos);
}

TEST_F(KeeperTest, TakenPortIsASentence) {
  const Result<Fd> taken = listen_tcp({"127.0.0.1", 0});
  options_.listen = *local_address(taken->get());
  const Result<int> code = run_keeper(options_);
  ASSERT_FALSE(code);
  EXPECT_EQ(code.error().code, Code::invalid);
  EXPECT_NE(code.error().what.find("another process listens there"), std::string::npos) << code.error().what;
}

TEST_F(KeeperTest, ANodeThatComesBackWaitsForItsPort) {
  start();
  const std::string first = await("started");
  kill(keeper_, SIGKILL);
  wait_code();
  Result<Fd> port = listen_tcp({"127.0.0.1", 0});
  options_.listen = *local_address(port->get());
  const std::string log_path = node_log_path(directory_.path(), NodeId(0));
  const pid_t dying = fork();  // holds the port for a while, as a pawld does that has gigabytes to give back
  if (dying == 0) {
    for (int looks = 0; looks < 2000 && read_file(log_path).value_or("").find("port_held") == std::string::npos;
         ++looks)
      real_clock().sleep(milliseconds(10));
    _exit(0);
  }
  port->reset();
  start();
  const std::string second = await("started", 2);
  waitpid(dying, nullptr, 0);
  EXPECT_GT(std::stoull(word(second, 2)), std::stoull(word(first, 2)));
  const std::string log = *read_file(log_path);
  EXPECT_NE(log.find("port_held"), std::string::npos) << log;
}

TEST_F(KeeperTest, WhoWaitsForItsPortCanBeEnded) {
  start();
  await("started");
  kill(keeper_, SIGKILL);
  wait_code();
  const Result<Fd> taken = listen_tcp({"127.0.0.1", 0});
  options_.listen = *local_address(taken->get());
  start();
  await_log("port_held");
  kill(keeper_, SIGTERM);
  EXPECT_EQ(wait_code(), 128 + SIGTERM);
}

// Its parent-death signal reaches a wrapper, and not what the wrapper has started.
TEST_F(KeeperTest, NothingOfANodesEarlierLifeLivesBesideANewOne) {
  options_.trainer_argv = {"/bin/sh", "-c", "sleep 1000 & echo $! > \"$OUT\"; wait"};
  start();
  await("started");
  command(text("spawn 0\nOUT=", directory_.path(), "/out\n"));
  await("heard spawned 0");
  for (int i = 0; i < 1000 && read_file(directory_.path("out")).value_or("").empty(); ++i)
    real_clock().sleep(milliseconds(10));
  const pid_t orphan = std::atoi(read_file(directory_.path("out"))->c_str());
  kill(keeper_, SIGKILL);
  wait_code();
  ASSERT_TRUE(process_state(orphan)) << "nobody has ended it yet";
  start();
  await("started", 2);
  EXPECT_NE(process_state(orphan).value_or('Z'), 'S');
  EXPECT_TRUE(gone_soon(orphan));
}

TEST_F(KeeperTest, OutputGoesToTheLogAndIsTeedByLine) {
  // It ends once all of that has been read: of what comes last, that which isn't read within a moment is lost.
  options_.trainer_argv = {"/bin/sh", "-c",
                           "echo one; printf tw; sleep 0.1; echo o; echo hidden >&2; "
                           "while [ ! -e \"$OUT\" ]; do sleep 0.02; done; exit 0"};
  options_.tee = 1;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  const Fd reader(ends[0]), writer(ends[1]);
  options_.tee_fd = writer.get();
  start();
  await("started");
  command(text("spawn 0\nOUT=", directory_.path(), "/out\n"));
  std::string teed;
  const auto read_on = [&] {
    char buffer[256];
    const ssize_t size = read(reader.get(), buffer, sizeof buffer);
    if (size > 0) teed.append(buffer, static_cast<std::size_t>(size));
  };
  for (const Deadline deadline = Deadline::in(seconds(20)); std::ranges::count(teed, '\n') < 2 && !deadline.passed();
       real_clock().sleep(milliseconds(10)))
    read_on();
  await_log("hidden\n");
  await_log("one\n");
  ASSERT_TRUE(write_file_atomically(directory_.path("out"), ""));
  await("heard exited 0");
  read_on();
  EXPECT_EQ(teed, "[node 0] one\n[node 0] two\n");
}

TEST(MergeEnvironment, LaterWinsAndNamesAreWhole) {
  EXPECT_EQ(merge_environment({"A=1", "AB=2", "C=3"}, {"A=9", "D=4", "A=10"}),
            (std::vector<std::string>{"AB=2", "C=3", "D=4", "A=10"}));
}

}  // namespace
}  // namespace pawl::job

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--toy-daemon") == 0) return pawl::job::Toy{}.run(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
