// What a keeper decides, with a node that only writes down what it is told and a clock that the test turns.
#include "job/daemon/node_keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using Words = std::vector<std::string>;

constexpr std::string_view kAlive = "alive 90000000000";  // and has registered

class NodeOnPaper final : public NodeKeeper::Node {
 public:
  Words done;
  bool no_daemon = false;
  bool no_trainer = false;
  std::uint64_t resident = 0;

  // What was done since the last time.
  Words take() { return std::exchange(done, {}); }

  Result<std::uint64_t> next_incarnation(std::uint64_t last) override { return last + 1; }
  Result<std::uint64_t> start_daemon(std::uint64_t incarnation, std::span<const HeldSegment> held,
                                     std::span<const FromKeeper> news) override {
    if (no_daemon) return Error{Code::not_found, "no such program"};
    std::string names;
    for (const HeldSegment& segment : held) names += " " + segment.name;
    done.push_back(text("start daemon ", incarnation, names));
    for (const FromKeeper& one : news) tell(one);
    return ++pid_;
  }
  void terminate_daemon() override { done.push_back("terminate daemon"); }
  void kill_daemon() override {
    done.push_back("kill daemon");
    resident = 0;  // it gives it back, and shows none of it any more
  }
  Result<StartedTrainer> start_trainer(std::uint32_t local_index, std::span<const std::string> environment) override {
    if (no_trainer) return Error{Code::not_found, "no such trainer"};
    std::string variables;
    for (const std::string& variable : environment) variables += " " + variable;
    done.push_back(text("start trainer ", local_index, variables));
    return StartedTrainer{++pid_, 1000 + pid_, "here"};
  }
  void terminate_trainer(std::uint32_t local_index) override {
    done.push_back(text("terminate trainer ", local_index));
  }
  void kill_trainer(std::uint32_t local_index) override { done.push_back(text("kill trainer ", local_index)); }
  std::uint64_t memory_bytes() override { return resident; }
  void tell(const FromKeeper& news) override { done.push_back("tell " + packet_of(news)); }
  void let_go(std::vector<HeldSegment> segments) override {
    for (const HeldSegment& segment : segments) let_go_of.push_back(segment.name);
  }
  bool is_giving_back() override { return giving_back; }
  Words let_go_of;
  bool giving_back = false;

 private:
  std::uint64_t pid_ = 0;
};

class NodeKeeperTest : public testing::Test {
 protected:
  explicit NodeKeeperTest(Duration stop_grace = {}) : keeper_(options(stop_grace), node_) {
    keeper_.begin(now_);
    EXPECT_EQ(node_.take(), Words{"start daemon 1"});
  }
  static NodeKeeperOptions options(Duration stop_grace) {
    NodeKeeperOptions options;
    options.node = NodeId(3);
    options.seats_per_node = 2;
    options.silence = seconds(3);
    options.daemon_silence = milliseconds(1500);
    options.lease = seconds(5);
    options.stop_grace = stop_grace;
    options.log_path = "/run/log";
    return options;
  }
  void say(std::string_view packet, int descriptors = 0) {
    std::vector<Fd> fds;
    for (int i = 0; i < descriptors; ++i) fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    keeper_.on_message(packet, std::move(fds), now_);
  }
  // Lets time pass as a keeper does that is not stopped. `alive`: what pawld says all the while.
  void pass(Duration duration, std::string_view alive = "") {
    const Duration end = now_ + duration;
    while (now_ < end) {
      now_ = std::min(end, now_ + std::max<Duration>(keeper_.wait(now_), milliseconds(1)));
      if (!alive.empty()) say(alive);
      keeper_.turn(now_);
    }
  }
  void daemon_exits() { keeper_.on_daemon_exit("exited 1", now_); }
  void trainer_exits(std::uint32_t local_index) { keeper_.on_trainer_exit(local_index, "exited 1", now_); }

  Duration now_ = seconds(100);
  NodeOnPaper node_;
  NodeKeeper keeper_;
};

