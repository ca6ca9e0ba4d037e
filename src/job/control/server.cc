#include "job/control/server.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/text.h"
#include "env/fd.h"
#include "job/control/grpc_log.h"
#include "job/control/server_services.h"
#include "job/control/server_watch.h"

namespace pawl::job {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr int kMessageBytesMax = 64 << 20;  // so that an oversized request is refused by name, not by the channel
constexpr auto kStopMax = std::chrono::seconds(2);

// The lock's file says who holds it; the lock itself ends with the process, however it ends.
Result<Fd> lock_directory(const std::string& directory) {
  if (directory.empty()) return Error{Code::invalid, "no data directory given"};
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return Error{Code::invalid, text("data directory ", directory, ": ", strerror(errno),
                                     "; give one whose parent exists and that you may write")};
  const std::string path = directory + "/lock";
  Fd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0)
    return Error{Code::invalid, text("data directory ", directory, ": open lock: ", strerror(errno),
                                     "; give a directory that you may write")};
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    char holder[24] = {};
    const ssize_t got = ::pread(lock.get(), holder, sizeof holder - 1, 0);
    return Error{Code::invalid,
                 text("data directory ", directory, " is in use by ",
                      got > 0 ? text("process ", static_cast<const char*>(holder)) : std::string("another server"),
                      "; stop that one or give another directory")};
  }
  const std::string pid = text(::getpid());
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0)
    return system_error(text("write ", path), errno);
  return lock;
}

Error taken(const std::string& address, std::string_view cause) {
  return Error{Code::invalid, text("listen on ", address, ": ", cause,
                                   "; stop what listens there or give another address (port 0: any free one)")};
}

// A socket file with a living server behind it is not ours to replace; gRPC removes one that is left over.
Status check_unix(const std::string& address) {
  const std::string path = address.substr(kUnix.size());
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof name.sun_path)
    return Error{Code::invalid,
                 text("listen on ", address, ": a socket path has 1 to ", sizeof name.sun_path - 1, " bytes")};
  std::memcpy(name.sun_path, path.data(), path.size());
  Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0)
    return taken(address, "another server answers there");
  return {};
}

Status check_tcp(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  unsigned port = 0;
  if (colon == std::string::npos || !parse_number(std::string_view(address).substr(colon + 1), port) || port > 65535)
    return Error{Code::invalid, text("listen on ", address, ": not host:port or unix:/path")};
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int why = ::getaddrinfo(host.c_str(), text(port).c_str(), &hints, &found); why != 0)
    return Error{Code::invalid,
                 text("listen on ", address, ": ", gai_strerror(why), "; give a name or number of this machine")};
  Fd probe(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const int bound = ::bind(probe.get(), found->ai_addr, found->ai_addrlen);
  const int listening = bound == 0 ? ::listen(probe.get(), 1) : bound;  // two sockets may bind, but not both listen
  const int cause = errno;
  ::freeaddrinfo(found);
  if (listening != 0) return taken(address, strerror(cause));
  return {};
}

}  // namespace

struct ControlServer::Parts {
  explicit Parts(Fd lock_, std::string token) : lock(std::move(lock_)), hub(std::move(token)) {}
  Fd lock;
  WatchHub hub;
  std::mutex mutex;
  Status failure;
  std::unique_ptr<Committer> committer;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;  // last made, first ended
};

ControlServer::ControlServer() = default;

Result<std::unique_ptr<ControlServer>> ControlServer::start(ControlServerOptions options) {
  take_grpc_log();
  if (options.addresses.empty()) return Error{Code::invalid, "no address to listen on given"};
  for (const std::string& address : options.addresses)
    PAWL_TRY(address.starts_with(kUnix) ? check_unix(address) : check_tcp(address));
  PAWL_ASSIGN(Fd lock, lock_directory(options.data_directory));

  std::unique_ptr<ControlServer> server(new ControlServer());
  server->failed_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  server->parts_ = std::make_unique<Parts>(std::move(lock), options.token);
  Parts& parts = *server->parts_;

  CommitterOptions committing;
  committing.wal = {.directory = options.data_directory, .fsync = options.fsync, .files = options.files};
  committing.key_values = options.key_values;
  committing.log_bytes_max = options.log_bytes_max;
  committing.on_durable = [&parts](Revision) { parts.hub.announce(); };
  committing.on_failure = [&parts, fd = server->failed_fd_](const Error& error) {
    log_error("control_log_failed", "why", error.what);
    {
      std::lock_guard guard(parts.mutex);
      parts.failure = error;
    }
    parts.hub.close();
    if (::eventfd_write(fd, 1) != 0) log_error("control_log_failed", "eventfd", errno);
  };
  PAWL_ASSIGN(parts.committer, Committer::open(std::move(committing)));
  parts.hub.serve(parts.committer.get());
  parts.services = make_services(parts.committer.get(), options.token);

  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else two servers would share a port in silence
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.RegisterService(&parts.hub);
  for (const auto& service : parts.services) builder.RegisterService(service.get());
  std::vector<int> ports(options.addresses.size(), 0);
  for (std::size_t i = 0; i < ports.size(); ++i)
    builder.AddListeningPort(options.addresses[i], grpc::InsecureServerCredentials(), &ports[i]);
  parts.server = builder.BuildAndStart();
  if (!parts.server) {
    std::string all;
    for (const std::string& address : options.addresses) all += (all.empty() ? "" : ", ") + address;
    return taken(all, "refused");
  }
  for (std::size_t i = 0; i < ports.size(); ++i) {
    std::string address = options.addresses[i];
    if (!address.starts_with(kUnix)) address = address.substr(0, address.rfind(':') + 1) + text(ports[i]);
    server->addresses_.push_back(std::move(address));
  }
  return server;
}

ControlServer::~ControlServer() {
  if (parts_ && parts_->server) {
    parts_->hub.close();
    parts_->server->Shutdown(std::chrono::system_clock::now() + kStopMax);
    parts_->server->Wait();
    parts_->committer.reset();  // its thread may still be on its way out of the last call's answer
    parts_->server.reset();
  }
  parts_.reset();
  if (failed_fd_ >= 0) ::close(failed_fd_);
}

Status ControlServer::failure() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->failure;
}

Status run_control_server(const ControlServerOptions& options, int stop_fd,
                          const std::function<void(const std::vector<std::string>&)>& ready) {
  PAWL_ASSIGN(const auto server, ControlServer::start(options));
  if (ready) ready(server->addresses());
  pollfd waits[] = {{stop_fd, POLLIN, 0}, {server->failed_fd(), POLLIN, 0}};
  while (true) {
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) return system_error("poll", errno);
    if (waits[1].revents != 0) return server->failure();
    if (waits[0].revents != 0) return {};
  }
}

}  // namespace pawl::job
