#include "job/daemon/neighbours.h"

#include <gtest/gtest.h>

#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Duration kBudget = 30s;  // long: a slow machine must not look silent

NodeLife life_of(std::uint32_t node, std::uint64_t incarnation = 6) {
  return {NodeId(node), Incarnation(incarnation)};
}

class Links : public testing::Test {
 protected:
  ~Links() override {
    loop.run([this] { neighbours.reset(); });
  }
  void SetUp() override {
    world.clock.stand_still();
    Hello self;
    self.job = "test";
    self.node = NodeId(0);
    loop.run([&] {
      neighbours.emplace(loop.loop(), self, derive_deadlines(kBudget),
                         Neighbours::Handlers{.on_lost =
                                                  [this](NodeLife life, const std::string& proof) {
                                                    lost.push_back({life, proof});
                                                  },
                                              .on_evicted =
                                                  [this](NodeLife life, const std::string& why) {
                                                    evicted.push_back({life, why});
                                                  },
                                              .on_up = [this](NodeLife life) { up.push_back(life); },
                                              .on_answer = [this](NodeLife, Frame& frame) { answers.push_back(frame); },
                                              .generation = [] { return Generation(4); },
                                              .lifeline_of = [this](NodeLife) { return lifeline; }});
    });
  }
  void want(std::vector<Member> members) {
    loop.run([&] { neighbours->set(members); });
  }
  static Member member(std::uint32_t node, std::uint64_t incarnation = 6) {
    return {Seat(node), life_of(node, incarnation), text("127.0.0.1:10", node), 0};
  }
  void tick() {
    loop.run([this] { neighbours->tick(); });
  }
  bool is_up(std::uint32_t node) {
    return loop.run([&] { return neighbours->is_up(NodeId(node)); });
  }
  PeerEnd welcome() {
    PeerEnd peer = world.network.accept();
    EXPECT_EQ(peer.next<Hello>().purpose, Purpose::link);
    peer.say(WelcomeMessage{NodeId(1), Incarnation(6)});
    EXPECT_TRUE(loop.eventually([this] { return neighbours->is_up(NodeId(1)); }));
    return peer;
  }
  std::size_t lost_count() {
    return loop.run([this] { return lost.size(); });
  }

  struct Lost {
    NodeLife life;
    std::string detail;
  };
  TestWorld world;
  std::string lifeline;    // the keeper's address; empty: not known
  std::vector<Lost> lost;  // all on the loop's thread
  std::vector<Lost> evicted;
  std::vector<NodeLife> up;
  std::vector<Frame> answers;
  RunningLoop loop{world.environment};
  std::optional<Neighbours> neighbours;
};

TEST_F(Links, GreetANeighbourAndSpeakToItOnceItIsWelcome) {
  want({member(1)});
  PeerEnd peer = world.network.accept();
  const Hello hello = peer.next<Hello>();
  EXPECT_EQ(world.network.asked(), std::vector<Address>({{"127.0.0.1", 101}}));
  EXPECT_EQ(hello.purpose, Purpose::link);
  EXPECT_EQ(hello.expected, Incarnation(6));
  EXPECT_EQ(hello.generation, Generation(4));
  const Frame report = frame_of(ReportMessage{Generation(4), {}});
  EXPECT_FALSE(loop.run([&] { return neighbours->send(NodeId(1), report); }));
  peer.say(WelcomeMessage{NodeId(1), Incarnation(6)});
  EXPECT_TRUE(loop.eventually([&] { return !up.empty(); }));
  EXPECT_EQ(up, std::vector<NodeLife>{life_of(1)});
  EXPECT_TRUE(loop.run([&] { return neighbours->send(NodeId(1), report); }));
  EXPECT_EQ(peer.next<ReportMessage>().generation, Generation(4));
  EXPECT_FALSE(loop.run([&] { return neighbours->send(NodeId(2), report); }));
}

TEST_F(Links, BeatWithTheGenerationAndPassOnWhatIsAnswered) {
  want({member(1)});
  PeerEnd peer = welcome();
  tick();
  EXPECT_EQ(peer.next<BeatMessage>().generation, Generation(4));
  peer.say(BeatBackMessage{});
  peer.say(PeerValueMessage{});
  EXPECT_TRUE(loop.eventually([this] { return !answers.empty(); }));
  EXPECT_EQ(answers.size(), 1u);
  EXPECT_TRUE(is<PeerValueMessage>(answers[0]));
}

TEST_F(Links, ARefusedAddressIsALostNode) {
  world.network.refuse_next(1);
  want({member(1)});
  EXPECT_TRUE(loop.eventually([this] { return !lost.empty(); }));
  EXPECT_EQ(lost[0].life, life_of(1));
  EXPECT_EQ(lost[0].detail, "its address refuses connections");
  world.clock.skip(600s);
  tick();
  EXPECT_EQ(lost_count(), 1u);  // a life is lost once
  EXPECT_FALSE(world.network.has_waiting());
}

