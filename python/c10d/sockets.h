// WatchedSockets: the sockets of one inner group, to be shut down from any thread.
//
// gloo has no call that frees a blocked collective; a socket that is shut down does, in milliseconds, also when the
// peer is stopped or its link is cut. Each gloo device has one event loop (an epoll instance) in which it registers its
// listener and every connection, so the kernel's own list of that loop names exactly the group's sockets at any time:
// also those of a group that is just connecting, and never one of the user's.
//
// Listening sockets are left alone: gloo ends the process when its listener fails. A descriptor that was closed and
// used again since is noticed (the loop by its listener, a connection by its inode) and left alone.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pawl {

class WatchedSockets {
 public:
  // The descriptors of all event loops that this process has now.
  static std::set<int> event_loops();
  // The loop that is not in `before` and watches a listening socket; nothing if there is none (another transport).
  static std::optional<WatchedSockets> made_since(const std::set<int>& before);

  // Any thread; needs no lock of anyone. Returns how many sockets it shut down; 0 also if the loop is gone.
  int shut_down() const;
  // How many connections the loop watches now; nothing if the loop is gone or cannot be asked. gloo takes a connection
  // out of its loop under the lock under which it reads from it: what is not watched is never read again.
  [[nodiscard]] std::optional<int> connections() const;
  // The peers' hosts, one for each connection that the other side has neither closed nor broken; sorted.
  [[nodiscard]] std::vector<std::string> hosts() const;

 private:
  WatchedSockets(int loop, ino_t listener) : loop_(loop), listener_(listener) {}
  // Calls `use` with each connection that is still the one watched; nothing if the loop is gone.
  template <class Use>
  [[nodiscard]] std::optional<int> count(Use use) const;

  int loop_;
  ino_t listener_;
};

}  // namespace pawl
