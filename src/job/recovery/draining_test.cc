#include "job/recovery/draining.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

NodeLife life(std::uint32_t node, std::uint64_t incarnation = 1) {
  return {NodeId(node), Incarnation(incarnation)};
}

// Nodes 0, 1 and 2 with a seat each, node 3 a spare; node 1 is to leave, and 40 is committed.
class Drain : public testing::Test {
 protected:
  Drain() {
    spec.node_count = 3;
    spec.replica_count = 1;
    state.generation = Generation(5);
    state.phase = JobPhase::running;
    state.leader = life(0);
    for (std::uint32_t i = 0; i < 3; ++i) state.seats.push_back({Seat(i), life(i), "", 0});
    for (std::uint32_t i = 0; i < 4; ++i) {
      NodeRecord record;
      record.life = life(i);
      record.healthy = true;
      record.parked = i < 3 ? 0 : 1;
      nodes.push_back(record);
    }
    orders.leaving = {life(1)};
  }
  DrainDuties of(std::uint32_t node) {
    return decide_draining({spec, state, orders, nodes, cordoned, committed, waits, now, silent, unprobed, voided,
                            spareless, leading, knows_nodes},
                           life(node), deadlines);
  }
  void pause(std::uint64_t step, std::uint64_t generation = 5) {
    orders.pause = Pause{Generation(generation), life(1), Step(step), 77};
  }
  void all_acknowledge() {
    for (std::uint32_t i = 0; i < 3; ++i) orders.paused[NodeId(i)] = 77;
  }

  JobSpec spec;
  JobState state;
  DrainOrders orders;
  std::vector<NodeRecord> nodes;
  std::vector<NodeId> cordoned;
  Step committed{40};
  PausedTrainer waits;
  Duration now = 100s;
  std::vector<NodeLife> silent, unprobed;
  bool voided = false;
  Duration spareless{};
  Duration leading{};
  bool knows_nodes = true;
  const Deadlines deadlines = derive_deadlines(3s);
};

TEST_F(Drain, FirstOnlyTheLeavingNodesFirstTrainerWaits) {
  const DrainDuties duties = of(1);
  EXPECT_EQ(duties.leaving, life(1));
  EXPECT_EQ(duties.first_page, kPauseAtNext);
  EXPECT_EQ(duties.page, Step(0));
  EXPECT_FALSE(duties.propose);
  EXPECT_EQ(of(0).first_page, Step(0));
  waits = {Step(42), now};
  EXPECT_EQ(of(1).propose, (Pause{Generation(5), life(1), Step(42), 0}));
  EXPECT_FALSE(of(0).propose);
}

TEST_F(Drain, ItBeginsThatStepOnlyWhenAllKnowThatItIsTheLast) {
  waits = {Step(42), now};
  pause(42);
  DrainDuties duties = of(1);
  EXPECT_EQ(duties.first_page, kPauseAtNext);
  EXPECT_EQ(duties.page, Step(42));
  EXPECT_TRUE(duties.acknowledge);
  EXPECT_FALSE(duties.propose);
  waits = {};
  duties = of(2);
  EXPECT_EQ(duties.first_page, Step(42));
  EXPECT_TRUE(duties.acknowledge);
  all_acknowledge();
  orders.paused[NodeId(2)] = 76;  // an earlier pause
  EXPECT_EQ(of(1).first_page, kPauseAtNext);
  EXPECT_TRUE(of(2).acknowledge);
  all_acknowledge();
  EXPECT_EQ(of(1).first_page, Step(42));
  EXPECT_FALSE(of(2).acknowledge);
}

TEST_F(Drain, OneThatStaysOpensTheGenerationWhenTheStepIsCommitted) {
  pause(42);
  all_acknowledge();
  committed = Step(41);
  EXPECT_FALSE(of(0).open);
  committed = Step(42);
  EXPECT_EQ(of(0).open->node, life(1));
  EXPECT_EQ(of(0).open->kind, FaultKind::drain);
  EXPECT_FALSE(of(1).open);
  EXPECT_FALSE(of(2).open);
  orders.paused.erase(NodeId(2));
  EXPECT_FALSE(of(0).open);
  const Decision decision = open_generation(state, Cause{FaultKind::drain, life(1), std::nullopt, "", 0}, life(0));
  const JobState& next = std::get<StateMove>(decision).next;
  EXPECT_EQ(next.evicted, std::vector{life(1)});
  state.seats[0].life = life(1);
  state.seats[1].life = life(0);
  all_acknowledge();
  EXPECT_TRUE(of(0).open);  // also where the leaving node is the first
}

