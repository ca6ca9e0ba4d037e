#include "job/redundancy/equal_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>

namespace pawl::job {
namespace {

constexpr EqualExtent kWeights{{0, 8192}, 99};
constexpr EqualExtent kOthers{{8192, kStreamEnd}, 99};

EqualSum sum_of(std::uint32_t seat, std::uint64_t sum, std::uint64_t step = 41, EqualExtent what = kWeights,
                std::uint32_t of = 4) {
  return {Step(step), what, of, sum, 1, Seat(seat)};
}
EqualSums sums_of(std::initializer_list<EqualSum> all) {
  EqualSums sums;
  for (const EqualSum& one : all) sums.add(one);
  return sums;
}

TEST(EqualSums, SeatsThatHaveFewerAreNamedAgainstThoseThatHaveTheMost) {
  const EqualSums sums = sums_of({sum_of(3, 7), sum_of(0, 7), sum_of(2, 8), sum_of(1, 7)});
  const auto all = sums.compared(Step(41));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].step, Step(41));
  EXPECT_EQ(all[0].what, kWeights);
  EXPECT_EQ(all[0].most, (EqualSum{Step(41), kWeights, 4, 7, 3, Seat(0)}));
  EXPECT_EQ(all[0].others, std::vector{sum_of(2, 8)});
  EXPECT_EQ(all[0].seats, 4u);
  EXPECT_EQ(all[0].count(), 1u);
  EXPECT_TRUE(sums.incomplete().empty());
}

TEST(EqualSums, NothingIsComparedOfWhichASeatHasNotTold) {
  const EqualSums sums = sums_of({sum_of(3, 7), sum_of(0, 7), sum_of(2, 8)});
  EXPECT_TRUE(sums.compared(Step(41)).empty());
  EXPECT_EQ(sums.incomplete(), sums);
}

TEST(EqualSums, OfAsManyTheLeastSeatCounts) {
  const auto all = sums_of({sum_of(4, 7, 41, kWeights, 2), sum_of(1, 8, 41, kWeights, 2)}).compared(Step(41));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].most.first, Seat(1));
  EXPECT_EQ(all[0].others, std::vector{sum_of(4, 7, 41, kWeights, 2)});
}

TEST(EqualSums, StepsAndExtentsAreComparedEachByItself) {
  const auto of_two = [](std::uint32_t seat, std::uint64_t sum, std::uint64_t step, EqualExtent what = kWeights) {
    return sum_of(seat, sum, step, what, 2);
  };
  EqualSums sums = sums_of({of_two(0, 7, 41), of_two(1, 8, 42), of_two(0, 7, 41, kOthers), of_two(1, 7, 41, kOthers),
                            of_two(0, 9, 42), of_two(1, 1, 43)});
  const auto equal = sums.compared(Step(41));
  ASSERT_EQ(equal.size(), 1u);
  EXPECT_EQ(equal[0].what, kOthers);
  EXPECT_TRUE(equal[0].others.empty());
  const auto differ = sums.compared(Step(42));
  ASSERT_EQ(differ.size(), 1u);
  EXPECT_EQ(differ[0].others.size(), 1u);
  EXPECT_EQ(sums.incomplete(), sums_of({of_two(0, 7, 41), of_two(1, 1, 43)}));
  sums.forget(Step(42));
  EXPECT_EQ(sums, sums_of({of_two(1, 1, 43)}));
}

TEST(EqualSums, APartComesAfterWhatItIsPartOf) {
  const EqualExtent part{{0, 4096}, 99};
  const EqualExtent middle{{4096, 8192}, 99};
  EqualSums sums;
  for (const EqualExtent& what : {part, middle, kWeights, EqualExtent{{0, kStreamEnd}, 99}})
    sums.add(sum_of(0, 1, 41, what, 1));
  const auto all = sums.compared(Step(41));
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].what.extent.end, kStreamEnd);
  EXPECT_EQ(all[1].what, kWeights);
}

