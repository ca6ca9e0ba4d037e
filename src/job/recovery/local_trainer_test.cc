#include "job/recovery/local_trainer.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Duration kStart = 600s;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Returning : public testing::Test {
 protected:
  // Generation 3 restores since t = 100 s; it is one second later.
  Returning() {
    view.now = 101s;
    view.generation = Generation(3);
    view.restoring_since = 100s;
    view.spawned_at = 10s;
    view.since_progress = 100ms;
  }
  ReturningVerdict look() { return decide_returning(view, notes, kStart, deadlines); }

  Deadlines deadlines = derive_deadlines(3s);  // silence 3 s, trainer_free 10 s, restore 30 s
  ReturningView view;
  ReturningNotes notes;
};

TEST_F(Returning, WhoHasNotComeBackIsKilledAtItsDeadline) {
  view.was_there = true;
  view.seated = Generation(2);
  view.since_progress = 4s;  // silent
  view.now = 109s;
  EXPECT_FALSE(look().kill);
  view.now = 111s;
  EXPECT_EQ(look().kill, "could not be freed within its deadline");
}

TEST_F(Returning, WhoMovesHasThreeTimesAsLongToComeBack) {
  view.was_there = true;
  view.seated = Generation(2);
  view.now = 129s;
  EXPECT_FALSE(look().kill);
  view.now = 131s;
  EXPECT_TRUE(look().kill);
}

TEST_F(Returning, AStoppedProcessIsKilledAfterTheSilence) {
  view.stopped = true;
  view.was_there = true;
  view.seated = Generation(3);
  notes = look().notes;
  EXPECT_EQ(notes.stopped_since, 101s);
  view.now = 104s;
  EXPECT_FALSE(look().kill);
  view.now = 105s;
  EXPECT_EQ(look().kill, "the process was stopped");
  view.stopped = false;
  EXPECT_EQ(look().notes.stopped_since, Duration::zero());
  EXPECT_FALSE(look().kill);
}

TEST_F(Returning, ARestoreHasItsDeadlineFromWhenItLastWaitedForOthers) {
  view.was_there = true;
  view.seated = Generation(3);
  view.waits_for_others = true;
  notes = look().notes;
  EXPECT_EQ(notes.busy_at, 101s);
  view.waits_for_others = false;
  view.now = 132s;
  view.since_progress = 29s;  // it still moves
  EXPECT_FALSE(look().kill);
  view.since_progress = 31s;
  EXPECT_TRUE(has(look().kill.value_or(""), "not restored within 30 s"));
}

TEST_F(Returning, ANewProcessHasTheTimeToStart) {
  view.spawned_at = 102s;
  view.since_progress = 600s;
  view.now = 702s;
  EXPECT_FALSE(look().kill);
  view.now = 703s;
  EXPECT_TRUE(has(look().kill.value_or(""), "not ready within 600 s (--start-timeout)"));
}

TEST_F(Returning, WhoHasSaidDoneOrWaitsToJoinIsLeftAlone) {
  view.now = 10'000s;
  view.since_progress = 9'000s;
  view.done = Generation(3);
  EXPECT_FALSE(look().kill);
  view.done = Generation(2);
  view.waits_to_join = true;
  EXPECT_FALSE(look().kill);
}

TEST(HowItEnded, NamesTheStepAndWhatToDo) {
  EXPECT_EQ(how_it_ended("signal 9", "it hangs", Step(4)), "killed: it hangs");
  EXPECT_EQ(how_it_ended("exited 1", "", std::nullopt), "exited 1");
  EXPECT_EQ(how_it_ended("exited 1, its output is in x", "", Step(4)),
            "exited 1 in or after step 4, its output is in x");
  EXPECT_EQ(how_it_ended("exited 1, its output is in x", "", Step(4), "KeyError: 1"),
            "exited 1 in or after step 4: KeyError: 1, its output is in x");
  EXPECT_EQ(how_it_ended("exited 1, its output is in x", "", std::nullopt, "KeyError: 1"),
            "exited 1: KeyError: 1, its output is in x");
  const std::string clean = how_it_ended("exited 0, its output is in x", "", Step(4));
  EXPECT_TRUE(has(clean, "ended (exit 0) after step 4 without finishing"));
  EXPECT_TRUE(has(clean, ", its output is in x"));
  EXPECT_TRUE(ended_by_itself("exited 1"));
  EXPECT_FALSE(ended_by_itself("signal 9"));
}

