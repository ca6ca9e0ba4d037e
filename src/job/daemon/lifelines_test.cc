#include "job/daemon/lifelines.h"

#include <gtest/gtest.h>

#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Duration kSilence = 20s;  // long: a slow machine must not look silent
const NodeLife kLife{NodeId(1), Incarnation(6)};

class LifelinesTest : public testing::Test {
 protected:
  ~LifelinesTest() override {
    loop.run([this] { lines.reset(); });
  }
  void SetUp() override {
    world.clock.stand_still();
    Hello self;
    self.job = "test";
    self.token = "secret";
    loop.run([&] {
      lines.emplace(loop.loop(), self, kSilence, [this](NodeLife life, const std::string& proof) {
        dead.push_back({life, proof});
      });
    });
  }
  void want(std::vector<Lifelines::Target> targets) {
    loop.run([&] { lines->set(targets); });
  }
  void want_one() { want({{kLife, "127.0.0.1:77"}}); }
  void tick() {
    loop.run([this] { lines->tick(); });
  }
  bool stands() {
    return loop.run([this] { return lines->stands(kLife.node); });
  }
  std::size_t deaths() {
    return loop.run([this] { return dead.size(); });
  }
  PeerEnd welcome() {
    PeerEnd keeper = world.network.accept();
    const Hello hello = keeper.next<Hello>();
    EXPECT_EQ(hello.purpose, Purpose::lifeline);
    EXPECT_EQ(hello.expected, kLife.incarnation);
    EXPECT_EQ(hello.token, "secret");
    keeper.say(WelcomeMessage{kLife.node, kLife.incarnation});
    EXPECT_TRUE(loop.eventually([this] { return lines->stands(kLife.node); }));
    return keeper;
  }

  struct Dead {
    NodeLife life;
    std::string proof;
  };
  TestWorld world;
  std::vector<Dead> dead;  // on the loop's thread
  RunningLoop loop{world.environment};
  std::optional<Lifelines> lines;
};

TEST_F(LifelinesTest, StandAndBeatNowAndThen) {
  want_one();
  PeerEnd keeper = welcome();
  EXPECT_EQ(world.network.asked(), std::vector<Address>({{"127.0.0.1", 77}}));
  tick();
  EXPECT_TRUE(keeper.is_quiet());
  world.clock.skip(kSilence + 1s);
  tick();
  (void)keeper.next<BeatMessage>();
}

TEST_F(LifelinesTest, ThatBreakAndAreRefusedThenAreADeadNode) {
  want_one();
  {
    PeerEnd keeper = welcome();
    world.network.refuse_next(1);
  }
  ASSERT_TRUE(loop.eventually([this] { return !dead.empty(); }));
  EXPECT_EQ(dead[0].life, kLife);
  EXPECT_EQ(dead[0].proof, "its keeper has died");
  world.clock.skip(600s);
  tick();
  EXPECT_EQ(deaths(), 1u);
  EXPECT_FALSE(world.network.has_waiting());
}

// A firewall may refuse one port for good, and let the others through.
TEST_F(LifelinesTest, ThatWereRefusedFromTheBeginningProveNothing) {
  world.network.refuse_next(1);
  want_one();
  EXPECT_FALSE(stands());  // by now the refusal has come
  world.clock.skip(kSilence);
  tick();
  PeerEnd keeper = welcome();  // tried again, after a while
  EXPECT_EQ(deaths(), 0u);
}

TEST_F(LifelinesTest, ThatBreakProveNothingWhileTheKeeperAccepts) {
  want_one();
  { PeerEnd keeper = welcome(); }
  PeerEnd again = welcome();
  EXPECT_EQ(deaths(), 0u);
}

// Else both would do nothing but connect.
TEST_F(LifelinesTest, ThatAreWelcomedAndBrokenAgainAndAgainPause) {
  want_one();
  int made = 0;
  for (bool again = true; again && made < 50; ++made) {
    { PeerEnd keeper = welcome(); }
    ASSERT_TRUE(loop.eventually([this] { return !lines->stands(kLife.node); }));
    again = world.network.has_waiting();  // it tries again in the turn in which it sees the break, or pauses
  }
  EXPECT_GT(made, 1) << "a keeper that dies may close its port a moment after its lines";
  EXPECT_LT(made, 20);
  world.clock.skip(2s);
  tick();
  { PeerEnd keeper = welcome(); }
  ASSERT_TRUE(loop.eventually([this] { return !lines->stands(kLife.node); }));
  world.clock.skip(1s);
  tick();
  EXPECT_FALSE(world.network.has_waiting()) << "longer each time";
  world.clock.skip(2s);
  tick();
  PeerEnd keeper = welcome();
  world.clock.skip(2s);  // it stands for a while: then the first tries are without a pause again
  { PeerEnd broken = std::move(keeper); }
  PeerEnd last = welcome();
  EXPECT_EQ(deaths(), 0u);
}

// A keeper that dies may close its port a moment after its lines.
TEST_F(LifelinesTest, ThatBreakAgainBeforeTheyAreWelcomeAreTriedOnceMoreAtOnce) {
  want_one();
  { PeerEnd keeper = welcome(); }
  {
    PeerEnd backlog = world.network.accept();
    (void)backlog.next<Hello>();
    world.network.refuse_next(1);
  }
  ASSERT_TRUE(loop.eventually([this] { return !dead.empty(); }));
  EXPECT_EQ(dead[0].proof, "its keeper has died");
}

TEST_F(LifelinesTest, ToALifeThatIsOverAreADeadNode) {
  want_one();
  PeerEnd keeper = world.network.accept();
  (void)keeper.next<Hello>();
  keeper.say(PeerRefusedMessage{PeerRefusal::stale, "that life of this node is over"});
  EXPECT_TRUE(loop.eventually([this] { return dead.size() == 1; }));
}

TEST_F(LifelinesTest, ThatAreRejectedProveNothing) {
  want_one();
  PeerEnd keeper = world.network.accept();
  (void)keeper.next<Hello>();
  keeper.say(PeerRefusedMessage{PeerRefusal::never, "wrong token"});
  EXPECT_TRUE(keeper.is_closed());
  EXPECT_EQ(deaths(), 0u);
}

TEST_F(LifelinesTest, ThatANetworkHasForgottenAreMadeAnew) {
  want_one();
  PeerEnd first = welcome();
  world.clock.skip(4 * kSilence);
  tick();
  PeerEnd second = welcome();
  EXPECT_TRUE(first.is_closed());
  EXPECT_EQ(deaths(), 0u);
}

TEST_F(LifelinesTest, ThatNobodyAnswersAreTriedAgain) {
  want_one();
  PeerEnd mute = world.network.accept();
  (void)mute.next<Hello>();
  world.clock.skip(kSilence + 1s);
  tick();
  EXPECT_TRUE(mute.is_closed());
  world.clock.skip(kSilence);
  tick();
  PeerEnd keeper = welcome();
}

TEST_F(LifelinesTest, StayWhereTheAddressIsNoLongerKnownAndEndWithTheirTarget) {
  want_one();
  PeerEnd keeper = welcome();
  want({{kLife, ""}});  // its registration has ended, with its lease
  EXPECT_TRUE(stands());
  want({{{kLife.node, Incarnation(7)}, ""}});
  EXPECT_TRUE(keeper.is_closed());
  EXPECT_EQ(deaths(), 0u);
}

}  // namespace
}  // namespace pawl::job
