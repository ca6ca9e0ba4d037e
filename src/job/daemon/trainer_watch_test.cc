#include "job/daemon/trainer_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "env/process.h"
#include "job/daemon/test_node.h"
#include "job/recovery/local_trainer.h"
#include "pawl/pawl.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class TrainersWatched : public testing::Test {
 protected:
  TrainersWatched() {
    trainer.process().spawned_at = node.clock.now();
    node.state.ran = Generation(1);
  }
  void seat_in(JobPhase phase) {
    node.run_in(phase);
    process.seat = Seat(0);
    process.seated = Generation(1);
  }
  [[nodiscard]] bool starts(const std::string& key, std::size_t i) const {
    return node.control.puts[i].key.rfind(key, 0) == 0;
  }
  // The faults that the job is told of: the causes of the generation that is opened.
  std::vector<Cause> causes() {
    node.pass(1s);
    node.mover.drive();
    if (node.control.swaps.empty()) return {};
    return parse_job_state(node.control.swaps.back().value)->causes;
  }

  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  TrainerProcess& process = trainers.places()[0];
  TestTrainer trainer{*loop, process};
  std::vector<std::vector<std::string>> spawned;
  int killed = 0;
  int parked_changes = 0;
  std::vector<std::string> shown;
  std::vector<std::string> told;
  char process_state = 'R';
  TrainerWatch watch{
      node.context,
      trainers,
      node.mover,
      {.spawn =
           [this](std::uint32_t, std::span<const std::string> environment) {
             spawned.emplace_back(environment.begin(), environment.end());
           },
       .kill = [this](std::uint32_t) { ++killed; },
       .on_parked_changed = [this] { ++parked_changes; },
       .state_of = [this](std::uint64_t) { return Result<char>(process_state); },
       .tell = [this](const std::string& kind, const std::string& fields) { told.push_back(kind + " " + fields); },
       .show = [this](std::uint32_t index,
                      bool on) { shown.push_back((on ? "show " : "hide ") + std::to_string(index)); }}};
};

TEST_F(TrainersWatched, StartsWhatIsMissingOnce) {
  process.pid = 0;
  watch.start_missing();
  watch.start_missing();
  ASSERT_EQ(spawned.size(), 1u);
  EXPECT_EQ(process.pid, kPidNotKnownYet);
  EXPECT_EQ(spawned[0][0], "RANK=0");
  EXPECT_EQ(spawned[0][2], "WORLD_SIZE=2");
  node.context.ending = true;
  process.pid = 0;
  watch.start_missing();
  EXPECT_EQ(spawned.size(), 1u);
}

// By a pawld that returns when all is over: such a trainer would wait for a seat, and the node for its end.
TEST_F(TrainersWatched, StartsNobodyInAJobThatHasEnded) {
  for (const JobPhase phase : {JobPhase::finished, JobPhase::failed}) {
    node.learn(phase);
    process.pid = 0;
    watch.start_missing();
    EXPECT_TRUE(spawned.empty());
  }
}

std::vector<std::string> environment_of_the_first(TestNode& node, Trainers& trainers) {
  std::vector<std::string> environment;
  TrainerWatch watch{node.context,
                     trainers,
                     node.mover,
                     {.spawn = [&](std::uint32_t, auto given) { environment.assign(given.begin(), given.end()); },
                      .kill = [](std::uint32_t) {},
                      .on_parked_changed = [] {},
                      .state_of = [](std::uint64_t) { return Result<char>('R'); }}};
  watch.start_missing();
  return environment;
}

TEST(TrainerEnvironment, NodesHaveDifferentGroupRanksBeforeTheyHaveSeats) {
  TestNode node(3, 2);
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  const std::vector<std::string> environment = environment_of_the_first(node, trainers);
  ASSERT_GT(environment.size(), 4u);
  EXPECT_EQ(environment[0], "RANK=2");
  EXPECT_EQ(environment[4], "GROUP_RANK=2");
}