TEST(Respawning, IsSoonAndPausesForAProcessWithoutASeat) {
  RespawnView view;
  view.now = 100s;
  view.spawned_at = 1s;
  view.had_seat = true;
  EXPECT_EQ(decide_respawn(view).pause, 0ms);
  view.had_seat = false;
  EXPECT_EQ(decide_respawn(view).pause, 100ms);
  EXPECT_EQ(decide_respawn(view).early_exits, 0);
  view.spawned_at = 99s;
  EXPECT_EQ(decide_respawn(view).early_exits, 1);
  EXPECT_EQ(decide_respawn(view).give_up, "");
}

TEST(Respawning, TheThirdEarlyExitGivesTheNodeUpOrMakesASpareUnfit) {
  RespawnView view;
  view.now = 100s;
  view.spawned_at = 99s;
  view.early_exits = 2;
  view.ended = "exited 3";
  EXPECT_EQ(decide_respawn(view).give_up, "its trainer ended 3 times before it had a seat (exited 3)");
  view.job_formed = true;
  view.is_member = true;
  EXPECT_NE(decide_respawn(view).give_up, "");
  view.is_member = false;
  EXPECT_EQ(decide_respawn(view).give_up, "");
  EXPECT_TRUE(decide_respawn(view).unfit);
  EXPECT_EQ(decide_respawn(view).pause, kUnfitPause);
}

TEST(Respawning, WhatCanNotStartIsNotTriedAgain) {
  RespawnView view;
  view.now = 100s;
  view.spawned_at = 99s;
  view.ended = "exited 1: ModuleNotFoundError: x";
  view.sign = sign_of("exited 1", "ModuleNotFoundError: x");
  EXPECT_EQ(
      decide_respawn(view).give_up,
      "its trainer can't start (exited 1: ModuleNotFoundError: x); install the module on every node, or start with "
      "another interpreter");
  view.job_formed = true;  // a spare's may be mended while the job runs
  EXPECT_EQ(decide_respawn(view).give_up, "");
  EXPECT_TRUE(decide_respawn(view).unfit);
  view.job_formed = false;
  view.sign = sign_of("exited 1", "OSError: No space left on device");
  EXPECT_EQ(decide_respawn(view).give_up, "");
}

TEST(Dying, WhatStartedADeadProcessIsKilledAfterAMoment) {
  DyingView view;
  view.now = view.since = 100s;
  EXPECT_FALSE(decide_dying(view).kill);
  view.now += kEndToldMax;
  EXPECT_FALSE(decide_dying(view).kill);
  view.now += 1ms;
  EXPECT_TRUE(decide_dying(view).kill);
  view.killed = true;
  EXPECT_FALSE(decide_dying(view).kill);
}

TEST(Dying, WhoDoesNotDieCostsItsNode) {
  DyingView view;
  view.killed = true;
  view.since = 100s;
  view.now = view.since + kDyingMax;
  EXPECT_EQ(decide_dying(view).give_up, "");
  view.now += 1ms;
  EXPECT_NE(decide_dying(view).give_up.find("killed 30 s ago and does not die"), std::string::npos);
  view.resident_bytes = std::uint64_t{20} << 30;  // there is more to give back
  EXPECT_EQ(decide_dying(view).give_up, "");
  view.now += 20s;
  EXPECT_NE(decide_dying(view).give_up, "");
}

TEST(NextEnd, TheSameFailureInTheSameStepCountsOn) {
  const auto end = [](std::uint64_t generation, std::uint64_t step, const char* failure) {
    TrainerEnd made{Seat(1), Generation(generation), "exited 1"};
    made.step = Step(step);
    made.failure = failure;
    return made;
  };
  const TrainerEnd first = next_end(end(1, 9, "KeyError: 1"), nullptr);
  EXPECT_EQ(first.times, 1u);
  EXPECT_EQ(next_end(end(1, 9, "KeyError: 1"), &first).times, 1u);  // told again
  const TrainerEnd second = next_end(end(2, 9, "KeyError: 1"), &first);
  EXPECT_EQ(second.times, 2u);
  EXPECT_EQ(next_end(end(4, 9, "KeyError: 1"), &second).times, 3u);
  EXPECT_EQ(next_end(end(2, 10, "KeyError: 1"), &first).times, 1u);
  EXPECT_EQ(next_end(end(2, 9, "KeyError: 2"), &first).times, 1u);
  const TrainerEnd silent = next_end(end(1, 9, ""), nullptr);
  EXPECT_EQ(next_end(end(2, 9, ""), &silent).times, 1u);
  TrainerEnd of_a_peer = end(2, 9, "KeyError: 1");
  of_a_peer.failure_class = FailureClass::transient_communication;
  EXPECT_EQ(next_end(of_a_peer, &first).times, 1u);
}

TEST(Respawning, ThreeEndsInASeatBeforeTheJobRunsAreTooMany) {
  EXPECT_EQ(why_unfit_for_seat(2, "exited 1", ""), "");
  EXPECT_EQ(why_unfit_for_seat(3, "exited 1", ""), "its trainer ended 3 times before the job ran (exited 1)");
  EXPECT_EQ(why_unfit_for_seat(3, "exited 1", "no memory"),
            "its trainer ended 3 times before the job ran (exited 1): no memory");
}