TEST_F(Links, AnAddressThatIsNoneIsALostNode) {
  Member nowhere = member(1);
  nowhere.address = "nowhere";
  want({nowhere});
  EXPECT_EQ(lost_count(), 1u);
}

TEST_F(Links, ABrokenLinkIsMadeAnewAtOnce) {
  want({member(1)});
  { PeerEnd first = welcome(); }
  PeerEnd second = world.network.accept();
  (void)second.next<Hello>();
  EXPECT_FALSE(is_up(1));
  EXPECT_EQ(lost_count(), 0u);  // perhaps only its pawld has died
  second.say(WelcomeMessage{NodeId(1), Incarnation(6)});
  EXPECT_TRUE(loop.eventually([this] { return up.size() == 2; }));
}

TEST_F(Links, ABrokenLinkThatIsRefusedThenIsALostNode) {
  want({member(1)});
  {
    PeerEnd peer = welcome();
    world.network.refuse_next(1);
  }
  EXPECT_TRUE(loop.eventually([this] { return !lost.empty(); }));
}

// Its pawld may hold gigabytes, and its sockets until they are given back.
TEST_F(Links, ANodeWhoseKeeperHasDiedIsLostWhileItsLinkStillStands) {
  want({member(1)});
  PeerEnd pawld = welcome();
  lifeline = "127.0.0.1:77";  // its registration comes after it became a member
  want({member(1)});
  {
    PeerEnd keeper = world.network.accept();
    (void)keeper.next<Hello>();
    keeper.say(WelcomeMessage{NodeId(1), Incarnation(6)});
    EXPECT_TRUE(keeper.is_quiet());
    world.network.refuse_next(1);
  }
  ASSERT_TRUE(loop.eventually([this] { return !lost.empty(); }));
  EXPECT_EQ(lost[0].life, life_of(1));
  EXPECT_EQ(lost[0].detail, "its keeper has died");
  EXPECT_TRUE(loop.run([this] { return neighbours->contacts()[0].refused; }));
  EXPECT_TRUE(pawld.is_closed());
  want({member(1)});
  EXPECT_EQ(lost_count(), 1u);
  EXPECT_FALSE(world.network.has_waiting());
}

// A connection that was cut may not tell when the cut is healed, and TCP tries it again after pauses that double.
TEST_F(Links, SilenceIsNoProofAndTheLinkIsTriedAgainWellWithinTheDeadline) {
  want({member(1)});
  PeerEnd first = welcome();
  const auto silent_for = [this] {
    return world.clock.now() - loop.run([this] { return neighbours->contacts()[0].heard; });
  };
  const Duration silence = derive_deadlines(kBudget).silence;
  world.clock.skip(silence / 9);
  tick();
  first.say(BeatBackMessage{});
  (void)first.next<BeatMessage>();
  EXPECT_TRUE(loop.eventually([&] { return neighbours->view()[0].silent_for < 1s; }));
  world.clock.skip(silence / 9);
  tick();
  EXPECT_TRUE(is_up(1));
  EXPECT_FALSE(world.network.has_waiting());
  world.clock.skip(silence / 9);
  tick();
  PeerEnd second = world.network.accept();
  (void)second.next<Hello>();
  EXPECT_TRUE(is_up(1));  // the first connection stays: the peer may only be slow
  EXPECT_GT(silent_for(), silence / 5);
  world.clock.skip(silence);
  tick();
  PeerEnd third = world.network.accept();
  (void)third.next<Hello>();
  for (int beats = 0; beats < 3; ++beats) (void)first.next<BeatMessage>();
  EXPECT_TRUE(first.is_closed());
  EXPECT_TRUE(second.is_closed());
  EXPECT_FALSE(is_up(1));
  EXPECT_EQ(lost_count(), 0u);
  world.clock.skip(silence / 4);  // a greeting has as long as a beat: its pawld may be slow, or restart
  tick();
  PeerEnd fourth = world.network.accept();
  (void)fourth.next<Hello>();
  third.say(WelcomeMessage{NodeId(1), Incarnation(6)});
  EXPECT_TRUE(loop.eventually([this] { return neighbours->is_up(NodeId(1)); }));
  EXPECT_LT(silent_for(), 1s);
}

