#include "job/daemon/keeper_channel.h"

#include "base/log.h"

namespace pawl::job {

using namespace std::chrono_literals;

KeeperChannel::KeeperChannel(Loop& loop, std::unique_ptr<Stream> keeper, Handlers handlers)
    : loop_(loop), keeper_(std::move(keeper)), handlers_(std::move(handlers)) {
  loop_.watch(keeper_->handle(), kRead, [this](const Ready&) { read(); });
}

void KeeperChannel::hold(const std::string& name, int fd) {
  const int fds[] = {fd};
  say(HoldSegment{name}, fds);
}
void KeeperChannel::drop(const std::string& name) {
  say(DropSegment{name});
}
void KeeperChannel::spawn_trainer(std::uint32_t local_index, std::span<const std::string> environment) {
  say(SpawnTrainer{local_index, {environment.begin(), environment.end()}});
}
void KeeperChannel::kill_trainer(std::uint32_t local_index) {
  say(KillTrainer{local_index});
}
void KeeperChannel::show_trainer(std::uint32_t local_index, bool shown) {
  say(ShowTrainer{local_index, shown});
}
void KeeperChannel::alive(Duration lease_renewed_boottime) {
  say(PawldAlive{lease_renewed_boottime});
}
void KeeperChannel::fence(const std::string& reason) {
  say(FenceNode{reason});
}
void KeeperChannel::reset(const std::string& reason) {
  say(ResetNode{reason});
}
void KeeperChannel::end(int code) {
  say(EndNode{static_cast<std::uint32_t>(code)});
}

void KeeperChannel::say(const ToKeeper& message, std::span<const int> fds) {
  const std::string packet = packet_of(message);
  const Deadline deadline = Deadline::in(1s, loop_.environment().clock);
  const Status sent = keeper_->send_with_fds(std::as_bytes(std::span(packet)), fds, deadline);
  if (!sent) {
    log_error("keeper_lost", "why", sent.error().what);
    handlers_.lost();
  }
}

void KeeperChannel::read() {
  std::byte buffer[4096];
  for (;;) {
    auto got = keeper_->try_receive(buffer);
    if (!got) return handlers_.lost();
    if (*got == 0) return;
    handle(std::string_view(reinterpret_cast<const char*>(buffer), *got));
  }
}

void KeeperChannel::handle(std::string_view packet) {
  const auto news = parse_from_keeper(packet);
  if (!news) return;
  if (const auto* spawned = std::get_if<TrainerSpawned>(&*news)) {
    handlers_.spawned(spawned->local_index, spawned->pid, spawned->start_time);
  } else if (const auto* exited = std::get_if<TrainerExited>(&*news)) {
    handlers_.exited(*exited);
  } else if (const auto* stop = std::get_if<StopAsked>(&*news)) {
    if (handlers_.stop) handlers_.stop(*stop);
  }
}

}  // namespace pawl::job