TEST_F(NodeKeeperTest, PawldThatDiesComesBackAtOnceWithWhatIsHeld) {
  say("hold page.0", 1);
  say("hold own.1", 1);
  say("hold own.2", 1);
  say("drop own.1");
  say("hold page.0", 1);  // a later one of the same name replaces it
  pass(seconds(2), kAlive);
  daemon_exits();
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"start daemon 1 own.2 page.0"});
  EXPECT_EQ(node_.let_go_of, (Words{"own.1", "page.0"})) << "closing them may take time, so it is Node's";
}

TEST_F(NodeKeeperTest, ANewPawldHearsOfTrainersThatLiveAndOfThoseThatDiedMeanwhile) {
  say("spawn 0\nA=1");
  say("spawn 1");
  EXPECT_EQ(node_.take(),
            (Words{"start trainer 0 A=1", "tell spawned 0 2 1002", "start trainer 1", "tell spawned 1 3 1003"}));
  pass(seconds(2), kAlive);
  daemon_exits();
  trainer_exits(1);
  EXPECT_EQ(node_.take(), Words{}) << "nobody is there to be told";
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(),
            (Words{"start daemon 1", "tell spawned 0 2 1002", "tell exited 1 3 exited 1, its output is in here"}));
}

TEST_F(NodeKeeperTest, FiveShortLivesInARowEndTheNode) {
  say("spawn 0");
  node_.take();
  for (int life = 1; life < 5; ++life) {
    daemon_exits();
    keeper_.turn(now_);
    EXPECT_EQ(node_.take(), Words{}) << "not at once";
    pass(milliseconds(200));
    EXPECT_EQ(node_.take(), (Words{"start daemon 1", "tell spawned 0 2 1002"}));
  }
  daemon_exits();
  EXPECT_EQ(node_.take(), Words{"kill trainer 0"});
  EXPECT_FALSE(keeper_.outcome());
  trainer_exits(0);
  ASSERT_TRUE(keeper_.outcome() && !*keeper_.outcome());
  EXPECT_EQ(keeper_.outcome()->error().code, Code::unreachable);
  EXPECT_EQ(keeper_.outcome()->error().what,
            "pawld of node 3 died 5 times within a second of its start (exited 1); see /run/log");
}

TEST_F(NodeKeeperTest, ALongLifeForgivesShortOnes) {
  for (int life = 1; life <= 12; ++life) {
    if (life % 4 == 0) pass(seconds(2), kAlive);
    daemon_exits();
    pass(milliseconds(200));
    EXPECT_EQ(node_.take(), Words{"start daemon 1"}) << life;
  }
}

TEST_F(NodeKeeperTest, SilentPawldIsKilled) {
  pass(milliseconds(4500));
  EXPECT_EQ(node_.take(), Words{}) << "it scans its segments before its first word";
  pass(milliseconds(1));
  EXPECT_EQ(node_.take(), Words{"kill daemon"});
  daemon_exits();
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"start daemon 1"});
  pass(seconds(1), kAlive);
  pass(milliseconds(1500));
  EXPECT_EQ(node_.take(), Words{});
  pass(milliseconds(1));
  EXPECT_EQ(node_.take(), Words{"kill daemon"});
}

// The machine was suspended, and pawld with it.
TEST_F(NodeKeeperTest, WhileTheKeeperDidNotRunPawldIsNotSilent) {
  pass(seconds(1), kAlive);
  now_ += milliseconds(2000);  // of a silence of 3 s, so that nobody is fenced
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{});
  pass(milliseconds(1500));
  EXPECT_EQ(node_.take(), Words{});
  pass(milliseconds(1));
  EXPECT_EQ(node_.take(), Words{"kill daemon"});
}

TEST_F(NodeKeeperTest, ANewLifeBeginsWhenTheMemoryOfTheLastIsThere) {
  say("hold own.1", 1);
  node_.take();
  node_.giving_back = true;
  say("reset evicted");
  daemon_exits();
  EXPECT_EQ(node_.take(), Words{"kill daemon"});
  pass(seconds(30));
  EXPECT_EQ(node_.take(), Words{});
  EXPECT_EQ(keeper_.incarnation(), 1u);
  EXPECT_EQ(node_.let_go_of, Words{"own.1"});
  EXPECT_GT(keeper_.wait(now_), Duration::zero());
  node_.giving_back = false;
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"start daemon 2"});
  node_.giving_back = true;  // an arena of this life: others may not wait for that
  daemon_exits();
  pass(milliseconds(200));
  EXPECT_EQ(node_.take(), Words{"start daemon 2"});
  say("reset evicted");
  daemon_exits();
  node_.take();
  keeper_.end(3, now_);
  ASSERT_TRUE(keeper_.outcome() && *keeper_.outcome());
  EXPECT_EQ(**keeper_.outcome(), 3);
}