TEST_F(Drain, WhoseSparesAreGoneIsNotWaitedForForever) {
  nodes[3].parked = 0;
  EXPECT_FALSE(of(1).leaving);
  spareless = deadlines.restore;
  EXPECT_TRUE(of(1).give_up.empty());  // its trainer may be starting anew
  spareless = deadlines.restore + 1ms;
  EXPECT_EQ(of(1).leaving, life(1));
  EXPECT_NE(of(1).give_up.find("no spare is free any more"), std::string::npos) << of(1).give_up;
  EXPECT_TRUE(of(0).give_up.empty());
  nodes[3].parked = 1;
  EXPECT_TRUE(of(1).give_up.empty());
}

TEST_F(Drain, ATrainerThatBeginsNoStepIsNotWaitedForForever) {
  const Duration patience = 600s + deadlines.restore;
  for (const Step step : {Step(0), Step(40)}) {
    committed = step;
    leading = patience;
    EXPECT_EQ(of(1).give_up, "");
    leading += 1ms;
    const std::string why = of(1).give_up;
    EXPECT_NE(why.find(step == Step(0) ? "no step was committed within 630 s" : "begun no step for 630 s"),
              std::string::npos)
        << why;
    EXPECT_EQ(of(1).leaving, life(1));
    EXPECT_EQ(of(1).first_page, Step(0));
    EXPECT_EQ(of(0).give_up, "");
  }
  pause(42);
  all_acknowledge();
  EXPECT_NE(of(1).give_up, "");  // it has begun the last step, and never comes to the next
  waits = {Step(43), now};
  EXPECT_EQ(of(1).give_up, "");  // that has a deadline of its own
}

TEST_F(Drain, AStepThatIsVoidIsNotWaitedFor) {
  pause(42);
  waits = {Step(43), now};
  voided = true;
  EXPECT_TRUE(of(1).give_up.empty());  // it has not begun
  all_acknowledge();
  EXPECT_NE(of(1).give_up.find("step 42 could not be captured"), std::string::npos) << of(1).give_up;
  EXPECT_TRUE(of(0).give_up.empty());
}

TEST_F(Drain, NoStepIsWaitedForBeforeASpareHasAnswered) {
  unprobed = {life(3)};
  EXPECT_EQ(of(1).first_page, Step(0));
  EXPECT_TRUE(of(1).give_up.empty());
  silent.swap(unprobed);
  EXPECT_NE(of(1).give_up.find("node 3"), std::string::npos) << of(1).give_up;
  EXPECT_FALSE(of(0).give_up.empty());  // who would open asks, too
  EXPECT_TRUE(of(2).give_up.empty());
  nodes.push_back(nodes[3]);
  nodes[4].life = life(4);
  EXPECT_EQ(of(1).first_page, kPauseAtNext);  // one is enough
}

TEST_F(Drain, NoGenerationIsOpenedBeforeASpareHasAnswered) {
  pause(42);
  all_acknowledge();
  committed = Step(42);
  unprobed = {life(3)};
  EXPECT_FALSE(of(0).open);
  EXPECT_EQ(of(0).page, Step(42));
  EXPECT_EQ(of(1).first_page, Step(42));  // it has begun
  unprobed.clear();
  EXPECT_TRUE(of(0).open);
}

// Of a large job only who leaves and who opens knows which spares there are; the others do what the pause says.
TEST_F(Drain, WhoDoesNotKnowTheSparesObeysAPause) {
  knows_nodes = false;
  nodes.clear();
  EXPECT_FALSE(of(2).leaving);
  EXPECT_FALSE(of(1).leaving);
  waits = {Step(42), now};
  EXPECT_FALSE(of(1).propose);
  EXPECT_EQ(of(1).give_up, "");
  pause(42);
  waits = {};
  const DrainDuties duties = of(2);
  EXPECT_EQ(duties.leaving, life(1));
  EXPECT_EQ(duties.page, Step(42));
  EXPECT_EQ(duties.first_page, Step(42));
  EXPECT_TRUE(duties.acknowledge);
  EXPECT_EQ(of(1).first_page, kPauseAtNext);
  EXPECT_EQ(of(1).give_up, "");
  all_acknowledge();
  committed = Step(42);
  EXPECT_FALSE(of(0).open) << "before it has asked the spares";
  EXPECT_EQ(of(0).give_up, "");
  state.generation = Generation(6);
  EXPECT_FALSE(of(2).leaving);
  state.generation = Generation(5);
  orders.leaving.clear();
  EXPECT_FALSE(of(2).leaving);
}

