// Imports on one node: the fetches are real, their sources are the test's.
#include "job/daemon/imports.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "job/daemon/test_imports.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Generation kSlotGeneration{1};
constexpr Step kStep{41};

// Node 0 with seat 0, in the recovery to generation 2.
class Restores : public ImportingNode {
 protected:
  Restores() : ImportingNode(2, kStep) {
    node.context.address = "127.0.0.1:100";
    node.state.seats[1].life = test_life(1, 6);
    node.state.leader = test_life(1, 6);  // so this node only reports
    process.pid = 0;                      // nobody's copy threads are in the way
  }
  void begin(SourceKind kind, NodeLife from = test_life(1, 6)) {
    node.state.sources = {{Seat(0), kind, from, kSlotGeneration, kStep},
                          {Seat(1), SourceKind::own_arena, test_life(1, 6), kSlotGeneration, kStep}};
    node.run_in(JobPhase::restoring);
    memory.freeze_all();
    imports.begin();
  }
  // The slot of the step in the seat's own arena, as the pawld before this one left it.
  Slot own_slot() { return (*memory.arena_for(test_arena(ArenaKind::own, Seat(0))))->arena.slot(0); }
  void leave(SlotState state) {
    memory.freeze_all();
    const Slot slot = own_slot();
    ASSERT_TRUE(slot.open_frozen(kSlotGeneration, kStep, 64 * kStep.value));
    for (std::uint32_t i = 0; i < (state == SlotState::sealed ? kTestBuckets : 1); ++i) capture_bucket(slot, i);
    if (state == SlotState::sealed) {
      ASSERT_TRUE(slot.seal_frozen(kSlotGeneration, kStep));
    }
  }
  bool nothing_is_fetched() {
    real_clock().sleep(kTestQuiet);
    return world.network.asked().empty();
  }
  // The source's end of the fetch.
  PeerEnd welcome() {
    PeerEnd source = world.network.accept();
    hello = source.next<Hello>();
    source.say(WelcomeMessage{NodeId(1), Incarnation(6)});
    asked = source.next<FetchMessage>();
    return source;
  }
  // The slot is open, and its buckets are asked for.
  void begin_slot(PeerEnd& source) {
    say_slot_begin(source, kSlotGeneration, kStep, Seat(0));
    ASSERT_TRUE(posted.run_until([&] { return imports.fills(Seat(0)); }));
    (void)begin_range(source, kSlotGeneration, kStep, Seat(0));
  }
  void say_whole_slot(PeerEnd& source) {
    begin_slot(source);
    for (std::uint32_t i = 0; i < kTestBuckets; ++i) say_slot_bucket(source, kStep, i);
  }

  Hello hello;
  FetchMessage asked;
};

TEST_F(Restores, WhatLiesHereIsNotFetched) {
  leave(SlotState::sealed);
  begin(SourceKind::own_arena, test_life(0));
  EXPECT_TRUE(imports.has(Seat(0)));
  EXPECT_FALSE(imports.has(Seat(1)));  // another node's
  ASSERT_TRUE(own_slot().empty_frozen());
  begin(SourceKind::nothing);
  EXPECT_TRUE(imports.has(Seat(0)));
  begin(SourceKind::replica);
  EXPECT_FALSE(imports.has(Seat(0)));
  node.state.sources.clear();
  (void)node.learn();
  imports.begin();
  EXPECT_TRUE(imports.has(Seat(0)));
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched());
}

// Seat 0 of another world goes on from what was seat 7.
TEST_F(Restores, InAnotherWorldTheSlotOfTheSeatBeforeIsFetchedAndKept) {
  node.state.seats[0].before = Seat(7);
  begin(SourceKind::replica);
  EXPECT_FALSE(imports.has(Seat(0)));
  imports.start_waiting();
  PeerEnd source = welcome();
  EXPECT_EQ(asked.seat, Seat(7));
  begin_slot(source);
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) say_slot_bucket(source, kStep, i);
  ASSERT_TRUE(posted.run_until([&] { return imports.has(Seat(0)); }));
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), nullptr);
  const ArenaHandle kept = memory.find(ArenaKind::own, Seat(7));
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->arena.spec().seat, Seat(7));
  EXPECT_TRUE(imports.fetch_of(Seat(0)));
  node.control.swaps.clear();
  begin(SourceKind::own_arena, test_life(0));
  EXPECT_TRUE(imports.has(Seat(0))) << "it lies here";
  ASSERT_TRUE(kept->arena.slot(0).empty_frozen());
  begin(SourceKind::own_arena, test_life(0));
  const auto next = reported();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->struck.front().seat, Seat(7)) << "strikes speak of the seat before";
  EXPECT_EQ(next->causes.back().seat, Seat(0));
}

