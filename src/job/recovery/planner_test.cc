#include "job/recovery/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "job/recovery/lineage.h"

namespace pawl::job {
namespace {

NodeLife life(std::uint32_t node) {
  return {NodeId(node), Incarnation(node + 100)};
}
InventoryItem item(std::uint32_t seat, SourceKind kind, std::uint64_t step, SlotState state = SlotState::sealed,
                   std::uint64_t generation = 1, std::uint64_t digest = 7) {
  return {Seat(seat), kind, Generation(generation), Step(step), state, digest};
}
constexpr auto kOwn = SourceKind::own_arena;
constexpr auto kReplica = SourceKind::replica;

// Three seats on three nodes, replicas on the next; steps 40 (everywhere) and 41 (not of seat 2).
class Planner : public testing::Test {
 protected:
  Planner() {
    for (std::uint32_t node = 0; node < 3; ++node) {
      inventories.push_back({life(node), Generation(2), Step(40), {}, {}, 0});
      const std::uint32_t ward = (node + 2) % 3;
      for (const std::uint64_t step : {40u, 41u}) {
        inventories[node].items.push_back(
            item(node, kOwn, step, step == 41 && node == 2 ? SlotState::dirty : SlotState::sealed));
        inventories[node].items.push_back(
            item(ward, kReplica, step, step == 41 && ward == 2 ? SlotState::empty : SlotState::sealed));
      }
      seats.push_back({Seat(node), life(node), "", 0});
    }
  }
  PlanInput input() const {
    return {static_cast<std::uint32_t>(seats.size()),
            inventories,
            lineage,
            struck,
            evicted,
            committed,
            seats,
            replica_count};
  }
  Plan plan() const { return plan_restore(input()); }
  void lose(std::uint32_t node) {
    std::erase_if(inventories, [&](const Inventory& inventory) { return inventory.life == life(node); });
    evicted.push_back(life(node));
  }
  // Step 41 of seat 2: the copies that the constructor leaves out.
  void seal_own_41() { at(2).items[2].state = SlotState::sealed; }
  void seal_replica_41() { at(0).items[3].state = SlotState::sealed; }
  Inventory& at(std::uint32_t node) {
    return *std::find_if(inventories.begin(), inventories.end(),
                         [&](const Inventory& i) { return i.life == life(node); });
  }

