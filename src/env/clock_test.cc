#include "env/clock.h"

#include <gtest/gtest.h>

#include <ctime>

#include "env/clock_conformance.h"

namespace pawl {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<Clock> real() {
  return {&real_clock(), [](Clock*) {}};
}
INSTANTIATE_TEST_SUITE_P(Real, ClockConformance, ::testing::Values(&real));

TEST(Clock, TellsTheTimeOfDay) {
  EXPECT_NEAR(std::chrono::duration<double>(real_clock().wall()).count(), static_cast<double>(time(nullptr)), 2.0);
}

TEST(Deadline, CountsDownAndNeverGoesBelowZero) {
  EXPECT_TRUE(Deadline::in(0s).passed());
  EXPECT_TRUE(Deadline::in(-5s).passed());
  EXPECT_EQ(Deadline::in(-5s).left_for_poll_ms(), 0);
  const Deadline later = Deadline::in(1h);
  EXPECT_FALSE(later.passed());
  EXPECT_LE(later.left(), 1h);
  EXPECT_GT(later.left(), 59min);
}

TEST(Deadline, NeverIsNever) {
  EXPECT_TRUE(Deadline::in(Duration::max()).is_never());
  EXPECT_EQ(Deadline::never().left_for_poll_ms(), -1);
  EXPECT_FALSE(Deadline::never().passed());
}

TEST(Deadline, RoundsThePollTimeoutUpSoThatPollNeverSpins) {
  EXPECT_GE(Deadline::in(100us).left_for_poll_ms(), 0);
  EXPECT_EQ(Deadline::at(real_clock().now() + std::chrono::hours(24 * 365)).left_for_poll_ms(), 2147483647);
}

}  // namespace
}  // namespace pawl
