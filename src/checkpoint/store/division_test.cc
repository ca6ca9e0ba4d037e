#include "checkpoint/store/division.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>

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

TEST(Division, RoomsFillUpToOneLevel) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint64_t> loads(1 + random() % 6);
    for (std::uint64_t& load : loads) load = random() % 50;
    const std::uint64_t bytes = random() % 200;
    std::uint64_t level = 0;  // the lowest up to which they hold it all
    const auto room_below = [&](std::uint64_t top) {
      std::uint64_t sum = 0;
      for (const std::uint64_t load : loads) sum += top - std::min(top, load);
      return sum;
    };
    while (room_below(level) < bytes) ++level;
    std::vector<std::uint64_t> rooms;
    for (const std::uint64_t load : loads) rooms.push_back(level - std::min(level, load));
    EXPECT_EQ(level_rooms(bytes, loads), rooms) << round;
  }
  EXPECT_TRUE(level_rooms(5, {}).empty());
  EXPECT_EQ(equal_rooms(10, 4), std::vector<std::uint64_t>(4, 3));
}

using Ranks = std::vector<std::vector<HeldPiece>>;

HeldPiece held(std::string_view name, const Shape& shape, std::string_view role = "weight", std::uint64_t sample = 1) {
  return {name, role, "float32", shape, whole_box(shape), 4, sample};
}

