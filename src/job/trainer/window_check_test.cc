#include "job/trainer/window_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "env/shared_memory.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {
namespace {

constexpr std::uint32_t kBucketBytes = 4096;

bool never() {
  return false;
}

// Two stable entries and a volatile one between them in declared order, in memory and in a slot.
class WindowCheckTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kFirstWords = 10'000, kVolatileWords = 700, kLastWords = 300;

  WindowCheckTest() : first_(kFirstWords, 1), volatile_(kVolatileWords, 2), last_(kLastWords, 3) {
    LayoutBuilder builder(1);
    EXPECT_TRUE(builder.add_mesh({"data", {{"dp", 1}}}));
    add(builder, "first", kFirstWords, Lifetime::stable);
    add(builder, "volatile", kVolatileWords, Lifetime::volatile_);
    add(builder, "last", kLastWords, Lifetime::stable);
    layout_ = *builder.build();
    plan_ = CopyPlan(layout_, kBucketBytes);
    bases_ = {bytes(first_), bytes(volatile_), bytes(last_)};
    ArenaSpec spec;
    spec.job = "test";
    spec.payload_bytes = layout_.payload_bytes;
    spec.stable_bytes = layout_.stable_bytes;
    spec.bucket_bytes = kBucketBytes;
    memory_ = *map_segment(create_segment("arena", Arena::size_bytes(spec))->get(), Arena::size_bytes(spec));
    arena_ = *Arena::format(memory_.bytes(), spec);
  }

  static std::byte* bytes(std::vector<std::uint64_t>& words) { return reinterpret_cast<std::byte*>(words.data()); }
  static void add(LayoutBuilder& builder, const std::string& name, std::size_t words, Lifetime lifetime) {
    LayoutEntry entry;
    entry.name = name;
    entry.role = "weight";
    entry.dtype = ElementType::uint64;
    entry.shape = {words};
    entry.box = whole_box(entry.shape);
    entry.mesh = 0;
    entry.lifetime = lifetime;
    EXPECT_TRUE(builder.add(entry));
  }
  Slot copied() {
    const Slot slot = arena_.slot(0);
    for (std::uint32_t i = 0; i < plan_.bucket_count(); ++i)
      gather(plan_.bucket(i), default_copy_kernel(), bases_, slot.bucket(i).data());
    return slot;
  }

  std::vector<std::uint64_t> first_, volatile_, last_;
  SeatLayout layout_;
  CopyPlan plan_;
  std::vector<std::byte*> bases_;
  Mapping memory_;
  Arena arena_;
};

TEST_F(WindowCheckTest, FindsEachWriteIfAllBucketsAreSummedUp) {
  WindowCheck check(plan_, bases_, 1);
  check.begin(1000);
  EXPECT_EQ(check.find_write(), std::nullopt);
  for (std::size_t i = 0; i < kFirstWords; i += 97) {
    ++first_[i];
    EXPECT_EQ(check.find_write(), WrittenEntry(0)) << i;
    --first_[i];
  }
  last_.back() = 4;
  EXPECT_EQ(check.find_write(), WrittenEntry(2));
  check.begin(1000);
  EXPECT_EQ(check.find_write(), std::nullopt);
}

TEST_F(WindowCheckTest, FindsOneBucketsWriteSoonerOrLater) {
  WindowCheck check(plan_, bases_, 1);
  int found = 0;
  for (int window = 0; window < 400; ++window) {
    check.begin(1);
    ++first_[5000];
    found += check.find_write() == WrittenEntry(0) ? 1 : 0;
  }
  EXPECT_GT(found, 4);  // of 400 / 21 buckets
  EXPECT_LT(found, 80);
}

TEST_F(WindowCheckTest, NamesTheEntryThatIsNotAsItsCopy) {
  const WindowCheck check(plan_, bases_, 1);
  const Slot slot = copied();
  EXPECT_EQ(check.find_difference(slot, never), std::nullopt);
  last_[0] = 9;
  EXPECT_EQ(check.find_difference(slot, never), WrittenEntry(2));
  first_[kFirstWords - 1] = 9;
  EXPECT_EQ(check.find_difference(slot, never), WrittenEntry(0));
  int asked = 0;
  EXPECT_EQ(check.find_difference(slot, [&] { return ++asked == 3; }), std::nullopt) << "it went on when told to stop";
  EXPECT_EQ(asked, 3);
}

TEST_F(WindowCheckTest, VolatileStateMayChange) {
  WindowCheck check(plan_, bases_, 1);
  check.begin(1000);
  const Slot slot = copied();
  volatile_.assign(kVolatileWords, 77);
  EXPECT_EQ(check.find_write(), std::nullopt);
  EXPECT_EQ(check.find_difference(slot, never), std::nullopt);
}

TEST_F(WindowCheckTest, NothingStableIsNothingToFind) {
  LayoutBuilder builder(1);
  EXPECT_TRUE(builder.add_mesh({"data", {{"dp", 1}}}));
  add(builder, "volatile", kVolatileWords, Lifetime::volatile_);
  const SeatLayout layout = *builder.build();
  const CopyPlan plan(layout, kBucketBytes);
  WindowCheck check(plan, std::span(bases_).subspan(1, 1), 1);
  check.begin(8);
  volatile_[0] = 5;
  EXPECT_EQ(check.find_write(), std::nullopt);
}

}  // namespace
}  // namespace pawl::job
