#include "job/recovery/deadlines.h"

#include <gtest/gtest.h>

#include "job/recovery/classes.h"
#include "pawl/pawl.h"

namespace pawl::job {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Deadlines, OfTheDefaultBudget) {
  const Deadlines d = derive_deadlines(seconds(3));
  EXPECT_EQ(d.heartbeat_interval, milliseconds(50));
  EXPECT_EQ(d.silence, seconds(3));
  EXPECT_EQ(d.redial, milliseconds(375));
  EXPECT_EQ(d.communication_grace, milliseconds(300));
  EXPECT_EQ(d.trainer_exit_grace, milliseconds(20));
  EXPECT_EQ(d.inventory, seconds(3));
  EXPECT_EQ(d.trainer_free, seconds(10));
  EXPECT_EQ(d.restore, seconds(30));
  EXPECT_EQ(d.lease, seconds(5));
  EXPECT_EQ(d.absence, seconds(2));
  EXPECT_EQ(d.leader, seconds(3));
  EXPECT_EQ(d.fence, seconds(10));
}

TEST(Deadlines, TheirOrderHoldsForEveryBudget) {
  for (const Duration budget : {Duration(-1), Duration(0), Duration(milliseconds(1)), Duration(milliseconds(499)),
                                Duration(milliseconds(500)), Duration(milliseconds(777)), Duration(seconds(1)),
                                Duration(seconds(60)), Duration(hours(100)), Duration::max(), Duration::min()}) {
    const Deadlines d = derive_deadlines(budget);
    EXPECT_GT(d.heartbeat_interval.count(), 0);
    EXPECT_LE(d.heartbeat_interval * 10, d.silence);
    EXPECT_LE(d.redial * 2, d.silence);
    EXPECT_LT(d.silence, d.lease);
    EXPECT_EQ(d.lease % seconds(1), Duration(0));
    EXPECT_LT(d.lease / 4, d.absence);
    EXPECT_LT(d.absence, d.lease);
    EXPECT_LT(d.communication_grace, d.silence);
    EXPECT_LT(d.trainer_exit_grace, d.communication_grace);
    EXPECT_LE(d.inventory, d.trainer_free);
    EXPECT_LE(d.trainer_free, d.restore);
  }
}

// One member of the control that stops holds up one call of a node, and that is no reason to evict it.
TEST(Deadlines, AShortBudgetLeavesRoomForACallThatIsMadeAgain) {
  EXPECT_EQ(derive_deadlines(milliseconds(500)).inventory, kControlRetry);
  EXPECT_EQ(derive_deadlines(seconds(60)).inventory, seconds(60));
}

TEST(Deadlines, WhatTakesTimeByItsBytes) {
  EXPECT_EQ(time_to_give_back(0), Duration(0));
  EXPECT_LT(time_to_give_back(4 << 20), milliseconds(1));
  EXPECT_EQ(time_to_give_back(std::uint64_t{8} << 30) / milliseconds(1), 2000);
  EXPECT_EQ(time_to_move(std::uint64_t{1} << 30) / milliseconds(1), 10240);
  EXPECT_GT(time_to_move(~std::uint64_t{0}), hours(1));
}

class Fence : public testing::Test {
 protected:
  Deadlines deadlines = derive_deadlines(seconds(3));  // lease 5 s, silence 3 s
  FenceView view{seconds(100), seconds(99), seconds(100) - milliseconds(50), 4, 4, true};
};

TEST_F(Fence, ASoundNodeGoesOn) {
  EXPECT_FALSE(must_fence(view, deadlines));
}
TEST_F(Fence, TheControlAloneBeingAwayFencesNobody) {
  view.lease_renewed_boottime = seconds(10);
  EXPECT_FALSE(must_fence(view, deadlines));
}
TEST_F(Fence, WhoHearsNoMajorityFencesItself) {
  view.lease_renewed_boottime = seconds(94);
  view.heard = 3;
  EXPECT_FALSE(must_fence(view, deadlines));
  for (const std::uint32_t heard : {1u, 2u}) {  // a rack of two that was cut off together, too
    view.heard = heard;
    EXPECT_TRUE(must_fence(view, deadlines));
  }
  view.lease_renewed_boottime = seconds(96);  // not yet
  EXPECT_FALSE(must_fence(view, deadlines));
}
TEST_F(Fence, WhoCantCountTheMembersFencesIfItHearsNobody) {
  view.lease_renewed_boottime = seconds(94);
  view.knows_all = false;
  view.heard = 2;
  EXPECT_FALSE(must_fence(view, deadlines));
  view.heard = 1;
  EXPECT_TRUE(must_fence(view, deadlines));
}
TEST_F(Fence, AWokenNodeFencesItself) {
  view.lease_renewed_boottime = seconds(94);
  view.last_tick_boottime = seconds(94);
  EXPECT_TRUE(must_fence(view, deadlines));
  view.lease_renewed_boottime = seconds(98);  // a stall within the lease harms nobody
  EXPECT_FALSE(must_fence(view, deadlines));
}
TEST_F(Fence, ALoneNodeIsNotCutOff) {
  view.lease_renewed_boottime = seconds(10);
  view.members = view.heard = 1;
  EXPECT_FALSE(must_fence(view, deadlines));
}

