#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <ctime>
#include <random>
#include <string_view>
#include <vector>

namespace pawl {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32c, KnownVectors) {  // the check value, and RFC 3720 B.4
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c_reference(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
  std::vector<std::byte> block(32);
  EXPECT_EQ(crc32c(block), 0x8A9136AAu);
  std::memset(block.data(), 0xFF, block.size());
  EXPECT_EQ(crc32c(block), 0x62A8AB43u);
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(block), 0x46DD794Eu);
}

TEST(Crc32c, EqualsTheReferenceForEverySmallSizeAndAlignment) {
  const auto bytes = random_bytes(4096, 1);
  for (std::size_t offset = 0; offset < 16; ++offset) {
    for (std::size_t size = 0; size < 1700; ++size) {
      const auto part = std::span(bytes).subspan(offset, size);
      ASSERT_EQ(crc32c(part, 7), crc32c_reference(part, 7)) << "offset " << offset << " size " << size;
    }
  }
}

TEST(Crc32c, CopyEqualsTheReferenceAndWritesNothingElse) {
  std::mt19937_64 random(2);
  const auto source = random_bytes(1 << 20, 3);
  for (int round = 0; round < 400; ++round) {
    const std::size_t size = random() % (round % 2 == 0 ? 2000 : 400'000);
    const std::size_t from = random() % 64;
    const std::size_t to = round % 3 == 0 ? 64 : 64 + random() % 64;
    std::vector<std::byte> target(size + 256, std::byte{0xA5});
    const std::uint32_t sum = copy_crc32c(target.data() + to, source.data() + from, size);
    ASSERT_EQ(sum, crc32c_reference(std::span(source).subspan(from, size))) << "size " << size;
    ASSERT_EQ(std::memcmp(target.data() + to, source.data() + from, size), 0) << "size " << size;
    for (std::size_t i = 0; i < target.size(); ++i) {
      const bool inside = i >= to && i < to + size;
      ASSERT_TRUE(inside || target[i] == std::byte{0xA5}) << "at " << i << " size " << size;
    }
    ASSERT_EQ(copy_crc32c(target.data() + to, source.data() + from, size, 7),
              crc32c_reference(std::span(source).subspan(from, size), 7));
  }
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Past the caches it may be somewhat slower or faster than through them. Where lanes wrote parts of lines in turn it was
// 25 times as slow, and a gigabyte took seven seconds of a core.
TEST(Crc32c, ALargeCopyCostsWhatSmallOnesCost) {
  const auto from = random_bytes(4 << 20, 8);
  std::vector<std::byte> memory(from.size() + 64);
  std::byte* const to = memory.data() + (64 - std::bit_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  double large = 1e9, small = 1e9;  // the least of some: others use this machine, too
  for (int round = 0; round < 8; ++round) {
    for (const std::size_t piece : {from.size(), std::size_t{32} << 10}) {
      const double begin = cpu_seconds();
      for (std::size_t at = 0; at < from.size(); at += piece) copy_crc32c(to + at, from.data() + at, piece);
      double& least = piece == from.size() ? large : small;
      least = std::min(least, cpu_seconds() - begin);
    }
  }
  RecordProperty("ratio", std::to_string(large / small));
  EXPECT_LT(large, 6 * small);
}

TEST(Crc32c, PartsJoin) {
  std::mt19937_64 random(5);
  const auto bytes = random_bytes(200'000, 6);
  for (int round = 0; round < 300; ++round) {
    const std::size_t size = random() % bytes.size(), cut = size == 0 ? 0 : random() % size;
    const auto all = std::span(bytes).first(size);
    const std::uint32_t whole = crc32c(all);
    ASSERT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), whole);
    ASSERT_EQ(crc32c_combine(crc32c(all.first(cut)), crc32c(all.subspan(cut)), size - cut), whole);
  }
}

TEST(Crc32c, EveryFlippedBitIsSeen) {
  auto bytes = random_bytes(13'000, 7);
  const std::uint32_t sum = crc32c(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; bit += 13) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    ASSERT_NE(crc32c(bytes), sum) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

}  // namespace
}  // namespace pawl
