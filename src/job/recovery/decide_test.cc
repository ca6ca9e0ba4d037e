#include "job/recovery/decide.h"
#include "job/recovery/members.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "job/recovery/planner.h"

namespace pawl::job {
namespace {

NodeLife life(std::uint32_t node, std::uint64_t incarnation = 1) {
  return {NodeId(node), Incarnation(incarnation)};
}
NodeRecord record(std::uint32_t node, std::uint32_t parked, std::uint64_t incarnation = 1) {
  NodeRecord out;
  out.life = life(node, incarnation);
  out.address = "host" + std::to_string(node) + ":" + std::to_string(incarnation);
  out.parked = parked;
  out.healthy = true;
  return out;
}
Cause cause(FaultKind kind, std::optional<NodeLife> node, std::optional<std::uint32_t> seat = {}) {
  return {kind, node, seat ? std::optional(Seat(*seat)) : std::nullopt, "detail", 5};
}
JobState moved(const Decision& decision) {
  const StateMove* move = std::get_if<StateMove>(&decision);
  EXPECT_NE(move, nullptr) << std::get<Wait>(decision).what;
  if (move == nullptr) return {};
  EXPECT_NE(move->why, "");
  const auto parsed = parse_job_state(to_json(move->next));
  EXPECT_TRUE(parsed && *parsed == move->next) << to_json(move->next);
  return move->next;
}
Wait waits(const Decision& decision) {
  const Wait* wait = std::get_if<Wait>(&decision);
  EXPECT_NE(wait, nullptr) << (wait == nullptr ? std::get<StateMove>(decision).why : "");
  return wait == nullptr ? Wait{} : *wait;
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- forming

class Forming : public testing::Test {
 protected:
  Forming() {
    view.spec.node_count = 2;
    view.spec.seats_per_node = 2;
    view.spec.spare_count = 1;
  }
  FormingView view;
};

TEST_F(Forming, WaitsForHealthyNodesWithEnoughTrainers) {
  view.nodes = {record(0, 2), record(1, 1), record(2, 2)};
  view.nodes[2].healthy = false;
  const Wait wait = waits(decide_forming(view, life(0)));
  EXPECT_EQ(wait.what, "1 of 2 nodes");
  EXPECT_TRUE(wait.late.empty());
  EXPECT_TRUE(wait.without_deadline);
}

TEST_F(Forming, TheLowestIdsBecomeMembersInOrder) {
  view.nodes = {record(5, 2), record(1, 2), record(0, 2)};
  const JobState state = moved(decide_forming(view, life(5)));
  EXPECT_EQ(state.generation, Generation(1));
  EXPECT_EQ(state.phase, JobPhase::restoring);
  EXPECT_EQ(state.leader, life(5));
  ASSERT_EQ(state.seats.size(), 4u);
  EXPECT_EQ(state.seats[1], (Member{Seat(1), life(0), "host0:1", 1}));
  EXPECT_EQ(state.seats[2], (Member{Seat(2), life(1), "host1:1", 0}));
  EXPECT_EQ(state.sources.size(), 4u);
  EXPECT_EQ(state.sources[3].kind, SourceKind::nothing);
  EXPECT_EQ(state.resume, Step(0));
  EXPECT_FALSE(state.cold);
  EXPECT_TRUE(state.restart.empty());
  EXPECT_EQ(state.lineage, (std::vector<LineageEntry>{{Generation(1), Step(0)}}));
}

TEST_F(Forming, BeginsWithACheckpointThatItWasGiven) {
  view.nodes = {record(0, 2), record(1, 2)};
  view.spec.checkpoints.resume_step = Step(500);
  view.spec.checkpoints.resume_path = "/checkpoints/step-500";
  const JobState state = moved(decide_forming(view, life(0)));
  EXPECT_EQ(state.resume, Step(500));
  EXPECT_EQ(state.committed, Step(500));
  EXPECT_FALSE(state.cold);
  ASSERT_EQ(state.sources.size(), 4u);
  EXPECT_EQ(state.sources[3], (Source{Seat(3), SourceKind::storage, {}, Generation(1), Step(500)}));
  EXPECT_TRUE(in_lineage(state.lineage, Generation(1), Step(500)));
}

TEST_F(Forming, LetsALowerIdComeInLateButNotForEver) {
  view.nodes = {record(1, 2), record(2, 2)};
  EXPECT_TRUE(waits(decide_forming(view, life(1))).late.empty());
  view.waited_ms = view.spec.deadline_ms;
  EXPECT_EQ(moved(decide_forming(view, life(1))).seats[0].life, life(1));
  view.waited_ms = 0;
  view.nodes.push_back(record(0, 2));
  EXPECT_EQ(moved(decide_forming(view, life(1))).seats[0].life, life(0));
  view.nodes.back().parked = 1;  // its trainers are starting
  view.waited_ms = 9 * view.spec.deadline_ms;
  EXPECT_TRUE(waits(decide_forming(view, life(1))).late.empty());
  view.waited_ms = 10 * view.spec.deadline_ms;
  EXPECT_EQ(moved(decide_forming(view, life(1))).seats[0].life, life(1));
  view.waited_ms = 0;
  view.nodes = {record(1, 2), record(0, 2)};  // nobody could be lower
  EXPECT_EQ(moved(decide_forming(view, life(1))).seats[0].life, life(0));
}

TEST_F(Forming, PassesOverACordonedNode) {
  view.nodes = {record(0, 2), record(1, 2), record(2, 2)};
  view.cordoned = {NodeId(1)};
  view.waited_ms = view.spec.deadline_ms;
  const JobState state = moved(decide_forming(view, life(0)));
  EXPECT_EQ(lives_of(state.seats), (std::vector{life(0), life(2)}));
  view.cordoned = {NodeId(1), NodeId(2)};
  EXPECT_EQ(waits(decide_forming(view, life(0))).what, "1 of 2 nodes");
}

TEST_F(Forming, OfTwoLivesOfANodeTheLaterCounts) {
  view.nodes = {record(0, 2, 1), record(0, 2, 9), record(0, 2, 3)};
  EXPECT_EQ(waits(decide_forming(view, life(0))).what, "1 of 2 nodes");
  view.nodes.push_back(record(1, 2));
  EXPECT_EQ(moved(decide_forming(view, life(0))).seats[0].life, life(0, 9));
}

TEST_F(Forming, RefusesTooFewFailureDomainsUnlessItIsAccepted) {
  view.nodes = {record(0, 2), record(1, 2)};
  for (NodeRecord& node : view.nodes) node.domain = "rack1";
  view.spec.domains = "env";
  view.spec.spare_count = 1;
  EXPECT_TRUE(has(waits(decide_forming(view, life(0))).what, "failure domains")) << "another may come";
  view.spec.spare_count = 0;
  const JobState refused = moved(decide_forming(view, life(0)));
  EXPECT_EQ(refused.phase, JobPhase::failed);
  EXPECT_TRUE(has(refused.verdict, "must lie in 2 failure domains, and nodes 0,1 are in 1")) << refused.verdict;
  EXPECT_TRUE(has(refused.verdict, "--fewer-domains")) << refused.verdict;
  view.spec.fewer_domains = true;
  const JobState accepted = moved(decide_forming(view, life(0)));
  EXPECT_EQ(accepted.phase, JobPhase::restoring);
  EXPECT_EQ(accepted.seats[2].domain, "rack1");
  EXPECT_EQ(accepted.seats[2].plan_domain, "rack1");
  view.spec.fewer_domains = false;
  view.nodes[1].domain = "rack2";
  EXPECT_EQ(moved(decide_forming(view, life(0))).phase, JobPhase::restoring);
  view.spec.replica_count = 0;
  view.nodes[1].domain = "rack1";
  EXPECT_EQ(moved(decide_forming(view, life(0))).phase, JobPhase::restoring) << "no copies, nothing to keep apart";
}

// --- a running job: three nodes, one seat each, at step 40; node 3 is a spare

class Recovery : public testing::Test {
 protected:
  Recovery() {
    state.generation = Generation(1);
    state.phase = JobPhase::running;
    state.leader = life(0);
    for (std::uint32_t i = 0; i < 3; ++i) state.seats.push_back({Seat(i), life(i), record(i, 0).address, 0});
    state.lineage = {{Generation(1), Step(0)}};
    state.ran = Generation(1);
    spec.node_count = 3;
    spec.spare_count = 1;
    nodes = {record(0, 0), record(1, 0), record(2, 0), record(3, 1)};
  }

  Decision open(const Cause& what, std::span<const Struck> struck = {}) {
    return open_generation(state, what, life(9), struck);
  }
  void opened(const Cause& what, std::span<const Struck> struck = {}) { state = moved(open(what, struck)); }
  void node_lost(std::uint32_t node) {  // and its lease has ended
    opened(cause(FaultKind::node_lost, life(node)));
    forget(life(node));
  }
  void forget(NodeLife gone) {
    std::erase_if(nodes, [gone](const NodeRecord& node) { return node.life == gone; });
  }

  // Every survivor of the first members holds its own seat and the replica of the one before at `step`.
  void report(std::uint64_t step, std::uint64_t committed, std::uint64_t generation = 1) {
    inventories.clear();
    for (std::uint32_t i = 0; i < 3; ++i) {
      const NodeLife at = state.seats[i].life;
      if (contains(state.evicted, at)) continue;
      Inventory inventory{at, state.generation, Step(committed), {}, {Seat(i)}, 0};
      if ((at.node.value == i || spares_hold) && step > 0) {
        inventory.items.push_back(
            {Seat(i), SourceKind::own_arena, Generation(generation), Step(step), SlotState::sealed, 7});
        inventory.items.push_back(
            {Seat((i + 2) % 3), SourceKind::replica, Generation(generation), Step(step), SlotState::sealed, 7});
      }
      inventories.push_back(inventory);
    }
  }
  static bool contains(const std::vector<NodeLife>& lives, NodeLife life) {
    return std::find(lives.begin(), lives.end(), life) != lives.end();
  }
  Decision restore() { return decide_restore({spec, state, inventories, nodes, cordoned}, life(9)); }
  void run() {
    std::vector<NodeLife> ready;
    for (const Member& member : state.seats) ready.push_back(member.life);
    state = moved(decide_running(state, ready, life(9)));
  }

  JobSpec spec;
  JobState state;
  std::vector<NodeRecord> nodes;
  std::vector<Inventory> inventories;
  std::vector<NodeId> cordoned;
  bool spares_hold = false;  // a commit came after the swap
};

// Nodes 0 and 2 stand in rack0, node 1 in rack1; copies of 0 and 2 lie on 1.
TEST_F(Recovery, OfSeveralSparesTakesOneByWhichNoCopiesShareAFailureDomain) {
  spec.domains = "file:1";
  for (Member& member : state.seats) member.domain = member.plan_domain = member.seat == Seat(1) ? "rack1" : "rack0";
  nodes = {record(3, 1), record(4, 1), record(5, 1)};
  nodes[0].domain = "rack0";
  nodes[1].domain = "rack1";
  nodes[2].domain = "rack2";
  const auto spare_for_1 = [&](const std::vector<NodeLife>& silent) {
    JobState next = state;
    state = moved(open_generation(state, cause(FaultKind::node_lost, life(1)), life(0)));
    report(40, 40);
    const Decision decision = decide_restore({spec, state, inventories, nodes, cordoned, silent}, life(9));
    const std::string why = std::get<StateMove>(decision).why;
    const Member seated = moved(decision).seats[1];
    state = next;
    EXPECT_EQ(seated.plan_domain, "rack1") << "the plan stays";
    return std::pair(seated, why);
  };
  const auto [best, why] = spare_for_1({});
  EXPECT_EQ(best.life, life(4));
  EXPECT_EQ(best.domain, "rack1");
  EXPECT_FALSE(has(why, "failure domain")) << why;
  EXPECT_EQ(spare_for_1({life(4)}).first.life, life(5)) << "it does not answer";
  nodes = {record(3, 1)};
  nodes[0].domain = "rack0";
  const auto [worse, said] = spare_for_1({});
  EXPECT_EQ(worse.life, life(3)) << "better than none";
  EXPECT_TRUE(has(said, "copies at nodes 0 and 3 are both in failure domain rack0")) << said;
}

// --- The last step of a job that is to end

class LastOfAJob : public Recovery {
 protected:
  std::variant<Wait, LastStep> last() { return decide_last({spec, state, inventories, nodes, cordoned}); }
  LastStep found() {
    auto decided = last();
    EXPECT_TRUE(std::holds_alternative<LastStep>(decided));
    return std::holds_alternative<LastStep>(decided) ? std::get<LastStep>(decided) : LastStep{};
  }
};

TEST_F(LastOfAJob, IsTheStepThatARecoveryWouldGoOnFrom) {
  EXPECT_FALSE(is_last(state));
  opened(cause(FaultKind::last_checkpoint, std::nullopt));
  EXPECT_TRUE(is_last(state));
  EXPECT_TRUE(std::holds_alternative<Wait>(last())) << "nobody has reported";
  report(41, 40);
  const LastStep step = found();
  EXPECT_EQ(step.step, Step(41));
  ASSERT_EQ(step.sources.size(), 3u);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(step.sources[i].seat, Seat(i));
    EXPECT_EQ(step.sources[i].kind, SourceKind::own_arena);
  }
}

TEST_F(LastOfAJob, NeedsNoSpareForADeadNode) {
  nodes.clear();
  opened(cause(FaultKind::last_checkpoint, std::nullopt));
  opened(cause(FaultKind::node_lost, life(1)));
  EXPECT_TRUE(is_last(state)) << "the job goes on to its end";
  report(41, 40);
  const LastStep step = found();
  EXPECT_EQ(step.step, Step(41));
  ASSERT_EQ(step.sources.size(), 3u);
  EXPECT_EQ(step.sources[1].kind, SourceKind::replica);
}

TEST_F(LastOfAJob, WhatIsLostIsSaid) {
  opened(cause(FaultKind::last_checkpoint, std::nullopt));
  node_lost(1);
  node_lost(2);
  report(41, 40);
  const LastStep step = found();
  EXPECT_EQ(step.step, Step(0));
  EXPECT_FALSE(step.why_not.empty());
}

TEST_F(LastOfAJob, NothingIsWrittenBeforeTheFirstCommit) {
  opened(cause(FaultKind::last_checkpoint, std::nullopt));
  report(0, 0);
  EXPECT_EQ(found().step, Step(0));
  EXPECT_EQ(found().why_not, "nothing was committed yet");
}

TEST_F(LastOfAJob, NoFailureStopsItAndItIsOrderedOnce) {
  opened(cause(FaultKind::last_checkpoint, std::nullopt));
  std::vector<TrainerEnd> ends = {{Seat(2), Generation(1), "exited 1: ModuleNotFoundError: x"}};
  ends[0].failure_class = FailureClass::permanent;
  waits(decide_ends(state, ends, life(9)));
  EXPECT_TRUE(std::holds_alternative<Wait>(open(cause(FaultKind::last_checkpoint, std::nullopt))));
}

// --- Another world

class AnotherWorld : public Recovery {
 protected:
  AnotherWorld() { opened(cause(FaultKind::communication, std::nullopt)); }
  StateMove restored(std::vector<std::uint32_t> wished) {
    QuiescingView view{spec, state, inventories, nodes, cordoned};
    view.wished.emplace();
    for (const std::uint32_t before : wished) view.wished->emplace_back(before);
    const Decision decision = decide_restore(view, life(9));
    (void)moved(decision);
    return std::get<StateMove>(decision);
  }
  // In its own world, for this reason.
  void expect_refused(std::vector<std::uint32_t> wished, const std::string& why) {
    const StateMove move = restored(std::move(wished));
    JobState own = moved(restore());
    EXPECT_TRUE(has(move.next.verdict, why)) << move.next.verdict;
    EXPECT_TRUE(has(move.why, why)) << move.why;
    own.verdict = move.next.verdict;
    EXPECT_EQ(move.next, own);
  }
};

TEST_F(AnotherWorld, GoesOnFromTheSlotsOfTheSeatsBefore) {
  report(40, 40);
  const StateMove move = restored({2, 0});
  EXPECT_TRUE(has(move.why, "a world of 2 seats instead of 3, which go on from seats 2,0")) << move.why;
  EXPECT_EQ(move.next.resume, Step(40));
  EXPECT_EQ(move.next.verdict, "");
  const Member first{Seat(0), life(2), "host2:1", 0, "", "", Seat(2)};
  const Member second{Seat(1), life(0), "host0:1", 0, "", "", Seat(0)};
  EXPECT_EQ(move.next.seats, (std::vector{first, second}));
  EXPECT_EQ(move.next.sources[0], (Source{Seat(0), SourceKind::own_arena, life(2), Generation(1), Step(40)}));
  EXPECT_EQ(move.next.sources[1], (Source{Seat(1), SourceKind::own_arena, life(0), Generation(1), Step(40)}));
  EXPECT_EQ(move.next.restart, (std::vector{Seat(0), Seat(1)})) << "their ranks are others";
  EXPECT_EQ(move.next.evicted, std::vector{life(1)}) << "it has no seat left";
  state = move.next;
  run();
  EXPECT_EQ(state.seats, (std::vector{first, second}));

  // Back into an order of its own: nothing says any more that it ever was another.
  opened(cause(FaultKind::communication, std::nullopt));
  inventories.clear();
  for (const std::uint32_t node : {0u, 2u})
    inventories.push_back({life(node),
                           state.generation,
                           Step(45),
                           {{Seat(node), SourceKind::own_arena, Generation(2), Step(45), SlotState::sealed, 7}},
                           {Seat(0), Seat(1)},
                           0});
  const JobState back = restored({0, 2}).next;
  EXPECT_EQ(back.resume, Step(45));
  EXPECT_EQ(back.seats[0], (Member{Seat(0), life(0), "host0:1", 0}));
  EXPECT_EQ(back.seats[1], (Member{Seat(1), life(2), "host2:1", 0, "", "", Seat(2)}));
  EXPECT_EQ(back.sources[1].from, life(2));
}

TEST_F(AnotherWorld, NeedsNoSpareForASeatFromWhichNobodyGoesOn) {
  node_lost(1);
  nodes = {record(0, 0), record(2, 0)};
  report(40, 40);
  EXPECT_TRUE(has(waits(restore()).what, "a spare for seat 1"));
  const JobState next = restored({0, 2}).next;
  EXPECT_EQ(next.phase, JobPhase::restoring);
  EXPECT_EQ(next.seats.size(), 2u);
  EXPECT_EQ(next.resume, Step(40));
}

TEST_F(AnotherWorld, ADeadNodesSeatIsASparesThereToo) {
  node_lost(1);
  report(40, 40);
  const JobState next = restored({1, 2}).next;
  EXPECT_EQ(next.seats[0], (Member{Seat(0), life(3), "host3:1", 0, "", "", Seat(1)}));
  EXPECT_EQ(next.sources[0], (Source{Seat(0), SourceKind::replica, life(2), Generation(1), Step(40)}));
  EXPECT_EQ(next.restart, std::vector{Seat(1)}) << "the spare's trainer is new";
  EXPECT_EQ(next.evicted, (std::vector{life(1), life(0)}));
  state = next;
  state.evicted = {life(2)};  // it lingers
  const std::vector<NodeLife> gone{life(2)};
  const std::vector<Struck> struck = gone_sources(state, {}, gone);
  ASSERT_FALSE(struck.empty());
  EXPECT_EQ(struck[0].seat, Seat(1)) << "what lies there goes by the seat before";
}

TEST_F(AnotherWorld, WhoLeavesTakesNoOnlyCopyAlong) {
  node_lost(1);
  report(40, 40);
  expect_refused({1, 0},
                 "seat 0 (before: seat 1): no sealed copy of step 40");  // node 2 has the only one, and would leave
}

TEST_F(AnotherWorld, OneThatCannotBeIsRefusedWithTheReason) {
  report(40, 40);
  expect_refused({0, 1, 0}, "two seats can't go on from seat 0");
  expect_refused({}, "it has 0 seats");
  expect_refused({0, 1, 2, 3}, "seat 3: no sealed copy of step 40");
  expect_refused({0}, "each seat would have 0 copies, not 1");
  expect_refused({0, kSeatsMax}, "there is no such seat");
  EXPECT_EQ(restored({0, 1, 2}).next, moved(restore())) << "the world that it has";
}

// Step 41 is whole in the old world, and nobody knows whether it was committed; the seat that comes back has only 40.
TEST_F(AnotherWorld, DoesNotGoBackBehindTheStepThatTheOldOneGoesOnFrom) {
  report(41, 40);
  nodes.push_back(record(4, 1));
  for (Inventory& inventory : inventories) {
    for (InventoryItem item : std::vector(inventory.items)) {
      item.step = Step(40);
      inventory.items.push_back(item);
    }
    inventory.items.push_back({Seat(7), SourceKind::replica, Generation(1), Step(40), SlotState::sealed, 7});
  }
  expect_refused({0, 1, 2, 7}, "it would go back to step 40, and this one goes on from step 41");
  for (Inventory& inventory : inventories) inventory.items.back().step = Step(41);
  for (Inventory& inventory : inventories)
    if (inventory.life != life(1)) inventory.items.back().state = SlotState::dirty;
  expect_refused({0, 1, 2, 7}, "of seat 7, which nobody has now, there are 1 copies, and 2 are kept of each");
  for (Inventory& inventory : inventories) inventory.items.back().state = SlotState::sealed;
  const JobState next = restored({0, 1, 2, 7}).next;
  EXPECT_EQ(next.resume, Step(41));
  EXPECT_EQ(next.seats[3].life, life(3)) << "nobody has it now: it sits at a spare";
  nodes = {record(0, 0), record(1, 0), record(2, 0)};
  expect_refused({0, 1, 2, 7}, "no spare is free for seat 3");
}

TEST_F(AnotherWorld, WhatOnlyTheOneKnowsWhoLeavesIsCommittedAllTheSame) {
  node_lost(2);
  report(0, 0);
  ASSERT_EQ(inventories.size(), 2u);
  inventories[0].committed = Step(7);  // and nobody has it: the job can only end
  QuiescingView view{spec, state, inventories, nodes, cordoned};
  view.wished = {Seat(1), Seat(2)};
  EXPECT_EQ(moved(decide_restore(view, life(9))).phase, JobPhase::failed);
}

TEST_F(AnotherWorld, FromStepZeroAnyWorldIsAsGoodAsAnother) {
  report(0, 0);
  const JobState next = restored({2, 5, 0, 1}).next;
  EXPECT_TRUE(next.cold);
  ASSERT_EQ(next.seats.size(), 4u);
  EXPECT_FALSE(are_renumbered(next.seats));
  EXPECT_EQ(next.seats[1].life, life(3));
  EXPECT_EQ(next.restart.size(), 4u);
}

TEST_F(AnotherWorld, SeatsOfANodeFollowEachOther) {
  for (std::uint32_t seat = 0; seat < 3; ++seat) state.seats[seat].life = life(seat / 2);  // node 0 has two
  inventories = {{life(0), state.generation, Step(0), {}, {Seat(0), Seat(1)}, 0},
                 {life(1), state.generation, Step(0), {}, {Seat(2)}, 0}};
  expect_refused({0, 2, 1}, "the seats of a node don't follow each other");
  const JobState next = restored({2, 1, 0}).next;
  EXPECT_EQ(lives_of(next.seats), (std::vector{life(1), life(0)}));
}

TEST_F(AnotherWorld, WhatIsCountedOfASeatIsCountedOfTheOneThatGoesOnFromIt) {
  state.attempts = {{FaultKind::trainer_exit, Seat(2), Step(40), 1},
                    {FaultKind::trainer_exit, Seat(1), Step(40), 1},
                    {FaultKind::communication, std::nullopt, Step(40), 1}};
  report(40, 40);
  const JobState next = restored({2, 0}).next;
  EXPECT_EQ(next.attempts, (std::vector<Attempt>{{FaultKind::trainer_exit, Seat(0), Step(40), 1},
                                                 {FaultKind::communication, std::nullopt, Step(40), 1}}));
}

TEST_F(Recovery, ADeadNodesSeatGoesToTheSpare) {
  node_lost(1);
  EXPECT_EQ(state.generation, Generation(2));
  EXPECT_EQ(state.phase, JobPhase::quiescing);
  EXPECT_EQ(state.leader, life(9));
  EXPECT_EQ(state.evicted, std::vector{life(1)});
  ASSERT_EQ(state.causes.size(), 1u);
  EXPECT_EQ(state.causes[0].node, life(1));

  Wait wait = waits(restore());
  EXPECT_EQ(wait.what, "inventory of node 0,2");
  EXPECT_EQ(wait.late, (std::vector{life(0), life(2)}));
  EXPECT_FALSE(wait.without_deadline);
  report(40, 39);
  state = moved(restore());
  EXPECT_EQ(state.phase, JobPhase::restoring);
  EXPECT_EQ(state.resume, Step(40));
  EXPECT_EQ(state.committed, Step(39));
  EXPECT_EQ(state.seats[1], (Member{Seat(1), life(3), "host3:1", 0}));
  EXPECT_EQ(state.sources[1], (Source{Seat(1), SourceKind::replica, life(2), Generation(1), Step(40)}));
  EXPECT_EQ(state.sources[0].kind, SourceKind::own_arena);
  EXPECT_TRUE(state.restart.empty());
  EXPECT_FALSE(state.cold);
  EXPECT_EQ(state.verdict, "");
  EXPECT_EQ(state.lineage.back(), (LineageEntry{Generation(2), Step(40)}));
  EXPECT_EQ(state.plan_digest, digest_of(state.sources, Step(40)));

  const std::vector<NodeLife> two{life(0), life(2)};
  wait = waits(decide_running(state, two, life(0)));
  EXPECT_EQ(wait.late, std::vector{life(3)});
  run();
  EXPECT_EQ(state.phase, JobPhase::running);
  EXPECT_TRUE(state.sources.empty()) << "all have what they read";
  EXPECT_EQ(state.plan_digest, 0u);
  EXPECT_EQ(state.ran, Generation(2));
  EXPECT_EQ(state.committed, Step(40));
  EXPECT_EQ(state.evicted.size(), 1u);  // for status, until the next fault
  EXPECT_EQ(state.causes.size(), 1u);

  nodes.push_back(record(1, 1));  // still registered, though dead
  node_lost(0);
  EXPECT_EQ(state.evicted, std::vector{life(0)});
  EXPECT_EQ(state.departed, std::vector{life(1)});
  EXPECT_EQ(state.causes.size(), 1u);
  spares_hold = true;
  report(40, 40);
  EXPECT_EQ(waits(restore()).what, "a spare for seat 0");
  nodes.push_back(record(1, 1, 2));
  EXPECT_EQ(moved(restore()).seats[0].life, life(1, 2));
}

// What it was evicted for may last: cut links, a bad device.
TEST_F(Recovery, ANodeThatWasEvictedComesAfterTheOtherSpares) {
  node_lost(1);
  nodes.push_back(record(1, 1, 2));  // it is back before the decision
  nodes.push_back(record(4, 1));
  report(40, 39);
  state = moved(restore());
  EXPECT_EQ(state.seats[1].life, life(3));
  run();
  node_lost(2);
  spares_hold = true;
  report(40, 40);
  EXPECT_EQ(moved(restore()).seats[2].life, life(4));
  std::erase_if(nodes, [](const NodeRecord& node) { return node.life == life(4); });
  EXPECT_EQ(moved(restore()).seats[2].life, life(1, 2));
}

TEST_F(Recovery, WhatIsAlreadyKnownOpensNothing) {
  EXPECT_TRUE(waits(open(cause(FaultKind::node_lost, life(3)))).late.empty());     // a spare
  EXPECT_TRUE(waits(open(cause(FaultKind::node_lost, life(1, 7)))).late.empty());  // another life
  waits(open(cause(FaultKind::node_lost, std::nullopt)));
  waits(open(cause(FaultKind::none, life(1))));
  waits(open(cause(FaultKind::trainer_exit, std::nullopt)));
  waits(open(cause(FaultKind::trainer_exit, std::nullopt, 3)));
  waits(open(cause(FaultKind::trainer_exit, life(2), 1)));  // does not sit there
  waits(open(cause(FaultKind::corrupt_source, std::nullopt, 1)));
  waits(open(cause(FaultKind::communication, life(1, 7))));
  waits(open_generation(state, std::span<const Cause>(), life(0)));
  node_lost(1);
  const JobState before = state;
  waits(open(cause(FaultKind::node_silent, life(1))));
  waits(open(cause(FaultKind::trainer_exit, life(1), 1)));
  waits(open(cause(FaultKind::communication, std::nullopt)));  // all roll back anyway
  opened(cause(FaultKind::trainer_exit, life(2), 2));
  waits(open(cause(FaultKind::trainer_hang, std::nullopt, 2)));  // is started anew already
  EXPECT_EQ(state.generation, Generation(3));
  EXPECT_EQ(state.evicted, before.evicted);
  EXPECT_EQ(state.restart, std::vector{Seat(2)});
  EXPECT_EQ(state.causes.size(), 2u);
}

TEST_F(Recovery, ThereIsNothingToRecoverBeforeAndAfterTheJob) {
  for (const JobPhase phase : {JobPhase::forming, JobPhase::finished, JobPhase::failed}) {
    state.phase = phase;
    EXPECT_TRUE(has(waits(open(cause(FaultKind::node_lost, life(1)))).what, name_of(phase)));
  }
}

TEST_F(Recovery, ATrainersDeathIsANewProcessInItsSeat) {
  opened(cause(FaultKind::trainer_exit, life(1), 1));
  EXPECT_TRUE(state.evicted.empty());
  EXPECT_EQ(state.restart, std::vector{Seat(1)});
  report(40, 40);
  state = moved(restore());
  EXPECT_EQ(state.seats[1].life, life(1));
  EXPECT_EQ(state.sources[1].kind, SourceKind::own_arena);
  EXPECT_EQ(state.restart, std::vector{Seat(1)});
  run();
  EXPECT_TRUE(state.restart.empty());
}

TEST_F(Recovery, ATrainerThatIsDeadByItsNodesAccountIsStartedAnew) {
  node_lost(0);
  report(40, 40);
  inventories[1].trainers_alive.clear();  // node 2
  EXPECT_EQ(moved(restore()).restart, std::vector{Seat(2)});
}

TEST_F(Recovery, ARestartEndsWhereTheSeatMoves) {
  opened(cause(FaultKind::trainer_exit, life(1), 1));
  node_lost(1);
  EXPECT_EQ(state.restart, std::vector{Seat(1)});
  report(40, 40);
  EXPECT_TRUE(moved(restore()).restart.empty());
}

TEST_F(Recovery, TheSameTrainerFailingAgainAndAgainIsReplacedThenTheJobStops) {
  const auto recover = [&](std::uint64_t step) {
    report(step, step, 1);
    state = moved(restore());
    run();
  };
  for (int round = 0; round < 2; ++round) {
    opened(cause(FaultKind::trainer_exit, std::nullopt, 1));
    EXPECT_TRUE(state.evicted.empty()) << round;
    recover(40);
  }
  // The first of them came with progress since the job began, the other did not.
  ASSERT_EQ(state.attempts.size(), 1u);
  EXPECT_EQ(state.attempts[0], (Attempt{FaultKind::trainer_exit, Seat(1), Step(40), 1}));
  opened(cause(FaultKind::trainer_exit, std::nullopt, 1));
  EXPECT_TRUE(state.evicted.empty());
  recover(40);
  opened(cause(FaultKind::trainer_exit, std::nullopt, 1));
  EXPECT_EQ(state.evicted, std::vector{life(1)});
  EXPECT_TRUE(state.restart.empty());
  recover(40);
  EXPECT_EQ(state.seats[1].life, life(3));
  state.attempts[0].count = 4;
  const Decision stop = open(cause(FaultKind::trainer_exit, std::nullopt, 1));
  const JobState ended = moved(stop);
  EXPECT_EQ(ended.phase, JobPhase::failed);
  EXPECT_EQ(ended.generation, state.generation);
  EXPECT_TRUE(has(ended.verdict, "trainer_exit node 3 seat 1 (detail), for the 5. time without a new committed step"))
      << ended.verdict;
}

TEST_F(Recovery, WhenTheTrainersOfAllSeatsEndByThemselvesTheJobStopsAtOnce) {
  std::vector<TrainerEnd> ends = {{Seat(0), Generation(1), "exited 1 after step 41"},
                                  {Seat(2), Generation(1), "exited 1"}};
  waits(decide_ends(state, ends, life(9)));
  opened(cause(FaultKind::trainer_exit, std::nullopt, 1));  // while the job recovers, too
  waits(decide_ends(state, ends, life(9)));
  ends.push_back({Seat(1), Generation(2), "exited 3"});
  const JobState ended = moved(decide_ends(state, ends, life(9)));
  EXPECT_EQ(ended.phase, JobPhase::failed);
  EXPECT_TRUE(has(ended.verdict, "all 3 seats")) << ended.verdict;
  EXPECT_TRUE(has(ended.verdict, "seat 0 exited 1 after step 41")) << ended.verdict;
  EXPECT_TRUE(has(ended.verdict, "seat 1 exited 3")) << ended.verdict;
  waits(decide_ends(ended, ends, life(9)));
}

TEST_F(Recovery, EndsBeforeTheJobLastRanAreForgotten) {
  state.ran = state.generation = Generation(5);
  const std::vector<TrainerEnd> ends = {{Seat(0), Generation(4), ""},
                                        {Seat(1), Generation(5), ""},
                                        {Seat(2), Generation(5), ""},
                                        {Seat(7), Generation(5), ""}};
  waits(decide_ends(state, ends, life(9)));
}

TEST_F(Recovery, TheSameFailureInTheSameStepTwiceStopsTheJobAndIsQuoted) {
  std::vector<TrainerEnd> ends = {{Seat(1), Generation(1), "exited 1 in or after step 9: ValueError: x", Step(9)}};
  waits(decide_ends(state, ends, life(9)));
  ends[0].times = 2;
  const JobState ended = moved(decide_ends(state, ends, life(9)));
  EXPECT_EQ(ended.phase, JobPhase::failed);
  EXPECT_TRUE(has(ended.verdict, "seat 1 failed 2 times in the same way: exited 1 in or after step 9: ValueError: x"))
      << ended.verdict;
  EXPECT_FALSE(has(ended.verdict, "links")) << ended.verdict;
  opened(cause(FaultKind::communication, std::nullopt, 0));  // which is what the others saw of it
  EXPECT_EQ(moved(decide_ends(state, ends, life(9))).phase, JobPhase::failed);
  waits(decide_ends(ended, ends, life(9)));
  state.ran = Generation(2);
  waits(decide_ends(state, ends, life(9)));  // it went on since
}

TEST_F(Recovery, WhatANewProcessCanNotMendStopsTheJobAtOnce) {
  std::vector<TrainerEnd> ends = {{Seat(2), Generation(1), "exited 1: ModuleNotFoundError: x"}};
  ends[0].remedy = "install it";
  ends[0].failure_class = FailureClass::permanent;
  const JobState ended = moved(decide_ends(state, ends, life(9)));
  EXPECT_TRUE(has(ended.verdict, "seat 2 failed, and a new process would fail the same way")) << ended.verdict;
  EXPECT_TRUE(has(ended.verdict, "ModuleNotFoundError: x; install it")) << ended.verdict;
  ends[0].failure_class = FailureClass::numerical;
  EXPECT_TRUE(has(moved(decide_ends(state, ends, life(9))).verdict, "seat 2 went wrong in its numbers"));
  ends[0].failure_class = FailureClass::transient_communication;
  waits(decide_ends(state, ends, life(9)));
}

TEST_F(Recovery, ASingleSeatIsNoCrowd) {
  state.seats.resize(1);
  const std::vector<TrainerEnd> ends = {{Seat(0), Generation(1), "exited 1"}};
  waits(decide_ends(state, ends, life(9)));
}

TEST_F(Recovery, SeveralThatEndByThemselvesAgainAndAgainStopTheJob) {
  state.resume = Step(40);
  for (int round = 0; round < 3; ++round) {
    const auto one = static_cast<std::uint32_t>(round % 2);  // whose end opens the recovery is chance
    opened(cause(FaultKind::trainer_exit, std::nullopt, one));
    const std::vector<TrainerEnd> ends = {{Seat(0), state.ran, "exited 1"}, {Seat(1), state.ran, "exited 1"}};
    report(40, 40, 1);
    state = moved(restore());
    state = moved(decide_running(state, lives_of(state.seats), life(9), ends));
    EXPECT_EQ(state.phase, round < 2 ? JobPhase::running : JobPhase::failed) << round;
  }
  EXPECT_TRUE(has(state.verdict, "several trainers ended by themselves, for the 3. time")) << state.verdict;
}

TEST_F(Recovery, SeatsThatEndApartEndTheJob) {
  const std::vector<SeatStep> ended = {{Seat(1), Step(10)}, {Seat(2), Step(12)}};
  waits(decide_apart(state, ended, {Seat(0), Step(10)}, life(9)));
  waits(decide_apart(state, ended, {Seat(1), Step(11)}, life(9)));  // its own end; and 12 may still come
  const JobState apart = moved(decide_apart(state, ended, {Seat(0), Step(11)}, life(9)));
  EXPECT_EQ(apart.phase, JobPhase::failed);
  EXPECT_TRUE(has(apart.verdict, "seat 1 has ended after step 10 and seat 0 has begun step 11")) << apart.verdict;
  EXPECT_EQ(moved(decide_apart(state, ended, {Seat(2), Step(12)}, life(9))).phase, JobPhase::failed);
  node_lost(1);
  waits(decide_apart(state, ended, {Seat(0), Step(11)}, life(9)));  // a recovery makes it anew
}

TEST_F(Recovery, ProgressForgivesEarlierFailures) {
  for (std::uint64_t step = 10; step < 100; step += 10) {
    opened(cause(FaultKind::trainer_exit, std::nullopt, 1));
    EXPECT_TRUE(state.evicted.empty()) << step;
    report(step, step, state.generation.value - 1);
    state = moved(restore());
    EXPECT_EQ(state.resume, Step(step));
    run();
  }
}

TEST_F(Recovery, ACommunicationFaultRollsBackInPlace) {
  opened(cause(FaultKind::communication, std::nullopt, 1));
  EXPECT_EQ(state.generation, Generation(2));
  EXPECT_TRUE(state.evicted.empty());
  EXPECT_TRUE(state.restart.empty());
  report(40, 40);
  state = moved(restore());
  EXPECT_EQ(state.resume, Step(40));
  for (const Source& source : state.sources) EXPECT_EQ(source.kind, SourceKind::own_arena);
  opened(cause(FaultKind::communication, std::nullopt, 2));  // in restoring it is news; who reports does not matter
  state.attempts[0].count = 3;
  state.phase = JobPhase::running;
  JobState without_suspect = moved(open(cause(FaultKind::communication, std::nullopt, 2)));
  EXPECT_TRUE(without_suspect.evicted.empty());
}

TEST_F(Recovery, ASuspectsNodeIsReplacedTheSecondTimeWithoutProgress) {
  const auto fails = [&](std::uint32_t suspect, std::uint64_t committed) {
    state =
        moved(open_generation(state, cause(FaultKind::communication, life(suspect), 0), life(9), {}, Step(committed)));
  };
  const auto goes_on = [&](std::uint64_t step) {
    report(step, step, state.lineage.back().generation.value);
    state = moved(restore());
    EXPECT_EQ(state.resume, Step(step));
    run();
  };
  fails(2, 39);
  EXPECT_TRUE(state.evicted.empty());
  goes_on(40);
  fails(1, 40);
  EXPECT_TRUE(state.evicted.empty()) << "another one";
  goes_on(40);
  fails(1, 41);
  EXPECT_TRUE(state.evicted.empty()) << "there was progress";
  goes_on(41);
  fails(1, 41);
  EXPECT_EQ(state.evicted, std::vector{life(1)});
}

TEST_F(Recovery, AStruckSourceIsNeverTriedAgain) {
  node_lost(1);
  report(40, 40);
  state = moved(restore());
  const Struck strike{life(0), Seat(0), SourceKind::own_arena, Generation(1), Step(40)};
  const std::vector<Struck> strikes{strike};
  // Seat 0 has its replica at node 1, which is dead; its own copy is wrong: nothing is left.
  const JobState quiescing = moved(open(cause(FaultKind::corrupt_source, std::nullopt, 0), strikes));
  EXPECT_EQ(quiescing.struck, std::vector{strike});
  EXPECT_EQ(quiescing.evicted, std::vector{life(1)});
  waits(open_generation(quiescing, cause(FaultKind::corrupt_source, std::nullopt, 0), life(0), strikes));
  state = quiescing;
  report(40, 40);
  const JobState ended = moved(restore());
  EXPECT_EQ(ended.phase, JobPhase::failed);
  EXPECT_TRUE(has(ended.verdict, "seat 0: no sealed copy of step 40 (own at node 0: struck out")) << ended.verdict;

  // With its replica alive it is read from there.
  state.evicted.clear();
  state.seats[1].life = life(1);
  report(40, 40);
  state = moved(restore());
  EXPECT_EQ(state.sources[0], (Source{Seat(0), SourceKind::replica, life(1), Generation(1), Step(40)}));
  run();
  EXPECT_TRUE(state.struck.empty());
}

// One cut link: the source is sound, and so is the node that takes the seat.
TEST_F(Recovery, ASourceThatIsNotReachedIsPassedOverAndThenTheSeatMoves) {
  node_lost(1);
  report(40, 40);
  state = moved(restore());
  const Source before = state.sources[1];
  const NodeLife importer = state.seats[1].life;
  const Cause unreached = cause(FaultKind::source_unreached, before.from, 1);
  waits(open(cause(FaultKind::source_unreached, life(9), 1)));  // it reads from elsewhere by now
  state = moved(open(unreached));
  EXPECT_EQ(state.evicted, std::vector{life(1)}) << "nobody is lost";
  EXPECT_TRUE(state.struck.empty());
  EXPECT_EQ(state.causes.back(), unreached);
  waits(open(unreached));  // all roll back anyway
  report(40, 40);
  state = moved(restore());
  EXPECT_EQ(state.sources[1], before) << "there is no other";
  EXPECT_EQ(state.seats[1].life, importer);
  const std::size_t causes = state.causes.size();
  for (int i = 0; i < 20; ++i) {  // the link stays cut, and no other spare comes: for ever
    const NodeLife there = state.seats[1].life;
    state = moved(open(unreached));
    ASSERT_EQ(state.phase, JobPhase::quiescing) << state.verdict;
    ASSERT_EQ(state.evicted.back(), there);
    ASSERT_EQ(state.causes.size(), causes);
    nodes = {record(3, 1, 10 + i)};
    report(40, 40);
    state = moved(restore());
    ASSERT_NE(state.seats[1].life, there);
  }
}

TEST_F(Recovery, OfManyThatAreWaitedForAFewAreNamed) {
  state.phase = JobPhase::restoring;
  for (std::uint32_t seat = 3; seat < 12; ++seat) state.seats.push_back({Seat(seat), life(seat), "", 0});
  Wait wait = waits(decide_running(state, std::vector{life(0)}, life(0)));
  EXPECT_EQ(wait.what, "node 1,2,3,4,5,6,7,8 and 3 more to be ready");
  EXPECT_EQ(wait.late.size(), 11u);
  state.phase = JobPhase::quiescing;
  EXPECT_EQ(waits(restore()).what, "inventory of node 0,1,2,3,4,5,6,7 and 4 more");
}

TEST_F(Recovery, GoingBackBehindACommitIsSaid) {
  node_lost(1);
  report(39, 39);
  for (Inventory& inventory : inventories) inventory.committed = Step(41);
  const Decision decision = restore();
  state = moved(decision);
  EXPECT_EQ(state.resume, Step(39));
  EXPECT_EQ(state.committed, Step(41));
  EXPECT_TRUE(has(state.verdict, "steps 40 to 41 were committed and are redone: seat 0: no sealed copy of step 41"))
      << state.verdict;
  EXPECT_TRUE(has(std::get<StateMove>(decision).why, state.verdict));
  run();
  EXPECT_EQ(state.committed, Step(39));
}

TEST_F(Recovery, ADeathBeforeTheFirstCommitStartsEverybodyAnew) {
  node_lost(1);
  report(0, 0);
  state = moved(restore());
  EXPECT_TRUE(state.cold);
  EXPECT_EQ(state.resume, Step(0));
  EXPECT_EQ(state.restart, (std::vector{Seat(0), Seat(1), Seat(2)}));
  ASSERT_EQ(state.sources.size(), 3u);
  EXPECT_EQ(state.sources[1].kind, SourceKind::nothing);
  EXPECT_EQ(state.seats[1].life, life(3));
  node_lost(3);
  EXPECT_FALSE(state.cold);
}

TEST_F(Recovery, NeverFromZeroIfAnythingWasCommittedOrNobodyIsLeftWhoKnows) {
  node_lost(1);
  const JobState quiescing = state;
  report(0, 17);
  state = moved(restore());
  EXPECT_EQ(state.phase, JobPhase::failed);
  EXPECT_TRUE(has(state.verdict, "step 17 was committed")) << state.verdict;
  for (const char* seat : {"seat 0:", "seat 1:", "seat 2:"}) EXPECT_TRUE(has(state.verdict, seat)) << state.verdict;

  state = quiescing;  // an earlier decision knew it, those who are left do not
  state.committed = Step(17);
  report(0, 0);
  EXPECT_EQ(moved(restore()).phase, JobPhase::failed);

  state = quiescing;
  state.evicted = {life(0), life(1), life(2)};
  nodes = {record(3, 1)};
  inventories.clear();
  EXPECT_TRUE(has(moved(restore()).verdict, "no member is left"));
  state.ran = Generation(0);  // the job never ran: there is nothing to lose
  nodes = {record(3, 1), record(4, 1), record(5, 1)};
  EXPECT_TRUE(moved(restore()).cold);
}

class InStorage : public Recovery {
 protected:
  // Seat 1's own copy and its replica are lost; checkpoints of two steps are there.
  InStorage() {
    report(40, 40);
    node_lost(1);
    node_lost(2);
    nodes = {record(0, 0), record(3, 1), record(4, 1)};
    report(40, 40);
  }
  Decision decide() {
    QuiescingView view{spec, state, inventories, nodes, cordoned};
    view.stored = {Step(30), Step(20)};
    return decide_restore(view, life(9));
  }
};

TEST_F(InStorage, AllSeatsReadTheNewestCheckpointWhereMemoryHasNoStep) {
  EXPECT_EQ(moved(restore()).phase, JobPhase::failed);
  const JobState next = moved(decide());
  ASSERT_EQ(next.phase, JobPhase::restoring);
  EXPECT_EQ(next.resume, Step(30));
  EXPECT_EQ(next.committed, Step(40));
  ASSERT_EQ(next.sources.size(), 3u);
  for (std::uint32_t i = 0; i < 3; ++i)
    EXPECT_EQ(next.sources[i], (Source{Seat(i), SourceKind::storage, {}, next.generation, Step(30)}));
  EXPECT_TRUE(has(next.verdict, "steps 31 to 40 were committed and are redone, from the checkpoint in storage"))
      << next.verdict;
  // Whatever memory has of that step or a later one is of no use together with it.
  EXPECT_TRUE(in_lineage(next.lineage, next.generation, Step(30)));
  EXPECT_FALSE(in_lineage(next.lineage, Generation(1), Step(30)));
  EXPECT_TRUE(in_lineage(next.lineage, Generation(1), Step(29)));
}

TEST_F(InStorage, WhatWasCommittedIsToldAsFarAsAnybodyKnows) {
  const Decision known = decide();
  EXPECT_TRUE(has(std::get<StateMove>(known).why, "resume from step 30 in storage (committed 40)"));
  inventories.clear();  // all members are gone
  nodes = {record(3, 1), record(4, 1), record(5, 1)};
  for (const std::uint32_t node : {0, 1, 2}) state.evicted.push_back(life(node));
  const Decision unknown = decide();
  ASSERT_TRUE(std::holds_alternative<StateMove>(unknown));
  EXPECT_TRUE(has(std::get<StateMove>(unknown).why, "resume from step 30 in storage;"))
      << std::get<StateMove>(unknown).why;
}

TEST_F(InStorage, MemoryIsBetterWhateverIsStored) {
  nodes = {record(0, 0), record(1, 0), record(2, 0), record(3, 1)};
  state = JobState(state);
  state.evicted = {life(1)};
  inventories.clear();
  report(40, 40);
  EXPECT_EQ(moved(decide()).sources.front().kind, SourceKind::own_arena);
}

TEST_F(InStorage, OneThatProvedWrongIsNeverTriedAgain) {
  state = moved(decide());
  const Struck wrong{{}, Seat(0), SourceKind::storage, state.generation, Step(30)};
  const std::vector<Struck> struck{wrong};
  Cause damaged = cause(FaultKind::corrupt_source, std::nullopt, 0);
  damaged.detail = "checkpoint: data-00000.safetensors: its checksum differs";
  opened(damaged, struck);
  report(40, 40);
  state = moved(decide());
  EXPECT_EQ(state.resume, Step(20));
  opened(damaged, std::vector<Struck>{{{}, Seat(1), SourceKind::storage, state.generation, Step(20)}});
  report(40, 40);
  const JobState ended = moved(decide());
  EXPECT_EQ(ended.phase, JobPhase::failed);
  EXPECT_TRUE(has(ended.verdict, "nor can it go on from a checkpoint (step 30,20): checkpoint: data-00000.safetensors"))
      << ended.verdict;
}

TEST_F(Recovery, WithoutASpareItWaitsOrStops) {
  nodes.pop_back();
  node_lost(1);
  report(40, 40);
  const Wait wait = waits(restore());
  EXPECT_EQ(wait.what, "a spare for seat 1");
  EXPECT_TRUE(wait.without_deadline);
  EXPECT_TRUE(wait.late.empty());
  for (NodeRecord none : {record(1, 1, 1), record(2, 1), record(2, 1, 8), record(3, 0), record(1, 1, 0)}) {
    nodes.push_back(none);  // the evicted life, members, a later life of a living member, no trainer, an earlier life
    waits(restore());
    nodes.pop_back();
  }
  nodes.push_back(record(4, 1));
  nodes.back().healthy = false;
  waits(restore());
  nodes.push_back(record(1, 1, 2));
  state.waiting = "a spare for seat 1";
  const JobState next = moved(restore());
  EXPECT_EQ(next.seats[1].life, life(1, 2));
  EXPECT_EQ(next.waiting, "");
  nodes.clear();
  spec.wait_for_spare = false;
  const JobState ended = moved(restore());
  EXPECT_EQ(ended.phase, JobPhase::failed);
  EXPECT_TRUE(has(ended.verdict, "a spare for seat 1")) << ended.verdict;
}

TEST_F(Recovery, ACordonedNodeGetsNoSeatAndThatIsSaid) {
  nodes.push_back(record(4, 1));
  node_lost(1);
  report(40, 40);
  cordoned = {NodeId(0), NodeId(3)};
  const JobState next = moved(restore());
  EXPECT_EQ(next.seats[1].life, life(4));
  EXPECT_EQ(next.seats[0].life, life(0));  // what it has it keeps
  cordoned.push_back(NodeId(4));
  const Wait wait = waits(restore());
  EXPECT_TRUE(has(wait.what, "a spare for seat 1 (node 3,4 is cordoned")) << wait.what;
  EXPECT_TRUE(wait.without_deadline);
  cordoned.clear();
  EXPECT_EQ(moved(restore()).seats[1].life, life(3));
}

TEST_F(Recovery, WhatCannotBeRecoveredIsSaidBeforeASpareIsWaitedFor) {
  nodes.pop_back();
  node_lost(1);
  node_lost(2);
  report(40, 40);
  const JobState ended = moved(restore());
  EXPECT_EQ(ended.phase, JobPhase::failed);
  EXPECT_TRUE(has(ended.verdict, "seat 1: no sealed copy of step 40")) << ended.verdict;
  EXPECT_FALSE(has(ended.verdict, "seat 2:"));
}

TEST_F(Recovery, AllSeatsOfANodeGoToOneSpareAndNoSpareGetsTwoNodes) {
  state.seats.clear();
  for (std::uint32_t i = 0; i < 8; ++i) state.seats.push_back({Seat(i), life(i / 2), "a", i % 2});
  nodes = {record(6, 4), record(5, 1), record(4, 2)};
  node_lost(3);
  node_lost(1);
  inventories.clear();
  for (const std::uint32_t node : {0u, 2u}) {
    Inventory inventory{life(node), state.generation, Step(9), {}, {Seat(2 * node), Seat(2 * node + 1)}, 0};
    for (std::uint32_t local = 0; local < 2; ++local) {
      inventory.items.push_back(
          {Seat(2 * node + local), SourceKind::own_arena, Generation(1), Step(9), SlotState::sealed, 1});
      inventory.items.push_back(
          {Seat((2 * node + 6 + local) % 8), SourceKind::replica, Generation(1), Step(9), SlotState::sealed, 1});
    }
    inventories.push_back(inventory);
  }
  state = moved(restore());
  ASSERT_EQ(state.phase, JobPhase::restoring) << state.verdict;
  for (const std::uint32_t seat : {2u, 3u}) {
    EXPECT_EQ(state.seats[seat].life, life(4));
    EXPECT_EQ(state.seats[seat].address, "host4:1");
    EXPECT_EQ(state.seats[seat].local_index, seat % 2);
    EXPECT_EQ(state.seats[seat + 4].life, life(6));
  }
}

TEST_F(Recovery, InventoriesOfOthersAndOfOtherGenerationsDoNotCount) {
  node_lost(1);
  report(40, 40);
  inventories[0].generation = Generation(1);
  inventories.push_back({life(2, 9), state.generation, Step(99), {}, {}, 0});
  inventories.push_back({life(1), Generation(1), Step(99), {}, {}, 0});
  EXPECT_EQ(waits(restore()).late, std::vector{life(0)});
  inventories[0].generation = state.generation;
  EXPECT_EQ(moved(restore()).committed, Step(40));
}

TEST_F(Recovery, SeveralMissedDeadlinesAreOneGeneration) {
  const std::vector<Cause> late{cause(FaultKind::node_silent, life(1)), cause(FaultKind::node_silent, life(2)),
                                cause(FaultKind::node_silent, life(2))};
  state = moved(open_generation(state, late, life(0)));
  EXPECT_EQ(state.generation, Generation(2));
  EXPECT_EQ(state.evicted, (std::vector{life(1), life(2)}));
  EXPECT_EQ(state.causes.size(), 2u);
}

TEST_F(Recovery, ALostLeaderIsLostLikeAnyOther) {
  state.leader = life(1);
  opened(cause(FaultKind::leader_lost, std::nullopt));
  EXPECT_EQ(state.evicted, std::vector{life(1)});
  EXPECT_EQ(state.causes[0].node, life(1));
  // The new leader, who sits nowhere, dies too: somebody else leads the same generation.
  const JobState taken = moved(open_generation(state, cause(FaultKind::leader_lost, life(9)), life(0)));
  EXPECT_EQ(taken.generation, state.generation);
  EXPECT_EQ(taken.phase, JobPhase::quiescing);
  EXPECT_EQ(taken.leader, life(0));
  waits(open_generation(taken, cause(FaultKind::leader_lost, life(9)), life(2)));  // seen late
}

TEST_F(Recovery, AFurtherDeathDecidesOverTheSameSlots) {
  node_lost(1);
  report(40, 40);
  state = moved(restore());
  node_lost(3);  // the spare, while it joins
  EXPECT_EQ(state.generation, Generation(3));
  EXPECT_EQ(state.evicted, (std::vector{life(1), life(3)}));
  EXPECT_EQ(state.seats[1].life, life(3));
  report(40, 40);
  nodes.push_back(record(5, 1));
  state = moved(restore());
  EXPECT_EQ(state.seats[1].life, life(5));
  EXPECT_EQ(state.resume, Step(40));
  EXPECT_EQ(state.sources[1].kind, SourceKind::replica);
  EXPECT_EQ(state.lineage.back(), (LineageEntry{Generation(3), Step(40)}));
}

TEST_F(Recovery, SlotsThatAnUnfinishedDecisionVoidedStayVoid) {
  node_lost(1);
  report(40, 39);
  state.lineage.push_back({Generation(2), Step(39)});  // a decision that went back, and never ran
  state.generation = Generation(3);
  report(40, 39);
  EXPECT_EQ(moved(restore()).phase, JobPhase::failed);
}

// --- nodes that were evicted and live

class Lingering : public Recovery {
 protected:
  // Nodes 1 and 2 are gone from the job, so of seat 1 only they had a copy; node 2 lives, and is evicted.
  Lingering() {
    report(40, 39);
    of_node_2 = inventories[2];
    node_lost(1);
    node_lost(2);
    nodes = {record(0, 0), record(2, 0), record(3, 1), record(4, 1)};
    of_node_2.generation = state.generation;
    report(40, 39);
  }
  Inventory of_node_2;
};

TEST_F(Lingering, ItIsReadFromWhereTheMembersHaveNoCopy) {
  const Wait wait = waits(restore());
  EXPECT_EQ(wait.what, "inventory of node 2, which was evicted and may hold the only copies");
  EXPECT_TRUE(wait.late.empty());
  inventories.push_back(of_node_2);
  const StateMove move = std::get<StateMove>(restore());
  ASSERT_EQ(move.next.phase, JobPhase::restoring) << move.why;
  EXPECT_EQ(move.next.resume, Step(40));
  EXPECT_EQ(move.next.sources[0], (Source{Seat(0), SourceKind::own_arena, life(0), Generation(1), Step(40)}));
  EXPECT_EQ(move.next.sources[1], (Source{Seat(1), SourceKind::replica, life(2), Generation(1), Step(40)}));
  // The replica at a member is nearer than the own copy at a node that goes.
  EXPECT_EQ(move.next.sources[2], (Source{Seat(2), SourceKind::replica, life(0), Generation(1), Step(40)}));
  EXPECT_TRUE(has(move.why, "reads from node 2, which was evicted")) << move.why;
  EXPECT_EQ(lives_of(move.next.seats), (std::vector{life(0), life(3), life(4)}));
}

TEST_F(Lingering, ItIsNotWaitedForWhenItIsGoneNorReadFrom) {
  forget(life(2));
  EXPECT_EQ(moved(restore()).phase, JobPhase::failed);
  inventories.push_back(of_node_2);
  EXPECT_EQ(moved(restore()).phase, JobPhase::failed);
}

// Frozen first, then reported, in this very generation: what it said before may not be true any more.
TEST_F(Lingering, WhatItReportedInAnotherGenerationDoesNotCount) {
  of_node_2.generation = Generation(state.generation.value - 1);
  inventories.push_back(of_node_2);
  EXPECT_EQ(waits(restore()).what, "inventory of node 2, which was evicted and may hold the only copies");
}

TEST_F(Lingering, AfterItsTimeItIsWaitedForOnlyIfNothingElseIsLeft) {
  QuiescingView view{spec, state, inventories, nodes, cordoned};
  view.lingering_late = true;
  const Wait wait = waits(decide_restore(view, life(0)));
  EXPECT_TRUE(wait.without_deadline) << "and that is said";
  for (std::uint32_t seat = 0; seat < 3; ++seat)  // an earlier step than was committed
    inventories[0].items.push_back({Seat(seat), seat == 0 ? SourceKind::own_arena : SourceKind::replica, Generation(1),
                                    Step(39), SlotState::sealed, 7});
  view.inventories = inventories;
  state.committed = Step(40);
  view.lingering_late = false;
  EXPECT_FALSE(waits(decide_restore(view, life(0))).without_deadline);
  view.lingering_late = true;
  EXPECT_EQ(moved(decide_restore(view, life(0))).resume, Step(39));
}

TEST_F(Lingering, NobodyWaitsForItWhereTheMembersHoldEverything) {
  inventories.clear();
  state.evicted = {life(1)};
  report(40, 39);
  state.evicted = {life(1), life(2)};  // it was evicted after it had reported, say
  std::erase_if(inventories, [](const Inventory& inventory) { return inventory.life == life(2); });
  for (Inventory& inventory : inventories)
    inventory.items.push_back({Seat(1), SourceKind::replica, Generation(1), Step(40), SlotState::sealed, 7});
  const JobState next = moved(restore());
  EXPECT_EQ(next.phase, JobPhase::restoring);
  for (const Source& source : next.sources) EXPECT_EQ(source.from, life(0));
}

TEST_F(Lingering, ItGoesOnlyWhenNobodyCanNeedItAnyMore) {
  const auto lingers = [&] { return must_linger({spec, state, inventories, nodes, cordoned}, life(2)); };
  EXPECT_FALSE(must_linger({spec, state, inventories, nodes, cordoned}, life(0)));
  EXPECT_TRUE(lingers());
  inventories.clear();
  EXPECT_TRUE(lingers());  // who knows what the others hold
  report(40, 39);
  inventories.push_back(of_node_2);
  nodes.pop_back();
  EXPECT_TRUE(lingers());  // there is a spare too few, but it has the only copy
  nodes.push_back(record(4, 1));
  state = moved(restore());
  EXPECT_TRUE(lingers());
  run();
  EXPECT_FALSE(lingers());
}

// The spare that the job waits for may be this node, in its next life.
TEST_F(Lingering, ItMakesWayWhereASpareIsMissingAndTheMembersHoldEverything) {
  for (Inventory& inventory : inventories)
    inventory.items.push_back({Seat(1), SourceKind::replica, Generation(1), Step(40), SlotState::sealed, 7});
  const auto lingers = [&] { return must_linger({spec, state, inventories, nodes, cordoned}, life(2)); };
  EXPECT_TRUE(lingers());
  nodes.pop_back();
  EXPECT_TRUE(lingers());  // it has not reported
  inventories.push_back(of_node_2);
  state.committed = of_node_2.committed;
  EXPECT_FALSE(lingers());
  inventories.back().committed = state.committed = Step(41);
  EXPECT_TRUE(lingers());  // nobody else knows of this one
}

// Both hold what the members lack. If each counted on the other, both would go.
TEST_F(Lingering, OfTwoThatHoldTheSameOneStays) {
  Inventory of_node_1 = of_node_2;
  of_node_1.life = life(1);
  nodes = {record(0, 0), record(1, 0), record(2, 0), record(3, 1)};
  state.committed = of_node_2.committed;
  inventories.push_back(of_node_2);
  const auto lingers = [&](std::uint32_t node) {
    return must_linger({spec, state, inventories, nodes, cordoned}, life(node));
  };
  EXPECT_TRUE(lingers(2));  // of node 1 nothing has been heard
  inventories.push_back(of_node_1);
  EXPECT_TRUE(lingers(1));
  EXPECT_FALSE(lingers(2));
  // A drained one gets no seat: the other one can be the spare.
  state.causes.push_back({FaultKind::drain, life(2), std::nullopt, "drained", 0});
  EXPECT_FALSE(lingers(1));
  EXPECT_TRUE(lingers(2));
  inventories.back().generation = Generation(state.generation.value - 1);
  EXPECT_TRUE(lingers(2));
}

// A daemon that keeps its lease and does nothing else: the job would wait for a spare, and the spare for its report.
TEST_F(Lingering, ItDoesNotWaitForEverForAnothersReport) {
  for (Inventory& inventory : inventories)
    inventory.items.push_back({Seat(1), SourceKind::replica, Generation(1), Step(40), SlotState::sealed, 7});
  nodes = {record(0, 0), record(1, 0), record(2, 0), record(3, 1)};  // a spare too few
  state.committed = Step(40);
  inventories.push_back(of_node_2);
  QuiescingView view{spec, state, inventories, nodes, cordoned};
  EXPECT_TRUE(must_linger(view, life(2)));
  view.lingering_late = true;
  EXPECT_FALSE(must_linger(view, life(2)));
  view.inventories.erase(view.inventories.begin());
  EXPECT_TRUE(must_linger(view, life(2))) << "of a survivor who is late the leader decides";
  view.inventories = {inventories[0]};
  EXPECT_TRUE(must_linger(view, life(2))) << "without its own report nobody knows what it knows";
}

// Step 40 is whole, and 39 is kept as well besides: whoever does not know that 40 was committed goes back to 39.
TEST_F(Lingering, WhatItKnewToBeCommittedIsNotForgottenWhenItHasBegunAnew) {
  for (Inventory& inventory : inventories)
    inventory.items.push_back({Seat(1), SourceKind::replica, Generation(1), Step(40), SlotState::sealed, 7});
  for (std::uint32_t seat = 0; seat < 3; ++seat)
    for (Inventory& inventory : inventories)
      inventory.items.push_back({Seat(seat), SourceKind::replica, Generation(1), Step(39), SlotState::sealed, 7});
  for (Inventory& inventory : inventories) inventory.committed = Step(38);
  state.committed = Step(38);
  of_node_2.committed = Step(41);  // lost with it, but for its word
  inventories.push_back(of_node_2);
  forget(life(2));
  const JobState next = moved(restore());
  EXPECT_EQ(next.committed, Step(41));
  EXPECT_TRUE(has(next.verdict, "step")) << "that committed steps are redone is said: " << next.verdict;
}

// The next generation does not hear of it any more: before it goes its word stands in the state.
TEST_F(Lingering, ItGoesWhenTheStateSaysWhatItKnewToBeCommitted) {
  for (Inventory& inventory : inventories) {
    inventory.items.push_back({Seat(1), SourceKind::replica, Generation(1), Step(40), SlotState::sealed, 7});
    inventory.committed = Step(39);
  }
  state.committed = Step(39);
  of_node_2.committed = Step(40);
  inventories.push_back(of_node_2);
  nodes.pop_back();  // a spare too few
  const auto lingers = [&] { return must_linger({spec, state, inventories, nodes, cordoned}, life(2)); };
  EXPECT_TRUE(lingers());
  const Wait wait = waits(restore());
  EXPECT_TRUE(wait.without_deadline);
  EXPECT_EQ(wait.committed, Step(40));
  state.committed = wait.committed;
  EXPECT_FALSE(lingers());
}

// All is equal on all seats, nothing of seat 1 is left with the members, and node 2 lingers.
class LingeringAmongPaths : public Lingering {
 protected:
  LingeringAmongPaths() {
    for (Inventory& inventory : inventories) declare_equal(inventory);
    declare_equal(of_node_2);
  }
  static void declare_equal(Inventory& inventory) {
    for (const InventoryItem& one : inventory.items)
      if (one.kind == SourceKind::own_arena) inventory.equal.push_back({{Seat(0), 1, 3}, {{}, 9}, one.seat});
  }
  static bool reads_paths(const JobState& next) {
    return std::ranges::any_of(
        next.sources, [](const Source& source) { return source.kind == SourceKind::path && source.seat == Seat(1); });
  }
};

TEST_F(LingeringAmongPaths, WhatOthersDeclaredEqualDoesNotStandInForItsProvenCopy) {
  EXPECT_EQ(waits(restore()).what, "inventory of node 2, which was evicted and may hold the only copies");
  EXPECT_TRUE(must_linger({spec, state, inventories, nodes, cordoned}, life(2)));
  inventories.push_back(of_node_2);
  nodes = {record(0, 0), record(1, 0), record(2, 0), record(3, 1)};  // a spare too few
  EXPECT_TRUE(must_linger({spec, state, inventories, nodes, cordoned}, life(2)));
  nodes.push_back(record(4, 1));
  const JobState next = moved(restore());
  const auto of_seat_1 = std::ranges::find(next.sources, Seat(1), &Source::seat);
  EXPECT_EQ(of_seat_1->kind, SourceKind::replica);
  EXPECT_EQ(of_seat_1->from, life(2));
}

TEST_F(LingeringAmongPaths, ThenTheyAreTheLastResort) {
  forget(life(2));
  const Decision decision = restore();
  const JobState next = moved(decision);
  EXPECT_EQ(next.phase, JobPhase::restoring);
  EXPECT_TRUE(reads_paths(next));
  EXPECT_TRUE(has(std::get<StateMove>(decision).why, "nothing of its own is left"))
      << std::get<StateMove>(decision).why;
}

TEST_F(LingeringAmongPaths, OneThatNeverReportsIsNotWaitedForForEver) {
  QuiescingView view{spec, state, inventories, nodes, cordoned};
  view.lingering_late = true;
  EXPECT_TRUE(reads_paths(moved(decide_restore(view, life(0)))));
}

TEST_F(LingeringAmongPaths, AnEarlierStepThatIsProvenIsBetter) {
  forget(life(2));
  for (std::uint32_t seat = 0; seat < 3; ++seat)
    inventories[0].items.push_back({Seat(seat), seat == 0 ? SourceKind::own_arena : SourceKind::replica, Generation(1),
                                    Step(39), SlotState::sealed, 7});
  state.committed = Step(40);
  const JobState next = moved(restore());
  EXPECT_EQ(next.resume, Step(39));
  EXPECT_EQ(std::ranges::find(next.sources, Seat(1), &Source::seat)->kind, SourceKind::replica);
}

TEST_F(Lingering, ItDoesNotWaitForNobody) {
  state.evicted.push_back(life(0));
  nodes = {record(2, 0)};
  EXPECT_FALSE(must_linger({spec, state, {}, nodes, {}}, life(2)));
  nodes.push_back(record(3, 1));
  EXPECT_TRUE(must_linger({spec, state, {}, nodes, {}}, life(2)));
}

TEST_F(Lingering, WhatItHeldIsStruckOutWhenItIsGone) {
  inventories.push_back(of_node_2);
  state = moved(restore());
  const std::vector<NodeLife> gone{life(1), life(2)};
  const std::vector<Struck> struck{{life(2), Seat(1), SourceKind::replica, Generation(1), Step(40)}};
  EXPECT_EQ(gone_sources(state, {}, gone), struck);
  EXPECT_TRUE(gone_sources(state, {}, std::vector{life(1)}).empty());
  EXPECT_TRUE(gone_sources(state, std::vector{life(3)}, gone).empty());  // it has been read
  JobState elsewhere = state;
  const auto read = std::ranges::find(elsewhere.sources, life(2), &Source::from);
  elsewhere.sources.insert(read + 1,
                           {Seat(1), SourceKind::replica, life(0), Generation(1), Step(40), {4096, kStreamEnd}});
  EXPECT_EQ(gone_sources(elsewhere, {}, gone), struck);
  elsewhere.sources[2].extent = {};
  EXPECT_TRUE(gone_sources(elsewhere, {}, gone).empty()) << "it can be read there";
  elsewhere.sources[2].kind = SourceKind::path;
  EXPECT_EQ(gone_sources(elsewhere, {}, gone), struck) << "nothing proves that path any more";
  state.phase = JobPhase::running;
  EXPECT_TRUE(gone_sources(state, {}, gone).empty());
}

TEST_F(Recovery, TheOperatorAndALayoutConflictEndTheJob) {
  EXPECT_TRUE(has(moved(open(cause(FaultKind::operator_stop, std::nullopt))).verdict, "operator_stop (detail)"));
  const JobState ended = moved(open(cause(FaultKind::layout_conflict, std::nullopt, 2)));
  EXPECT_EQ(ended.phase, JobPhase::failed);
  EXPECT_EQ(ended.causes.size(), 1u);
}

TEST_F(Recovery, GenerationsEndBeforeTheirNumberDoes) {
  state.generation = Generation(kGenerationMax);
  EXPECT_EQ(moved(open(cause(FaultKind::node_lost, life(1)))).phase, JobPhase::failed);
}

TEST_F(Recovery, FinishedWhenEverySeatIs) {
  const std::vector<Seat> two{Seat(2), Seat(0)};
  const Wait wait = waits(decide_finished(state, two, life(0)));
  EXPECT_EQ(wait.what, "seat 1 to finish");
  const std::vector<Seat> all{Seat(2), Seat(0), Seat(1)};
  EXPECT_EQ(moved(decide_finished(state, all, life(0))).phase, JobPhase::finished);
  state.phase = JobPhase::quiescing;
  waits(decide_finished(state, all, life(0)));
  waits(decide_running(state, {}, life(0)));
  state.phase = JobPhase::restoring;
  EXPECT_TRUE(has(waits(restore()).what, "restoring"));
}

}  // namespace
}  // namespace pawl::job
