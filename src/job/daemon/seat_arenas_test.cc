#include "job/daemon/seat_arenas.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

class ArenasOfSeats : public testing::Test {
 protected:
  ArenasOfSeats() {
    node.context.post = [this](std::function<void()> task) { posted.post(std::move(task)); };
    node.run_in(JobPhase::restoring);
  }
  // What `work` answers on a thread of its own, while the loop's works.
  template <class Work>
  auto on_a_task(Work work) -> decltype(work()) {
    auto answer = std::async(std::launch::async, std::move(work));
    EXPECT_TRUE(
        posted.run_until([&] { return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
    return answer.get();
  }

  // The answer of arenas.own, with the loop's work done meanwhile.
  Result<ArenaHandle> own(const ArenaSpec& wanted) {
    std::optional<Result<ArenaHandle>> answer;
    arenas.own(wanted, [&](Result<ArenaHandle> arena) { answer = std::move(arena); });
    EXPECT_TRUE(posted.run_until([&] { return answer.has_value(); }));
    return std::move(*answer);
  }

  TestNode node{2, 0, real_environment()};
  PostedTasks posted;
  Memory memory{real_shared_memory(), nobody_keeps()};
  SeatArenas arenas{node.context, memory};
  ArenaSpec spec = test_arena(ArenaKind::own, Seat(0), 5);
  ArenaSpec other = test_arena(ArenaKind::own, Seat(0), 6);
};

TEST_F(ArenasOfSeats, TheSameLayoutGetsTheSameArena) {
  const auto first = own(spec);
  ASSERT_TRUE(first);
  capture_step((*first)->arena.slot(0), Generation(1), Step(7));
  const auto second = own(spec);
  ASSERT_TRUE(second);
  EXPECT_EQ(*first, *second);
}

TEST_F(ArenasOfSeats, AnotherLayoutReplacesAnArenaWithoutASnapshot) {
  const auto first = own(spec);
  open_step((*first)->arena.slot(0), Generation(1), Step(7));
  const auto second = own(other);
  ASSERT_TRUE(second);
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0))->arena.spec().layout, "layout 6");
}

TEST_F(ArenasOfSeats, AnotherLayoutMustNotReplaceASnapshot) {
  const auto first = own(spec);
  capture_step((*first)->arena.slot(1), Generation(1), Step(7));
  const auto second = own(other);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::invalid);
  EXPECT_NE(second.error().what.find("the layout of its snapshot differs"), std::string::npos) << second.error().what;
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), *first);
}

// How much is copied at once is each process's own affair, and no part of the layout.
TEST_F(ArenasOfSeats, OtherBucketsMustNotReplaceASnapshotEither) {
  const auto first = own(spec);
  capture_step((*first)->arena.slot(1), Generation(1), Step(7));
  ArenaSpec rebucketed = spec;
  rebucketed.bucket_bytes = 8192;
  const auto second = own(rebucketed);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::invalid);
  for (const char* part : {"8192", "4096", "PAWL_BUCKET_BYTES=4096"})
    EXPECT_NE(second.error().what.find(part), std::string::npos) << second.error().what;
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), *first);
}

TEST_F(ArenasOfSeats, AColdRestartForgetsTheSnapshot) {
  const auto first = own(spec);
  capture_step((*first)->arena.slot(1), Generation(1), Step(7));
  node.state.generation = Generation(2);
  node.state.cold = true;
  node.run_in(JobPhase::restoring);
  EXPECT_TRUE(own(other));
}

// What was captured since then is a snapshot as any other.
TEST_F(ArenasOfSeats, AfterAColdRestartTheSnapshotsOfItsGenerationCount) {
  node.state.generation = Generation(2);
  node.state.cold = true;
  node.run_in(JobPhase::restoring);
  ArenaHandle late;
  arenas.own(spec, [&](const Result<ArenaHandle>& arena) { late = *arena; });
  EXPECT_TRUE(posted.run_until([&] { return late != nullptr; }));
  node.run_in(JobPhase::running);
  capture_step(late->arena.slot(1), Generation(2), Step(7));
  EXPECT_FALSE(own(other));
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), late);
}

// Seconds, for gigabytes: the loop goes on meanwhile, and who asks again does not get a second one made.
TEST_F(ArenasOfSeats, AFreshOneIsMadeOffTheLoopAndOnce) {
  std::vector<ArenaHandle> got;
  const auto take = [&](Result<ArenaHandle> arena) { got.push_back(*arena); };
  arenas.own(spec, take);
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), nullptr) << "nothing is made on the loop";
  arenas.own(spec, take);
  EXPECT_TRUE(posted.run_until([&] { return got.size() == 2; }));
  EXPECT_EQ(got[0], got[1]);
  arenas.own(spec, take);  // it is there: at once
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got[2], got[0]);
}

