#include "job/recovery/recovery_waits.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;

// Seat 3, whose state node 2 has; `now` is looked at each second.
class Waiting : public testing::Test {
 protected:
  Waiting() {
    view.seat = Seat(3);
    view.begun = true;
    view.source = NodeId(2);
    view.trainer = SeatTrainer::joins;
  }
  WaitVerdict look(Duration later = 0s) {
    now += later;
    const WaitVerdict verdict = judge_wait(view, notes, now, deadlines);
    notes = verdict.notes;
    if (verdict.tell) note_told(notes, now);
    return verdict;
  }
  std::string what() { return look().wait.value_or(SeatWait{"nothing", {}, {}}).what; }

  const Deadlines deadlines = derive_deadlines(3s);
  Duration now = 100s;
  SeatView view;
  WaitNotes notes;
};

TEST_F(Waiting, EachWaitHasItsWords) {
  view.begun = false;
  EXPECT_EQ(what(), "copies of the last generation to end on this node");
  view.begun = true;
  view.arena_taken = true;
  EXPECT_EQ(what(), "its trainer to join");
  view.arena_taken = false;
  EXPECT_EQ(what(), "the address of node 2, which has its state");
  view.here = true;
  EXPECT_EQ(what(), "the daemon to give its trainer the seat");
  view.trainer = SeatTrainer::absent;
  EXPECT_EQ(what(), "its trainer to start");
  view.trainer = SeatTrainer::dying;
  EXPECT_EQ(what(), "its killed trainer to end");
  view.trainer = SeatTrainer::leaves;
  EXPECT_EQ(what(), "its trainer to join");
  view.trainer = SeatTrainer::declares;
  EXPECT_EQ(what(), "an arena for its state");
  view.bytes = 3 * kMebi;
  EXPECT_EQ(what(), "an arena for its state (3 MiB)");
  view.trainer = SeatTrainer::rendezvous;
  EXPECT_EQ(what(), "its trainer, which waits for others at the rendezvous");
  view.trainer = SeatTrainer::restores;
  EXPECT_EQ(what(), "its trainer to restore");
  view.trainer = SeatTrainer::restored;
  EXPECT_EQ(what(), "the other seats of its node, or the control, to take that it is ready");
  view.ready = true;
  EXPECT_EQ(what(), "nothing");
}

TEST_F(Waiting, AFetchSaysHowMuchIsToComeWhichTryItIsAndWhyTheLastFailed) {
  view.fetch = FetchState{};
  view.fetch->tries = 1;
  EXPECT_EQ(what(), "its state from node 2");
  view.fetch->total = 412 * kMebi;
  EXPECT_EQ(what(), "412 MiB from node 2");
  view.fetch->received = 12 * kMebi;
  EXPECT_EQ(what(), "400 MiB of 412 MiB from node 2");
  view.fetch->received = 412 * kMebi - 100;
  EXPECT_EQ(what(), "1 KiB of 412 MiB from node 2");
  view.fetch = FetchState{0, 412 * kMebi, 3, "connection refused"};
  EXPECT_EQ(what(), "412 MiB from node 2, 3rd try: connection refused");
  const std::pair<std::uint32_t, const char*> tries[] = {{2, "2nd"},   {4, "4th"},     {11, "11th"},   {12, "12th"},
                                                         {21, "21st"}, {110, "110th"}, {112, "112th"}, {122, "122nd"}};
  for (const auto& [count, name] : tries) {
    view.fetch->tries = count;
    EXPECT_NE(what().find(std::string(", ") + name + " try: "), std::string::npos) << what();
  }
}

