#include "env/s3/retry_policy.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pawl::s3 {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RetryPolicy, which_answers) {
  for (const int status : {408, 429, 500, 502, 503, 504}) EXPECT_TRUE(is_worth_retrying(status, "")) << status;
  for (const int status : {301, 400, 403, 404, 409, 412, 501}) EXPECT_FALSE(is_worth_retrying(status, "")) << status;
  EXPECT_TRUE(is_worth_retrying(409, "OperationAborted"));
  EXPECT_TRUE(is_worth_retrying(400, "RequestTimeout"));
  EXPECT_TRUE(is_worth_retrying(200, "InternalError"));
  EXPECT_FALSE(is_worth_retrying(403, "RequestTimeTooSkewed"));
  EXPECT_TRUE(is_worth_retrying(Code::unreachable));
  EXPECT_FALSE(is_worth_retrying(Code::cancelled));
}

TEST(RetryPolicy, waits_double_up_to_a_limit) {
  const RetryOptions options{.attempts_max = 20, .wait_first = milliseconds(100), .wait_max = seconds(1)};
  const auto longest = [&](std::uint32_t attempts) {
    Duration most{};
    for (std::uint64_t random = 0; random < 1000; ++random)
      most = std::max(most, *wait_before_retry({.attempts = attempts}, random * 0x9e3779b97f4a7c15u, options));
    return most;
  };
  EXPECT_GT(longest(1), milliseconds(95));
  EXPECT_LE(longest(1), milliseconds(100));
  EXPECT_GT(longest(3), milliseconds(380));
  EXPECT_LE(longest(3), milliseconds(400));
  EXPECT_LE(longest(19), seconds(1));
  EXPECT_EQ(wait_before_retry({.attempts = 5}, 0, options), Duration::zero());  // of the full interval
}

TEST(RetryPolicy, ends_at_the_last_attempt_and_before_the_deadline) {
  const RetryOptions options{.attempts_max = 3, .wait_first = seconds(1), .wait_max = seconds(1)};
  EXPECT_TRUE(wait_before_retry({.attempts = 2}, 0, options));
  EXPECT_FALSE(wait_before_retry({.attempts = 3}, 0, options));
  EXPECT_FALSE(wait_before_retry({.attempts = 1, .left = Duration::zero()}, 0, options));
  EXPECT_FALSE(wait_before_retry({.attempts = 1, .left = seconds(5), .asked = seconds(5)}, 0, options));
}

TEST(RetryPolicy, what_the_server_asks_for_is_waited_at_least) {
  EXPECT_EQ(wait_before_retry({.attempts = 1, .asked = seconds(7)}, 0, {}), seconds(7));
  EXPECT_EQ(wait_before_retry({.attempts = 1, .asked = std::chrono::hours(9)}, 0, {}), std::chrono::minutes(2));
  EXPECT_EQ(parse_retry_after("7", {}), seconds(7));
  EXPECT_EQ(parse_retry_after("Fri, 24 May 2013 00:00:05 GMT", seconds(1369353600)), seconds(5));
  EXPECT_EQ(parse_retry_after("Fri, 24 May 2013 00:00:05 GMT", seconds(1369353700)), Duration::zero());
  EXPECT_EQ(parse_retry_after("later", {}), std::nullopt);
}

}  // namespace
}  // namespace pawl::s3