TEST(EqualSums, OfManyDifferentOnesThoseOfTheFewestSeatsAreOnlyCounted) {
  EqualSums sums = sums_of({sum_of(0, 7, 41, kWeights, 50), sum_of(1, 7, 41, kWeights, 50)});
  for (std::uint32_t seat = 2; seat < 50; ++seat) sums.add(sum_of(seat, 100 + seat, 41, kWeights, 50));
  const auto all = parse_equal_sums(to_text(sums))->compared(Step(41));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].most.seats, 2u);
  EXPECT_EQ(all[0].others.size(), EqualSums::kSumsMax - 1);
  EXPECT_EQ(all[0].others[0].first, Seat(2));
  EXPECT_EQ(all[0].seats, 50u);
  EXPECT_EQ(all[0].count(), 48u);
}

TEST(EqualSums, OfMoreThanCanBeComparedTheLatestIsNot) {
  EqualSums sums;
  for (std::uint64_t step = EqualSums::kComparedMax + 5; step > 0; --step) sums.add(sum_of(0, step, step, kWeights, 1));
  EXPECT_EQ(sums.compared(Step(1)).size(), 1u);
  EXPECT_EQ(sums.compared(Step(EqualSums::kComparedMax)).size(), 1u);
  EXPECT_EQ(sums.compared(Step(EqualSums::kComparedMax + 1)).size(), 0u);
}

// However a tree adds them up, and over the wire, somebody knows what one that asks every seat knows.
TEST(EqualSums, AreTheSameHoweverTheyAreAddedUp) {
  std::mt19937 random(3);
  const auto below = [&random](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  int differed = 0;
  for (int round = 0; round < 1000; ++round) {
    const std::uint32_t count = 1 + below(12);
    std::vector<EqualSums> nodes(1 + below(6));
    std::map<std::uint64_t, std::map<std::uint64_t, std::set<std::uint32_t>>> plain;  // by extent and sum
    for (std::uint32_t seat = 0; seat < count; ++seat)
      for (const EqualExtent& what : {kWeights, kOthers}) {
        const std::uint64_t sum = below(4) == 0 ? below(3) : 0;
        nodes[below(static_cast<std::uint32_t>(nodes.size()))].add(sum_of(seat, sum, 41, what, count));
        plain[what.extent.begin][sum].insert(seat);
      }
    std::vector<Compared> found;
    while (!nodes.empty()) {
      const EqualSums last = std::move(nodes.back());
      nodes.pop_back();
      std::ranges::copy(last.compared(Step(41)), std::back_inserter(found));
      if (!nodes.empty())
        nodes[below(static_cast<std::uint32_t>(nodes.size()))].add(*parse_equal_sums(to_text(last.incomplete())));
    }
    ASSERT_EQ(found.size(), 2u) << "each is compared once";
    for (const Compared& one : found) {
      const auto& seats = plain[one.what.extent.begin];
      EXPECT_EQ(one.others.size() + 1, seats.size());
      EXPECT_EQ(one.most.seats, seats.at(one.most.sum).size());
      EXPECT_EQ(one.seats, count);
      for (const EqualSum& other : one.others) {
        EXPECT_EQ(other.seats, seats.at(other.sum).size());
        EXPECT_EQ(other.first.value, *seats.at(other.sum).begin());
        EXPECT_LE(other.seats, one.most.seats);
      }
      differed += one.others.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(differed, 300);
}

TEST(EqualSums, OtherTextIsRefused) {
  EXPECT_TRUE(parse_equal_sums("")->empty());
  EXPECT_FALSE(parse_equal_sums("41 0 8192 99 4 2 7 2 0\n")->empty());
  for (const char* wrong :
       {"x", "\n", "41 0 8192 99 4 2 7 2 0", "41 0 8192 99 4 2\n", "41 0 8192 99 4 2 7 2\n",
        "41 8192 8192 99 4 2 7 2 0\n", "41 0 8192 99 4 2 7 0 0\n", "41 0 8192 99 4 2 7 3 0\n",
        "41 0 8192 99 4294967296 2 7 2 0\n", "41 0 8192 99 4 2 7 2 4294967296\n", "41 0 8192 99 -4 2 7 2 0\n",
        "41 0 8192 99 4 2 7 1 0 8 1 1 9 1 1\n", "41 0 8192 99 9 9 1 1 0 2 1 1 3 1 2 4 1 3 5 1 4\n"})
    EXPECT_FALSE(parse_equal_sums(wrong)) << wrong;
}

}  // namespace
}  // namespace pawl::job
