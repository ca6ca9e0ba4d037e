#include "job/daemon/peer_listener.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

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
  hello.seat = Seat(1);
  state.evicted = {test_life(1)};
  EXPECT_EQ(refusal(), "you were evicted");
  state.evicted.clear();
  hello.purpose = static_cast<Purpose>(9);
  EXPECT_EQ(refusal(), "unknown purpose");
}

}  // namespace
}  // namespace pawl::job
