#include "job/recovery/ending.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace pawl::job {
namespace {

NodeLife life(std::uint32_t node) {
  return {NodeId(node), Incarnation(1)};
}

class Stopping : public testing::Test {
 protected:
  Stopping() {
    state.generation = Generation(2);
    for (std::uint32_t node = 0; node < 3; ++node) state.seats.push_back({Seat(node), life(node), "", 0});
  }
  JobState state;
  StopView view;
};

TEST_F(Stopping, TheFirstWhoAsksProposes) {
  const StopDuties duties = decide_stop(state, view, life(0));
  EXPECT_TRUE(duties.propose);
  EXPECT_FALSE(duties.acknowledge);
  EXPECT_FALSE(duties.answer);
}

TEST_F(Stopping, IsAnsweredWhenEveryMembersTrainersSeeIt) {
  view.stop_step = Step(9);
  view.told[NodeId(1)] = Generation(2);
  StopDuties duties = decide_stop(state, view, life(0));
  EXPECT_FALSE(duties.propose);
  EXPECT_TRUE(duties.acknowledge);
  EXPECT_FALSE(duties.answer);
  view.told[NodeId(2)] = Generation(1);  // of a generation before: its trainers may be others
  EXPECT_FALSE(decide_stop(state, view, life(0)).answer);
  view.told[NodeId(2)] = Generation(2);
  duties = decide_stop(state, view, life(0));
  EXPECT_TRUE(duties.acknowledge);  // and with it all know
  EXPECT_TRUE(duties.answer);
  view.told[NodeId(0)] = Generation(2);
  EXPECT_FALSE(decide_stop(state, view, life(0)).acknowledge);
}

TEST(AllFinishes, CountOnlyInTheirGeneration) {
  Finishes finishes;
  finishes.note(Seat(0), {Generation(2), Step(9), true});
  finishes.note(Seat(1), {Generation(2), Step(8), false});
  finishes.note(Seat(2), {Generation(1), Step(9), true});
  const std::vector<SeatStep> earliest = finishes.earliest(Generation(2));
  ASSERT_EQ(earliest.size(), 2u);
  EXPECT_EQ(earliest[0].seat, Seat(1));
  EXPECT_EQ(earliest[0].step, Step(8));
  EXPECT_EQ(finishes.finished_count(Generation(2)), 1u);
  EXPECT_EQ(finishes.finished_seats(Generation(2)), std::vector<Seat>{Seat(0)});
  EXPECT_EQ(finishes.finished_count(Generation(3)), 0u);
  EXPECT_TRUE(finishes.earliest(Generation(3)).empty());
}

// Against a list of all that was noted.
TEST(AllFinishes, AreWhatWasNotedLast) {
  std::mt19937_64 random(5);
  Finishes finishes;
  std::map<Seat, SeatFinish> model;
  for (int round = 0; round < 5000; ++round) {
    const Seat seat(static_cast<std::uint32_t>(random() % 12));
    if (random() % 4 == 0) {
      finishes.forget(seat);
      model.erase(seat);
    } else {
      const SeatFinish finish{Generation(1 + random() % 3), Step(random() % 5), random() % 2 == 0};
      finishes.note(seat, finish);
      model.insert_or_assign(seat, finish);
    }
    ASSERT_EQ(finishes.size(), model.size());
    for (const Generation generation : {Generation(1), Generation(2), Generation(3)}) {
      std::vector<std::pair<Step, Seat>> ended;
      std::vector<Seat> finished;
      for (const auto& [one, finish] : model) {
        if (finish.generation != generation) continue;
        ended.emplace_back(finish.step, one);
        if (finish.committed) finished.push_back(one);
      }
      std::ranges::sort(ended);
      const std::vector<SeatStep> earliest = finishes.earliest(generation);
      ASSERT_EQ(earliest.size(), std::min<std::size_t>(ended.size(), 2));
      for (std::size_t i = 0; i < earliest.size(); ++i)
        ASSERT_EQ(std::pair(earliest[i].step, earliest[i].seat), ended[i]);
      ASSERT_EQ(finishes.finished_count(generation), finished.size());
      ASSERT_EQ(finishes.finished_seats(generation), finished);
    }
  }
}

}  // namespace
}  // namespace pawl::job
