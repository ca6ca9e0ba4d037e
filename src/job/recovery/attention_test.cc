#include "job/recovery/attention.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Attentive : public testing::Test {
 protected:
  // Ticks and answered renewals, as in a quiet job.
  void live(Duration time) {
    for (const Duration end = now + time; now < end; now += 50ms) {
      attention.ticked(now, deadlines);
      if (now - asked < deadlines.lease / 4) continue;
      asked = now;
      attention.control_answered(now, now, deadlines);
    }
    now -= 50ms;
  }
  std::optional<Duration> since() { return attention.since(now, deadlines); }

  Deadlines deadlines = derive_deadlines(3s);
  Attention attention;
  Duration now = 1000s;
  Duration asked{};
};

TEST_F(Attentive, BeginsWithTheFirstAnswer) {
  attention.ticked(now, deadlines);
  EXPECT_FALSE(since());
  live(60s);
  EXPECT_EQ(since(), 1000s);
}

TEST_F(Attentive, EndsWithACallThatFailsUntilOneIsAnswered) {
  live(60s);
  attention.control_failed();
  EXPECT_FALSE(since());
  asked = {};
  live(10s);
  EXPECT_EQ(since(), 1059950ms);
}

TEST_F(Attentive, AnAnswerThatTookLongBeginsItAnew) {
  live(60s);
  attention.ticked(now + 1s, deadlines);
  attention.ticked(now + 2s, deadlines);
  attention.control_answered(now, now + 2s, deadlines);
  now += 2s;
  EXPECT_EQ(since(), now);
}

TEST_F(Attentive, NoAnswerForHalfALeaseIsAControlThatIsAway) {
  live(60s);
  const Duration last = asked;
  for (; now < last + 2500ms; now += 50ms) attention.ticked(now, deadlines);
  EXPECT_TRUE(since());
  now += 50ms;
  attention.ticked(now, deadlines);
  EXPECT_FALSE(since());
}

TEST_F(Attentive, WhoWasStoppedHasNoticedNothing) {
  live(60s);
  now += 10s;
  EXPECT_FALSE(since());
  attention.ticked(now, deadlines);
  attention.control_answered(now, now, deadlines);
  EXPECT_EQ(since(), now);
}

TEST_F(Attentive, ALateAnswerToAnOlderCallChangesNothing) {
  live(60s);
  attention.control_answered(asked - 1s, now, deadlines);
  EXPECT_EQ(since(), 1000s);
}

}  // namespace
}  // namespace pawl::job
