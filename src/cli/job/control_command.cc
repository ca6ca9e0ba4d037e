// `pawl control`: the embedded control server as a process of its own, until SIGTERM.
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "base/log.h"
#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/run_directory.h"
#include "env/end_signals.h"
#include "env/fd.h"
#include "env/process.h"
#include "job/control/server.h"

namespace pawl::job {

int command_control(const ControlCommandOptions& options) {
  const std::uint64_t files_max = allow_many_files();
  ControlServerOptions server;
  server.addresses.clear();
  std::istringstream addresses(options.listen);
  for (std::string address; std::getline(addresses, address, ',');)
    if (!address.empty()) server.addresses.push_back(address);
  server.data_directory = options.data_dir;
  if (!options.token_file.empty()) {
    Result<std::string> token = read_token(options.token_file);
    if (!token) return report_error(token.error());
    server.token = std::move(token).value();
  }
  const Fd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return report_error(system_error("control: eventfd", errno));
  // What it holds is all that a job knows: one that `pawl run` has started serves until that says so.
  const Status heeded = on_end_signal(dies_with_its_parent(), [fd = stop.get()](int) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
  });
  if (!heeded) return report_error(heeded.error());
  log_to(2, LogLevel::info, "control");
  const Status served = run_control_server(server, stop.get(), [files_max](const std::vector<std::string>& ready) {
    std::string all;
    for (const std::string& address : ready) all += text(all.empty() ? "" : ",", address);
    log_info("control_serves", "addresses", all, "files_max", files_max);
  });
  if (!served) return report_error(served.error());
  return kExitOk;
}

}  // namespace pawl::job
