#include "env/network.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/text.h"

namespace pawl {
namespace {

constexpr int kSocketFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

Code code_of(int errno_value) {
  switch (errno_value) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ENOTCONN:
    case ESHUTDOWN:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
      return Code::unreachable;
    case ETIMEDOUT:
      return Code::timeout;
    case EADDRINUSE:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EINVAL:
      return Code::invalid;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return Code::full;
    case ENOENT:
      return Code::not_found;
    default:
      return Code::io;
  }
}

Error network_error(std::string_view what, int errno_value) {
  const char* name = strerrorname_np(errno_value);
  return Error{code_of(errno_value),
               text(what, ": ", strerrordesc_np(errno_value), " (", name != nullptr ? name : "errno", ")")};
}

Error end_of_stream() {
  return Error{Code::unreachable, "closed by the other side (EOF)"};
}

void set_option(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

// A path that swallows everything, of this connection alone: who waits at its end learns it within a quarter of a minute,
// where nothing is acknowledged, and also where nothing is being sent.
constexpr int kSilenceMaxS = 15;
constexpr int kProbeEveryS = 5;

void tune_tcp(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceMaxS * 1000);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kProbeEveryS);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kSilenceMaxS / kProbeEveryS);
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> look_up(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const char* host = address.host.empty() ? nullptr : address.host.c_str();
  if (const int error = getaddrinfo(host, text(address.port).c_str(), &hints, &found); error != 0) {
    const Code code = error == EAI_AGAIN ? Code::unreachable : Code::invalid;
    return Error{code, text("look up ", address, ": ", error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error))};
  }
  return AddressList(found, &freeaddrinfo);
}

Result<Fd> start_connect(const addrinfo& to, const Address& address) {
  Fd fd(socket(to.ai_family, kSocketFlags, 0));
  if (!fd.valid()) return network_error(text("connect to ", address), errno);
  tune_tcp(fd.get());
  if (connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS && errno != EINTR)
    return network_error(text("connect to ", address), errno);
  return fd;
}

Result<Fd> listen_at(const addrinfo& at, const Address& address, int backlog) {
  Fd fd(socket(at.ai_family, kSocketFlags, 0));
  if (!fd.valid()) return network_error(text("listen on ", address), errno);
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  tune_tcp(fd.get());
  if (bind(fd.get(), at.ai_addr, at.ai_addrlen) != 0 || listen(fd.get(), backlog) != 0)
    return network_error(text("listen on ", address), errno);
  return fd;
}

Result<Address> address_of(const sockaddr_storage& storage) {
  char host[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
    return Address{host, ntohs(v4->sin_port)};
  }
  if (storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
    return Address{host, ntohs(v6->sin6_port)};
  }
  return Error{Code::invalid, "not a TCP socket"};
}

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return Error{Code::invalid, text("socket path ", path, ": ", path.size(), " bytes, where 1 to ",
                                     sizeof address.sun_path - 1, " are possible: use a shorter directory")};
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

enum class Answer { none, alive };

// Whether anybody listens on the socket file at `address`.
Result<Answer> probe_unix(const sockaddr_un& address) {
  Fd probe(socket(AF_UNIX, kSocketFlags, 0));
  if (!probe.valid()) return network_error("probe", errno);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return Answer::alive;
  if (errno == EAGAIN) return Answer::alive;  // alive, with its backlog full
  if (errno == ECONNREFUSED || errno == ENOENT) return Answer::none;
  return network_error("probe", errno);
}

Status remove_stale_socket(const std::string& path, const sockaddr_un& address) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return {};
  if (!S_ISSOCK(found.st_mode)) return Error{Code::invalid, "something that is not a socket is there"};
  PAWL_ASSIGN(const Answer answer, probe_unix(address));
  if (answer == Answer::alive) return Error{Code::invalid, "another process listens there"};
  unlink(path.c_str());
  return {};
}

Status wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int count = poll(&entry, 1, deadline.left_for_poll_ms());
    if (count > 0) return {};
    if (count < 0 && errno != EINTR) return network_error("wait", errno);
    if (deadline.passed()) return Error{Code::timeout, "the deadline passed"};
  }
}

bool would_block(int errno_value) {
  return errno_value == EAGAIN || errno_value == EWOULDBLOCK;
}

// One sendmsg; 0: the socket is full.
Result<std::size_t> send_message(int fd, const msghdr& message) {
  for (;;) {
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (would_block(errno)) return std::size_t{0};
    if (errno != EINTR) return network_error("send", errno);
  }
}

