#include "state.h"

#include <gtest/gtest.h>

#include "settings.h"

namespace statebench {
namespace {

constexpr Identity kOwn{7, 2};

// After every step, all of it is that of this step and of no other, for any part that a step changes.
TEST(State, IsThatOfOneStepOnly) {
  for (const double touch : {1.0, 0.5, 0.26, 0.01, 0.0001}) {
    State state;
    ASSERT_TRUE(state.allocate(37 * kBlockBytes, touch));
    state.fill(kOwn);
    EXPECT_FALSE(state.first_difference(kOwn, 0));
    for (std::uint64_t step = 1; step < 90; ++step) {
      EXPECT_TRUE(state.first_difference(kOwn, step)) << "the next step changes nothing";
      state.advance(kOwn, step);
      EXPECT_FALSE(state.first_difference(kOwn, step)) << "touch " << touch << ", step " << step;
      EXPECT_TRUE(state.first_difference(kOwn, step - 1));
    }
  }
}

TEST(State, ShowsOneWrongBitAndWhere) {
  State state;
  ASSERT_TRUE(state.allocate(16 * kBlockBytes, 0.25));
  state.fill(kOwn);
  state.tensor(0, 1)[5 * 512 + 511] ^= 1;
  EXPECT_EQ(state.first_difference(kOwn, 0), 5 * kBlockBytes);
}

TEST(State, ShowsAnotherSeatAndABlockInTheWrongPlace) {
  State state;
  ASSERT_TRUE(state.allocate(4 * kBlockBytes, 1));
  state.fill(kOwn);
  EXPECT_EQ(state.first_difference({7, 3}, 0), 0U);
  EXPECT_EQ(state.first_difference({8, 2}, 0), 0U);
  std::span<std::uint64_t> words = state.tensor(0, 1);
  for (std::size_t i = 0; i < 512; ++i) std::swap(words[512 + i], words[1024 + i]);
  EXPECT_EQ(state.first_difference(kOwn, 0), kBlockBytes);
}

TEST(State, IsDividedIntoTensorsWithoutAGap) {
  State state;
  ASSERT_TRUE(state.allocate(10 * kBlockBytes, 1));
  std::uint64_t* next = state.tensor(0, 3).data();
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(state.tensor(i, 3).data(), next);
    next += state.tensor(i, 3).size();
  }
  EXPECT_EQ(static_cast<std::uint64_t>(next - state.tensor(0, 3).data()) * 8, state.bytes());
}

TEST(Settings, BytesHaveUnitsAndBadOnesAreRefused) {
  Settings settings;
  std::string why;
  const char* good[] = {"statebench", "--bytes", "2G", "--tensors", "3", "--touch", "0.5", "-o", "json"};
  ASSERT_TRUE(parse_settings(9, good, &settings, &why)) << why;
  EXPECT_EQ(settings.bytes, std::uint64_t{2} << 30);
  EXPECT_TRUE(settings.json);
  for (const char* bad : {"0", "G", "5T", "99999999G", "1.5G", ""}) {
    const char* arguments[] = {"statebench", "--bytes", bad};
    EXPECT_FALSE(parse_settings(3, arguments, &settings, &why)) << bad;
  }
  const char* crowded[] = {"statebench", "--bytes", "8K", "--tensors", "3"};
  EXPECT_FALSE(parse_settings(5, crowded, &settings, &why));
  const char* unknown[] = {"statebench", "--byte", "8K"};
  EXPECT_FALSE(parse_settings(3, unknown, &settings, &why));
}

}  // namespace
}  // namespace statebench