// A trainer may copy what has come once the fetch has opened the slot, and not what a capture or another pawld left.
TEST_F(Restores, ASlotFillsFromWhereItsFetchHasOpenedItUntilItIsWhole) {
  leave(SlotState::dirty);
  begin(SourceKind::replica);
  const Slot slot = own_slot();
  EXPECT_TRUE(slot.bucket_ready(0, kSlotGeneration, kStep));
  imports.start_waiting();
  PeerEnd source = welcome();
  real_clock().sleep(kTestQuiet);
  posted.run();
  EXPECT_FALSE(imports.fills(Seat(0)));
  say_slot_begin(source, kSlotGeneration, kStep, Seat(0));
  ASSERT_TRUE(posted.run_until([&] { return imports.fills(Seat(0)); }));
  EXPECT_FALSE(slot.bucket_ready(0, kSlotGeneration, kStep));
  Slot filling;
  std::uint32_t index = 9;
  ASSERT_TRUE(find_filling(memory.find(ArenaKind::own, Seat(0))->arena, kSlotGeneration, kStep, filling, index));
  EXPECT_EQ(index, 0u);
  (void)begin_range(source, kSlotGeneration, kStep, Seat(0));
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) {
    EXPECT_FALSE(imports.has(Seat(0)));
    say_slot_bucket(source, kStep, i);
    ASSERT_TRUE(eventually([&] { return slot.bucket_ready(i, kSlotGeneration, kStep); }));
  }
  ASSERT_TRUE(posted.run_until([&] { return imports.has(Seat(0)); }));
  imports.end();
  EXPECT_FALSE(imports.fills(Seat(0)));
}

TEST_F(Restores, AReplicaIsFetchedFromItsHolder) {
  begin(SourceKind::replica);
  imports.start_waiting();
  PeerEnd source = welcome();
  EXPECT_EQ(world.network.asked(), std::vector<Address>({{"127.0.0.1", 101}}));
  EXPECT_EQ(hello.purpose, Purpose::fetch);
  EXPECT_EQ(hello.expected, Incarnation(6));
  EXPECT_EQ(asked.seat, Seat(0));
  EXPECT_EQ(asked.from, FetchFrom::replica);
  EXPECT_EQ(asked.slot_generation, kSlotGeneration);
  EXPECT_EQ(asked.step, kStep);
  say_whole_slot(source);
  ASSERT_TRUE(posted.run_until([&] { return imports.has(Seat(0)); }));
  EXPECT_GE(node.drives, 1);
  const ArenaHandle arena = memory.find(ArenaKind::own, Seat(0));
  ASSERT_NE(arena, nullptr);
  Slot slot;
  std::uint32_t index = 0;
  ASSERT_TRUE(find_sealed(arena->arena, kSlotGeneration, kStep, slot, index));
  EXPECT_TRUE(holds_bytes_of(slot, kStep));
  node.pass(20ms);
  EXPECT_EQ(node.control.tells, 1);  // for `pawl events`
  EXPECT_FALSE(reported());
  imports.start_waiting();
  EXPECT_TRUE(posted.run_until([this] { return imports.idle(); }));
  EXPECT_EQ(world.network.asked().size(), 1u);  // once
}

TEST_F(Restores, AnotherNodesOwnArenaMayBeTheSource) {
  begin(SourceKind::own_arena, test_life(1, 6));
  imports.start_waiting();
  PeerEnd source = welcome();
  EXPECT_EQ(asked.from, FetchFrom::own);
}

TEST_F(Restores, AReplicaOnThisNodeIsFetchedFromItself) {
  begin(SourceKind::replica, test_life(0));
  imports.start_waiting();
  PeerEnd source = welcome();
  EXPECT_EQ(world.network.asked(), std::vector<Address>({{"127.0.0.1", 100}}));
}

