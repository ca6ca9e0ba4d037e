#include "job/trainer/daemon_connection.h"

#include <span>
#include <vector>

#include "env/network.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

bool DaemonConnection::should_connect() const {
  return state_ == State::down && real_clock().now() >= connect_again_at_;
}

Result<Fd> DaemonConnection::try_connect() {
  connect_again_at_ = real_clock().now() + kConnectInterval;
  return connect_unix(socket_path_, Deadline::in(milliseconds(5)));
}

void DaemonConnection::begin(Fd socket) {
  socket_ = std::move(socket);
  reader_ = FrameReader();
  received_fds_.clear();
  out_.clear();
  state_ = State::attaching;
}

void DaemonConnection::drop() {
  socket_.reset();
  out_.clear();
  state_ = State::down;
  connect_again_at_ = real_clock().now() + kConnectInterval;
}

void DaemonConnection::write() {
  if (out_.empty()) return;
  const Result<std::size_t> sent = try_send(socket_.get(), bytes_of(out_));
  if (!sent) return drop();
  out_.erase(0, *sent);
}

void DaemonConnection::write_last(std::string_view bytes, Duration wait_max) {
  queue(bytes);
  (void)send_all(socket_.get(), bytes_of(out_), Deadline::in(wait_max));
}

bool DaemonConnection::read() {
  std::byte buffer[16 << 10];
  std::vector<Fd> fds;
  const Result<std::size_t> received = receive_with_fds(socket_.get(), buffer, fds, Deadline::at(Duration::zero()));
  if (!received) {
    if (received.error().code != Code::timeout) drop();
    return false;
  }
  for (Fd& fd : fds) received_fds_.push_back(std::move(fd));
  reader_.append(std::span(buffer).first(*received));
  return true;
}

Fd DaemonConnection::take_fd() {
  Fd fd = std::move(received_fds_.front());
  received_fds_.pop_front();
  return fd;
}

}  // namespace pawl::job
