#include "job/recovery/stragglers.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

PaceSummary summary_of(const std::vector<std::uint64_t>& own_us) {
  PaceSummary summary;
  for (std::size_t seat = 0; seat < own_us.size(); ++seat)
    add(summary, SeatPace{Seat(static_cast<std::uint32_t>(seat)), own_us[seat]});
  return summary;
}

TEST(PaceSummary, KnowsTheSlowestAndTheMedian) {
  const PaceSummary all = summary_of({10'000, 11'000, 40'000, 9'000, 10'500, 10'100});
  EXPECT_EQ(all.slowest.size(), 4u);
  EXPECT_EQ(all.slowest[0], (SeatPace{Seat(2), 40'000}));
  EXPECT_NEAR(static_cast<double>(median_us(all)), 10'100, 1'100);
  EXPECT_EQ(median_us({}), 0u);
  EXPECT_NEAR(static_cast<double>(median_us(summary_of({10'000, 30'000}))), 10'000, 1'000) << "the lower middle";
}

TEST(PaceSummary, OfTwoSubtreesIsThatOfTheWhole) {
  PaceSummary left = summary_of({10'000, 11'000});
  PaceSummary right;
  add(right, SeatPace{Seat(2), 5'000'000'000'000});
  add(right, SeatPace{Seat(3), 0});
  add(left, right);
  EXPECT_EQ(left, summary_of({10'000, 11'000, 5'000'000'000'000, 0}));
}

TEST(PaceSummary, ComesBackAsItWas) {
  std::vector<std::uint64_t> many;
  for (std::uint64_t i = 0; i < 1000; ++i) many.push_back(i * i * i * 1000);
  for (const PaceSummary& one : {PaceSummary{}, summary_of({10'000, 20'000}), summary_of(many)}) {
    EXPECT_EQ(*parse_paces(to_text(one)), one);
    EXPECT_LT(to_text(one).size(), 2048u);
  }
  for (const char* wrong : {"", "1:2", "1:2,", "|1:2", "|96:1,", "|0:4294967296,", "4294967296:1,|", "a:1,|",
                            "1:1,1:1,1:1,1:1,1:1,|", "|:,", "|1,2:"})
    EXPECT_FALSE(parse_paces(wrong)) << wrong;
}

TEST(PaceWindow, IsFullAfterEnoughLooksAndSteps) {
  PaceWindow window;
  Duration now = 1s;
  for (std::uint64_t look = 0; look < 200; ++look, now += 10ms) {
    EXPECT_FALSE(window.full(now)) << look;
    window.look(Step(5 + look / 20), look % 4 == 0, now);
  }
  for (std::uint64_t look = 200; look < 220; ++look, now += 10ms) window.look(Step(15), look % 4 == 0, now);
  ASSERT_TRUE(window.full(now));
  EXPECT_EQ(window.take_us(now), 55'000u) << "a quarter of 220 ms";
  EXPECT_FALSE(window.full(now));
}

TEST(PaceWindow, BeginsAnewWhereStepsAreDoneAgain) {
  PaceWindow window;
  for (std::uint64_t look = 0; look < 100; ++look) window.look(Step(100), true, Duration(look));
  for (std::uint64_t look = 0; look < 100; ++look) window.look(Step(50 + look / 5), false, 1s + Duration(look));
  ASSERT_TRUE(window.full(2s));
  EXPECT_EQ(window.take_us(2s), 0u);
}

TEST(Stragglers, AreNamedAfterSeveralWindowsAndOnce) {
  const PaceSummary slow = summary_of({10'000, 11'000, 20'000, 10'000});
  StragglerVerdict verdict = judge_stragglers(slow, {});
  EXPECT_TRUE(verdict.begun.empty());
  verdict = judge_stragglers(slow, verdict.notes);
  ASSERT_EQ(verdict.begun.size(), 1u);
  EXPECT_EQ(verdict.begun[0].seat, Seat(2));
  EXPECT_EQ(verdict.begun[0].own_us, 20'000u);
  verdict = judge_stragglers(slow, verdict.notes);
  EXPECT_TRUE(verdict.begun.empty());
  EXPECT_TRUE(verdict.ended.empty());
  ASSERT_EQ(verdict.notes.named.size(), 1u);
}

TEST(Stragglers, ASlowMomentIsNone) {
  StragglerVerdict verdict = judge_stragglers(summary_of({10'000, 11'000, 20'000}), {});
  verdict = judge_stragglers(summary_of({10'000, 11'000, 12'000}), verdict.notes);
  verdict = judge_stragglers(summary_of({10'000, 11'000, 20'000}), verdict.notes);
  EXPECT_TRUE(verdict.begun.empty());
}

TEST(Stragglers, EndWhenTheyKeepUpAgain) {
  const PaceSummary slow = summary_of({10'000, 11'000, 20'000});
  StragglerVerdict verdict = judge_stragglers(slow, judge_stragglers(slow, {}).notes);
  verdict = judge_stragglers(summary_of({10'000, 11'000, 14'500}), verdict.notes);
  EXPECT_TRUE(verdict.ended.empty()) << "not yet";
  ASSERT_EQ(verdict.notes.named.size(), 1u);
  EXPECT_EQ(verdict.notes.named[0].own_us, 14'500u);
  verdict = judge_stragglers(summary_of({10'000, 11'000, 10'000}), verdict.notes);
  ASSERT_EQ(verdict.ended.size(), 1u);
  EXPECT_TRUE(verdict.notes.named.empty());
}

TEST(Stragglers, OneSeatAloneIsNone) {
  const PaceSummary one = summary_of({10'000});
  EXPECT_TRUE(judge_stragglers(one, judge_stragglers(one, {}).notes).begun.empty());
}

}  // namespace
}  // namespace pawl::job
