// Moments as HTTP and S3 write them. Pure. Durations are since 1970, UTC, as of Clock::wall().
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace pawl::s3 {

[[nodiscard]] std::string basic_time(Duration wall);                           // 20130524T000000Z
[[nodiscard]] std::string readable_time(Duration wall);                        // 2013-05-24 00:00:00 UTC
[[nodiscard]] std::optional<Duration> parse_http_date(std::string_view text);  // Fri, 24 May 2013 00:00:00 GMT
[[nodiscard]] std::optional<Duration> parse_iso_time(std::string_view text);   // 2013-05-24T00:00:00.000Z

}  // namespace pawl::s3
