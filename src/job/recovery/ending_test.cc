#include "job/recovery/ending.h"

#include <gtest/gtest.h>

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

TEST(EndedSeatsOf, CountOnlyInTheirGeneration) {
  const std::map<Seat, SeatFinish> finishes = {{Seat(0), {Generation(2), Step(9), true}},
                                               {Seat(1), {Generation(2), Step(9), false}},
                                               {Seat(2), {Generation(1), Step(9), true}}};
  const EndedSeats seats = ended_seats(finishes, Generation(2));
  ASSERT_EQ(seats.ended.size(), 2u);
  EXPECT_EQ(seats.ended[1].seat, Seat(1));
  EXPECT_EQ(seats.ended[1].step, Step(9));
  EXPECT_EQ(seats.finished, std::vector<Seat>{Seat(0)});
}

}  // namespace
}  // namespace pawl::job