// Were each connection dropped for the next, nothing would ever be heard of a peer that takes longer to answer than that.
TEST_F(Links, ASlowPeerIsHeardOnTheFirstConnectionThatItAnswers) {
  want({member(1)});
  PeerEnd first = welcome();
  const auto heard = [this] { return loop.run([this] { return neighbours->contacts()[0].heard; }); };
  const Duration silence = derive_deadlines(kBudget).silence;
  const Duration before = heard();
  const auto dialled_again = [&] {
    world.clock.skip(silence / 7);
    tick();
    PeerEnd peer = world.network.accept();
    (void)peer.next<Hello>();
    (void)first.next<BeatMessage>();
    return peer;
  };
  PeerEnd second = dialled_again();
  PeerEnd third = dialled_again();
  EXPECT_TRUE(second.is_closed());  // it did not get there, or was as slow
  first.say(BeatBackMessage{});
  EXPECT_TRUE(loop.eventually([&] { return neighbours->contacts()[0].heard > before; }));
  EXPECT_TRUE(is_up(1));
  EXPECT_EQ(loop.run([this] { return up.size(); }), 1u);
  third.say(WelcomeMessage{NodeId(1), Incarnation(6)});  // for which the peer closes the first
  EXPECT_TRUE(loop.eventually([this] { return up.size() == 2; }));
  EXPECT_TRUE(is_up(1));
  EXPECT_TRUE(first.is_closed());
}

TEST_F(Links, WhenThePeerClosesTheFirstConnectionTheOneBesideItIsUsed) {
  want({member(1)});
  std::optional<PeerEnd> first = welcome();
  world.clock.skip(derive_deadlines(kBudget).silence / 7);
  tick();
  PeerEnd second = world.network.accept();
  (void)second.next<Hello>();
  first.reset();
  EXPECT_TRUE(loop.eventually([this] { return !neighbours->is_up(NodeId(1)); }));
  EXPECT_FALSE(world.network.has_waiting());
  second.say(WelcomeMessage{NodeId(1), Incarnation(6)});
  EXPECT_TRUE(loop.eventually([this] { return neighbours->is_up(NodeId(1)); }));
}

TEST_F(Links, WhoeverRefusesUsIsAnotherLife) {
  want({member(1)});
  PeerEnd peer = world.network.accept();
  (void)peer.next<Hello>();
  peer.say(PeerRefusedMessage{PeerRefusal::stale, "another incarnation"});
  EXPECT_TRUE(loop.eventually([this] { return !lost.empty(); }));
  EXPECT_EQ(lost[0].detail, "it refused us: another incarnation");
}

// One that was started with a wrong token is rejected by all; it must not take them for dead.
TEST_F(Links, WhoRejectsOurTokenIsAliveAndAskedAgain) {
  want({member(1)});
  const auto heard = [this] { return loop.run([this] { return neighbours->contacts()[0].heard; }); };
  const Duration before = heard();
  for (int i = 0; i < 2; ++i) {
    PeerEnd peer = world.network.accept();
    (void)peer.next<Hello>();
    world.clock.skip(1s);
    peer.say(PeerRefusedMessage{PeerRefusal::never, "wrong token"});
    EXPECT_TRUE(peer.is_closed());
    EXPECT_GE(heard(), before + 1s);
    EXPECT_FALSE(is_up(1));
    tick();
  }
  EXPECT_EQ(lost_count(), 0u);
  PeerEnd peer = world.network.accept();
  (void)peer.next<Hello>();
  peer.say(WelcomeMessage{NodeId(1), Incarnation(6)});
  EXPECT_TRUE(loop.eventually([this] { return neighbours->is_up(NodeId(1)); }));
}

TEST_F(Links, WhoWasEvictedIsToldSoAndAccusesNobody) {
  want({member(1)});
  PeerEnd peer = world.network.accept();
  (void)peer.next<Hello>();
  peer.say(PeerRefusedMessage{PeerRefusal::evicted, "you were evicted"});
  EXPECT_TRUE(loop.eventually([this] { return !evicted.empty(); }));
  EXPECT_EQ(evicted[0].life, life_of(1));
  EXPECT_EQ(lost_count(), 0u);
  EXPECT_FALSE(loop.run([this] { return neighbours->contacts()[0].refused; }));
}

TEST_F(Links, LinksThatAreNotWantedAreClosedOthersStay) {
  want({member(1)});
  PeerEnd first = welcome();
  want({member(1), member(2)});
  PeerEnd second = world.network.accept();
  (void)second.next<Hello>();
  EXPECT_TRUE(is_up(1));
  want({member(2)});
  EXPECT_TRUE(first.is_closed());
  EXPECT_FALSE(is_up(1));
  want({});
  EXPECT_TRUE(second.is_closed());
  EXPECT_TRUE(loop.run([this] { return neighbours->contacts().empty(); }));
  EXPECT_EQ(lost_count(), 0u);
}

TEST_F(Links, AnotherLifeOfANodeGetsALinkOfItsOwn) {
  want({member(1)});
  PeerEnd first = welcome();
  want({member(1, 7)});
  EXPECT_TRUE(first.is_closed());
  PeerEnd second = world.network.accept();
  EXPECT_EQ(second.next<Hello>().expected, Incarnation(7));
}

}  // namespace
}  // namespace pawl::job