// One recvmsg; 0: nothing is there yet.
Result<std::size_t> receive_message(int fd, msghdr& message, int flags) {
  for (;;) {
    const ssize_t received = recvmsg(fd, &message, MSG_DONTWAIT | flags);
    if (received > 0) return static_cast<std::size_t>(received);
    if (received == 0) return end_of_stream();
    if (would_block(errno)) return std::size_t{0};
    if (errno != EINTR) return network_error("receive", errno);
  }
}

// Sends all of `parts`, which it consumes. recvmsg and sendmsg take 1024 at most (IOV_MAX).
Status send_parts(int fd, std::span<iovec> parts, Deadline deadline) {
  while (!parts.empty()) {
    if (parts.front().iov_len == 0) {
      parts = parts.subspan(1);
      continue;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = std::min<std::size_t>(parts.size(), 1024);
    PAWL_ASSIGN(std::size_t sent, send_message(fd, message));
    if (sent == 0) PAWL_TRY(wait_for(fd, POLLOUT, deadline));
    while (sent > 0) {
      const std::size_t taken = std::min(sent, parts.front().iov_len);
      parts.front().iov_base = static_cast<char*>(parts.front().iov_base) + taken;
      parts.front().iov_len -= taken;
      sent -= taken;
      if (parts.front().iov_len == 0) parts = parts.subspan(1);
    }
  }
  return {};
}

iovec part_of(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

// Appends the descriptors that came with `message`; false where some were lost.
bool take_fds(const msghdr& message, std::vector<Fd>& fds) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(const_cast<msghdr*>(&message), control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return (message.msg_flags & MSG_CTRUNC) == 0;
}

}  // namespace

bool is_refused(const Error& error) {
  return error.what.ends_with("(ECONNREFUSED)");
}
bool is_end_of_stream(const Error& error) {
  return error.what.ends_with("(EOF)");
}

Result<Address> Address::parse(std::string_view host_and_port) {
  const auto wrong = [&] {
    return Error{Code::invalid, text("address \"", host_and_port, "\": expected host:port, with a port up to 65535")};
  };
  const std::size_t colon = host_and_port.rfind(':');
  if (colon == std::string_view::npos) return wrong();
  std::string_view host = host_and_port.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  Address address{std::string(host), 0};
  const bool odd = host.find_first_of(bracketed ? "[]" : "[]:") != std::string_view::npos;
  if (host.empty() || odd || !parse_number(host_and_port.substr(colon + 1), address.port)) return wrong();
  return address;
}

void write_text(std::string& out, const Address& address) {
  const bool ipv6 = address.host.find(':') != std::string::npos;
  out.append(ipv6 ? text('[', address.host, ']') : address.host).append(":").append(text(address.port));
}

Result<Fd> listen_tcp(const Address& address, int backlog) {
  PAWL_ASSIGN(const AddressList list, look_up(address, true));
  Error last{Code::invalid, text("listen on ", address, ": the name has no address")};
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    Result<Fd> fd = listen_at(*at, address, backlog);
    if (fd) return fd;
    last = std::move(fd).error();
  }
  return last;
}

Result<Fd> start_connect_tcp(const Address& address) {
  PAWL_ASSIGN(const AddressList list, look_up(address, false));
  return start_connect(*list, address);
}

Status finish_connect(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return network_error("connect", error);
  return {};
}

Result<Fd> connect_tcp(const Address& address, Deadline deadline) {
  PAWL_ASSIGN(const AddressList list, look_up(address, false));
  Error last{Code::invalid, text("connect to ", address, ": the name has no address")};
  for (const addrinfo* to = list.get(); to != nullptr; to = to->ai_next) {
    Result<Fd> fd = start_connect(*to, address);
    if (!fd) {
      last = std::move(fd).error();
      continue;
    }
    Status done = wait_for(fd->get(), POLLOUT, deadline);
    if (done) done = finish_connect(fd->get());
    if (done) return fd;
    last = std::move(done).error().within(text("connect to ", address));
    if (last.code == Code::timeout) break;
  }
  return last;
}

Result<Address> local_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return network_error("own address", errno);
  return address_of(storage);
}

Result<Address> peer_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return network_error("peer's address", errno);
  return address_of(storage);
}

