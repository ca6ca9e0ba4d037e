#include "job/daemon/loop.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Rounds : public testing::Test {
 protected:
  void SetUp() override { world.clock.stand_still(); }

  TestWorld world;
  std::unique_ptr<Loop> loop = *Loop::make(world.environment);
  std::vector<std::string> done;
};

TEST_F(Rounds, TasksAreDoneInTheOrderInWhichTheyWerePosted) {
  for (const char* name : {"a", "b", "c"}) loop->post([this, name] { done.emplace_back(name); });
  loop->stop();
  loop->run();
  EXPECT_EQ(done, (std::vector<std::string>{"a", "b", "c"}));
}

// The keeper kills a pawld that says nothing for long, however busy it is.
TEST_F(Rounds, TimersThatAreDueDoNotWaitForAllThatWasPosted) {
  std::function<void()> beat = [&] {
    done.emplace_back("beat");
    loop->after(100ms, beat);
  };
  loop->after(100ms, beat);
  for (int i = 0; i < 10; ++i)
    loop->post([this] {
      world.clock.skip(60ms);
      done.emplace_back("task");
    });
  loop->stop();
  loop->run();
  int longest = 0, tasks = 0;
  for (const std::string& name : done) {
    tasks = name == "task" ? tasks + 1 : 0;
    longest = std::max(longest, tasks);
  }
  EXPECT_EQ(longest, 2);
}

TEST_F(Rounds, ALongRoundIsNoStandstill) {
  std::vector<Duration> seen;
  std::function<void()> tick = [&] {
    seen.push_back(world.clock.boottime() - loop->last_round_boottime());
    loop->after(100ms, tick);
  };
  loop->post([&] {  // a round of its own: the first has none before it
    loop->after(100ms, tick);
    for (int i = 0; i < 10; ++i) loop->post([this] { world.clock.skip(60ms); });
    loop->stop();
  });
  loop->run();
  ASSERT_GE(seen.size(), 4u);
  for (const Duration since : seen) EXPECT_LT(since, 200ms);
}

TEST_F(Rounds, ATurnThatTakesLongIsCountedAndNamed) {
  struct GivesBackMemory {
    SkippingClock& clock;
    void operator()() const { clock.skip(200ms); }
  };
  loop->post([] {});
  loop->post(GivesBackMemory{world.clock});
  loop->post([] {});
  loop->stop();
  loop->run();
  EXPECT_EQ(loop->turns().long_count, 1u);
  EXPECT_GE(loop->turns().longest, 200ms);
  EXPECT_NE(loop->turns().longest_in.find("GivesBackMemory"), std::string::npos) << loop->turns().longest_in;
  EXPECT_EQ(loop->turns().crowded_count, 0u);
}

TEST_F(Rounds, WhoWaitsForACoreIsNotBusy) {
  loop->post([&] { world.clock.skip_without_a_core(200ms); });
  loop->post([&] { world.clock.skip(3ms); });
  loop->stop();
  loop->run();
  EXPECT_EQ(loop->turns().long_count, 0u);
  EXPECT_EQ(loop->turns().crowded_count, 1u);
  EXPECT_EQ(loop->turns().longest, Duration::zero());
}

}  // namespace
}  // namespace pawl::job
