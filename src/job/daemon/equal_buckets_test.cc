#include "job/daemon/equal_buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

constexpr Generation kGeneration{3};
constexpr std::uint64_t kDigest = 77;
constexpr std::uint32_t kBucketBytes = 4096;

EqualExtent extent(std::uint64_t begin, std::uint64_t end, std::uint64_t digest = kDigest) {
  return {{begin, end}, digest};
}

// --- Sender

std::vector<const EqualExtent*> offers_of(const UnsentBuckets& buckets) {
  return buckets.offers(11);
}
UnsentBuckets unsent(std::vector<EqualExtent> offers) {
  UnsentBuckets buckets(std::move(offers), kBucketBytes, 10 * kBucketBytes + 100);
  buckets.begin_step();
  return buckets;
}

TEST(UnsentBuckets, AreThoseThatLieWhollyInAnOffer) {
  const UnsentBuckets buckets = unsent({extent(4096, 3 * 4096), extent(5 * 4096, kStreamEnd, 78)});
  std::vector<std::uint64_t> digests;
  for (const EqualExtent* each : offers_of(buckets)) digests.push_back(each == nullptr ? 0 : each->digest);
  EXPECT_EQ(digests, (std::vector<std::uint64_t>{0, 77, 77, 0, 0, 78, 78, 78, 78, 78, 78}));  // the last is shorter
  EXPECT_EQ(offers_of(unsent({extent(4096 + 64, 2 * 4096 + 64)})), std::vector<const EqualExtent*>(11, nullptr));
  EXPECT_TRUE(offers_of(UnsentBuckets()).empty());
}

// In how many steps on end nothing is told.
std::uint64_t steps_in_full(UnsentBuckets& buckets) {
  for (std::uint64_t steps = 0;; ++steps) {
    buckets.begin_step();
    if (!offers_of(buckets).empty()) return steps;
  }
}

TEST(UnsentBuckets, AreSentForAWhileAfterADifferenceAndLongerAfterEachFurtherOne) {
  UnsentBuckets buckets = unsent({extent(0, kStreamEnd)});
  for (const std::uint64_t expected : {64, 128, 256, 512, 1024, 2048, 4096, 4096}) {
    buckets.note_wanted(true);
    buckets.note_wanted(true);  // of the same step
    EXPECT_EQ(steps_in_full(buckets), expected);
  }
  buckets.begin_step();  // of the one before nothing was wanted
  buckets.note_wanted(true);
  EXPECT_EQ(steps_in_full(buckets), 64u);
}

TEST(UnsentBuckets, AreSentForAFewStepsWhereTheHolderIsLate) {
  UnsentBuckets buckets = unsent({extent(0, kStreamEnd)});
  for (const std::uint64_t expected : {2, 4, 8}) {
    buckets.note_wanted(false);
    buckets.note_wanted(false);
    EXPECT_EQ(steps_in_full(buckets), expected);
  }
  buckets.note_wanted(false);
  buckets.note_wanted(true);  // in the same step
  EXPECT_EQ(steps_in_full(buckets), 64u);
}

// --- Holder

class TakesEqual : public testing::Test {
 protected:
  TakesEqual() { open_step(into(), kGeneration, Step(11)); }
  [[nodiscard]] Slot into() const { return replica->arena.slot(0); }
  [[nodiscard]] Slot own(std::uint32_t index) const { return first->arena.slot(index); }
  [[nodiscard]] Slot other(std::uint32_t index) const { return second->arena.slot(index); }
  static std::uint32_t sum_of(Step step, std::uint32_t index) {
    return crc32c(bucket_bytes(step, index, test_bucket_bytes(index)));
  }
  [[nodiscard]] FoundEqual take(std::uint32_t index, std::uint64_t digest = kDigest) const {
    return take_equal(into(), index, sum_of(Step(11), index), digest, kGeneration, Step(11), arenas);
  }
  [[nodiscard]] bool is_ready(std::uint32_t index) const { return into().bucket_ready(index, kGeneration, Step(11)); }

