#include "job/redundancy/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace pawl::job {
namespace {

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

TEST(MemoryPlanned, OwnSeatsAndWards) {
  EXPECT_EQ(bytes_needed({4 * kGib, 2, 1, 0}), 4 * kGib);
  EXPECT_EQ(bytes_needed({4 * kGib, 2, 8, 2}), 96 * kGib);
}

TEST(MemoryPlanned, OfASmallFailureDomainHoldsMoreOfOthers) {
  EXPECT_EQ(bytes_needed({4 * kGib, 2, 8, 1, 24}), 4 * kGib * (8 + 24));
  EXPECT_EQ(bytes_needed({4 * kGib, 2, 8, 1, 3}), 4 * kGib * 16) << "a spare may get the seats of any node";
}

TEST(MemoryPlanned, IsRefusedWithItsArithmetic) {
  EXPECT_TRUE(check_memory({4 * kGib, 2, 2, 1}, 16 * kGib));
  const Status refused = check_memory({4 * kGib, 2, 2, 1}, 15 * kGib);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
  for (const char* words : {"2 own seat(s) and 2 replica(s) of others", "2 slots of 2.0 GiB each, are 16.0 GiB",
                            "15.0 GiB are available", "--replicas 0"})
    EXPECT_NE(refused.error().what.find(words), std::string::npos) << refused.error().what;
}

TEST(MemoryPlanned, ABudgetCountsWhereItIsLessThanWhatThereIs) {
  MemoryPlan plan{4 * kGib, 2, 2, 1};
  plan.budget_bytes = 16 * kGib;
  EXPECT_TRUE(check_memory(plan, 64 * kGib));
  plan.budget_bytes = 15 * kGib;
  const Status refused = check_memory(plan, 64 * kGib);
  ASSERT_FALSE(refused);
  for (const char* words : {"--memory allows too little for", "are 16.0 GiB; 15.0 GiB are allowed",
                            "allow more (--memory)", "--replicas 0"})
    EXPECT_NE(refused.error().what.find(words), std::string::npos) << refused.error().what;
  plan.of_spare = true;
  EXPECT_NE(check_memory(plan, 64 * kGib).error().what.find("a new job that allows more"), std::string::npos);
  plan.of_spare = false;
  const Status less = check_memory(plan, 14 * kGib);
  ASSERT_FALSE(less);
  EXPECT_NE(less.error().what.find("14.0 GiB are available"), std::string::npos) << less.error().what;
}

TEST(MemoryPlanned, FewerReplicasAreNoRemedyForTooManySeats) {
  const Status refused = check_memory({4 * kGib, 2, 2, 1}, 7 * kGib);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().what.find("--replicas"), std::string::npos) << refused.error().what;
}

TEST(MemoryPlanned, ASpareIsToldThatItCantBeOne) {
  const Status refused = check_memory({4 * kGib, 2, 2, 1, 0, true}, 15 * kGib);
  ASSERT_FALSE(refused);
  for (const char* words : {"to be a spare", "are 16.0 GiB; 15.0 GiB are available: "})
    EXPECT_NE(refused.error().what.find(words), std::string::npos) << refused.error().what;
}

TEST(SegmentsReady, ASpareKeepsAllThatItWillNeed) {
  const MemoryPlan plan{4 * kGib, 2, 2, 1};
  EXPECT_EQ(segments_wanted(plan, {.is_spare = true}), std::vector(4, 4 * kGib));
  EXPECT_TRUE(segments_wanted({0, 2, 2, 1}, {.is_spare = true}).empty()) << "nobody has told how large they are";
  EXPECT_TRUE(segments_wanted(plan, {.ready = 4}).empty()) << "of a job that is over";
}

TEST(SegmentsReady, AWardsHasNoThirdSlot) {
  const MemoryPlan plan{3 * kGib, 3, 1, 2};
  const std::vector<std::uint64_t> sizes = segments_wanted(plan, {.is_spare = true});
  ASSERT_EQ(sizes.size(), 3U);
  EXPECT_EQ(sizes[0], 3 * kGib);
  for (const std::size_t ward : {1, 2}) {
    EXPECT_GE(sizes[ward], 2 * kGib + 4096) << "there is a header beside the slots";
    EXPECT_LE(sizes[ward], 2 * kGib + (std::uint64_t{1} << 20));
  }
  EXPECT_EQ(segments_wanted({8192, 3, 1, 1}, {.is_spare = true}), std::vector<std::uint64_t>(2, 8192));
}

TEST(SegmentsReady, AreKeptForTheLargestThatTheyFit) {
  const auto kept = [](const std::vector<std::uint64_t>& ready, const std::vector<std::uint64_t>& wanted) {
    const SegmentsKept found = keep_segments(ready, wanted);
    return std::pair(found.kept, found.missing);
  };
  using Kept = std::pair<std::vector<std::size_t>, std::vector<std::uint64_t>>;
  EXPECT_EQ(kept({}, {3, 2}), (Kept{{}, {3, 2}}));
  EXPECT_EQ(kept({2, 3}, {3, 2}), (Kept{{1, 0}, {}}));
  EXPECT_EQ(kept({2}, {3, 2}), (Kept{{0}, {3}}));
  EXPECT_EQ(kept({1, 2, 3, 3}, {3, 2}), (Kept{{2, 3}, {}})) << "the rest is let go";
  EXPECT_EQ(kept({2, 2}, {3}), (Kept{{}, {3}})) << "of another size";
  EXPECT_EQ(kept({2, 3}, {0}), (Kept{{1}, {}})) << "of a member";
  EXPECT_EQ(kept({2, 3}, {}), (Kept{{}, {}}));
}

TEST(SegmentsReady, AMemberUsesThemUpAndMakesNone) {
  const MemoryPlan plan{4 * kGib, 2, 2, 1};
  const auto count = [&](std::uint32_t arenas_here, std::uint32_t ready) {
    const auto sizes = segments_wanted(plan, {.is_member = true, .arenas_here = arenas_here, .ready = ready});
    EXPECT_TRUE(std::ranges::all_of(sizes, [](std::uint64_t size) { return size == 0; }));
    return sizes.size();
  };
  EXPECT_EQ(count(0, 4), 4U);
  EXPECT_EQ(count(3, 4), 1U);
  EXPECT_EQ(count(4, 2), 0U);
  EXPECT_EQ(count(9, 2), 0U);
  EXPECT_EQ(count(0, 0), 0U);
}

}  // namespace
}  // namespace pawl::job
