#include "job/daemon/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "env/clock.h"
#include "env/fd.h"
#include "env/files.h"
#include "env/process.h"
#include "job/transport/keeper_messages.h"

extern char** environ;

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kChannelFd = 3;  // where pawld finds what it inherits
constexpr int kListenFd = 4;
constexpr int kLocalFd = 5;
constexpr int kFirstHeldFd = 6;
constexpr int kShortLivesMax = 5;
constexpr Duration kShortLife = seconds(1);
constexpr Duration kRestartPause = milliseconds(200);
constexpr Duration kTerminateGrace = seconds(2);
constexpr Duration kKillWait = seconds(10);  // a killed process may still have memory to give back
constexpr std::size_t kMessageBytesMax = 256 << 10;
constexpr std::size_t kTeeLineBytesMax = 4000;  // below PIPE_BUF: lines of several nodes never mix

// One stream of a trainer that goes to its log and to `tee_fd`.
struct Tee {
  Fd pipe;
  int log_fd = -1;
  std::string prefix;
  std::string line;  // begun, not ended yet
};

struct Trainer {
  Process process;
  bool running = false;
  std::string output_path;   // of its stderr
  std::string how_it_ended;  // told again to a new pawld, which may have missed it
  Fd stdout_log;
  Fd stderr_log;
  std::vector<Tee> tees;
};

struct Held {
  std::string name;
  Fd fd;
};

Result<Fd> open_log(const std::string& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return system_error(text("open log ", path), errno);
  return fd;
}

void write_best_effort(int fd, std::string_view bytes) {
  [[maybe_unused]] ssize_t written = ::write(fd, bytes.data(), bytes.size());
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

class Keeper {
 public:
  explicit Keeper(const KeeperOptions& options) : options_(options) {}
  // The log's descriptor closes, and its number may become a socket's.
  ~Keeper() { log_to(STDERR_FILENO, LogLevel::info, ""); }
  Result<int> run();

 private:
  Status open();
  Status begin_life();
  Status start_daemon();
  Status turn();
  Status fence(std::string_view why);
  void stop_all(Duration grace);

  void on_channel();
  void on_message(std::string_view packet, std::vector<Fd> fds);
  void drop(const std::string& name);
  void on_spawn(const SpawnTrainer& asked);
  void on_kill(std::uint32_t local_index);
  Status on_daemon_exit();
  void on_trainer_exit(std::uint32_t local_index);
  void on_output(Tee& tee);
  void check_daemon_alive(Duration now);

  Status start_trainer(std::uint32_t local_index, std::vector<std::string> additions);
  Status open_outputs(std::uint32_t local_index, Trainer& trainer, SpawnOptions& spawn);
  void tell(const FromKeeper& news);
  void tell_about(std::uint32_t local_index);
  [[nodiscard]] std::vector<std::string> daemon_arguments() const;

  const KeeperOptions& options_;
  Clock& clock_ = real_clock();
  std::string directory_;
  Fd log_;
  Fd signals_;
  Fd listener_;
  Fd local_listener_;
  Address address_;
  std::vector<Held> held_;
  std::uint64_t incarnation_ = 0;

  Process daemon_;
  bool daemon_running_ = false;
  Fd channel_;
  Duration daemon_started_{};
  Duration daemon_alive_until_{};  // boottime; later it is silent
  Duration daemon_restart_at_{};
  int short_lives_ = 0;

  std::map<std::uint32_t, Trainer> trainers_;
  Duration last_turn_{};
  std::optional<std::string> reset_wanted_;
  std::optional<int> exit_code_;
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
  signals_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return system_error("keeper: signalfd", errno);
  Result<Fd> listener = listen_tcp(options_.listen);
  if (!listener) return listen_remedy(std::move(listener).error(), options_.listen);
  listener_ = std::move(listener).value();
  PAWL_ASSIGN(address_, local_address(listener_.get()));
  PAWL_ASSIGN(local_listener_, listen_unix(node_socket_path(options_.run_dir, options_.node)));
  return {};
}

// A new incarnation, greater than any before it even where the wall clock was set back; nothing of the last is kept.
Status Keeper::begin_life() {
  held_.clear();
  trainers_.clear();
  const std::string path = join_path(directory_, "incarnation");
  std::uint64_t last = incarnation_;
  if (const Result<std::string> content = read_file(path, 64))
    if (std::uint64_t found = 0; parse_number(*content, found)) last = std::max(last, found);
  incarnation_ = std::max(static_cast<std::uint64_t>(clock_.wall().count()), last + 1);
  PAWL_TRY(write_file_atomically(path, text(incarnation_)));
  log_info("incarnation_began", "incarnation", incarnation_, "address", address_);
  short_lives_ = 0;
  return start_daemon();
}

std::vector<std::string> Keeper::daemon_arguments() const {
  std::vector<std::string> argv = options_.daemon_argv;
  const auto add = [&](const char* flag, std::string value) {
    argv.emplace_back(flag);
    argv.push_back(std::move(value));
  };
  add("--node", text(options_.node));
  add("--incarnation", text(incarnation_));
  add("--job", options_.job);
  add("--control", options_.control);
  add("--address", text(address_));
  add("--run-dir", options_.run_dir);
  add("--keeper-fd", text(kChannelFd));
  add("--listen-fd", text(kListenFd));
  add("--local-fd", text(kLocalFd));
  add("--nproc-per-node", text(options_.seats_per_node));
  std::string held;
  for (std::size_t i = 0; i < held_.size(); ++i)
    held += text(i == 0 ? "" : ",", held_[i].name, ":", kFirstHeldFd + static_cast<int>(i));
  if (!held.empty()) add("--held", held);
  return argv;
}

Status Keeper::start_daemon() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return system_error("start pawld: socketpair", errno);
  channel_.reset(ends[0]);
  const Fd child_end(ends[1]);
  SpawnOptions spawn_options;
  spawn_options.argv = daemon_arguments();
  spawn_options.inherited_fds = {
      {child_end.get(), kChannelFd}, {listener_.get(), kListenFd}, {local_listener_.get(), kLocalFd}};
  for (std::size_t i = 0; i < held_.size(); ++i)
    spawn_options.inherited_fds.push_back({held_[i].fd.get(), kFirstHeldFd + static_cast<int>(i)});
  spawn_options.stdout_fd = spawn_options.stderr_fd = log_.get();
  spawn_options.new_process_group = true;
  spawn_options.parent_death_signal = SIGKILL;
  PAWL_ASSIGN(daemon_, spawn(spawn_options));
  daemon_running_ = true;
  daemon_started_ = clock_.boottime();
  daemon_alive_until_ = daemon_started_ + 3 * options_.daemon_silence;  // its first word: it scans its segments before
  log_info("pawld_started", "pid", daemon_.pid, "held", held_.size());
  for (const auto& [local_index, trainer] : trainers_) tell_about(local_index);
  return {};
}