std::vector<std::uint64_t> loads_of(const Ranks& ranks, const std::vector<std::vector<WrittenBox>>& written) {
  std::vector<std::uint64_t> loads(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (const auto& [piece, box] : written[rank]) loads[rank] += volume(box) * ranks[rank][piece].element_bytes;
  return loads;
}

std::vector<std::size_t> counts_of(const Result<std::vector<std::vector<WrittenBox>>>& written) {
  std::vector<std::size_t> counts;
  for (const auto& of_rank : written.value()) counts.push_back(of_rank.size());
  return counts;
}

TEST(Division, WhoeverHasMoreOfItsOwnGetsLessOfWhatAllHave) {
  const Ranks ranks{{held("stage0", {7000}), held("all", {14000})},
                    {held("stage1", {3000}), held("all", {14000})},
                    {held("all", {14000})}};
  EXPECT_EQ(loads_of(ranks, divide_pieces(ranks, {true, 16}).value()), std::vector<std::uint64_t>(3, 32000));
  const Ranks full{{held("own", {30000}), held("all", {3000})}, {held("all", {3000})}};
  EXPECT_EQ(loads_of(full, divide_pieces(full, {true, 16}).value()), (std::vector<std::uint64_t>{120000, 12000}));
}

TEST(Division, WhatMayDifferComesWholeFromTheLowestRank) {
  for (const std::string_view role : {"buffer", "extra_state"}) {
    const HeldPiece table = held("table", {1u << 20}, role, 0);
    EXPECT_EQ(counts_of(divide_pieces(Ranks{{}, {table}, {table}}, {true, 1})), (std::vector<std::size_t>{0, 1, 0}));
  }
  const Ranks diverged{{}, {held("w", {64})}, {held("w", {64}, "weight", 2)}};
  EXPECT_EQ(counts_of(divide_pieces(diverged, {false, 1})), (std::vector<std::size_t>{0, 1, 0}));
  const Ranks equal{{}, {held("w", {64})}, {held("w", {64})}};
  EXPECT_EQ(counts_of(divide_pieces(equal, {true, 1})), (std::vector<std::size_t>{0, 1, 1}));
}

TEST(Division, ATensorWithoutElementsIsWrittenOnce) {
  HeldPiece none = held("none", {0, 3});
  HeldPiece nothing_of_it = held("w", {4});
  nothing_of_it.box.begin[0] = 4;
  nothing_of_it.box.size[0] = 0;
  const Ranks ranks{{nothing_of_it}, {held("w", {4}), none}, {none}};
  const auto written = divide_pieces(ranks);
  EXPECT_EQ(counts_of(written), (std::vector<std::size_t>{0, 2, 0}));
  EXPECT_EQ(written.value()[1][1].piece, 1u);
}

TEST(Division, APieceThatARankHasTwiceCountsOnce) {
  const Ranks ranks{{held("w", {8}), held("w", {8})}, {held("w", {8})}};
  const auto written = divide_pieces(ranks, {true, 1}).value();
  EXPECT_EQ(loads_of(ranks, written), (std::vector<std::uint64_t>{16, 16}));
  EXPECT_EQ(written[0][0].piece, 0u);
}

TEST(Division, RanksThatDisagreeAreRefused) {
  const auto refusal = [](const Ranks& ranks) { return divide_pieces(ranks).error().what; };
  const std::string shapes = refusal({{held("x", {1}), held("w", {2, 3})}, {held("w", {2, 4})}});
  EXPECT_EQ(shapes,
            "tensors of one name differ between ranks: w (weight): float32 [2, 3] on rank 0, float32 [2, 4] on rank 1: "
            "give each rank's model names of its own, with rename=");
  HeldPiece other_type = held("w", {2});
  other_type.type = "bfloat16";
  EXPECT_NE(refusal({{held("w", {2})}, {other_type}}).find("float32 [2] on rank 0, bfloat16 [2]"), std::string::npos);
  const std::string samples =
      refusal({{held("b", {2}), held("a", {2})}, {held("a", {2}, "weight", 2)}, {held("b", {2}, "weight", 3)}});
  EXPECT_EQ(samples,
            "ranks hold different values of what should be equal: a (weight) on ranks 0 and 1; b (weight) on ranks 0 "
            "and 2: if these are different parameters, give them names of their own, with rename=; if they are "
            "replicas that have diverged, broadcast one of them, or save with check_replicas=False, which keeps those "
            "of the lowest rank");
  Ranks many(2);
  for (const std::string_view name : {"h", "g", "f", "e", "d", "c", "b"}) {
    many[0].push_back(held(name, {2}));
    many[1].push_back(held(name, {2}, "weight", 2));
  }
  EXPECT_NE(refusal(many).find("equal: h (weight) on ranks 0 and 1; g "), std::string::npos) << "in their order";
  EXPECT_NE(refusal(many).find("; and 2 more: if"), std::string::npos);
}

TEST(Division, PiecesThatCannotBeAreRefused) {
  HeldPiece outside = held("w", {2});
  outside.box.begin[0] = 1;
  EXPECT_EQ(divide_pieces(Ranks{{}, {outside}}).error().code, Code::invalid);
  EXPECT_NE(divide_pieces(Ranks{{}, {outside}}).error().what.find("w (weight) on rank 1: box"), std::string::npos);
  const std::uint64_t half = std::uint64_t{1} << 31;
  EXPECT_EQ(divide_pieces(Ranks{{held("w", {half, half, 4})}}).error().code, Code::invalid);
  EXPECT_EQ(divide_pieces(Ranks{{held("a", {half, half / 4})}, {held("b", {half, half / 4})}}).error().code,
            Code::invalid)
      << "each could be counted, both together not";
  EXPECT_TRUE(divide_pieces(Ranks{{held("a", {half, half / 8})}, {held("a", {half, half / 8})}}));
}

constexpr std::array<std::string_view, 8> kNames{"layer.0", "layer.1", "layer.10", "layer.2", "a", "ab", "z", "Z"};

// Boxes along the first dimension, each on a few ranks, in an order of the rank's own.
Ranks random_ranks(std::mt19937_64& random) {
  Ranks ranks(1 + random() % 6);
  for (const std::string_view name : kNames) {
    Shape shape;
    for (std::size_t d = 0, dimensions = random() % 4; d < dimensions; ++d) shape.push_back(random() % 9);
    HeldPiece piece = held(name, shape, random() % 4 == 0 ? "buffer" : "weight");
    piece.element_bytes = std::uint32_t{1} << random() % 4;
    const std::uint64_t cut = shape.empty() ? 0 : random() % (shape[0] + 1);
    const bool is_cut = cut != 0 && cut != shape[0];
    for (int part = 0; part < (is_cut ? 2 : 1); ++part) {
      if (is_cut) piece.box.begin[0] = part == 0 ? 0 : cut;
      if (is_cut) piece.box.size[0] = part == 0 ? cut : shape[0] - cut;
      const std::uint64_t always = random() % ranks.size();
      for (std::size_t rank = 0; rank < ranks.size(); ++rank)
        if (rank == always || random() % 2 == 0) ranks[rank].push_back(piece);
    }
  }
  for (std::vector<HeldPiece>& pieces : ranks) std::ranges::shuffle(pieces, random);
  return ranks;
}

// How often each element of a tensor is written, in no clever way.
std::vector<int> write_counts(const Ranks& ranks, const std::vector<std::vector<WrittenBox>>& written,
                              const HeldPiece& tensor) {
  std::vector<int> counts(volume(whole_box(tensor.shape)));
  const PerDimension stride = dense_stride(whole_box(tensor.shape));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [piece, box] : written[rank]) {
      if (ranks[rank][piece].name != tensor.name) continue;
      for (std::uint64_t i = 0; i < volume(box); ++i) {
        std::uint64_t at = 0, rest = i;
        for (std::uint32_t d = box.dimensions; d-- > 0; rest /= box.size[d])
          at += (box.begin[d] + rest % box.size[d]) * stride[d];
        ++counts[at];
      }
    }
  }
  return counts;
}