TEST(CauseOfDeath, AFirstDeathNeedsNoReasonARepeatedOneDoes) {
  const NodeLife self{NodeId(2), Incarnation(1)};
  JobState state;
  state.phase = JobPhase::running;
  const auto first = cause_of_death(state, self, Seat(2), "");
  ASSERT_TRUE(first);
  EXPECT_EQ(first->kind, FaultKind::trainer_exit);
  EXPECT_EQ(first->node, self);
  EXPECT_EQ(first->seat, Seat(2));
  EXPECT_EQ(first->detail, "its process died");
  state.attempts = {{FaultKind::trainer_exit, Seat(2), Step(4), 1}};
  state.resume = Step(4);
  EXPECT_FALSE(cause_of_death(state, self, Seat(2), ""));
  EXPECT_TRUE(cause_of_death(state, self, Seat(1), ""));
  state.resume = Step(5);  // a step was committed since the first: this one is a first again
  EXPECT_TRUE(cause_of_death(state, self, Seat(2), ""));
  state.resume = Step(4);
  EXPECT_EQ(cause_of_death(state, self, Seat(2), "exited 1")->detail, "exited 1");
  state.phase = JobPhase::quiescing;  // its recovery is under way: the inventory tells
  EXPECT_FALSE(cause_of_death(state, self, Seat(2), "exited 1"));
}

TEST(GivingUp, WaitsForWhoFetchesFromHere) {
  const NodeLife here{NodeId(0), Incarnation(1)}, spare{NodeId(2), Incarnation(1)};
  JobState state;
  state.phase = JobPhase::restoring;
  state.seats = {{Seat(0), here, "", 0}, {Seat(1), spare, "", 0}};
  state.sources = {{Seat(0), SourceKind::own_arena, here, Generation(1), Step(7)},
                   {Seat(1), SourceKind::replica, here, Generation(1), Step(7)}};
  EXPECT_TRUE(others_fetch_from(state, {}, here));
  EXPECT_FALSE(others_fetch_from(state, {}, spare));
  EXPECT_FALSE(others_fetch_from(state, std::vector<NodeLife>{spare}, here));
  state.phase = JobPhase::running;
  EXPECT_FALSE(others_fetch_from(state, {}, here));
}

TEST(GivingUp, WaitsForNobodyWhoCanReadTheSameElsewhere) {
  const NodeLife here{NodeId(0), Incarnation(1)}, holder{NodeId(1), Incarnation(1)}, spare{NodeId(2), Incarnation(1)};
  JobState state;
  state.phase = JobPhase::restoring;
  state.seats = {{Seat(0), here, "", 0}, {Seat(1), spare, "", 0}};
  const Source replica{Seat(1), SourceKind::replica, holder, Generation(1), Step(7)};
  const Source path{Seat(1), SourceKind::path, here, Generation(1), Step(7), {}, Seat(0)};
  state.sources = {replica, path};
  EXPECT_FALSE(others_fetch_from(state, {}, here));
  EXPECT_TRUE(others_fetch_from(state, {}, holder));
  state.sources = {path};
  EXPECT_TRUE(others_fetch_from(state, {}, here));
  Source damaged = replica;
  damaged.extent = {0, 4096};
  state.sources = {damaged, path};
  EXPECT_TRUE(others_fetch_from(state, {}, here));
}

TEST(GivingUp, EvictsTheNodeOnceTheJobHasRunElseEndsTheJob) {
  const NodeLife self{NodeId(2), Incarnation(1)};
  const auto unformed = decide_give_up(nullptr, self, "why");
  ASSERT_TRUE(std::holds_alternative<StateMove>(unformed));
  EXPECT_EQ(std::get<StateMove>(unformed).next.phase, JobPhase::failed);
  EXPECT_EQ(std::get<StateMove>(unformed).next.verdict, "node 2: why");
  JobState state;
  state.generation = Generation(1);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(decide_give_up(&state, self, "why")));  // a spare
  state.seats = {{Seat(0), self, "", 0}};
  EXPECT_EQ(std::get<StateMove>(decide_give_up(&state, self, "why")).next.generation, Generation(1));
  state.ran = Generation(1);
  const auto ran = decide_give_up(&state, self, "why");
  ASSERT_TRUE(std::holds_alternative<Cause>(ran));
  EXPECT_EQ(std::get<Cause>(ran).kind, FaultKind::node_lost);
  EXPECT_EQ(std::get<Cause>(ran).node, self);
}

}  // namespace
}  // namespace pawl::job
