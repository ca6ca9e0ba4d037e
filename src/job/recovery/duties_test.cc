#include "job/recovery/duties.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

NodeLife life(std::uint32_t node, std::uint64_t incarnation = 1) {
  return {NodeId(node), Incarnation(incarnation)};
}

JobState state_of(JobPhase phase, std::uint32_t nodes = 2) {
  JobState state;
  state.generation = Generation(3);
  state.phase = phase;
  state.leader = life(0);
  for (std::uint32_t node = 0; node < nodes; ++node) state.seats.push_back({Seat(node), life(node), "", 0});
  return state;
}

StandingView of(std::uint32_t node) {
  StandingView view;
  view.self = life(node);
  return view;
}

TEST(StandingOf, SeatsMakeMembers) {
  const JobState state = state_of(JobPhase::running);
  EXPECT_TRUE(is_member(state, life(1)));
  EXPECT_FALSE(is_member(state, life(1, 2)));
  EXPECT_EQ(standing_of(state, of(1)), Standing::member);
  EXPECT_EQ(standing_of(state, of(2)), Standing::bystander);
}

TEST(StandingOf, WhoLostItsSeatOrWasEvictedComesBackAsAnotherLife) {
  JobState state = state_of(JobPhase::quiescing);
  StandingView view = of(2);
  view.was_member = true;
  EXPECT_EQ(standing_of(state, view), Standing::evicted);
  state.evicted = {life(1)};  // while quiescing its seat is still listed
  EXPECT_EQ(standing_of(state, of(1)), Standing::evicted);
}

TEST(StandingOf, AFinishedJobWaitsForItsTrainersToLeave) {
  const JobState state = state_of(JobPhase::finished);
  StandingView view = of(1);
  EXPECT_EQ(standing_of(state, view), Standing::leaving);
  view.in_state_for = kLeaveMax;
  EXPECT_EQ(standing_of(state, view), Standing::over);
  view.in_state_for = 0s;
  view.trainers_gone = true;
  EXPECT_EQ(standing_of(state, view), Standing::over);
  EXPECT_EQ(standing_of(state, of(2)), Standing::over);  // a spare has nothing to wait for
  EXPECT_EQ(standing_of(state_of(JobPhase::failed), of(1)), Standing::over);
}

TEST(DutiesOf, EachPhaseAsksOnce) {
  Followed followed;
  const JobState quiescing = state_of(JobPhase::quiescing);
  EXPECT_TRUE(duties_of(quiescing, followed, true).freeze);
  followed.frozen = Generation(3);
  EXPECT_FALSE(duties_of(quiescing, followed, true).freeze);
  EXPECT_TRUE(duties_of(quiescing, followed, true).report_inventory);

  const JobState restoring = state_of(JobPhase::restoring);
  EXPECT_TRUE(duties_of(restoring, followed, true).begin_restore);
  EXPECT_FALSE(duties_of(restoring, followed, false).begin_restore);  // an old copy thread still runs
  followed.restoring = Generation(3);
  EXPECT_FALSE(duties_of(restoring, followed, true).begin_restore);
  EXPECT_FALSE(duties_of(restoring, followed, true).begin_running);

  const JobState running = state_of(JobPhase::running);
  EXPECT_TRUE(duties_of(running, followed, true).begin_running);
  EXPECT_FALSE(duties_of(running, Followed{}, true).freeze);
  followed.running = Generation(3);
  EXPECT_FALSE(duties_of(running, followed, true).begin_running);
}

TEST(DutiesOf, NothingIsRestoredBeforeItIsFrozen) {
  const Duties duties = duties_of(state_of(JobPhase::restoring), Followed{}, true);
  EXPECT_TRUE(duties.freeze);
  EXPECT_FALSE(duties.begin_restore);
}

TEST(EnoughNodes, CountSinceTheLastTimeThereWereTooFew) {
  FormingView view;
  view.spec.node_count = 1;
  EXPECT_EQ(enough_nodes_since(view, 5s, 9s), Duration::zero());
  NodeRecord node;
  node.healthy = true;
  node.parked = 1;
  view.nodes = {node};
  EXPECT_EQ(enough_nodes_since(view, Duration::zero(), 9s), 9s);
  EXPECT_EQ(enough_nodes_since(view, 9s, 20s), 9s);
}

class Leading : public testing::Test {
 protected:
  std::optional<Lead> lead(const JobState& state, Duration in_state_for, std::vector<NodeLife> ready = {}) {
    LeadView view{spec, state, {}, {}, std::move(ready), {}, in_state_for};
    return decide_lead(view, life(0), deadlines);
  }
  JobSpec spec;
  Deadlines deadlines = derive_deadlines(3s);
};

TEST_F(Leading, NobodyLeadsARunningJob) {
  EXPECT_FALSE(lead(state_of(JobPhase::running), 0s));
}

TEST_F(Leading, AnInventoryMayBeLateByItsDeadline) {
  const JobState state = state_of(JobPhase::quiescing);
  EXPECT_TRUE(lead(state, 3s)->late.empty());
  const auto late = lead(state, 4s);
  ASSERT_EQ(late->late.size(), 2u);
  EXPECT_EQ(late->late[1].kind, FaultKind::node_silent);
  EXPECT_EQ(late->late[1].node, life(1));
  EXPECT_EQ(late->late[1].detail.rfind("missed the deadline: inventory", 0), 0u) << late->late[1].detail;
}

TEST_F(Leading, AMemberMayBeAsLongToBeReadyAsAStartAndTwoRestores) {
  const JobState state = state_of(JobPhase::restoring);
  EXPECT_TRUE(lead(state, 660s, {life(0)})->late.empty());
  const auto late = lead(state, 661s, {life(0)});
  ASSERT_EQ(late->late.size(), 1u);
  EXPECT_EQ(late->late[0].node, life(1));
}

TEST_F(Leading, AllReadyMeansRunning) {
  const auto done = lead(state_of(JobPhase::restoring), 1s, {life(0), life(1)});
  const StateMove* move = std::get_if<StateMove>(&done->decision);
  ASSERT_NE(move, nullptr);
  EXPECT_EQ(move->next.phase, JobPhase::running);
}

TEST(LinkedPositions, AreTheRingAndTheTree) {
  EXPECT_EQ(linked_positions(0, 1), std::vector<std::uint32_t>{});
  EXPECT_EQ(linked_positions(0, 0), std::vector<std::uint32_t>{});
  EXPECT_EQ(linked_positions(1, 2), std::vector<std::uint32_t>{0});
  EXPECT_EQ(linked_positions(0, 8), (std::vector<std::uint32_t>{1, 2, 7}));
  EXPECT_EQ(linked_positions(3, 16), (std::vector<std::uint32_t>{0, 1, 2, 4, 5, 7, 8}));
}

}  // namespace
}  // namespace pawl::job
