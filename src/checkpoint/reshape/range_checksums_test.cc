#include "checkpoint/reshape/range_checksums.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "base/crc32c.h"
#include "base/text.h"
#include "checkpoint/reshape/file_source.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes out(size);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

std::span<const std::byte> as_span(std::string_view text) {
  return std::as_bytes(std::span(text));
}

RangeChecksums checksums_of(std::vector<FileRange> ranges, ChecksumKind kind) {
  Result<RangeChecksums> made = RangeChecksums::create(std::move(ranges), kind);
  EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().what);
  return std::move(made).value();
}

TEST(RangeChecksums, GivesTheKnownChecksumOfNineDigits) {
  EXPECT_EQ(checksum(ChecksumKind::crc32, as_span("123456789")), 0xCBF43926u);
  EXPECT_EQ(checksum(ChecksumKind::crc32c, as_span("123456789")), 0xE3069283u);
  for (const auto& [kind, expected] :
       {std::pair(ChecksumKind::crc32, 0xCBF43926u), {ChecksumKind::crc32c, 0xE3069283u}}) {
    RangeChecksums sums = checksums_of({{3, 100, 109}}, kind);
    sums.add(3, 106, as_span("789"));
    sums.add(3, 100, as_span("123456"));
    sums.add(2, 100, as_span("123456789"));  // another file
    EXPECT_EQ(sums.value_of({3, 100, 109}).value_or(0), expected);
  }
}

TEST(RangeChecksums, OfStretchesInAnyOrderFromManyThreadsAreThoseOfTheWhole) {
  for (const ChecksumKind kind : {ChecksumKind::crc32, ChecksumKind::crc32c}) {
    const Bytes file = random_bytes(300'000, 7);
    const std::vector<FileRange> ranges = {{0, 0, 1}, {0, 1, 8}, {0, 8, 8}, {0, 100, 4196}, {0, 70'001, 299'999}};
    RangeChecksums sums = checksums_of(ranges, kind);
    std::mt19937_64 random(11);
    std::set<std::uint64_t> cuts = {0, file.size()};
    for (int i = 0; i < 500; ++i) cuts.insert(random() % file.size());
    std::vector<std::pair<std::uint64_t, std::uint64_t>> stretches;
    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) stretches.push_back({*cut, *std::next(cut)});
    std::ranges::shuffle(stretches, random);
    const WriteObserver observe = sums.observer();
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i < stretches.size(); i += 4) {
          const auto [begin, end] = stretches[i];
          observe(0, begin, std::span(file).subspan(begin, end - begin));
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const std::span<const std::byte> bytes =
          std::span(file).subspan(ranges[i].begin, ranges[i].end - ranges[i].begin);
      const std::uint32_t expected =
          kind == ChecksumKind::crc32c
              ? crc32c_reference(bytes)
              : static_cast<std::uint32_t>(
                    ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
      EXPECT_EQ(sums.value_at(i), expected) << i;
      EXPECT_EQ(sums.value_of(ranges[i]).value_or(~expected), expected) << i;
    }
  }
}

TEST(RangeChecksums, CountBytesThatNobodyWroteAsZeros) {
  for (const ChecksumKind kind : {ChecksumKind::crc32, ChecksumKind::crc32c}) {
    Bytes file(10'000);
    const Bytes some = random_bytes(100, 3);
    std::ranges::copy(some, file.begin() + 5'000);
    RangeChecksums sums = checksums_of({{0, 0, 10'000}, {1, 0, 77}}, kind);
    sums.add(0, 5'000, some);
    EXPECT_EQ(sums.value_at(0), checksum(kind, file));
    EXPECT_EQ(sums.value_at(1), checksum(kind, Bytes(77)));
  }
}

TEST(RangeChecksums, RefuseRangesOutOfOrderAndUnknownOnes) {
  const ChecksumKind kind = ChecksumKind::crc32c;
  EXPECT_FALSE(RangeChecksums::create({{0, 8, 4}}, kind));
  EXPECT_FALSE(RangeChecksums::create({{0, 0, 4}, {0, 3, 5}}, kind));
  EXPECT_FALSE(RangeChecksums::create({{1, 0, 4}, {0, 8, 9}}, kind));
  const RangeChecksums sums = checksums_of({{0, 0, 4}, {1, 0, 4}}, kind);
  EXPECT_EQ(sums.value_of({0, 0, 5}).error().code, Code::not_found);
  EXPECT_EQ(sums.value_of({2, 0, 4}).error().code, Code::not_found);
}

// --- With the executor

// Columns of a matrix go to two files, at odd offsets, in strides: rows of a file come from several slabs and lanes.
TEST(RangeChecksums, SeeEveryByteThatTheExecutorWritesOnce) {
  const TemporaryDirectory folder;
  constexpr std::uint64_t kRows = 3'000, kColumns = 257, kHead = 13;
  const Bytes memory = random_bytes(kRows * kColumns * 4, 5);
  CopyTarget target;
  target.files = {{folder.path("a"), kHead + kRows * 200 * 4 + 9, std::string(kHead, 'h')},
                  {folder.path("b"), kRows * 57 * 4, {}}};
  target.place = [&](std::uint32_t, std::uint32_t buffer) {
    const std::uint64_t at = buffer == 0 ? kHead : 0;
    return BufferPlace{nullptr, buffer, at, target.files[buffer].size_bytes - at};
  };
  CopySource source;
  source.place = [&](std::uint32_t, std::uint32_t) {
    return BufferPlace{const_cast<std::byte*>(memory.data()), 0, 0, memory.size()};
  };
  const auto copy_columns = [&](std::uint64_t begin, std::uint64_t count, std::uint32_t file, std::uint64_t at,
                                std::uint64_t row) {
    PlannedCopy copy;
    copy.box.dimensions = 2;
    copy.box.begin = {0, begin};
    copy.box.size = {kRows, count};
    copy.sources = {{0, 0, begin, {kColumns, 1}}};
    copy.target = {0, file, at, {row, 1}};
    return copy;
  };
  ExecuteOptions options;
  options.memory_bytes = 1 << 20;
  options.threads = 2;
  RangeChecksums sums = checksums_of({{0, kHead, kHead + kRows * 400},
                                      {0, kHead + kRows * 400, target.files[0].size_bytes},
                                      {1, 0, target.files[1].size_bytes}},
                                     ChecksumKind::crc32);
  std::atomic<std::uint64_t> seen{0};
  options.observe = [&](std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
    seen += bytes.size();
    sums.add(file, offset_bytes, bytes);
  };
  const Result<ExecuteReport> done = execute(
      stream_of({copy_columns(0, 150, 0, 0, 200), copy_columns(150, 50, 0, 150, 200), copy_columns(200, 57, 1, 0, 57)}),
      source, target, options);
  ASSERT_TRUE(done.has_value()) << done.error().what;
  EXPECT_EQ(seen, memory.size());
  for (std::size_t i = 0; i < sums.ranges().size(); ++i) {
    const FileRange& range = sums.ranges()[i];
    const Result<std::string> content = read_file(target.files[range.file].path, std::uint64_t{1} << 30);
    ASSERT_TRUE(content.has_value());
    const std::string_view bytes = std::string_view(*content).substr(range.begin, range.end - range.begin);
    EXPECT_EQ(sums.value_at(i), checksum(ChecksumKind::crc32, as_span(bytes))) << i;
  }
}

}  // namespace
}  // namespace pawl::checkpoint
