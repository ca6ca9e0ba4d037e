#include "sampler.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace charlm {
namespace {

constexpr std::size_t kWorld = 4, kBatch = 24;

std::vector<std::uint64_t> digests_of(const Sampler& sampler) {
  std::vector<std::uint64_t> digests;
  for (std::size_t rank = 0; rank < kWorld; ++rank) digests.push_back(sampler.slice(rank, kBatch).digest);
  return digests;
}

TEST(Sampler, SlicesPartitionTheGlobalBatch) {
  Sampler sampler({7, 1000});
  std::vector<std::uint64_t> seen;
  for (int step = 0; step < 3; ++step) {
    for (std::size_t rank = 0; rank < kWorld; ++rank) {
      const Sampler::Slice slice = sampler.slice(rank, kBatch);
      ASSERT_EQ(slice.ids.size(), kBatch);
      ASSERT_EQ(slice.places.size(), kBatch);
      seen.insert(seen.end(), slice.ids.begin(), slice.ids.end());
      for (const std::uint64_t place : slice.places) EXPECT_LT(place, 1000u);
    }
    sampler.consume(kBatch, digests_of(sampler));
  }
  std::vector<std::uint64_t> all(3 * kWorld * kBatch);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
  EXPECT_EQ(sampler.position(), all.size());
}

// A global batch is the same samples however many ranks share it.
TEST(Sampler, PlacesDoNotDependOnTheWorld) {
  const Sampler sampler({7, 1000});
  std::vector<std::uint64_t> places;
  for (std::size_t rank = 0; rank < kWorld; ++rank) {
    const auto slice = sampler.slice(rank, kBatch);
    places.insert(places.end(), slice.places.begin(), slice.places.end());
  }
  EXPECT_EQ(places, sampler.slice(0, kWorld * kBatch).places);
  EXPECT_NE(places, Sampler({8, 1000}).slice(0, kWorld * kBatch).places);
}

TEST(Sampler, ResumesFromItsStateWithTheSameHash) {
  Sampler undisturbed({7, 1000}), killed({7, 1000}), spare({7, 1000});
  char state[Sampler::kStateBytes];
  for (int step = 0; step < 4; ++step) {
    undisturbed.consume(kBatch, digests_of(undisturbed));
    if (step < 2) killed.consume(kBatch, digests_of(killed));
  }
  killed.save(state);
  ASSERT_TRUE(spare.load(state, sizeof state));
  for (int step = 2; step < 4; ++step) spare.consume(kBatch, digests_of(spare));
  EXPECT_EQ(spare.position(), undisturbed.position());
  EXPECT_EQ(spare.hash(), undisturbed.hash());
}

TEST(Sampler, HashTellsSkippedRepeatedAndSwappedApart) {
  const auto hash_after = [](std::vector<std::uint64_t> digests) {
    Sampler sampler({7, 1000});
    for (const std::uint64_t digest : digests) sampler.consume(kBatch, std::vector{digest});
    return sampler.hash();
  };
  const std::uint64_t right = hash_after({1, 2, 3});
  EXPECT_NE(right, hash_after({1, 3}));
  EXPECT_NE(right, hash_after({1, 2, 2, 3}));
  EXPECT_NE(right, hash_after({2, 1, 3}));
  EXPECT_EQ(right, hash_after({1, 2, 3}));
}

TEST(Sampler, RefusesAStateThatItDidNotWrite) {
  Sampler sampler({7, 1000});
  char state[Sampler::kStateBytes];
  sampler.save(state);
  EXPECT_FALSE(sampler.load(state, sizeof state - 1));
  state[0] = static_cast<char>(~state[0]);
  EXPECT_FALSE(sampler.load(state, sizeof state));
}

}  // namespace
}  // namespace charlm
