#include "job/snapshot/trainer_page.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace pawl::job {
namespace {

class TrainerPageTest : public testing::Test {
 protected:
  void SetUp() override {
    void* memory = mmap(nullptr, kTrainerPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    memory_ = {static_cast<std::byte*>(memory), kTrainerPageBytes};
  }
  void TearDown() override { munmap(memory_.data(), memory_.size()); }
  std::span<std::byte> memory_;
};

TEST_F(TrainerPageTest, IsNoneBeforeItIsInitialised) {
  EXPECT_EQ(open_page(memory_).error().code, Code::corrupt);
  EXPECT_EQ(open_page(memory_.first(100)).error().code, Code::corrupt);
  EXPECT_EQ(initialise_page(memory_.first(100)).error().code, Code::invalid);
  ASSERT_TRUE(initialise_page(memory_));
  ASSERT_TRUE(open_page(memory_));
  EXPECT_EQ((*open_page(memory_))->progress.load(), 0u);
  (*open_page(memory_))->version.store(9);
  EXPECT_EQ(open_page(memory_).error().code, Code::corrupt);
}

TEST_F(TrainerPageTest, TellsOfAKilledOwner) {
  TrainerPage* page = *initialise_page(memory_);
  const pid_t child = fork();
  if (child == 0) {
    if (pthread_mutex_lock(&page->alive) != 0) _exit(1);
    page->held.store(1);
    pause();
    _exit(1);
  }
  while (page->held.load() == 0) usleep(1000);
  EXPECT_EQ(pthread_mutex_trylock(&page->alive), EBUSY);
  kill(child, SIGKILL);
  EXPECT_EQ(pthread_mutex_lock(&page->alive), EOWNERDEAD);
  EXPECT_EQ(pthread_mutex_consistent(&page->alive), 0);
  EXPECT_EQ(pthread_mutex_unlock(&page->alive), 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace pawl::job
