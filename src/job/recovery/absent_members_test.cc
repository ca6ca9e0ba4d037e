#include "job/recovery/absent_members.h"

#include <gtest/gtest.h>

#include <set>

#include "job/recovery/suspicion.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

NodeLife life(std::uint32_t node, std::uint64_t incarnation = 1) {
  return {NodeId(node), Incarnation(incarnation)};
}

// Three members 0, 1, 2 of one seat each, and the spare 3; all registered.
class Absent : public testing::Test {
 protected:
  Absent() {
    state.generation = Generation(4);
    state.phase = JobPhase::running;
    state.leader = life(0);
    for (std::uint32_t node = 0; node < 3; ++node) state.seats.push_back({Seat(node), life(node), "", 0});
    for (std::uint32_t node = 0; node < 4; ++node) sign_up(life(node));
  }
  void sign_up(NodeLife who) { registrations.nodes[who.node].life = who; }
  void sign_off(std::uint32_t node, Duration at) {
    registrations.nodes.erase(NodeId(node));
    registrations.gone_since[NodeId(node)] = at;
  }
  std::vector<Cause> seen_by(std::uint32_t node) {
    return absent_members(state, registrations, links_of(state, registrations, life(node)), life(node));
  }
  Orphaned orphaned(std::uint32_t node, Duration since, Duration now) {
    std::vector<Contact> contacts;
    for (const std::uint32_t other : refusing) contacts.push_back({life(other), 0s, 0s, true});
    return decide_orphaned(state, registrations, contacts, life(node), since, now, deadlines);
  }

  Deadlines deadlines = derive_deadlines(3s);
  JobState state;
  Registrations registrations;
  std::set<std::uint32_t> refusing;
};

TEST_F(Absent, ARegistrationIsKnownUntilItEndsAndItsMemoryAfterwards) {
  Registrations known;
  known.seats_per_node_max = 4;
  NodeRecord record;
  record.life = life(1);
  record.arena_bytes = std::uint64_t{1} << 30;
  known.note(NodeId(1), &record, 10s);
  EXPECT_TRUE(known.has(life(1)));
  EXPECT_EQ(known.records(), std::vector{record});
  EXPECT_EQ(known.time_to_end(NodeId(1)), time_to_give_back(std::uint64_t{8} << 30)) << "own arenas, and others'";
  EXPECT_EQ(known.time_to_end(NodeId(2)), Duration::zero());
  JobState told;
  told.arena_bytes = std::uint64_t{2} << 30;
  known.note_state(told);
  EXPECT_EQ(known.time_to_end(NodeId(2)), time_to_give_back(std::uint64_t{16} << 30)) << "never seen: as the largest";
  EXPECT_EQ(known.time_to_end(NodeId(1)), time_to_give_back(std::uint64_t{8} << 30));
  EXPECT_EQ(known.arena_bytes_max, std::uint64_t{2} << 30);
  known.note(NodeId(1), nullptr, 20s);
  known.note(NodeId(1), nullptr, 30s);
  EXPECT_FALSE(known.has(life(1)));
  EXPECT_TRUE(known.records().empty());
  EXPECT_EQ(known.gone_since.at(NodeId(1)), 20s) << "the end of a registration is the first that is seen of it";
  EXPECT_EQ(known.time_to_end(NodeId(1)), time_to_give_back(std::uint64_t{8} << 30));
  record.life = life(1, 2);
  known.note(NodeId(1), &record, 40s);
  EXPECT_TRUE(known.gone_since.empty());
  EXPECT_FALSE(known.has(life(1)));
  EXPECT_TRUE(known.has(life(1, 2)));
}

// Before the state tells the largest arena.
TEST_F(Absent, ANodeOfWhichNoRecordWasSeenMayHaveAsMuchMemoryAsThisOne) {
  Registrations known;
  known.seats_per_node_max = 4;
  known.own_arena_bytes = std::uint64_t{20} << 30;
  EXPECT_EQ(known.time_to_end(NodeId(2)), time_to_give_back(std::uint64_t{160} << 30));
  JobState told;
  told.arena_bytes = std::uint64_t{21} << 30;
  known.note_state(told);
  EXPECT_EQ(known.time_to_end(NodeId(2)), time_to_give_back(std::uint64_t{168} << 30));
}

TEST_F(Absent, WhereNobodyIsRegisteredNobodySpeaksForTheJob) {
  for (std::uint32_t node = 0; node < 4; ++node) sign_off(node, 100s);
  refusing = {0, 1, 2};
  EXPECT_FALSE(is_lowest_registered(state, registrations, life(3)));
  EXPECT_FALSE(orphaned(3, 100s, 10000s).move);
}

TEST_F(Absent, NobodyIsMissedWhereAllAreRegistered) {
  EXPECT_TRUE(seen_by(0).empty());
  EXPECT_TRUE(registrations.has(life(1)));
  EXPECT_FALSE(registrations.has(life(1, 2)));
}

TEST_F(Absent, ALeaseThatEndedIsNoProof) {
  sign_off(1, 100s);
  EXPECT_TRUE(seen_by(0).empty());
  state.evicted = {life(1)};
  EXPECT_TRUE(is_evicted(state, life(1)));
  EXPECT_FALSE(is_evicted(state, life(1, 2)));
}

