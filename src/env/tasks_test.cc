#include "env/tasks.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "env/clock.h"
#include "env/poller.h"
#include "env/tasks_conformance.h"
#include "env/thread.h"

namespace pawl {
namespace {

// A control group may have no more threads to give (pids.max). As another user with a limit of its own, in a process of
// its own: root has none.
void let_threads_run_out() {
  rlimit limit{};
  if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(77);
  if (getrlimit(RLIMIT_NPROC, &limit) != 0) _exit(77);
  limit.rlim_cur = 0;
  if (setrlimit(RLIMIT_NPROC, &limit) != 0) _exit(77);
}
void let_there_be_threads() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) != 0) _exit(77);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NPROC, &limit) != 0) _exit(77);
}

class WithoutThreads : public testing::Test {
 protected:
  WithoutThreads() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(WithoutThreads, ATaskBeginsWhenThereIsOneAgain) {
  const auto in_child = [] {
    real_tasks().start("first", [] {})->join();
    let_threads_run_out();
    if (Thread::start("none", [] {})) _exit(77);
    std::atomic<bool> begun = false;
    auto task = real_tasks().start("late", [&] { begun = true; });
    (void)real_tasks().start("later", [] {});
    real_clock().sleep(std::chrono::milliseconds(1500));
    if (begun) _exit(1);
    let_there_be_threads();
    for (const Deadline deadline = Deadline::in(std::chrono::seconds(20)); !begun;
         real_clock().sleep(std::chrono::milliseconds(1)))
      if (deadline.passed()) _exit(2);
    task->join();
    _exit(0);
  };
  EXPECT_EXIT(in_child(), testing::ExitedWithCode(0), "threads_lacking.*threads_enough");
}

TEST_F(WithoutThreads, WhoJoinsATaskRunsItThen) {
  const auto in_child = [] {
    let_threads_run_out();  // nor is there one that begins tasks later
    bool done = false;
    auto task = real_tasks().start("late", [&] { done = true; });
    task->join();
    _exit(done ? 0 : 1);
  };
  EXPECT_EXIT(in_child(), testing::ExitedWithCode(0), "threads_lacking");
}

TEST_F(WithoutThreads, WhoWaitsInAPollerHelpsTasksThatNobodyCouldBegin) {
  const auto in_child = [] {
    let_threads_run_out();  // before any task: nor could the thread be made that begins them later
    std::atomic<bool> begun = false;
    (void)real_tasks().start("late", [&] { begun = true; });
    let_there_be_threads();
    auto poller = make_real_poller();
    std::vector<Ready> ready;
    for (const Deadline deadline = Deadline::in(std::chrono::seconds(20)); !begun;)
      if (!poller || deadline.passed() || !(*poller)->wait(std::chrono::milliseconds(10), ready)) _exit(2);
    _exit(0);
  };
  EXPECT_EXIT(in_child(), testing::ExitedWithCode(0), "threads_lacking.*threads_enough");
}

INSTANTIATE_TEST_SUITE_P(Real, TasksConformance, ::testing::Values(TestedTasks{&real_tasks(), &real_clock()}));

}  // namespace
}  // namespace pawl