  std::vector<Inventory> inventories;
  std::vector<LineageEntry> lineage{{Generation(1), Step(0)}};
  std::vector<Struck> struck;
  std::vector<NodeLife> evicted;
  Step committed;
  std::vector<Member> seats;
  std::uint32_t replica_count = 1;
};

TEST_F(Planner, ATornStepIsPassedOverThoughOnlyOneOfItsCopiesIsMarked) {
  seal_own_41();
  seal_replica_41();
  ASSERT_EQ(plan().resume, Step(41));
  at(0).items[3].torn = true;  // the replica of seat 2
  lose(1);                     // whoever has the other one of another seat
  EXPECT_EQ(plan().resume, Step(40));
  lose(2);  // with the own copy of it
  EXPECT_EQ(plan().resume, Step(0)) << "two of three are gone";
}

TEST_F(Planner, ACommittedStepThatIsTornIsLeftForAnOlderOneOrRefusedWithTheReason) {
  seal_own_41();
  seal_replica_41();
  committed = Step(41);
  at(2).items[2].torn = true;  // own, of seat 2
  Plan p = plan();
  EXPECT_EQ(p.resume, Step(40));
  ASSERT_EQ(p.lost.size(), 1u);
  const std::string torn = "was written while it was copied, which was found only when the copy was sealed";
  EXPECT_EQ(p.lost[0],
            "seat 2: no sealed copy of step 41 (own at node 2: " + torn + "; replica at node 0: " + torn + ")");
  for (Inventory& inventory : inventories)
    std::erase_if(inventory.items, [](const InventoryItem& one) { return one.step == Step(40); });
  p = plan();
  EXPECT_EQ(p.resume, Step(0));
  ASSERT_EQ(p.lost.size(), 1u);
  EXPECT_NE(p.lost[0].find(torn), std::string::npos) << p.lost[0];
}

TEST_F(Planner, TakesTheGreatestWholeStepFromTheNearestSources) {
  const Plan p = plan();
  EXPECT_EQ(p.resume, Step(40));
  EXPECT_EQ(p.committed, Step(40));
  EXPECT_TRUE(p.lost.empty());
  EXPECT_TRUE(p.notes.empty());
  ASSERT_EQ(p.sources.size(), 3u);
  for (std::uint32_t seat = 0; seat < 3; ++seat)
    EXPECT_EQ(p.sources[seat], (Source{Seat(seat), kOwn, life(seat), Generation(1), Step(40)}));
}

// --- Other worlds

TEST_F(Planner, AnotherWorldsSeatsAreReadFromTheSlotsOfTheSeatsBeforeThem) {
  const std::vector<Seat> wished{Seat(2), Seat(0)};
  PlanInput of_two = input();
  of_two.wished = wished;
  const Plan p = plan_restore(of_two);
  EXPECT_EQ(p.resume, Step(40));
  EXPECT_TRUE(p.lost.empty());
  EXPECT_EQ(p.sources, (std::vector<Source>{{Seat(0), kOwn, life(2), Generation(1), Step(40)},
                                            {Seat(1), kOwn, life(0), Generation(1), Step(40)}}));
  // Once it is the state's world, the same slots go by the same numbers.
  seats = {{Seat(0), life(2), "", 0, "", "", Seat(2)}, {Seat(1), life(0), "", 0, "", "", Seat(0)}};
  EXPECT_EQ(plan().sources, p.sources);
}

TEST_F(Planner, WhatNobodyGoesOnFromHoldsNoStepBack) {
  const std::vector<Seat> wished{Seat(0), Seat(1)};  // step 41 is not of seat 2
  PlanInput of_two = input();
  of_two.wished = wished;
  EXPECT_EQ(plan_restore(of_two).resume, Step(41));
}

TEST_F(Planner, InAnotherWorldWhatIsPromisedOfASeatBeforeIsOwedToTheSeat) {
  const std::vector<Seat> wished{Seat(2), Seat(1)};
  seal_own_41();  // and its replica at node 0 lacks it
  PlanInput of_two = input();
  of_two.wished = wished;
  EXPECT_EQ(plan_restore(of_two).resume, Step(40));
  seal_replica_41();
  EXPECT_EQ(plan_restore(of_two).resume, Step(41));
  struck = {{life(0), Seat(2), kReplica, Generation(1), Step(41)}};  // strikes speak of the seat before
  of_two.struck = struck;
  EXPECT_EQ(plan_restore(of_two).resume, Step(40));
  struck = {{life(0), Seat(0), kReplica, Generation(1), Step(41)}};
  of_two.struck = struck;
  EXPECT_EQ(plan_restore(of_two).resume, Step(41));
}

TEST_F(Planner, AnotherWorldsSeatWithoutASeatBeforeIsLost) {
  const std::vector<Seat> wished{Seat(0), Seat(1), Seat(2), Seat(3)};
  PlanInput of_four = input();
  of_four.wished = wished;
  const Plan p = plan_restore(of_four);
  EXPECT_EQ(p.resume, Step(0));
  ASSERT_EQ(p.lost.size(), 1u);
  EXPECT_EQ(p.lost[0],
            "seat 3: no sealed copy of step 40 (own: in no survivor's memory; replica: in no survivor's memory)");
  at(1).items.push_back(item(3, kReplica, 40));
  of_four.inventories = inventories;
  EXPECT_EQ(plan_restore(of_four).resume, Step(40));
  const std::vector<Seat> other{Seat(7), Seat(0)};
  of_four.wished = other;
  EXPECT_TRUE(plan_restore(of_four).lost[0].starts_with("seat 0 (before: seat 7): no sealed copy of step 40"));
}

TEST_F(Planner, ExposureOfAnotherWorldGoesByTheSeatsBefore) {
  seats = {{Seat(0), life(2), "", 0, "", "", Seat(2)}, {Seat(1), life(1), "", 0}};
  const std::vector<NodeId> two{NodeId(2)};
  EXPECT_TRUE(exposure_if(input(), two, Step(40)).recoverable) << "node 0 has a replica of seat 2";
  lose(0);
  const Exposure exposure = exposure_if(input(), two, Step(40));
  EXPECT_FALSE(exposure.recoverable);
  ASSERT_EQ(exposure.lost.size(), 1u);
  EXPECT_TRUE(exposure.lost[0].starts_with("seat 0 (before: seat 2)")) << exposure.lost[0];
}

TEST_F(Planner, TakesAnUncommittedStepThatIsSealedEverywhere) {
  seal_own_41();
  seal_replica_41();
  EXPECT_EQ(plan().resume, Step(41));
  EXPECT_EQ(plan().committed, Step(40));
  EXPECT_TRUE(plan().single_copies.empty());
}

TEST_F(Planner, LeavesAWholeStepThatIsKeptLessWell) {
  seal_own_41();
  EXPECT_EQ(plan().resume, Step(40));
  replica_count = 0;  // then nothing more is promised
  EXPECT_EQ(plan().resume, Step(41));
  EXPECT_TRUE(plan().single_copies.empty());
}

TEST_F(Planner, WhatDiedWithItsNodeIsNotMissed) {
  seal_own_41();
  lose(0);  // with it the place of the replica
  const Plan p = plan();
  EXPECT_EQ(p.resume, Step(41));
  EXPECT_EQ(p.single_copies, (std::vector<Seat>{Seat(0), Seat(2)}));
}

TEST_F(Planner, AReplicaElsewhereIsASourceButNotThePromisedCopy) {
  seal_own_41();
  at(1).items.push_back(item(2, kReplica, 41));
  EXPECT_EQ(plan().resume, Step(40));
}

TEST_F(Planner, WithAnOwnCopyMissingTheReplicaIsNotEnough) {
  seal_replica_41();
  EXPECT_EQ(plan().resume, Step(40));
  lose(2);
  EXPECT_EQ(plan().resume, Step(41));
}

// After a swap the new node holds no replica yet: what it lacks of every step speaks against none.
TEST_F(Planner, AfterASwapALaterStepIsTakenIfNothingElseIsMissing) {
  std::erase_if(at(0).items, [](const InventoryItem& i) { return i.kind == kReplica; });
  EXPECT_EQ(plan().resume, Step(40));
  EXPECT_EQ(plan().single_copies, std::vector<Seat>{Seat(2)});
  seal_own_41();  // 41 now lacks just what 40 lacks
  EXPECT_EQ(plan().resume, Step(41));
  at(1).items[3].state = SlotState::dirty;  // but not if seat 0 would lose its second copy
  EXPECT_EQ(plan().resume, Step(40));
}

// What was committed is found at its full width, even if all who knew of it have died and what is known lies whole.
TEST_F(Planner, ClimbsToTheStepThatIsPromisedAndNoFurther) {
  for (std::uint32_t node = 0; node < 3; ++node) {
    Inventory& there = at(node);
    there.committed = Step(39);
    there.items.push_back(item(node, kOwn, 39));  // whole, each once
    there.items[2].state = SlotState::sealed;     // 41: the same
    there.items[3].state = SlotState::dirty;
  }
  EXPECT_EQ(plan().resume, Step(40));
}

TEST_F(Planner, BeforeTheFirstCommitStepZeroIsKeptBest) {
  seal_own_41();
  for (Inventory& inventory : inventories) {
    inventory.committed = Step(0);
    std::erase_if(inventory.items, [](const InventoryItem& i) { return i.step == Step(40); });
  }
  const Plan p = plan();
  EXPECT_EQ(p.resume, Step(0));
  EXPECT_EQ(p.committed, Step(0));
  EXPECT_TRUE(p.sources.empty());
  at(0).items[1].state = SlotState::sealed;
  EXPECT_EQ(plan().resume, Step(41));
}

// A spare that was seated by this recovery has nothing, or R alone. What was decided stays, or a committed step of
// which nobody knows would be given up for one that is known.
TEST_F(Planner, AFurtherGenerationKeepsWhatTheRecoveryDecided) {
  for (Inventory& inventory : inventories) inventory.committed = Step(0);
  lose(2);
  EXPECT_EQ(plan().resume, Step(40));
  lineage.push_back({Generation(2), Step(40)});
  seats[2].life = life(7);
  inventories.push_back({life(7), Generation(3), Step(0), {}, {}, 0});
  EXPECT_EQ(plan().resume, Step(40));
  at(7).items.push_back(item(2, kOwn, 40));
  EXPECT_EQ(plan().resume, Step(40));
  EXPECT_EQ(plan().single_copies, std::vector<Seat>{Seat(1)});
}

// What was decided may be committed, though nobody knows it: not given up while another source is there.
TEST_F(Planner, AStruckCopyIsNoReasonToGoFurtherBack) {
  seal_own_41();
  seal_replica_41();
  lineage.push_back({Generation(2), plan().resume});
  struck.push_back({life(2), Seat(2), kOwn, Generation(1), Step(41)});
  const Plan p = plan();
  EXPECT_EQ(p.resume, Step(41));
  EXPECT_EQ(p.sources[2].kind, kReplica);
  EXPECT_EQ(p.single_copies, std::vector<Seat>{Seat(2)});
}

// What lies there is sound: it counts as a copy, and is taken where there is no other.
TEST_F(Planner, ASourceThatWasNotReachedComesAfterAllOthers) {
  lose(2);
  at(1).items.push_back(item(2, kReplica, 40));
  const auto taken = [this](std::vector<Unreached> unreached) {
    PlanInput one = input();
    one.unreached = unreached;
    const Plan p = plan_restore(one);
    EXPECT_EQ(p.resume, Step(40));
    EXPECT_EQ(p.single_copies, plan().single_copies);
    return p.sources[2].from;
  };
  EXPECT_EQ(taken({}), life(0));
  EXPECT_EQ(taken({{Seat(1), life(0)}}), life(0)) << "another seat's";
  EXPECT_EQ(taken({{Seat(2), life(0)}}), life(1));
  EXPECT_EQ(taken({{Seat(2), life(0)}, {Seat(2), life(1)}}), life(0));
}

// More replicas than there are other nodes: a copy on each of these, and no more.
TEST_F(Planner, OfTooFewNodesEveryOtherOnePromisesACopy) {
  replica_count = 3;
  seal_own_41();
  EXPECT_EQ(plan().resume, Step(40));
  seal_replica_41();
  EXPECT_EQ(plan().resume, Step(41)) << "the second copies are missing of both steps";
  at(1).items.push_back(item(2, kReplica, 40));
  EXPECT_EQ(plan().resume, Step(40)) << "one of them is not";
}

// A state names no more than that, or it could not be read.
TEST_F(Planner, OfVeryManyPartsThoseAreNamedThatAreNeeded) {
  lose(2);
  const auto add = [this](std::uint32_t node, Extent extent) {
    InventoryItem part = item(2, kReplica, 40);
    part.extent = extent;
    at(node).items.push_back(part);
  };
  at(0).items[1].extent = {0, 1000};
  for (std::uint64_t i = 0; i < 100; ++i) add(0, {i, i + 1});
  add(1, {900, kStreamEnd});
  const std::vector<Source> sources = plan().sources;
  const auto named = sources_of(sources, Seat(2));
  EXPECT_EQ(named.size(), kSourcesMax);
  Extents extents;
  for (const Source& source : named) extents.push_back(source.extent);
  EXPECT_TRUE(holes_in(extents).empty());
}

// Seats 0, 1 and 2 are of one node, seat 3 of the next: the replicas of the first three lie there, its own lies here.
TEST_F(Planner, ANodeMayHaveMoreSeatsThanAnother) {
  seats.clear();
  inventories.clear();
  for (std::uint32_t seat = 0; seat < 4; ++seat) seats.push_back({Seat(seat), life(seat / 3), "", seat % 3});
  for (std::uint32_t node = 0; node < 2; ++node)
    inventories.push_back({life(node), Generation(2), Step(40), {}, {}, 0});
  for (std::uint32_t seat = 0; seat < 4; ++seat) {
    at(seat / 3).items.push_back(item(seat, kOwn, 40));
    at(1 - seat / 3).items.push_back(item(seat, kReplica, 40));
    at(seat / 3).items.push_back(item(seat, kOwn, 41));
  }
  for (std::uint32_t seat = 0; seat < 3; ++seat) at(1).items.push_back(item(seat, kReplica, 41));
  EXPECT_EQ(plan().resume, Step(40)) << "the replica of seat 3 is missing at node 0";
  at(0).items.push_back(item(3, kReplica, 41));
  EXPECT_EQ(plan().resume, Step(41));
  evicted = {life(0)};
  EXPECT_EQ(plan().resume, Step(41));
  EXPECT_EQ(plan().sources[2], (Source{Seat(2), kReplica, life(1), Generation(1), Step(41)}));
  EXPECT_EQ(plan().single_copies, (std::vector<Seat>{Seat(0), Seat(1), Seat(2), Seat(3)}));
}

TEST_F(Planner, TakesTheReplicaOfADeadNode) {
  lose(2);
  const Plan p = plan();
  EXPECT_EQ(p.resume, Step(40));
  EXPECT_EQ(p.sources[2], (Source{Seat(2), kReplica, life(0), Generation(1), Step(40)}));
}

TEST_F(Planner, AnEvictedNodesInventoryIsNoSource) {
  evicted.push_back(life(2));
  EXPECT_EQ(plan().sources[2].from, life(0));
}

TEST_F(Planner, NamesEachLostShardWithThePlaces) {
  lose(2);
  struck.push_back({life(0), Seat(2), kReplica, Generation(1), Step(40)});
  const Plan p = plan();
  EXPECT_EQ(p.resume, Step(0));
  EXPECT_EQ(p.committed, Step(40));
  EXPECT_TRUE(p.sources.empty());
  ASSERT_EQ(p.lost.size(), 1u);
  EXPECT_EQ(p.lost[0], "seat 2: no sealed copy of step 40 (own: node 2 evicted; replica at node 0: struck out)");
}

TEST_F(Planner, WardAndHolderTogetherAreLost) {
  lose(1);
  lose(2);
  const Plan p = plan();
  EXPECT_EQ(p.resume, Step(0));
  ASSERT_EQ(p.lost.size(), 1u);  // seat 2 is at node 0; seat 1's replica was at node 2
  EXPECT_EQ(
      p.lost[0],
      "seat 1: no sealed copy of step 40 (own: node 1 evicted; replica: in no survivor's memory; evicted besides: "
      "node 2)");
}

TEST_F(Planner, SaysWhyEachPlaceWillNotDo) {
  at(0).items = {item(0, kOwn, 38), item(0, kOwn, 39), item(2, kReplica, 40, SlotState::dirty)};
  at(1).items = {item(1, kOwn, 40), item(0, kReplica, 40, SlotState::sealed, 1)};
  at(2).items = {item(2, kOwn, 0, SlotState::empty), item(1, kReplica, 40)};
  lineage.push_back({Generation(2), Step(39)});
  const Plan p = plan();
  ASSERT_EQ(p.lost.size(), 3u);
  EXPECT_EQ(p.lost[0],
            "seat 0: no sealed copy of step 40 (own at node 0: holds step 38,39; replica at node 1: of an abandoned "
            "history, generation 1)");
  EXPECT_EQ(p.lost[2],
            "seat 2: no sealed copy of step 40 (own at node 2: holds no sealed step; replica at node 0: only partly "
            "written)");
}

TEST_F(Planner, GoesBackToAnOlderWholeStepRatherThanStop) {
  for (Inventory& inventory : inventories)
    for (InventoryItem& slot : inventory.items) slot.state = SlotState::sealed;
  for (Inventory& inventory : inventories) inventory.committed = Step(41);
  for (const SourceKind kind : {kOwn, kReplica})
    struck.push_back({kind == kOwn ? life(1) : life(2), Seat(1), kind, Generation(1), Step(41)});
  const Plan p = plan();
  EXPECT_EQ(p.resume, Step(40));
  EXPECT_EQ(p.committed, Step(41));
  EXPECT_EQ(p.sources.size(), 3u);
  ASSERT_EQ(p.lost.size(), 1u);
  EXPECT_EQ(p.lost[0], "seat 1: no sealed copy of step 41 (own at node 1: struck out; replica at node 2: struck out)");
}

TEST_F(Planner, WhatTheCallerKnowsToBeCommittedCounts) {
  committed = Step(45);
  EXPECT_EQ(plan().committed, Step(45));
  EXPECT_EQ(plan().lost.size(), 3u);
  EXPECT_EQ(plan().resume, Step(40));
}

TEST_F(Planner, StrikesAreExact) {
  struck.push_back({life(2), Seat(2), kOwn, Generation(2), Step(40)});                      // another generation
  struck.push_back({life(2), Seat(2), kReplica, Generation(1), Step(40)});                  // another kind
  struck.push_back({{NodeId(2), Incarnation(1)}, Seat(2), kOwn, Generation(1), Step(40)});  // another life
  EXPECT_EQ(plan().sources[2].kind, kOwn);
  struck.push_back({life(2), Seat(2), kOwn, Generation(1), Step(40)});
  EXPECT_EQ(plan().sources[2].kind, kReplica);
}

Source source(std::uint32_t seat, SourceKind kind, std::uint32_t at, Extent extent = {}) {
  return {Seat(seat), kind, life(at), Generation(1), Step(40), extent};
}

// Whoever has to fetch its state may read from all places at once; whose state lies in its own arena has that one.
TEST_F(Planner, ASeatWithoutItsOwnCopyHasAllSourcesTheNearestFirst) {
  replica_count = 2;
  lose(2);
  at(1).items.push_back(item(2, kReplica, 40));
  at(1).items.push_back(item(2, kReplica, 40, SlotState::sealed, 1, 9));  // another layout: they can't fill one slot
  EXPECT_EQ(plan().sources,
            (std::vector{source(0, kOwn, 0), source(1, kOwn, 1), source(2, kReplica, 0), source(2, kReplica, 1)}));
  inventories.push_back({life(5), Generation(2), Step(40), {item(2, kOwn, 40)}, {}, 0});
  PlanInput with = input();
  const std::vector<NodeLife> lingering{life(5)};
  with.lingering = lingering;
  EXPECT_EQ(sources_of(plan_restore(with).sources, Seat(2)).back(), source(2, kOwn, 5));
  const std::vector<Unreached> unreached{{Seat(2), life(0)}};
  with.unreached = unreached;
  EXPECT_EQ(sources_of(plan_restore(with).sources, Seat(2)).back(), source(2, kReplica, 0));
}

TEST_F(Planner, AStrikeTakesItsExtentAndTheRestIsRead) {
  replica_count = 2;
  lose(2);
  struck.push_back({life(0), Seat(2), kReplica, Generation(1), Step(40), {4096, 8192}});
  const Plan alone = plan();
  EXPECT_EQ(alone.resume, Step(0));
  ASSERT_EQ(alone.lost.size(), 1u);
  EXPECT_EQ(alone.lost[0],
            "seat 2: no sealed copy of step 40 (own: node 2 evicted; replica at node 0: has only bytes 0-4095, 8192-)");
  at(1).items.push_back(item(2, kReplica, 40));
  struck.push_back({life(1), Seat(2), kReplica, Generation(1), Step(40), {0, 4096}});
  const Plan together = plan();
  EXPECT_EQ(together.resume, Step(40));
  EXPECT_EQ(together.single_copies, (std::vector{Seat(1), Seat(2)})) << "one byte of it is enough";
  const std::vector<Source> sources(sources_of(together.sources, Seat(2)).begin(),
                                    sources_of(together.sources, Seat(2)).end());
  EXPECT_EQ(sources, (std::vector{source(2, kReplica, 0, {0, 4096}), source(2, kReplica, 0, {8192, kStreamEnd}),
                                  source(2, kReplica, 1, {4096, kStreamEnd})}));
  at(1).items.back().layout_digest = 9;
  EXPECT_EQ(plan().resume, Step(0)) << "parts of two layouts are not one state";
}

TEST_F(Planner, AnInventoryMayListParts) {
  lose(2);
  at(0).items[1].extent = {0, 8192};
  EXPECT_EQ(plan().resume, Step(0));
  at(1).items.push_back(item(2, kReplica, 40));
  at(1).items.back().extent = {8192, kStreamEnd};
  EXPECT_EQ(plan().resume, Step(40));
  EXPECT_EQ(plan().sources.size(), 4u);
}

// Otherwise a step of whose copies one lies there in part would be given up for one that has nothing there, and with the
// other copy's death the state would be gone.
TEST_F(Planner, APartOfACopyIsKeptBetterThanNothingOfIt) {
  seal_own_41();
  seal_replica_41();
  struck.push_back({life(0), Seat(2), kReplica, Generation(1), Step(40), {0, 4096}});
  EXPECT_EQ(plan().resume, Step(41));
  struck.push_back({life(0), Seat(2), kReplica, Generation(1), Step(41), {0, 512}});
  EXPECT_EQ(plan().resume, Step(41)) << "it lacks less";
  struck.back().extent = {512, 8192};
  EXPECT_EQ(plan().resume, Step(40)) << "it lacks other bytes";
  struck.back().extent = {};
  EXPECT_EQ(plan().resume, Step(40)) << "it lacks all";
}

// Two slots of one arena may have the same step, of two generations; one slot is filled from neither half alone.
TEST_F(Planner, PartsOfTwoSlotsAreNoWholeCopy) {
  seal_own_41();
  seal_replica_41();
  lineage.push_back({Generation(2), Step(40)});
  for (Inventory& inventory : inventories)
    for (InventoryItem& one : inventory.items)
      if (one.step == Step(41)) one.slot_generation = Generation(2);
  InventoryItem& first = at(0).items[1];
  first.extent = {0, 8192};
  InventoryItem second = first;
  second.slot_generation = Generation(2);
  second.extent = {8192, kStreamEnd};
  at(0).items[3].extent = {8192, kStreamEnd};
  at(0).items.push_back(second);
  EXPECT_EQ(plan().resume, Step(41)) << "it lacks what the committed one lacks";
  at(0).items[3].extent = {4096, kStreamEnd};
  EXPECT_EQ(plan().resume, Step(41)) << "it lacks less";
  at(0).items[3].extent = {0, 8192};
  EXPECT_EQ(plan().resume, Step(40)) << "it lacks what the later slot of the committed one has";
}

// Looked through pair by pair this took minutes.
TEST_F(Planner, ThousandsOfPartsOfOneSeatAreJoinedAsFewAre) {
  lose(2);
  constexpr std::uint64_t kParts = 20'000;
  at(0).items[1].extent = {0, 1};
  for (std::uint64_t i = 1; i < kParts; ++i) {
    InventoryItem part = item(2, kReplica, 40);
    part.extent = {i * 100 - 99, i + 1 == kParts ? kStreamEnd : i * 100 + 1};
    if (i % 2 == 0) part.slot_generation = Generation(1);
    at(i % 2).items.push_back(part);
    part.layout_digest = 77;  // and as many that belong to none of them
    if (i > 1) at(i % 2).items.push_back(part);
  }
  EXPECT_EQ(plan().resume, Step(40));
  at(1).items.pop_back();
  at(1).items.pop_back();
  EXPECT_EQ(plan().resume, Step(0));
}

TEST_F(Planner, AnotherLayoutIsMentionedAndTheOwnCopyPreferred) {
  at(0).items[1].layout_digest = 8;  // replica of seat 2
  const Plan p = plan();
  EXPECT_EQ(p.sources[2].kind, kOwn);
  ASSERT_EQ(p.notes.size(), 1u);
  EXPECT_EQ(p.notes[0],
            "seat 2: replica at node 0 has another layout than the own copy at node 2 at step 40, which is used");
}

TEST_F(Planner, HostileInventoriesAreNoSources) {
  inventories.push_back({life(9), Generation(2), Step(0), {}, {}, 0});
  at(9).items = {item(3, kOwn, 41), item(4000000000u, kReplica, 41),         item(2, SourceKind::nothing, 41),
                 item(2, kOwn, 0),  item(2, kReplica, 41, SlotState::empty), item(2, static_cast<SourceKind>(9), 41)};
  EXPECT_EQ(plan().resume, Step(40));
  inventories.clear();
  EXPECT_EQ(plan().resume, Step(0));
  EXPECT_TRUE(plan().lost.empty());
}

TEST_F(Planner, TheOrderOfInventoriesDoesNotMatter) {
  at(0).items[1].layout_digest = 8;
  at(1).items.push_back(item(2, kReplica, 40, SlotState::sealed, 1, 9));
  const Plan first = plan();
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    std::shuffle(inventories.begin(), inventories.end(), random);
    for (Inventory& inventory : inventories) std::shuffle(inventory.items.begin(), inventory.items.end(), random);
    EXPECT_EQ(plan().sources, first.sources);
    EXPECT_EQ(plan().notes, first.notes);
  }
}

TEST_F(Planner, ExposureIsThePlanWithoutTheDead) {
  const std::vector<NodeId> one{NodeId(2)};
  Exposure exposure = exposure_if(input(), one, Step(40));
  EXPECT_TRUE(exposure.recoverable);
  EXPECT_EQ(exposure.resume, Step(40));
  EXPECT_EQ(exposure.steps_lost, 0u);
  EXPECT_TRUE(exposure.lost.empty());
  const std::vector<NodeId> two{NodeId(1), NodeId(2)};
  exposure = exposure_if(input(), two, Step(40));
  EXPECT_FALSE(exposure.recoverable);
  EXPECT_EQ(exposure.steps_lost, 40u);
  ASSERT_EQ(exposure.lost.size(), 1u);
  EXPECT_EQ(exposure.lost[0].find("seat 1: no sealed copy of step 40 (own: node 1 evicted"), 0u);
  exposure = exposure_if(input(), {}, Step(43));  // others know of more than the inventories say
  EXPECT_EQ(exposure.steps_lost, 3u);
  // Before the first commit the job starts anew, if anybody is left.
  for (Inventory& inventory : inventories) inventory.committed = Step(0), inventory.items.clear();
  EXPECT_TRUE(exposure_if(input(), two, Step(0)).recoverable);
  const std::vector<NodeId> all{NodeId(0), NodeId(1), NodeId(2)};
  EXPECT_FALSE(exposure_if(input(), all, Step(0)).recoverable);
}

TEST_F(Planner, ExposureResumesAsARecoveryWould) {
  seal_own_41();
  EXPECT_EQ(exposure_if(input(), {}, Step(40)).resume, Step(40));
  const std::vector<NodeId> holder{NodeId(0)};
  EXPECT_EQ(exposure_if(input(), holder, Step(40)).resume, Step(41));
}

TEST_F(Planner, TheDigestTellsPlansApart) {
  const Plan p = plan();
  const std::uint64_t digest = digest_of(p.sources, p.resume);
  EXPECT_EQ(digest, digest_of(p.sources, p.resume));
  EXPECT_NE(digest, digest_of(p.sources, Step(41)));
  for (std::size_t i = 0; i < p.sources.size(); ++i) {
    std::vector<Source> other = p.sources;
    other[i].from = life(8);
    EXPECT_NE(digest_of(other, p.resume), digest);
    other = p.sources;
    other[i].kind = kReplica;
    EXPECT_NE(digest_of(other, p.resume), digest);
  }
}

TEST(Lineage, ALaterGenerationVoidsWhatCameAfterItsResume) {
  std::vector<LineageEntry> lineage;
  append_lineage(lineage, {Generation(1), Step(0)});
  append_lineage(lineage, {Generation(2), Step(40)});
  append_lineage(lineage, {Generation(4), Step(50)});
  EXPECT_TRUE(in_lineage(lineage, Generation(1), Step(40)));
  EXPECT_FALSE(in_lineage(lineage, Generation(1), Step(41)));
  EXPECT_TRUE(in_lineage(lineage, Generation(2), Step(50)));
  EXPECT_FALSE(in_lineage(lineage, Generation(2), Step(51)));
  EXPECT_TRUE(in_lineage(lineage, Generation(4), Step(99)));
  append_lineage(lineage, {Generation(5), Step(45)});
  EXPECT_EQ(lineage.size(), 3u);  // what generation 4 said is implied
  EXPECT_FALSE(in_lineage(lineage, Generation(2), Step(46)));
  EXPECT_FALSE(in_lineage(lineage, Generation(4), Step(46)));
  append_lineage(lineage, {Generation(6), Step(0)});
  EXPECT_EQ(lineage.size(), 1u);
  EXPECT_FALSE(in_lineage(lineage, Generation(1), Step(1)));
}

// Against the plain list that forgets nothing.
TEST(Lineage, DroppingAndMergingLosesNoSlotFromWhichTheJobCouldGoOn) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<LineageEntry> kept;
    std::vector<LineageEntry> all;
    std::uint64_t resume = 0;
    for (std::uint64_t generation = 1; generation < 200; ++generation) {
      resume = random() % 8 == 0 ? resume - std::min<std::uint64_t>(resume, random() % 4) : resume + random() % 4;
      all.push_back({Generation(generation), Step(resume)});
      append_lineage(kept, all.back());
      ASSERT_LE(kept.size(), kLineageMax);
      for (int probe = 0; probe < 20; ++probe) {
        const Generation slot(1 + random() % generation);
        const Step step(random() % (resume + 8));
        if (in_lineage(kept, slot, step)) {
          ASSERT_TRUE(in_lineage(all, slot, step));
        } else if (step.value + 30 >= resume) {
          ASSERT_FALSE(in_lineage(all, slot, step)) << slot.value << " " << step.value;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pawl::job
