// What every implementation of Processes must do. For tests: another one says how its processes come and go, and
// instantiates the suite.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "env/clock.h"
#include "env/process.h"
#include "env/tasks.h"

namespace pawl {

// Processes under test, and what Processes itself does not do.
class TestedProcesses {
 public:
  virtual ~TestedProcesses() = default;
  virtual Processes& processes() = 0;
  virtual Clock& clock() = 0;
  virtual Tasks& tasks() = 0;
  virtual pid_t start() = 0;             // a process that sleeps, until
  virtual void end(pid_t pid) = 0;       // it is gone without a trace when this returns
  virtual uid_t user_of(pid_t pid) = 0;  // as the system says
  virtual void set_environment_variable(const char* name, const char* value) = 0;  // nullptr: unset
  // Somebody locks the mutex; then unlocks it, or dies with it.
  virtual void hold(pthread_mutex_t* mutex) = 0;
  virtual void let_go(bool by_dying) = 0;
};

class ProcessesConformance : public ::testing::TestWithParam<std::unique_ptr<TestedProcesses> (*)()> {
 protected:
  ProcessesConformance() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }
  ~ProcessesConformance() override { pthread_mutex_destroy(&mutex_); }

  // What a task that waits for the death of the mutex's owner is told when `then` has happened.
  template <class Happening>
  bool told_after(Happening then) {
    bool told = false;
    auto watch = tested_->tasks().start("waits", [&] { told = processes_.wait_for_owner_death(&mutex_, ended_); });
    tested_->clock().sleep(std::chrono::milliseconds(5));
    then();
    watch->join();
    return told;
  }

  std::unique_ptr<TestedProcesses> tested_ = GetParam()();
  Processes& processes_ = tested_->processes();
  std::atomic<bool> ended_{false};
  pthread_mutex_t mutex_;
};

TEST_P(ProcessesConformance, KnowWhoLives) {
  const pid_t pid = tested_->start();
  const auto started = processes_.start_time(pid);
  ASSERT_TRUE(started);
  EXPECT_EQ(*processes_.start_time(pid), *started);
  ASSERT_TRUE(processes_.state(pid));
  EXPECT_NE(std::string("RSD").find(*processes_.state(pid)), std::string::npos);
  EXPECT_GT(processes_.resident_bytes(pid), 0U);
  tested_->end(pid);
  EXPECT_EQ(processes_.start_time(pid).error().code, Code::not_found);
  EXPECT_EQ(processes_.state(pid).error().code, Code::not_found);
  EXPECT_EQ(processes_.resident_bytes(pid), 0U);
}

TEST_P(ProcessesConformance, KnowThemselves) {
  EXPECT_TRUE(processes_.start_time(processes_.own_pid()));
  EXPECT_NE(processes_.own_pid(), processes_.parent_pid());
  EXPECT_EQ(processes_.own_user(), tested_->user_of(processes_.own_pid()));
  tested_->set_environment_variable("PAWL_TEST_VARIABLE", "a value");
  EXPECT_EQ(processes_.environment_variable("PAWL_TEST_VARIABLE"), "a value");
  tested_->set_environment_variable("PAWL_TEST_VARIABLE", nullptr);
  EXPECT_EQ(processes_.environment_variable("PAWL_TEST_VARIABLE"), std::nullopt);
}

TEST_P(ProcessesConformance, TellTheDeathOfAMutexsOwner) {
  tested_->hold(&mutex_);
  EXPECT_TRUE(told_after([&] { tested_->let_go(true); }));
}

TEST_P(ProcessesConformance, AnUnlockedMutexIsNoDeath) {
  tested_->hold(&mutex_);
  EXPECT_FALSE(told_after([&] { tested_->let_go(false); }));
  EXPECT_FALSE(processes_.wait_for_owner_death(&mutex_, ended_));  // and nobody holds it now
}

TEST_P(ProcessesConformance, WaitingForADeathEndsWhenNobodyCares) {
  tested_->hold(&mutex_);
  EXPECT_FALSE(told_after([&] { ended_ = true; }));
  tested_->let_go(false);
}

}  // namespace pawl
