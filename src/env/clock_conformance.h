// What every implementation of Clock must do. For tests: another one instantiates the suite with a way to make it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "env/clock.h"

namespace pawl {

class ClockConformance : public ::testing::TestWithParam<std::shared_ptr<Clock> (*)()> {
 protected:
  std::shared_ptr<Clock> made_ = GetParam()();
  Clock& clock_ = *made_;
};

TEST_P(ClockConformance, NeverRunsBackward) {
  const Duration now = clock_.now();
  const Duration boottime = clock_.boottime();
  EXPECT_GE(clock_.now(), now);
  EXPECT_GE(clock_.boottime(), boottime);
  EXPECT_GE(clock_.boottime(), now);  // it counts sleep too, so it is never behind
  EXPECT_GT(clock_.wall(), std::chrono::hours(24 * 365 * 40));
}

TEST_P(ClockConformance, SleepsAtLeastAsLongAsAsked) {
  const Duration now = clock_.now();
  const Duration boottime = clock_.boottime();
  clock_.sleep(std::chrono::milliseconds(3));
  EXPECT_GE(clock_.now() - now, std::chrono::milliseconds(3));
  EXPECT_GE(clock_.boottime() - boottime, std::chrono::milliseconds(3));
}

TEST_P(ClockConformance, WaitingForACoreIsNoSleep) {
  const Duration waited = clock_.waited_for_core();
  clock_.sleep(std::chrono::milliseconds(3));
  EXPECT_GE(clock_.waited_for_core(), waited);
}

TEST_P(ClockConformance, SleepingForNoTimeReturnsAtOnce) {
  const Duration now = clock_.now();
  clock_.sleep(-std::chrono::hours(1));
  clock_.sleep(Duration::zero());
  EXPECT_GE(clock_.now(), now);
  EXPECT_LT(clock_.now() - now, std::chrono::minutes(1));
}

TEST_P(ClockConformance, ADeadlineStandsOnIt) {
  const Deadline soon = Deadline::in(std::chrono::milliseconds(2), clock_);
  const Deadline later = Deadline::in(std::chrono::hours(1), clock_);
  clock_.sleep(std::chrono::milliseconds(2));
  EXPECT_TRUE(soon.passed());
  EXPECT_EQ(soon.left(), Duration::zero());
  EXPECT_FALSE(later.passed());
  EXPECT_LE(later.left(), std::chrono::hours(1) - std::chrono::milliseconds(2));
  EXPECT_TRUE(Deadline::at(clock_.now(), clock_).passed());
  EXPECT_TRUE(Deadline::in(Duration::max(), clock_).is_never());
}

}  // namespace pawl
