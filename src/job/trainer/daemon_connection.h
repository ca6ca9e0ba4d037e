// DaemonConnection: the socket to this node's pawld: frames and descriptors, in and out.
//
// It is down, attaching (what arrives is the answer to the greeting), or up. Whatever breaks makes it down, and what was
// queued or half received is dropped; the caller repeats what still matters (job/trainer/pending_requests.h).
// Threads: one. Nothing waits for longer than a deadline says. What the frames mean is job/trainer/session.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "env/clock.h"
#include "env/fd.h"
#include "job/transport/frame.h"

namespace pawl::job {

class DaemonConnection {
 public:
  static constexpr Duration kConnectInterval = std::chrono::milliseconds(10);

  explicit DaemonConnection(std::string socket_path) : socket_path_(std::move(socket_path)) {}

  [[nodiscard]] bool is_down() const { return state_ == State::down; }
  [[nodiscard]] bool is_attaching() const { return state_ == State::attaching; }
  [[nodiscard]] bool is_up() const { return state_ == State::up; }

  // It is down, and the last try was long enough ago.
  [[nodiscard]] bool should_connect() const;
  // A socket for begin(). Fails: as connect_unix, within milliseconds.
  [[nodiscard]] Result<Fd> try_connect();
  // Attaching from now on, through this socket.
  void begin(Fd socket);
  void set_up() { state_ = State::up; }
  void drop();

  // For poll(2). -1: it is down.
  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] bool has_unsent() const { return !out_.empty(); }

  void queue(std::string_view bytes) { out_ += bytes; }
  // As much as the socket takes now.
  void write();
  // The last words: what is queued, and `bytes`.
  void write_last(std::string_view bytes, Duration wait_max);

  // What is there now. True: something came.
  [[nodiscard]] bool read();
  // A frame that has arrived whole. False: none. Fails: `corrupt`.
  [[nodiscard]] Result<bool> next(Frame& frame) { return reader_.next(frame); }
  // Descriptors that have arrived, in order.
  [[nodiscard]] std::size_t fd_count() const { return received_fds_.size(); }
  [[nodiscard]] Fd take_fd();  // requires one

 private:
  enum class State { down, attaching, up };

  const std::string socket_path_;
  Fd socket_;
  State state_ = State::down;
  FrameReader reader_;
  std::deque<Fd> received_fds_;
  std::string out_;
  Duration connect_again_at_{};
};

}  // namespace pawl::job
