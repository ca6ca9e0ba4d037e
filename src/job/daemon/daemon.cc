// The one place where pawld meets the real world: descriptors from the keeper, the real environment, etcd's protocol.
#include "job/daemon/daemon.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

#include "base/log.h"
#include "base/text.h"
#include "env/end_signals.h"
#include "env/process.h"
#include "job/daemon/pawld.h"
#include "job/daemon/pawld_death.h"
#include "job/persist/checkpoint_places.h"

namespace pawl::job {
namespace {

constexpr auto kControlDeadline = std::chrono::milliseconds(2000);
constexpr auto kProbeDeadline = std::chrono::seconds(60);

// `pawl run --health-check`: sound if it ends with 0 in time. What it writes goes where pawld's log goes.
Status run_probe(const std::string& command, std::uint32_t node) {
  SpawnOptions options;
  options.argv = {"/usr/bin/env", text("PAWL_NODE=", node), "/bin/sh", "-c", command};
  options.stdout_fd = STDERR_FILENO;
  options.new_process_group = true;
  options.parent_death_signal = SIGKILL;
  PAWL_ASSIGN(const Process process, spawn(options));
  Result<Exit> exit = wait_exit(process.pidfd.get(), Deadline::in(kProbeDeadline));
  const bool late = !exit && exit.error().code == Code::timeout;
  ::kill(-process.pid, SIGKILL);  // and what it has left behind
  if (late) (void)wait_exit(process.pidfd.get(), Deadline::in(kProbeDeadline));
  if (late) return Error{Code::timeout, text("`", command, "` did not end within ", kProbeDeadline.count(), " s")};
  if (!exit) return exit.error();
  if (exit->clean()) return {};
  return Error{Code::io, text("`", command, "` ", exit->describe())};
}

// What the keeper has written into it to its end.
std::string text_of(const Fd& pipe) {
  std::string found;
  char some[512];
  for (ssize_t count = 0; (count = ::read(pipe.get(), some, sizeof some)) > 0;)
    found.append(some, static_cast<std::size_t>(count));
  return found;
}

// `environment` outlives what it returns.
DaemonLines lines_of(const DaemonOptions& options, const Environment& environment) {
  DaemonLines lines;
  lines.keeper = real_stream(Fd(options.keeper_fd));
  lines.peers = real_listener(Fd(options.listen_fd));
  lines.trainers = real_listener(Fd(options.local_fd));
  for (const auto& [name, fd] : options.held) lines.held.emplace_back(name, Fd(fd));
  if (options.token_fd >= 0) lines.token = text_of(Fd(options.token_fd));
  lines.connect_control = [endpoints = options.control, &environment](const std::string& token) {
    return connect_control(endpoints, {.deadline = kControlDeadline, .token = token, .environment = &environment});
  };
  lines.checkpoints = checkpoint_store_by_path();
  lines.exit = [](int code) { _exit(code); };
  if (const char* command = std::getenv("PAWL_HEALTH_CHECK"); command != nullptr && *command != '\0')
    lines.probe = [command = std::string(command), node = options.node] { return run_probe(command, node); };
  return lines;
}

}  // namespace

int run_daemon(const DaemonOptions& options) {
  (void)allow_many_files();
  signal(SIGPIPE, SIG_IGN);
  log_to(STDERR_FILENO, LogLevel::info, text("node=", options.node));
  // A job that is told to end writes a last checkpoint first: when this daemon ends is its keeper's to say.
  if (Status heeded = on_end_signal(dies_with_its_parent(), [](int signal) { _exit(128 + signal); }); !heeded)
    log_warn("signals_not_heeded", "why", heeded.error().what);
  const Environment& environment = real_environment();
  if (options.death_fd >= 0)
    if (Status shown = show_death(environment, Fd(options.death_fd)); !shown)
      log_warn("death_not_shown", "why", shown.error().what);
  Pawld daemon(options, lines_of(options, environment), environment);
  if (Status started = daemon.start(); !started) {
    log_error("daemon_failed", "why", started.error().what);
    return 1;
  }
  const int code = daemon.run();
  _exit(code);  // streams may still stand in system calls; the kernel closes them, the keeper holds the memory
}

}  // namespace pawl::job
