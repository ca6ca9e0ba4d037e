#include "job/trainer/host_events.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <vector>

#include "env/shared_memory.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

class HostEventsTest : public ::testing::Test {
 protected:
  HostEventsTest() {
    const Fd segment = std::move(*create_segment("page", kTrainerPageBytes));
    memory_ = std::move(*map_segment(segment.get(), kTrainerPageBytes));
    page_ = *initialise_page(memory_.bytes());
    EXPECT_TRUE(attached_.adopt(segment));
  }
  ~HostEventsTest() override { attached_.unlock(); }

  void commit(std::uint64_t step) { page_->progress.store(Progress{Step(step), 0}.pack()); }
  bool readable() {
    pollfd entry{events_.fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  // All that wait: kind and value.
  std::vector<std::pair<int, std::uint64_t>> fetch() {
    std::vector<std::pair<int, std::uint64_t>> all;
    for (pawl_event event = PAWL_EVENT_INIT; events_.next(event);) {
      all.emplace_back(event.kind, event.value);
      EXPECT_LT(all.size(), 10u);
    }
    return all;
  }
  using Events = std::vector<std::pair<int, std::uint64_t>>;

  Mapping memory_;
  TrainerPage* page_ = nullptr;  // pawld's view
  AttachedPage attached_{1};
  HostEvents events_{attached_, std::move(*Event::make())};
};

TEST_F(HostEventsTest, ARecoveryIsToldOnceAndIsPendingUntilItIsJoined) {
  events_.set_joined(Generation(2), Seat(0));
  page_->recover_generation.store(2);
  EXPECT_FALSE(events_.collect());
  EXPECT_FALSE(events_.recovery_pending());
  page_->recover_generation.store(3);
  EXPECT_TRUE(events_.collect());
  EXPECT_FALSE(events_.collect());  // whoever waits has heard of it
  EXPECT_TRUE(readable());
  EXPECT_EQ(fetch(), (Events{{PAWL_EVENT_RECOVERY, 3}}));
  EXPECT_FALSE(readable());
  EXPECT_FALSE(events_.collect());
  EXPECT_FALSE(readable());
  EXPECT_TRUE(events_.recovery_pending());
  events_.set_joined(Generation(3), Seat(0));
  EXPECT_FALSE(events_.recovery_pending());
}

TEST_F(HostEventsTest, JoiningForgetsRecoveriesUpToThatGeneration) {
  events_.set_joined(Generation(2), Seat(1));
  EXPECT_EQ(events_.joined(), Generation(2));
  EXPECT_EQ(events_.seat(), 1u);
  page_->recover_generation.store(4);
  EXPECT_TRUE(events_.collect());
  events_.set_joined(Generation(3), Seat(1));
  EXPECT_EQ(fetch(), (Events{{PAWL_EVENT_RECOVERY, 4}}));
  page_->recover_generation.store(5);
  EXPECT_TRUE(events_.collect());
  events_.set_joined(Generation(5), Seat(1));
  EXPECT_FALSE(events_.collect());
  EXPECT_FALSE(readable());
  EXPECT_EQ(fetch(), Events{});
}

TEST_F(HostEventsTest, CommitsThatWaitBecomeTheLatest) {
  commit(1);
  EXPECT_FALSE(events_.collect());  // nobody waits for a commit
  commit(4);
  EXPECT_FALSE(events_.collect());
  EXPECT_TRUE(readable());
  EXPECT_EQ(fetch(), (Events{{PAWL_EVENT_COMMITTED, 4}}));
  commit(3);  // pawld came back, and knows less
  EXPECT_FALSE(events_.collect());
  EXPECT_EQ(fetch(), Events{});
}

TEST_F(HostEventsTest, TheMostUrgentComesFirst) {
  commit(7);
  page_->stop.store(1);
  page_->recover_generation.store(2);
  EXPECT_TRUE(events_.collect());
  EXPECT_EQ(fetch(), (Events{{PAWL_EVENT_RECOVERY, 2}, {PAWL_EVENT_STOP, 0}, {PAWL_EVENT_COMMITTED, 7}}));
  EXPECT_FALSE(readable());
  EXPECT_FALSE(events_.collect());
  EXPECT_EQ(fetch(), Events{});
}

TEST_F(HostEventsTest, AStopOutlivesClear) {
  commit(7);
  page_->recover_generation.store(2);
  EXPECT_TRUE(events_.collect());
  events_.clear();
  EXPECT_FALSE(readable());
  EXPECT_EQ(fetch(), Events{});
  page_->stop.store(1);
  EXPECT_TRUE(events_.collect());
  events_.clear();
  EXPECT_TRUE(readable());
  EXPECT_EQ(fetch(), (Events{{PAWL_EVENT_STOP, 0}}));
}

}  // namespace
}  // namespace pawl::job