TEST_F(Absent, ANodeThatBeganAnewIsMissedAtOnce) {
  sign_up(life(2, 7));
  const auto causes = seen_by(0);
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_EQ(causes[0].node, life(2));
  EXPECT_EQ(causes[0].detail, "it began anew with another incarnation");
  state.evicted = {life(2)};
  EXPECT_TRUE(seen_by(0).empty());
}

TEST_F(Absent, ALeaderWithoutASeatIsMissedWhileItLeads) {
  state.leader = life(3);
  sign_off(3, 100s);
  EXPECT_TRUE(seen_by(0).empty());  // it runs: nobody leads
  state.phase = JobPhase::quiescing;
  ASSERT_EQ(seen_by(0).size(), 1u);
  EXPECT_EQ(seen_by(0)[0].kind, FaultKind::leader_lost);
  sign_up(life(3));
  EXPECT_TRUE(seen_by(0).empty());
  state.evicted = {life(3)};
  EXPECT_EQ(seen_by(0).size(), 1u);
}

// Who does not follow the registrations can't tell.
TEST_F(Absent, NobodyIsMissedByWhoDoesNotKnowWhoIsRegistered) {
  state.phase = JobPhase::quiescing;
  state.leader = life(3);
  registrations.forget();
  EXPECT_TRUE(seen_by(1).empty());
  EXPECT_FALSE(leaves_quorum(state, registrations, {}));
  EXPECT_FALSE(is_lowest_registered(state, registrations, life(3)));
  EXPECT_FALSE(orphaned(3, 1s, 100s).move);
  state.evicted = {life(3)};
  EXPECT_EQ(seen_by(1).size(), 1u) << "that the state says itself";
}

TEST_F(Absent, TheLowestSpareTakesOverAnOrphanedJob) {
  for (std::uint32_t node = 0; node < 3; ++node) sign_off(node, 100s);
  refusing = {0, 1, 2};
  const Orphaned began = orphaned(3, Duration::zero(), 100s);
  EXPECT_EQ(began.since, 100s);
  EXPECT_FALSE(began.move);
  const Orphaned due = orphaned(3, began.since, 103s);
  ASSERT_TRUE(due.move);
  EXPECT_EQ(due.move->next.leader, life(3));
  EXPECT_EQ(due.move->next.phase, JobPhase::quiescing);
  EXPECT_EQ(due.move->next.evicted.size(), 3u);
}

// Of two members one is drained, and the other dies then (found by sim --drain --seed 76).
TEST_F(Absent, ALingeringNodeIsNotTheLowestNorDoesItLead) {
  state.phase = JobPhase::quiescing;
  state.leader = life(0);
  state.evicted = {life(0)};
  sign_off(1, 100s);
  sign_off(2, 100s);
  refusing = {1, 2};
  EXPECT_FALSE(orphaned(0, 100s, 200s).move);
  ASSERT_TRUE(orphaned(3, 100s, 200s).move);
  EXPECT_EQ(orphaned(3, 100s, 200s).move->next.leader, life(3));
}

TEST_F(Absent, MembersWithoutTheControlMayTrainOn) {
  for (std::uint32_t node = 0; node < 3; ++node) sign_off(node, 100s);
  refusing = {0, 2};
  const Orphaned waits = orphaned(3, 100s, 10000s);
  EXPECT_FALSE(waits.move);
  EXPECT_EQ(waits.unproven, std::vector<NodeLife>{life(1)});
  refusing = {0, 1, 2};
  EXPECT_TRUE(orphaned(3, 100s, 10000s).move);
}

TEST_F(Absent, AJobWithALivingMemberOrALowerSpareIsNotOurs) {
  refusing = {0, 1, 2};
  sign_off(0, 100s);
  sign_off(1, 100s);
  EXPECT_EQ(orphaned(3, 50s, 100s).since, Duration::zero());
  sign_off(2, 100s);
  sign_up(life(2, 9));  // a new life of node 2 is the lowest, and proof that the old one is over
  EXPECT_EQ(orphaned(3, 50s, 100s).since, Duration::zero());
  refusing = {0, 1};
  const Orphaned due =
      decide_orphaned(state, registrations, std::vector<Contact>{{life(0), 0s, 0s, true}, {life(1), 0s, 0s, true}},
                      life(2, 9), 100s, 104s, deadlines);
  EXPECT_TRUE(due.move);
  EXPECT_TRUE(due.unproven.empty());
}

TEST_F(Absent, WhereAllWereEvictedAlreadyOnlyTheLeadChanges) {
  state.phase = JobPhase::quiescing;
  state.leader = life(9);
  for (std::uint32_t node = 0; node < 3; ++node) {
    sign_off(node, 100s);
    state.evicted.push_back(life(node));
  }
  const Orphaned due = orphaned(3, 100s, 104s);
  ASSERT_TRUE(due.move);
  EXPECT_EQ(due.move->next.leader, life(3));
  EXPECT_EQ(due.move->next.generation, state.generation);
}

}  // namespace
}  // namespace pawl::job
