#include "job/trainer/window_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "job/trainer/test_state.h"

namespace pawl::job {
namespace {

bool never() {
  return false;
}

// Two stable entries and a volatile one between them in declared order, in memory and in a slot.
class WindowCheckTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kFirstWords = 10'000, kVolatileWords = 700, kLastWords = 300;

  WindowCheckTest() : first_(kFirstWords, 1), volatile_(kVolatileWords, 2), last_(kLastWords, 3) {
    bases_ = {bytes(first_), bytes(volatile_), bytes(last_)};
  }

  static std::byte* bytes(std::vector<std::uint64_t>& words) { return reinterpret_cast<std::byte*>(words.data()); }
  Slot copied() {
    const Slot slot = segments_.arena.slot(0);
    for (std::uint32_t i = 0; i < plan_.bucket_count(); ++i)
      gather(plan_.bucket(i), default_copy_kernel(), bases_, slot.bucket(i).data());
    return slot;
  }

  std::vector<std::uint64_t> first_, volatile_, last_;
  const SeatLayout layout_ =
      test_layout({{"first", kFirstWords}, {"volatile", kVolatileWords, Lifetime::volatile_}, {"last", kLastWords}});
  const CopyPlan plan_{layout_, kTestBucketBytes};
  const TestSegments segments_{layout_};
  std::vector<std::byte*> bases_;
};

TEST_F(WindowCheckTest, FindsEachWriteIfAllBucketsAreSummedUp) {
  WindowCheck check(plan_, bases_, 1);
  ASSERT_TRUE(check.begin(1000));
  EXPECT_EQ(*check.find_write(), std::nullopt);
  for (std::size_t i = 0; i < kFirstWords; i += 97) {
    ++first_[i];
    EXPECT_EQ(*check.find_write(), WrittenEntry(0)) << i;
    --first_[i];
  }
  last_.back() = 4;
  EXPECT_EQ(*check.find_write(), WrittenEntry(2));
  ASSERT_TRUE(check.begin(1000));
  EXPECT_EQ(*check.find_write(), std::nullopt);
}

TEST_F(WindowCheckTest, FindsOneBucketsWriteSoonerOrLater) {
  WindowCheck check(plan_, bases_, 1);
  int found = 0;
  for (int window = 0; window < 400; ++window) {
    ASSERT_TRUE(check.begin(1));
    ++first_[5000];
    found += *check.find_write() == WrittenEntry(0) ? 1 : 0;
  }
  EXPECT_GT(found, 4);  // of 400 / 21 buckets
  EXPECT_LT(found, 80);
}

TEST_F(WindowCheckTest, NamesTheEntryThatIsNotAsItsCopy) {
  const WindowCheck check(plan_, bases_, 1);
  const Slot slot = copied();
  EXPECT_EQ(*check.find_difference(slot, never), std::nullopt);
  last_[0] = 9;
  EXPECT_EQ(*check.find_difference(slot, never), WrittenEntry(2));
  first_[kFirstWords - 1] = 9;
  EXPECT_EQ(*check.find_difference(slot, never), WrittenEntry(0));
  int asked = 0;
  EXPECT_EQ(*check.find_difference(slot, [&] { return ++asked == 3; }), std::nullopt) << "it went on when told to stop";
  EXPECT_EQ(asked, 3);
}

TEST_F(WindowCheckTest, VolatileStateMayChange) {
  WindowCheck check(plan_, bases_, 1);
  ASSERT_TRUE(check.begin(1000));
  const Slot slot = copied();
  volatile_.assign(kVolatileWords, 77);
  EXPECT_EQ(*check.find_write(), std::nullopt);
  EXPECT_EQ(*check.find_difference(slot, never), std::nullopt);
}

TEST_F(WindowCheckTest, NothingStableIsNothingToFind) {
  const SeatLayout layout = test_layout({{"volatile", kVolatileWords, Lifetime::volatile_}});
  const CopyPlan plan(layout, kTestBucketBytes);
  WindowCheck check(plan, std::span(bases_).subspan(1, 1), 1);
  ASSERT_TRUE(check.begin(8));
  volatile_[0] = 5;
  EXPECT_EQ(*check.find_write(), std::nullopt);
}

}  // namespace
}  // namespace pawl::job
