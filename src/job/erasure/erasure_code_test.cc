#include "job/erasure/erasure_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include "job/erasure/galois.h"

namespace pawl::job {
namespace {

ErasureCode code_of(std::uint32_t k, std::uint32_t m) {
  auto code = ErasureCode::make(k, m);
  EXPECT_TRUE(code.has_value());
  return *std::move(code);
}

std::string refusal(std::uint32_t k, std::uint32_t m) {
  const auto code = ErasureCode::make(k, m);
  return code.has_value() ? "" : code.error().what;
}

TEST(Galois, IsTheFieldOfPolynomial11d) {
  EXPECT_EQ(galois_multiply(0x80, 2), 0x1d);  // x^8 = x^4 + x^3 + x^2 + 1
  EXPECT_EQ(galois_multiply(0x53, 0xca), 0x8f);
  unsigned power = 1, order = 0;
  do {
    power = galois_multiply(static_cast<std::uint8_t>(power), 2);
    ++order;
  } while (power != 1);
  EXPECT_EQ(order, 255u) << "2 is a generator";
  EXPECT_EQ(galois_inverse(0), 0);
  for (unsigned a = 1; a < 256; ++a)
    EXPECT_EQ(galois_multiply(static_cast<std::uint8_t>(a), galois_inverse(static_cast<std::uint8_t>(a))), 1) << a;
}

TEST(Galois, TablesAndMatricesMultiply) {
  for (unsigned c = 0; c < 256; ++c) {
    for (unsigned x = 0; x < 256; ++x) {
      const unsigned product = galois_multiply(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(x));
      ASSERT_EQ(kNibbleProducts[c].low[x & 15] ^ kNibbleProducts[c].high[x >> 4], product);
      unsigned bits = 0;
      for (int bit = 0; bit < 8; ++bit)
        bits |= (std::popcount(static_cast<unsigned>(kBitMatrices[c] >> (8 * (7 - bit)) & 255) & x) & 1U) << bit;
      ASSERT_EQ(bits, product);
    }
  }
}

TEST(ErasureCode, FirstParityIsTheSumAndOneDataFragmentIsCopied) {
  for (const std::uint32_t k : {1u, 2u, 4u, 8u, 28u}) {
    const ErasureCode code = code_of(k, 4);
    EXPECT_TRUE(std::ranges::all_of(code.coefficients_of(0), [](std::uint8_t c) { return c == 1; }));
    for (std::uint32_t p = 0; p < 4; ++p) {
      EXPECT_EQ(code.coefficients_of(p)[0], 1) << "so 1+4 are copies";
      EXPECT_FALSE(std::ranges::count(code.coefficients_of(p), 0));
    }
  }
}

TEST(ErasureCode, CoefficientsDependOnNeitherCount) {
  const ErasureCode large = code_of(16, 16);
  for (const auto& [k, m] : {std::pair{4u, 2u}, {8u, 3u}, {16u, 1u}}) {
    const ErasureCode code = code_of(k, m);
    for (std::uint32_t p = 0; p < m; ++p)
      EXPECT_TRUE(std::ranges::equal(code.coefficients_of(p), large.coefficients_of(p).first(k)));
  }
}

// What is written into memory and read by another release must never change.
TEST(ErasureCode, CoefficientsStayWhatTheyAre) {
  const ErasureCode code = code_of(4, 3);
  const std::vector<std::uint8_t> made(code.coefficients().begin(), code.coefficients().end());
  EXPECT_EQ(made, (std::vector<std::uint8_t>{1, 1, 1, 1, 1, 232, 220, 240, 1, 220, 130, 32}));
}

// Every square part can be inverted: for all patterns of the smaller codes.
TEST(ErasureCode, AnyKFragmentsGiveAPlan) {
  for (const auto& [k, m] : {std::pair{1u, 3u}, {2u, 2u}, {4u, 2u}, {5u, 5u}, {8u, 3u}}) {
    const ErasureCode code = code_of(k, m);
    for (std::uint32_t mask = 0; mask < 1u << (k + m); ++mask) {
      if (static_cast<std::uint32_t>(std::popcount(mask)) != k) continue;
      std::vector<std::uint32_t> there, lost;
      for (std::uint32_t i = 0; i < k + m; ++i) ((mask >> i & 1) != 0 ? there : lost).push_back(i);
      const auto plan = code.plan_decode(there, lost);
      ASSERT_TRUE(plan.has_value()) << plan.error().what;
      ASSERT_EQ(plan->sources, there);
      ASSERT_EQ(plan->coefficients.size(), k * lost.size());
    }
  }
}

TEST(ErasureCode, PlansTakeDataFirstAndLoseNothingForMore) {
  const ErasureCode code = code_of(4, 3);
  const std::vector<std::uint32_t> there{6, 5, 3, 1, 0}, lost{2, 4};
  const auto plan = code.plan_decode(there, lost);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->sources, (std::vector<std::uint32_t>{0, 1, 3, 5}));
  EXPECT_EQ(plan->rebuilt, lost);
  // Fragment 2 from the others and the first parity alone: their sum.
  const std::vector<std::uint32_t> with_first{0, 1, 3, 4}, one{2};
  EXPECT_EQ(code.plan_decode(with_first, one)->coefficients, (std::vector<std::uint8_t>{1, 1, 1, 1}));
}

TEST(ErasureCode, RefusesWhatItCannotBe) {
  EXPECT_EQ(refusal(0, 1), "erasure code 0+1: it takes at least one data and one parity fragment");
  EXPECT_EQ(refusal(4, 0), "erasure code 4+0: it takes at least one data and one parity fragment");
  EXPECT_EQ(refusal(30, 3), "erasure code 30+3: these are 33 fragments, at most 32 are possible");
  EXPECT_NE(refusal(4'294'967'295u, 2), "");
  EXPECT_EQ(refusal(31, 1), "");
  EXPECT_EQ(refusal(1, 31), "");
}

TEST(ErasureCode, RefusesPlansThatCannotBe) {
  const ErasureCode code = code_of(4, 2);
  const auto fault = [&](std::vector<std::uint32_t> there, std::vector<std::uint32_t> lost) {
    const auto plan = code.plan_decode(there, lost);
    EXPECT_FALSE(plan.has_value());
    return plan.has_value() ? Error{} : plan.error();
  };
  EXPECT_EQ(fault({0, 1, 2}, {3}).what, "decode 4+2: 3 fragments are there, 4 are needed");
  EXPECT_EQ(fault({0, 1, 2}, {3}).code, Code::not_found);
  EXPECT_EQ(fault({0, 1, 2, 6}, {3}).what, "decode 4+2: there is no fragment 6, the last one is 5");
  EXPECT_EQ(fault({0, 1, 2, 2}, {3}).what, "decode 4+2: fragment 2 is named twice");
  EXPECT_EQ(fault({0, 1, 2, 4}, {3, 2}).what, "decode 4+2: fragment 2 is named twice");
  EXPECT_EQ(fault({0, 1, 2, 4}, {3, 3}).code, Code::invalid);
}

}  // namespace
}  // namespace pawl::job
