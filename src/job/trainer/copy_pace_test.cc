#include "job/trainer/copy_pace.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

void close_windows(CopyPace& pace, int count, Duration open, Duration one_thread_takes) {
  for (int i = 0; i < count; ++i) pace.window_closed(open, one_thread_takes / pace.thread_count());
}

TEST(CopyPace, TakesAsManyThreadsAsTheWindowNeeds) {
  CopyPace pace(1, 8);
  EXPECT_EQ(pace.thread_count(), 2u);
  close_windows(pace, 10, 100ms, 350ms);
  EXPECT_EQ(pace.thread_count(), 5u) << "70 of 100 ms";
  close_windows(pace, 10, 100ms, 3000ms);
  EXPECT_EQ(pace.thread_count(), 8u);
  close_windows(pace, 1000, 100ms, 40ms);
  EXPECT_EQ(pace.thread_count(), 1u);
}

TEST(CopyPace, GivesAThreadUpOnlyAfterManyRoomyWindows) {
  CopyPace pace(1, 4);
  close_windows(pace, 15, 100ms, 10ms);
  EXPECT_EQ(pace.thread_count(), 2u);
  close_windows(pace, 1, 100ms, 120ms);  // needs both
  close_windows(pace, 15, 100ms, 10ms);
  EXPECT_EQ(pace.thread_count(), 2u);
  close_windows(pace, 1, 100ms, 10ms);
  EXPECT_EQ(pace.thread_count(), 1u);
}

TEST(CopyPace, StaysWhereItIsTold) {
  CopyPace pace(3, 3);
  close_windows(pace, 100, 100ms, 1000ms);
  EXPECT_EQ(pace.thread_count(), 3u);
  close_windows(pace, 100, 100ms, 1ms);
  EXPECT_EQ(pace.thread_count(), 3u);
}

TEST(CopyPace, DoesNotSwing) {  // what fits with n threads isn't given up, and n are not enough to be too many
  for (Duration work = 1ms; work < 1s; work += 1ms) {
    CopyPace pace(1, 16);
    close_windows(pace, 1000, 100ms, work);
    const std::uint32_t settled = pace.thread_count();
    close_windows(pace, 1000, 100ms, work);
    EXPECT_EQ(pace.thread_count(), settled) << work.count();
  }
}

}  // namespace
}  // namespace pawl::job
