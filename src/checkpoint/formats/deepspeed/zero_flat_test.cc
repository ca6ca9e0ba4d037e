// Flat partitions against a naive model that writes out every element.
#include "checkpoint/formats/deepspeed/zero_flat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

namespace pawl::checkpoint::deepspeed {
namespace {

using Element = std::pair<std::uint64_t, std::uint64_t>;  // parameter, index in it; {~0, 0}: padding
constexpr Element kPadding{~std::uint64_t{0}, 0};

// What a rank's flat tensor holds by fragments, element by element.
std::vector<Element> written_out(const std::vector<FlatFragment>& fragments, std::uint64_t size) {
  std::vector<Element> out(size, kPadding);
  for (const FlatFragment& fragment : fragments) {
    EXPECT_GT(fragment.count, 0u);
    for (std::uint64_t i = 0; i < fragment.count; ++i) {
      if (fragment.at + i >= size) {
        ADD_FAILURE() << "a fragment passes the end";
        return out;
      }
      EXPECT_EQ(out[fragment.at + i], kPadding) << "two fragments for one element";
      out[fragment.at + i] = {fragment.parameter, fragment.begin + i};
    }
  }
  return out;
}

TEST(ZeroFlat, joined_groups_are_cut_as_written_out) {
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t world = 1 + random() % 13;
    std::vector<std::uint64_t> counts, gaps;
    std::vector<Element> flat;
    for (std::uint64_t i = 0, n = random() % 9; i < n; ++i) {
      counts.push_back(random() % 3 == 0 ? random() % 3 : random() % 50);
      gaps.push_back(random() % 2 == 0 ? 0 : random() % 4);
      for (std::uint64_t e = 0; e < counts.back(); ++e) flat.emplace_back(i, e);
      flat.insert(flat.end(), gaps.back(), kPadding);
    }
    const std::uint64_t real = flat.size();
    while (flat.size() % (2 * world) != 0) flat.push_back(kPadding);
    const std::uint64_t each = flat.size() / world;
    const auto offsets = group_offsets(counts, gaps);
    ASSERT_TRUE(offsets.has_value());
    EXPECT_EQ(offsets->back(), real);
    for (std::uint64_t rank = 0; rank < world; ++rank) {
      const auto begin = flat.begin() + static_cast<std::ptrdiff_t>(rank * each);
      EXPECT_EQ(written_out(fragments_of_partition(counts, *offsets, each, rank), each),
                std::vector<Element>(begin, begin + static_cast<std::ptrdiff_t>(each)));
      EXPECT_EQ(real_size(real, each, rank),
                std::min(each, real > rank * each ? real - rank * each : std::uint64_t{0}));
    }
  }
}

TEST(ZeroFlat, parts_of_parameters_are_cut_as_written_out) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t world = 1 + random() % 13;
    std::vector<std::uint64_t> counts;
    for (std::uint64_t i = 0, n = random() % 9; i < n; ++i) counts.push_back(random() % 40);
    for (std::uint64_t rank = 0; rank < world; ++rank) {
      std::vector<Element> flat;
      for (std::uint64_t i = 0; i < counts.size(); ++i) {
        const std::uint64_t each = (counts[i] + world - 1) / world;
        for (std::uint64_t e = rank * each; e < (rank + 1) * each; ++e)
          flat.push_back(e < counts[i] ? Element{i, e} : kPadding);
      }
      EXPECT_EQ(written_out(fragments_of_parts(counts, world, rank), flat.size()), flat);
      const auto all = parameters_in(counts, world, flat.size());
      ASSERT_TRUE(all.has_value());
      EXPECT_EQ(*all, counts.size());
    }
  }
}

TEST(ZeroFlat, sub_groups_end_where_their_sizes_say) {
  const std::vector<std::uint64_t> counts = {10, 0, 5, 7};  // over 4 ranks: 3, 0, 2, 2
  EXPECT_EQ(parameters_in(counts, 4, 3).value_or(9), 2u);
  EXPECT_EQ(parameters_in(counts, 4, 5).value_or(9), 3u);
  EXPECT_EQ(parameters_in(counts, 4, 7).value_or(9), 4u);
  EXPECT_FALSE(parameters_in(counts, 4, 4).has_value());
  EXPECT_FALSE(parameters_in(counts, 4, 8).has_value());
}

TEST(ZeroFlat, numbers_of_anyone_do_no_harm) {
  const std::uint64_t huge = ~std::uint64_t{0} / 2;
  EXPECT_FALSE(group_offsets(std::vector<std::uint64_t>{huge, huge}, {}).has_value());
  EXPECT_FALSE(group_offsets(std::vector<std::uint64_t>{1, 2}, std::vector<std::uint64_t>{1}).has_value());
  EXPECT_FALSE(group_offsets(std::vector<std::uint64_t>{1}, std::vector<std::uint64_t>{~std::uint64_t{0}}).has_value());
  const std::vector<std::uint64_t> counts = {huge};
  const auto offsets = group_offsets(counts, {});
  ASSERT_TRUE(offsets.has_value());
  EXPECT_TRUE(fragments_of_partition(counts, *offsets, huge, 3).empty());
  EXPECT_TRUE(fragments_of_partition(counts, *offsets, 0, 3).empty());
  EXPECT_EQ(fragments_of_partition(counts, *offsets, huge - 1, 1).size(), 1u);
  EXPECT_EQ(part_size(huge, 1), huge);
}

}  // namespace
}  // namespace pawl::checkpoint::deepspeed