TEST(Hang, OnlyInsideOfAStepAndOutsideOfACollective) {
  const Deadlines deadlines = derive_deadlines(seconds(3));
  const auto after = [&](Duration since, std::uint32_t phase, bool in_step, bool stopped) {
    return hangs({since, phase, stopped, in_step}, seconds(20), deadlines);
  };
  for (const std::uint32_t phase : {PAWL_PHASE_NONE, PAWL_PHASE_COMPUTE, PAWL_PHASE_FENCE, PAWL_PHASE_UPDATE}) {
    EXPECT_TRUE(after(seconds(21), phase, true, false)) << phase;
    EXPECT_FALSE(after(seconds(20), phase, true, false)) << phase;
    EXPECT_FALSE(after(seconds(21), phase, false, false)) << phase;
  }
  for (const std::uint32_t phase : {PAWL_PHASE_ALLREDUCE, PAWL_PHASE_ALLGATHER, PAWL_PHASE_JOIN, PAWL_PHASE_RESTORE,
                                    PAWL_PHASE_ASIDE, PAWL_PHASE_FINISH})
    EXPECT_FALSE(after(hours(1), phase, true, false)) << phase;
  EXPECT_TRUE(after(seconds(4), PAWL_PHASE_ALLREDUCE, true, true));
  EXPECT_FALSE(after(seconds(2), PAWL_PHASE_COMPUTE, true, true));
}

TEST(Classes, EveryKindHasItsRow) {
  ASSERT_EQ(failure_classes().size(), static_cast<std::size_t>(FaultKind::last_checkpoint) + 1);
  for (const ClassRow& row : failure_classes()) {
    EXPECT_EQ(&class_of(row.kind), &row);
    EXPECT_NE(std::string(row.remedy), "");
  }
  EXPECT_EQ(class_of(static_cast<FaultKind>(200)).kind, FaultKind::none);
}

TEST(Classes, Escalate) {
  const auto action = [](FaultKind kind, std::uint32_t attempts) {
    return action_for({kind, {}, {}, "", 0}, attempts);
  };
  EXPECT_EQ(action(FaultKind::trainer_exit, 0), Action::restart_trainer);
  EXPECT_EQ(action(FaultKind::trainer_exit, 1), Action::restart_trainer);
  EXPECT_EQ(action(FaultKind::trainer_exit, 2), Action::replace_node);
  EXPECT_EQ(action(FaultKind::trainer_exit, 3), Action::replace_node);
  EXPECT_EQ(action(FaultKind::trainer_exit, 4), Action::stop);
  EXPECT_EQ(action(FaultKind::node_lost, 7), Action::replace_node);
  EXPECT_EQ(action(FaultKind::node_lost, 8), Action::stop);
  EXPECT_EQ(action(FaultKind::communication, 0), Action::roll_back_in_place);
  EXPECT_EQ(action(FaultKind::communication, 3), Action::replace_node);
  EXPECT_EQ(action(FaultKind::corrupt_source, 1000), Action::roll_back_in_place);
  EXPECT_EQ(action(FaultKind::operator_stop, 0), Action::stop);
  EXPECT_EQ(action(FaultKind::layout_conflict, 0), Action::stop);
  EXPECT_EQ(action(FaultKind::drain, 99), Action::replace_node);  // as often as the operator wants
  EXPECT_EQ(action(FaultKind::source_unreached, 0), Action::roll_back_in_place);
  EXPECT_EQ(action(FaultKind::source_unreached, 1), Action::replace_node);
  EXPECT_EQ(action(FaultKind::source_unreached, 99), Action::replace_node);  // until the link is whole
  EXPECT_EQ(action(FaultKind::trainer_hang, ~0u), Action::stop);
}

}  // namespace
}  // namespace pawl::job