TEST_F(ArenasOfSeats, WhoAsksForAnotherLayoutMeanwhileGetsThatOne) {
  ArenaHandle first, second;
  arenas.own(spec, [&](Result<ArenaHandle> arena) { first = *arena; });
  arenas.own(other, [&](Result<ArenaHandle> arena) { second = *arena; });
  EXPECT_TRUE(posted.run_until([&] { return first && second; }));
  EXPECT_EQ(second->arena.spec().layout, "layout 6");
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), second);
}

TEST_F(ArenasOfSeats, NoneIsHandedOutWhileAnotherIsMadeInItsPlace) {
  const auto first = own(spec);
  ASSERT_TRUE(first);
  ArenaHandle replaced, last;
  arenas.own(other, [&](const Result<ArenaHandle>& arena) { replaced = *arena; });
  arenas.own(spec, [&](const Result<ArenaHandle>& arena) { last = *arena; });
  EXPECT_EQ(last, nullptr);
  EXPECT_TRUE(posted.run_until([&] { return replaced && last; }));
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), last) << "who was answered last has the one that is kept";
}

TEST_F(ArenasOfSeats, TasksAskTheLoopAndWait) {
  const Result<ArenaHandle> own = on_a_task([&] { return arenas.own_from_thread(spec, Generation(1)); });
  ASSERT_TRUE(own);
  EXPECT_EQ(*own, memory.find(ArenaKind::own, Seat(0)));
  EXPECT_EQ(on_a_task([&] { return arenas.find_from_thread(ArenaKind::own, Seat(0)); }), *own);
  EXPECT_EQ(on_a_task([&] { return arenas.find_from_thread(ArenaKind::replica, Seat(0)); }), nullptr);
}

TEST_F(ArenasOfSeats, AReplicaIsForAStreamOfTheGenerationThatRuns) {
  const ArenaSpec ward = test_arena(ArenaKind::replica, Seat(1));
  const auto replica_for = [&](Generation generation) {
    return on_a_task([&] { return arenas.replica_from_thread(ward, generation); });
  };
  EXPECT_EQ(replica_for(Generation(1)).error().code, Code::stale);  // it does not run yet, or not any more
  node.run_in(JobPhase::running);
  EXPECT_EQ(replica_for(Generation(2)).error().code, Code::stale);
  EXPECT_TRUE(replica_for(Generation(1)));
  EXPECT_EQ(on_a_task([&] { return arenas.own_from_thread(spec, Generation(1)); }).error().code, Code::cancelled);
}

TEST_F(ArenasOfSeats, WhatIsMadeInARecoveryStaysFrozenUntilTheJobRuns) {
  memory.freeze_all();
  const Slot slot = (*own(spec))->arena.slot(0);
  EXPECT_TRUE(slot.word().frozen);
  EXPECT_FALSE(slot.try_open(slot.word(), Generation(1), Step(1), 0));
  memory.unfreeze_all({}, Generation(2));
  EXPECT_EQ(slot.word(), SlotWord{});
  const Slot replica = (*memory.arena_for(test_arena(ArenaKind::replica, Seat(1))))->arena.slot(0);
  EXPECT_FALSE(replica.word().frozen);
}

TEST_F(ArenasOfSeats, NothingHalfWrittenOfAnOlderGenerationIsLeftWhenTheJobRuns) {
  const Arena arena = (*memory.arena_for(test_arena(ArenaKind::replica, Seat(1))))->arena;
  open_step(arena.slot(0), Generation(1), Step(42));  // by a stream that had ended: after the freeze
  open_step(arena.slot(1), Generation(2), Step(42));  // by one of the generation that runs, and is returned to
  memory.unfreeze_all(std::vector<LineageEntry>{{Generation(2), Step(41)}}, Generation(2));
  EXPECT_EQ(arena.slot(0).word(), SlotWord{});
  EXPECT_EQ(arena.slot(1).word().step, Step(42));
}

TEST_F(ArenasOfSeats, AStepIsThereIfItIsWholeAndFrozen) {
  const Source source{Seat(0), SourceKind::own_arena, test_life(0), Generation(1), Step(7)};
  EXPECT_FALSE(arenas.has(source));
  const Slot slot = (*own(spec))->arena.slot(1);
  open_step(slot, Generation(1), Step(7));
  EXPECT_FALSE(arenas.has(source));
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) capture_bucket(slot, i);
  ASSERT_TRUE(slot.try_seal(Generation(1), Step(7)));
  EXPECT_FALSE(arenas.has(source));
  memory.freeze_all();
  EXPECT_TRUE(arenas.has(source));
  EXPECT_FALSE(arenas.has({Seat(0), SourceKind::replica, test_life(0), Generation(1), Step(8)}));
}

}  // namespace
}  // namespace pawl::job
