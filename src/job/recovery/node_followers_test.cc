#include "job/recovery/node_followers.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kMembers = 100;

NodeLife life(std::uint32_t node) {
  return {NodeId(node), Incarnation(1)};
}

// A job of 100 members of one seat each and two spares, which runs; all are heard, and nobody follows who is registered.
class Followers : public testing::Test {
 protected:
  Followers() {
    spec.node_count = kMembers;
    spec.spare_count = 2;
    state.generation = Generation(3);
    state.phase = JobPhase::running;
    state.leader = life(7);
    state.arena_bytes = 1;
    registrations.known = false;
    for (std::uint32_t node = 0; node < kMembers; ++node) state.seats.push_back({Seat(node), life(node), "", 0});
  }
  // Who of the members and the spares does.
  std::vector<std::uint32_t> followers() {
    const Roster roster(formed ? state : JobState{});
    std::vector<std::uint32_t> all;
    for (std::uint32_t node = 0; node < kMembers + 2; ++node) {
      FollowView view{spec, formed ? &state : nullptr, roster, registrations, life(node)};
      view.joined_for = joined_for;
      view.quiet_for = quiet_for;
      const std::vector<Contact> contacts = contacts_of(node);
      view.contacts = contacts;
      view.accuses = accuser == node;
      view.attentive_since = attentive_since;
      view.now = now;
      view.leaving = leaving;
      view.failed = failed;
      if (must_follow_nodes(view, deadlines)) all.push_back(node);
    }
    return all;
  }
  std::vector<Contact> contacts_of(std::uint32_t node) {
    std::vector<Contact> contacts;
    for (const Member& member : watched_by(state, registrations, life(node)))
      contacts.push_back({member.life, all_silent || member.life == silent ? heard : now, {}, refused});
    return contacts;
  }
  static std::vector<std::uint32_t> with_spares(std::vector<std::uint32_t> members) {
    members.push_back(kMembers);
    members.push_back(kMembers + 1);
    return members;
  }
  static std::vector<std::uint32_t> up_to(std::uint32_t end) {
    std::vector<std::uint32_t> nodes;
    for (std::uint32_t node = 0; node < end; ++node) nodes.push_back(node);
    return nodes;
  }

  const Deadlines deadlines = derive_deadlines(3s);
  JobSpec spec;
  JobState state;
  bool formed = true;
  Registrations registrations;
  Duration joined_for{}, quiet_for{};
  std::optional<NodeLife> silent;
  bool all_silent = false;
  Duration now = 1000s, heard = 1000s;
  bool refused = false;
  std::uint32_t accuser = ~0u;
  std::optional<Duration> attentive_since = 1s;
  std::vector<NodeLife> leaving, failed;
};

TEST_F(Followers, OfAFewNodesAreAll) {
  spec.node_count = kAllFollowMax - spec.spare_count;
  EXPECT_EQ(followers(), up_to(kMembers + 2));
  formed = false;
  EXPECT_EQ(followers(), up_to(kMembers + 2));
  ++spec.node_count;
  EXPECT_EQ(followers(), (std::vector<std::uint32_t>{0, 1, 2, 3, 65, 66, 67, 68})) << "numbers may begin anywhere";
}

TEST_F(Followers, WhileAJobFormsAreTheFirstFewAndMoreIfThatTakesLong) {
  formed = false;
  EXPECT_EQ(followers(), up_to(4));
  joined_for = deadlines.silence;
  EXPECT_EQ(followers(), up_to(8));
  joined_for = 3 * deadlines.silence;
  EXPECT_EQ(followers(), up_to(12));
  joined_for = 10min;
  EXPECT_EQ(followers(), up_to(80));
}

TEST_F(Followers, WhileTheJobRunsAreThoseWithoutASeat) {
  EXPECT_EQ(followers(), with_spares({}));
  state.phase = JobPhase::finished;
  EXPECT_TRUE(followers().empty());
}

TEST_F(Followers, UntilTheLargestArenaIsToldTheLeaderIs) {
  state.arena_bytes = 0;
  EXPECT_EQ(followers(), with_spares({7}));
}

