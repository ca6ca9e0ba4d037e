#include "job/redundancy/equal_sums.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace pawl::job {
namespace {

constexpr EqualExtent kWeights{{0, 8192}, 99};
constexpr EqualExtent kOthers{{8192, kStreamEnd}, 99};

EqualSum sum_of(std::uint32_t seat, std::uint64_t sum, std::uint64_t step = 41, EqualExtent what = kWeights) {
  return {Step(step), what, sum, 1, Seat(seat)};
}
EqualSums sums_of(std::initializer_list<EqualSum> all) {
  EqualSums sums;
  for (const EqualSum& one : all) sums.add(one);
  return sums;
}

TEST(EqualSums, SeatsThatHaveFewerAreNamedAgainstThoseThatHaveTheMost) {
  const EqualSums sums = sums_of({sum_of(3, 7), sum_of(0, 7), sum_of(2, 8), sum_of(1, 7)});
  const auto differ = sums.compared(Step(41));
  ASSERT_EQ(differ.size(), 1u);
  EXPECT_EQ(differ[0].step, Step(41));
  EXPECT_EQ(differ[0].what, kWeights);
  EXPECT_EQ(differ[0].most, (EqualSum{Step(41), kWeights, 7, 3, Seat(0)}));
  EXPECT_EQ(differ[0].others, std::vector{sum_of(2, 8)});
  EXPECT_EQ(differ[0].seats(), 4u);
}

TEST(EqualSums, OfAsManyTheLeastSeatCounts) {
  const auto differ = sums_of({sum_of(4, 7), sum_of(1, 8)}).compared(Step(41));
  ASSERT_EQ(differ.size(), 1u);
  EXPECT_EQ(differ[0].most.first, Seat(1));
  EXPECT_EQ(differ[0].others, std::vector{sum_of(4, 7)});
}

TEST(EqualSums, StepsAndExtentsAreComparedEachByItself) {
  EqualSums sums = sums_of({sum_of(0, 7, 41), sum_of(1, 8, 42), sum_of(0, 7, 41, kOthers), sum_of(1, 7, 41, kOthers),
                            sum_of(0, 9, 42), sum_of(2, 1, 43)});
  const auto equal = sums.compared(Step(41));
  ASSERT_EQ(equal.size(), 1u);
  EXPECT_EQ(equal[0].what, kOthers);
  EXPECT_TRUE(equal[0].others.empty());
  EXPECT_EQ(equal[0].seats(), 2u);
  const auto both = sums.compared(Step(43));
  ASSERT_EQ(both.size(), 2u) << "of step 43 one seat has said something";
  EXPECT_EQ(both[1].step, Step(42));
  EXPECT_EQ(both[1].others.size(), 1u);
  sums.forget(Step(42));
  EXPECT_EQ(sums, sums_of({sum_of(2, 1, 43)}));
}

TEST(EqualSums, OfManyDifferentOnesThoseOfTheFewestSeatsAreForgotten) {
  EqualSums sums = sums_of({sum_of(0, 7), sum_of(1, 7)});
  for (std::uint32_t seat = 2; seat < 50; ++seat) sums.add(sum_of(seat, 100 + seat));
  const auto differ = sums.compared(Step(41));
  ASSERT_EQ(differ.size(), 1u);
  EXPECT_EQ(differ[0].most.seats, 2u);
  EXPECT_EQ(differ[0].others.size(), EqualSums::kSumsMax - 1);
  EXPECT_EQ(differ[0].others[0].first, Seat(2));
}

TEST(EqualSums, MoreThanCanBeComparedIsNot) {
  EqualSums sums;
  for (std::uint64_t step = 1; step <= EqualSums::kComparedMax + 5; ++step) sums.add(sum_of(0, step, step));
  EXPECT_EQ(parse_equal_sums(to_text(sums))->compared(Step(100'000)).size(), 0u);
  sums.forget(Step(EqualSums::kComparedMax));
  EXPECT_TRUE(sums.empty());
}

// However a tree adds them up, and over the wire, the root knows what one that asks every seat knows.
TEST(EqualSums, AreTheSameHoweverTheyAreAddedUp) {
  std::mt19937 random(3);
  const auto below = [&random](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  int differed = 0;
  for (int round = 0; round < 1000; ++round) {
    const std::uint32_t count = 1 + below(12);
    std::vector<EqualSums> nodes(1 + below(6));
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::map<std::uint64_t, std::set<std::uint32_t>>> plain;
    for (std::uint32_t seat = 0; seat < count; ++seat)
      for (std::uint64_t step = 41; step < 43; ++step)
        for (const EqualExtent& what : {kWeights, kOthers}) {
          const std::uint64_t sum = below(4) == 0 ? below(3) : 0;
          nodes[below(static_cast<std::uint32_t>(nodes.size()))].add(sum_of(seat, sum, step, what));
          plain[{step, what.extent.begin}][sum].insert(seat);
        }
    while (nodes.size() > 1) {
      nodes[below(static_cast<std::uint32_t>(nodes.size() - 1))].add(*parse_equal_sums(to_text(nodes.back())));
      nodes.pop_back();
    }
    std::size_t named = 0;
    for (const Compared& one : nodes[0].compared(Step(42))) {
      if (one.others.empty()) continue;
      const auto& seats = plain[{one.step.value, one.what.extent.begin}];
      EXPECT_EQ(one.others.size() + 1, seats.size());
      EXPECT_EQ(one.most.seats, seats.at(one.most.sum).size());
      for (const EqualSum& other : one.others) {
        EXPECT_EQ(other.seats, seats.at(other.sum).size());
        EXPECT_EQ(other.first.value, *seats.at(other.sum).begin());
        EXPECT_LE(other.seats, one.most.seats);
      }
      ++named;
    }
    std::size_t expected = 0;
    for (const auto& [where, sums] : plain) expected += sums.size() > 1 ? 1 : 0;
    EXPECT_EQ(named, expected) << "round " << round;
    differed += named > 0 ? 1 : 0;
  }
  EXPECT_GT(differed, 300);
}

TEST(EqualSums, OtherTextIsRefused) {
  EXPECT_TRUE(parse_equal_sums("")->empty());
  for (const char* wrong : {"x", "\n", "41 0 8192 99 7 1 0", "41 0 8192 99 7 1\n", "41 0 8192 99 7 1 0 1\n",
                            "41 8192 8192 99 7 1 0\n", "41 0 8192 99 7 0 0\n", "41 0 8192 99 7 4294967296 0\n",
                            "41 0 8192 99 7 1 4294967296\n", "41 0 8192 99 -7 1 0\n"})
    EXPECT_FALSE(parse_equal_sums(wrong)) << wrong;
}

}  // namespace
}  // namespace pawl::job
