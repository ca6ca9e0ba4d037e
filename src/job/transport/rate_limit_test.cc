#include "job/transport/rate_limit.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kRate = 100 << 20;
constexpr std::uint64_t kPiece = 1 << 20;  // takes 10 ms

// How many bytes get through in that time for somebody who asks again when he is told to, or so much later.
std::uint64_t passed(RateLimit& limit, Duration time, std::uint64_t piece, Duration late = 0ms) {
  std::uint64_t bytes = 0;
  for (Duration now = 5s; now < 5s + time;) {
    const Duration wait = limit.take(piece, now);
    if (wait == 0ms)
      bytes += piece;
    else
      now += wait + late;
  }
  return bytes;
}

constexpr double kOfTenSeconds = 10.0 * kRate;

TEST(RateLimit, LetsAsMuchThroughAsItSays) {
  for (const std::uint64_t piece : {std::uint64_t{1000}, kPiece, std::uint64_t{16} << 20}) {
    RateLimit limit(kRate);
    const auto bytes = static_cast<double>(passed(limit, 10s, piece));
    EXPECT_LE(bytes, kOfTenSeconds * 1.005 + static_cast<double>(piece)) << piece;
    EXPECT_GE(bytes, kOfTenSeconds * 0.99) << piece;
  }
}

// A task does not run the moment that it may.
TEST(RateLimit, WhoComesLateMakesUpForIt) {
  RateLimit limit(kRate);
  const auto bytes = static_cast<double>(passed(limit, 10s, kPiece, 30ms));
  EXPECT_LE(bytes, kOfTenSeconds * 1.01);
  EXPECT_GE(bytes, kOfTenSeconds * 0.99);
}

TEST(RateLimit, ButNotForMoreThanAMoment) {
  RateLimit limit(kRate);
  EXPECT_EQ(limit.take(kPiece, 0s), 0s);
  std::uint64_t at_once = 0;
  while (limit.take(kPiece, 1h) == 0s) at_once += kPiece;
  EXPECT_GE(at_once, kRate / 20);               // of 50 ms
  EXPECT_LE(at_once, kRate / 20 + 2 * kPiece);  // and the piece that overdraws
}

TEST(RateLimit, SaysWhenToAskAgainAndCountsNothingBefore) {
  RateLimit limit(kRate);
  while (limit.take(kPiece, 1s) == 0s) {
  }
  const Duration wait = limit.take(kPiece, 1s);
  EXPECT_GT(wait, 0ms);
  EXPECT_LE(wait, 10ms);
  EXPECT_EQ(limit.take(kPiece, 1s), wait);
  EXPECT_EQ(limit.take(kPiece, 1s + wait), 0ms);
  EXPECT_EQ(limit.take(kPiece, 1s + wait), 10ms);
}

TEST(RateLimit, APieceThatIsLargerThanTheRateGoesThroughWholeAndIsOwed) {
  RateLimit limit(1000);
  EXPECT_EQ(limit.take(5000, 1s), 0s);
  EXPECT_EQ(limit.take(1, 1s), 5s - kRateBurst);
  RateLimit slow(1);
  EXPECT_EQ(slow.take(std::numeric_limits<std::uint64_t>::max(), 1s), 0s);
  EXPECT_GT(slow.take(1, 1000s), 1h);
}

TEST(RateLimit, ZeroIsNone) {
  RateLimit limit(0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(limit.take(std::numeric_limits<std::uint64_t>::max(), 0s), 0s);
}

}  // namespace
}  // namespace pawl::job
