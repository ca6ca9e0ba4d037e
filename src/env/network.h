// Network: stream sockets over TCP and Unix paths, and descriptors passed over the latter.
//
// Every socket made here is close-on-exec and non-blocking; every wait has a Deadline; nothing raises SIGPIPE.
// Calls that take `int fd` only borrow it. One thread may send while another receives; two senders need a lock.
// Frames and their meaning are not here (job/transport). Errors say what can be done next:
//   unreachable  the other side is gone, refused, closed or cannot be reached
//   timeout      the deadline passed
//   invalid      the address is wrong, or taken by somebody who lives
//   full         no descriptors or memory left
//   io           the rest
// An error that came from the system ends in its errno's name, "(ECONNREFUSED)"; a clean close ends in "(EOF)".
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "env/clock.h"
#include "env/fd.h"
#include "env/poller.h"

namespace pawl {

// Nobody listens there though the machine answers: with a keeper's port, the node is dead.
[[nodiscard]] bool is_refused(const Error& error);
// The other side closed the stream in an orderly way, between two of our reads.
[[nodiscard]] bool is_end_of_stream(const Error& error);

struct Address {
  std::string host;        // a name, an IPv4 or an IPv6 address (without brackets)
  std::uint16_t port = 0;  // 0: any free one, for listening

  // "host:port" or "[ipv6]:port". Fails: `invalid`.
  [[nodiscard]] static Result<Address> parse(std::string_view host_and_port);
  bool operator==(const Address&) const = default;
};
void write_text(std::string& out, const Address& address);  // for text()

// --- TCP. Nagle and keepalive are off: pawl has its own heartbeats. A host name is looked up by the system, which may
// take longer than the deadline; hand in addresses where that matters.
[[nodiscard]] Result<Fd> listen_tcp(const Address& address, int backlog = 128);
[[nodiscard]] Result<Fd> connect_tcp(const Address& address, Deadline deadline);
// The first of the host's addresses only. Wait until the socket is writable, then ask finish_connect.
[[nodiscard]] Result<Fd> start_connect_tcp(const Address& address);
[[nodiscard]] Status finish_connect(int fd);
// Where the socket is bound (after listening on port 0: the port it got), and whom it is connected to.
[[nodiscard]] Result<Address> local_address(int fd);
[[nodiscard]] Result<Address> peer_address(int fd);

// --- Unix paths, mode 0600. A socket file that nobody listens on is replaced; one that somebody does is refused.
[[nodiscard]] Result<Fd> listen_unix(const std::string& path, int backlog = 128);
[[nodiscard]] Result<Fd> connect_unix(const std::string& path, Deadline deadline);
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};
// Who connected, as the kernel noted it at that time.
[[nodiscard]] Result<PeerCredentials> peer_credentials(int fd);

// Two connected ends, each send one packet that arrives whole or not at all (SOCK_SEQPACKET): for a parent and its
// child.
struct PacketPair {
  Fd first;
  Fd second;
};
[[nodiscard]] Result<PacketPair> make_packet_pair();

// --- Both kinds.
// The next waiting connection; an invalid Fd when there is none.
[[nodiscard]] Result<Fd> try_accept(int listener);
[[nodiscard]] Result<Fd> accept_connection(int listener, Deadline deadline);
// Ends both directions without freeing the descriptor: whoever waits in it wakes with `unreachable`. Any thread.
void shut_down(int fd);

// Waits until `fd` can be read (or written). `timeout` when the deadline passes first.
[[nodiscard]] Status wait_readable(int fd, Deadline deadline);
[[nodiscard]] Status wait_writable(int fd, Deadline deadline);

