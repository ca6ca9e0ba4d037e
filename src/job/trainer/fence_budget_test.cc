#include "job/trainer/fence_budget.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

TEST(FenceBudget, WaitsTakeTheirShareOfTheTime) {
  FenceBudget budget({.wait_max = 10s, .share_percent = 10});
  EXPECT_EQ(budget.allowed(), 10s) << "the first windows take longest";
  Duration now = 100s, waited = 0s;
  budget.window_opened(now);
  for (int step = 0; step < 1000; ++step) {  // each fence takes all that it may
    const Duration wait = budget.allowed();
    budget.waited(wait);
    waited += wait;
    now += 1s + wait;
    budget.window_opened(now);
  }
  // 1000 s of training, at a share of the waits as well.
  EXPECT_GE(waited, 10s + 100s);
  EXPECT_LE(waited, 10s + 115s);
}

TEST(FenceBudget, SavesUpForOneLongWait) {
  FenceBudget budget({.wait_max = 10s, .share_percent = 10});
  budget.window_opened(1s);
  budget.waited(10s);
  EXPECT_EQ(budget.allowed(), 5ms) << "what costs next to nothing is always waited for";
  budget.window_opened(21s);
  EXPECT_EQ(budget.allowed(), 2s);
  budget.window_opened(1021s);
  EXPECT_EQ(budget.allowed(), 10s);
  budget.waited(20s);
  budget.window_opened(1031s);
  EXPECT_EQ(budget.allowed(), 1s);
}

TEST(FenceBudget, AShareOfNothingStillAllowsLittle) {
  FenceBudget budget({.wait_max = 1ms, .share_percent = 0});
  budget.window_opened(1s);
  EXPECT_EQ(budget.allowed(), 1ms);
  budget.waited(1ms);
  budget.window_opened(100s);
  EXPECT_EQ(budget.allowed(), 1ms);
}

TEST(TimeLeft, GoesOnAsItHas) {
  EXPECT_EQ(time_left(1s, 0, 10), std::nullopt);
  EXPECT_EQ(time_left(1s, 2, 10), 4s);
  EXPECT_EQ(time_left(1s, 10, 10), 0s);
  EXPECT_EQ(time_left(1s, 12, 10), 0s) << "threads that found nothing have counted on";
}

}  // namespace
}  // namespace pawl::job
