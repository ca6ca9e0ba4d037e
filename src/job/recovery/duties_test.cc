#include "job/recovery/duties.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

NodeLife life(std::uint32_t node, std::uint64_t incarnation = 1) {
  return {NodeId(node), Incarnation(incarnation)};
}

JobState state_of(JobPhase phase, std::uint32_t nodes = 2) {
  JobState state;
  state.generation = Generation(3);
  state.phase = phase;
  state.leader = life(0);
  for (std::uint32_t node = 0; node < nodes; ++node) state.seats.push_back({Seat(node), life(node), "", 0});
  return state;
}

StandingView of(std::uint32_t node) {
  StandingView view;
  view.self = life(node);
  return view;
}

TEST(StandingOf, SeatsMakeMembers) {
  const JobState state = state_of(JobPhase::running);
  EXPECT_TRUE(is_member(state, life(1)));
  EXPECT_FALSE(is_member(state, life(1, 2)));
  EXPECT_EQ(standing_of(state, Roster(state), of(1)), Standing::member);
  EXPECT_EQ(standing_of(state, Roster(state), of(2)), Standing::bystander);
}

TEST(StandingOf, WhoLostItsSeatOrWasEvictedComesBackAsAnotherLife) {
  JobState state = state_of(JobPhase::quiescing);
  StandingView view = of(2);
  view.was_member = true;
  EXPECT_EQ(standing_of(state, Roster(state), view), Standing::evicted);
  state.evicted = {life(1)};  // while quiescing its seat is still listed
  EXPECT_EQ(standing_of(state, Roster(state), of(1)), Standing::evicted);
}

TEST(StandingOf, AFinishedJobWaitsForItsTrainersToLeave) {
  const JobState state = state_of(JobPhase::finished);
  StandingView view = of(1);
  EXPECT_EQ(standing_of(state, Roster(state), view), Standing::leaving);
  view.in_state_for = kLeaveMax;
  EXPECT_EQ(standing_of(state, Roster(state), view), Standing::over);
  view.in_state_for = 0s;
  view.trainers_gone = true;
  EXPECT_EQ(standing_of(state, Roster(state), view), Standing::over);
  EXPECT_EQ(standing_of(state, Roster(state), of(2)), Standing::over);  // a spare has nothing to wait for
  EXPECT_EQ(standing_of(state_of(JobPhase::failed), Roster(state_of(JobPhase::failed)), of(1)), Standing::over);
}

TEST(DutiesOf, EachPhaseAsksOnce) {
  Followed followed;
  const JobState quiescing = state_of(JobPhase::quiescing);
  EXPECT_TRUE(duties_of(quiescing, followed, {}).freeze);
  followed.frozen = Generation(3);
  EXPECT_FALSE(duties_of(quiescing, followed, {}).freeze);
  EXPECT_TRUE(duties_of(quiescing, followed, {}).report_inventory);

  const JobState restoring = state_of(JobPhase::restoring);
  EXPECT_TRUE(duties_of(restoring, followed, {}).begin_restore);
  EXPECT_FALSE(duties_of(restoring, followed, {.streams = true}).begin_restore);  // an old stream still runs
  EXPECT_FALSE(duties_of(restoring, followed, {.imports = true}).begin_restore);
  followed.restoring = Generation(3);
  EXPECT_FALSE(duties_of(restoring, followed, {}).begin_restore);
  EXPECT_FALSE(duties_of(restoring, followed, {}).begin_running);

  const JobState running = state_of(JobPhase::running);
  EXPECT_TRUE(duties_of(running, followed, {}).begin_running);
  EXPECT_FALSE(duties_of(running, Followed{}, {}).freeze);
  followed.running = Generation(3);
  EXPECT_FALSE(duties_of(running, followed, {}).begin_running);
}

TEST(DutiesOf, NoFetchOutlivesItsPhase) {
  Followed followed;
  followed.frozen = Generation(3);
  const JobState quiescing = state_of(JobPhase::quiescing);
  EXPECT_FALSE(duties_of(quiescing, followed, {.imports = true}).report_inventory);
  EXPECT_TRUE(duties_of(quiescing, followed, {.streams = true}).report_inventory);  // they can't seal what is frozen
  followed.restoring = Generation(3);
  const JobState running = state_of(JobPhase::running);
  const Duties waits = duties_of(running, followed, {.imports = true});
  EXPECT_TRUE(waits.end_copies);
  EXPECT_FALSE(waits.begin_running);
  EXPECT_FALSE(duties_of(running, followed, {.streams = true}).begin_running);
  EXPECT_TRUE(duties_of(running, followed, {}).begin_running);
  followed.running = Generation(3);
  EXPECT_FALSE(duties_of(running, followed, {.streams = true}).end_copies);  // these are its own
}

TEST(DutiesOf, NothingIsRestoredBeforeItIsFrozen) {
  const Duties duties = duties_of(state_of(JobPhase::restoring), Followed{}, {});
  EXPECT_TRUE(duties.freeze);
  EXPECT_FALSE(duties.begin_restore);
}