// All of the bytes, or an error after an unknown part of them; the stream is then only good for closing.
[[nodiscard]] Status send_all(int fd, std::span<const std::byte> bytes, Deadline deadline);
[[nodiscard]] Status send_all(int fd, std::initializer_list<std::span<const std::byte>> parts, Deadline deadline);
[[nodiscard]] Status receive_all(int fd, std::span<std::byte> buffer, Deadline deadline);
// As much as is there, at least one byte.
[[nodiscard]] Result<std::size_t> receive_some(int fd, std::span<std::byte> buffer, Deadline deadline);
// Without waiting; 0: nothing can be moved just now. (The end of the stream is an error, as everywhere here.)
[[nodiscard]] Result<std::size_t> try_send(int fd, std::span<const std::byte> bytes);
[[nodiscard]] Result<std::size_t> try_receive(int fd, std::span<std::byte> buffer);

// Descriptors travel with the first of `bytes`, of which there must be one; at most kPassedFdsMax. They stay ours too.
inline constexpr std::size_t kPassedFdsMax = 253;
[[nodiscard]] Status send_with_fds(int fd, std::span<const std::byte> bytes, std::span<const int> fds,
                                   Deadline deadline);
// As receive_some; descriptors that came along are appended to `fds`, close-on-exec. The bytes that one send_with_fds
// moved are never joined with those of the next. Fails also: `corrupt` when descriptors were lost on the way (our
// limit of open files) or a packet is longer than the buffer; descriptors that came are then closed.
[[nodiscard]] Result<std::size_t> receive_with_fds(int fd, std::span<std::byte> buffer, std::vector<Fd>& fds,
                                                   Deadline deadline);

// --- The seam for whoever may run in a simulation: all that the daemon says to others goes through a Stream.
// env/network_conformance.h is what every implementation must do; where nothing else is said, as the functions above.

// One connected stream socket, or one end of a pair of packet sockets. One task sends while one receives; shut_down is
// for any.
class Stream {
 public:
  virtual ~Stream() = default;  // closes

  // For tasks, which may wait.
  [[nodiscard]] virtual Status send_all(std::initializer_list<std::span<const std::byte>> parts, Deadline deadline) = 0;
  [[nodiscard]] virtual Status receive_all(std::span<std::byte> buffer, Deadline deadline) = 0;
  [[nodiscard]] virtual Status send_with_fds(std::span<const std::byte> bytes, std::span<const int> fds,
                                             Deadline deadline) = 0;
  [[nodiscard]] virtual Status wait_writable(Deadline deadline) = 0;
  virtual void shut_down() = 0;

  // For a loop, which waits with a Poller.
  [[nodiscard]] virtual int handle() const = 0;
  [[nodiscard]] virtual Result<std::size_t> try_send(std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual Result<std::size_t> try_receive(std::span<std::byte> buffer) = 0;
  [[nodiscard]] virtual Status finish_connect() = 0;  // after start_connect, once it is writable

  [[nodiscard]] virtual bool is_local() const = 0;  // both ends on this machine: a Unix path, or a pair
  [[nodiscard]] virtual Result<PeerCredentials> peer_credentials() const = 0;  // of a local one
};

class Listener {
 public:
  virtual ~Listener() = default;                 // closes: from now on who connects is refused
  [[nodiscard]] virtual int handle() const = 0;  // for a Poller: readable when somebody waits
  // The next waiting connection; nullptr when there is none.
  [[nodiscard]] virtual Result<std::unique_ptr<Stream>> try_accept() = 0;
};

class Network {
 public:
  virtual ~Network() = default;
  [[nodiscard]] virtual Result<std::unique_ptr<Stream>> connect(const Address& address, Deadline deadline) = 0;
  // Returns at once; the stream is writable when it is decided, then ask finish_connect.
  [[nodiscard]] virtual Result<std::unique_ptr<Stream>> start_connect(const Address& address) = 0;
  // Waits for streams, listeners and events of this network. Fails: `full`, `io`.
  [[nodiscard]] virtual Result<std::unique_ptr<Poller>> make_poller() = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<SharedEvent>> make_event() = 0;
};

[[nodiscard]] Network& real_network();
// For sockets that this process was given, and for those of the functions above.
[[nodiscard]] std::unique_ptr<Stream> real_stream(Fd socket);
[[nodiscard]] std::unique_ptr<Listener> real_listener(Fd socket);

}  // namespace pawl
