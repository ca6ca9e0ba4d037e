#include "socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace charlm {
namespace {

using Clock = std::chrono::steady_clock;
using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr std::chrono::milliseconds kSlice{100};  // how often a wait says that it is still there

Outcome system_failed(const std::string& what, int cause) {
  return Outcome::failed(what + ": " + std::strerror(cause));
}

std::string text_of(const Address& address) {
  return address.host + " port " + address.port;
}

Outcome find(const Address& address, int flags, Found* found) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &list);
  if (error != 0) return Outcome::failed("address " + text_of(address) + ": " + gai_strerror(error));
  found->reset(list);
  return {};
}

void set_no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Waits until one of `polled` (the last is the watch's) is ready, `deadline` passes, or we are called back.
Outcome wait_ready(pollfd* polled, nfds_t count, Watch& watch, Clock::time_point deadline) {
  polled[count - 1] = {watch.event_fd(), POLLIN, 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Outcome::failed("nothing arrived in time");
    const int ready = poll(polled, count, static_cast<int>(std::min(left, kSlice).count()));
    if (ready < 0 && errno != EINTR) return system_failed("poll", errno);
    watch.still_waiting();
    if (watch.interrupted()) return Outcome::interrupted();
    for (nfds_t i = 0; ready > 0 && i + 1 < count; ++i) {
      if (polled[i].revents != 0) return {};
    }
  }
}

Outcome wait_one(int fd, short events, Watch& watch, Clock::time_point deadline) {
  pollfd polled[2] = {{fd, events, 0}, {}};
  return wait_ready(polled, 2, watch, deadline);
}

Outcome connect_once(const Address& address, Watch& watch, Clock::time_point deadline, Socket* connected) {
  Found found(nullptr, &freeaddrinfo);
  CHARLM_TRY(find(address, 0, &found));
  Outcome last = Outcome::failed("no address for " + text_of(address));
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    Socket socket(::socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.open()) return system_failed("socket", errno);
    if (connect(socket.fd(), each->ai_addr, each->ai_addrlen) != 0) {
      if (errno != EINPROGRESS) {
        last = system_failed("connect to " + text_of(address), errno);
        continue;
      }
      CHARLM_TRY(wait_one(socket.fd(), POLLOUT, watch, deadline));
      int cause = 0;
      socklen_t size = sizeof cause;
      getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &cause, &size);
      if (cause != 0) {
        last = system_failed("connect to " + text_of(address), cause);
        continue;
      }
    }
    set_no_delay(socket.fd());
    *connected = std::move(socket);
    return {};
  }
  return last;
}

// Moves what can be moved now. Sets `moved` if anything was.
Outcome send_some(Exchange& exchange, bool* moved) {
  while (exchange.out_bytes > 0) {
    const ssize_t sent = send(exchange.to->fd(), exchange.out, exchange.out_bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return {};
    if (sent < 0) return system_failed("send", errno);
    *moved = true;
    exchange.out = static_cast<const char*>(exchange.out) + sent;
    exchange.out_bytes -= static_cast<std::size_t>(sent);
  }
  return {};
}

Outcome receive_some(Exchange& exchange, bool* moved) {
  while (exchange.in_bytes > 0) {
    const ssize_t got = recv(exchange.from->fd(), exchange.in, exchange.in_bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return {};
    if (got < 0) return system_failed("receive", errno);
    if (got == 0) return Outcome::failed("the other side has closed the connection");
    *moved = true;
    exchange.in = static_cast<char*>(exchange.in) + got;
    exchange.in_bytes -= static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  other.close();
  return *this;
}

bool Socket::gone() const {
  pollfd polled{fd_, POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Outcome listen_on(const Address& address, Socket* listener, Address* bound) {
  Found found(nullptr, &freeaddrinfo);
  CHARLM_TRY(find(address, AI_PASSIVE, &found));
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return system_failed("socket", errno);
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket.fd(), found->ai_addr, found->ai_addrlen) != 0 || listen(socket.fd(), 128) != 0) {
    return system_failed("listen on " + text_of(address), errno);
  }
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&name), &size);
  const auto port = name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                               : reinterpret_cast<sockaddr_in*>(&name)->sin_port;
  *bound = {address.host, std::to_string(ntohs(port))};
  *listener = std::move(socket);
  return {};
}

Outcome accept_from(const Socket& listener, Watch& watch, std::chrono::milliseconds deadline, Socket* accepted) {
  const auto until = Clock::now() + deadline;
  for (;;) {
    CHARLM_TRY(wait_one(listener.fd(), POLLIN, watch, until));
    Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
      return system_failed("accept", errno);
    }
    set_no_delay(socket.fd());
    *accepted = std::move(socket);
    return {};
  }
}

Outcome connect_to(const Address& address, Watch& watch, ConnectOptions options, Socket* connected) {
  const auto until = Clock::now() + options.deadline;
  for (;;) {
    Outcome outcome = connect_once(address, watch, until, connected);
    if (outcome.kind != Outcome::Kind::failed || !options.patient || Clock::now() >= until) return outcome;
    pollfd nobody[1];
    const Outcome pause = wait_ready(nobody, 1, watch, std::min(until, Clock::now() + std::chrono::milliseconds(20)));
    if (pause.kind == Outcome::Kind::interrupted) return pause;
  }
}

Outcome exchange(Exchange exchange, Watch& watch, std::chrono::milliseconds silence_max) {
  auto until = Clock::now() + silence_max;
  for (;;) {
    bool moved = false;
    CHARLM_TRY(receive_some(exchange, &moved));
    CHARLM_TRY(send_some(exchange, &moved));
    if (exchange.out_bytes == 0 && exchange.in_bytes == 0) return {};
    if (moved) until = Clock::now() + silence_max;
    // One entry per direction; poll skips a negative descriptor. Data that comes before we ask for it can wait.
    pollfd polled[3] = {{exchange.in_bytes > 0 ? exchange.from->fd() : -1, POLLIN, 0},
                        {exchange.out_bytes > 0 ? exchange.to->fd() : -1, POLLOUT, 0},
                        {}};
    CHARLM_TRY(wait_ready(polled, 3, watch, until));
  }
}

}  // namespace charlm
