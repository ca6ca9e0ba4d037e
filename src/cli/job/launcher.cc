#include "cli/job/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/job_watch.h"
#include "cli/job/recovery_tally.h"
#include "cli/job/run_directory.h"
#include "cli/job/sign_of_life.h"
#include "env/clock.h"
#include "env/files.h"
#include "job/daemon/keeper.h"
#include "job/recovery/deadlines.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kNodeRestartPause = milliseconds(300);
constexpr Duration kControlRestartPause = milliseconds(100);
constexpr Duration kControlStart = seconds(15);
constexpr int kControlShortLivesMax = 5;
constexpr Duration kEndGrace = seconds(15);    // from the end of the job and its scripts until keepers are ended
constexpr Duration kStopGrace = seconds(8);    // from SIGTERM until SIGKILL
constexpr Duration kSameRequest = seconds(2);  // in which a second SIGTERM is the first one again
constexpr Duration kSayEvery = seconds(5);
constexpr std::size_t kOutputBacklogMax = 1 << 20;

// When the job has finished, its scripts may still have something to do; pawld knows when they are done.
Duration end_patience(bool finished) {
  return finished ? kLeaveMax + kEndGrace : kEndGrace;
}

struct Node {
  const NodePlan* plan = nullptr;
  Process keeper;
  bool running = false;
  std::optional<Duration> restart_at;
};

struct Output {  // the trainers' lines, on their way to our standard output
  Fd reader, writer;
  std::string backlog;
};

struct Said {  // of the job's state, to people
  std::shared_ptr<const JobState> described;
  std::string description;  // of that; empty: there is none yet
  std::string state;        // what was said last, and when anything was
  Duration at{};
};

class Launcher {
 public:
  explicit Launcher(const LaunchPlan& plan) : plan_(plan) {}
  int run();

 private:
  Status begin();
  [[nodiscard]] Status put_token_back() const;
  Status start_control();
  Status start_keeper(Node& node);
  void write_record() const;
  void turn();
  void on_keeper_exit(Node& node);
  void on_control_exit();
  void on_signal();
  void on_output();
  void write_output();
  void restart_what_died();
  void tell_people();
  void tell_of_recoveries();
  void signal_keepers(int signal);
  void keep_events() const;
  void stop_control();
  [[nodiscard]] bool over() const;
  int conclude();

  const LaunchPlan& plan_;
  Clock& clock_ = real_clock();
  std::string self_;
  Fd signals_;
  Output output_;
  Process control_process_;
  bool control_running_ = false;
  Duration control_started_{};
  std::optional<Duration> control_restart_at_;
  int control_short_lives_ = 0;
  std::unique_ptr<Control> control_;
  std::unique_ptr<JobWatch> watch_;
  std::vector<Node> nodes_;

  struct Interrupts {
    int count = 0;
    Duration at{};  // the last that counted
  };
  Interrupts interrupts_;
  bool job_ended_ = false;    // a keeper was told so, or the state says so
  bool failed_here_ = false;  // a node of this machine says so of the job, or of what its trainers did after it
  bool broken_ = false;
  std::optional<Duration> stop_at_;  // when patience ends: SIGTERM, later SIGKILL
  RecoveryTally tally_;
  Said said_;
  Duration began_{};
};

Status Launcher::begin() {
  began_ = said_.at = clock_.now();
  std::string path(4096, '\0');
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  self_ = size > 0 ? path.substr(0, static_cast<std::size_t>(size)) : "/proc/self/exe";
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&wanted, signal);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);  // before any thread is made
  ::signal(SIGPIPE, SIG_IGN);
  signals_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  int ends[2];
  if (!signals_.valid() || pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return system_error("launcher", errno);
  output_.reader.reset(ends[0]);
  output_.writer.reset(ends[1]);
  for (const NodePlan& node : plan_.nodes) nodes_.push_back({&node, {}, false, {}});
  write_record();
  if (!plan_.control_argv.empty()) PAWL_TRY(start_control());
  PAWL_ASSIGN(control_,
              connect_control(plan_.own_endpoints, {milliseconds(kControlStart / milliseconds(1)), plan_.token}));
  PAWL_TRY(admit(*control_, plan_));
  PAWL_ASSIGN(control_, connect_control(plan_.own_endpoints, {.token = plan_.token}));
  for (Node& node : nodes_) PAWL_TRY(start_keeper(node));
  write_record();
  std::vector<NodeId> own;
  for (const NodePlan& node : plan_.nodes) own.push_back(node.node);
  watch_ = std::make_unique<JobWatch>(*control_, plan_.spec.job, own);
  return {};
}

