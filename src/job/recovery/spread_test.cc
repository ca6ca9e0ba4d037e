#include "job/recovery/spread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

std::vector<std::uint64_t> spread(std::uint64_t count, std::uint64_t turn = 0) {
  std::vector<std::uint64_t> places;
  for (std::uint64_t place = 0; place < count; ++place)
    if (is_spread(place, count, turn)) places.push_back(place);
  return places;
}

TEST(Spread, OneInEachOfSixteenParts) {
  for (std::uint64_t count = 1; count <= 16; ++count) EXPECT_EQ(spread(count).size(), count);
  for (const std::uint64_t count : {17, 100, 1000, 10'000, 10'001})
    for (const std::uint64_t turn : {0, 1, 7, 1'000'000}) {
      const std::vector<std::uint64_t> places = spread(count, turn);
      ASSERT_EQ(places.size(), kSpreadPlaces) << count;
      for (std::uint64_t part = 0; part < places.size(); ++part)
        EXPECT_EQ(places[part] * kSpreadPlaces / count, part) << count;
    }
  EXPECT_FALSE(is_spread(7, 7));
  EXPECT_FALSE(is_spread(3, 3));
}

TEST(Spread, EveryPlaceHasItsTurn) {
  for (const std::uint64_t count : {17, 64, 999, 10'000}) {
    std::set<std::uint64_t> all;
    for (std::uint64_t turn = 0; turn <= count / kSpreadPlaces; ++turn)
      for (const std::uint64_t place : spread(count, turn)) all.insert(place);
    EXPECT_EQ(all.size(), count);
  }
}

// Of a twentieth of the places, wherever it begins, and of two turns together.
TEST(Spread, ARackHasOnlyAFew) {
  std::vector<std::uint64_t> places = spread(10'000);
  for (const std::uint64_t place : spread(10'000, 1)) places.push_back(place);
  for (std::uint64_t first = 0; first <= 9'500; ++first) {
    const auto in_rack = std::ranges::count_if(places, [&](auto place) { return place - first < 500; });
    ASSERT_LE(in_rack, 4) << first;
  }
}

TEST(Spread, TurnsTakeTwiceAsLongEach) {
  EXPECT_EQ(doubling_turn(0s, 3s), 0u);
  EXPECT_EQ(doubling_turn(2999ms, 3s), 0u);
  EXPECT_EQ(doubling_turn(3s, 3s), 1u);
  EXPECT_EQ(doubling_turn(5999ms, 3s), 1u);
  EXPECT_EQ(doubling_turn(6s, 3s), 2u);
  EXPECT_EQ(doubling_turn(12s, 3s), 3u);
  EXPECT_EQ(doubling_turn(3600s, 3s), 11u);
}

TEST(Spread, WhatIsDrawnIsWithinTheSpanAndDiffers) {
  std::set<Duration> drawn;
  for (std::uint32_t node = 0; node < 1000; ++node) {
    const Duration one = drawn_within(1s, NodeId(node), 77s);
    EXPECT_GE(one, 0s);
    EXPECT_LT(one, 1s);
    drawn.insert(one);
  }
  EXPECT_GT(drawn.size(), 100u);
}

}  // namespace
}  // namespace pawl::job
