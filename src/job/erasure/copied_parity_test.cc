#include "job/erasure/copied_parity.h"

#include <gtest/gtest.h>

#include <string>
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
    const std::vector<Bytes> fragments = plainly_encoded(code, random_fragments(3, size, size));
    std::vector<Bytes> parities = random_fragments(2, size, 5), copies(3, Bytes(size));
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
      const std::vector<Bytes> fragments = plainly_encoded(code, random_fragments(k, size, size));
      std::vector<Bytes> parities(m, Bytes(size)), copied(k, Bytes(size));
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

TEST(CopiedParity, RefusesWhatDoesNotFit) {
  const ErasureCode code = code_of(2, 1);
  const std::vector<Bytes> data = random_fragments(2, 100, 1);
  std::vector<Bytes> copied(2, Bytes(100)), parity{Bytes(100)};
  Bytes short_copy(99);
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
  EXPECT_EQ(copied[0], Bytes(100)) << "nothing was written";
  EXPECT_EQ(parity[0], Bytes(100));
}

}  // namespace
}  // namespace pawl::job
