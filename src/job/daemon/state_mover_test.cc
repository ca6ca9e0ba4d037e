#include "job/daemon/state_mover.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Moves : public testing::Test {
 protected:
  void register_nodes() {
    for (std::uint32_t id = 0; id < 2; ++id) {
      NodeRecord record;
      record.life = test_life(id);
      record.address = "host";
      record.healthy = true;
      record.parked = 1;
      const std::string value = to_json(record);
      (void)node.context.mirror.apply(node.context.mirror.keys().node(NodeId(id)), &value, ++node.revision,
                                      node.clock.time);
    }
  }
  [[nodiscard]] JobState asked() const { return *parse_job_state(node.control.swaps.back().value); }
  static Cause node_lost(std::uint32_t id) { return {FaultKind::node_lost, test_life(id), std::nullopt, "gone", 0}; }

  TestNode node;
};

TEST_F(Moves, FormsTheJobWhenEnoughNodesAreThere) {
  node.mover.consider_forming();
  EXPECT_TRUE(node.control.swaps.empty());
  register_nodes();
  node.mover.consider_forming();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(node.control.swaps[0].expected, 0);
  EXPECT_EQ(asked().generation, Generation(1));
  node.mover.consider_forming();
  EXPECT_EQ(node.control.swaps.size(), 1u);  // one at a time
  EXPECT_TRUE(node.mover.is_moving());
  node.control.swaps[0].then(Swapped{true, 5, std::nullopt});
  EXPECT_FALSE(node.mover.is_moving());
  ASSERT_EQ(node.won.size(), 1u);
  EXPECT_EQ(node.drives, 1);
}

TEST_F(Moves, AFaultIsSaidOnceAndOpensAGeneration) {
  node.run_in(JobPhase::running);
  node.mover.report(node_lost(1));
  node.mover.report(node_lost(1));
  EXPECT_EQ(node.drives, 1);
  node.holds.set("suspect");
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  node.holds.release_all();
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().phase, JobPhase::quiescing);
  EXPECT_EQ(asked().generation, Generation(2));
  EXPECT_EQ(asked().causes.size(), 1u);
  EXPECT_EQ(asked().evicted, std::vector<NodeLife>{test_life(1)});
  // Another was faster: what stands accounts for the cause.
  node.state = asked();
  node.control.swaps[0].then(Swapped{false, 7, std::nullopt});
  (void)node.learn();
  node.mover.drive();
  node.mover.drive();
  EXPECT_EQ(node.control.swaps.size(), 1u);
}

TEST_F(Moves, WhileTheControlIsAwayItIsTriedAgain) {
  node.run_in(JobPhase::running);
  node.mover.report(node_lost(1));
  node.mover.drive();
  node.control.swaps[0].then(Error{Code::unreachable, "away"});
  EXPECT_FALSE(node.mover.is_moving());
  node.mover.drive();
  EXPECT_EQ(node.control.swaps.size(), 2u);
}

TEST_F(Moves, WhoIsNoMemberReportsNothing) {
  TestNode spare(2, 5);
  spare.learn(JobPhase::running);
  spare.mover.report(node_lost(1));
  spare.mover.drive();
  EXPECT_TRUE(spare.control.swaps.empty());
}

TEST_F(Moves, TheLeaderGoesOnWhenAllAreReady) {
  node.state.lineage = {{Generation(1), Step(0)}};
  node.run_in(JobPhase::restoring);
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  const std::string ready = "{}";
  for (std::uint32_t id = 0; id < 2; ++id)
    (void)node.context.mirror.apply(node.context.mirror.keys().ready(Generation(1), NodeId(id)), &ready,
                                    ++node.revision, node.clock.time);
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().phase, JobPhase::running);
}

TEST_F(Moves, WhoMissesItsDeadlineIsReported) {
  node.run_in(JobPhase::quiescing);
  node.clock.time += 4s;  // the inventories are late
  node.mover.drive();
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().causes[0].kind, FaultKind::node_silent);
}

TEST_F(Moves, AMembersLeaseCountsUnlessALinkStands) {
  register_nodes();
  node.run_in(JobPhase::running);
  (void)node.context.mirror.apply(node.context.mirror.keys().node(NodeId(1)), nullptr, ++node.revision,
                                  node.clock.time);
  node.clock.time += 2s;
  node.mover.check_members([](NodeId) { return true; });
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  node.mover.check_members([](NodeId) { return false; });
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().causes[0].detail, "its lease ended");
}

TEST_F(Moves, ASpareTakesOverAnOrphanedJob) {
  TestNode spare(2, 5);
  NodeRecord record;
  record.life = test_life(5);
  const std::string value = to_json(record);
  (void)spare.context.mirror.apply(spare.context.mirror.keys().node(NodeId(5)), &value, 1, spare.clock.time);
  spare.revision = 1;
  spare.learn(JobPhase::running);
  const auto linked = [](NodeId) { return false; };
  spare.mover.check_members(linked);
  EXPECT_TRUE(spare.control.swaps.empty());
  spare.clock.time += 4s;
  spare.mover.check_members(linked);
  ASSERT_EQ(spare.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(spare.control.swaps[0].value)->leader, test_life(5));
}

TEST_F(Moves, GivingUpANodeEndsAJobThatHasNeverRun) {
  node.run_in(JobPhase::restoring);
  node.mover.give_up_node("its trainers end");
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().phase, JobPhase::failed);
}

}  // namespace
}  // namespace pawl::job
