#include "job/recovery/protection.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Generation kGeneration{3};

SlotWord word(Step step, SlotState state, bool frozen = false, Generation generation = kGeneration) {
  return {generation, step, state, frozen};
}

class Protects : public testing::Test {
 protected:
  Protects() {
    view.now = 100s;
    view.generation = kGeneration;
    view.committed = Step(40);
    view.seats = {
        {Seat(0), Step(42), {word(Step(41), SlotState::sealed), word(Step(42), SlotState::dirty)}, Step(0), {}}};
  }
  SeatProtection& seat() { return view.seats[0]; }
  [[nodiscard]] std::optional<ProtectionObstacle> obstacle() {
    return obstacle_of(seat(), view.generation, view.committed);
  }
  ProtectionChange judge() {
    const ProtectionVerdict verdict = judge_protection(view, notes, deadlines);
    notes = verdict.notes;
    return verdict.change;
  }
  // So long, and so many windows later.
  ProtectionChange after(Duration time, std::uint64_t windows) {
    view.now += time;
    seat().reached = Step(seat().reached.value + windows);
    return judge();
  }
  Deadlines deadlines = derive_deadlines(3s);
  ProtectionView view;
  ProtectionNotes notes;
};

TEST_F(Protects, ASeatsObstacleIsNamed) {
  EXPECT_EQ(obstacle(), (ProtectionObstacle{"step 41 is on its way to its holders", false}));
  seat().obstacles = {{0, "node 1 can't take it: no room"}, {1, "node 2 can't be reached"}};
  EXPECT_EQ(obstacle(), (ProtectionObstacle{"node 1 can't take it: no room; node 2 can't be reached", true}));
  seat().slots[1].frozen = true;
  EXPECT_EQ(obstacle(), (ProtectionObstacle{"its slot 1 is frozen, at step 42", true}));
  seat().obstacles.clear();
  seat().slots = {word(Step(40), SlotState::sealed), word(Step(39), SlotState::sealed, false, Generation(2))};
  EXPECT_TRUE(obstacle()->blocked);
  EXPECT_EQ(obstacle()->why.rfind("its own windows are void", 0), 0u);
}

// All seats hold all steps, and nobody can tell so: neither end of the link is the root.
TEST_F(Protects, ACutLinkThatStopsCommitsIsSaid) {
  seat().held = Step(42);
  (void)judge();
  EXPECT_EQ(after(100s, 20), ProtectionChange::none) << "others hold it up, and say why";
  view.cut = {NodeId(3)};
  EXPECT_EQ(after(1s, 20), ProtectionChange::stopped);
  EXPECT_NE(why_cut(NodeId(3)).find("node 3"), std::string::npos);
  view.committed = Step(41);
  view.cut.clear();
  EXPECT_EQ(after(1s, 1), ProtectionChange::resumed);
}

TEST_F(Protects, WhoHoldsANewerStepOrHasHadNoWindowIsNoObstacle) {
  seat().held = Step(41);
  EXPECT_FALSE(obstacle());
  seat().held = Step(0);
  seat().reached = Step(40);
  EXPECT_FALSE(obstacle());
}

TEST_F(Protects, AStopIsSaidOnceAndSoIsItsEnd) {
  seat().obstacles = {{0, "node 1 can't take it: no room"}};
  EXPECT_EQ(judge(), ProtectionChange::none);
  EXPECT_EQ(after(10s, 5), ProtectionChange::none);
  EXPECT_EQ(after(1ms, 0), ProtectionChange::stopped);
  EXPECT_EQ(after(60s, 50), ProtectionChange::none);
  view.committed = Step(90);
  EXPECT_EQ(judge(), ProtectionChange::resumed);
  EXPECT_EQ(after(1s, 1), ProtectionChange::none);
}

TEST_F(Protects, WithoutWindowsNothingHasStopped) {
  seat().obstacles = {{0, "node 1 can't take it: no room"}};
  (void)judge();
  EXPECT_EQ(after(1h, 1), ProtectionChange::none);  // steps of an hour
  EXPECT_EQ(after(1h, 1), ProtectionChange::stopped);
}

TEST_F(Protects, SlowCopiesHaveMoreTimeThanThoseThatAreRefused) {
  (void)judge();
  EXPECT_EQ(after(11s, 7), ProtectionChange::none);
  EXPECT_EQ(after(1s, 1), ProtectionChange::stopped);
}

TEST_F(Protects, CopiesOfManyBytesHaveMoreTime) {
  view.bytes = std::uint64_t{1} << 30;  // 10.24 s
  (void)judge();
  EXPECT_EQ(after(20s, 20), ProtectionChange::none);
  EXPECT_EQ(after(1s, 1), ProtectionChange::stopped);
}

TEST_F(Protects, WhoIsNoObstacleIsSilentUnlessItIsTheRoot) {
  seat().held = Step(41);
  (void)judge();
  EXPECT_EQ(after(11s, 20), ProtectionChange::none);
  view.is_root = true;
  EXPECT_EQ(judge(), ProtectionChange::stopped);
}

TEST_F(Protects, ARecoveryBeginsTheTimeAnewAndEndsNoStop) {
  seat().obstacles = {{0, "node 1 can't take it: no room"}};
  (void)judge();
  EXPECT_EQ(after(11s, 20), ProtectionChange::stopped);
  view.generation = Generation(4);
  EXPECT_EQ(judge(), ProtectionChange::none);
  view.committed = Step(41);
  EXPECT_EQ(judge(), ProtectionChange::resumed);
}

}  // namespace
}  // namespace pawl::job