// Node 1 has gone on to another life, whose address nobody knows; this node has a replica of its own.
TEST_F(Restores, AllSourcesWhoseAddressesAreKnownAreReadFrom) {
  begin(SourceKind::replica, test_life(1, 7));
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched());
  node.state.sources.insert(node.state.sources.begin() + 1,
                            {Seat(0), SourceKind::replica, test_life(0), kSlotGeneration, kStep, {0, 4096}});
  (void)node.learn();
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched()) << "it has only a part";
  node.state.sources[1].extent = {};
  (void)node.learn();
  imports.start_waiting();
  PeerEnd source = welcome();
  EXPECT_EQ(world.network.asked(), std::vector<Address>({{"127.0.0.1", 100}}));
  say_whole_slot(source);
  EXPECT_TRUE(posted.run_until([&] { return imports.has(Seat(0)); }));
}

// It was evicted, and sits nowhere. Who does not follow all registrations reads its own.
TEST_F(Restores, TheAddressOfASourceWithoutASeatIsRead) {
  node.context.mirror.nodes.forget({});
  const NodeLife lingers = test_life(5, 3);
  begin(SourceKind::replica, lingers);
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched());
  EXPECT_EQ(node.context.watched.wanted, (std::map<NodeLife, Haste>{{lingers, Haste::now}}));
  NodeRecord record;
  record.life = test_life(5, 4);
  record.address = "127.0.0.1:105";
  node.context.mirror.nodes.note_read(record);
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched()) << "that is another life";
  record.life = lingers;
  node.context.mirror.nodes.note_read(record);
  imports.start_waiting();
  const PeerEnd source = world.network.accept();
  EXPECT_EQ(world.network.asked(), std::vector<Address>({{"127.0.0.1", 105}}));
  imports.end();
  EXPECT_TRUE(posted.run_until([&] { return imports.idle(); }));
}

TEST_F(Restores, OfASourceAPartMayBeStruckOut) {
  begin(SourceKind::replica);
  imports.start_waiting();
  PeerEnd source = welcome();
  say_slot_begin(source, kSlotGeneration, kStep, Seat(0));
  ASSERT_TRUE(posted.run_until([&] { return imports.fills(Seat(0)); }));
  (void)source.next<FetchMessage>();
  source.say(BucketsBadMessage{1, 1, "where it lies: bucket 1: checksum differs"});
  std::optional<JobState> next;
  ASSERT_TRUE(posted.run_until([&] {
    next = reported();
    return next.has_value();
  }));
  EXPECT_EQ(next->struck, std::vector<Struck>(
                              {{test_life(1, 6), Seat(0), SourceKind::replica, kSlotGeneration, kStep, {4096, 8192}}}));
}

// Others may read the rest of it in this recovery; in the next one it would count as a copy.
TEST_F(Restores, ASlotThatIsWrongInAPartStaysUntilTheJobRuns) {
  leave(SlotState::sealed);
  memory.empty_struck(
      std::vector<Struck>{{test_life(0), Seat(0), SourceKind::own_arena, kSlotGeneration, kStep, {0, 4096}}},
      node.context.self);
  EXPECT_EQ(own_slot().word().state, SlotState::sealed);
  const std::vector<LineageEntry> lineage{{Generation(2), kStep}};
  memory.unfreeze_all(lineage, Generation(2));
  EXPECT_TRUE(memory.inventory().empty());
  leave(SlotState::sealed);
  memory.unfreeze_all(lineage, Generation(3));
  EXPECT_EQ(memory.inventory().size(), 1u);
}