Result<Fd> listen_unix(const std::string& path, int backlog) {
  PAWL_ASSIGN(const sockaddr_un address, unix_address(path));
  if (Status free = remove_stale_socket(path, address); !free)
    return std::move(free).error().within(text("listen on ", path));
  Fd fd(socket(AF_UNIX, kSocketFlags, 0));
  if (!fd.valid()) return network_error(text("listen on ", path), errno);
  fchmod(fd.get(), 0600);  // bind gives the file the socket's own mode: there is no instant in which it is open to all
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), backlog) != 0)
    return network_error(text("listen on ", path), errno);
  return fd;
}

Result<Fd> connect_unix(const std::string& path, Deadline deadline) {
  PAWL_ASSIGN(const sockaddr_un address, unix_address(path));
  Fd fd(socket(AF_UNIX, kSocketFlags, 0));
  if (!fd.valid()) return network_error(text("connect to ", path), errno);
  // A Unix connect succeeds at once or finds the backlog full (EAGAIN), which no poll reports: so it is asked again.
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    if (!would_block(errno)) return network_error(text("connect to ", path), errno);
    if (deadline.passed()) return Error{Code::timeout, text("connect to ", path, ": the deadline passed")};
    real_clock().sleep(std::chrono::milliseconds(1));
  }
  return fd;
}

Result<PacketPair> make_packet_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return network_error("make a pair of sockets", errno);
  return PacketPair{Fd(ends[0]), Fd(ends[1])};
}

Result<PeerCredentials> peer_credentials(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return network_error("peer's credentials", errno);
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

Result<Fd> try_accept(int listener) {
  for (;;) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    Fd fd(accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      if (from.ss_family == AF_INET || from.ss_family == AF_INET6) tune_tcp(fd.get());
      return fd;
    }
    if (would_block(errno)) return Fd();
    const bool that_one_left = errno == EINTR || errno == ECONNABORTED || errno == EPROTO;
    if (!that_one_left) return network_error("accept", errno);
  }
}

Result<Fd> accept_connection(int listener, Deadline deadline) {
  for (;;) {
    PAWL_ASSIGN(Fd fd, try_accept(listener));
    if (fd.valid()) return fd;
    if (Status ready = wait_for(listener, POLLIN, deadline); !ready) return std::move(ready).error().within("accept");
  }
}

void shut_down(int fd) {
  shutdown(fd, SHUT_RDWR);
}

Status wait_readable(int fd, Deadline deadline) {
  return wait_for(fd, POLLIN, deadline);
}
Status wait_writable(int fd, Deadline deadline) {
  return wait_for(fd, POLLOUT, deadline);
}

Status send_all(int fd, std::span<const std::byte> bytes, Deadline deadline) {
  iovec part = part_of(bytes);
  return send_parts(fd, {&part, 1}, deadline);
}

Status send_all(int fd, std::initializer_list<std::span<const std::byte>> parts, Deadline deadline) {
  std::vector<iovec> list;
  for (const auto& part : parts) list.push_back(part_of(part));
  return send_parts(fd, list, deadline);
}

Result<std::size_t> try_send(int fd, std::span<const std::byte> bytes) {
  iovec part = part_of(bytes);
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return send_message(fd, message);
}

Result<std::size_t> try_receive(int fd, std::span<std::byte> buffer) {
  if (buffer.empty()) return std::size_t{0};
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return receive_message(fd, message, 0);
}

Result<std::size_t> receive_some(int fd, std::span<std::byte> buffer, Deadline deadline) {
  if (buffer.empty()) return Error{Code::invalid, "receive: an empty buffer"};
  for (;;) {
    PAWL_ASSIGN(const std::size_t received, try_receive(fd, buffer));
    if (received > 0) return received;
    PAWL_TRY(wait_for(fd, POLLIN, deadline));
  }
}

Status receive_all(int fd, std::span<std::byte> buffer, Deadline deadline) {
  while (!buffer.empty()) {
    PAWL_ASSIGN(const std::size_t received, receive_some(fd, buffer, deadline));
    buffer = buffer.subspan(received);
  }
  return {};
}

Status send_with_fds(int fd, std::span<const std::byte> bytes, std::span<const int> fds, Deadline deadline) {
  if (fds.empty()) return send_all(fd, bytes, deadline);
  if (bytes.empty() || fds.size() > kPassedFdsMax)
    return Error{Code::invalid, text("send ", fds.size(), " descriptors with ", bytes.size(),
                                     " bytes: descriptors travel with at least one byte, at most ", kPassedFdsMax)};
  alignas(cmsghdr) char control[CMSG_SPACE(kPassedFdsMax * sizeof(int))] = {};
  iovec part = part_of(bytes);
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  std::size_t sent = 0;
  while (sent == 0) {
    PAWL_ASSIGN(sent, send_message(fd, message));
    if (sent == 0) PAWL_TRY(wait_for(fd, POLLOUT, deadline));
  }
  return send_all(fd, bytes.subspan(sent), deadline);
}

