#include "checkpoint/store/part_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "base/crc32c.h"
#include "base/text.h"
#include "checkpoint/reshape/open_files.h"
#include "checkpoint/store/store_test_kit.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kBucket = 64 << 10;

MemorySums sums_of(std::span<const std::byte> memory) {
  MemorySums sums{memory, kBucket, {}};
  for (std::size_t at = 0; at < memory.size(); at += kBucket)
    sums.crc32c.push_back(crc32c(memory.subspan(at, std::min<std::size_t>(kBucket, memory.size() - at))));
  return sums;
}

// Pieces of all sizes, from anywhere in some memory to anywhere in a file.
struct Scene {
  explicit Scene(std::uint64_t seed) : random(seed), memory(pattern((5 << 20) + 77, seed)) {
    file.head = "a head of " + std::to_string(random() % 5000) + std::string(random() % 5000, 'h');
    std::uint64_t at = file.head.size(), from = 0;
    while (at < 7u << 20) {
      at += random() % 3 == 0 ? random() % (3 << 20) : random() % 100;
      const std::uint64_t size = 1 + (random() % 2 == 0 ? random() % (2 << 20) : random() % 9000);
      from += random() % 3 == 0 ? random() % 5000 : 0;
      if (from + size > memory.size()) from = 0;
      if (from + size > memory.size()) continue;
      pieces.push_back({memory.data() + from, at, size});
      at += size;
      from += size;
    }
    file.size_bytes = at + random() % 2 * (random() % 10000);
  }

  Result<WrittenPieces> write(const std::string& path, const MemorySums* cut, const ExecuteOptions& options) {
    file.path = path;
    PAWL_TRY(make_target({path, file.size_bytes}));
    return write_dense_pieces(file, pieces, cut, options);
  }
  // The file as it has to be.
  std::string expected() const {
    std::string all(file.size_bytes, '\0');
    std::ranges::copy(file.head, all.begin());
    for (const DensePiece& piece : pieces) std::memcpy(all.data() + piece.offset_bytes, piece.memory, piece.size_bytes);
    return all;
  }

  std::mt19937_64 random;
  Bytes memory;
  TargetFile file;
  std::vector<DensePiece> pieces;
};

TEST(PartWriter, WritesEachByteWhereItBelongsAndSumsIt) {
  const TemporaryDirectory folder;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    Scene scene(seed);
    const MemorySums sums = sums_of(scene.memory);
    ExecuteOptions options;
    options.threads = 1 + seed % 3;
    options.memory_bytes = std::uint64_t{2 + seed % 20} << 20;
    options.io_uring = seed % 2 == 0;
    options.direct = seed % 4 < 3;
    std::uint64_t told = 0, bytes = 0;
    for (const DensePiece& piece : scene.pieces) bytes += piece.size_bytes;
    options.progress = [&](const ExecuteProgress& done) { told = done.bytes_done; };
    const std::string path = folder.path(text("file", seed));
    const Result<WrittenPieces> written = scene.write(path, seed % 5 == 0 ? nullptr : &sums, options);
    ASSERT_TRUE(written) << written.error().what;
    EXPECT_EQ(told, bytes);
    ASSERT_TRUE(*read_file(path, 100 << 20) == scene.expected()) << seed;
    for (std::size_t i = 0; i < scene.pieces.size(); ++i)
      ASSERT_EQ(written->crc32c[i], crc32c({scene.pieces[i].memory, scene.pieces[i].size_bytes})) << seed;
    const Status proven = prove(sums, written->ranges);
    EXPECT_TRUE(proven) << proven.error().what;
  }
}

TEST(PartWriter, AsksBeforeEachChunkAndEndsWhereItIsCancelledMeanwhile) {
  const TemporaryDirectory folder;
  const Bytes memory = pattern(5 << 20, 1);
  const TargetFile file{folder.path("file"), memory.size(), {}};
  ASSERT_TRUE(make_target(file));
  const std::vector<DensePiece> pieces{{memory.data(), 0, memory.size()}};
  std::atomic<std::uint64_t> asked{0};
  std::atomic<bool> cancel{false};
  ExecuteOptions options;
  options.threads = 2;
  options.cancel = &cancel;
  ASSERT_TRUE(write_dense_pieces(file, pieces, nullptr, options, [&](std::uint64_t bytes) { asked += bytes; }));
  EXPECT_EQ(asked, memory.size());
  const auto cancelled = write_dense_pieces(file, pieces, nullptr, options, [&](std::uint64_t) { cancel = true; });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, Code::cancelled);
}