// Two seats here, three on node 1.
TEST(TrainerEnvironment, IsThatOfTheGenerationsTopology) {
  TestNode node(2, 1);
  node.state.seats.clear();
  for (std::uint32_t seat = 0; seat < 5; ++seat)
    node.state.seats.push_back({Seat(seat), test_life(seat < 2 ? 0 : 1), "", seat < 2 ? seat : seat - 2});
  node.run_in(JobPhase::running);
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  trainers.places()[0].seat = Seat(2);
  const std::vector<std::string> environment = environment_of_the_first(node, trainers);
  ASSERT_GT(environment.size(), 5u);
  EXPECT_EQ(environment[0], "RANK=2");
  EXPECT_EQ(environment[2], "WORLD_SIZE=5");
  EXPECT_EQ(environment[3], "LOCAL_WORLD_SIZE=3");
  EXPECT_EQ(environment[4], "GROUP_RANK=1");
  EXPECT_EQ(environment[5], "GROUP_WORLD_SIZE=2");
}

TEST_F(TrainersWatched, ADeathInASeatIsReportedAfterTheGraceAndReplaced) {
  seat_in(JobPhase::running);
  trainer.process().shared.page->step.store(41);
  process.pid = 0;
  watch.on_death(process, "exited 1");
  EXPECT_EQ(process.ended, "exited 1 in or after step 41");
  EXPECT_EQ(node.control.tells, 1);  // all are told how it ended
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].kind, FaultKind::trainer_exit);
  EXPECT_EQ(reported[0].seat, Seat(0));
  EXPECT_EQ(reported[0].detail, "exited 1 in or after step 41");
  EXPECT_EQ(spawned.size(), 1u);
}

// The pawld before this one saw the death, started a new process, and was killed before it told anybody.
TEST_F(TrainersWatched, ANewProcessInASeatOfTheJobThatRunsTellsOfADeath) {
  seat_in(JobPhase::running);
  trainer.page()->progress_at_ns = static_cast<std::uint64_t>(node.clock.now().count());
  watch.check();
  EXPECT_TRUE(causes().empty());
  process.seated = Generation(0);
  (void)trainer.asks(JoinMessage{}, 1);
  watch.check();
  const std::vector<Cause> found = causes();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, FaultKind::trainer_exit);
  EXPECT_EQ(found[0].seat, Seat(0));
}

// Nobody will say how it ended: that must not be waited for.
TEST_F(TrainersWatched, ANewProcessTellsOfADeathWhereOneHasDiedBefore) {
  node.state.attempts = {{FaultKind::trainer_exit, Seat(0), Step(4), 1}};
  seat_in(JobPhase::running);
  process.seated = Generation(0);
  (void)trainer.asks(JoinMessage{}, 1);
  watch.check();
  const std::vector<Cause> found = causes();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].detail, "its process died, and its pawld before it said how");
}

TEST_F(TrainersWatched, AKillIsNamedAsSuch) {
  seat_in(JobPhase::running);
  process.line.waiting[MessageKind::done] = 3;
  watch.kill(process, "it hangs");
  watch.kill(process, "again");
  EXPECT_EQ(killed, 1);
  EXPECT_TRUE(process.dying);
  EXPECT_TRUE(process.line.waiting.empty());
  watch.on_death(process, "signal 9");
  EXPECT_EQ(process.ended, "killed: it hangs");
}

TEST_F(TrainersWatched, TheSameFailureInTheSameStepIsCounted) {
  seat_in(JobPhase::running);
  process.shared.page->step.store(9);
  process.death.said = "step 9\nTraceback (most recent call last):\n  File \"x\"\nValueError: told to\n";
  process.pid = 0;
  watch.on_death(process, "exited 1, its output is in x");
  auto end = node.context.mirror.end_of(Seat(0));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->failure, "ValueError: told to");
  EXPECT_EQ(end->detail, "exited 1 in or after step 9: ValueError: told to, its output is in x");
  EXPECT_EQ(end->step, Step(9));
  EXPECT_EQ(end->times, 1u);
  process.seated = Generation(2);  // a new process, which does the same
  process.shared.page = trainer.page();
  watch.on_death(process, "exited 1, its output is in x");
  end = node.context.mirror.end_of(Seat(0));
  EXPECT_EQ(end->times, 2u);
  EXPECT_EQ(end->generation, Generation(2));
  watch.on_death(process, "killed by SIGKILL");  // not by itself
  EXPECT_EQ(node.context.mirror.end_of(Seat(0))->times, 2u);
}