TEST(EnoughNodes, CountSinceTheLastTimeThereWereTooFew) {
  FormingView view;
  view.spec.node_count = 1;
  EXPECT_EQ(enough_nodes_since(view, 5s, 9s), Duration::zero());
  NodeRecord node;
  node.healthy = true;
  node.parked = 1;
  view.nodes = {node};
  EXPECT_EQ(enough_nodes_since(view, Duration::zero(), 9s), 9s);
  EXPECT_EQ(enough_nodes_since(view, 9s, 20s), 9s);
}

class Leading : public testing::Test {
 protected:
  Leading() {
    for (std::uint32_t node = 0; node < 4; ++node) registrations.nodes[NodeId(node)].life = life(node);
  }
  std::optional<Lead> lead(const JobState& state, Duration in_state_for, std::vector<NodeLife> ready = {}) {
    LeadView view{spec, state, inventories, {}, std::move(ready), {}, in_state_for, registrations, absent};
    return decide_lead(view, life(0), deadlines);
  }
  void report(std::uint32_t node) {
    Inventory inventory;
    inventory.life = life(node);
    inventory.generation = Generation(3);
    inventories.push_back(inventory);
  }
  JobSpec spec;
  Deadlines deadlines = derive_deadlines(3s);
  Registrations registrations;
  std::vector<Inventory> inventories;
  std::vector<NodeLife> absent;
};

TEST_F(Leading, NobodyLeadsARunningJob) {
  EXPECT_FALSE(lead(state_of(JobPhase::running), 0s));
}

TEST_F(Leading, AnInventoryMayBeLateByItsDeadline) {
  const JobState state = state_of(JobPhase::quiescing);
  report(0);
  EXPECT_TRUE(lead(state, 3s)->late.empty());
  const auto late = lead(state, 4s);
  ASSERT_EQ(late->late.size(), 1u);
  EXPECT_EQ(late->late[0].kind, FaultKind::node_silent);
  EXPECT_EQ(late->late[0].node, life(1));
  EXPECT_EQ(late->late[0].detail.rfind("missed the deadline: inventory", 0), 0u) << late->late[0].detail;
}

TEST_F(Leading, AnInventoryOfMuchMemoryHasMoreTime) {
  const JobState state = state_of(JobPhase::quiescing);
  report(0);
  registrations.memory_bytes[NodeId(1)] = std::uint64_t{23} << 30;
  EXPECT_TRUE(lead(state, 8s)->late.empty());
  EXPECT_EQ(lead(state, 9s)->late.size(), 1u);
}

TEST_F(Leading, MoreThanHalfAreNotLateButWaitedFor) {
  const JobState state = state_of(JobPhase::quiescing, 4);
  report(0);
  EXPECT_TRUE(lead(state, 1h)->late.empty());
  report(1);
  EXPECT_EQ(lead(state, 1h)->late.size(), 2u);
  registrations.nodes.erase(NodeId(1));  // who has reported and gone is not left, either
  EXPECT_TRUE(lead(state, 1h)->late.empty());
}

TEST_F(Leading, AMemberWithoutTheControlIsNotWaitedForInARecovery) {
  const JobState state = state_of(JobPhase::restoring);
  registrations.nodes.erase(NodeId(1));
  EXPECT_TRUE(lead(state, 10s, {life(0)})->late.empty());
  absent = {life(1)};
  EXPECT_EQ(lead(state, 10s, {life(0)})->late.size(), 1u);
  EXPECT_TRUE(lead(state, 10s, {life(0), life(1)})->late.empty());
}

// Its trainer waits at the rendezvous for the trainers of the absent one.
TEST_F(Leading, WhoMayOnlyWaitForAnAbsentOneIsNotLate) {
  const JobState state = state_of(JobPhase::restoring, 4);
  registrations.nodes.erase(NodeId(1));
  absent = {life(1)};
  const auto first = lead(state, 1h, {life(0), life(3)});
  ASSERT_EQ(first->late.size(), 1u);
  EXPECT_EQ(first->late[0].node, life(1));
}

TEST_F(Leading, WhoHasReportedIsNotAbsentWhateverItsLease) {
  registrations.nodes.erase(NodeId(1));
  absent = {life(1)};
  report(1);  // it has lost the control for a while, and is back
  EXPECT_TRUE(lead(state_of(JobPhase::restoring), 10s, {life(0)})->late.empty());
}

