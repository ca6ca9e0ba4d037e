#include "job/daemon/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "env/clock.h"
#include "env/environment.h"
#include "env/fd.h"
#include "env/files.h"
#include "env/high_listener.h"
#include "env/process.h"
#include "env/shared_memory.h"
#include "env/thread.h"
#include "job/daemon/keeper_earlier_life.h"
#include "job/daemon/keeper_lifelines.h"
#include "job/daemon/keeper_output.h"
#include "job/daemon/node_keeper.h"
#include "job/daemon/pawld_death.h"
#include "job/transport/keeper_messages.h"

extern char** environ;

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kChannelFd = 3;  // where pawld finds what it inherits
constexpr int kListenFd = 4;
constexpr int kLocalFd = 5;
constexpr int kDeathFd = 6;
constexpr int kTokenFd = 7;
constexpr int kFirstHeldFd = 8;
constexpr std::size_t kTokenBytesMax = 4096;  // a pipe takes them at once
constexpr std::size_t kMessageBytesMax = 256 << 10;
constexpr Duration kLastWords = milliseconds(200);  // for what a trainer has written last

constexpr const char* kIncarnationFile = "incarnation";
constexpr const char* kProcessesFile = "processes";
constexpr Duration kPortWait = seconds(10);
constexpr Duration kLookAgain = milliseconds(20);
// A pawld maps the arenas of its whole node and so would be the first that the kernel kills for want of memory, which frees
// nothing: the keeper holds them. A trainer's death frees what it has, and its seat goes on in place.
constexpr int kTrainerKilledSooner = 1000;  // whatever the two have: pawld has the arenas of many

