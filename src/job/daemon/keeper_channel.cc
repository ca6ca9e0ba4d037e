#include "job/daemon/keeper_channel.h"

#include <sstream>

#include "base/log.h"
#include "env/network.h"

namespace pawl::job {

using namespace std::chrono_literals;

KeeperChannel::KeeperChannel(Loop& loop, int fd, Handlers handlers)
    : loop_(loop), fd_(fd), handlers_(std::move(handlers)) {
  loop_.watch(fd_.get(), kRead, [this](const Ready&) { read(); });
}

void KeeperChannel::hold(const std::string& name, int fd) {
  const int fds[] = {fd};
  say("hold " + name, fds);
}
void KeeperChannel::drop(const std::string& name) {
  say("drop " + name);
}
void KeeperChannel::kill_trainer(std::uint32_t local_index) {
  say(text("kill ", local_index));
}
void KeeperChannel::alive(Duration renewed) {
  say(text("alive ", renewed.count()));
}
void KeeperChannel::reset(const std::string& reason) {
  say("reset " + reason);
}
void KeeperChannel::end(int code) {
  say(text("end ", code));
}

void KeeperChannel::spawn_trainer(std::uint32_t local_index, std::span<const std::string> environment) {
  std::string message = text("spawn ", local_index);
  for (const std::string& variable : environment) message += "\n" + variable;
  say(message);
}

void KeeperChannel::say(std::string_view message, std::span<const int> fds) {
  const Status sent = send_with_fds(fd_.get(), std::as_bytes(std::span(message)), fds, Deadline::in(1s));
  if (!sent) {
    log_error("keeper_lost", "why", sent.error().what);
    handlers_.lost();
  }
}

void KeeperChannel::read() {
  std::byte buffer[4096];
  auto got = try_receive(fd_.get(), buffer);
  if (!got) return handlers_.lost();
  if (*got == 0) return;
  std::istringstream message(std::string(reinterpret_cast<const char*>(buffer), *got));
  std::string verb;
  std::uint32_t local_index = 0;
  std::uint64_t pid = 0;
  message >> verb >> local_index >> pid;
  if (!message) return;
  if (verb == "spawned") {
    std::uint64_t start_time = 0;
    message >> start_time;
    handlers_.spawned(local_index, pid, start_time);
  } else if (verb == "exited") {
    std::string how;
    std::getline(message >> std::ws, how);
    handlers_.exited(local_index, pid, how);
  }
}

}  // namespace pawl::job