Result<std::size_t> receive_with_fds(int fd, std::span<std::byte> buffer, std::vector<Fd>& fds, Deadline deadline) {
  if (buffer.empty()) return Error{Code::invalid, "receive: an empty buffer"};
  alignas(cmsghdr) char control[CMSG_SPACE(kPassedFdsMax * sizeof(int))];
  for (;;) {
    iovec part{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    PAWL_ASSIGN(const std::size_t received, receive_message(fd, message, MSG_CMSG_CLOEXEC));
    if (received == 0) {
      PAWL_TRY(wait_for(fd, POLLIN, deadline));
      continue;
    }
    const std::size_t before = fds.size();
    const bool complete = take_fds(message, fds);
    if (complete && (message.msg_flags & MSG_TRUNC) == 0) return received;
    fds.resize(before);
    return Error{Code::corrupt, complete ? text("receive: a packet longer than the buffer of ", buffer.size(), " bytes")
                                         : "receive: descriptors were lost on the way; raise the limit of open files "
                                           "(ulimit -n)"};
  }
}

namespace {

class RealStream final : public Stream {
 public:
  explicit RealStream(Fd fd) : fd_(std::move(fd)) {}
  Status send_all(std::initializer_list<std::span<const std::byte>> parts, Deadline deadline) override {
    return pawl::send_all(fd_.get(), parts, deadline);
  }
  Status receive_all(std::span<std::byte> buffer, Deadline deadline) override {
    return pawl::receive_all(fd_.get(), buffer, deadline);
  }
  Status send_with_fds(std::span<const std::byte> bytes, std::span<const int> fds, Deadline deadline) override {
    return pawl::send_with_fds(fd_.get(), bytes, fds, deadline);
  }
  Status wait_writable(Deadline deadline) override { return pawl::wait_writable(fd_.get(), deadline); }
  void shut_down() override { pawl::shut_down(fd_.get()); }

  int handle() const override { return fd_.get(); }
  Result<std::size_t> try_send(std::span<const std::byte> bytes) override { return pawl::try_send(fd_.get(), bytes); }
  Result<std::size_t> try_receive(std::span<std::byte> buffer) override { return pawl::try_receive(fd_.get(), buffer); }
  Status finish_connect() override { return pawl::finish_connect(fd_.get()); }

  bool is_local() const override {
    int domain = 0;
    socklen_t size = sizeof domain;
    return getsockopt(fd_.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
  }
  Result<PeerCredentials> peer_credentials() const override { return pawl::peer_credentials(fd_.get()); }

 private:
  const Fd fd_;
};

class RealListener final : public Listener {
 public:
  explicit RealListener(Fd fd) : fd_(std::move(fd)) {}
  int handle() const override { return fd_.get(); }
  Result<std::unique_ptr<Stream>> try_accept() override {
    PAWL_ASSIGN(Fd accepted, pawl::try_accept(fd_.get()));
    return accepted.valid() ? real_stream(std::move(accepted)) : nullptr;
  }

 private:
  const Fd fd_;
};

class RealNetwork final : public Network {
 public:
  Result<std::unique_ptr<Stream>> connect(const Address& address, Deadline deadline) override {
    PAWL_ASSIGN(Fd fd, connect_tcp(address, deadline));
    return real_stream(std::move(fd));
  }
  Result<std::unique_ptr<Stream>> start_connect(const Address& address) override {
    PAWL_ASSIGN(Fd fd, start_connect_tcp(address));
    return real_stream(std::move(fd));
  }
  Result<std::unique_ptr<Poller>> make_poller() override { return make_real_poller(); }
  Result<std::unique_ptr<SharedEvent>> make_event() override { return make_real_shared_event(); }
};

}  // namespace

Network& real_network() {
  static RealNetwork* network = new RealNetwork;  // never destroyed: streams may still use it while the process exits
  return *network;
}

std::unique_ptr<Stream> real_stream(Fd socket) {
  return std::make_unique<RealStream>(std::move(socket));
}

std::unique_ptr<Listener> real_listener(Fd socket) {
  return std::make_unique<RealListener>(std::move(socket));
}

}  // namespace pawl