  Memory memory{real_shared_memory(), nobody_keeps()};
  ArenaHandle replica = *memory.arena_for(test_arena(ArenaKind::replica, Seat(0)));
  ArenaHandle first = *memory.arena_for(test_arena(ArenaKind::own, Seat(2)));
  ArenaHandle second = *memory.arena_for(test_arena(ArenaKind::own, Seat(3)));
  std::vector<EqualArena> arenas = {{extent(0, kStreamEnd), first}, {extent(0, kStreamEnd), second}};
};

TEST_F(TakesEqual, EveryBucketOfAnEqualSlot) {
  capture_step(own(1), kGeneration, Step(11));
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) EXPECT_EQ(take(i), FoundEqual::taken);
  EXPECT_TRUE(into().try_seal(kGeneration, Step(11)));
  EXPECT_TRUE(holds_bytes_of(into(), Step(11)));
}

TEST_F(TakesEqual, ABucketWhileOthersAreStillCaptured) {
  open_step(own(0), kGeneration, Step(11));
  capture_bucket(own(0), 1);
  EXPECT_EQ(take(1), FoundEqual::taken);
  EXPECT_EQ(take(0), FoundEqual::capturing);
  EXPECT_FALSE(is_ready(0));
}

TEST_F(TakesEqual, FromWhicheverSeatHasIt) {
  capture_step(own(0), kGeneration, Step(12));  // it has gone on
  capture_step(other(0), kGeneration, Step(11));
  EXPECT_EQ(take(0), FoundEqual::taken);
}

TEST_F(TakesEqual, NothingOfASeatThatHasNotBegunOrIsPastTheStep) {
  arenas.pop_back();
  EXPECT_EQ(take(0), FoundEqual::earlier);
  capture_step(own(0), kGeneration, Step(10));
  EXPECT_EQ(take(0), FoundEqual::earlier);
  capture_step(own(1), kGeneration, Step(12));
  EXPECT_EQ(take(0), FoundEqual::missing);
}

TEST_F(TakesEqual, NothingOfAnotherGenerationAGroupThatIsAnotherOrAFrozenCapture) {
  arenas.pop_back();
  capture_step(own(0), Generation(2), Step(11));
  EXPECT_EQ(take(0), FoundEqual::earlier);
  capture_step(own(1), kGeneration, Step(11));
  EXPECT_EQ(take(0, kDigest + 1), FoundEqual::missing);
  open_step(other(0), kGeneration, Step(11));
  (void)other(0).freeze();
  arenas = {{extent(0, kStreamEnd), second}};
  EXPECT_EQ(take(0), FoundEqual::missing);
}

TEST_F(TakesEqual, NothingThatHasAnotherSum) {
  arenas.pop_back();
  capture_step(own(0), kGeneration, Step(11));
  const std::uint32_t wrong = sum_of(Step(11), 0) + 1;
  EXPECT_EQ(take_equal(into(), 0, wrong, kDigest, kGeneration, Step(11), arenas), FoundEqual::differs);
  EXPECT_FALSE(is_ready(0));
}

TEST_F(TakesEqual, NothingWhoseBytesWereDamagedSinceTheyWereCaptured) {
  arenas.pop_back();
  capture_step(own(0), kGeneration, Step(11));
  own(0).bucket(0)[5] ^= std::byte{1};
  EXPECT_EQ(take(0), FoundEqual::differs);
  EXPECT_FALSE(is_ready(0));
}

TEST_F(TakesEqual, WaitsForTheSeatThatMayStillBeEqual) {
  capture_step(own(0), kGeneration, Step(11));
  own(0).bucket(0)[5] ^= std::byte{1};
  open_step(other(0), kGeneration, Step(11));
  EXPECT_EQ(take(0), FoundEqual::capturing);
}

// --- What is awaited

class Awaits : public TakesEqual {
 protected:
  Awaits() { arenas.pop_back(); }
  void tell(std::uint32_t first, std::uint32_t count) {
    SameBucketsMessage told{kGeneration, Step(11), kDigest, first, {}};
    for (std::uint32_t i = first; i < first + count; ++i) told.crc32c.push_back(sum_of(Step(11), i));
    awaited.add(told);
  }
  void tell_all() {
    awaited.set_arenas(arenas);
    tell(0, kTestBuckets);
  }
  void settle(Duration waited) { awaited.settle(waited, ended); }
  using Indices = std::vector<std::uint32_t>;
  [[nodiscard]] Indices wanted() {
    Indices indices = awaited.take_wanted().buckets;
    std::ranges::sort(indices);
    return indices;
  }
  static Indices all_but(std::uint32_t index) {
    Indices indices;
    for (std::uint32_t i = 0; i < kTestBuckets; ++i)
      if (i != index) indices.push_back(i);
    return indices;
  }
  AwaitedBuckets awaited{into(), kGeneration, Step(11)};
  std::atomic<bool> ended{false};
};