TEST_F(Waiting, ItIsToldAfterTwoSecondsAndThenFromTimeToTime) {
  view.here = true;
  EXPECT_FALSE(look().tell);
  EXPECT_FALSE(look(1900ms).tell);
  EXPECT_TRUE(look(100ms).tell);
  EXPECT_FALSE(look(100ms).tell);
  EXPECT_FALSE(look(7s).tell);
  EXPECT_TRUE(look(1s).tell);
  EXPECT_EQ(look().wait->age, 10100ms);
  EXPECT_FALSE(look(15s).tell);
  EXPECT_TRUE(look(1s).tell);
  EXPECT_FALSE(look(31s).tell);
  EXPECT_TRUE(look(1s).tell);
  view.trainer = SeatTrainer::restores;  // another wait: it may be over at once
  EXPECT_FALSE(look().tell);
  EXPECT_EQ(look().wait->age, 0s);
  EXPECT_TRUE(look(2s).tell);
}

TEST_F(Waiting, AFetchToWhichNoByteComesIsGivenUpAfterADeadlineThatGrowsWithItsBytes) {
  EXPECT_EQ(fetch_deadline(0, deadlines), deadlines.restore);
  EXPECT_EQ(fetch_deadline(100 * kMebi, deadlines), deadlines.restore + 1s);
  view.fetch = FetchState{0, 0, 1, {}};
  EXPECT_EQ(look().wait->deadline, deadlines.restore);
  EXPECT_EQ(look(deadlines.restore).give_up, "");
  view.bytes = 1000 * kMebi;
  EXPECT_EQ(look(10s).give_up, "");
  view.fetch->total = 1000 * kMebi;
  view.fetch->received = kMebi;
  EXPECT_EQ(look().give_up, "");
  EXPECT_EQ(look(deadlines.restore + 10s).give_up, "");
  view.fetch->received = 0;  // begun anew, and nothing comes
  view.fetch->tries = 2;
  view.fetch->failed = "timed out";
  EXPECT_EQ(look(1s).give_up, "seat 3 has waited 41 s for 1000 MiB from node 2, 2nd try: timed out");
  view.fetch->received = 2 * kMebi;
  EXPECT_EQ(look().give_up, "");
}

TEST_F(Waiting, ANewTryMayTakeAsLongAsTheLastToComeAsFarButNotForEver) {
  view.fetch = FetchState{900 * kMebi, 1000 * kMebi, 1, {}};
  (void)look();
  for (std::uint32_t tries = 2; tries <= 1 + kFruitlessTriesMax; ++tries) {
    view.fetch->tries = tries;
    for (std::uint64_t mebi = 10; mebi <= 500; mebi += 10) {
      view.fetch->received = mebi * kMebi;
      ASSERT_EQ(look(10s).give_up, "") << tries << ": " << mebi;
    }
    ASSERT_LT(*look().wait->deadline - look().wait->age, fetch_deadline(1000 * kMebi, deadlines) + 1s);
  }
  ++view.fetch->tries;
  std::string gave_up;
  for (std::uint64_t mebi = 10; mebi <= 500; mebi += 10) {
    view.fetch->received = mebi * kMebi;
    gave_up = look(10s).give_up;
  }
  EXPECT_NE(gave_up, "");
  view.fetch->received = 901 * kMebi;  // further than ever
  EXPECT_EQ(look(10s).give_up, "");
}

TEST_F(Waiting, WhatTheNodeItselfDoesHasADeadlineAndWhatIsJudgedElsewhereHasNone) {
  view.begun = false;
  (void)look();
  EXPECT_EQ(look(deadlines.restore).give_up, "");
  EXPECT_EQ(look(1s).give_up, "seat 3 has waited 31 s for copies of the last generation to end on this node");
  view.begun = view.here = true;
  view.trainer = SeatTrainer::declares;
  (void)look();
  EXPECT_EQ(look(31s).give_up, "seat 3 has waited 31 s for an arena for its state");
  view.fresh = true;
  EXPECT_EQ(look(1h).give_up, "");
  for (const SeatTrainer trainer : {SeatTrainer::absent, SeatTrainer::leaves, SeatTrainer::joins,
                                    SeatTrainer::rendezvous, SeatTrainer::restores, SeatTrainer::restored}) {
    view.trainer = trainer;
    (void)look();
    EXPECT_EQ(look(1h).give_up, "");
    EXPECT_FALSE(look().wait->deadline);
  }
}

}  // namespace
}  // namespace pawl::job
