#include "job/daemon/keeper_lifelines.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPatience = 20s;

class KeeperLifelinesTest : public testing::Test {
 protected:
  void start(KeeperLifelines::Options changes = {}) {
    changes.node = NodeId(3);
    changes.job = "test";
    changes.token = "secret";
    Result<Fd> listener = listen_tcp({"127.0.0.1", 0});
    ASSERT_TRUE(listener);
    address = *local_address(listener->get());
    auto started = KeeperLifelines::start(real_environment(), real_listener(std::move(*listener)), changes);
    ASSERT_TRUE(started);
    lines = std::move(*started);
    lines->begin_life(Incarnation(5));
  }
  static KeeperLifelines::Options patient() {
    KeeperLifelines::Options options;
    options.greeting = kPatience;
    return options;
  }
  Fd connect() const {
    Result<Fd> fd = connect_tcp(address, Deadline::in(kPatience));
    EXPECT_TRUE(fd) << fd.error().what;
    return fd ? std::move(*fd) : Fd();
  }
  static Hello hello(std::uint32_t node = 1) {
    Hello hello;
    hello.job = "test";
    hello.token = "secret";
    hello.node = NodeId(node);
    hello.expected = Incarnation(5);
    hello.purpose = Purpose::lifeline;
    return hello;
  }
  static void say(const Fd& fd, const Frame& frame) {
    EXPECT_TRUE(send_frame(fd.get(), frame, Deadline::in(kPatience)));
  }
  static Frame next(const Fd& fd) {
    Result<Frame> frame = receive_frame(fd.get(), Deadline::in(kPatience));
    EXPECT_TRUE(frame) << frame.error().what;
    return frame ? *frame : Frame{};
  }
  static bool is_closed(const Fd& fd) {
    const Result<Frame> frame = receive_frame(fd.get(), Deadline::in(kPatience));
    return !frame && frame.error().code == Code::unreachable;
  }
  static bool is_quiet(const Fd& fd) {
    const Result<Frame> frame = receive_frame(fd.get(), Deadline::in(100ms));
    return !frame && frame.error().code == Code::timeout;
  }
  Fd line_of(std::uint32_t node) const {
    Fd fd = connect();
    say(fd, frame_of(hello(node)));
    EXPECT_TRUE(is<WelcomeMessage>(next(fd)));
    return fd;
  }
  PeerRefusal refusal_of(const Hello& hello) const {
    const Fd fd = connect();
    say(fd, frame_of(hello));
    const auto answer = message_in<PeerRefusedMessage>(next(fd));
    EXPECT_TRUE(answer.has_value());
    EXPECT_TRUE(is_closed(fd));
    return answer ? answer->refusal : PeerRefusal::missing;
  }

  Address address;
  std::unique_ptr<KeeperLifelines> lines;
};

TEST_F(KeeperLifelinesTest, StandAreAnsweredAndEndWithTheirKeeper) {
  start(patient());
  const Fd line = line_of(1);
  say(line, frame_of(BeatMessage{}));
  EXPECT_TRUE(is<BeatBackMessage>(next(line)));
  EXPECT_TRUE(is_quiet(line));
  lines.reset();
  EXPECT_TRUE(is_closed(line));
  EXPECT_TRUE(is_refused(connect_tcp(address, Deadline::in(kPatience)).error()));
}

TEST_F(KeeperLifelinesTest, AreForThisLifeOfThisJobsNodeAndWhoeverKnowsTheToken) {
  start(patient());
  Hello other = hello();
  other.token = "guess";
  EXPECT_EQ(refusal_of(other), PeerRefusal::never);
  other = hello();
  other.job = "another";
  EXPECT_EQ(refusal_of(other), PeerRefusal::stale);
  other = hello();
  other.expected = Incarnation(4);
  EXPECT_EQ(refusal_of(other), PeerRefusal::stale);
  other = hello();
  other.purpose = Purpose::link;
  EXPECT_EQ(refusal_of(other), PeerRefusal::never);
}

TEST_F(KeeperLifelinesTest, EndWithTheirLife) {
  start(patient());
  const Fd line = line_of(1);
  lines->begin_life(Incarnation(6));
  EXPECT_TRUE(is_closed(line));
  EXPECT_EQ(refusal_of(hello()), PeerRefusal::stale);
}

TEST_F(KeeperLifelinesTest, StrangersThatSayNothingAreClosed) {
  KeeperLifelines::Options options;
  options.greeting = 100ms;
  start(options);
  const Fd stranger = connect();
  EXPECT_TRUE(is_closed(stranger));
}

TEST_F(KeeperLifelinesTest, FewStrangersAreAcceptedAtATime) {
  KeeperLifelines::Options options = patient();
  options.strangers_max = 2;
  start(options);
  Fd first = connect();
  const Fd second = connect();
  const Fd third = connect();
  say(third, frame_of(hello(7)));
  EXPECT_TRUE(is_quiet(third));
  first.reset();
  EXPECT_TRUE(is<WelcomeMessage>(next(third)));
}

TEST_F(KeeperLifelinesTest, NobodySendsMuch) {
  start(patient());
  const Fd stranger = connect();
  Frame long_one = frame_of(hello());
  long_one.payload.resize(1 << 16);
  say(stranger, long_one);
  EXPECT_TRUE(is_closed(stranger));
}

TEST_F(KeeperLifelinesTest, ANodeHasOneAndAllTogetherHaveALimit) {
  KeeperLifelines::Options options = patient();
  options.lines_max = 2;
  start(options);
  const Fd replaced = line_of(1);
  const Fd one = line_of(1);
  EXPECT_TRUE(is_closed(replaced));
  const Fd two = line_of(2);
  say(one, frame_of(BeatMessage{}));  // heard later than the other
  EXPECT_TRUE(is<BeatBackMessage>(next(one)));
  const Fd three = line_of(3);
  EXPECT_TRUE(is_closed(two));
  EXPECT_TRUE(is_quiet(one));
}

}  // namespace
}  // namespace pawl::job
