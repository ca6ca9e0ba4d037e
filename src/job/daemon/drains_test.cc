#include "job/daemon/drains.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// Node `self` of 0 and 1; node 1 is to leave, and node 2 is a spare.
class Draining : public testing::Test {
 protected:
  explicit Draining(std::uint32_t self = 1) : node(2, self) {
    JobSpec spec = node.context.mirror.spec();
    spec.replica_count = 1;
    node.context.mirror.set_spec(spec);
    process.seat = Seat(self);
    process.seated = Generation(1);
    node.register_nodes(3);
    node.run_in(JobPhase::running);
    hear(keys().drain(NodeId(1)), R"({"incarnation":1})");
  }
  [[nodiscard]] const JobKeys& keys() const { return node.context.mirror.keys(); }
  std::int64_t hear(const std::string& key, const std::string& value) {
    node.context.orders.apply(key, &value, ++node.revision);
    return node.revision;
  }
  void hear_acks(std::int64_t pause) {
    for (const std::uint32_t id : {0u, 1u})
      hear(keys().pause_ack(Generation(1), NodeId(id)), text(R"({"pause":)", pause, "}"));
  }
  [[nodiscard]] std::uint64_t page_step() const { return trainer.page()->pause_step.load(); }
  void trainer_waits_before(std::uint64_t step) { trainer.page()->paused_before.store(step); }

  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  TrainerProcess& process = trainers.places()[0];
  TestTrainer trainer{*loop, process};
  Step committed{40};
  SpareProbes::Answers probed;
  int forgotten = 0;
  Drains drains{node.context,
                trainers,
                node.mover,
                node.events,
                {.progress =
                     [this] {
                       return Progress{committed, 0};
                     },
                 .spares = {.probe = [this](std::span<const NodeRecord>) { return probed; },
                            .forget_probes = [this] { ++forgotten; }}}};
};

class DrainingElsewhere : public Draining {
 protected:
  DrainingElsewhere() : Draining(0) {}
};

const std::string kPauseAt42 = R"({"generation":1,"node":1,"incarnation":1,"step":42})";

TEST_F(Draining, TheLeavingNodeStopsItsTrainerAndProposesTheStepThatItWasAboutToBegin) {
  drains.consider();
  EXPECT_EQ(page_step(), 1u);
  EXPECT_TRUE(node.control.puts.empty());
  trainer_waits_before(42);
  drains.consider();
  drains.consider();
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].key, "/pawl/test/pause");
  EXPECT_EQ(node.control.puts[0].value, R"({"generation":1,"incarnation":1,"node":1,"step":42})");
  node.control.puts[0].then({});
  const std::int64_t pause = hear(keys().pause(), kPauseAt42);
  drains.consider();
  drains.consider();
  ASSERT_EQ(node.control.puts.size(), 2u);
  EXPECT_EQ(node.control.puts[1].key, "/pawl/test/pause_ack/1/1");
  EXPECT_EQ(page_step(), 1u);  // the others don't know yet
  hear_acks(pause);
  drains.consider();
  EXPECT_EQ(page_step(), 42u);
  committed = Step(42);
  trainer_waits_before(43);
  drains.consider();
  EXPECT_TRUE(node.control.swaps.empty());  // one that stays does it
  node.learn(JobPhase::quiescing);
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
}

TEST_F(Draining, WithoutASpareOrAfterTheOrderIsErasedNobodyWaits) {
  node.context.orders.apply(keys().cordon(NodeId(2)), &kPauseAt42, ++node.revision);
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
  node.context.orders.apply(keys().cordon(NodeId(2)), nullptr, ++node.revision);
  drains.consider();
  EXPECT_EQ(page_step(), 1u);
  node.context.orders.apply(keys().drain(NodeId(1)), nullptr, ++node.revision);
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
}

TEST_F(Draining, WhatTakesTooLongIsGivenUpAndNotTriedAgainUntilItIsOrderedAnew) {
  drains.consider();
  trainer_waits_before(42);
  drains.consider();
  node.pass(3100ms);
  const int tells = node.control.tells;
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
  EXPECT_EQ(node.control.tells, tells + 1);  // erases the order
  drains.consider();
  EXPECT_EQ(page_step(), 0u);  // though the control has not answered
  EXPECT_EQ(node.control.tells, tells + 1);
  node.pass(1s);
  const int told = node.control.tells;
  drains.consider();
  EXPECT_EQ(node.control.tells, told + 1);  // again: it was away, perhaps
  trainer_waits_before(0);
  node.context.orders.apply(keys().drain(NodeId(1)), nullptr, ++node.revision);
  drains.consider();
  hear(keys().drain(NodeId(1)), R"({"incarnation":1})");
  drains.consider();
  EXPECT_EQ(page_step(), 1u);
}

