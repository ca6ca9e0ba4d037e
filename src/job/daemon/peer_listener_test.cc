#include "job/daemon/peer_listener.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Judged : public testing::Test {
 protected:
  Judged() {
    state.generation = Generation(3);
    for (std::uint32_t node = 0; node < 2; ++node) state.seats.push_back({Seat(node), test_life(node), "", 0});
    judge = {test_life(0, 4), "test", "token", &state};
    hello.job = "test";
    hello.token = "token";
    hello.node = NodeId(1);
    hello.incarnation = Incarnation(1);
    hello.generation = Generation(3);
    hello.purpose = Purpose::data;
    hello.seat = Seat(1);
  }
  [[nodiscard]] std::string refusal(PeerRefusal* kind = nullptr) const {
    const auto refused = judge_hello(hello, judge);
    if (refused && kind != nullptr) *kind = refused->refusal;
    return refused ? refused->why : "";
  }
  JobState state;
  HelloJudge judge;
  Hello hello;
};

TEST_F(Judged, AMemberIsWelcome) {
  EXPECT_EQ(refusal(), "");
  hello.expected = Incarnation(4);
  EXPECT_EQ(refusal(), "");
  hello.purpose = Purpose::fetch;
  EXPECT_EQ(refusal(), "");
}

TEST_F(Judged, StrangersAreRefusedForEver) {
  PeerRefusal kind{};
  hello.token = "wrong";
  EXPECT_NE(refusal(&kind).find("token"), std::string::npos);
  EXPECT_EQ(kind, PeerRefusal::never);
  hello.token = "token";
  hello.job = "other";
  EXPECT_NE(refusal(&kind).find("another job (test)"), std::string::npos);
  EXPECT_EQ(kind, PeerRefusal::stale);  // whose node had this address is gone
  hello.version = kPeerWireVersion + 1;
  EXPECT_NE(refusal(&kind).find("one release"), std::string::npos);
  EXPECT_EQ(kind, PeerRefusal::never);
}

TEST_F(Judged, OldLivesAndGenerationsAreStaleLaterOnesTooEarly) {
  PeerRefusal kind{};
  hello.generation = Generation(2);
  EXPECT_NE(refusal(&kind), "");
  EXPECT_EQ(kind, PeerRefusal::stale);
  hello.generation = Generation(4);
  EXPECT_NE(refusal(&kind), "");
  EXPECT_EQ(kind, PeerRefusal::later);
  judge.state = nullptr;
  hello.generation = Generation(0);
  EXPECT_NE(refusal(&kind), "");
  EXPECT_EQ(kind, PeerRefusal::later);
  hello.purpose = Purpose::link;
  EXPECT_EQ(refusal(), "");  // links stand in every generation
  hello.expected = Incarnation(3);
  EXPECT_NE(refusal(&kind), "");
  EXPECT_EQ(kind, PeerRefusal::stale);
}

TEST_F(Judged, ASeatsStreamComesFromWhoSitsThere) {
  hello.seat = Seat(0);
  EXPECT_EQ(refusal(), "that seat is not yours");
  hello.seat = Seat(7);
  EXPECT_EQ(refusal(), "that seat is not yours");
  hello.purpose = Purpose::lane;
  EXPECT_EQ(refusal(), "that seat is not yours");
  hello.seat = Seat(1);
  EXPECT_EQ(refusal(), "");
  hello.token = "wrong";
  EXPECT_NE(refusal().find("wrong token"), std::string::npos);
  hello.token = "token";
  state.evicted = {test_life(1)};
  EXPECT_EQ(refusal(), "you were evicted");
  state.evicted.clear();
  hello.purpose = static_cast<Purpose>(9);
  EXPECT_EQ(refusal(), "unknown purpose");
}

TEST_F(Judged, ALaneIsOfAMembersStreamInThisGeneration) {
  PeerRefusal kind{};
  hello.purpose = Purpose::lane;
  EXPECT_EQ(refusal(), "");
  hello.generation = Generation(2);
  EXPECT_EQ(refusal(&kind), "that generation is over");
  EXPECT_EQ(kind, PeerRefusal::stale);
  hello.version = kPeerWireVersion - 1;
  EXPECT_NE(refusal(&kind).find("one release"), std::string::npos);
  EXPECT_EQ(kind, PeerRefusal::never);
}