void Keeper::tell(const FromKeeper& news) {
  if (!daemon_running_) return;  // the next one is told everything that still counts
  const std::string message = packet_of(news);
  const Result<std::size_t> sent = try_send(channel_.get(), std::as_bytes(std::span(message)));
  if (!sent || *sent == 0) log_warn("pawld_not_told", "message", message);
}

void Keeper::tell_about(std::uint32_t local_index) {
  const Trainer& trainer = trainers_[local_index];
  if (trainer.running)
    tell(TrainerSpawned{local_index, static_cast<std::uint64_t>(trainer.process.pid), trainer.process.start_time});
  else
    tell(TrainerExited{local_index, static_cast<std::uint64_t>(trainer.process.pid),
                       text(trainer.how_it_ended,
                            trainer.output_path.empty() ? "" : text(", its output is in ", trainer.output_path))});
}

void Keeper::on_channel() {
  std::string buffer(kMessageBytesMax, '\0');
  for (;;) {
    std::vector<Fd> fds;
    const Result<std::size_t> size = receive_with_fds(channel_.get(), std::as_writable_bytes(std::span(buffer)), fds,
                                                      Deadline::in(Duration::zero()));
    if (!size) {
      if (size.error().code != Code::timeout) channel_.reset();  // it ended, or closed it: its pidfd tells
      return;
    }
    on_message(std::string_view(buffer).substr(0, *size), std::move(fds));
    if (exit_code_ || reset_wanted_ || !channel_.valid()) return;
  }
}