// The seat has its bytes from elsewhere; but that two which should be alike are not is told.
TEST_F(Restores, APathThatDiffersIsToldAlsoWhereNothingNeedsIt) {
  node.state.sources = {{Seat(0), SourceKind::replica, test_life(1, 6), kSlotGeneration, kStep, {4096, kStreamEnd}},
                        {Seat(0), SourceKind::path, test_life(1, 6), kSlotGeneration, kStep, {0, 4096}, Seat(1)},
                        {Seat(0), SourceKind::replica, test_life(1, 6), kSlotGeneration, kStep},
                        {Seat(1), SourceKind::own_arena, test_life(1, 6), kSlotGeneration, kStep}};
  node.run_in(JobPhase::restoring);
  memory.freeze_all();
  imports.begin();
  imports.start_waiting();
  PeerEnd own = welcome();
  say_slot_begin(own, kSlotGeneration, kStep, Seat(0));
  const auto say_sums = [](PeerEnd& source, BucketRange range, std::uint32_t change) {
    EXPECT_TRUE(source.next<FetchMessage>().sums);
    say_range_begin(source, kSlotGeneration, kStep, Seat(0));
    std::vector<std::uint32_t> sums;
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i)
      sums.push_back(crc32c(bucket_bytes(kStep, i, test_bucket_bytes(i))) ^ change);
    sums.push_back(crc32c(std::as_bytes(std::span(sums))));
    source.say_bytes(std::as_bytes(std::span(sums)));
  };
  const auto say_buckets = [](PeerEnd& source, BucketRange range) {
    say_range_begin(source, kSlotGeneration, kStep, Seat(0));
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i) say_slot_bucket(source, kStep, i);
  };
  ASSERT_TRUE(posted.run_until([&] { return imports.fills(Seat(0)); }));
  say_sums(own, {0, kTestBuckets}, 0);
  (void)own.next<FetchMessage>();
  say_buckets(own, {1, kTestBuckets - 1});
  PeerEnd path = world.network.accept();
  (void)path.next<Hello>();
  path.say(WelcomeMessage{NodeId(1), Incarnation(6)});
  say_sums(path, {0, 1}, 1);
  PeerEnd whole = welcome();
  say_buckets(whole, {0, 1});
  ASSERT_TRUE(posted.run_until([&] { return imports.has(Seat(0)); }));
  node.pass(20ms);
  EXPECT_EQ(node.control.tells, 2) << "restored, and the difference";
  EXPECT_FALSE(reported());
}

// Its sums are in the own arena, which is to be filled: a spare can read them there.
TEST_F(Restores, PathsThatOnlyTheOwnArenaHereCouldProveAreReadByASpare) {
  leave(SlotState::sealed);
  node.state.sources = {{Seat(0), SourceKind::own_arena, test_life(0), kSlotGeneration, kStep, {4096, kStreamEnd}},
                        {Seat(0), SourceKind::path, test_life(1, 6), kSlotGeneration, kStep, {}, Seat(1)},
                        {Seat(1), SourceKind::own_arena, test_life(1, 6), kSlotGeneration, kStep}};
  node.run_in(JobPhase::restoring);
  imports.begin();
  const std::optional<JobState> next = reported();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->causes.back().kind, FaultKind::node_lost);
  EXPECT_EQ(next->causes.back().node, test_life(0));
  EXPECT_TRUE(nothing_is_fetched());
}

TEST_F(Restores, NothingIsFetchedWhileTheTrainerMayStillCopy) {
  process.pid = 77;
  process.seated = Generation(1);
  begin(SourceKind::replica);
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched());
  trainer.asks(JoinMessage{});  // its copy threads are joined
  imports.start_waiting();
  (void)welcome();
}

// The command that started it has ended; what trained has not.
TEST_F(Restores, NothingIsFetchedWhileAProcessOutlivesItsCommand) {
  process.attached = {static_cast<std::uint64_t>(getpid()), *process_start_time(getpid())};
  begin(SourceKind::replica);
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched());
  process.attached.start_time += 1;  // it is gone, and its number is another's
  imports.start_waiting();
  (void)welcome();
}

TEST_F(Restores, NothingHoldsUpAProcessThatNeverHadASeat) {
  process.pid = 77;
  begin(SourceKind::replica);
  imports.start_waiting();
  (void)welcome();
}