// From which this text is read, then an end.
Result<Fd> pipe_with(const std::string& text) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("start pawld: pipe", errno);
  Fd read_end(ends[0]);
  const Fd write_end(ends[1]);
  if (::write(write_end.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return system_error("start pawld: write the token", errno);
  return read_end;
}

struct Trainer {
  Process process;
  bool running = false;
  std::string output_path;  // of its stderr
};

Result<Fd> open_log(const std::string& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return system_error(text("open log ", path), errno);
  return fd;
}

// What a killed process has to give back before it has ended. One that is at it shows nothing any more: then as much as is
// in use on this machine.
std::uint64_t bytes_to_give_back(pid_t pid) {
  if (const std::uint64_t resident = real_processes().resident_bytes(pid); resident > 0) return resident;
  struct sysinfo machine {};
  if (::sysinfo(&machine) != 0) return 0;
  const std::uint64_t total = static_cast<std::uint64_t>(machine.totalram) * machine.mem_unit;
  const std::uint64_t available = available_memory_bytes();
  return total > available ? total - available : 0;
}

std::string list(const std::vector<pid_t>& pids) {
  std::string numbers;
  for (const pid_t pid : pids) numbers += text(numbers.empty() ? "process " : ", process ", pid);
  return numbers;
}

Status listen_remedy(Error error, const Address& address) {
  if (error.what.find("EADDRINUSE") != std::string::npos)
    return Error{error.code, text(error.what, ": another process listens there; end it, or name another with --listen ",
                                  address.host, ":PORT (port 0: any free one)")};
  if (error.what.find("EADDRNOTAVAIL") != std::string::npos)
    return Error{error.code,
                 text(error.what, ": this machine has no such address; name one of its own with --listen HOST:PORT")};
  return error;
}

class Keeper final : private NodeKeeper::Node {
 public:
  explicit Keeper(const KeeperOptions& options)
      : options_(options),
        decides_({.node = options.node,
                  .seats_per_node = options.seats_per_node,
                  .silence = options.silence,
                  .daemon_silence = options.daemon_silence,
                  .lease = options.lease,
                  .trainer_grace = options.trainer_grace,
                  .stop_grace = options.stop_grace,
                  .log_path = node_log_path(options.run_dir, options.node)},
                 *this) {}
  // The log's descriptor closes, and its number may become a socket's.
  ~Keeper() override { log_to(STDERR_FILENO, LogLevel::info, ""); }
  Result<int> run();

 private:
  // Tells NodeKeeper how long a scope took that waits for disks or for other processes.
  class OwnWork {
   public:
    explicit OwnWork(Keeper& keeper) : keeper_(keeper), began_(keeper.clock_.boottime()) {}
    ~OwnWork() { keeper_.decides_.was_busy(keeper_.clock_.boottime() - began_); }
    OwnWork(const OwnWork&) = delete;
    OwnWork& operator=(const OwnWork&) = delete;

   private:
    Keeper& keeper_;
    const Duration began_;
  };

  Result<std::uint64_t> next_incarnation(std::uint64_t last) override;
  Result<std::uint64_t> start_daemon(std::uint64_t incarnation, std::span<const HeldSegment> held,
                                     std::span<const FromKeeper> news) override;
  void terminate_daemon() override;
  void kill_daemon() override;
  Result<StartedTrainer> start_trainer(std::uint32_t local_index, std::span<const std::string> environment) override;
  void terminate_trainer(std::uint32_t local_index) override;
  void kill_trainer(std::uint32_t local_index) override;
  void show_trainer(std::uint32_t local_index, bool shown) override { output_->show(local_index, shown); }
  void tell(const FromKeeper& news) override;
  void let_go(std::vector<HeldSegment> segments) override;
  bool is_giving_back() override { return *giving_back_ > 0; }
  std::uint64_t memory_bytes() override;

  Status open();
  Status lock();
  Status end_earlier_life();
  Status listen();
  Status listen_for_lifelines();
  Status pause(Duration duration);  // fails: `cancelled` at a signal
  void note_processes() const;
  Status turn();
  void on_signal(Duration now);
  void on_channel(Duration now);
  void on_daemon_exit(Duration now);  // or it dies
  void on_trainer_exit(std::uint32_t local_index, Duration now);

  Result<TrainerStreams> open_outputs(std::uint32_t local_index, Trainer& trainer);
  [[nodiscard]] std::vector<std::string> daemon_arguments(std::uint64_t incarnation, std::span<const HeldSegment> held,
                                                          bool token) const;
  [[nodiscard]] std::string socket_variable() const;  // of the environment of this node's trainers, and of no other's

  const KeeperOptions& options_;
  NodeKeeper decides_;
  Clock& clock_ = real_clock();
  std::string directory_;
  Fd log_;
  std::array<Fd, 2> locks_;  // of the node's directory, where one keeper lives; of the job's, with others
  Fd signals_;
  std::optional<int> ended_by_;  // a signal, before the first life began
  Fd listener_;
  Fd local_listener_;
  Address address_;
  std::optional<std::string> token_;            // read once: who tidies /tmp may take a long job's file
  std::string lifeline_;                        // where lifelines end; empty: nowhere
  std::unique_ptr<KeeperLifelines> lifelines_;  // until all has ended: others take their end for ours
  Process daemon_;
  bool daemon_running_ = false;
  std::optional<PawldDeath> death_;  // of the pawld that runs
  Fd channel_;
  std::map<std::uint32_t, Trainer> trainers_;
  const std::shared_ptr<std::atomic<int>> giving_back_ = std::make_shared<std::atomic<int>>(0);  // calls of let_go
  std::optional<KeeperOutput> output_;  // from when our signals are blocked: its thread must not take them
};

Status Keeper::open() {
  directory_ = node_directory(options_.run_dir, options_.node);
  PAWL_TRY(make_private_directory(directory_));
  PAWL_ASSIGN(log_, open_log(node_log_path(options_.run_dir, options_.node)));
  log_to(log_.get(), LogLevel::info, text("keeper node=", options_.node));
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGTERM);
  sigaddset(&wanted, SIGINT);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  output_.emplace(KeeperOutputOptions{options_.node, options_.seats_per_node, options_.tee, options_.tee_fd});
  signals_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return system_error("keeper: signalfd", errno);
  PAWL_TRY(lock());
  PAWL_TRY(end_earlier_life());
  PAWL_TRY(listen());
  PAWL_ASSIGN(address_, local_address(listener_.get()));
  if (Status listens = listen_for_lifelines(); !listens) log_warn("no_lifelines", "why", listens.error().what);
  PAWL_ASSIGN(local_listener_, listen_unix(node_socket_path(options_.run_dir, options_.node)));
  return {};
}

