#include "checkpoint/store/division.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tensor/tiling.h"

namespace pawl::checkpoint {
namespace {

Box box_of(Shape size, Shape begin = {}) {
  Box box = whole_box(size);
  std::copy(begin.begin(), begin.end(), box.begin.begin());
  return box;
}

std::vector<std::uint64_t> bytes_by_holder(std::span<const DivisionItem> items, const std::vector<DividedBox>& divided,
                                           std::size_t holders) {
  std::vector<std::uint64_t> bytes(holders);
  for (const DividedBox& one : divided) bytes[one.holder] += volume(one.box) * items[one.item].element_bytes;
  return bytes;
}

TEST(Division, IsCutByRowsWhereBothPartsAreWorthIt) {
  const std::vector<DivisionItem> items{{box_of({8, 4}), 4}};
  const auto divided = divide_among(items, equal_rooms(128, 2), 16);
  ASSERT_EQ(divided.size(), 2u);
  EXPECT_EQ(divided[0].box, box_of({4, 4}));
  EXPECT_EQ(divided[1].holder, 1u);
  EXPECT_EQ(divided[1].box, box_of({4, 4}, {4, 0}));
  const auto whole = divide_among(items, equal_rooms(128, 2), 65);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].box, box_of({8, 4}));
}

TEST(Division, WhatHasNoRowsStaysWhole) {
  const std::vector<DivisionItem> items{
      {box_of({}), 8}, {box_of({1, 1}), 4}, {box_of({1, 6}, {3, 0}), 4}, {box_of({0, 4}), 4}};
  const auto divided = divide_among(items, equal_rooms(36, 2), 4);
  ASSERT_EQ(divided.size(), 4u);
  EXPECT_EQ(divided[0].box, box_of({}));
  EXPECT_EQ(divided[2].box, box_of({1, 2}, {3, 0})) << "the first dimension that has more than one";
  EXPECT_EQ(divided[3].box, box_of({1, 4}, {3, 2}));
  EXPECT_TRUE(divide_among(items, {}, 4).empty());
}

// Whatever is held: each element once, and nobody much more than its part.
TEST(Division, EveryElementIsWrittenOnceAndEvenly) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    std::vector<DivisionItem> items;
    std::uint64_t bytes = 0, largest_row = 0;
    for (std::size_t i = 0, count = 1 + random() % 12; i < count; ++i) {
      Shape size, begin;
      for (std::size_t d = 0, dimensions = random() % 4; d < dimensions; ++d) {
        size.push_back(random() % 9);
        begin.push_back(random() % 5);
      }
      items.push_back({box_of(size, begin), std::uint32_t{1} << random() % 4});
      bytes += volume(items.back().box) * items.back().element_bytes;
      const Box& box = items.back().box;
      const std::uint64_t rows = std::max<std::uint64_t>(
          1, box.dimensions == 0 ? 1 : *std::ranges::max_element(std::span(box.size).first(box.dimensions)));
      largest_row = std::max(largest_row, volume(box) / rows * items.back().element_bytes * rows);
    }
    const auto holders = static_cast<std::uint32_t>(1 + random() % 5);
    const std::uint64_t part_min = 1 + random() % 64;
    const auto divided = divide_among(items, equal_rooms(bytes, holders), part_min);
    for (std::uint32_t i = 0; i < items.size(); ++i) {
      std::vector<Box> boxes;
      for (const DividedBox& one : divided)
        if (one.item == i) boxes.push_back(one.box);
      if (volume(items[i].box) == 0)
        EXPECT_TRUE(boxes.empty());
      else
        EXPECT_TRUE(check_tiling(items[i].box, boxes).is_exact()) << round;
    }
    EXPECT_TRUE(std::ranges::is_sorted(divided, {}, &DividedBox::holder));
    const auto by_holder = bytes_by_holder(items, divided, holders);
    EXPECT_EQ(std::accumulate(by_holder.begin(), by_holder.end(), std::uint64_t{0}), bytes);
    const std::uint64_t even = (bytes + holders - 1) / holders;
    for (std::size_t h = 0; h + 1 < by_holder.size(); ++h)
      EXPECT_LE(by_holder[h], even + std::max(largest_row, 2 * part_min)) << round;
  }
}

}  // namespace
}  // namespace pawl::checkpoint