// Of a job that has run for long: who tidies /tmp may have taken it.
Status Launcher::put_token_back() const {
  const std::string path = join_path(plan_.directory, "token");
  return path_exists(path) ? Status() : write_file_atomically(path, plan_.token);
}

Status Launcher::start_control() {
  PAWL_TRY(put_token_back());
  const Fd log(
      ::open(join_path(plan_.directory, "control.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  SpawnOptions options;
  options.argv = plan_.control_argv;
  options.argv.insert(options.argv.begin(), self_);
  options.stdout_fd = options.stderr_fd = log.get();
  options.new_process_group = true;
  options.parent_death_signal = SIGKILL;
  PAWL_ASSIGN(control_process_, spawn(options));
  control_running_ = true;
  control_started_ = clock_.now();
  return {};
}

Status Launcher::start_keeper(Node& node) {
  PAWL_TRY(put_token_back());
  SpawnOptions options;
  options.argv = {self_,
                  "keeper",
                  "--job",
                  plan_.spec.job,
                  "--node",
                  text(node.plan->node),
                  "--control",
                  plan_.endpoints,
                  "--run-dir",
                  plan_.directory,
                  "--listen",
                  node.plan->listen,
                  "--nproc-per-node",
                  text(plan_.spec.seats_per_node),
                  "--deadline-ms",
                  text(plan_.spec.deadline_ms)};
  const auto add = [&](const char* flag, std::string value) {
    options.argv.emplace_back(flag);
    options.argv.push_back(std::move(value));
  };
  if (node.plan->netns_fd >= 0) {
    add("--netns-fd", text(node.plan->netns_fd));
    add("--hosts-file", plan_.hosts_file);
    options.keep_fds.push_back(node.plan->netns_fd);
  }
  if (plan_.grace_ms > 0) add("--grace-ms", text(plan_.grace_ms));
  if (!plan_.log_dir.empty()) add("--log-dir", plan_.log_dir);
  if (!node.plan->domain.empty()) add("--domain", node.plan->domain);
  if (!plan_.daemon_command.empty()) add("--daemon-command", plan_.daemon_command);
  if (plan_.tee != 0) {
    add("--tee", text(plan_.tee));
    add("--tee-fd", text(output_.writer.get()));
    options.keep_fds.push_back(output_.writer.get());
  }
  options.argv.emplace_back("--");
  options.argv.insert(options.argv.end(), plan_.trainer_argv.begin(), plan_.trainer_argv.end());
  options.new_process_group = true;  // Ctrl-C is for us; we end them in order
  options.parent_death_signal = SIGKILL;
  PAWL_ASSIGN(node.keeper, spawn(options));
  node.running = true;
  node.restart_at.reset();
  return {};
}

void Launcher::write_record() const {
  const auto own = static_cast<std::uint64_t>(::getpid());
  LauncherRecord record{own,
                        process_start_time(::getpid()).value_or(0),
                        plan_.spec.job,
                        plan_.endpoints,
                        control_running_ ? static_cast<std::uint64_t>(control_process_.pid) : 0,
                        plan_.namespaces ? text("/proc/", own, "/ns/net") : "",
                        {},
                        this_machine()};
  for (const Node& node : nodes_)
    record.nodes.push_back(
        {node.plan->node, node.running ? static_cast<std::uint64_t>(node.keeper.pid) : 0, node.plan->listen,
         node.plan->netns_fd >= 0 ? text("/proc/", own, "/fd/", node.plan->netns_fd) : "", node.plan->link});
  if (Status written = write_file_atomically(join_path(plan_.directory, "launcher.json"), to_json(record)); !written)
    say(written.error().what);
}

void Launcher::signal_keepers(int signal) {
  for (const Node& node : nodes_)
    if (node.running) (void)send_signal(node.keeper.pidfd.get(), signal);
}

void Launcher::on_signal() {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) != sizeof info) return;
  // A scheduler, or a session that ends, may tell all processes twice. Ctrl-C is somebody's.
  const bool again =
      interrupts_.count > 0 &&
      (info.ssi_signo == SIGHUP || (info.ssi_signo == SIGTERM && clock_.now() - interrupts_.at < kSameRequest));
  if (again) return;
  interrupts_.at = clock_.now();
  ++interrupts_.count;
  for (Node& node : nodes_) node.restart_at.reset();
  if (interrupts_.count == 1) {
    say(plan_.grace_ms > 0 ? text("stopping: the newest step is written to ", plan_.spec.checkpoints.path,
                                  " first, within ", plan_.grace_ms / 1000, " s; press Ctrl-C again to stop at once")
                           : "stopping; press Ctrl-C again to stop at once");
    signal_keepers(SIGTERM);
    stop_at_ = clock_.now() + milliseconds(plan_.grace_ms) + kStopGrace;
  } else {
    signal_keepers(SIGKILL);
  }
}

void Launcher::on_keeper_exit(Node& node) {
  const Result<std::optional<Exit>> found = try_wait_exit(node.keeper.pidfd.get());
  if (found && !found->has_value()) return;
  const Exit exit = found ? **found : Exit{.known = false};
  node.running = false;
  const bool stopping = interrupts_.count > 0 || job_ended_ || broken_;
  if (!exit.by_signal && exit.number == kExitFailed && interrupts_.count == 0 && !broken_) failed_here_ = true;
  if (exit.by_signal && !stopping) {
    const bool again = plan_.restart_dead_nodes;
    say(text("node ", node.plan->node, " died (", exit.describe(), ")", again ? "; starting it again as a spare" : ""));
    if (again) node.restart_at = clock_.now() + kNodeRestartPause;
  } else if (exit.number == kExitKeeper && !exit.by_signal) {
    say(text("node ", node.plan->node, " could not go on and ended; see ",
             node_log_path(plan_.directory, node.plan->node)));
  } else if (!exit.by_signal && !stopping) {
    job_ended_ = true;  // its pawld said so
    if (!stop_at_) stop_at_ = clock_.now() + end_patience(exit.number == kExitOk);
  }
  write_record();
}

void Launcher::on_control_exit() {
  const Result<std::optional<Exit>> exit = try_wait_exit(control_process_.pidfd.get());
  if (exit && !exit->has_value()) return;
  control_running_ = false;
  const Duration now = clock_.now();
  control_short_lives_ = now - control_started_ < seconds(1) ? control_short_lives_ + 1 : 0;
  say(text("the control process ", exit ? (*exit)->describe() : "ended", "; starting it again"));
  if (control_short_lives_ < kControlShortLivesMax) {
    control_restart_at_ = now + kControlRestartPause * (1 << control_short_lives_);
    return;
  }
  say(text("the control process keeps ending; see ", join_path(plan_.directory, "control.log")));
  broken_ = true;
  signal_keepers(SIGTERM);
  stop_at_ = now + kStopGrace;
}

void Launcher::on_output() {
  char buffer[16 << 10];
  for (;;) {
    const ssize_t size = ::read(output_.reader.get(), buffer, sizeof buffer);
    if (size <= 0) break;
    if (output_.backlog.size() < kOutputBacklogMax) output_.backlog.append(buffer, static_cast<std::size_t>(size));
  }
  write_output();
}

// A reader of our output that stands still must not make us stand still: never more than a pipe surely takes.
void Launcher::write_output() {
  while (!output_.backlog.empty()) {
    pollfd entry{STDOUT_FILENO, POLLOUT, 0};
    if (poll(&entry, 1, 0) <= 0 || (entry.revents & POLLOUT) == 0) {
      if ((entry.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) output_.backlog.clear();
      return;
    }
    const ssize_t written =
        ::write(STDOUT_FILENO, output_.backlog.data(), std::min<std::size_t>(output_.backlog.size(), 4096));
    if (written <= 0) return output_.backlog.clear();
    output_.backlog.erase(0, static_cast<std::size_t>(written));
  }
}

void Launcher::restart_what_died() {
  const Duration now = clock_.now();
  for (Node& node : nodes_) {
    if (!node.restart_at || now < *node.restart_at) continue;
    node.restart_at.reset();
    if (Status started = start_keeper(node); !started) say(started.error().what);
    write_record();
  }
  if (control_restart_at_ && now >= *control_restart_at_) {
    control_restart_at_.reset();
    if (Status started = start_control(); !started) say(started.error().what);
    write_record();
  }
}

// "0-99,104,101": in the order given; five and more that follow one another are a range.
std::string nodes_text(const std::vector<NodeId>& nodes) {
  std::string out;
  for (std::size_t first = 0; first < nodes.size();) {
    std::size_t end = first + 1;
    while (end < nodes.size() && nodes[end].value == nodes[end - 1].value + 1) ++end;
    const bool range = end - first >= 5;
    out += text(out.empty() ? "" : ",", nodes[first]);
    if (range) out += text("-", nodes[end - 1]);
    first = range ? end : first + 1;
  }
  return out;
}

std::string members_text(const JobState& state) {
  std::vector<NodeId> members;
  for (const Member& member : state.seats)
    if (members.empty() || members.back() != member.life.node) members.push_back(member.life.node);
  return nodes_text(members);
}

// `nodes_return`: dead nodes are started again without anybody's help.
std::string describe(const JobState& state, bool nodes_return) {
  std::string line = text("generation ", state.generation, " ", name_of(state.phase));
  if (state.phase == JobPhase::running)
    return text(line, " from step ", state.resume, " on nodes ", members_text(state));
  if (state.phase == JobPhase::quiescing && !state.causes.empty()) {
    const Cause& cause = state.causes.back();
    line += text(": ", name_of(cause.kind));
    if (cause.node) line += text(" node ", cause.node->node);
    if (cause.seat) line += text(" seat ", *cause.seat);
  }
  if (state.phase == JobPhase::restoring) line += text(" step ", state.resume);
  if (!state.waiting.empty()) line += text(", waiting for ", state.waiting);
  if (!nodes_return && state.waiting.starts_with("a spare"))
    line += " (start `pawl run` on another machine, or again on this one, with the same flags and a free --node-rank)";
  if (!state.verdict.empty()) line += text(": ", state.verdict);
  return line;
}

std::string what_is_missing(const JobSeen& seen, const JobSpec& spec, bool sees_all) {
  std::vector<NodeId> registered = seen.registered;
  std::sort(registered.begin(), registered.end());  // keys come in the order of their texts: 10 before 2
  const std::string there = nodes_text(registered);
  if (!seen.unhealthy.empty()) {
    const auto& [node, why] = *seen.unhealthy.begin();
    return text("waiting for sound nodes: node ", node, " gets no seat: ", why);
  }
  if (!sees_all) return "waiting for nodes and their trainers; `pawl run` of node 0 names those that have registered";
  if (seen.registered.size() >= spec.node_count)
    return text("waiting for trainers: nodes ", there, " are ready, their trainers have not all called pawl yet");
  return text("waiting for nodes: ", seen.registered.size(), " of ", spec.node_count, " have registered",
              there.empty() ? "" : " (", there, there.empty() ? "" : ")");
}

void Launcher::tell_people() {
  if (!watch_) return;
  const JobSeen seen = watch_->seen();
  const Duration now = clock_.now();
  if (std::exchange(said_.described, seen.state) != seen.state)
    said_.description = seen.state ? describe(*seen.state, plan_.restart_dead_nodes) : "";
  const std::string& state = said_.description;
  const bool ended = seen.state && (seen.state->phase == JobPhase::finished || seen.state->phase == JobPhase::failed);
  if (ended && !job_ended_) {
    job_ended_ = true;
    for (Node& node : nodes_) node.restart_at.reset();
    stop_at_ = now + end_patience(seen.state->phase == JobPhase::finished);
  }
  if (!state.empty() && state != said_.state) {
    say(state);
    said_.state = state;
    said_.at = now;
  }
  tell_of_recoveries();
  if (now - said_.at < kSayEvery || job_ended_ || interrupts_.count > 0) return;
  said_.at = now;
  if (!seen.answered && !seen.why_not.empty())
    say(text("control ", plan_.own_endpoints, ": ", seen.why_not));
  else if (!seen.state || seen.state->phase == JobPhase::forming)
    say(what_is_missing(seen, plan_.spec, watch_->reads_all()));
  else if (!seen.state->waiting.empty())
    say(state);
}

void Launcher::tell_of_recoveries() {
  for (const json& event : watch_->take_events())
    if (const auto sentence = tally_.note(event)) say(*sentence);
}

bool Launcher::over() const {
  return std::none_of(nodes_.begin(), nodes_.end(),
                      [](const Node& node) { return node.running || node.restart_at.has_value(); });
}

void Launcher::turn() {
  std::vector<pollfd> polled;
  polled.push_back({signals_.get(), POLLIN, 0});
  polled.push_back({output_.reader.get(), POLLIN, 0});
  polled.push_back({control_running_ ? control_process_.pidfd.get() : -1, POLLIN, 0});
  for (const Node& node : nodes_) polled.push_back({node.running ? node.keeper.pidfd.get() : -1, POLLIN, 0});
  if (poll(polled.data(), polled.size(), output_.backlog.empty() ? 100 : 10) < 0) return;
  if (polled[0].revents != 0) on_signal();
  if (polled[1].revents != 0) on_output();
  if (polled[2].revents != 0) on_control_exit();
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (polled[3 + i].revents != 0) on_keeper_exit(nodes_[i]);
  write_output();
  restart_what_died();
  tell_people();
  if (!stop_at_ || clock_.now() < *stop_at_) return;
  signal_keepers(job_ended_ && interrupts_.count == 0 && !broken_ ? SIGTERM : SIGKILL);
  broken_ = true;
  stop_at_ = clock_.now() + kStopGrace;
}

// Of a control that ends with us nobody can ask for them later. Best effort.
void Launcher::keep_events() const {
  if (!control_running_ || !control_ || interrupts_.count > 1) return;
  const Result<Listing> events = control_->list(JobKeys(plan_.spec.job).events());
  if (!events || events->kvs.empty()) return;
  std::string lines;
  for (const KeyValue& kv : events->kvs) lines += kv.value + "\n";
  (void)write_file_atomically(join_path(plan_.directory, kEventsFile), lines);
}

void Launcher::stop_control() {
  if (!control_running_) return;
  (void)send_signal(control_process_.pidfd.get(), interrupts_.count > 1 ? SIGKILL : SIGTERM);
  if (wait_exit(control_process_.pidfd.get(), Deadline::in(seconds(3)))) return;
  (void)send_signal(control_process_.pidfd.get(), SIGKILL);
  (void)wait_exit(control_process_.pidfd.get(), Deadline::in(seconds(5)));
}

// What became of the job, once every node has ended.
int Launcher::conclude() {
  on_output();
  for (int i = 0; i < 100 && !output_.backlog.empty(); ++i) {
    real_clock().sleep(milliseconds(10));
    write_output();
  }
  int code = kExitFailed;
  if (watch_) tell_of_recoveries();
  if (const std::string totals = tally_.totals(); !totals.empty()) say(totals);
  if (interrupts_.count > 0) {
    if (const JobSeen last = watch_ ? watch_->look() : JobSeen(); last.state) {
      const std::string state = describe(*last.state, plan_.restart_dead_nodes);
      if (!state.empty() && state != said_.state) say(state);
    }
    code = 130;
  } else if (watch_) {
    const JobSeen last = watch_->look();
    const std::string state = last.state ? describe(*last.state, plan_.restart_dead_nodes) : "";
    if (!state.empty() && state != said_.state) say(state);
    if (last.state && last.state->phase == JobPhase::finished)
      code = tally_.failed_after_all() || failed_here_ ? kExitFailed : kExitOk;
    else if (!last.state || last.state->phase != JobPhase::failed)
      say("every node on this machine has ended, but the job has not; look for an error in the nodes' logs");
  }
  return code;
}

int Launcher::run() {
  int code = kExitFailed;
  bool nothing_ran = false;
  if (Status begun = begin(); !begun) {
    code = report_error(begun.error());
    nothing_ran = over() && plan_.control_argv.empty();
    signal_keepers(SIGKILL);
    for (Node& node : nodes_)
      if (node.running) (void)wait_exit(node.keeper.pidfd.get(), Deadline::in(seconds(5)));
  } else {
    const SignOfLife sign(plan_.directory);
    say(text("job ", plan_.spec.job, ": ", plan_.nodes.size(), plan_.nodes.size() == 1 ? " node" : " nodes",
             " on this machine; run directory ", plan_.directory));
    while (!over()) turn();
    code = conclude();
  }
  watch_.reset();
  keep_events();
  control_.reset();
  stop_control();
  const bool clean = code == kExitOk || code == 130;
  if (nothing_ran) {
    if (Status removed = remove_tree(run_root(), plan_.directory); !removed) say(removed.error().what);
    return code;
  }
  ::unlink(join_path(plan_.directory, "launcher.json").c_str());
  if (clean && !plan_.keep) keep_logs_only(plan_.directory);
  say(text("logs are kept in ", plan_.directory));
  return code;
}

}  // namespace

int launch(const LaunchPlan& plan) {
  return Launcher(plan).run();
}

}  // namespace pawl::job
