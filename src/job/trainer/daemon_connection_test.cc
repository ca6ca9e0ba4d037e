#include "job/trainer/daemon_connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <span>
#include <vector>

#include "env/network.h"
#include "env/temporary_directory.h"

namespace pawl::job {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A connection that is attaching, and pawld's end of it.
class DaemonConnectionTest : public ::testing::Test {
 protected:
  DaemonConnectionTest() {
    listener_ = std::move(*listen_unix(folder_.path("pawld.sock")));
    begin();
  }
  void begin() {
    Result<Fd> socket = connection_.try_connect();
    ASSERT_TRUE(socket) << socket.error().what;
    connection_.begin(std::move(*socket));
    pawld_ = std::move(*accept_connection(listener_.get(), Deadline::in(std::chrono::seconds(5))));
  }
  void say(const std::string& bytes, std::vector<int> fds = {}) {
    ASSERT_TRUE(send_with_fds(pawld_.get(), bytes_of(bytes), fds, Deadline::in(std::chrono::seconds(5))));
  }

  TemporaryDirectory folder_{"/tmp"};
  DaemonConnection connection_{folder_.path("pawld.sock")};
  Fd listener_, pawld_;
};

TEST_F(DaemonConnectionTest, IsAttachingThenUpThenDown) {
  EXPECT_TRUE(connection_.is_attaching());
  EXPECT_GE(connection_.fd(), 0);
  connection_.set_up();
  EXPECT_TRUE(connection_.is_up());
  pawld_.reset();
  EXPECT_FALSE(connection_.read());
  EXPECT_TRUE(connection_.is_down());
  EXPECT_EQ(connection_.fd(), -1);
  EXPECT_FALSE(connection_.should_connect());  // it has just broken
  real_clock().sleep(DaemonConnection::kConnectInterval);
  EXPECT_TRUE(connection_.should_connect());
  listener_.reset();
  EXPECT_FALSE(connection_.try_connect());
  EXPECT_FALSE(connection_.should_connect());
}

TEST_F(DaemonConnectionTest, FramesArriveWholeAndDescriptorsInOrder) {
  EXPECT_FALSE(connection_.read());  // nothing yet; it stays
  EXPECT_TRUE(connection_.is_attaching());
  const std::string bytes = encode_frame({3, 9, "payload"});
  const Event first = std::move(*Event::make()), second = std::move(*Event::make());
  say(bytes.substr(0, 10), {first.fd(), second.fd()});
  Frame frame;
  ASSERT_TRUE(connection_.read());
  EXPECT_FALSE(*connection_.next(frame));
  say(bytes.substr(10));
  ASSERT_TRUE(connection_.read());
  ASSERT_TRUE(*connection_.next(frame));
  EXPECT_EQ(frame.id, 9u);
  EXPECT_EQ(frame.payload, "payload");
  ASSERT_EQ(connection_.fd_count(), 2u);
  const Fd one = connection_.take_fd();
  first.raise();
  EXPECT_TRUE(wait_readable(one.get(), Deadline::in(std::chrono::seconds(5))));
  EXPECT_EQ(connection_.fd_count(), 1u);
}

TEST_F(DaemonConnectionTest, WhatIsQueuedIsSentAndNotRepeatedToTheNextPawld) {
  connection_.queue(encode_frame({1, 1, "one"}));
  EXPECT_TRUE(connection_.has_unsent());
  connection_.write();
  EXPECT_FALSE(connection_.has_unsent());
  EXPECT_EQ(receive_frame(pawld_.get(), Deadline::in(std::chrono::seconds(5)))->payload, "one");
  connection_.queue(encode_frame({1, 2, "two"}));
  say(encode_frame({1, 3, "half"}).substr(0, 9));
  EXPECT_TRUE(connection_.read());
  connection_.drop();
  begin();
  EXPECT_FALSE(connection_.has_unsent());
  connection_.write_last(encode_frame({1, 4, "bye"}), std::chrono::seconds(5));
  EXPECT_EQ(receive_frame(pawld_.get(), Deadline::in(std::chrono::seconds(5)))->payload, "bye");
  say(encode_frame({1, 5, "whole"}));
  Frame frame;
  ASSERT_TRUE(connection_.read());
  ASSERT_TRUE(*connection_.next(frame));  // the half frame of before is forgotten
  EXPECT_EQ(frame.payload, "whole");
}

TEST_F(DaemonConnectionTest, BrokenFramesAreCorrupt) {
  std::string bytes = encode_frame({3, 9, "payload"});
  bytes.back() ^= 1;
  say(bytes);
  Frame frame;
  ASSERT_TRUE(connection_.read());
  const Result<bool> next = connection_.next(frame);
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code, Code::corrupt);
}

}  // namespace
}  // namespace pawl::job
