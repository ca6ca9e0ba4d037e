// What every implementation of Tasks must do. For tests: another one instantiates the suite with itself.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "env/clock.h"
#include "env/tasks.h"

namespace pawl {

struct TestedTasks {
  Tasks* tasks;
  Clock* clock;
};

class TasksConformance : public ::testing::TestWithParam<TestedTasks> {
 protected:
  Tasks& tasks_ = *GetParam().tasks;
  Clock& clock_ = *GetParam().clock;
};

TEST_P(TasksConformance, JoinReturnsWhenTheBodyHas) {
  bool done = false;
  auto task = tasks_.start("test", [&] {
    clock_.sleep(std::chrono::milliseconds(5));
    done = true;
  });
  task->join();
  EXPECT_TRUE(done);
}

TEST_P(TasksConformance, ATaskOutlivesItsHandle) {
  auto changed = tasks_.make_condition();
  std::mutex mutex;
  bool done = false;
  (void)tasks_.start("a name longer than the system shows", [&] {
    std::lock_guard lock(mutex);
    done = true;
    changed->notify_all();
  });
  std::unique_lock lock(mutex);
  while (!done) changed->wait(lock);
  EXPECT_TRUE(done);
}

TEST_P(TasksConformance, WaitingEndsWithItsTime) {
  auto changed = tasks_.make_condition();
  std::mutex mutex;
  std::unique_lock lock(mutex);
  const Duration until = clock_.now() + std::chrono::milliseconds(10);
  while (clock_.now() < until) changed->wait_for(lock, until - clock_.now());
  EXPECT_TRUE(lock.owns_lock());
}

TEST_P(TasksConformance, TwoTasksTakeTurns) {
  auto changed = tasks_.make_condition();
  std::mutex mutex;
  int turn = 0;
  const auto play = [&](int own) {
    return [&, own] {
      for (int i = 0; i < 50; ++i) {
        std::unique_lock lock(mutex);
        while (turn % 2 != own) changed->wait(lock);
        ++turn;
        changed->notify_all();
      }
    };
  };
  auto first = tasks_.start("first", play(0));
  auto second = tasks_.start("second", play(1));
  first->join();
  second->join();
  EXPECT_EQ(turn, 100);
}

}  // namespace pawl
