#include "job/recovery/node_followers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "job/recovery/duties.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

using Nodes = std::vector<std::uint32_t>;

NodeLife life(std::uint32_t node) {
  return {NodeId(node), Incarnation(1)};
}

// A job of so many members, of one seat each, and spares, which runs.
class Followers : public testing::Test {
 protected:
  Followers() { make(10'000, 2); }
  void make(std::uint32_t member_count, std::uint32_t spare_count) {
    members = member_count;
    spec.node_count = members;
    spec.spare_count = spare_count;
    state = {};
    state.generation = Generation(3);
    state.phase = JobPhase::running;
    state.leader = life(0);
    state.arena_bytes = 1;
    for (std::uint32_t node = 0; node < members; ++node) state.seats.push_back({Seat(node), life(node), "", 0});
  }
  // Who of the members and the spares does.
  Nodes followers() {
    const Roster roster(formed ? state : JobState{});
    Nodes all;
    for (std::uint32_t node = 0; node < members + spec.spare_count; ++node) {
      FollowView view{spec, formed ? &state : nullptr, roster, life(node)};
      view.limits.all_max = all_max;
      view.position = node < members ? node : 0;
      view.position_count = members;
      view.joined_for = joined_for;
      view.in_state_for = in_state_for;
      view.quiet_for = quiet_for;
      view.accused_for = accused_for;
      view.leaving = leaving;
      view.few_registered = few_registered;
      if (must_follow_nodes(view, deadlines)) all.push_back(node);
    }
    return all;
  }
  // Besides those that always do.
  Nodes others() {
    Nodes besides;
    std::ranges::set_difference(followers(), always, std::back_inserter(besides));
    return besides;
  }

  const Deadlines deadlines = derive_deadlines(3s);
  std::uint32_t members = 0;
  std::uint32_t all_max = kAllFollowMax;
  JobSpec spec;
  JobState state;
  bool formed = true, few_registered = false;
  Duration joined_for{}, in_state_for{}, quiet_for{}, accused_for{};
  std::vector<NodeLife> leaving;
  Nodes always;
};

TEST_F(Followers, OfAFewNodesAreAll) {
  make(kAllFollowMax - 2, 2);
  EXPECT_EQ(followers().size(), 64u);
  formed = false;
  EXPECT_EQ(followers().size(), 64u);
  ++spec.node_count;
  EXPECT_EQ(followers().size(), 4u);
}

// However long its nodes take to come, and whichever of them come at all.
TEST_F(Followers, WhileAJobFormsAreTheFirstFourAndLaterSixteenMore) {
  formed = false;
  EXPECT_EQ(followers(), (Nodes{0, 1, 2, 3}));
  std::set<std::uint32_t> ever;
  for (joined_for = deadlines.silence; joined_for < 24h; joined_for *= 2) {
    const Nodes all = followers();
    EXPECT_GE(all.size(), 16u);
    EXPECT_LE(all.size(), 20u);
    ever.insert(all.begin(), all.end());
  }
  EXPECT_GT(ever.size(), 100u);
  EXPECT_GE(std::ranges::count_if(ever, [](std::uint32_t node) { return node >= 9'000; }), 10);
}

TEST_F(Followers, WhileTheJobRunsAreSixteenOfTheMembersAndTheLowestSpares) {
  const Nodes all = followers();
  ASSERT_EQ(all.size(), 18u);
  EXPECT_EQ(all[16], members);
  EXPECT_EQ(all[17], members + 1);
  for (std::uint32_t i = 0; i < 16; ++i) EXPECT_EQ(all[i] / 625, i) << "spread over all";
  state.phase = JobPhase::finished;
  EXPECT_TRUE(followers().empty());
}

TEST_F(Followers, UntilTheLargestArenaIsToldTheLeaderIs) {
  always = followers();
  state.leader = life(7);
  state.arena_bytes = 0;
  EXPECT_EQ(others(), (Nodes{7}));
}

TEST_F(Followers, InARecoveryIsWhoLeads) {
  always = followers();
  state.phase = JobPhase::quiescing;
  state.leader = life(7);
  EXPECT_EQ(others(), (Nodes{7}));
  quiet_for = deadlines.leader - 1ms;
  EXPECT_EQ(others(), (Nodes{7}));
}

// It may wait for a spare for a day.
TEST_F(Followers, WhereARecoveryStandsStillAreSixteenMoreAtATime) {
  always = followers();
  state.phase = JobPhase::quiescing;
  std::set<std::uint32_t> ever;
  for (quiet_for = deadlines.leader; quiet_for < 24h; quiet_for += quiet_for / 4) {
    const Nodes more = others();
    EXPECT_GE(more.size(), 10u);
    EXPECT_LE(more.size(), 17u);
    ever.insert(more.begin(), more.end());
  }
  EXPECT_GT(ever.size(), 150u);
}

// Wherever a rack of 500 is that has lost the control, after one turn of a leader enough of those that follow are outside.
TEST_F(Followers, ARackWithoutTheControlHoldsATakeoverUpForOneTurnOnly) {
  state.phase = JobPhase::restoring;
  quiet_for = deadlines.leader + 1ms;
  const Nodes all = followers();
  for (std::uint32_t first = 0; first + 500 <= members; ++first) {
    state.leader = life(first);
    std::size_t outside = 0;
    for (const std::uint32_t node : all) outside += node < members && (node < first || node >= first + 500) ? 1 : 0;
    ASSERT_GE(outside, 16u) << first;
  }
  Registrations registrations;
  for (std::uint32_t node = 500; node < members; ++node) registrations.nodes[NodeId(node)].life = life(node);
  state.leader = life(0);
  std::size_t lead = 0;
  for (const std::uint32_t node : all) {
    if (node < 500 || node >= members) continue;
    const bool has_post = is_spread(node, members);
    const auto delay = lead_delay({state, registrations, life(node), quiet_for, true, has_post}, deadlines);
    if (!delay) continue;
    EXPECT_EQ(*delay, deadlines.leader);
    ++lead;
  }
  EXPECT_GE(lead, 14u);
}

TEST_F(Followers, WhereAWordAgainstAMemberStandsForLongAreSixteenMore) {
  always = followers();
  accused_for = deadlines.silence - 1ms;
  EXPECT_TRUE(others().empty());
  accused_for = deadlines.silence;
  const Nodes first = others();
  EXPECT_GE(first.size(), 10u);
  EXPECT_LE(first.size(), 16u);
  accused_for = 1h;
  EXPECT_LE(others().size(), 16u);
  EXPECT_NE(others(), first);
}

TEST_F(Followers, OfAThousandThatAreToBeDrainedSixteenAreAndTheFirstTwoMembers) {
  always = followers();
  for (std::uint32_t node = 3'000; node < 4'000; ++node) leaving.push_back(life(node));
  const Nodes more = others();
  EXPECT_LE(more.size(), 18u);
  for (const std::uint32_t node : {0u, 1u, 3'000u, 3'015u}) EXPECT_EQ(std::ranges::count(more, node), 1) << node;
  state.phase = JobPhase::quiescing;
  EXPECT_LE(others().size(), 1u);
}

// A rack that was cut off, and may linger: each of it must find out at some time whether it is needed.
TEST_F(Followers, OfThoseThatWereEvictedSixteenAreAtATimeAndEachInItsTurn) {
  state.phase = JobPhase::quiescing;
  always = followers();
  for (std::uint32_t node = 5'000; node < 5'500; ++node) state.evicted.push_back(life(node));
  std::set<std::uint32_t> ever;
  for (int turn = 0; turn < 32; ++turn, in_state_for += deadlines.silence) {
    const Nodes more = others();
    EXPECT_LE(more.size(), 16u);
    ever.insert(more.begin(), more.end());
  }
  EXPECT_EQ(ever.size() + (std::ranges::count_if(always, [](auto node) { return node / 500 == 10; })), 500u);
}

TEST_F(Followers, OfFiveHundredSparesTheLowestSixteenAre) {
  make(10'000, 500);
  Nodes spares;
  std::ranges::copy_if(followers(), std::back_inserter(spares), [this](auto node) { return node >= members; });
  Nodes lowest;
  for (std::uint32_t i = 0; i < 16; ++i) lowest.push_back(members + i);
  EXPECT_EQ(spares, lowest);
  few_registered = true;
  EXPECT_EQ(followers().size(), 516u) << "there are few to follow";
}

// The nodes that have died are no spares, though their numbers are free; one that has come back may be.
TEST_F(Followers, AmongThoseWithoutASeatTheEvictedAreNotCounted) {
  make(100, 3);
  for (std::uint32_t node = 10; node < 60; ++node) {
    state.departed.push_back(life(node));
    state.seats[node].life = {NodeId(node), Incarnation(2)};
  }
  state.seats[30].life = life(102);
  const Roster roster(state);
  FollowView view{spec, &state, roster, life(101)};
  EXPECT_EQ(bystanders_before(view), 1u);
  view.self = {NodeId(30), Incarnation(2)};
  EXPECT_EQ(bystanders_before(view), 0u);
}

TEST_F(Followers, WhereTwoAreLeftBothAreAndTheSpares) {
  make(100, 2);
  state.phase = JobPhase::quiescing;
  for (std::uint32_t node = 0; node < members; ++node)
    if (node != 30 && node != 60) state.evicted.push_back(life(node));
  const Nodes all = followers();
  for (const std::uint32_t node : {30u, 60u, 100u, 101u}) EXPECT_EQ(std::ranges::count(all, node), 1) << node;
}

}  // namespace
}  // namespace pawl::job