TEST_F(NodeKeeperTest, ADyingPawldIsNeitherSilentNorFollowedBeforeItHasEnded) {
  pass(seconds(2), kAlive);
  node_.take();
  keeper_.on_daemon_dying(now_);
  EXPECT_EQ(node_.take(), Words{"kill daemon"}) << "with all its threads";
  pass(seconds(4));
  EXPECT_EQ(node_.take(), Words{}) << "it may still write, and has its sockets";
  daemon_exits();
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"start daemon 1"});
  pass(seconds(1), kAlive);
  keeper_.on_daemon_dying(now_);
  node_.take();
  pass(seconds(5));
  EXPECT_EQ(node_.take(), Words{}) << "until then it may have renewed the lease";
  pass(milliseconds(1));
  EXPECT_EQ(node_.take(), Words{"kill daemon"}) << "the lease has ended, and a dead pawld can't judge it";
}

TEST_F(NodeKeeperTest, ADyingPawldThatNeverEndsEndsTheNode) {
  pass(seconds(1));
  keeper_.on_daemon_dying(now_);
  pass(seconds(11));
  daemon_exits();
  ASSERT_TRUE(keeper_.outcome() && !*keeper_.outcome());
  EXPECT_NE(keeper_.outcome()->error().what.find("was killed and did not end"), std::string::npos);
}

TEST_F(NodeKeeperTest, APawldThatEndsInGoodOrderIsNoDeath) {
  say("end 0");
  node_.take();
  keeper_.on_daemon_dying(now_);
  EXPECT_EQ(node_.take(), Words{});
  daemon_exits();
  EXPECT_TRUE(keeper_.outcome());
}

TEST_F(NodeKeeperTest, AKeeperThatWasStoppedFencesItsNodeAndKeepsItsMemory) {
  say("hold own.1", 1);
  say("spawn 0");
  pass(seconds(1), kAlive);
  node_.take();
  now_ += seconds(3) + milliseconds(1);
  say("alive 1");
  EXPECT_EQ(node_.take(), (Words{"kill trainer 0", "kill daemon"}));
  say("spawn 1");  // of the old life
  say("end 0");
  daemon_exits();
  EXPECT_EQ(node_.take(), Words{}) << "a trainer of the old life may still run";
  trainer_exits(0);
  EXPECT_EQ(node_.take(), (Words{"start daemon 1 own.1", "tell exited 0 2 exited 1, its output is in here"}))
      << "the next pawld sees what has become of this life";
  EXPECT_EQ(keeper_.incarnation(), 1U);
  keeper_.was_busy(seconds(20));  // to begin again may take time: that is no stall
  keeper_.turn(now_);             // still of that moment
  now_ += seconds(20);
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"kill daemon"}) << "it said nothing in all that time";
}

TEST_F(NodeKeeperTest, WhatWasHandedOverWhileTheKeeperWasStoppedIsHeld) {
  say("hold own.1", 1);
  say("hold own.2", 1);
  pass(seconds(1), kAlive);
  node_.take();
  now_ += seconds(4);
  say("drop own.1");
  say("hold own.3", 1);  // steps were acknowledged on it
  say("spawn 0");
  EXPECT_EQ(node_.take(), Words{"kill daemon"});
  daemon_exits();
  EXPECT_EQ(node_.take(), Words{"start daemon 1 own.2 own.3"});
  say("reset evicted");
  say("hold own.4", 1);
  node_.take();
  daemon_exits();
  EXPECT_EQ(node_.take(), Words{"start daemon 2"});
  EXPECT_EQ(node_.let_go_of, (Words{"own.1", "own.2", "own.3"}));  // the last came too late to be held
}