// Some know the spares and some don't, and an order for a lower node may come, or a spare go, at any moment.
TEST_F(Drain, APauseThatStandsIsForAllWhateverTheyKnow) {
  pause(42);
  orders.leaving = {life(0), life(1)};
  for (const bool knows : {true, false}) {
    knows_nodes = knows;
    for (const std::uint32_t node : {0u, 1u, 2u}) EXPECT_EQ(of(node).leaving, life(1)) << node << knows;
    EXPECT_EQ(of(0).page, Step(42));
    EXPECT_EQ(of(0).first_page, Step(42)) << "it does not begin a drain of its own";
  }
  knows_nodes = true;
  nodes[3].parked = 0;
  for (const std::uint32_t node : {0u, 1u, 2u}) EXPECT_EQ(of(node).page, Step(42)) << node;
  all_acknowledge();
  committed = Step(42);
  EXPECT_FALSE(of(0).open);
  EXPECT_FALSE(of(2).open);
  EXPECT_EQ(of(2).give_up, "");
  spareless = deadlines.silence;
  EXPECT_EQ(of(1).give_up, "") << "it may be back at once";
  spareless = deadlines.silence + 1ms;
  EXPECT_NE(of(1).give_up, "");
  orders.leaving = {life(0)};  // it has
  nodes[3].parked = 1;
  EXPECT_EQ(of(2).leaving, life(0));
}

TEST_F(Drain, APauseIsForItsGenerationAndItsNode) {
  pause(42, 4);
  all_acknowledge();
  committed = Step(50);
  EXPECT_EQ(of(2).page, Step(0));
  EXPECT_FALSE(of(0).open);
  waits = {Step(51), now};
  EXPECT_EQ(of(1).propose->step, Step(51));
  pause(42);
  orders.pause->leaving = life(1, 9);
  EXPECT_EQ(of(2).page, Step(0));
}

TEST_F(Drain, NobodyWaitsWhereItCanNotSucceed) {
  committed = Step(0);  // nothing to move yet
  EXPECT_EQ(of(1).first_page, Step(0));
  committed = Step(40);
  EXPECT_EQ(of(1).first_page, kPauseAtNext);
  cordoned = {NodeId(3)};
  EXPECT_FALSE(of(1).leaving);
  cordoned = {};
  nodes[3].parked = 0;
  EXPECT_FALSE(of(1).leaving);
  nodes[3].parked = 1;
  spec.replica_count = 0;
  EXPECT_FALSE(of(1).leaving);
  spec.replica_count = 1;
  state.phase = JobPhase::restoring;
  pause(42);
  EXPECT_EQ(of(2).page, Step(0));
  state.phase = JobPhase::running;
  orders.leaving = {life(1, 2)};  // another life
  EXPECT_FALSE(of(1).leaving);
}

TEST_F(Drain, OneNodeAtATimeAndOrdersOfWhoHasLeftAreForgotten) {
  orders.leaving = {life(1), life(2), life(7)};
  EXPECT_EQ(of(2).leaving, life(1));
  EXPECT_EQ(of(2).first_page, Step(0));
  EXPECT_EQ(of(0).done, std::vector{life(7)});
  EXPECT_TRUE(of(1).done.empty());  // the leader does it
  state.evicted = {life(1)};
  EXPECT_EQ(of(2).leaving, life(2));
}

TEST_F(Drain, WhoeverWaitsTooLongGoesOn) {
  waits = {Step(42), now - deadlines.silence - 1s};
  EXPECT_NE(of(1).give_up, "");
  EXPECT_EQ(of(1).first_page, Step(0));
  pause(42);
  EXPECT_NE(of(1).give_up, "");
  EXPECT_EQ(of(0).page, Step(42));
  all_acknowledge();
  EXPECT_EQ(of(1).give_up, "");
  waits.since = now - deadlines.restore - 1s;
  EXPECT_NE(of(1).give_up, "");
  EXPECT_FALSE(of(0).expired);
  waits.since = now - deadlines.restore - deadlines.silence - 1s;
  EXPECT_TRUE(of(0).expired);
  EXPECT_EQ(of(0).page, Step(0));
}

TEST_F(Drain, IsRefusedWithTheRemedy) {
  const auto may = [&](std::vector<NodeLife> others = {}) {
    return may_drain(spec, state, nodes, cordoned, others, life(1));
  };
  EXPECT_TRUE(may());
  EXPECT_TRUE(may({life(1), life(9)}));  // the order itself, and one that is over
  Status refused = may({life(2)});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("promised to other drains"), std::string::npos) << refused.error().what;
  cordoned = {NodeId(3)};
  refused = may();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("uncordon"), std::string::npos) << refused.error().what;
  cordoned = {};
  spec.replica_count = 0;
  refused = may();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("--replicas 0"), std::string::npos) << refused.error().what;
}

}  // namespace
}  // namespace pawl::job
