#include "job/persist/persist_round.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;
using Kind = PersistMove::Kind;

class PersistRound : public testing::Test {
 protected:
  PersistRound() {
    view.policy.every_steps = 100;
    view.running = Generation(3);
    view.seat_count = 4;
    view.progress = {Step(10), 0};
  }
  PersistMove move() { return next_persist_move(view); }
  void order() {
    ASSERT_EQ(move().kind, Kind::order);
    view.record = after_order(view.record, view.running, move().step);
  }
  void to_writing() {
    order();
    view.tally.pinned = 4;
    ASSERT_EQ(move().kind, Kind::write);
    view.record = after_begin(view.record, "/c/step-100.pawl-partial/attempt-1");
  }
  PersistView view;
};

TEST_F(PersistRound, TheNextMultipleIsOrderedLongBefore) {
  order();
  EXPECT_EQ(view.record.step, Step(100));
  EXPECT_EQ(view.record.attempt, 1u);
  EXPECT_EQ(view.record.generation, Generation(3));
  EXPECT_EQ(move().kind, Kind::none);
  view.progress.committed = Step(99);
  view.since_change = 10 * kPersistPatience;  // the step is yet to come
  EXPECT_EQ(move().kind, Kind::none);
}

TEST_F(PersistRound, WhatIsAskedForComesFirst) {
  order();
  view.tally.wanted = Step(11);
  PersistMove next = move();
  EXPECT_EQ(next, (PersistMove{Kind::give_up, Step(0), "", true})) << "100 is far, and nobody keeps anything of it yet";
  view.record = after_give_up(view.record, next, 5);
  next = move();
  EXPECT_EQ(next, (PersistMove{Kind::order, Step(12), "", false}));
  view.record = after_order(view.record, view.running, next.step);
  EXPECT_EQ(move().kind, Kind::none);
  view.record = after_publish(view.record, 6);
  EXPECT_EQ(move(), (PersistMove{Kind::order, Step(100), "", false}));
}

// The job went back, or copies are far behind: what is due before is not left out.
TEST_F(PersistRound, WhatIsAskedForFarAheadWaitsUntilTheJobIsThere) {
  view.tally.wanted = Step(250);
  order();
  EXPECT_EQ(view.record.step, Step(100));
  EXPECT_EQ(move().kind, Kind::none);
  view.record = after_publish(view.record, 5);
  view.progress.committed = Step(197);
  order();
  EXPECT_EQ(view.record.step, Step(200));
  view.record = after_publish(view.record, 5);
  view.progress.committed = Step(247);
  order();
  EXPECT_EQ(view.record.step, Step(300));
  EXPECT_EQ(move().kind, Kind::none);
  view.progress.committed = Step(248);
  const PersistMove next = move();
  EXPECT_EQ(next, (PersistMove{Kind::give_up, Step(0), "", true}));
  view.record = after_give_up(view.record, next, 6);
  EXPECT_EQ(move(), (PersistMove{Kind::order, Step(250), "", false}));
}

TEST_F(PersistRound, WhatIsAskedForAndCannotBeStoredIsNotTriedForEver) {
  view.tally.wanted = Step(11);
  to_writing();
  view.tally.failed = "no room";
  const PersistMove ended = move();
  ASSERT_EQ(ended.kind, Kind::give_up);
  view.record = after_give_up(view.record, ended, 5);
  view.tally.failed.clear();
  EXPECT_EQ(move(), (PersistMove{Kind::order, Step(100), "", false}));
}

TEST_F(PersistRound, OfAutoOneFollowsAnotherWithAPause) {
  view.policy = {0, {}, true};
  view.record.tried = view.record.step = view.record.published = Step(8);
  view.since_ended = kAutoPause - 1ms;
  EXPECT_EQ(move().kind, Kind::none);
  view.since_ended = kAutoPause;
  EXPECT_EQ(move(), (PersistMove{Kind::order, Step(12), "", false}));
  EXPECT_FALSE(may_end(view)) << "the last step is written";
}

TEST_F(PersistRound, SaysHowFarApartTheLastTwoWere) {
  view.record = after_publish(view.record, 5000);
  EXPECT_EQ(view.record.interval_ms, 0u);
  view.record = after_give_up(view.record, {Kind::give_up, Step(0), "no room", false}, 7000);
  view.record = after_publish(view.record, 17000);
  EXPECT_EQ(view.record.interval_ms, 12000u);
}

