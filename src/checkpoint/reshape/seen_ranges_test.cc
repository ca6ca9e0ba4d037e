// SeenRanges against sums of the whole ranges: stretches in any order, shown again, left out, and seen by others.
#include "checkpoint/reshape/seen_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace pawl::checkpoint {
namespace {

std::vector<std::byte> noise(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(size);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

struct Files {
  std::vector<std::byte> bytes[2] = {noise(5000, 1), noise(700, 2)};
  std::vector<FileRange> ranges = {{0, 10, 1000}, {0, 1000, 1000}, {0, 1200, 5000}, {1, 0, 700}};

  [[nodiscard]] std::span<const std::byte> of(const FileRange& range) const {
    return std::span(bytes[range.file]).subspan(range.begin, range.end - range.begin);
  }
  void show(SeenRanges& seen, const FileRange& range) const { seen.add(range.file, range.begin, of(range)); }
  [[nodiscard]] std::unique_ptr<SeenRanges> made(ChecksumKind kind) const {
    Result<std::unique_ptr<SeenRanges>> seen = SeenRanges::create(ranges, kind);
    EXPECT_TRUE(seen.has_value());
    return std::move(*seen);
  }
};

class SeenRangesTest : public ::testing::TestWithParam<ChecksumKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, SeenRangesTest, ::testing::Values(ChecksumKind::crc32, ChecksumKind::crc32c));

TEST_P(SeenRangesTest, StretchesInAnyOrderAndAgainAndTheGapsMakeTheWhole) {
  const Files files;
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::unique_ptr<SeenRanges> seen = files.made(GetParam());
    for (int i = 0; i < 12; ++i) {
      const std::uint32_t file = random() % 2;
      const std::uint64_t size = files.bytes[file].size(), begin = random() % size;
      files.show(*seen, {file, begin, begin + 1 + random() % (size - begin)});
    }
    for (std::size_t i = 0; i < files.ranges.size(); ++i) {
      for (const FileRange& gap : seen->gaps(i)) files.show(*seen, gap);
      EXPECT_TRUE(seen->gaps(i).empty());
      EXPECT_FALSE(seen->is_doubtful(i));
      EXPECT_EQ(seen->value_at(i), checksum(GetParam(), files.of(files.ranges[i])));
    }
  }
}

TEST_P(SeenRangesTest, ProcessesJoinAndBytesThatTwoSawAreDoubtful) {
  const Files files;
  const std::unique_ptr<SeenRanges> one = files.made(GetParam()), other = files.made(GetParam()),
                                    all = files.made(GetParam());
  files.show(*one, {0, 0, 600});
  files.show(*other, {0, 600, 1000});
  files.show(*one, {1, 0, 400});
  files.show(*other, {1, 300, 700});
  ASSERT_TRUE(all->join(one->words()));
  ASSERT_TRUE(all->join(other->words()));
  EXPECT_TRUE(all->gaps(0).empty());
  EXPECT_FALSE(all->is_doubtful(0));
  EXPECT_EQ(all->value_at(0), checksum(GetParam(), files.of(files.ranges[0])));
  EXPECT_FALSE(all->is_doubtful(2));
  EXPECT_EQ(all->gaps(2), (std::vector<FileRange>{files.ranges[2]}));
  EXPECT_TRUE(all->is_doubtful(3));
}

TEST(SeenRanges, WhatIsNoOnesWordsIsRefused) {
  const Files files;
  const std::unique_ptr<SeenRanges> seen = files.made(ChecksumKind::crc32);
  std::string words = seen->words();
  EXPECT_TRUE(seen->join(words));
  words.pop_back();
  EXPECT_EQ(seen->join(words).error().code, Code::invalid);
  EXPECT_EQ(seen->join("").error().code, Code::invalid);
}

}  // namespace
}  // namespace pawl::checkpoint
