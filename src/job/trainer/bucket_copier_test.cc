#include "job/trainer/bucket_copier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "job/trainer/test_state.h"

namespace pawl::job {
namespace {

constexpr std::uint32_t kBuckets = 600;  // more than two MiB

std::function<void()> before_each_copy;
std::atomic<int> copies{0};

std::uint32_t watched_copy(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t seed) {
  ++copies;
  if (before_each_copy) before_each_copy();
  std::memcpy(to, from, size);
  return crc32c({to, size}, seed);
}
const CopyKernel kWatched{"watched", &watched_copy};

struct TestClock final : Clock {                        // copying threads share it
  Duration now() override { return Duration(++time); }  // some of it passes always
  Duration boottime() override { return Duration(time); }
  Duration wall() override { return Duration(time); }
  void sleep(Duration duration) override { time += duration.count(); }
  std::atomic<Duration::rep> time{1};
};

class BucketCopierTest : public ::testing::Test {
 protected:
  BucketCopierTest() : state_(kBuckets * kTestBucketBytes / 8) {
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i] = i * i;
    bases_ = {reinterpret_cast<std::byte*>(state_.data())};
    source_.plan = &plan_;
    source_.bases = bases_;
    source_.page = [this]() -> TrainerPage& { return *segments_.page; };
    source_.notify = [this] { ++notices_; };
    const Slot slot = segments_.arena.slot(0);
    copier_.set_slot(slot, Generation(1), Step(1));
    EXPECT_TRUE(slot.try_open(slot.word(), Generation(1), Step(1), 0));
    copies = 0;
    before_each_copy = nullptr;
  }

  std::uint32_t ready() {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < kBuckets; ++i)
      count += copier_.slot().bucket_ready(i, Generation(1), Step(1)) ? 1 : 0;
    return count;
  }

  std::vector<std::uint64_t> state_;
  const SeatLayout layout_ = test_layout({{"w", kBuckets* kTestBucketBytes / 8}});
  const CopyPlan plan_{layout_, kTestBucketBytes};
  const TestSegments segments_{layout_};
  std::vector<std::byte*> bases_;
  CaptureSource source_;
  std::atomic<int> notices_{0};
  TestClock clock_;
  BucketCopier copier_{source_, kWatched, clock_};
};

TEST_F(BucketCopierTest, CopiesUpToTheEndAndGoesOnFromThere) {
  copier_.copy_until(4);
  EXPECT_EQ(ready(), 4u);
  copier_.copy_until(4);  // another thread that finds nothing: it counts on
  EXPECT_EQ(copies, 4);
  copier_.continue_at(4);
  copier_.copy_until(kBuckets);
  EXPECT_EQ(ready(), kBuckets);
  EXPECT_TRUE(copier_.slot().try_seal(Generation(1), Step(1)));
  EXPECT_TRUE(copier_.slot().verify());
  EXPECT_EQ(std::memcmp(copier_.slot().payload().data(), state_.data(), kBuckets * kTestBucketBytes), 0);
}

TEST_F(BucketCopierTest, ManyThreadsCopyEachBucketOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([this] { copier_.copy_until(kBuckets); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(copies, static_cast<int>(kBuckets));
  EXPECT_EQ(ready(), kBuckets);
  EXPECT_GT(segments_.page->copy_ns_total.load(), 0u);
}

TEST_F(BucketCopierTest, TakesNoBucketOnceItIsCancelledUntilItIsReset) {
  before_each_copy = [this] {
    if (copies == 3) copier_.cancel();
  };
  copier_.copy_until(kBuckets);
  EXPECT_TRUE(copier_.cancelled());
  EXPECT_EQ(ready(), 3u);
  copier_.copy_until(kBuckets);
  EXPECT_EQ(ready(), 3u);
  before_each_copy = nullptr;
  copier_.reset();
  EXPECT_FALSE(copier_.cancelled());
  copier_.copy_until(kBuckets);
  EXPECT_EQ(ready(), kBuckets);
}

// The first one at once, then by time, and the rest at the end.
TEST_F(BucketCopierTest, NotifiesPawldByTime) {
  const auto notices = [this](Duration bucket_takes) {
    before_each_copy = [this, bucket_takes] { clock_.sleep(bucket_takes); };
    notices_ = 0;
    copier_.reset();
    copier_.copy_until(kBuckets);
    return notices_.load();
  };
  const auto buckets = static_cast<int>(kBuckets);
  EXPECT_EQ(notices(BucketCopier::kNoticeInterval), buckets);
  EXPECT_EQ(notices(BucketCopier::kNoticeInterval / 10), (buckets + 9) / 10 + (buckets % 10 == 1 ? 0 : 1));
  EXPECT_EQ(notices(Duration::zero()), 2);
  notices_ = 0;
  copier_.continue_at(kBuckets);
  copier_.copy_until(kBuckets);  // nothing new
  EXPECT_EQ(notices_, 0);
}

}  // namespace
}  // namespace pawl::job
