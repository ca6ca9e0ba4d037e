#include "tensor/tiling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace pawl {
namespace {

// How many boxes hold each element.
std::vector<int> counts_of(const Box& whole, const std::vector<Box>& boxes) {
  std::vector<int> counts(volume(whole));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::uint64_t rest = i;
    PerDimension at{};
    for (std::uint32_t d = whole.dimensions; d-- > 0; rest /= whole.size[d]) at[d] = rest % whole.size[d];
    for (const Box& box : boxes) {
      bool inside = true;
      for (std::uint32_t d = 0; d < whole.dimensions; ++d) {
        inside = inside && at[d] >= box.begin[d] && at[d] < box.begin[d] + box.size[d];
      }
      counts[i] += inside ? 1 : 0;
    }
  }
  return counts;
}

// Cuts a box at random places until there are `count` of them.
std::vector<Box> random_tiling(std::mt19937_64& random, const Box& whole, std::size_t count) {
  std::vector<Box> boxes{whole};
  for (std::size_t tries = 0; boxes.size() < count && tries < 100; ++tries) {
    const std::size_t at = random() % boxes.size();
    const std::uint32_t d = static_cast<std::uint32_t>(random() % whole.dimensions);
    if (boxes[at].size[d] < 2) continue;
    const std::uint64_t cut = 1 + random() % (boxes[at].size[d] - 1);
    Box upper = boxes[at];
    upper.begin[d] += cut;
    upper.size[d] -= cut;
    boxes[at].size[d] = cut;
    boxes.push_back(upper);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

TEST(Tiling, SaysWhatCountingSays) {
  std::mt19937_64 random(3);
  int exact = 0, holes = 0, overlaps = 0;
  for (int round = 0; round < 4000; ++round) {
    Box whole{static_cast<std::uint32_t>(1 + random() % 4), {}, {}};
    for (std::uint32_t d = 0; d < whole.dimensions; ++d) whole.size[d] = 1 + random() % 6;
    std::vector<Box> boxes = random_tiling(random, whole, 1 + random() % 12);
    if (random() % 3 == 0) boxes.pop_back();
    if (random() % 3 == 0) {
      Box& box = boxes.emplace_back(whole);
      for (std::uint32_t d = 0; d < whole.dimensions; ++d) {
        box.begin[d] = random() % whole.size[d];
        box.size[d] = 1 + random() % (whole.size[d] - box.begin[d]);
      }
    }
    const std::vector<int> counts = counts_of(whole, boxes);
    const Tiling found = check_tiling(whole, boxes);
    ASSERT_FALSE(found.undecided);
    ASSERT_EQ(found.hole.has_value(), std::ranges::count(counts, 0) != 0) << round;
    ASSERT_EQ(found.overlap.has_value(), *std::ranges::max_element(counts) > 1) << round;
    if (found.hole) {
      ASSERT_GT(volume(*found.hole), 0u);
      for (const Box& box : boxes) ASSERT_EQ(volume(intersection(box, *found.hole)), 0u);
    }
    if (found.overlap) {
      ASSERT_NE(found.overlap->first, found.overlap->second);
      ASSERT_GT(volume(intersection(boxes[found.overlap->first], boxes[found.overlap->second])), 0u);
    }
    const Tiling cover = check_cover(whole, boxes);
    ASSERT_EQ(cover.hole.has_value(), found.hole.has_value());
    ASSERT_FALSE(cover.overlap);
    exact += found.is_exact() ? 1 : 0;
    holes += found.hole ? 1 : 0;
    overlaps += found.overlap ? 1 : 0;
  }
  EXPECT_GT(exact, 500);
  EXPECT_GT(holes, 500);
  EXPECT_GT(overlaps, 500);
}

TEST(Tiling, OfNothingAndOfScalars) {
  EXPECT_TRUE(check_tiling(Box{1, {0}, {0}}, {}).is_exact());
  EXPECT_TRUE(check_tiling(Box{}, {}).hole);
  const std::vector<Box> scalar(1);
  EXPECT_TRUE(check_tiling(Box{}, scalar).is_exact());
  const std::vector<Box> twice(2);
  EXPECT_TRUE(check_tiling(Box{}, twice).overlap);
  EXPECT_TRUE(check_cover(Box{}, twice).is_exact());
}

// A grid of 32768 boxes, then with one of them gone, then with one of them longer.
TEST(Tiling, IsNearLinear) {
  const Box whole{3, {}, {32 * 3, 32 * 5, 32 * 7}};
  std::vector<Box> boxes;
  for (std::uint64_t i = 0; i < 32; ++i)
    for (std::uint64_t j = 0; j < 32; ++j)
      for (std::uint64_t k = 0; k < 32; ++k) boxes.push_back({3, {i * 3, j * 5, k * 7}, {3, 5, 7}});
  EXPECT_TRUE(check_tiling(whole, boxes).is_exact());
  boxes[20'000].size[2] = 8;
  const Tiling longer = check_tiling(whole, boxes);
  ASSERT_TRUE(longer.overlap);
  EXPECT_FALSE(longer.hole);
  boxes.erase(boxes.begin() + 20'000);
  const Tiling gone = check_tiling(whole, boxes);
  ASSERT_TRUE(gone.hole);
  EXPECT_FALSE(gone.overlap);
  EXPECT_EQ(volume(*gone.hole), 105u);
}

// Planks in three directions, each across many of the others: given up or done, but never their square.
TEST(Tiling, GivesUpOnWhatCrossesEverywhere) {
  const Box whole{2, {}, {2000, 2000}};
  std::vector<Box> boxes;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    boxes.push_back({2, {i, 0}, {1, 2000}});
    boxes.push_back({2, {0, i}, {2000, 1}});
  }
  const Tiling found = check_tiling(whole, boxes);
  EXPECT_TRUE(found.overlap || found.undecided);
}

}  // namespace
}  // namespace pawl