TEST_F(TrainersWatched, TheFirstSeatsOutputIsShown) {
  seat_in(JobPhase::running);
  watch.check();
  watch.check();
  EXPECT_EQ(shown, std::vector<std::string>{"show 0"});
  process.seat = Seat(1);
  watch.check();
  EXPECT_EQ(shown.back(), "hide 0");
  process.seat = Seat(0);
  process.pid = kPidNotKnownYet;  // the next process has other pipes
  watch.check();
  process.pid = 78;
  watch.check();
  EXPECT_EQ(shown, (std::vector<std::string>{"show 0", "hide 0", "show 0"}));
}

TEST_F(TrainersWatched, ACommandThatHidesHowItEndedTellsNothingOfTheScript) {
  seat_in(JobPhase::running);
  process.shared.page->step.store(9);
  process.death.behind = true;
  watch.on_death(process, "exited 0, its output is in x");
  EXPECT_EQ(process.ended, "died behind a command that exited 0 in or after step 9, its output is in x");
  EXPECT_FALSE(node.context.mirror.end_of(Seat(0)));
  watch.on_death(process, "exited 1, its output is in x");
  EXPECT_TRUE(node.context.mirror.end_of(Seat(0)));
}

TEST_F(TrainersWatched, AFailureOfTheMachineCostsTheNode) {
  seat_in(JobPhase::running);
  process.death.said = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n";
  watch.on_death(process, "exited 1");
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].kind, FaultKind::node_lost);
  EXPECT_NE(reported[0].detail.find("uncorrectable ECC error"), std::string::npos) << reported[0].detail;
}

TEST_F(TrainersWatched, WhatADeadProcessWasStartedByIsKilledToo) {
  seat_in(JobPhase::running);
  process.begin_dying(node.clock.now());
  watch.on_death(process, "");
  node.pass(kEndToldMax);
  watch.check();
  EXPECT_EQ(killed, 0);
  node.pass(1ms);
  watch.check();
  watch.check();
  EXPECT_EQ(killed, 1);
}

TEST_F(TrainersWatched, AProcessThatDoesNotDieCostsItsNode) {
  seat_in(JobPhase::restoring);
  watch.kill(process, "it hangs");
  node.pass(kDyingMax);
  watch.check();
  EXPECT_TRUE(node.control.swaps.empty());
  node.pass(1ms);
  watch.check();
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].kind, FaultKind::node_lost);
  EXPECT_EQ(reported[0].node, test_life(0));
  EXPECT_NE(reported[0].detail.find("does not die"), std::string::npos) << reported[0].detail;
}

TEST_F(TrainersWatched, ASparesTrainerThatDoesNotDieIsNothingToAJobThatStarts) {
  for (Member& member : node.state.seats) member.life = test_life(member.seat.value + 1);
  node.state.ran = Generation(0);
  node.learn(JobPhase::restoring);
  watch.kill(process, "it hangs");
  node.pass(kDyingMax + 1s);
  watch.check();
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
}

// The keeper starts a pawld before it tells it which trainers run.
TEST_F(TrainersWatched, ANewPawldDoesNotCountHowLongAProcessThatItDoesNotKnowYetHasNotDied) {
  seat_in(JobPhase::running);
  node.pass(1h);
  process.pid = 0;
  process.attached = {static_cast<std::uint64_t>(::getpid()), process_start_time(::getpid()).value_or(0)};
  watch.start_missing();
  EXPECT_TRUE(causes().empty());
  EXPECT_TRUE(spawned.empty());
  node.pass(kDyingMax);  // and is not told
  watch.start_missing();
  ASSERT_EQ(causes().size(), 1u);
  EXPECT_NE(causes()[0].detail.find("does not die"), std::string::npos);
}

TEST_F(TrainersWatched, AMissingModuleEndsAJobThatNeverFormedAtOnce) {
  process.death.said = "Traceback (most recent call last):\n  File \"x\"\nModuleNotFoundError: No module named 'm'\n";
  watch.on_death(process, "exited 1, its output is in x");
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(node.control.swaps[0].value)->verdict,
            "node 0: its trainer can't start (exited 1: ModuleNotFoundError: No module named 'm', its output is in x); "
            "install the module on every node, or start with another interpreter");
}

TEST_F(TrainersWatched, ThreeEarlyExitsEndAJobThatNeverFormed) {
  for (int i = 0; i < 3; ++i) watch.on_death(process, "exited 2");
  ASSERT_EQ(node.control.swaps.size(), 1u);
  const auto failed = parse_job_state(node.control.swaps[0].value);
  EXPECT_EQ(failed->phase, JobPhase::failed);
  EXPECT_EQ(failed->verdict, "node 0: its trainer ended 3 times before it had a seat (exited 2)");
}

