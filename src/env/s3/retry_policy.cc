#include "env/s3/retry_policy.h"

#include <algorithm>
#include <array>

#include "base/contains.h"
#include "base/text.h"
#include "env/s3/utc_time.h"

namespace pawl::s3 {
namespace {

// Whatever the status: some servers send them with 400 or 409.
constexpr std::array<std::string_view, 9> kPassing{"SlowDown",
                                                   "InternalError",
                                                   "ServiceUnavailable",
                                                   "RequestTimeout",
                                                   "OperationAborted",
                                                   "ConditionalRequestConflict",
                                                   "ThrottlingException",
                                                   "BadDigest",
                                                   "XAmzContentSHA256Mismatch"};  // the last two: damaged on their way

}  // namespace

bool is_worth_retrying(int status, std::string_view server_code) {
  if (contains(kPassing, server_code)) return true;
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

bool is_worth_retrying(Code failure) {
  return failure == Code::unreachable || failure == Code::timeout || failure == Code::corrupt;
}

std::optional<Duration> wait_before_retry(const Failure& failure, std::uint64_t random, const RetryOptions& options) {
  if (failure.attempts >= options.attempts_max) return std::nullopt;
  Duration most = options.wait_first;
  for (std::uint32_t doubled = 1; doubled < failure.attempts && most < options.wait_max; ++doubled) most *= 2;
  most = std::min(most, options.wait_max);
  Duration wait{static_cast<std::int64_t>(random % (static_cast<std::uint64_t>(most.count()) + 1))};
  if (failure.asked) wait += std::min(*failure.asked, options.asked_max);
  if (wait >= failure.left) return std::nullopt;
  return wait;
}

std::optional<Duration> parse_retry_after(std::string_view value, Duration wall) {
  std::uint32_t seconds = 0;
  if (parse_number(value, seconds)) return std::chrono::seconds(seconds);
  const std::optional<Duration> moment = parse_http_date(value);
  if (!moment) return std::nullopt;
  return std::max(Duration::zero(), *moment - wall);
}

}  // namespace pawl::s3
