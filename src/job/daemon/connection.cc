#include "job/daemon/connection.h"

#include <sys/socket.h>

#include <chrono>

namespace pawl::job {

namespace {

// A script on this machine may ask without checksums; what comes over a network may not.
FrameSums sums_on(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  const bool local = ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
  return local ? FrameSums::optional : FrameSums::required;
}

}  // namespace

Connection::Connection(Loop& loop, Fd fd, Handlers handlers)
    : loop_(loop), fd_(std::move(fd)), handlers_(std::move(handlers)), reader_(sums_on(fd_.get())) {}

std::shared_ptr<Connection> Connection::make(Loop& loop, Fd fd, Handlers handlers) {
  std::shared_ptr<Connection> made(new Connection(loop, std::move(fd), std::move(handlers)));
  std::weak_ptr<Connection> weak = made;
  made->watch_ = loop.watch(made->fd_.get(), kRead, [weak](const Ready& event) {
    if (auto self = weak.lock()) self->ready(event);
  });
  return made;
}

Connection::~Connection() {
  close();
}

void Connection::send(const Frame& frame) {
  if (!fd_.valid()) return;
  queue_.push_back(encode_frame(frame));
  write_queued();
}

void Connection::send_with(const Frame& frame, std::span<const int> fds) {
  if (!fd_.valid()) return;
  while (!queue_.empty() && fd_.valid()) {  // keep the order; local peers read at once
    if (!wait_writable(fd_.get(), Deadline::in(std::chrono::seconds(1))))
      return fail({Code::timeout, "peer does not read"});
    write_queued();
  }
  if (!fd_.valid()) return;
  const std::string bytes = encode_frame(frame);
  const Status sent =
      send_with_fds(fd_.get(), std::as_bytes(std::span(bytes)), fds, Deadline::in(std::chrono::seconds(1)));
  if (!sent) fail(sent.error());
}

void Connection::close() {
  if (!fd_.valid()) return;
  loop_.unwatch(watch_);
  fd_.reset();
}

Fd Connection::release() {
  loop_.unwatch(watch_);
  return std::move(fd_);
}

void Connection::ready(const Ready& event) {
  auto keep = shared_from_this();
  if (event.writable) write_queued();
  if (fd_.valid() && (event.readable || event.hung_up)) read_all();
}

void Connection::read_all() {
  std::byte buffer[64 << 10];
  Frame frame;
  for (int rounds = 0; rounds < 16 && fd_.valid(); ++rounds) {
    auto got = try_receive(fd_.get(), buffer);
    if (!got) return fail(got.error());
    if (*got == 0) return;
    reader_.append(std::span(buffer, *got));
    while (fd_.valid()) {
      auto whole = reader_.next(frame);
      if (!whole) return fail(whole.error());
      if (!*whole) break;
      handlers_.on_frame(frame);
    }
    if (*got < sizeof buffer) return;
  }
}

void Connection::write_queued() {
  while (fd_.valid() && !queue_.empty()) {
    const std::string& front = queue_.front();
    auto sent = try_send(fd_.get(), std::as_bytes(std::span(front)).subspan(sent_of_front_));
    if (!sent) return fail(sent.error());
    if (*sent == 0) return loop_.change(watch_, kReadWrite);
    sent_of_front_ += *sent;
    if (sent_of_front_ == front.size()) {
      queue_.pop_front();
      sent_of_front_ = 0;
    }
  }
  if (fd_.valid()) loop_.change(watch_, kRead);
}

void Connection::fail(const Error& error) {
  auto keep = shared_from_this();
  if (!fd_.valid()) return;
  close();
  if (handlers_.on_close) handlers_.on_close(error);
}

}  // namespace pawl::job