TEST_F(Draining, BeforeTheFirstStepItIsGivenUpWhenATrainerShouldHaveBegun) {
  committed = Step(0);
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
  node.pass(600s);
  drains.consider();
  const int tells = node.control.tells;
  node.pass(31s);
  drains.consider();
  EXPECT_EQ(node.control.tells, tells + 1);  // erases the order
}

TEST_F(Draining, EachGenerationMayTakeItsTimeUntilItsFirstStep) {
  drains.consider();
  node.pass(600s);
  node.state.generation = Generation(2);
  node.run_in(JobPhase::running);
  drains.consider();
  node.pass(31s);
  const int tells = node.control.tells;
  drains.consider();
  EXPECT_EQ(node.control.tells, tells);
  EXPECT_EQ(page_step(), 1u);
}

TEST_F(DrainingElsewhere, TheFirstThatStaysOpensTheGenerationWhenTheStepIsCommitted) {
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
  const std::int64_t pause = hear(keys().pause(), kPauseAt42);
  drains.consider();
  EXPECT_EQ(page_step(), 42u);
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].value, text(R"({"pause":)", pause, "}"));
  hear_acks(pause);
  drains.consider();
  EXPECT_TRUE(node.control.swaps.empty());
  committed = Step(42);
  drains.consider();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  const JobState next = *parse_job_state(node.control.swaps[0].value);
  EXPECT_EQ(next.phase, JobPhase::quiescing);
  EXPECT_EQ(next.evicted, std::vector{test_life(1)});
  EXPECT_EQ(next.causes.at(0).kind, FaultKind::drain);
  // Another recovery was faster: in its generation the pause counts no more.
  node.state.generation = Generation(2);
  node.learn(JobPhase::quiescing);
  node.control.swaps[0].then(Swapped{false, 7, std::nullopt});
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
  node.run_in(JobPhase::running);
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
  EXPECT_EQ(node.control.swaps.size(), 1u);
}

// It asks spares that it does not know yet, and gives nothing up meanwhile.
TEST_F(DrainingElsewhere, NoGenerationIsOpenedBeforeItIsKnownWhoIsASpare) {
  const std::map<NodeId, NodeRecord> nodes = node.context.mirror.registrations().nodes;
  node.context.mirror.nodes.forget({});
  committed = Step(42);
  hear_acks(hear(keys().pause(), kPauseAt42));
  drains.consider();
  EXPECT_EQ(page_step(), 42u);
  EXPECT_EQ(node.control.puts.size(), 0u) << "it has said so";
  EXPECT_TRUE(node.control.swaps.empty());
  EXPECT_EQ(node.control.tells, 0);
  Listing listing;
  for (const auto& [id, record] : nodes) listing.kvs.push_back({keys().node(id), to_json(record), 1, 1, 0});
  (void)node.context.mirror.apply_nodes(listing, node.clock.now());
  drains.consider();
  EXPECT_EQ(node.control.swaps.size(), 1u);
}

TEST_F(Draining, NobodyWaitsForASpareThatDoesNotAnswerAndTheDrainIsGivenUp) {
  probed.pending = {test_life(2)};
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
  const int asked = forgotten;  // what was answered to another drain
  drains.consider();
  EXPECT_EQ(forgotten, asked);
  probed = {{test_life(2)}, {}};
  const int tells = node.control.tells;
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
  EXPECT_EQ(node.control.tells, tells + 1);  // erases the order
  node.context.orders.apply(keys().drain(NodeId(1)), nullptr, ++node.revision);
  drains.consider();
  EXPECT_GT(forgotten, asked);
  probed = {};
  hear(keys().drain(NodeId(1)), R"({"incarnation":1})");
  drains.consider();
  EXPECT_EQ(page_step(), 1u);
}

TEST_F(DrainingElsewhere, NoGenerationIsOpenedForASpareThatDoesNotAnswer) {
  const std::int64_t pause = hear(keys().pause(), kPauseAt42);
  hear_acks(pause);
  committed = Step(42);
  probed.pending = {test_life(2)};
  drains.consider();
  EXPECT_TRUE(node.control.swaps.empty());
  EXPECT_EQ(page_step(), 42u);
  probed = {{test_life(2)}, {}};
  const int tells = node.control.tells;
  drains.consider();
  EXPECT_TRUE(node.control.swaps.empty());
  EXPECT_EQ(page_step(), 0u);  // all go on
  EXPECT_EQ(node.control.tells, tells + 1);
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
}

TEST_F(DrainingElsewhere, WhoeverWaitsForALeavingNodeThatIsNotHeardGoesOn) {
  hear(keys().pause(), kPauseAt42);
  trainer_waits_before(43);
  drains.consider();
  node.pass(34s);
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
  drains.consider();
  EXPECT_EQ(page_step(), 0u);
}

}  // namespace
}  // namespace pawl::job
