#include "job/daemon/job_end.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

class Ends : public testing::Test {
 protected:
  explicit Ends(std::uint32_t self = 0) : node(2, self) {
    process.seat = Seat(self);
    process.seated = Generation(1);
  }
  void hear(const std::string& key, const std::string& value) {
    (void)node.context.mirror.apply(key, &value, ++node.revision, node.clock.now());
  }
  void hear_finish(Seat seat, Step step, bool committed) {
    hear(node.context.mirror.keys().finish(seat),
         text(R"({"generation":1,"step":)", step, R"(,"committed":)", committed ? "true" : "false", "}"));
  }
  // The trainer here waits in finish, and its last step needs a commit.
  void wait_in_finish() {
    process.shared.page->step.store(9);
    process.last_steps.last = process.last_steps.commit_first = Step(9);
    trainer.asks(FinishMessage{Step(9), Step(9)});
  }
  void wait_in_stop_after() {
    process.last_steps.stop_wanted = Step(9);
    trainer.asks(StopAfterMessage{Generation(1), Step(9)});
  }

  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  TrainerProcess& process = trainers.places()[0];
  TestTrainer trainer{*loop, process};
  Step committed;
  bool is_given_up = false;
  int redone = 0;
  JobEnd job_end{node.context,
                 trainers,
                 node.mover,
                 [this] {
                   return Progress{committed, 0};
                 },
                 {.is_given_up = [this](const TrainerProcess&) { return is_given_up; },
                  .do_again = [this](TrainerProcess&) { ++redone; }}};
};

class EndsElsewhere : public Ends {
 protected:
  EndsElsewhere() : Ends(1) {}
};

TEST_F(Ends, AStopIsProposedOnceUnlessTheControlWasAway) {
  job_end.consider_stop();  // there is no state yet
  node.run_in(JobPhase::running);
  job_end.consider_stop();
  EXPECT_TRUE(node.control.swaps.empty());  // nobody asks
  wait_in_stop_after();
  job_end.consider_stop();
  job_end.consider_stop();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(node.control.swaps[0].expected, 0);  // the first one is it
  EXPECT_EQ(node.control.swaps[0].value, R"({"step":9})");
  node.control.swaps[0].then(Error{Code::unreachable, "away"});
  EXPECT_EQ(node.drives, 1);
  job_end.consider_stop();
  EXPECT_EQ(node.control.swaps.size(), 2u);
}

TEST_F(Ends, AStopIsAnsweredWhenEveryNodeHasAcknowledgedIt) {
  node.run_in(JobPhase::running);
  wait_in_stop_after();
  hear(node.context.mirror.keys().stop(), R"({"step":7})");  // another node's proposal came first
  job_end.consider_stop();
  EXPECT_TRUE(node.control.swaps.empty());
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].key, "/pawl/test/stop_ack/1/0");
  EXPECT_TRUE(trainer.answers().empty());
  hear(node.context.mirror.keys().stop_ack(Generation(1), NodeId(1)), "{}");
  job_end.consider_stop();
  const auto answers = trainer.answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(message_in<StoppingMessage>(answers[0])->step, Step(7));
  EXPECT_EQ(node.control.puts.size(), 1u);
}

TEST_F(Ends, AFinishIsToldTwiceAndAgainIfItWasNotPut) {
  wait_in_finish();
  job_end.consider_finish();
  EXPECT_TRUE(node.control.puts.empty());  // the job does not run here
  node.run_in(JobPhase::running);
  job_end.consider_finish();
  job_end.consider_finish();
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].key, node.context.mirror.keys().finish(Seat(0)));
  EXPECT_EQ(node.control.puts[0].value, R"({"committed":false,"generation":1,"step":9})");
  node.control.puts[0].then(Error{Code::unreachable, "away"});
  job_end.consider_finish();
  EXPECT_EQ(node.control.puts.size(), 2u);
  node.control.puts[1].then({});
  job_end.consider_finish();
  EXPECT_EQ(node.control.puts.size(), 2u);
  committed = Step(9);
  job_end.consider_finish();
  ASSERT_EQ(node.control.puts.size(), 3u);
  EXPECT_EQ(node.control.puts[2].value, R"({"committed":true,"generation":1,"step":9})");
}

TEST_F(Ends, TheRootEndsTheJobWhenAllSeatsHaveFinished) {
  node.run_in(JobPhase::running);
  wait_in_finish();
  committed = Step(9);
  job_end.consider_finish();
  EXPECT_TRUE(node.control.swaps.empty());
  hear_finish(Seat(1), Step(9), false);
  job_end.consider_finish();
  EXPECT_TRUE(node.control.swaps.empty());  // its last step may still be lost
  hear_finish(Seat(1), Step(9), true);
  job_end.consider_finish();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(node.control.swaps[0].value)->phase, JobPhase::finished);
}

TEST_F(EndsElsewhere, AnotherNodeLeavesThatToTheRoot) {
  node.run_in(JobPhase::running);
  wait_in_finish();
  committed = Step(9);
  hear_finish(Seat(0), Step(9), true);
  job_end.consider_finish();  // says that its own seat is done
  EXPECT_EQ(node.control.puts.size(), 1u);
  job_end.consider_finish();  // now all seats are
  EXPECT_EQ(node.control.puts.size(), 1u);
  EXPECT_TRUE(node.control.swaps.empty());
}

TEST_F(EndsElsewhere, ASeatThatGoesOnAfterAnotherHasEndedFailsTheJob) {
  node.run_in(JobPhase::running);
  process.shared.page->step.store(9);
  hear_finish(Seat(0), Step(9), true);
  job_end.consider_finish();
  EXPECT_TRUE(node.control.swaps.empty());
  process.shared.page->step.store(10);
  job_end.consider_finish();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  const auto next = parse_job_state(node.control.swaps[0].value);
  EXPECT_EQ(next->phase, JobPhase::failed);
  EXPECT_NE(next->verdict.find("seat 0 has ended after step 9 and seat 1 has begun step 10"), std::string::npos);
}

TEST_F(Ends, ALastStepThatWasGivenUpIsDoneAgain) {
  node.run_in(JobPhase::running);
  wait_in_finish();
  job_end.consider_finish();
  EXPECT_EQ(redone, 0);
  is_given_up = true;
  job_end.consider_finish();
  job_end.consider_finish();
  EXPECT_EQ(redone, 1);
  node.state.generation = Generation(2);
  node.run_in(JobPhase::running);
  process.seated = Generation(2);
  job_end.consider_finish();
  EXPECT_EQ(redone, 2);
}

TEST_F(Ends, ALastStepThatIsCommittedIsNotDoneAgain) {
  node.run_in(JobPhase::running);
  wait_in_finish();
  is_given_up = true;  // its slot holds something else by now
  committed = Step(9);
  job_end.consider_finish();
  EXPECT_EQ(redone, 0);
}

TEST_F(Ends, AFinishOfAnOlderGenerationCountsForNothing) {
  node.run_in(JobPhase::running);
  hear_finish(Seat(0), Step(9), true);
  hear_finish(Seat(1), Step(9), true);
  node.state.generation = Generation(2);
  node.run_in(JobPhase::running);
  process.seated = Generation(2);
  process.shared.page->step.store(10);
  job_end.consider_finish();
  EXPECT_TRUE(node.control.swaps.empty());
}

}  // namespace
}  // namespace pawl::job