TEST_F(Restores, ASourceThatFailsIsReportedAndStruckOut) {
  begin(SourceKind::replica);
  imports.start_waiting();
  welcome().say(PeerRefusedMessage{PeerRefusal::missing, "no sealed slot"});
  std::optional<JobState> next;
  ASSERT_TRUE(posted.run_until([&] {
    next = reported();
    return next.has_value();
  }));
  EXPECT_FALSE(imports.has(Seat(0)));
  ASSERT_FALSE(next->causes.empty());
  EXPECT_EQ(next->causes.back().kind, FaultKind::corrupt_source);
  EXPECT_EQ(next->causes.back().node, test_life(1, 6));
  EXPECT_EQ(next->causes.back().seat, Seat(0));
  EXPECT_NE(next->causes.back().detail.find("no sealed slot"), std::string::npos);
  EXPECT_EQ(next->struck,
            std::vector<Struck>({{test_life(1, 6), Seat(0), SourceKind::replica, kSlotGeneration, kStep}}));
}

TEST_F(Restores, WhoeverCanNotFetchGivesUpItsSeatsAndStrikesOutNobody) {
  const ArenaHandle mine = *memory.arena_for(test_arena(ArenaKind::own, Seat(0), 9));
  capture_step(mine->arena.slot(0), kSlotGeneration, Step(40));
  begin(SourceKind::replica);
  imports.start_waiting();
  PeerEnd source = welcome();
  say_slot_begin(source, kSlotGeneration, kStep, Seat(0));
  std::optional<JobState> next;
  ASSERT_TRUE(posted.run_until([&] {
    next = reported();
    return next.has_value();
  }));
  EXPECT_EQ(next->phase, JobPhase::quiescing);  // another node may do it: the job does not end
  EXPECT_EQ(next->causes.back().kind, FaultKind::node_lost);
  EXPECT_EQ(next->causes.back().node, test_life(0));
  EXPECT_NE(next->causes.back().detail.find("seat 0 can't be restored here: "), std::string::npos);
  EXPECT_TRUE(next->struck.empty());
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), mine);
}

TEST_F(Restores, WhatArrivesAfterItsGenerationCountsForNothing) {
  begin(SourceKind::replica);
  imports.start_waiting();
  PeerEnd source = welcome();
  begin_slot(source);
  node.state.generation = Generation(3);
  node.learn(JobPhase::quiescing);
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) say_slot_bucket(source, kStep, i);
  ASSERT_TRUE(posted.run_until([this] { return world.tasks.all_ended(); }));
  posted.run();
  EXPECT_FALSE(imports.has(Seat(0)));
  node.pass(20ms);
  EXPECT_EQ(node.control.tells, 0);
}

TEST_F(Restores, AFailureAfterItsGenerationIsNobodysFault) {
  begin(SourceKind::replica);
  imports.start_waiting();
  node.state.generation = Generation(3);
  node.learn(JobPhase::quiescing);
  welcome().say(PeerRefusedMessage{PeerRefusal::missing, "no sealed slot"});
  ASSERT_TRUE(posted.run_until([this] { return world.tasks.all_ended(); }));
  posted.run();
  EXPECT_FALSE(reported());
}

// An arena of gigabytes takes seconds to make, and a source may be slow to answer: no further recovery waits for that.
TEST_F(Restores, OnlyAFetchThatTouchesMemoryIsWaitedFor) {
  begin(SourceKind::replica);
  imports.start_waiting();
  PeerEnd source = welcome();
  EXPECT_TRUE(imports.idle());
  say_slot_begin(source, kSlotGeneration, kStep, Seat(0));
  ASSERT_TRUE(posted.run_until([this] { return !imports.idle(); }));
  imports.end();
  EXPECT_TRUE(posted.run_until([this] { return imports.idle() && node.drives > 0; }));  // who waits for that goes on
}

TEST_F(Restores, EndingIsNoFault) {
  begin(SourceKind::replica);
  imports.start_waiting();
  PeerEnd source = welcome();
  imports.end();
  EXPECT_TRUE(source.is_closed());
  ASSERT_TRUE(posted.run_until([this] { return world.tasks.all_ended(); }));
  posted.run();
  EXPECT_FALSE(imports.has(Seat(0)));
  EXPECT_FALSE(reported());
}

TEST_F(Restores, AFailureOnceTheJobRunsIsNobodysFault) {
  begin(SourceKind::replica);
  imports.start_waiting();
  PeerEnd source = welcome();
  node.learn(JobPhase::running);  // the pawld before us had said that we are ready
  source.say(PeerRefusedMessage{PeerRefusal::missing, "no sealed slot"});
  ASSERT_TRUE(posted.run_until([this] { return world.tasks.all_ended(); }));
  posted.run();
  EXPECT_FALSE(reported());
}

