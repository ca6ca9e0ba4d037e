#include "job/daemon/holds.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace pawl::job {
namespace {

TEST(HoldsOfADrill, SayWhoIsHeldUntilTheyAreReleased) {
  Holds holds(real_tasks());
  EXPECT_TRUE(Holds::is_phase("decide"));
  EXPECT_FALSE(Holds::is_phase("compute"));  // of trainers
  EXPECT_FALSE(holds.is_held_at("decide"));
  holds.set("decide");
  EXPECT_FALSE(holds.view().at("decide"));
  EXPECT_TRUE(holds.is_held_at("decide"));
  EXPECT_TRUE(holds.view().at("decide"));
  EXPECT_FALSE(holds.is_held_at("import"));
  holds.release_all();
  EXPECT_FALSE(holds.is_held_at("decide"));
  EXPECT_TRUE(holds.view().empty());
}

TEST(HoldsOfADrill, ThreadsWaitUntilReleaseOrTheirEnd) {
  Holds holds(real_tasks());
  std::atomic<bool> ended{false};
  holds.wait_at("ack", ended);  // no hold: at once
  holds.set("ack");
  std::thread thread([&] { holds.wait_at("ack", ended); });
  while (!holds.view().at("ack")) std::this_thread::yield();
  holds.release_all();
  thread.join();
  holds.set("ack");
  std::thread another([&] { holds.wait_at("ack", ended); });
  while (!holds.view().at("ack")) std::this_thread::yield();
  ended = true;
  holds.wake();
  another.join();
}

}  // namespace
}  // namespace pawl::job