TEST(Division, EveryElementOfRandomRanksIsWrittenOnceByWhoHasIt) {
  std::mt19937_64 random(3);
  int cuts = 0;
  for (int round = 0; round < 300; ++round) {
    const Ranks ranks = random_ranks(random);
    const std::uint64_t part_min = std::array<std::uint64_t, 4>{1, 16, 100, kPartBytesMin}[random() % 4];
    const auto written = divide_pieces(ranks, {true, part_min}).value();
    ASSERT_EQ(written.size(), ranks.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_TRUE(std::ranges::is_sorted(written[rank], {}, &WrittenBox::piece)) << round;
      for (const auto& [index, box] : written[rank]) {
        const HeldPiece& piece = ranks[rank].at(index);
        EXPECT_EQ(intersection(piece.box, box), box) << round;
        if (box == piece.box) continue;
        ++cuts;
        EXPECT_NE(piece.role, "buffer") << round;
        EXPECT_GE(volume(box) * piece.element_bytes, part_min) << round;
      }
    }
    for (const std::vector<HeldPiece>& pieces : ranks)
      for (const HeldPiece& piece : pieces)
        for (const int count : write_counts(ranks, written, piece)) ASSERT_EQ(count, 1) << round << piece.name;
  }
  EXPECT_GT(cuts, 100);
}

// In what order a rank lists its pieces decides nothing.
TEST(Division, TheOrderOfListsDoesNotMatter) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 100; ++round) {
    Ranks ranks = random_ranks(random);
    const auto named = [&](std::size_t rank) {
      std::vector<std::string> out;
      const auto written = divide_pieces(ranks, {true, 1}).value();
      for (const auto& [index, box] : written[rank])
        if (volume(box) != 0) out.push_back(std::string(ranks[rank][index].name) + text_of(box));
      std::ranges::sort(out);
      return out;
    };
    const std::size_t rank = random() % ranks.size();
    const std::vector<std::string> before = named(rank);
    for (std::vector<HeldPiece>& pieces : ranks) std::ranges::shuffle(pieces, random);
    EXPECT_EQ(named(rank), before) << round;
  }
}

// Where each holder is in one pair and one four, the least possible load is known: that of the fullest of these sets.
TEST(Division, TheFullestHasAsLittleAsCanBe) {
  constexpr std::size_t kRanks = 8;
  constexpr std::uint64_t kRowBytes = 3 * 4, kPartMin = 24;
  std::mt19937_64 random(9);
  for (int round = 0; round < 200; ++round) {
    Ranks ranks(kRanks);
    std::uint64_t least = 0;
    std::vector<std::uint64_t> within(kRanks);  // bytes whose holders all lie in the rank's set of this size
    for (std::size_t size = 1, name = 3; size <= kRanks; size *= 2, --name) {  // names in the other order
      for (std::size_t first = 0; first < kRanks; first += size) {
        HeldPiece piece = held(kNames[name], {kRanks * 500, 3});
        piece.box.begin[0] = first * 500;
        piece.box.size[0] = random() % 500;
        for (std::size_t rank = first; rank < first + size; ++rank) ranks[rank].push_back(piece);
        within[first] = volume(piece.box) * 4 + within[first] + (size > 1 ? within[first + size / 2] : 0);
        least = std::max(least, (within[first] + size - 1) / size);
      }
    }
    const auto loads = loads_of(ranks, divide_pieces(ranks, {true, kPartMin}).value());
    EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), std::uint64_t{0}), within[0]);
    EXPECT_LE(*std::ranges::max_element(loads), least + kRanks * (kPartMin + kRowBytes)) << round;
  }
}

}  // namespace
}  // namespace pawl::checkpoint
