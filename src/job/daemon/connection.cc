#include "job/daemon/connection.h"

#include <chrono>

namespace pawl::job {

namespace {

constexpr auto kLocalSendMax = std::chrono::seconds(1);  // local peers read at once

// A script on this machine may ask without checksums; what comes over a network may not.
FrameSums sums_on(const Stream& stream) {
  return stream.is_local() ? FrameSums::optional : FrameSums::required;
}

}  // namespace

Connection::Connection(Loop& loop, std::unique_ptr<Stream> stream, Handlers handlers)
    : loop_(loop),
      stream_(std::move(stream)),
      handlers_(std::move(handlers)),
      reader_(sums_on(*stream_), handlers_.payload_bytes_max) {}

std::shared_ptr<Connection> Connection::make(Loop& loop, std::unique_ptr<Stream> stream, Handlers handlers) {
  std::shared_ptr<Connection> made(new Connection(loop, std::move(stream), std::move(handlers)));
  std::weak_ptr<Connection> weak = made;
  made->watch_ = loop.watch(made->stream_->handle(), kRead, [weak](const Ready& event) {
    if (auto self = weak.lock()) self->ready(event);
  });
  return made;
}

Connection::~Connection() {
  close();
}

void Connection::send(const Frame& frame) {
  if (!is_open()) return;
  queue_.push_back(encode_frame(frame));
  write_queued();
}

void Connection::send_with(const Frame& frame, std::span<const int> fds) {
  Clock& clock = loop_.environment().clock;
  while (is_open() && !queue_.empty()) {  // keep the order
    if (!stream_->wait_writable(Deadline::in(kLocalSendMax, clock))) return fail({Code::timeout, "peer does not read"});
    write_queued();
  }
  if (!is_open()) return;
  const std::string bytes = encode_frame(frame);
  const Status sent = stream_->send_with_fds(std::as_bytes(std::span(bytes)), fds, Deadline::in(kLocalSendMax, clock));
  if (!sent) fail(sent.error());
}

void Connection::close() {
  if (!is_open()) return;
  loop_.unwatch(watch_);
  stream_.reset();
}

std::unique_ptr<Stream> Connection::release() {
  loop_.unwatch(watch_);
  return std::move(stream_);
}

void Connection::ready(const Ready& event) {
  auto keep = shared_from_this();
  if (event.writable) write_queued();
  if (is_open() && (event.readable || event.hung_up)) read_all();
}

void Connection::read_all() {
  std::byte buffer[64 << 10];
  Frame frame;
  for (int rounds = 0; rounds < 16 && is_open(); ++rounds) {
    auto got = stream_->try_receive(buffer);
    if (!got) return fail(got.error());
    if (*got == 0) return;
    reader_.append(std::span(buffer, *got));
    while (is_open()) {
      auto whole = reader_.next(frame);
      if (!whole) return fail(whole.error());
      if (!*whole) break;
      loop_.note_frame(frame.kind);
      handlers_.on_frame(frame);
    }
    if (*got < sizeof buffer) return;
  }
}

void Connection::write_queued() {
  while (is_open() && !queue_.empty()) {
    const std::string& front = queue_.front();
    auto sent = stream_->try_send(std::as_bytes(std::span(front)).subspan(sent_of_front_));
    if (!sent) return fail(sent.error());
    if (*sent == 0) return loop_.change(watch_, kReadWrite);
    sent_of_front_ += *sent;
    if (sent_of_front_ == front.size()) {
      queue_.pop_front();
      sent_of_front_ = 0;
    }
  }
  if (is_open()) loop_.change(watch_, kRead);
}

void Connection::fail(const Error& error) {
  auto keep = shared_from_this();
  if (!is_open()) return;
  close();
  if (handlers_.on_close) handlers_.on_close(error);
}

}  // namespace pawl::job
