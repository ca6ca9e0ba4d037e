#include "job/daemon/fetch_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace pawl::job {
namespace {

constexpr FetchRanges::Options kTenBuckets{.bucket_count = 10, .bucket_bytes = 100, .range_max = 4};

TEST(FetchRanges, AreTakenOnceEachTheFirstOnesFirst) {
  FetchRanges ranges(kTenBuckets, {{Extent{}}, {Extent{}}});
  EXPECT_EQ(ranges.take(0), (BucketRange{0, 4}));
  EXPECT_EQ(ranges.take(1), (BucketRange{4, 4}));
  EXPECT_EQ(ranges.take(0), (BucketRange{8, 2}));
  EXPECT_EQ(ranges.take(1), std::nullopt);
  EXPECT_TRUE(ranges.may_give(1)) << "they may be given back";
  ranges.done(4);
  ranges.give_back({4, 4});
  EXPECT_EQ(ranges.take(0), (BucketRange{5, 3}));
}

TEST(FetchRanges, ASourceGivesWhatItHas) {
  FetchRanges ranges(kTenBuckets, {{{0, 250}, {600, kStreamEnd}}, {{200, 650}}});
  EXPECT_FALSE(ranges.any_lost());
  EXPECT_EQ(ranges.take(1), (BucketRange{2, 4})) << "of the seventh it has only a half";
  EXPECT_EQ(ranges.take(0), (BucketRange{0, 2})) << "of the third it has only a half";
  ranges.withdraw(0, ranges.extent_of({7, 1}));
  EXPECT_TRUE(ranges.any_lost());
  EXPECT_EQ(ranges.take(0), (BucketRange{6, 1}));
  EXPECT_EQ(ranges.take(0), (BucketRange{8, 2}));
  EXPECT_EQ(ranges.extent_of({8, 2}), (Extent{800, kStreamEnd}));
}

// Any number of streams that fail and are struck out anyhow: each bucket is fetched by one of them, or no source has it.
TEST(FetchRanges, EachBucketComesOnceOrIsLost) {
  std::mt19937_64 random(18);
  const auto up_to = [&random](std::size_t most) {
    return std::uniform_int_distribution<std::size_t>(0, most)(random);
  };
  int whole = 0;
  for (int round = 0; round < 3000 && !HasFailure(); ++round) {
    const auto buckets = static_cast<std::uint32_t>(1 + up_to(30));
    const std::size_t sources = 1 + up_to(2);
    FetchRanges ranges(
        {.bucket_count = buckets, .bucket_bytes = 10, .range_max = 1 + static_cast<std::uint32_t>(up_to(5))},
        std::vector<Extents>(sources, {Extent{}}));
    std::vector<std::set<std::uint32_t>> struck(sources);
    std::set<std::uint32_t> taken;
    std::set<std::uint32_t> done;
    for (int i = 0; i < 500 && !ranges.all_done(); ++i) {
      const std::size_t source = up_to(sources - 1);
      const auto range = ranges.take(source);
      if (!range) continue;
      const std::uint32_t came = static_cast<std::uint32_t>(up_to(range->count));
      for (std::uint32_t bucket = range->first; bucket < range->first + range->count; ++bucket) {
        EXPECT_FALSE(struck[source].contains(bucket));
        EXPECT_TRUE(taken.insert(bucket).second) << "two at once";
        if (bucket < range->first + came) {
          EXPECT_TRUE(done.insert(bucket).second) << "twice";
          ranges.done(bucket);
        }
      }
      if (came < range->count && up_to(4) == 0) {
        struck[source].insert(range->first + came);
        ranges.withdraw(source, ranges.extent_of({range->first + came, 1}));
      }
      for (std::uint32_t bucket = range->first + came; bucket < range->first + range->count; ++bucket)
        taken.erase(bucket);
      ranges.give_back(*range);
    }
    std::uint32_t lost = 0;
    for (std::uint32_t bucket = 0; bucket < buckets; ++bucket)
      lost += std::ranges::all_of(struck, [bucket](const auto& some) { return some.contains(bucket); }) &&
                      !done.contains(bucket)
                  ? 1
                  : 0;
    EXPECT_EQ(ranges.any_lost(), lost > 0);
    EXPECT_EQ(done.size() + lost, buckets);
    EXPECT_EQ(ranges.all_done(), lost == 0);
    whole += ranges.all_done() ? 1 : 0;
  }
  EXPECT_GT(whole, 1000);
  EXPECT_LT(whole, 2900);
}

}  // namespace
}  // namespace pawl::job