void Keeper::on_message(std::string_view packet, std::vector<Fd> fds) {
  const std::optional<ToKeeper> message = parse_to_keeper(packet);
  const auto* hold = message ? std::get_if<HoldSegment>(&*message) : nullptr;
  if (!message || (hold != nullptr && fds.size() != 1)) {
    log_warn("message_not_understood", "message", packet.substr(0, 200), "fds", fds.size());
  } else if (hold != nullptr) {
    drop(hold->name);
    held_.push_back({hold->name, std::move(fds.front())});
  } else if (const auto* dropped = std::get_if<DropSegment>(&*message)) {
    drop(dropped->name);
  } else if (const auto* spawn = std::get_if<SpawnTrainer>(&*message)) {
    on_spawn(*spawn);
  } else if (const auto* kill = std::get_if<KillTrainer>(&*message)) {
    on_kill(kill->local_index);
  } else if (std::holds_alternative<PawldAlive>(*message)) {
    daemon_alive_until_ = clock_.boottime() + options_.daemon_silence;
  } else if (const auto* reset = std::get_if<ResetNode>(&*message)) {
    reset_wanted_ = reset->reason;
  } else if (const auto* end = std::get_if<EndNode>(&*message)) {
    log_info("job_ended", "code", end->code);
    exit_code_ = static_cast<int>(end->code);
  }
}

void Keeper::drop(const std::string& name) {
  std::erase_if(held_, [&](const Held& held) { return held.name == name; });
}

void Keeper::on_spawn(const SpawnTrainer& asked) {
  const std::uint32_t local_index = asked.local_index;
  if (local_index >= options_.seats_per_node) {
    log_warn("spawn_refused", "local_index", local_index);
    return;
  }
  if (trainers_.contains(local_index) && trainers_[local_index].running) {
    log_warn("spawn_refused", "local_index", local_index, "why", "it runs");
  } else if (Status started = start_trainer(local_index, asked.environment); !started) {
    log_error("trainer_not_started", "local_index", local_index, "why", started.error().what);
    trainers_[local_index].how_it_ended = started.error().what;
  }
  tell_about(local_index);
}

void Keeper::on_kill(std::uint32_t local_index) {
  const auto found = trainers_.find(local_index);
  if (found == trainers_.end() || !found->second.running) {
    if (found != trainers_.end())
      tell_about(local_index);
    else
      tell(TrainerExited{local_index, 0, "was not running"});
    return;
  }
  log_info("trainer_killed", "local_index", local_index, "pid", found->second.process.pid);
  (void)send_signal(found->second.process.pidfd.get(), SIGKILL);  // one that has just ended is as good
}

Status Keeper::start_trainer(std::uint32_t local_index, std::vector<std::string> additions) {
  Trainer& trainer = trainers_[local_index] = Trainer{};
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  additions.insert(additions.begin(), {text("PAWL_SOCKET=", node_socket_path(options_.run_dir, options_.node)),
                                       text("PAWL_LOCAL_INDEX=", local_index),
                                       text("PAWL_NODE_ADDRESS=", address_.host), text("PAWL_JOB=", options_.job)});
  SpawnOptions spawn_options;
  spawn_options.argv = options_.trainer_argv;
  spawn_options.environment = merge_environment(std::move(environment), additions);
  spawn_options.new_process_group = true;
  spawn_options.parent_death_signal = SIGKILL;
  PAWL_TRY(open_outputs(local_index, trainer, spawn_options));
  std::vector<Fd> child_ends;
  child_ends.emplace_back(spawn_options.stdout_fd);
  child_ends.emplace_back(spawn_options.stderr_fd);
  PAWL_ASSIGN(trainer.process, spawn(spawn_options));
  trainer.running = true;
  log_info("trainer_started", "local_index", local_index, "pid", trainer.process.pid);
  return {};
}

// Gives `spawn` descriptors of its own for both streams: the log, or a pipe of which we hold the other end.
Status Keeper::open_outputs(std::uint32_t local_index, Trainer& trainer, SpawnOptions& spawn) {
  std::string stdout_path = node_log_path(options_.run_dir, options_.node);
  std::string stderr_path = stdout_path;
  if (!options_.log_dir.empty()) {
    const std::string directory = join_path(options_.log_dir, text("node-", options_.node, "/trainer-", local_index));
    PAWL_TRY(make_directories(directory));
    stdout_path = join_path(directory, "stdout.log");
    stderr_path = join_path(directory, "stderr.log");
  }
  PAWL_ASSIGN(trainer.stdout_log, open_log(stdout_path));
  PAWL_ASSIGN(trainer.stderr_log, open_log(stderr_path));
  trainer.output_path = stderr_path;
  const auto stream = [&](std::uint32_t bit, const Fd& log) -> Result<int> {
    int ends[2];
    if ((options_.tee & bit) == 0 || options_.tee_fd < 0) return ::fcntl(log.get(), F_DUPFD_CLOEXEC, 0);
    if (pipe2(ends, O_CLOEXEC) != 0) return system_error("trainer output: pipe", errno);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const std::string index = options_.seats_per_node > 1 ? text('.', local_index) : "";
    trainer.tees.push_back({Fd(ends[0]), log.get(), text("[node ", options_.node, index, "] "), ""});
    return ends[1];
  };
  PAWL_ASSIGN(spawn.stdout_fd, stream(1, trainer.stdout_log));
  PAWL_ASSIGN(spawn.stderr_fd, stream(2, trainer.stderr_log));
  return {};
}

