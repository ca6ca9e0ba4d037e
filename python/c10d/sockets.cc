#include "sockets.h"

#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace pawl {
namespace {

struct Watched {
  int descriptor;
  ino_t inode;
};

// What the kernel says that the event loop watches, line by line in /proc/self/fdinfo.
std::vector<Watched> watched_by(int loop) {
  std::vector<Watched> all;
  const std::string path = "/proc/self/fdinfo/" + std::to_string(loop);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  if (!file) return all;
  char line[256];
  while (std::fgets(line, sizeof line, file.get()) != nullptr) {
    int descriptor = -1;
    unsigned events = 0;
    unsigned long long data = 0;
    long long position = 0;
    unsigned long inode = 0;
    if (std::sscanf(line, "tfd: %d events: %x data: %llx pos:%lld ino:%lx", &descriptor, &events, &data, &position,
                    &inode) == 5) {
      all.push_back({descriptor, inode});
    }
  }
  return all;
}

// A duplicate of the descriptor, if it is still that socket: what is done to the duplicate hits no other file.
class HeldSocket {
 public:
  explicit HeldSocket(const Watched& watched) : descriptor_(::fcntl(watched.descriptor, F_DUPFD_CLOEXEC, 0)) {
    struct stat status;
    if (descriptor_ >= 0 &&
        (::fstat(descriptor_, &status) != 0 || !S_ISSOCK(status.st_mode) || status.st_ino != watched.inode)) {
      ::close(descriptor_);
      descriptor_ = -1;
    }
  }
  ~HeldSocket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  HeldSocket(const HeldSocket&) = delete;
  HeldSocket& operator=(const HeldSocket&) = delete;

  [[nodiscard]] bool held() const { return descriptor_ >= 0; }
  // Also true where it cannot be told: such a socket must not be touched.
  [[nodiscard]] bool listens() const {
    int value = 0;
    socklen_t size = sizeof value;
    return ::getsockopt(descriptor_, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) != 0 || value != 0;
  }
  // As a number; empty if the other side has closed the connection, or it is broken.
  [[nodiscard]] std::string peer_host() const {
    pollfd polled{descriptor_, POLLRDHUP, 0};
    if (::poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) return "";
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    char host[NI_MAXHOST];
    if (::getpeername(descriptor_, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
        ::getnameinfo(reinterpret_cast<sockaddr*>(&peer), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
      return "";
    return host;
  }
  [[nodiscard]] bool shut_down() const { return ::shutdown(descriptor_, SHUT_RDWR) == 0; }

 private:
  int descriptor_;
};

}  // namespace

std::set<int> WatchedSockets::event_loops() {
  std::set<int> loops;
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc/self/fd"), ::closedir);
  if (!directory) return loops;
  while (const dirent* entry = ::readdir(directory.get())) {
    char target[64];
    const ssize_t size = ::readlinkat(::dirfd(directory.get()), entry->d_name, target, sizeof target - 1);
    if (size <= 0) continue;
    target[size] = '\0';
    if (std::strcmp(target, "anon_inode:[eventpoll]") == 0) loops.insert(std::atoi(entry->d_name));
  }
  return loops;
}

std::optional<WatchedSockets> WatchedSockets::made_since(const std::set<int>& before) {
  for (const int loop : event_loops()) {
    if (before.count(loop) != 0) continue;
    for (const Watched& watched : watched_by(loop)) {
      const HeldSocket socket(watched);
      if (socket.held() && socket.listens()) return WatchedSockets(loop, watched.inode);
    }
  }
  return std::nullopt;
}

template <class Use>
std::optional<int> WatchedSockets::count(Use use) const {
  const std::vector<Watched> all = watched_by(loop_);
  bool ours = false;
  for (const Watched& watched : all) ours = ours || watched.inode == listener_;
  if (!ours) return std::nullopt;
  int count = 0;
  for (const Watched& watched : all) {
    const HeldSocket socket(watched);
    if (socket.held() && !socket.listens() && use(socket)) ++count;
  }
  return count;
}

int WatchedSockets::shut_down() const {
  return count([](const HeldSocket& socket) { return socket.shut_down(); }).value_or(0);
}

std::vector<std::string> WatchedSockets::hosts() const {
  std::vector<std::string> hosts;
  (void)count([&](const HeldSocket& socket) {
    std::string host = socket.peer_host();
    if (!host.empty()) hosts.push_back(std::move(host));
    return true;
  });
  std::sort(hosts.begin(), hosts.end());
  return hosts;
}

std::optional<int> WatchedSockets::connections() const {
  return count([](const HeldSocket&) { return true; });
}

}  // namespace pawl