TEST_F(Followers, InARecoveryAreWhoLeadsAndWhoWasEvicted) {
  state.phase = JobPhase::quiescing;
  state.evicted = {life(50)};
  EXPECT_EQ(followers(), with_spares({7, 50}));
  quiet_for = deadlines.leader;
  EXPECT_EQ(followers(), with_spares({7, 50}));
}

// A rack of members that have lost the control and are heard takes nobody's turn for ever; and not all come at once.
TEST_F(Followers, ThoseWhoseTurnComesNextAreBeforeIt) {
  state.phase = JobPhase::restoring;
  quiet_for = deadlines.leader + 1ms;
  EXPECT_EQ(followers(), with_spares(up_to(16)));
  quiet_for = 2 * deadlines.leader + 1ms;
  EXPECT_EQ(followers(), with_spares(up_to(20)));
  quiet_for = 60s;
  EXPECT_LE(followers().size(), 16u + 4 * 20);
  state.phase = JobPhase::running;
  EXPECT_EQ(followers(), with_spares({}));
}

TEST_F(Followers, OfALeaderWithoutASeatTheFirstFewMembersAre) {
  state.phase = JobPhase::quiescing;
  state.leader = life(kMembers);
  EXPECT_EQ(followers(), with_spares(up_to(4)));
}

TEST_F(Followers, WhereTwoAreLeftBothAre) {
  state.phase = JobPhase::quiescing;
  for (std::uint32_t node = 0; node < kMembers; ++node)
    if (node != 30 && node != 60) state.evicted.push_back(life(node));
  state.leader = life(30);
  const std::vector<std::uint32_t> all = followers();
  EXPECT_TRUE(std::ranges::count(all, 30u) == 1 && std::ranges::count(all, 60u) == 1);
}

TEST_F(Followers, WhoHearsNothingOfAMemberIsBeforeItWouldAccuse) {
  silent = life(40);
  heard = now - deadlines.silence / 2;
  EXPECT_EQ(followers(), with_spares({}));
  heard -= 1ms;
  EXPECT_EQ(followers(), with_spares({19, 38, 39, 41, 81, 82})) << "beside it on the ring, and in the tree";
  refused = true;  // that is proof
  EXPECT_EQ(followers(), with_spares({}));
  refused = false;
  attentive_since = now - 1s;
  EXPECT_EQ(followers(), with_spares({}));
  attentive_since.reset();
  EXPECT_EQ(followers(), with_spares({}));
}

// Of ten thousand nodes whose switch is away not each reads all keys at once.
TEST_F(Followers, WhoHearsHardlyAnybodyWaitsForLonger) {
  std::vector<std::uint32_t> all = with_spares({});
  all_silent = true;
  heard = now - deadlines.silence;
  EXPECT_EQ(followers(), all);
  heard -= 1ms;
  EXPECT_EQ(followers(), up_to(kMembers + 2));
}

// All keep a link to the root.
TEST_F(Followers, OfASilentRootOnlyItsWitnessesAre) {
  silent = life(0);
  heard = now - deadlines.silence;
  const std::size_t count = followers().size() - 2;
  EXPECT_GE(count, 3u);
  EXPECT_LE(count, 19u);
}

TEST_F(Followers, WhoHasAccusedIsUntilThatIsWithdrawn) {
  accuser = 33;
  EXPECT_EQ(followers(), with_spares({33}));
}

TEST_F(Followers, WhoIsDrainedAndWhoOpensForThatAre) {
  leaving = {life(50)};
  EXPECT_EQ(followers(), with_spares({0, 1, 50}));
  state.phase = JobPhase::quiescing;
  EXPECT_EQ(followers(), with_spares({7}));
}

TEST_F(Followers, OfThoseWhoseTrainersFailTheFirstFewAre) {
  for (std::uint32_t node = 20; node < 90; ++node) failed.push_back(life(node));
  EXPECT_EQ(followers(), with_spares({20, 21, 22, 23}));
}

}  // namespace
}  // namespace pawl::job