TEST_F(NodeKeeperTest, AFencedNodeThatWasEvictedBeginsANewLife) {
  say("hold own.1", 1);
  say("spawn 0");
  pass(seconds(1), kAlive);
  node_.take();
  say("fence cut off");
  EXPECT_EQ(node_.take(), (Words{"kill trainer 0", "kill daemon"}));
  trainer_exits(0);
  daemon_exits();
  EXPECT_EQ(node_.take(), (Words{"start daemon 1 own.1", "tell exited 0 2 exited 1, its output is in here"}));
  pass(seconds(60), "alive 0");  // it is still cut off, and can't know
  EXPECT_EQ(node_.take(), Words{});
  say("reset evicted in generation 2");
  daemon_exits();
  EXPECT_EQ(node_.take(), (Words{"kill daemon", "start daemon 2"}));
}

TEST_F(NodeKeeperTest, OwnWorkIsNoStall) {
  say("spawn 0");
  pass(seconds(1), kAlive);
  node_.take();
  const Duration event = now_;
  keeper_.was_busy(seconds(4));                   // a trainer was started from a slow disk
  keeper_.on_trainer_exit(1, "exited 1", event);  // of the same moment
  now_ += seconds(4);
  say(kAlive);
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{});
  now_ += seconds(3) + milliseconds(1);
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), (Words{"kill trainer 0", "kill daemon"}));
}

TEST_F(NodeKeeperTest, ResetBeginsANewLifeWithNothing) {
  say("hold own.1", 1);
  say("spawn 0");
  node_.take();
  say("reset evicted");
  EXPECT_EQ(node_.take(), (Words{"kill trainer 0", "kill daemon"}));
  trainer_exits(0);
  daemon_exits();
  EXPECT_EQ(node_.take(), Words{"start daemon 2"});
  say("kill 0");
  EXPECT_EQ(node_.take(), Words{"tell exited 0 0 was not running"});
}

TEST_F(NodeKeeperTest, ASpawnIsRefusedWhereOneRunsOrNoneMay) {
  say("spawn 2");
  EXPECT_EQ(node_.take(), Words{});
  say("spawn 0");
  node_.take();
  say("spawn 0");
  EXPECT_EQ(node_.take(), Words{"tell spawned 0 2 1002"});
  node_.no_trainer = true;
  say("spawn 1");
  EXPECT_EQ(node_.take(), Words{"tell exited 1 0 no such trainer"});
}

TEST_F(NodeKeeperTest, AKilledTrainerIsToldWhenItHasEnded) {
  say("spawn 0");
  node_.take();
  say("kill 0");
  EXPECT_EQ(node_.take(), Words{"kill trainer 0"});
  trainer_exits(0);
  EXPECT_EQ(node_.take(), Words{"tell exited 0 2 exited 1, its output is in here"});
  say("kill 0");
  EXPECT_EQ(node_.take(), Words{"tell exited 0 2 exited 1, its output is in here"});
}

TEST_F(NodeKeeperTest, WhatIsNotUnderstoodChangesNothing) {
  say("sing");
  say("hold own.1");  // no descriptor
  say("hold own.1", 2);
  say("");
  pass(seconds(2), kAlive);
  daemon_exits();
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"start daemon 1"});
}

TEST_F(NodeKeeperTest, TheEndLetsAllEndThemselvesTrainersFirst) {
  say("spawn 0");
  say("spawn 1");
  node_.take();
  say("end 7");
  EXPECT_EQ(node_.take(), (Words{"terminate trainer 0", "terminate trainer 1"}));
  keeper_.end(128 + 15, now_);  // the first code counts
  trainer_exits(0);
  pass(seconds(2));
  EXPECT_EQ(node_.take(), (Words{"kill trainer 1", "terminate daemon"}));
  trainer_exits(1);
  pass(seconds(1));
  EXPECT_EQ(node_.take(), Words{"kill daemon"});
  EXPECT_FALSE(keeper_.outcome());
  daemon_exits();
  ASSERT_TRUE(keeper_.outcome() && *keeper_.outcome());
  EXPECT_EQ(**keeper_.outcome(), 7);
}