TEST_F(TrainersWatched, ThreeEndsBeforeTheJobRunsGiveTheNodeUp) {
  seat_in(JobPhase::restoring);
  watch.note_layout_refusal("no memory");
  for (int i = 0; i < 3; ++i) watch.on_death(process, "exited 2");
  const auto reported = causes();
  ASSERT_FALSE(reported.empty());
  EXPECT_EQ(reported[0].kind, FaultKind::node_lost);
  EXPECT_NE(reported[0].detail.find("3 times before the job ran"), std::string::npos);
  EXPECT_NE(reported[0].detail.find("no memory"), std::string::npos);
}

TEST_F(TrainersWatched, ADeathAfterTheEndIsNoFault) {
  seat_in(JobPhase::finished);
  watch.on_death(process, "exited 0");
  EXPECT_TRUE(causes().empty());
  EXPECT_EQ(node.drives, 1);
  EXPECT_TRUE(told.empty());
}

TEST_F(TrainersWatched, WhatFailsAfterTheLastStepIsTold) {
  seat_in(JobPhase::finished);
  trainer.page()->step = 20;
  process.death.said = "OSError: [Errno 28] No space left on device\n";
  watch.on_death(process, "exited 1");
  EXPECT_TRUE(causes().empty());
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("OSError: [Errno 28] No space left on device"), std::string::npos) << told[0];
  EXPECT_NE(told[0].find("\"after_all\":true"), std::string::npos) << told[0];
  EXPECT_TRUE(watch.failed_after_all());
}

TEST_F(TrainersWatched, AHangIsReported) {
  seat_in(JobPhase::running);
  process.shared.page->phase.store(PAWL_PHASE_COMPUTE);
  process.shared.page->progress_at_ns.store(static_cast<std::uint64_t>(node.clock.now().count()));
  node.pass(19s);
  watch.check();
  EXPECT_TRUE(causes().empty());
  node.pass(2s);
  process.line.rendezvous_waiting.insert(4);  // it waits for others
  watch.check();
  EXPECT_TRUE(causes().empty());
  process.line.rendezvous_waiting.clear();
  watch.check();
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].kind, FaultKind::trainer_hang);
}

TEST_F(TrainersWatched, WhoIsHeldByADrillDoesNotHang) {
  seat_in(JobPhase::running);
  process.shared.page->phase.store(PAWL_PHASE_COMPUTE);
  process.shared.page->held.store(1);
  node.pass(100s);
  watch.check();
  EXPECT_TRUE(causes().empty());
}

// In a recovery it holds up everybody; but a drill may hold it in the recovery itself.
TEST_F(TrainersWatched, WhoIsHeldInAStepComesBackAllTheSame) {
  seat_in(JobPhase::restoring);
  process.seated = Generation(1);
  node.state.generation = Generation(2);
  node.run_in(JobPhase::restoring);
  node.context.followed.restoring_since = node.clock.now();
  process.shared.page->held.store(1);
  process.shared.page->phase.store(PAWL_PHASE_JOIN);
  node.pass(100s);
  watch.check();
  EXPECT_EQ(killed, 0);
  process.shared.page->phase.store(PAWL_PHASE_COMPUTE);
  watch.check();
  EXPECT_EQ(killed, 1);
  EXPECT_EQ(process.killed_why, "could not be freed within its deadline");
}

TEST_F(TrainersWatched, AStoppedProcessIsKilledOnItsWayBack) {
  seat_in(JobPhase::restoring);
  node.context.followed.restoring_since = node.clock.now();
  process_state = 'T';
  node.pass(1s);
  watch.check();
  EXPECT_EQ(killed, 0);
  node.pass(4s);
  watch.check();
  EXPECT_EQ(killed, 1);
  EXPECT_EQ(process.killed_why, "the process was stopped");
}

TEST_F(TrainersWatched, AFailedCollectiveIsReportedAfterItsGraceIfNothingElseHappened) {
  seat_in(JobPhase::running);
  watch.on_fault(process, Generation(1), "timeout");
  watch.on_fault(process, Generation(7), "of another generation");
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].kind, FaultKind::communication);
}