TEST_F(PersistRound, IsWrittenWhenAllArePinnedAndPublishedWhenAllAreWritten) {
  order();
  view.tally.pinned = 3;
  EXPECT_EQ(move().kind, Kind::none);
  view.tally.pinned = 4;
  EXPECT_EQ(move().kind, Kind::write);
  view.record = after_begin(view.record, "/f");
  view.tally.written = 3;
  EXPECT_EQ(move().kind, Kind::none);
  view.tally.written = 4;
  view.since_change = 10 * kPersistPatience;
  EXPECT_EQ(move().kind, Kind::none) << "the step's window is not over";
  view.since_change = 0s;
  view.tally.proven = 4;
  EXPECT_EQ(move().kind, Kind::publish);
  view.record = after_publish(view.record, 5);
  EXPECT_EQ(view.record.published, Step(100));
  EXPECT_EQ(view.record.phase, PersistPhase::idle);
  view.progress.committed = Step(104);
  EXPECT_EQ(move(), (PersistMove{Kind::order, Step(200), "", false}));
}

TEST_F(PersistRound, AStepThatIsOverIsFollowedByOneFurtherAhead) {
  order();
  view.progress = {Step(99), 2};
  view.tally.failed = "seat 2 did not capture step 100";
  view.tally.unpinned = true;
  const PersistMove given_up = move();
  EXPECT_EQ(given_up.kind, Kind::give_up);
  EXPECT_TRUE(given_up.again);
  view.record = after_give_up(view.record, given_up, 5);
  EXPECT_EQ(view.record.why, "seat 2 did not capture step 100");
  EXPECT_EQ(view.record.failures, 1u);
  view.tally = {};
  EXPECT_EQ(move().step, Step(101 + 4)) << "beyond the void ones, and further than the first time";
  for (int i = 0; i < 20; ++i) view.record = after_give_up(view.record, given_up, 5);
  EXPECT_EQ(move().step, Step(101 + 64));
}

TEST_F(PersistRound, WhatCouldNotBeWrittenIsNotTriedAgainBeforeTheNextIsDue) {
  to_writing();
  view.progress.committed = Step(130);
  view.tally.failed = "seat 1: no room";
  const PersistMove given_up = move();
  EXPECT_FALSE(given_up.again);
  view.record = after_give_up(view.record, given_up, 5);
  view.tally = {};
  EXPECT_EQ(view.record.published, Step(0));
  EXPECT_EQ(move().step, Step(200));
}

TEST_F(PersistRound, StorageThatStandsStillIsGivenUp) {
  to_writing();
  view.since_change = kPersistPatience;
  EXPECT_EQ(move().kind, Kind::none);
  view.since_change += 1s;
  EXPECT_EQ(move().kind, Kind::give_up);
  EXPECT_NE(move().why.find("of 4 seats 0 are written"), std::string::npos) << move().why;
}

TEST_F(PersistRound, ARootThatHasNotBegunTheFolderBeginsAnew) {
  to_writing();
  view.has_folder = false;
  EXPECT_EQ(move().kind, Kind::give_up);
  EXPECT_TRUE(move().again);
}

TEST_F(PersistRound, AnAttemptOfAnotherGenerationIsNobodys) {
  to_writing();
  view.running = Generation(4);
  EXPECT_EQ(move().kind, Kind::order);
  EXPECT_EQ(move().step, Step(100));
  view.record = after_order(view.record, view.running, move().step);
  EXPECT_EQ(view.record.attempt, 2u);
  EXPECT_EQ(view.record.folder, "");
}

TEST_F(PersistRound, ByTimeItIsAsOftenAsWasAskedFor) {
  view.policy = {0, 10min};
  view.since_ended = 9min;
  EXPECT_EQ(move().kind, Kind::none);
  view.since_ended = 10min;
  EXPECT_EQ(move(), (PersistMove{Kind::order, Step(12), "", false}));
  view.record = after_order(view.record, view.running, Step(12));
  view.record = after_give_up(view.record, {Kind::give_up, Step(0), "void", true}, 5);
  view.since_ended = 0s;
  EXPECT_EQ(move().kind, Kind::order) << "it is still due";
  view.record = after_order(view.record, view.running, Step(14));
  view.record = after_give_up(view.record, {Kind::give_up, Step(0), "no room", false}, 5);
  EXPECT_EQ(move().kind, Kind::none);
}

