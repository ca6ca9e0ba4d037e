#include "job/erasure/parity_sums.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/crc32c.h"
#include "job/erasure/erasure_test_bytes.h"

namespace pawl::job {
namespace {

TEST(ParitySums, OfXorFollowFromTheSumsOfTheData) {
  for (const std::size_t size : {0u, 1u, 64u, 1000u, 100'003u}) {
    for (std::uint32_t count = 0; count < 6; ++count) {
      ByteVector all(size);
      std::vector<std::uint32_t> sums;
      for (const ByteVector& piece : random_fragments(count, size, size + count)) {
        sums.push_back(crc32c(piece));
        for (std::size_t i = 0; i < size; ++i) all[i] ^= piece[i];
      }
      EXPECT_EQ(crc32c_of_xor(sums, size), crc32c(all)) << count << " pieces of " << size;
    }
  }
}

TEST(ParitySums, OfEveryParityFollowFromTheSumsOfWhatIsFed) {
  const auto code = ErasureCode::make(5, 6);
  ASSERT_TRUE(code.has_value());
  for (const std::size_t size : {0u, 1u, 100u, 4096u, 4097u, 50'000u}) {
    const std::vector<ByteVector> fragments = plainly_encoded(*code, random_fragments(5, size, size));
    std::vector<std::vector<std::uint32_t>> fed(6, std::vector<std::uint32_t>(5));  // of each parity
    for (std::uint32_t j = 0; j < 5; ++j) {
      std::vector<std::uint8_t> coefficients;
      for (std::uint32_t p = 0; p < 6; ++p) coefficients.push_back(code->coefficients_of(p)[j]);
      std::vector<std::uint32_t> sums(6);
      // In two pieces, which need not end where a page does.
      multiplied_crc32c(std::span(fragments[j]).first(size / 3), coefficients, sums);
      multiplied_crc32c(std::span(fragments[j]).subspan(size / 3), coefficients, sums);
      for (std::uint32_t p = 0; p < 6; ++p) fed[p][j] = sums[p];
      EXPECT_EQ(sums[0], crc32c(fragments[j])) << "the first parity's are the data's own";
    }
    for (std::uint32_t p = 0; p < 6; ++p) EXPECT_EQ(crc32c_of_xor(fed[p], size), crc32c(fragments[5 + p])) << p;
  }
}

TEST(ParitySums, OfOtherRowsDoNotFollowFromTheDataAlone) {
  const auto code = ErasureCode::make(2, 2);
  const std::vector<ByteVector> fragments = plainly_encoded(*code, random_fragments(2, 1000, 1));
  const std::vector<std::uint32_t> sums{crc32c(fragments[0]), crc32c(fragments[1])};
  EXPECT_EQ(crc32c_of_xor(sums, 1000), crc32c(fragments[2]));
  EXPECT_NE(crc32c_of_xor(sums, 1000), crc32c(fragments[3]));
}

TEST(ParitySums, NoticeAFlippedBit) {
  const std::vector<ByteVector> pieces = random_fragments(3, 5000, 2);
  std::vector<std::uint32_t> sums;
  ByteVector all(5000);
  for (const ByteVector& piece : pieces) {
    sums.push_back(crc32c(piece));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] ^= piece[i];
  }
  ASSERT_EQ(crc32c_of_xor(sums, 5000), crc32c(all));
  all[4321] ^= std::byte{16};
  EXPECT_NE(crc32c_of_xor(sums, 5000), crc32c(all));
}

}  // namespace
}  // namespace pawl::job
