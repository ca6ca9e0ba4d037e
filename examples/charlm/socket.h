// Sockets that never block for good: each wait polls beside them the descriptor by which pawl calls us back.
//
// Every wait ends by its work, by Watch::interrupted (within milliseconds), by the other side's end or by a deadline.
// No signal (MSG_NOSIGNAL), no exception. One thread per socket.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "outcome.h"

namespace charlm {

// What a waiting thread looks at besides its sockets. Without pawl: Watch itself, which never interrupts.
class Watch {
 public:
  virtual ~Watch() = default;
  // Readable when interrupted() may have changed; -1: none.
  [[nodiscard]] virtual int event_fd() const { return -1; }
  // Takes what is readable from event_fd; true: leave the wait.
  [[nodiscard]] virtual bool interrupted() { return false; }
  // Called several times a second while a wait lasts.
  virtual void still_waiting() {}
};

// Nothing arriving for so long within a wait is a failure. Under pawl a recovery comes far sooner.
inline constexpr std::chrono::seconds kSilenceMax{120};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  [[nodiscard]] bool gone() const;  // the other side has closed it, or it is broken
  void close();

 private:
  int fd_ = -1;
};

// host is a numeric IPv4 or IPv6 address or a name; port is decimal.
struct Address {
  std::string host;
  std::string port;
};

// Listens; with port "0" on one that the system chooses. `bound` gets the real port.
Outcome listen_on(const Address& address, Socket* listener, Address* bound);
// The next connection.
Outcome accept_from(const Socket& listener, Watch& watch, std::chrono::milliseconds deadline, Socket* accepted);
// Connects; where nobody listens yet, tries again until the deadline if `patient`.
struct ConnectOptions {
  std::chrono::milliseconds deadline{10000};
  bool patient = false;
};
Outcome connect_to(const Address& address, Watch& watch, ConnectOptions options, Socket* connected);

// Sends all of `out` to one socket while receiving all of `in` from another (or the same); either may be empty.
struct Exchange {
  const Socket* to = nullptr;
  const void* out = nullptr;
  std::size_t out_bytes = 0;
  const Socket* from = nullptr;
  void* in = nullptr;
  std::size_t in_bytes = 0;
};
Outcome exchange(Exchange exchange, Watch& watch, std::chrono::milliseconds silence_max = kSilenceMax);

}  // namespace charlm
