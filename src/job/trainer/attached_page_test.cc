#include "job/trainer/attached_page.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "env/process.h"

namespace pawl::job {
namespace {

constexpr std::uint64_t kNonce = 77;

// A page as pawld makes it, and pawld's view of it.
struct PageOfPawld {
  Fd segment = std::move(*create_segment("page", kTrainerPageBytes));
  Mapping memory = std::move(*map_segment(segment.get(), kTrainerPageBytes));
  TrainerPage* page = *initialise_page(memory.bytes());

  // What another thread finds.
  int try_lock() {
    int failed = 0;
    std::thread other([&] {
      failed = pthread_mutex_trylock(&page->alive);
      if (failed == 0) pthread_mutex_unlock(&page->alive);
    });
    other.join();
    return failed;
  }
};

TEST(AttachedPage, IntroducesThisProcessAndHoldsTheMutexUntilARegularEnd) {
  PageOfPawld made;
  AttachedPage attached(kNonce);
  EXPECT_FALSE(attached.is_there());
  ASSERT_TRUE(attached.adopt(made.segment));
  EXPECT_TRUE(attached.is_there());
  EXPECT_EQ(made.page->nonce.load(), kNonce);
  EXPECT_EQ(made.page->pid.load(), static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(made.page->start_time.load(), *process_start_time(getpid()));
  EXPECT_EQ(made.try_lock(), EBUSY);
  made.page->step.store(5);
  EXPECT_EQ(attached.get().step.load(), 5u);
  attached.unlock();
  EXPECT_EQ(made.try_lock(), 0);
}

TEST(AttachedPage, AnotherPageGoesOnWithWhatThisProcessCounted) {
  PageOfPawld first, second;
  AttachedPage attached(kNonce);
  ASSERT_TRUE(attached.adopt(first.segment));
  TrainerPage& before = attached.get();
  before.updates.store(41);
  before.progress.store(9);  // pawld's
  ASSERT_TRUE(attached.adopt(second.segment));
  EXPECT_NE(&attached.get(), &before);
  EXPECT_EQ(second.page->updates.load(), 41u);
  EXPECT_EQ(second.page->progress.load(), 0u);
  EXPECT_EQ(second.page->nonce.load(), kNonce);
  before.updates.fetch_add(1);  // by a thread that still looks at it: it is mapped
  EXPECT_EQ(first.page->updates.load(), 42u);
  EXPECT_EQ(second.try_lock(), EBUSY);
  attached.unlock();
  EXPECT_EQ(first.try_lock(), 0);
  EXPECT_EQ(second.try_lock(), 0);
}

TEST(AttachedPage, TheSamePageAgainKeepsTheFirstMapping) {
  PageOfPawld made;
  AttachedPage attached(kNonce);
  ASSERT_TRUE(attached.adopt(made.segment));
  TrainerPage& before = attached.get();
  before.updates.store(3);
  ASSERT_TRUE(attached.adopt(made.segment));
  EXPECT_EQ(&attached.get(), &before);
  EXPECT_EQ(made.page->updates.load(), 3u);
  attached.unlock();
  EXPECT_EQ(made.try_lock(), 0);
}

TEST(AttachedPage, RejectsWhatIsNoPage) {
  const Fd empty = std::move(*create_segment("page", kTrainerPageBytes));
  AttachedPage attached(kNonce);
  Status adopted = attached.adopt(empty);
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code, Code::broken);
  adopted = attached.adopt(Fd());
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code, Code::broken);
  EXPECT_FALSE(attached.is_there());
}

}  // namespace
}  // namespace pawl::job