TEST_F(TrainersWatched, AFailedCollectiveNamesWhomTwoNodesFoundGone) {
  node.state.seats.push_back({Seat(2), test_life(2), "host2", 0});
  node.register_nodes(4);  // the last is a spare
  seat_in(JobPhase::running);
  node.context.mirror.faults[Seat(1)] = {Seat(1), "2"};
  watch.on_fault(process, Generation(1), "timeout", "2");
  EXPECT_EQ(node.control.tells, 1);
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].node, test_life(2));
}

TEST_F(TrainersWatched, WhomNoSpareCanReplaceIsNotNamed) {
  node.state.seats.push_back({Seat(2), test_life(2), "host2", 0});
  seat_in(JobPhase::running);
  node.context.mirror.faults[Seat(1)] = {Seat(1), "2"};
  watch.on_fault(process, Generation(1), "timeout", "2");
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].node, std::nullopt);
}

// Of the many nodes of a large job that fail at once those that know the spares speak first.
TEST_F(TrainersWatched, WhoDoesNotKnowTheSparesSpeaksLater) {
  node.state.seats.push_back({Seat(2), test_life(2), "host2", 0});
  node.register_nodes(4);
  node.context.mirror.nodes.forget({});
  node.context.watched.few_follow = true;
  seat_in(JobPhase::running);
  node.context.mirror.faults[Seat(1)] = {Seat(1), "2"};
  watch.on_fault(process, Generation(1), "timeout", "2");
  node.pass(node.context.deadlines.communication_grace);
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  node.pass(2 * node.context.deadlines.communication_grace);
  watch.check();
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  const JobState next = *parse_job_state(node.control.swaps[0].value);
  EXPECT_EQ(next.causes.at(0).kind, FaultKind::communication);
  EXPECT_EQ(next.causes.at(0).node, std::nullopt);
}

TEST_F(TrainersWatched, ASparesParkedTrainersAreRegistered) {
  trainer.asks(JoinMessage{});
  watch.count_parked();
  watch.count_parked();
  EXPECT_EQ(watch.parked(), 1u);
  EXPECT_EQ(parked_changes, 1);
}

// None of its own trainers has failed, and of those whose have nobody knows whether there is a spare.
TEST_F(TrainersWatched, WhoKnowsTheSparesNamesTheSuspectForAll) {
  for (std::uint32_t id = 2; id < 5; ++id) node.state.seats.push_back({Seat(id), test_life(id), "host", 0});
  node.register_nodes(6);
  node.context.watched.few_follow = true;
  seat_in(JobPhase::running);
  watch.check();
  node.pass(10s);
  node.context.mirror.faults[Seat(1)] = {Seat(1), "3"};
  watch.check();
  node.context.mirror.faults[Seat(2)] = {Seat(2), "3"};
  node.pass(node.context.deadlines.communication_grace - 1ms);
  watch.check();
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  node.pass(1ms);
  watch.check();
  watch.check();
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  const JobState next = *parse_job_state(node.control.swaps[0].value);
  ASSERT_EQ(next.causes.size(), 1u);
  EXPECT_EQ(next.causes[0].kind, FaultKind::communication);
  EXPECT_EQ(next.causes[0].node, test_life(3));
}

// It judges that as one of all, and once: twice the same suspect in one move would be replaced at once.
TEST_F(TrainersWatched, WhoKnowsTheSparesSpeaksOnceForItsOwnTrainersToo) {
  for (std::uint32_t id = 2; id < 5; ++id) node.state.seats.push_back({Seat(id), test_life(id), "host", 0});
  node.register_nodes(6);
  node.context.watched.few_follow = true;
  seat_in(JobPhase::running);
  node.context.mirror.faults[Seat(1)] = {Seat(1), "3"};
  watch.on_fault(process, Generation(1), "timeout", "3");
  node.pass(node.context.deadlines.communication_grace);
  watch.check();
  node.pass(3 * node.context.deadlines.communication_grace);
  watch.check();
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  const JobState next = *parse_job_state(node.control.swaps[0].value);
  ASSERT_EQ(next.causes.size(), 1u);
  EXPECT_EQ(next.causes[0].node, test_life(3));
  EXPECT_EQ(next.causes[0].detail, "timeout");
  EXPECT_TRUE(next.evicted.empty());
}

}  // namespace
}  // namespace pawl::job