TEST_F(Leading, WhoHasTheOnlyCopiesIsWaitedFor) {
  JobState state = state_of(JobPhase::quiescing);
  state.ran = Generation(2);
  state.lineage = {{Generation(2), Step(0)}};
  state.committed = Step(5);
  report(0);
  inventories[0].committed = Step(5);
  const auto hold = [&](std::uint32_t seat, SourceKind kind) {
    inventories[0].items.push_back({Seat(seat), kind, Generation(2), Step(5), SlotState::sealed, 7});
  };
  hold(0, SourceKind::own_arena);
  const auto waiting = lead(state, 1h);
  EXPECT_TRUE(waiting->late.empty()) << "without it nothing is left of seat 1";
  const Wait* wait = std::get_if<Wait>(&waiting->decision);
  ASSERT_NE(wait, nullptr);
  EXPECT_TRUE(wait->without_deadline);
  EXPECT_NE(wait->what.find("node 1, which has the only copies"), std::string::npos) << wait->what;

  hold(1, SourceKind::replica);
  EXPECT_EQ(lead(state, 1h)->late.size(), 1U) << "its seat is held elsewhere";
}

TEST_F(Leading, AMemberMayBeAsLongToBeReadyAsAStartAndTwoRestores) {
  const JobState state = state_of(JobPhase::restoring);
  EXPECT_TRUE(lead(state, 660s, {life(0)})->late.empty());
  const auto late = lead(state, 661s, {life(0)});
  ASSERT_EQ(late->late.size(), 1u);
  EXPECT_EQ(late->late[0].node, life(1));
}

// At 1 Gbit/s a node's 80 GiB alone take longer than a start and two restores.
TEST_F(Leading, AMemberToWhichManyBytesComeMayTakeTheirTime) {
  const JobState state = state_of(JobPhase::restoring);
  registrations.seats_per_node_max = 4;
  NodeRecord record;
  record.life = life(2);
  record.arena_bytes = std::uint64_t{20} << 30;
  registrations.note(NodeId(2), &record, 0s);
  registrations.note(NodeId(2), nullptr, 1s);  // it has died: its seats come from others
  EXPECT_TRUE(lead(state, 660s + 819s, {life(0)})->late.empty());
  EXPECT_EQ(lead(state, 661s + 820s, {life(0)})->late.size(), 1u);
}

TEST_F(Leading, AllReadyMeansRunning) {
  const auto done = lead(state_of(JobPhase::restoring), 1s, {life(0), life(1)});
  const StateMove* move = std::get_if<StateMove>(&done->decision);
  ASSERT_NE(move, nullptr);
  EXPECT_EQ(move->next.phase, JobPhase::running);
}

TEST_F(Leading, WhereNothingMovesOthersLeadInTurn) {
  const JobState state = state_of(JobPhase::quiescing, 4);
  const auto delay = [&](std::uint32_t node, Duration quiet) {
    return lead_delay({state, registrations, life(node), quiet}, deadlines);
  };
  EXPECT_EQ(delay(0, 0s), Duration::zero());  // it is the leader
  EXPECT_FALSE(delay(1, 3s));
  EXPECT_EQ(delay(1, 3001ms), Duration(3s));
  EXPECT_FALSE(delay(2, 6s));
  EXPECT_EQ(delay(2, 6001ms), Duration(6s));
  registrations.nodes.erase(NodeId(1));  // who has lost the control as well has no turn
  EXPECT_EQ(delay(2, 3001ms), Duration(3s));
  EXPECT_FALSE(delay(7, 1h));   // a spare leads no members
  registrations.known = false;  // nor does anybody take the turn of one of whom it does not know that
  EXPECT_FALSE(delay(2, 6s));
  EXPECT_EQ(delay(2, 6001ms), Duration(6s));
  registrations.known = true;
  // Of many not all at once, since each has to hear what all have reported.
  const JobState large = state_of(JobPhase::quiescing, 12);
  const auto in_large = [&](std::uint32_t node) {
    return lead_delay({large, registrations, life(node), 1h}, deadlines);
  };
  for (std::uint32_t node = 0; node < 12; ++node) registrations.nodes[NodeId(node)].life = life(node);
  EXPECT_EQ(in_large(4), Duration(12s));
  EXPECT_EQ(in_large(5), Duration(15s));
  EXPECT_EQ(in_large(8), Duration(15s));
  EXPECT_EQ(in_large(9), Duration(18s));
}

TEST(LinkedPositions, AreTheRingAndTheTree) {
  EXPECT_EQ(linked_positions(0, 1), std::vector<std::uint32_t>{});
  EXPECT_EQ(linked_positions(0, 0), std::vector<std::uint32_t>{});
  EXPECT_EQ(linked_positions(1, 2), std::vector<std::uint32_t>{0});
  EXPECT_EQ(linked_positions(0, 8), (std::vector<std::uint32_t>{1, 2, 7}));
  EXPECT_EQ(linked_positions(3, 16), (std::vector<std::uint32_t>{0, 1, 2, 4, 5, 7, 8}));
  for (std::uint32_t count = 0; count < 40; ++count) {
    for (std::uint32_t mine = 0; mine < count; ++mine) {
      std::vector<std::uint32_t> linking;
      for (std::uint32_t other = 0; other < count; ++other)
        if (contains(linked_positions(other, count), mine)) linking.push_back(other);
      EXPECT_EQ(linking_positions(mine, count), linking) << mine << " of " << count;
    }
  }
}

}  // namespace
}  // namespace pawl::job
