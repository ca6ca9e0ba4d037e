#include "job/erasure/copied_parity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/crc32c.h"
#include "job/erasure/erasure_test_bytes.h"

namespace pawl::job {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 100, 4096, 16384, 16385, 70'000};

ErasureCode code_of(std::uint32_t k, std::uint32_t m) {
  auto code = ErasureCode::make(k, m);
  EXPECT_TRUE(code.has_value());
  return *std::move(code);
}

TEST(CopiedParity, OneAfterTheOtherIsCopySumAndParity) {
  const ErasureCode code = code_of(3, 2);
  for (const std::size_t size : kSizes) {
    const std::vector<ByteVector> fragments = plainly_encoded(code, random_fragments(3, size, size));
    std::vector<ByteVector> parities = random_fragments(2, size, 5), copies(3, ByteVector(size));
    const std::vector<ParityRoom> rooms{{0, parities[0]}, {1, parities[1]}};
    for (std::uint32_t j = 0; j < 3; ++j) {
      const auto sum = contribute_copied(code, j, {fragments[j], copies[j], 77}, rooms,
                                         j == 0 ? Contribution::first : Contribution::further);
      ASSERT_TRUE(sum.has_value());
      EXPECT_EQ(*sum, crc32c(fragments[j], 77));
      EXPECT_EQ(copies[j], fragments[j]);
    }
    EXPECT_EQ(parities[0], fragments[3]) << size;
    EXPECT_EQ(parities[1], fragments[4]) << size;
  }
}

TEST(CopiedParity, AllAtOnceIsCopySumAndParity) {
  for (const auto& [k, m] : {std::pair{1u, 1u}, {4u, 2u}, {5u, 6u}}) {
    const ErasureCode code = code_of(k, m);
    for (const std::size_t size : kSizes) {
      const std::vector<ByteVector> fragments = plainly_encoded(code, random_fragments(k, size, size));
      std::vector<ByteVector> parities(m, ByteVector(size)), copied(k, ByteVector(size));
      std::vector<FragmentCopy> copies;
      for (std::uint32_t j = 0; j < k; ++j) copies.push_back({fragments[j], copied[j], j});
      ASSERT_TRUE(encode_copied(code, copies, rooms_of(parities)).has_value());
      for (std::uint32_t j = 0; j < k; ++j) {
        EXPECT_EQ(copied[j], fragments[j]);
        EXPECT_EQ(copies[j].sum, crc32c(fragments[j], j));
      }
      for (std::uint32_t p = 0; p < m; ++p) EXPECT_EQ(parities[p], fragments[k + p]) << k << "+" << m << " of " << size;
    }
  }
}

TEST(CopiedParity, IsTheSameWhereverItLies) {
  const ErasureCode code = code_of(3, 2);
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::size_t size = random() % (round % 2 == 0 ? 400 : 40'000);
    const std::vector<ByteVector> fragments = plainly_encoded(code, random_fragments(3, size, random()));
    // Copies and parities alike within their lines, or copies alone, or none.
    const std::size_t alike = random() % 64;
    const auto place = [&](bool is_alike) { return is_alike ? alike : random() % 64; };
    std::vector<ByteVector> memory(8, ByteVector(size + 192, std::byte{0xA5}));
    std::vector<std::byte*> at;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t line = -reinterpret_cast<std::uintptr_t>(memory[i].data()) & 63;
      at.push_back(memory[i].data() + line + place(i < 3 ? round % 3 < 2 : i < 5 ? round % 3 == 0 : false));
    }
    std::vector<FragmentCopy> copies;
    for (std::uint32_t j = 0; j < 3; ++j) {
      std::ranges::copy(fragments[j], at[5 + j]);
      copies.push_back({{at[5 + j], size}, {at[j], size}, j});
    }
    const std::vector<FragmentRoom> parities{{at[3], size}, {at[4], size}};
    const auto check = [&](const char* how) {
      for (std::uint32_t i = 0; i < 5; ++i) {
        ASSERT_TRUE(std::ranges::equal(FragmentBytes{at[i], size}, fragments[i]))
            << how << ", round " << round << ", " << i;
        for (std::byte* byte = memory[i].data(); byte < memory[i].data() + memory[i].size(); ++byte)
          ASSERT_TRUE((byte >= at[i] && byte < at[i] + size) || *byte == std::byte{0xA5}) << how << ", round " << round;
      }
      for (std::uint32_t j = 0; j < 3; ++j) ASSERT_EQ(copies[j].sum, crc32c(fragments[j], j)) << how;
    };
    ASSERT_TRUE(encode_copied(code, copies, parities).has_value());
    check("all at once");
    for (std::uint32_t j = 0; j < 3; ++j) {
      const std::vector<ParityRoom> rooms{{1, parities[1]}, {0, parities[0]}};
      std::ranges::fill(copies[j].to, std::byte{0});
      copies[j].sum = j;
      const auto sum =
          contribute_copied(code, j, copies[j], rooms, j == 0 ? Contribution::first : Contribution::further);
      ASSERT_TRUE(sum.has_value());
      copies[j].sum = *sum;
    }
    check("one by one");
  }
}

TEST(CopiedParity, RefusesWhatDoesNotFit) {
  const ErasureCode code = code_of(2, 1);
  const std::vector<ByteVector> data = random_fragments(2, 100, 1);
  std::vector<ByteVector> copied(2, ByteVector(100)), parity{ByteVector(100)};
  ByteVector short_copy(99);
  const std::vector<ParityRoom> room{{0, parity[0]}};
  const auto first = contribute_copied(code, 0, {data[0], short_copy}, room, Contribution::first);
  ASSERT_FALSE(first.has_value());
  EXPECT_EQ(first.error().what, "contribute: the copy of source 0 has 99 bytes, the source has 100");
  EXPECT_FALSE(contribute_copied(code, 2, {data[0], copied[0]}, room, Contribution::first).has_value());
  std::vector<FragmentCopy> copies{{data[0], copied[0]}, {data[1], short_copy}};
  EXPECT_EQ(encode_copied(code, copies, rooms_of(parity)).error().what,
            "encode: the copy of source 1 has 99 bytes, the source has 100");
  copies.pop_back();
  EXPECT_EQ(encode_copied(code, copies, rooms_of(parity)).error().what,
            "encode: the code has 2+1 fragments, given are 1+1");
  EXPECT_EQ(copied[0], ByteVector(100)) << "nothing was written";
  EXPECT_EQ(parity[0], ByteVector(100));
}

}  // namespace
}  // namespace pawl::job
