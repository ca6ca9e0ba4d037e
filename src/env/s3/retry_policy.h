// Which failures of a request to S3 are worth another attempt, and how long to wait before it. Pure.
//
// The wait is drawn from all of an interval that doubles ("full jitter"), so that a thousand nodes that were refused at once
// don't come back at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"

namespace pawl::s3 {

struct RetryOptions {
  std::uint32_t attempts_max = 8;                        // 1: never again. Lower: an error is reported sooner
  Duration wait_first = std::chrono::milliseconds(200);  // the longest wait before the second attempt
  Duration wait_max = std::chrono::seconds(20);  // the longest wait at all, but for one that the server asks for
  Duration asked_max = std::chrono::minutes(2);  // a server's Retry-After is followed up to this
};

// An answer with this status and S3's code of the error, which may be empty.
[[nodiscard]] bool is_worth_retrying(int status, std::string_view server_code);
// A request that got no whole answer.
[[nodiscard]] bool is_worth_retrying(Code failure);

struct Failure {
  std::uint32_t attempts = 0;                    // made so far, at least one
  Duration left = Duration::max();               // until the deadline
  std::optional<Duration> asked = std::nullopt;  // Retry-After
};

// How long to wait; nothing: give up. `random` is any number, another one each time.
[[nodiscard]] std::optional<Duration> wait_before_retry(const Failure& failure, std::uint64_t random,
                                                        const RetryOptions& options);

// Of the header's value: seconds, or a date in HTTP's form; never negative.
[[nodiscard]] std::optional<Duration> parse_retry_after(std::string_view value, Duration wall);

}  // namespace pawl::s3
