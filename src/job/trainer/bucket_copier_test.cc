#include "job/trainer/bucket_copier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "env/shared_memory.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {
namespace {

constexpr std::uint32_t kBucketBytes = 4096;
constexpr std::uint32_t kBuckets = 600;  // more than two MiB

std::function<void()> before_each_copy;
std::atomic<int> copies{0};

std::uint32_t watched_copy(std::byte* to, const std::byte* from, std::size_t size) {
  ++copies;
  if (before_each_copy) before_each_copy();
  std::memcpy(to, from, size);
  return crc32c({to, size});
}
const CopyKernel kWatched{"watched", &watched_copy};

class BucketCopierTest : public ::testing::Test {
 protected:
  BucketCopierTest() : state_(kBuckets * kBucketBytes / 8) {
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i] = i * i;
    LayoutBuilder builder(1);
    EXPECT_TRUE(builder.add_mesh({"data", {{"dp", 1}}}));
    LayoutEntry entry;
    entry.name = "w";
    entry.role = "weight";
    entry.dtype = ElementType::uint64;
    entry.shape = {state_.size()};
    entry.box = whole_box(entry.shape);
    entry.mesh = 0;
    entry.lifetime = Lifetime::stable;
    EXPECT_TRUE(builder.add(entry));
    layout_ = *builder.build();
    plan_ = CopyPlan(layout_, kBucketBytes);
    bases_ = {reinterpret_cast<std::byte*>(state_.data())};

    ArenaSpec spec;
    spec.job = "test";
    spec.payload_bytes = layout_.payload_bytes;
    spec.stable_bytes = layout_.stable_bytes;
    spec.bucket_bytes = kBucketBytes;
    memory_ = *map_segment(create_segment("arena", Arena::size_bytes(spec))->get(), Arena::size_bytes(spec));
    arena_ = *Arena::format(memory_.bytes(), spec);
    page_memory_ = *map_segment(create_segment("page", kTrainerPageBytes)->get(), kTrainerPageBytes);
    page_ = *initialise_page(page_memory_.bytes());
    source_.plan = &plan_;
    source_.bases = bases_;
    source_.page = [this]() -> TrainerPage& { return *page_; };
    source_.notify = [this] { ++notices_; };
    copier_.set_slot(arena_.slot(0), Generation(1), Step(1));
    EXPECT_TRUE(arena_.slot(0).try_open(arena_.slot(0).word(), Generation(1), Step(1), 0));
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
  SeatLayout layout_;
  CopyPlan plan_;
  std::vector<std::byte*> bases_;
  Mapping memory_, page_memory_;
  Arena arena_;
  TrainerPage* page_ = nullptr;
  CaptureSource source_;
  std::atomic<int> notices_{0};
  BucketCopier copier_{source_, kWatched};
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
  EXPECT_EQ(std::memcmp(copier_.slot().payload().data(), state_.data(), kBuckets * kBucketBytes), 0);
}

TEST_F(BucketCopierTest, ManyThreadsCopyEachBucketOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([this] { copier_.copy_until(kBuckets); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(copies, static_cast<int>(kBuckets));
  EXPECT_EQ(ready(), kBuckets);
  EXPECT_GT(page_->copy_ns_total.load(), 0u);
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

TEST_F(BucketCopierTest, NotifiesPawldOfEachMebibyteAndOfTheRest) {
  copier_.copy_until(kBuckets);
  EXPECT_EQ(notices_, 3);
  copier_.continue_at(kBuckets);
  copier_.copy_until(kBuckets);  // nothing new
  EXPECT_EQ(notices_, 3);
}

}  // namespace
}  // namespace pawl::job