TEST(PartWriter, LeavesWhatIsNoPiecesAsItIs) {
  const TemporaryDirectory folder;
  const Bytes memory = pattern(100, 1);
  const TargetFile file{folder.path("file"), 5 << 20, {}};
  ASSERT_TRUE(make_target(file));
  const std::string before(1 << 20, 'x');
  ASSERT_TRUE((*open_file(file.path, {.write = true}))->write_at(2 << 20, std::as_bytes(std::span(before))));
  const std::vector<DensePiece> pieces{{memory.data(), 4 << 20, 100}};
  ASSERT_TRUE(write_dense_pieces(file, pieces, nullptr, {}));
  EXPECT_EQ(read_file(file.path, 100 << 20)->substr(2 << 20, 1 << 20), before);
}

TEST(PartWriter, EndsWhenItIsCancelled) {
  const TemporaryDirectory folder;
  Scene scene(1);
  const std::atomic<bool> cancel{true};
  ExecuteOptions options;
  options.cancel = &cancel;
  const Result<WrittenPieces> written = scene.write(folder.path("file"), nullptr, options);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::cancelled);
}

TEST(MemorySums, TellEachFlippedByteThoughRangesAreKnown) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    Bytes memory = pattern(3 * kBucket + 1000, 5);
    const MemorySums sums = sums_of(memory);
    const std::uint64_t flipped = random() % memory.size();
    memory[flipped] ^= std::byte{1};
    // As a writer reads them: in any order, some within others, some over the ends of buckets or of the memory.
    std::vector<SummedRange> known;
    for (int k = 0; k < 20; ++k) {
      const std::uint64_t at = random() % memory.size(), size = random() % (memory.size() - at);
      const std::byte* const begin = memory.data() + at;
      const std::uint64_t most = k % 3 == 0 ? size : static_cast<std::uint64_t>(bucket_end(sums, begin) - begin);
      known.push_back({begin, std::min(size, most), crc32c({begin, std::min(size, most)})});
    }
    const Bytes other = pattern(50, 6);
    known.push_back({other.data(), other.size(), 17});
    const Status damaged = prove(sums, known);
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().code, Code::corrupt);
    EXPECT_NE(damaged.error().what.find(text("bucket ", flipped / kBucket, " ")), std::string::npos)
        << damaged.error().what;
    memory[flipped] ^= std::byte{1};
    for (SummedRange& range : known)
      if (range.memory != other.data()) range.crc32c = crc32c({range.memory, range.size_bytes});
    const Status whole = prove(sums, known);
    ASSERT_TRUE(whole) << whole.error().what;
  }
}

TEST(MemorySums, WhatWasReadCountsAndNotWhatLiesThereNow) {
  Bytes memory = pattern(kBucket, 5);
  const MemorySums sums = sums_of(memory);
  std::vector<SummedRange> known{{memory.data() + 10, 100, crc32c(std::span(memory).subspan(10, 100))}};
  memory[50] ^= std::byte{1};  // after it was read
  EXPECT_TRUE(prove(sums, known));
  known[0].crc32c ^= 1;  // and what was read was something else
  memory[50] ^= std::byte{1};
  EXPECT_FALSE(prove(sums, known));
}

TEST(MemorySums, ThereIsOneForEachBucket) {
  const Bytes memory = pattern(2 * kBucket, 5);
  MemorySums sums = sums_of(memory);
  sums.crc32c.pop_back();
  EXPECT_EQ(prove(sums).error().code, Code::invalid);
  EXPECT_TRUE(prove({}));
}

TEST(StoreFolder, PublishesNothingOfMemoryThatHasOtherSums) {
  const TemporaryDirectory folder;
  Bytes memory = pattern(2 * kBucket, 7);
  const MemorySums sums = sums_of(memory);
  const Shape shape{kBucket / 4};
  const auto piece = [&](std::size_t offset) {
    StorePiece one{"weight", "weight", ElementType::float32, shape, whole_box(shape), memory.data() + offset, {}};
    one.stride_bytes[0] = 4;
    return one;
  };
  StorePartOptions options = small_options();
  options.proof = &sums;
  const auto write = [&](const std::string& name) -> Result<std::string> {
    PAWL_ASSIGN(StoreFolder store, StoreFolder::begin(folder.path(name)));
    const std::vector<StorePiece> pieces{piece(0)};
    return write_store_part(store.folder(), 0, pieces, options);
  };
  ASSERT_TRUE(write("whole"));
  for (const std::size_t damaged : {std::size_t{3}, kBucket + 5}) {  // what is written, and what is not
    memory[damaged] ^= std::byte{1};
    const Result<std::string> written = write("damaged");
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Code::corrupt) << written.error().what;
    memory[damaged] ^= std::byte{1};
  }
}

}  // namespace
}  // namespace pawl::checkpoint
