#include "job/trainer/slot_restore.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "job/trainer/test_state.h"

namespace pawl::job {
namespace {

constexpr Generation kGeneration{3};
constexpr Step kStep{5};
constexpr std::uint32_t kBuckets = 40;

class SlotRestoreTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  SlotRestoreTest() : state_(kBuckets * kTestBucketBytes / 8), live_(state_.size()) {
    std::iota(state_.begin(), state_.end(), 1);
    const std::vector<std::byte*> from{reinterpret_cast<std::byte*>(state_.data())};
    EXPECT_TRUE(slot_.try_open({}, kGeneration, kStep, 1));
    for (std::uint32_t i = 0; i < kBuckets; ++i) {
      const std::uint32_t sum = gather(plan_.bucket(i), default_copy_kernel(), from, slot_.bucket(i).data());
      slot_.bucket_done(i, sum, kGeneration, kStep);
    }
    EXPECT_TRUE(slot_.try_seal(kGeneration, kStep));
    bases_ = {reinterpret_cast<std::byte*>(live_.data())};
  }

  std::vector<std::uint64_t> state_, live_;
  const SeatLayout layout_ = test_layout({{"state", state_.size()}});
  const CopyPlan plan_{layout_, kTestBucketBytes};
  TestSegments segments_{layout_};
  const Slot slot_ = segments_.arena.slot(0);
  std::vector<std::byte*> bases_;
  int told_ = 0;
};

TEST_P(SlotRestoreTest, CopiesAll) {
  SlotRestore restore(
      plan_, bases_, [this] { ++told_; }, GetParam());
  ASSERT_TRUE(restore.copy_rest(slot_));
  EXPECT_EQ(restore.copied(), kBuckets);
  EXPECT_EQ(live_, state_);
  EXPECT_LE(told_, static_cast<int>(kBuckets));
}

TEST_P(SlotRestoreTest, NamesTheFirstBadBucketAndGoesOnThere) {
  for (const std::uint32_t bad : {0u, 17u, kBuckets - 1}) {
    for (const std::uint32_t bucket : {bad, kBuckets - 1}) slot_.bucket(bucket)[100] ^= std::byte{4};
    if (bad == kBuckets - 1) slot_.bucket(bad)[100] ^= std::byte{4};  // once and not twice
    SlotRestore restore(
        plan_, bases_, [] {}, GetParam());
    const Status status = restore.copy_rest(slot_);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::corrupt);
    EXPECT_EQ(status.error().what, "bucket " + std::to_string(bad) + ": checksum differs");
    EXPECT_EQ(restore.copied(), bad);
    for (const std::uint32_t bucket : {bad, kBuckets - 1}) slot_.bucket(bucket)[100] ^= std::byte{4};
    if (bad == kBuckets - 1) slot_.bucket(bad)[100] ^= std::byte{4};
    ASSERT_TRUE(restore.copy_rest(slot_));
    EXPECT_EQ(live_, state_);
    live_.assign(live_.size(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, SlotRestoreTest, ::testing::Values(1, 2, 7));

}  // namespace
}  // namespace pawl::job