class StoppedNode : public NodeKeeperTest {
 protected:
  StoppedNode() : NodeKeeperTest(seconds(30)) { say("spawn 0"); }
  [[nodiscard]] int code() const { return keeper_.outcome() && *keeper_.outcome() ? **keeper_.outcome() : -1; }
};

TEST_F(StoppedNode, EndsWhenPawldSaysSo) {
  node_.take();
  keeper_.stop(15, now_);
  EXPECT_EQ(node_.take(), Words{"tell stop 15 30000"});
  pass(seconds(10), kAlive);
  EXPECT_EQ(node_.take(), Words{}) << "its trainers go on";
  say("end 1");
  EXPECT_EQ(node_.take(), Words{"terminate trainer 0"});
  trainer_exits(0);
  daemon_exits();
  EXPECT_EQ(code(), 128 + 15);
}

TEST_F(StoppedNode, EndsAfterItsGrace) {
  keeper_.stop(15, now_);
  node_.take();
  pass(milliseconds(29900), kAlive);
  EXPECT_EQ(node_.take(), Words{});
  pass(milliseconds(200), kAlive);
  EXPECT_EQ(node_.take(), Words{"terminate trainer 0"});
}

TEST_F(StoppedNode, ASecondSignalEndsItAtOnce) {
  keeper_.stop(2, now_);
  pass(milliseconds(500), kAlive);
  node_.take();
  keeper_.stop(15, now_);
  EXPECT_EQ(node_.take(), Words{}) << "all processes of a session are told, and we tell it again";
  pass(seconds(2), kAlive);
  node_.take();
  keeper_.stop(2, now_);
  EXPECT_EQ(node_.take(), Words{"terminate trainer 0"});
}

TEST_F(StoppedNode, ANewPawldHearsOfItWithWhatIsLeft) {
  pass(seconds(2), kAlive);
  keeper_.stop(15, now_);
  pass(seconds(10), kAlive);
  daemon_exits();
  node_.take();
  keeper_.turn(now_);
  const Words done = node_.take();
  ASSERT_FALSE(done.empty());
  EXPECT_EQ(done.front(), "start daemon 1");
  EXPECT_EQ(done.back(), "tell stop 15 20000");
}

TEST_F(StoppedNode, BeginsNoNewLife) {
  keeper_.stop(15, now_);
  say("reset evicted");
  trainer_exits(0);
  daemon_exits();
  keeper_.turn(now_);
  EXPECT_EQ(code(), 128 + 15);
}

TEST_F(NodeKeeperTest, AnEndedNodeThatHasNothingToWaitForEndsAtOnce) {
  say("end 0");
  EXPECT_EQ(node_.take(), Words{"terminate daemon"});
  daemon_exits();
  ASSERT_TRUE(keeper_.outcome() && *keeper_.outcome());
  EXPECT_EQ(**keeper_.outcome(), 0);
}

TEST_F(NodeKeeperTest, AnEndedNodeBeginsNoNewLife) {
  say("reset evicted");
  node_.take();
  keeper_.end(128 + 15, now_);
  daemon_exits();
  EXPECT_EQ(node_.take(), Words{});
  ASSERT_TRUE(keeper_.outcome() && *keeper_.outcome());
  EXPECT_EQ(**keeper_.outcome(), 128 + 15);
}

TEST_F(NodeKeeperTest, PawldThatCannotBeStartedEndsTheNode) {
  say("spawn 0");
  pass(seconds(2), kAlive);
  node_.take();
  node_.no_daemon = true;
  daemon_exits();
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"kill trainer 0"});
  trainer_exits(0);
  ASSERT_TRUE(keeper_.outcome() && !*keeper_.outcome());
  EXPECT_EQ(keeper_.outcome()->error().what, "no such program");
}

// --- What doesn't die

