#include "job/recovery/suspect.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace pawl::job {
namespace {

NodeLife life(std::uint32_t node) {
  return {NodeId(node), Incarnation(1)};
}

class Suspects : public testing::Test {
 protected:
  void members(std::uint32_t nodes, std::uint32_t seats_per_node = 1, bool one_machine = false) {
    state.seats.clear();
    for (std::uint32_t seat = 0; seat < nodes * seats_per_node; ++seat) {
      const std::uint32_t node = seat / seats_per_node;
      const std::string host = one_machine ? "127.0.0.1" : text("10.77.0.", 10 + node);
      state.seats.push_back({Seat(seat), life(node), text(host, ":", 7000 + node), seat % seats_per_node});
    }
  }
  std::optional<NodeLife> suspect() const { return name_suspect(state, reports); }
  void says(std::uint32_t seat, std::string lost) { reports[Seat(seat)] = {Seat(seat), std::move(lost)}; }

  JobState state;
  std::map<Seat, FaultReport> reports;
};

TEST_F(Suspects, NobodyWithoutEvidence) {
  members(4);
  EXPECT_FALSE(suspect());
  says(0, "");
  says(1, "");
  EXPECT_FALSE(suspect()) << "two failed, and nobody knows why";
}

TEST_F(Suspects, WhomItsNeighboursFindGone) {
  members(4);
  says(0, "1");
  says(1, "0 2");
  says(2, "1");
  EXPECT_EQ(suspect(), life(1));
}

TEST_F(Suspects, TheFirstOfAFailureThatSpread) {
  members(6);
  says(0, "1");
  says(1, "0 2");
  says(2, "1");
  says(3, "2");
  says(4, "3 5");
  says(5, "0");
  EXPECT_EQ(suspect(), life(1));
}

TEST_F(Suspects, NobodyWhereTwoBlameEachOther) {
  members(2);
  says(0, "1");
  says(1, "0");
  EXPECT_FALSE(suspect());
  members(4);
  says(2, "1");
  says(3, "0");
  EXPECT_FALSE(suspect()) << "a link between 0 and 1";
}

TEST_F(Suspects, NotWhoNoticedACutFirst) {
  members(3);
  says(0, "1");  // and closed its connections
  says(1, "0");
  says(2, "0");
  EXPECT_FALSE(suspect());
  members(4);
  reports.clear();
  says(2, "1");  // the first; node 1, the faulty one, has yet to speak
  says(3, "2");
  says(1, "2");
  EXPECT_FALSE(suspect());
  says(1, "0 2");
  says(0, "1");
  EXPECT_EQ(suspect(), life(1));
}

TEST_F(Suspects, NobodyForOneWord) {
  members(4);
  says(0, "1");
  EXPECT_FALSE(suspect());
}

TEST_F(Suspects, ANodeSpeaksOnceForAllItsSeats) {
  members(3, 4);
  for (std::uint32_t seat = 0; seat < 4; ++seat) says(seat, "4 5 6 7");
  EXPECT_FALSE(suspect()) << "four seats of one node";
  says(8, "4");
  EXPECT_EQ(suspect(), life(1));
}

TEST_F(Suspects, OneNodesSeatsSayNothingOfEachOther) {
  members(3, 2);
  says(0, "1");
  says(2, "1");
  EXPECT_FALSE(suspect());
}

TEST_F(Suspects, AHostStandsForItsNode) {
  members(3);
  says(0, "10.77.0.11");
  says(2, "10.77.0.11 10.77.0.99 nonsense");
  EXPECT_EQ(suspect(), life(1));
  members(3, 1, true);
  reports.clear();
  says(0, "127.0.0.1");
  says(2, "127.0.0.1");
  EXPECT_FALSE(suspect()) << "three nodes on one machine";
}

TEST_F(Suspects, WhoFailsAloneWhileOthersWait) {
  members(3);
  says(1, "");
  EXPECT_EQ(suspect(), life(1));
  members(2);
  EXPECT_FALSE(suspect()) << "of two nobody knows";
}

TEST_F(Suspects, StaysCalmAtNonsense) {
  members(3);
  says(7, "1");
  says(0, "4000000000 99999999999999999999 ::: 1");
  says(2, " 1  1 ");
  EXPECT_EQ(suspect(), life(1));
}

}  // namespace
}  // namespace pawl::job