// --- A pawld that restarts in `restoring`: the rows of the table in imports.h

TEST_F(Restores, AfterARestartAWholeSlotIsNotFetchedAgain) {
  leave(SlotState::sealed);
  begin(SourceKind::replica);
  EXPECT_TRUE(imports.has(Seat(0)));
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched());
  EXPECT_TRUE(holds_bytes_of(own_slot(), kStep));  // nobody has touched what a trainer may be reading
}

TEST_F(Restores, AfterARestartAHalfSlotIsFetchedFromItsStartIntoTheSamePlace) {
  leave(SlotState::dirty);
  begin(SourceKind::replica);
  EXPECT_FALSE(imports.has(Seat(0)));
  imports.start_waiting();
  PeerEnd source = welcome();
  say_whole_slot(source);
  ASSERT_TRUE(posted.run_until([&] { return imports.has(Seat(0)); }));
  EXPECT_TRUE(holds_bytes_of(own_slot(), kStep));
}

TEST_F(Restores, AfterARestartASlotWithAWrongTableIsFetchedAgain) {
  leave(SlotState::sealed);
  own_slot().buckets()[1].crc32c ^= 1;
  begin(SourceKind::replica);
  EXPECT_FALSE(imports.has(Seat(0)));
}

TEST_F(Restores, ATrainerOfBeforeTheRestartIsWaitedForUntilItHasAttached) {
  process.pid = 77;
  process.inherited = true;
  begin(SourceKind::replica);
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched());
  process.inherited = false;
  process.seated = Generation(1);  // it is still in the generation before: its threads may copy
  imports.start_waiting();
  EXPECT_TRUE(nothing_is_fetched());
  process.seated = Generation(2);  // it has joined this one, and waits for the slot
  imports.start_waiting();
  (void)welcome();
}

TEST_F(Restores, AStepThatIsNotInTheOwnArenaAnyMoreIsReported) {
  begin(SourceKind::own_arena, test_life(0));  // its segment was refused when it was adopted
  EXPECT_FALSE(imports.has(Seat(0)));
  const std::optional<JobState> next = reported();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->struck,
            std::vector<Struck>({{test_life(0), Seat(0), SourceKind::own_arena, kSlotGeneration, kStep}}));
}

// A release that knows how to read it may have planned so.
TEST_F(Restores, AStateInStorageIsRefused) {
  begin(SourceKind::storage, {});
  imports.start_waiting();
  EXPECT_FALSE(imports.has(Seat(0)));
  const std::optional<JobState> next = reported();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->causes.back().kind, FaultKind::node_lost);
  EXPECT_EQ(next->causes.back().node, test_life(0));
  EXPECT_NE(next->causes.back().detail.find("seat 0 is in storage"), std::string::npos);
  EXPECT_TRUE(nothing_is_fetched());
}

TEST_F(Restores, ASlotThatProvedWrongIsEmptiedAndAnotherTakesItsPlace) {
  leave(SlotState::sealed);
  const Struck own{test_life(0), Seat(0), SourceKind::own_arena, kSlotGeneration, kStep};
  const Struck elsewhere{test_life(1, 6), Seat(0), SourceKind::own_arena, kSlotGeneration, kStep};
  memory.empty_struck(std::vector<Struck>{elsewhere}, node.context.self);
  EXPECT_EQ(own_slot().word().state, SlotState::sealed);
  memory.empty_struck(std::vector<Struck>{own}, node.context.self);
  EXPECT_TRUE(memory.inventory().empty());
  begin(SourceKind::replica);
  imports.start_waiting();
  PeerEnd source = welcome();
  say_whole_slot(source);
  ASSERT_TRUE(posted.run_until([&] { return imports.has(Seat(0)); }));
  memory.unfreeze_all(std::vector<LineageEntry>{{Generation(2), kStep}}, Generation(2));
  EXPECT_EQ(memory.inventory().size(), 1u);  // it stays when the job runs
}

}  // namespace
}  // namespace pawl::job