// What we shall kill as left over from an earlier keeper must not be of one that lives. And who tidies /tmp of what nobody
// has touched for days passes a directory by, with all below it, that somebody holds (tmpfiles.d(5), "Age").
Status Keeper::lock() {
  const std::string path = join_path(directory_, "lock");
  auto& [alone, with_others] = locks_;
  alone.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!alone.valid()) return system_error(text("open ", path), errno);
  if (::flock(alone.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return system_error(text("lock ", path), errno);
    return Error{Code::invalid, text("node ", options_.node, " of job ", options_.job,
                                     " runs on this machine already; end it first, or name another node")};
  }
  with_others.reset(::open(options_.run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!with_others.valid() || ::flock(with_others.get(), LOCK_SH | LOCK_NB) != 0)
    log_warn("run_directory_not_held", "path", options_.run_dir, "why", std::strerror(errno));
  return {};
}

Status Keeper::end_earlier_life() {
  const std::string path = join_path(directory_, kProcessesFile);
  const std::string mark = socket_variable();
  std::vector<pid_t> left = kill_earlier(path, mark);
  if (left.empty()) return {};
  std::uint64_t bytes = 0;
  for (const pid_t pid : left) bytes = std::max(bytes, bytes_to_give_back(pid));
  const Duration patience = time_to_end(bytes);
  log_warn("earlier_life_ends", "processes", list(left), "waits_ms_max", patience / milliseconds(1));
  for (const Deadline deadline = Deadline::in(patience); !left.empty(); left = kill_earlier(path, mark)) {
    if (deadline.passed())
      return Error{Code::timeout,
                   text("node ", options_.node, " can't come back: of its earlier life, ", list(left),
                        " was killed and did not end, so it may still write. What waits for a device or a disk ends "
                        "when that answers; if it never does, restart the machine, then start the node again")};
    PAWL_TRY(pause(kLookAgain));
  }
  return {};
}

// A node that has lived before may find its port held by something of it that still dies.
Status Keeper::listen() {
  const Duration patience = path_exists(join_path(directory_, kIncarnationFile)) ? kPortWait : Duration::zero();
  const Deadline deadline = Deadline::in(patience);
  for (bool said = false;; said = true) {
    Result<Fd> listener = listen_tcp(options_.listen);
    if (listener) {
      listener_ = std::move(listener).value();
      return {};
    }
    const bool held = listener.error().what.find("EADDRINUSE") != std::string::npos;
    if (!held || deadline.passed()) return listen_remedy(std::move(listener).error(), options_.listen);
    if (!said) log_warn("port_held", "address", options_.listen, "waits_ms_max", patience / milliseconds(1));
    PAWL_TRY(pause(kLookAgain));
  }
}

// A port of its own: the other one is pawld's, too, and a pawld that dies holds it until its memory is given back. And
// high descriptors: the keeper holds the segments, too, and may be the last that lets go of them.
Status Keeper::listen_for_lifelines() {
  PAWL_ASSIGN(std::string token, read_file(join_path(options_.run_dir, "token"), kTokenBytesMax));
  token_ = token;
  PAWL_ASSIGN(Fd listener, listen_tcp({address_.host, 0}));
  PAWL_ASSIGN(const Address address, local_address(listener.get()));
  PAWL_ASSIGN(lifelines_, KeeperLifelines::start(real_environment(), real_high_listener(std::move(listener)),
                                                 {options_.node, options_.job, std::move(token)}));
  lifeline_ = text(address);
  return {};
}

Status Keeper::pause(Duration duration) {
  pollfd entry{signals_.get(), POLLIN, 0};
  signalfd_siginfo info{};
  if (poll(&entry, 1, static_cast<int>(duration / milliseconds(1))) <= 0) return {};
  if (::read(signals_.get(), &info, sizeof info) != sizeof info) return {};
  ended_by_ = static_cast<int>(info.ssi_signo);
  return Error{Code::cancelled, "ended by a signal before it began"};
}

void Keeper::note_processes() const {
  std::vector<StartedProcess> started;
  if (daemon_running_) started.push_back({daemon_.pid, daemon_.start_time});
  for (const auto& [local_index, trainer] : trainers_)
    if (trainer.running) started.push_back({trainer.process.pid, trainer.process.start_time});
  if (Status noted = note_started(join_path(directory_, kProcessesFile), started); !noted)
    log_warn("processes_not_noted", "why", noted.error().what);
}

std::string Keeper::socket_variable() const {
  return text("PAWL_SOCKET=", node_socket_path(options_.run_dir, options_.node));
}

// --- What NodeKeeper decides, done

// Greater than any before it even where the wall clock was set back.
Result<std::uint64_t> Keeper::next_incarnation(std::uint64_t last) {
  const std::string path = join_path(directory_, kIncarnationFile);
  if (const Result<std::string> content = read_file(path, 64))
    if (std::uint64_t found = 0; parse_number(*content, found)) last = std::max(last, found);
  const std::uint64_t incarnation = std::max(static_cast<std::uint64_t>(clock_.wall().count()), last + 1);
  if (Status noted = write_file_atomically(path, text(incarnation)); !noted) {
    // The next keeper's is greater all the same, unless its clock is behind ours.
    if (noted.error().code != Code::full) return std::move(noted).error();
    log_warn("incarnation_not_noted", "why", noted.error().what);
  }
  if (lifelines_) lifelines_->begin_life(Incarnation(incarnation));
  log_info("incarnation_began", "incarnation", incarnation, "address", address_, "lifeline", lifeline_);
  return incarnation;
}

std::vector<std::string> Keeper::daemon_arguments(std::uint64_t incarnation, std::span<const HeldSegment> held_segments,
                                                  bool token) const {
  std::vector<std::string> argv = options_.daemon_argv;
  const auto add = [&](const char* flag, std::string value) {
    argv.emplace_back(flag);
    argv.push_back(std::move(value));
  };
  add("--node", text(options_.node));
  add("--incarnation", text(incarnation));
  add("--job", options_.job);
  add("--control", options_.control);
  add("--address", text(address_));
  if (!lifeline_.empty()) add("--lifeline", lifeline_);
  if (!options_.domain.empty()) add("--domain", options_.domain);
  add("--run-dir", options_.run_dir);
  add("--keeper-fd", text(kChannelFd));
  add("--listen-fd", text(kListenFd));
  add("--local-fd", text(kLocalFd));
  if (token) add("--token-fd", text(kTokenFd));
  if (death_) add("--death-fd", text(kDeathFd));
  add("--nproc-per-node", text(options_.seats_per_node));
  std::string held;
  for (std::size_t i = 0; i < held_segments.size(); ++i)
    held += text(i == 0 ? "" : ",", held_segments[i].name, ":", kFirstHeldFd + static_cast<int>(i));
  if (!held.empty()) add("--held", held);
  return argv;
}

Result<std::uint64_t> Keeper::start_daemon(std::uint64_t incarnation, std::span<const HeldSegment> held,
                                           std::span<const FromKeeper> news) {
  const OwnWork work(*this);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return system_error("start pawld: socketpair", errno);
  channel_.reset(ends[0]);
  const Fd child_end(ends[1]);
  for (const FromKeeper& one : news) tell(one);
  death_.reset();
  if (Result<PawldDeath> death = PawldDeath::make(real_environment()); death)
    death_.emplace(std::move(death).value());
  else
    log_warn("pawld_death_seen_late", "why", death.error().what);
  SpawnOptions spawn_options;
  spawn_options.inherited_fds = {
      {child_end.get(), kChannelFd}, {listener_.get(), kListenFd}, {local_listener_.get(), kLocalFd}};
  Fd token;
  if (token_) {
    if (Result<Fd> pipe = pipe_with(*token_); pipe)
      token = std::move(pipe).value();
    else
      log_warn("token_not_handed_over", "why", pipe.error().what);
  }
  spawn_options.argv = daemon_arguments(incarnation, held, token.valid());
  if (token.valid()) spawn_options.inherited_fds.push_back({token.get(), kTokenFd});
  if (death_) spawn_options.inherited_fds.push_back({death_->page_fd(), kDeathFd});
  for (std::size_t i = 0; i < held.size(); ++i)
    spawn_options.inherited_fds.push_back({held[i].fd.get(), kFirstHeldFd + static_cast<int>(i)});
  spawn_options.stdout_fd = spawn_options.stderr_fd = log_.get();
  spawn_options.new_process_group = true;
  spawn_options.parent_death_signal = SIGKILL;
  PAWL_ASSIGN(daemon_, spawn(spawn_options));
  daemon_running_ = true;
  note_processes();
  return static_cast<std::uint64_t>(daemon_.pid);
}

// One that has just ended is as good: its pidfd tells.
void Keeper::terminate_daemon() {
  (void)send_signal(daemon_.pidfd.get(), SIGTERM);
}
void Keeper::kill_daemon() {
  (void)send_signal(daemon_.pidfd.get(), SIGKILL);
}
void Keeper::terminate_trainer(std::uint32_t local_index) {
  (void)send_signal(trainers_[local_index].process.pidfd.get(), SIGTERM);
}
void Keeper::kill_trainer(std::uint32_t local_index) {
  const Process& process = trainers_[local_index].process;
  ::kill(-process.pid, SIGKILL);  // not reaped yet: the group is still its own
  (void)send_signal(process.pidfd.get(), SIGKILL);
}

void Keeper::tell(const FromKeeper& news) {
  const std::string message = packet_of(news);
  const Result<std::size_t> sent = try_send(channel_.get(), std::as_bytes(std::span(message)));
  if (!sent || *sent == 0) log_warn("pawld_not_told", "message", message);
}

// A quarter of a second for each GiB, where nobody else has them.
void Keeper::let_go(std::vector<HeldSegment> segments) {
  ++*giving_back_;
  std::function<void()> close = [shared = std::make_shared<std::vector<HeldSegment>>(std::move(segments)),
                                 count = giving_back_]() mutable {
    shared.reset();
    --*count;
  };
  if (Result<Thread> thread = Thread::start("let_go", std::move(close)); thread) return thread->detach();
  const OwnWork work(*this);  // no thread is to be had
  close();
}

std::uint64_t Keeper::memory_bytes() {
  std::uint64_t bytes = daemon_running_ ? bytes_to_give_back(daemon_.pid) : 0;
  for (const auto& [local_index, trainer] : trainers_)
    if (trainer.running) bytes += bytes_to_give_back(trainer.process.pid);
  return bytes;
}

Result<StartedTrainer> Keeper::start_trainer(std::uint32_t local_index, std::span<const std::string> variables) {
  const OwnWork work(*this);
  Trainer& trainer = trainers_[local_index] = Trainer{};
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  std::vector<std::string> additions = {socket_variable(), text("PAWL_LOCAL_INDEX=", local_index),
                                        text("PAWL_NODE_ADDRESS=", address_.host), text("PAWL_JOB=", options_.job)};
  additions.insert(additions.end(), variables.begin(), variables.end());
  SpawnOptions spawn_options;
  spawn_options.argv = options_.trainer_argv;
  spawn_options.environment = merge_environment(std::move(environment), additions);
  spawn_options.new_process_group = true;
  spawn_options.parent_death_signal = SIGKILL;
  spawn_options.killed_sooner = kTrainerKilledSooner;
  PAWL_ASSIGN(const TrainerStreams streams, open_outputs(local_index, trainer));
  spawn_options.stdout_fd = streams.stdout_end.get();
  spawn_options.stderr_fd = streams.stderr_end.get();
  PAWL_ASSIGN(trainer.process, spawn(spawn_options));
  trainer.running = true;
  note_processes();
  return StartedTrainer{static_cast<std::uint64_t>(trainer.process.pid), trainer.process.start_time,
                        trainer.output_path};
}

Result<TrainerStreams> Keeper::open_outputs(std::uint32_t local_index, Trainer& trainer) {
  std::string stdout_path = node_log_path(options_.run_dir, options_.node);
  std::string stderr_path = stdout_path;
  if (!options_.log_dir.empty()) {
    const std::string directory = join_path(options_.log_dir, text("node-", options_.node, "/trainer-", local_index));
    PAWL_TRY(make_directories(directory));
    stdout_path = join_path(directory, "stdout.log");
    stderr_path = join_path(directory, "stderr.log");
  }
  PAWL_ASSIGN(Fd stdout_log, open_log(stdout_path));
  PAWL_ASSIGN(Fd stderr_log, open_log(stderr_path));
  trainer.output_path = stderr_path;
  return output_->open(local_index, std::move(stdout_log), std::move(stderr_log));
}

// --- What happens

void Keeper::on_trainer_exit(std::uint32_t local_index, Duration now) {
  Trainer& trainer = trainers_[local_index];
  // Not reaped yet, so the group's number is still its own: what the trainer started ends with it.
  ::kill(-trainer.process.pid, SIGKILL);
  const Result<std::optional<Exit>> exit = try_wait_exit(trainer.process.pidfd.get());
  if (exit && !exit->has_value()) return;
  trainer.running = false;
  std::string last_words;
  {
    const OwnWork work(*this);
    last_words = output_->close(local_index, kLastWords);
  }
  decides_.on_trainer_exit(local_index, exit ? (*exit)->describe() : "ended", now, last_words);
}

void Keeper::on_channel(Duration now) {
  std::string buffer(kMessageBytesMax, '\0');
  while (channel_.valid()) {
    std::vector<Fd> fds;
    const Result<std::size_t> size = receive_with_fds(channel_.get(), std::as_writable_bytes(std::span(buffer)), fds,
                                                      Deadline::in(Duration::zero()));
    if (size && death_) death_->watch();
    if (size)
      decides_.on_message(std::string_view(buffer).substr(0, *size), std::move(fds), now);
    else if (size.error().code == Code::timeout)
      return;
    else
      channel_.reset();  // it ended, or closed it: its pidfd tells
  }
}

void Keeper::on_daemon_exit(Duration now) {
  on_channel(now);  // what it said last still counts: a segment handed over, the end of the job
  if (death_ && death_->has_died()) decides_.on_daemon_dying(now);
  const Result<std::optional<Exit>> exit = try_wait_exit(daemon_.pidfd.get());
  if (exit && !exit->has_value()) return;
  daemon_running_ = false;
  death_.reset();
  channel_.reset();
  decides_.on_daemon_exit(exit ? (*exit)->describe() : "ended", now);
}

void Keeper::on_signal(Duration now) {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) == sizeof info) decides_.stop(static_cast<int>(info.ssi_signo), now);
}