void Keeper::on_output(Tee& tee) {
  std::array<char, 16 << 10> buffer;
  const ssize_t count = ::read(tee.pipe.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return tee.pipe.reset();
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
  write_best_effort(tee.log_fd, bytes);
  tee.line += bytes;
  for (;;) {
    std::size_t end = tee.line.find('\n');
    if (end == std::string::npos && tee.line.size() < kTeeLineBytesMax) return;
    end = std::min(end, kTeeLineBytesMax);
    write_best_effort(options_.tee_fd, text(tee.prefix, std::string_view(tee.line).substr(0, end), "\n"));
    tee.line.erase(0, end + (end < tee.line.size() && tee.line[end] == '\n' ? 1 : 0));
  }
}

void Keeper::on_trainer_exit(std::uint32_t local_index) {
  Trainer& trainer = trainers_[local_index];
  // Not reaped yet, so the group's number is still its own: what the trainer started ends with it.
  ::kill(-trainer.process.pid, SIGKILL);
  const Result<std::optional<Exit>> exit = try_wait_exit(trainer.process.pidfd.get());
  if (exit && !exit->has_value()) return;
  trainer.how_it_ended = exit ? (*exit)->describe() : "ended";
  trainer.running = false;
  for (Tee& tee : trainer.tees)
    for (int chunks = 0; tee.pipe.valid() && chunks < 64; ++chunks) on_output(tee);
  trainer.tees.clear();
  log_info("trainer_exited", "local_index", local_index, "pid", trainer.process.pid, "how", trainer.how_it_ended);
  tell_about(local_index);
}

Status Keeper::on_daemon_exit() {
  if (channel_.valid()) on_channel();  // what it said last still counts: a segment handed over, the end of the job
  if (exit_code_ || reset_wanted_) return {};
  const Result<std::optional<Exit>> exit = try_wait_exit(daemon_.pidfd.get());
  if (exit && !exit->has_value()) return {};
  daemon_running_ = false;
  channel_.reset();
  const Duration now = clock_.boottime();
  const bool short_life = now - daemon_started_ < kShortLife;
  short_lives_ = short_life ? short_lives_ + 1 : 0;
  const std::string how = exit ? (*exit)->describe() : "ended";
  log_warn("pawld_exited", "pid", daemon_.pid, "how", how, "short_lives", short_lives_);
  if (short_lives_ >= kShortLivesMax)
    return Error{Code::unreachable,
                 text("pawld of node ", options_.node, " died ", short_lives_, " times within a second of its start (",
                      how, "); see ", node_log_path(options_.run_dir, options_.node))};
  daemon_restart_at_ = now + (short_life ? kRestartPause : Duration::zero());
  return {};
}

void Keeper::check_daemon_alive(Duration now) {
  if (!daemon_running_ || now <= daemon_alive_until_) return;
  log_warn("pawld_silent", "pid", daemon_.pid);
  (void)send_signal(daemon_.pidfd.get(), SIGKILL);
  daemon_alive_until_ = now + options_.daemon_silence;  // its exit comes by its pidfd
}

// SIGTERM first where `grace` is positive, then SIGKILL, then waits until all are gone.
void Keeper::stop_all(Duration grace) {
  std::vector<const Process*> running;
  for (const auto& [local_index, trainer] : trainers_)
    if (trainer.running) running.push_back(&trainer.process);
  const auto signal_all = [&](int signal) {
    for (const Process* process : running) (void)send_signal(process->pidfd.get(), signal);
  };
  if (grace > Duration::zero()) {
    signal_all(SIGTERM);
    const Deadline deadline = Deadline::in(grace);
    for (const Process* process : running) {
      pollfd entry{process->pidfd.get(), POLLIN, 0};
      while (poll(&entry, 1, deadline.left_for_poll_ms()) < 0 && errno == EINTR) {
      }
    }
  }
  for (const Process* process : running) ::kill(-process->pid, SIGKILL);  // not reaped: the group is still theirs
  signal_all(SIGKILL);
  if (daemon_running_) {
    if (grace > Duration::zero() && send_signal(daemon_.pidfd.get(), SIGTERM)) {
      pollfd entry{daemon_.pidfd.get(), POLLIN, 0};
      (void)poll(&entry, 1, 1000);
    }
    (void)send_signal(daemon_.pidfd.get(), SIGKILL);
    running.push_back(&daemon_);
  }
  const Deadline deadline = Deadline::in(kKillWait);
  for (const Process* process : running)
    if (Result<Exit> exit = wait_exit(process->pidfd.get(), deadline); !exit)
      log_error("process_not_ended", "pid", process->pid, "why", exit.error().what);
  for (auto& [local_index, trainer] : trainers_) {
    trainer.running = false;
    for (Tee& tee : trainer.tees)
      for (int chunks = 0; tee.pipe.valid() && chunks < 64; ++chunks) on_output(tee);
  }
  daemon_running_ = false;
  channel_.reset();
}

// The others have gone on without this node: nothing it holds may be used again.
Status Keeper::fence(std::string_view why) {
  log_warn("node_fenced", "why", why, "incarnation", incarnation_);
  reset_wanted_.reset();
  stop_all(Duration::zero());
  return begin_life();
}

// One wait, and what came of it.
Status Keeper::turn() {
  std::vector<pollfd> polled;
  const auto add = [&](int fd) { polled.push_back({fd, POLLIN, 0}); };  // poll skips negative ones
  add(signals_.get());
  add(channel_.get());
  add(daemon_running_ ? daemon_.pidfd.get() : -1);
  std::vector<std::uint32_t> watched;
  std::vector<Tee*> tees;
  for (auto& [local_index, trainer] : trainers_) {
    if (!trainer.running) continue;
    watched.push_back(local_index);
    add(trainer.process.pidfd.get());
  }
  for (const std::uint32_t local_index : watched)
    for (Tee& tee : trainers_[local_index].tees) {
      tees.push_back(&tee);
      add(tee.pipe.get());
    }
  Duration wait = std::clamp<Duration>(options_.silence / 4, milliseconds(10), milliseconds(250));
  if (!daemon_running_) wait = std::clamp<Duration>(daemon_restart_at_ - clock_.boottime(), Duration::zero(), wait);
  const int wait_ms = static_cast<int>(std::chrono::ceil<milliseconds>(wait).count());
  if (poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR) return system_error("keeper: poll", errno);

  const Duration now = clock_.boottime();
  const Duration stalled = now - last_turn_;
  last_turn_ = now;
  if (stalled > options_.silence) {
    PAWL_TRY(fence(text("the keeper did not run for ", stalled / milliseconds(1), " ms")));
    last_turn_ = clock_.boottime();  // our own clean-up is no stall
    return {};
  }
  if (polled[0].revents != 0) {
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof info) == sizeof info) exit_code_ = 128 + static_cast<int>(info.ssi_signo);
    return {};
  }
  for (std::size_t i = 0; i < tees.size(); ++i)
    if (polled[3 + watched.size() + i].revents != 0) on_output(*tees[i]);
  for (std::size_t i = 0; i < watched.size(); ++i)
    if (polled[3 + i].revents != 0) on_trainer_exit(watched[i]);
  if (polled[1].revents != 0 && channel_.valid()) on_channel();
  if (polled[2].revents != 0 && !exit_code_ && !reset_wanted_) PAWL_TRY(on_daemon_exit());
  if (exit_code_) return {};
  if (reset_wanted_) {
    PAWL_TRY(fence(text("pawld asked: ", *reset_wanted_)));
    last_turn_ = clock_.boottime();
    return {};
  }
  if (!daemon_running_ && now >= daemon_restart_at_) return start_daemon();
  check_daemon_alive(now);
  return {};
}

Result<int> Keeper::run() {
  PAWL_TRY(open());
  PAWL_TRY(begin_life());
  last_turn_ = clock_.boottime();
  while (!exit_code_) {
    Status turned = turn();
    if (turned) continue;
    log_error("node_ends", "why", turned.error().what);
    stop_all(Duration::zero());
    return std::move(turned).error();
  }
  log_info("node_ends", "code", *exit_code_);
  stop_all(kTerminateGrace);
  ::unlink(node_socket_path(options_.run_dir, options_.node).c_str());
  return *exit_code_;
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
