// `pawl keeper` and `pawl daemon`: started by `pawl run` and by the keeper, not by people.
#include <chrono>
#include <sstream>

#include "base/log.h"
#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/namespaces.h"
#include "env/files.h"
#include "job/daemon/daemon.h"
#include "job/daemon/keeper.h"
#include "job/recovery/deadlines.h"

namespace pawl::job {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream words(line);
  std::vector<std::string> out;
  for (std::string word; words >> word;) out.push_back(word);
  return out;
}

int keeper_failed(const KeeperCommandOptions& options, const Error& error) {
  say(text("node ", options.node, ": ", error.what));
  return kExitKeeper;
}

}  // namespace

int command_keeper(const KeeperCommandOptions& options) {
  if (options.netns_fd >= 0) {
    const NodeNamespaces namespaces{options.netns_fd, text("node-", options.node), options.hosts_file};
    if (Status entered = enter_node_namespaces(namespaces); !entered) return keeper_failed(options, entered.error());
  }
  Result<Address> listen = Address::parse(options.listen);
  if (!listen) return usage_error(listen.error().what);
  KeeperOptions keeper;
  keeper.node = NodeId(options.node);
  keeper.job = options.job;
  keeper.control = options.control;
  keeper.run_dir = options.run_dir;
  keeper.listen = std::move(listen).value();
  keeper.seats_per_node = options.seats_per_node;
  keeper.domain = options.domain;
  const Deadlines deadlines = derive_deadlines(std::chrono::milliseconds(options.deadline_ms));
  keeper.silence = deadlines.silence;
  keeper.lease = deadlines.lease;
  keeper.daemon_silence = keeper.silence / 2;  // a new pawld must be up before the neighbours give the node up
  keeper.daemon_argv = words_of(options.daemon_command);
  if (keeper.daemon_argv.empty()) keeper.daemon_argv = {"/proc/self/exe", "daemon"};
  keeper.trainer_argv = options.command;
  keeper.stop_grace = std::chrono::milliseconds(options.grace_ms);
  keeper.log_dir = options.log_dir;
  keeper.tee = options.tee;
  keeper.tee_fd = options.tee_fd;
  const Result<int> code = run_keeper(keeper);
  if (!code) return keeper_failed(options, code.error());
  return *code;
}

int command_daemon(const DaemonCommandOptions& options) {
  DaemonOptions daemon;
  daemon.node = options.node;
  daemon.incarnation = options.incarnation;
  daemon.job = options.job;
  daemon.control = options.control;
  daemon.address = options.address;
  daemon.lifeline = options.lifeline;
  daemon.domain = options.domain;
  daemon.run_dir = options.run_dir;
  daemon.keeper_fd = options.keeper_fd;
  daemon.listen_fd = options.listen_fd;
  daemon.local_fd = options.local_fd;
  daemon.token_fd = options.token_fd;
  daemon.death_fd = options.death_fd;
  daemon.seats_per_node = options.seats_per_node;
  std::istringstream items(options.held);
  for (std::string item; std::getline(items, item, ',');) {
    const std::size_t colon = item.rfind(':');
    std::uint32_t fd = 0;
    if (colon == std::string::npos || !parse_number(std::string_view(item).substr(colon + 1), fd))
      return usage_error(text("--held ", item, ": expected NAME:FD"));
    daemon.held.emplace_back(item.substr(0, colon), static_cast<int>(fd));
  }
  return run_daemon(daemon);
}

}  // namespace pawl::job