// One wait, and what came of it.
Status Keeper::turn() {
  std::vector<pollfd> polled;
  const auto add = [&](int fd) { polled.push_back({fd, POLLIN, 0}); };  // poll skips negative ones
  add(signals_.get());
  add(channel_.get());
  add(daemon_running_ ? daemon_.pidfd.get() : -1);
  add(death_ ? death_->fd() : -1);
  std::vector<std::uint32_t> watched;
  for (auto& [local_index, trainer] : trainers_) {
    if (!trainer.running) continue;
    watched.push_back(local_index);
    add(trainer.process.pidfd.get());
  }
  const int wait_ms = static_cast<int>(std::chrono::ceil<milliseconds>(decides_.wait(clock_.boottime())).count());
  if (poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR) return system_error("keeper: poll", errno);

  const Duration now = clock_.boottime();
  if (polled[0].revents != 0) on_signal(now);
  for (std::size_t i = 0; i < watched.size(); ++i)
    if (polled[4 + i].revents != 0) on_trainer_exit(watched[i], now);
  if (polled[1].revents != 0) on_channel(now);
  if (polled[2].revents != 0 || polled[3].revents != 0) on_daemon_exit(now);
  decides_.turn(now);
  return {};
}

Result<int> Keeper::run() {
  if (Status opened = open(); !opened) {
    if (ended_by_) return 128 + *ended_by_;
    return std::move(opened).error();
  }
  decides_.begin(clock_.boottime());
  while (!decides_.outcome()) PAWL_TRY(turn());
  for (const auto& [local_index, trainer] : trainers_) (void)output_->close(local_index, kLastWords);
  if (*decides_.outcome()) ::unlink(node_socket_path(options_.run_dir, options_.node).c_str());
  return *decides_.outcome();
}

}  // namespace

Result<int> run_keeper(const KeeperOptions& options) {
  return Keeper(options).run();
}

std::string node_directory(const std::string& run_dir, NodeId node) {
  return join_path(run_dir, text("node-", node));
}
std::string node_log_path(const std::string& run_dir, NodeId node) {
  return join_path(node_directory(run_dir, node), "log");
}
std::string node_socket_path(const std::string& run_dir, NodeId node) {
  return join_path(node_directory(run_dir, node), "pawld.sock");
}

std::vector<std::string> merge_environment(std::vector<std::string> base, const std::vector<std::string>& additions) {
  for (const std::string& addition : additions) {
    const std::string name = addition.substr(0, addition.find('=') + 1);
    std::erase_if(base, [&](const std::string& entry) { return entry.starts_with(name); });
    base.push_back(addition);
  }
  return base;
}

}  // namespace pawl::job