TEST_F(Awaits, WhatIsBeingCapturedAndTakesItWhenItIs) {
  open_step(own(0), kGeneration, Step(11));
  capture_bucket(own(0), 1);
  tell_all();
  settle(Duration::zero());
  EXPECT_TRUE(is_ready(1));
  EXPECT_FALSE(awaited.empty());
  for (const std::uint32_t i : all_but(1)) capture_bucket(own(0), i);
  settle(AwaitedBuckets::kBeginMax);
  EXPECT_TRUE(awaited.empty());
  EXPECT_EQ(wanted(), Indices());
  EXPECT_TRUE(into().try_seal(kGeneration, Step(11)));
}

TEST_F(Awaits, ASeatThatCapturesLongerThanOneThatHasNotBegun) {
  tell_all();
  settle(AwaitedBuckets::kBeginMax - Duration(1));
  EXPECT_FALSE(awaited.empty());
  settle(AwaitedBuckets::kBeginMax);
  EXPECT_EQ(wanted(), all_but(kTestBuckets));

  awaited = AwaitedBuckets(into(), kGeneration, Step(11));
  open_step(own(0), kGeneration, Step(11));
  tell_all();
  settle(AwaitedBuckets::kCaptureMax - Duration(1));
  EXPECT_FALSE(awaited.empty());
  settle(AwaitedBuckets::kCaptureMax);
  EXPECT_TRUE(awaited.empty());
  EXPECT_EQ(wanted(), all_but(kTestBuckets));
}

TEST_F(Awaits, NothingThatCanNotCome) {
  capture_step(own(0), kGeneration, Step(12));
  tell_all();
  settle(Duration::zero());
  EXPECT_TRUE(awaited.empty());
  EXPECT_EQ(wanted(), all_but(kTestBuckets));
}

TEST_F(Awaits, AndWantsAllOfAStepInWhichOneDiffers) {
  capture_step(own(0), kGeneration, Step(11));
  own(0).buckets()[1].crc32c ^= 1;
  tell_all();
  settle(Duration::zero());
  const BucketsWantedMessage all = awaited.take_wanted();
  EXPECT_TRUE(all.differ);
  EXPECT_EQ(all.buckets.size(), kTestBuckets);
  EXPECT_TRUE(awaited.take_wanted().buckets.empty());
}

TEST_F(Awaits, NothingMoreOnceItsStreamHasEnded) {
  capture_step(own(0), kGeneration, Step(11));
  tell_all();
  ended = true;
  settle(AwaitedBuckets::kCaptureMax);
  EXPECT_FALSE(awaited.empty());
  EXPECT_FALSE(is_ready(0));
}

TEST(OffersThere, AreThoseOfGroupsWithASeatOfTheHolders) {
  const EqualExtent dp = extent(0, 4096, 1);
  const EqualExtent pairs = extent(4096, 8192, 2);
  const std::vector<EqualOffer> offers = {{{Seat(0), 1, 8}, dp, Seat(0)},     // all
                                          {{Seat(0), 4, 2}, pairs, Seat(0)},  // 0 and 4
                                          {{Seat(0), 1, 8}, dp, Seat(1)}};    // another seat's
  EXPECT_EQ(offers_there(offers, Seat(0), std::vector{Seat(2), Seat(3)}), std::vector<EqualExtent>({dp}));
  EXPECT_EQ(offers_there(offers, Seat(0), std::vector{Seat(4), Seat(5)}), (std::vector<EqualExtent>{dp, pairs}));
  EXPECT_EQ(offers_there(offers, Seat(0), std::vector{Seat(8), Seat(9)}), std::vector<EqualExtent>());
}

}  // namespace
}  // namespace pawl::job