class Listens : public testing::Test {
 protected:
  ~Listens() override {
    loop.run([this] { peers.reset(); });
  }
  PeerEnd connect() {
    auto [ours, theirs] = connected_pair();
    loop.run([&, stream = std::make_shared<Fd>(std::move(ours))] { peers->adopt(real_stream(std::move(*stream))); });
    return PeerEnd(std::move(theirs));
  }
  void pass(Duration time) {
    loop.run([&] { node.pass(time); });
  }
  // As node 1, for a link.
  void greet(PeerEnd& end) {
    Hello hello;
    hello.job = "test";
    hello.token = "token";
    hello.node = NodeId(1);
    hello.incarnation = Incarnation(1);
    end.say(hello);
    end.next<WelcomeMessage>();
  }

  std::vector<std::uint64_t> reported;  // what node 1 knows to be committed
  TestNode node;
  RunningLoop loop{real_environment()};
  std::unique_ptr<PeerListener> peers = loop.run([this] {
    PeerListener::Handlers handlers;
    handlers.on_beat = [](NodeId, Generation) {};
    handlers.on_report = [this](NodeId, Generation, const SeatReport& report) {
      reported.push_back(report.known.committed.value);
    };
    return std::make_unique<PeerListener>(loop.loop(), node.context, "token",
                                          real_listener(*listen_tcp({"127.0.0.1", 0})), handlers);
  });
};

TEST_F(Listens, WhoRunsAnotherVersionIsToldSoAndCounted) {
  const Counter& refused = node.context.metrics.counter("peers_of_other_version_total", "");
  PeerEnd old = connect();
  Hello hello;
  hello.version = kPeerWireVersion - 1;
  old.say(hello);
  EXPECT_EQ(old.next<PeerRefusedMessage>().why, text("this is version ", kPeerWireVersion, ", yours ",
                                                     kPeerWireVersion - 1, ": run one release on all nodes"));
  EXPECT_EQ(refused.value(), 1u);
  PeerEnd link = connect();
  greet(link);
  EXPECT_EQ(refused.value(), 1u);
  PeerEnd lane = connect();
  hello.purpose = Purpose::lane;
  lane.say(hello);
  EXPECT_EQ(lane.next<PeerRefusedMessage>().refusal, PeerRefusal::never);
  EXPECT_EQ(refused.value(), 2u);
}

TEST_F(Listens, WhoeverIsSilentIsClosed) {
  node.learn(JobPhase::running);
  loop.run([&] { peers->open(); });
  PeerEnd stranger = connect();
  PeerEnd link = connect();
  greet(link);
  for (int i = 0; i < 5; ++i) {
    pass(1s);
    link.say(BeatMessage{Generation(1)});
    link.next<BeatBackMessage>();
  }
  EXPECT_TRUE(stranger.is_closed());  // it never said who it is
  for (int i = 0; i < 5; ++i) pass(1s);
  EXPECT_TRUE(link.is_closed());  // its machine is gone
}

// Over a slow network the old connection still brings a report when the new one has brought a later one. Taken, it would
// stand until the node has something new to say: at the end of a job that is never.
TEST_F(Listens, ANewLinkEndsTheOldOneOfThatNode) {
  node.learn(JobPhase::running);
  loop.run([&] { peers->open(); });
  const auto say = [](PeerEnd& end, std::uint64_t committed) {
    end.say(ReportMessage{Generation(1), SeatReport{Progress{Step(committed), 0}, 0, 0}});
  };
  PeerEnd older = connect();
  greet(older);
  PeerEnd newer = connect();
  greet(newer);
  say(newer, 36);
  newer.say(BeatMessage{Generation(1)});
  newer.next<BeatBackMessage>();
  EXPECT_TRUE(older.is_closed());
  loop.run([&] { EXPECT_EQ(reported, std::vector<std::uint64_t>{36}); });
}

}  // namespace
}  // namespace pawl::job
