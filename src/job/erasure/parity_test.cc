#include "job/erasure/parity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "job/erasure/erasure_test_bytes.h"

namespace pawl::job {
namespace {

constexpr std::size_t kSize = 1000;

ErasureCode code_of(std::uint32_t k, std::uint32_t m) {
  auto code = ErasureCode::make(k, m);
  EXPECT_TRUE(code.has_value());
  return *std::move(code);
}

std::vector<ByteVector> encoded(const ErasureCode& code, std::size_t size, std::uint64_t seed) {
  std::vector<ByteVector> data = random_fragments(code.data_count(), size, seed);
  std::vector<ByteVector> parities(code.parity_count(), ByteVector(size));
  EXPECT_TRUE(encode(code, bytes_of(data), rooms_of(parities)).has_value());
  data.insert(data.end(), parities.begin(), parities.end());
  return data;
}

// Rebuilds what the mask leaves out from what it has. Empty: every fragment is what it was.
std::string rebuild(const ErasureCode& code, const std::vector<ByteVector>& fragments, std::uint64_t mask,
                    std::size_t damaged_coefficient = ~std::size_t{0}) {
  std::vector<std::uint32_t> there, lost;
  for (std::uint32_t i = 0; i < code.fragment_count(); ++i) ((mask >> i & 1) != 0 ? there : lost).push_back(i);
  auto plan = code.plan_decode(there, lost);
  if (!plan) return plan.error().what;
  if (damaged_coefficient < plan->coefficients.size()) plan->coefficients[damaged_coefficient] ^= 4;
  std::vector<FragmentBytes> sources;
  for (const std::uint32_t source : plan->sources) sources.emplace_back(fragments[source]);
  std::vector<ByteVector> rebuilt(lost.size(), ByteVector(fragments[0].size(), std::byte{0xA5}));
  if (Status done = decode(*plan, sources, rooms_of(rebuilt)); !done) return done.error().what;
  for (std::size_t i = 0; i < lost.size(); ++i)
    if (rebuilt[i] != fragments[lost[i]]) return text("fragment ", lost[i], " differs");
  return "";
}

TEST(Parity, IsWhatThePlainWayMakes) {
  for (const auto& [k, m] : {std::pair{1u, 2u}, {3u, 1u}, {4u, 2u}, {8u, 3u}, {20u, 12u}}) {
    const ErasureCode code = code_of(k, m);
    EXPECT_EQ(encoded(code, kSize, k), plainly_encoded(code, random_fragments(k, kSize, k))) << k << "+" << m;
  }
}

TEST(Parity, OfLongFragmentsIsTheSame) {  // which bypass the caches
  const ErasureCode code = code_of(3, 2);
  EXPECT_EQ(encoded(code, (1 << 20) + 77, 5), plainly_encoded(code, random_fragments(3, (1 << 20) + 77, 5)));
}

TEST(Parity, EveryPatternOfLossesIsRebuilt) {
  int patterns = 0;
  for (const auto& [k, m] : {std::pair{1u, 1u}, {1u, 3u}, {2u, 2u}, {3u, 1u}, {4u, 2u}, {5u, 3u}, {8u, 2u}, {8u, 3u}}) {
    const ErasureCode code = code_of(k, m);
    const std::vector<ByteVector> fragments = encoded(code, 333, k * 100 + m);
    for (std::uint64_t mask = 0; mask < 1u << (k + m); ++mask) {
      if (static_cast<std::uint32_t>(std::popcount(mask)) < k) continue;
      ASSERT_EQ(rebuild(code, fragments, mask), "") << k << "+" << m << " of mask " << mask;
      ++patterns;
    }
  }
  EXPECT_EQ(patterns, 3 + 15 + 11 + 5 + 22 + 93 + 56 + 232);
}

TEST(Parity, CodesOf32FragmentsAreRebuiltFromAnyOfThem) {
  std::mt19937_64 random(7);
  for (const std::uint32_t m : {1u, 4u, 8u, 16u, 31u}) {
    const ErasureCode code = code_of(32 - m, m);
    const std::vector<ByteVector> fragments = encoded(code, 130, m);
    for (int round = 0; round < 60; ++round) {
      std::uint64_t mask = 0;
      while (static_cast<std::uint32_t>(std::popcount(mask)) < 32 - m) mask |= std::uint64_t{1} << random() % 32;
      ASSERT_EQ(rebuild(code, fragments, mask), "") << "32 fragments, " << m << " parities, mask " << mask;
    }
  }
}

// The comparison above can fail: one wrong coefficient, wherever it is, is seen.
TEST(Parity, AWrongCoefficientIsSeen) {
  const ErasureCode code = code_of(4, 2);
  const std::vector<ByteVector> fragments = encoded(code, kSize, 9);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NE(rebuild(code, fragments, 0b110110, i), "") << i;
  // And one in the encoder.
  std::vector<ByteVector> wrong = fragments;
  for (std::size_t i = 0; i < kSize; ++i) wrong[5][i] ^= times(4, fragments[2][i]);
  EXPECT_NE(rebuild(code, wrong, 0b110011), "");
}

TEST(Parity, ContributionsComeInAnyOrderAndInParts) {
  const ErasureCode code = code_of(5, 3);
  const std::vector<ByteVector> fragments = encoded(code, kSize, 21);
  std::mt19937_64 random(22);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::uint32_t> order{0, 1, 2, 3, 4};
    std::ranges::shuffle(order, random);
    std::vector<ByteVector> parities = random_fragments(3, kSize, 23);  // what was there doesn't matter
    const std::size_t cut = random() % kSize;
    for (const auto& [begin, size] : {std::pair{std::size_t{0}, cut}, {cut, kSize - cut}}) {
      for (const std::uint32_t j : order) {
        std::vector<ParityRoom> rooms;
        for (std::uint32_t p = 0; p < 3; ++p) rooms.push_back({p, std::span(parities[p]).subspan(begin, size)});
        const FragmentBytes data = std::span(fragments[j]).subspan(begin, size);
        ASSERT_TRUE(
            contribute(code, j, data, rooms, j == order[0] ? Contribution::first : Contribution::further).has_value());
      }
    }
    for (std::uint32_t p = 0; p < 3; ++p) ASSERT_EQ(parities[p], fragments[5 + p]) << "parity " << p;
  }
}

TEST(Parity, AContributionMadeTwiceIsTakenOut) {
  const ErasureCode code = code_of(2, 2);
  const std::vector<ByteVector> fragments = encoded(code, kSize, 31);
  ByteVector parity(kSize);
  const std::vector<ParityRoom> room{{1, parity}};
  ASSERT_TRUE(contribute(code, 0, fragments[0], room, Contribution::first).has_value());
  const ByteVector of_one = parity;
  ASSERT_TRUE(contribute(code, 1, fragments[1], room, Contribution::further).has_value());
  EXPECT_EQ(parity, fragments[3]);
  ASSERT_TRUE(contribute(code, 1, fragments[1], room, Contribution::further).has_value());
  EXPECT_NE(parity, fragments[3]);
  EXPECT_EQ(parity, of_one);
  ASSERT_TRUE(contribute(code, 0, fragments[0], room, Contribution::first).has_value());
  ASSERT_TRUE(contribute(code, 1, fragments[1], room, Contribution::further).has_value());
  EXPECT_EQ(parity, fragments[3]) << "who begins again is right again";
}

TEST(Parity, AFragmentThatNeverContributesCountsAsZeros) {
  const ErasureCode code = code_of(3, 2);
  std::vector<ByteVector> data = random_fragments(3, kSize, 41);
  data[2].assign(kSize, std::byte{0});
  const std::vector<ByteVector> with_zeros = plainly_encoded(code, data);
  ByteVector first = random_bytes(kSize, 42), second = random_bytes(kSize, 43);
  const std::vector<ParityRoom> rooms{{1, second}, {0, first}};
  ASSERT_TRUE(contribute(code, 1, data[1], rooms, Contribution::first).has_value());
  ASSERT_TRUE(contribute(code, 0, data[0], rooms, Contribution::further).has_value());
  EXPECT_EQ(first, with_zeros[3]);
  EXPECT_EQ(second, with_zeros[4]);
}

TEST(Parity, RefusesWhatDoesNotFit) {
  const ErasureCode code = code_of(2, 1);
  std::vector<ByteVector> data = random_fragments(2, 100, 1), parity{ByteVector(100)}, untouched = parity;
  const auto what = [](const Status& status) { return status.has_value() ? "" : status.error().what; };
  const auto three = random_fragments(3, 100, 1);
  EXPECT_EQ(what(encode(code, bytes_of(three), rooms_of(parity))), "encode: the code has 2+1 fragments, given are 3+1");
  std::vector<ByteVector> uneven = data;
  uneven[1].resize(99);
  EXPECT_EQ(what(encode(code, bytes_of(uneven), rooms_of(parity))),
            "encode: source 1 has 99 bytes, source 0 has 100: all fragments must be equally long");
  std::vector<ByteVector> longer{ByteVector(101)};
  EXPECT_EQ(what(encode(code, bytes_of(data), rooms_of(longer))),
            "encode: target 0 has 101 bytes, source 0 has 100: all fragments must be equally long");
  const std::vector<ParityRoom> second{{1, parity[0]}}, twice{{0, parity[0]}, {0, parity[0]}},
      long_room{{0, longer[0]}};
  EXPECT_EQ(what(contribute(code, 2, data[0], {}, Contribution::first)),
            "contribute: there is no data fragment 2 in 2+1");
  EXPECT_EQ(what(contribute(code, 0, data[0], second, Contribution::first)), "contribute: there is no parity 1 in 2+1");
  EXPECT_EQ(what(contribute(code, 0, data[0], twice, Contribution::first)), "contribute: parity 0 is named twice");
  EXPECT_EQ(what(contribute(code, 0, data[0], long_room, Contribution::first)),
            "contribute: parity 0 has 101 bytes, the data have 100: all fragments must be equally long");
  const std::vector<std::uint32_t> there{0, 2}, lost{1};
  const DecodePlan plan = *code.plan_decode(there, lost);
  EXPECT_EQ(what(decode(plan, bytes_of(three), rooms_of(parity))),
            "decode: the plan rebuilds 1 fragments from 2, given are 1 and 3");
  EXPECT_EQ(decode({}, {}, {}).error().code, Code::broken);
  EXPECT_EQ(parity, untouched);
}

}  // namespace
}  // namespace pawl::job