TEST_F(NodeKeeperTest, ANodeWhoseKilledProcessesLiveOnDoesNotComeBack) {
  say("spawn 0");
  say("spawn 1");
  pass(seconds(1), kAlive);
  say("reset evicted");
  trainer_exits(0);
  node_.take();
  pass(seconds(10) - milliseconds(1));
  EXPECT_FALSE(keeper_.outcome());
  pass(milliseconds(1));
  EXPECT_EQ(node_.take(), Words{}) << "no pawld is started beside the old processes";
  ASSERT_TRUE(keeper_.outcome() && !*keeper_.outcome());
  EXPECT_EQ(keeper_.outcome()->error().code, Code::timeout);
  const std::string& what = keeper_.outcome()->error().what;
  EXPECT_NE(what.find("node 3 can't come back: pawld (process 1), trainer 1 (process 3)"), std::string::npos) << what;
}

TEST_F(NodeKeeperTest, MuchMemoryMayTakeLongerToGiveBack) {
  pass(seconds(1), kAlive);
  node_.resident = std::uint64_t{64} << 30;
  say("reset evicted");
  pass(seconds(70));
  EXPECT_FALSE(keeper_.outcome());
  daemon_exits();
  EXPECT_EQ(node_.take(), (Words{"kill daemon", "start daemon 2"}));
}

TEST_F(NodeKeeperTest, TheEndOfTheJobIsNotHeldUpByWhatDoesNotDie) {
  say("end 0");
  pass(seconds(20));
  ASSERT_TRUE(keeper_.outcome() && *keeper_.outcome());
  EXPECT_EQ(**keeper_.outcome(), 0);
}

TEST_F(NodeKeeperTest, AKilledPawldThatLivesOnEndsTheNode) {
  say("spawn 0");
  node_.take();
  pass(milliseconds(4501));  // it has never registered: no lease can end
  EXPECT_EQ(node_.take(), Words{"kill daemon"});
  pass(seconds(10) - milliseconds(1));
  EXPECT_EQ(node_.take(), Words{}) << "once is enough";
  pass(milliseconds(1));
  EXPECT_EQ(node_.take(), (Words{"kill trainer 0", "kill daemon"}));
  trainer_exits(0);
  pass(seconds(10));
  ASSERT_TRUE(keeper_.outcome() && !*keeper_.outcome());
  EXPECT_NE(keeper_.outcome()->error().what.find("node 3 can't come back: pawld (process 1)"), std::string::npos);
}

// --- The lease

TEST_F(NodeKeeperTest, ANodeWithoutPawldFencesItselfWhenItsLeaseHasEnded) {
  say("spawn 0");
  pass(seconds(2), kAlive);
  node_.take();
  pass(milliseconds(1501));
  EXPECT_EQ(node_.take(), Words{"kill daemon"});
  pass(seconds(5));  // it stands in the kernel, and doesn't end
  EXPECT_EQ(node_.take(), Words{}) << "it may have renewed its lease until it was killed";
  pass(milliseconds(1));
  EXPECT_EQ(node_.take(), (Words{"kill trainer 0", "kill daemon"}));
  daemon_exits();
  trainer_exits(0);
  EXPECT_EQ(node_.take(), (Words{"start daemon 1", "tell exited 0 2 exited 1, its output is in here"}));
}

TEST_F(NodeKeeperTest, PawldsThatNeverSayAWordAreNoPawld) {
  pass(seconds(2), kAlive);
  daemon_exits();
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"start daemon 1"});
  pass(seconds(4));
  daemon_exits();
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"start daemon 1"}) << "the lease has not ended yet";
  pass(seconds(2));
  EXPECT_EQ(node_.take(), Words{}) << "it may be about to say its first word";
  daemon_exits();
  EXPECT_EQ(node_.take(), Words{});
  say("hold own.1", 1);
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), Words{"start daemon 1 own.1"}) << "fenced: nothing ran that could be killed";
}

TEST_F(NodeKeeperTest, PawldThatLivesJudgesForItself) {
  say("spawn 0");
  pass(seconds(2), kAlive);
  node_.take();
  pass(seconds(60), kAlive);     // the control is away: it renews nothing
  pass(seconds(60), "alive 0");  // so says one that has not joined yet
  EXPECT_EQ(node_.take(), Words{});
  daemon_exits();
  keeper_.turn(now_);
  EXPECT_EQ(node_.take(), (Words{"start daemon 1", "tell spawned 0 2 1002"})) << "that it was killed fences nobody";
}

}  // namespace
}  // namespace pawl::job
