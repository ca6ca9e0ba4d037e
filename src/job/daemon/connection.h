// Connection: frames in and out of a stream, on the loop's thread, without waiting.
//
// Owned by shared_ptr; handlers are not called any more once close() was called or on_close has been. Frames are queued
// when the socket is full, and dropped after close. Not for bulk data (job/daemon/replication.h has threads for that).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "env/network.h"
#include "job/daemon/loop.h"
#include "job/transport/frame.h"

namespace pawl::job {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Handlers {
    std::function<void(Frame&)> on_frame;
    std::function<void(const Error&)> on_close;          // the other side's end, or an error; once
    std::uint32_t payload_bytes_max = kFramePayloadMax;  // whoever sends more is closed
  };
  [[nodiscard]] static std::shared_ptr<Connection> make(Loop& loop, std::unique_ptr<Stream> stream, Handlers handlers);
  ~Connection();

  void send(const Frame& frame);
  // Descriptors only travel over Unix sockets; they stay the caller's.
  void send_with(const Frame& frame, std::span<const int> fds);
  void close();  // on_close is not called
  // Gives the stream away (to a task); this connection is closed without closing it. Only before more than the
  // frames handled so far have arrived: whoever speaks next on it must wait for our answer.
  [[nodiscard]] std::unique_ptr<Stream> release();
  [[nodiscard]] bool is_open() const { return stream_ != nullptr; }
  // Who connected. Only while it is open; of a local one.
  [[nodiscard]] Result<PeerCredentials> peer_credentials() const { return stream_->peer_credentials(); }

 private:
  Connection(Loop& loop, std::unique_ptr<Stream> stream, Handlers handlers);
  void ready(const Ready& event);
  void read_all();
  void write_queued();
  void fail(const Error& error);

  Loop& loop_;
  std::unique_ptr<Stream> stream_;  // nullptr: closed
  Handlers handlers_;
  std::uint64_t watch_ = 0;
  FrameReader reader_;
  std::deque<std::string> queue_;
  std::size_t sent_of_front_ = 0;
};

}  // namespace pawl::job