TEST_F(PersistRound, TheLastStepIsAlwaysWritten) {
  EXPECT_FALSE(may_end(view)) << "not all have ended";
  order();
  view.last = Step(42);
  EXPECT_FALSE(may_end(view));
  const PersistMove given_up = move();
  EXPECT_EQ(given_up, (PersistMove{Kind::give_up, Step(0), "", true})) << "step 100 never comes";
  view.record = after_give_up(view.record, given_up, 5);
  EXPECT_EQ(view.record.failures, 0u);
  EXPECT_EQ(move(), (PersistMove{Kind::order, Step(42), "", false}));
  EXPECT_FALSE(may_end(view));
  view.record = after_publish(after_order(view.record, view.running, Step(42)), 5);
  EXPECT_EQ(move().kind, Kind::none);
  EXPECT_TRUE(may_end(view));
}

TEST_F(PersistRound, StorageThatFailsDoesNotHoldTheJob) {
  view.record.failures = 9;  // of earlier steps: the last one is tried all the same
  view.last = Step(42);
  for (std::uint32_t i = 0; i < kLastTries; ++i) {
    EXPECT_FALSE(may_end(view));
    ASSERT_EQ(move().kind, Kind::order);
    view.record = after_order(view.record, view.running, move().step);
    view.record = after_give_up(view.record, {Kind::give_up, Step(0), "no room", false}, 5);
  }
  EXPECT_EQ(move().kind, Kind::none);
  EXPECT_TRUE(may_end(view));
}

TEST_F(PersistRound, WithoutAPolicyAJobEndsAtOnce) {
  view.policy = {};
  EXPECT_TRUE(may_end(view));
  EXPECT_EQ(move().kind, Kind::none);
}

TEST_F(PersistRound, OlderOnesAreRememberedTheNewestFirst) {
  for (std::uint64_t step = 100; step <= 1000; step += 100)
    view.record = after_publish(after_order(view.record, view.running, Step(step)), 5);
  EXPECT_EQ(view.record.published, Step(1000));
  ASSERT_EQ(view.record.older.size(), kOlderMax);
  EXPECT_EQ(view.record.older.front(), Step(900));
  EXPECT_EQ(view.record.older.back(), Step(300));
}

TEST_F(PersistRound, WhatAnotherHistoryHasPublishedIsWrittenAnew) {
  for (std::uint64_t step = 100; step <= 400; step += 100)
    view.record = after_publish(after_order(view.record, view.running, Step(step)), 5);
  EXPECT_EQ(going_on_from(view.record, Step(450)), view.record);
  const PersistRecord back = going_on_from(view.record, Step(250));
  EXPECT_EQ(back.published, Step(200));
  EXPECT_EQ(back.older, std::vector<Step>{Step(100)});
  EXPECT_EQ(back.tried, Step(250));
  EXPECT_EQ(going_on_from(view.record, Step(50)).published, Step(0));
  EXPECT_EQ(going_on_from(PersistRecord{}, Step(500)).tried, Step(500)) << "a job that began with a checkpoint";
  view.record = back;
  view.running = Generation(9);
  view.progress.committed = Step(260);
  EXPECT_EQ(move().step, Step(300));
}

TEST(PersistTally, TheFirstReasonOfMoreThanOneCounts) {
  PersistTally all{1, 0, 0, 5, "", false, Step(4)};
  add(all, {2, 1, 1, 7, "no room", false, Step(9)});
  add(all, {0, 0, 0, 0, "void", true, {}});
  EXPECT_EQ(all, (PersistTally{3, 1, 1, 12, "no room", false, Step(9)}));
}

TEST(MayPin, OnlyWhileNobodyMayOverwriteTheStep) {
  EXPECT_TRUE(may_pin({Step(4), 0}, Step(5)));
  EXPECT_TRUE(may_pin({Step(5), 0}, Step(5)));
  EXPECT_FALSE(may_pin({Step(6), 0}, Step(5)));
  EXPECT_FALSE(may_pin({Step(4), 1}, Step(5)));
  EXPECT_TRUE(may_pin({Step(3), 1}, Step(5)));
}

}  // namespace
}  // namespace pawl::job
