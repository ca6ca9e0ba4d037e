#include "job/daemon/keeper_earlier_life.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "base/text.h"
#include "env/fd.h"
#include "env/files.h"
#include "env/process.h"

namespace pawl::job {
namespace {

std::vector<StartedProcess> read_started(const std::string& path) {
  std::vector<StartedProcess> processes;
  std::istringstream words(read_file(path, 1 << 20).value_or(""));
  for (StartedProcess one; words >> one.pid >> one.start_time;) processes.push_back(one);
  return processes;
}

}  // namespace

Status note_started(const std::string& path, std::span<const StartedProcess> processes) {
  std::string lines;
  for (const StartedProcess& one : processes) lines += text(one.pid, " ", one.start_time, "\n");
  const std::string temporary = path + ".tmp";
  const Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return system_error(text("note processes in ", temporary), errno);
  const ssize_t written = ::write(fd.get(), lines.data(), lines.size());
  if (written != static_cast<ssize_t>(lines.size()) || ::rename(temporary.c_str(), path.c_str()) != 0)
    return system_error(text("note processes in ", path), written < 0 ? errno : ENOSPC);
  return {};
}

std::vector<pid_t> kill_earlier(const std::string& path, std::string_view mark) {
  std::vector<pid_t> left;
  for (const StartedProcess& leader : read_started(path)) {
    const bool leads = is_alive(leader.pid, leader.start_time);  // then the whole group is still its own
    for (const pid_t member : processes_of_group(leader.pid)) {
      const Result<Fd> pidfd = open_pidfd(member);  // asked again from here on: the number stays this process's
      if (!pidfd || process_group(member).value_or(0) != leader.pid) continue;
      if (!leads && !was_started_with(member, mark)) continue;
      (void)send_signal(pidfd->get(), SIGKILL);
      left.push_back(member);
    }
  }
  return left;
}

}  // namespace pawl::job
