#include "job/layout/extent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace pawl::job {
namespace {

// A stream of so many bytes, byte by byte; the last stands for all that follow.
constexpr std::uint64_t kBytes = 12;
using Counts = std::array<std::uint32_t, kBytes>;

Counts counts_of(const Extents& extents) {
  Counts counts{};
  for (const Extent& extent : extents)
    for (std::uint64_t i = extent.begin; i < std::min(extent.end, kBytes); ++i) ++counts[i];
  return counts;
}

class RandomExtents : public testing::Test {
 protected:
  std::uint64_t up_to(std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most)(random_); }
  Extents extents() {
    Extents drawn(up_to(5));
    for (Extent& extent : drawn)
      extent = {up_to(kBytes - 1), up_to(3) == 0 ? kStreamEnd : up_to(kBytes - 1)};  // some are empty
    return drawn;
  }
  std::mt19937_64 random_{20};
};

bool is_joined(const Extents& extents) {
  for (std::size_t i = 0; i < extents.size(); ++i)
    if (extents[i].is_empty() || (i > 0 && extents[i].begin <= extents[i - 1].end)) return false;
  return true;
}

TEST_F(RandomExtents, AreWhatTheyAreByteByByte) {
  std::array<int, 3> seen{};  // least covers of 0, 1 and more
  for (int i = 0; i < 20'000 && !HasFailure(); ++i) {
    const Extents some = extents();
    const Extents others = extents();
    const Counts in_some = counts_of(some);
    const Counts in_others = counts_of(others);
    const Extents joined = joined_extents(some);
    const Extents left = without(some, others);
    const Extents holes = holes_in(some);
    EXPECT_TRUE(is_joined(joined) && is_joined(left) && is_joined(holes));
    bool all_in_some = true;
    for (std::size_t byte = 0; byte < kBytes; ++byte) {
      EXPECT_EQ(counts_of(joined)[byte], std::min(in_some[byte], 1u));
      EXPECT_EQ(counts_of(left)[byte], in_some[byte] > 0 && in_others[byte] == 0 ? 1u : 0u);
      EXPECT_EQ(counts_of(holes)[byte], in_some[byte] == 0 ? 1u : 0u);
      all_in_some = all_in_some && (in_others[byte] == 0 || in_some[byte] > 0);
    }
    EXPECT_EQ(covers(some, others), all_in_some);
    EXPECT_EQ(least_cover(some), *std::ranges::min_element(in_some));
    ++seen[std::min(least_cover(some), 2u)];
    ExtentUnion all;
    Counts in_all{};
    for (const Extent& extent : some) {
      const Counts fresh = counts_of({extent});
      bool adds = false;
      for (std::size_t byte = 0; byte < kBytes; ++byte) {
        adds = adds || (fresh[byte] > 0 && in_all[byte] == 0);
        in_all[byte] += fresh[byte];
      }
      EXPECT_EQ(all.add(extent), adds);
    }
    if (some.size() == 1 && others.size() == 1) {
      EXPECT_EQ(some[0].overlaps(others[0]), left != joined);
    }
  }
  for (const int times : seen) EXPECT_GT(times, 20);
}

TEST(Extents, AWholeStreamReachesToItsEnd) {
  EXPECT_TRUE(Extent{}.is_whole());
  EXPECT_TRUE(holes_in(Extents{{0, 10}, {10, kStreamEnd}}).empty());
  EXPECT_EQ(holes_in(Extents{{0, 10}, {12, 20}}), (Extents{{10, 12}, {20, kStreamEnd}}));
  EXPECT_EQ(least_cover({}), 0u);
}

TEST(Extents, ReadAsTheirBytes) {
  EXPECT_EQ(to_text(Extents{{0, 4096}, {8192, kStreamEnd}}), "bytes 0-4095, 8192-");
}

}  // namespace
}  // namespace pawl::job
