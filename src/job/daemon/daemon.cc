// The one place where pawld meets the real world: descriptors from the keeper, the real environment, etcd's protocol.
#include "job/daemon/daemon.h"

#include <unistd.h>

#include <chrono>
#include <csignal>

#include "base/log.h"
#include "job/daemon/pawld.h"

namespace pawl::job {
namespace {

constexpr auto kControlDeadline = std::chrono::milliseconds(2000);

// `environment` outlives what it returns.
DaemonLines lines_of(const DaemonOptions& options, const Environment& environment) {
  DaemonLines lines;
  lines.keeper = real_stream(Fd(options.keeper_fd));
  lines.peers = real_listener(Fd(options.listen_fd));
  lines.trainers = real_listener(Fd(options.local_fd));
  for (const auto& [name, fd] : options.held) lines.held.emplace_back(name, Fd(fd));
  lines.connect_control = [endpoints = options.control, &environment](const std::string& token) {
    return connect_control(endpoints, {.deadline = kControlDeadline, .token = token, .environment = &environment});
  };
  lines.exit = [](int code) { _exit(code); };
  return lines;
}

}  // namespace

int run_daemon(const DaemonOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  log_to(STDERR_FILENO, LogLevel::info, text("node=", options.node));
  const Environment& environment = real_environment();
  Pawld daemon(options, lines_of(options, environment), environment);
  if (Status started = daemon.start(); !started) {
    log_error("daemon_failed", "why", started.error().what);
    return 1;
  }
  const int code = daemon.run();
  _exit(code);  // streams may still stand in system calls; the kernel closes them, the keeper holds the memory
}

}  // namespace pawl::job
