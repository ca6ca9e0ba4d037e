#include "env/s3/utc_time.h"

#include <time.h>

namespace pawl::s3 {
namespace {

std::string written(Duration wall, const char* format) {
  const time_t seconds = std::chrono::floor<std::chrono::seconds>(wall).count();
  tm parts{};
  gmtime_r(&seconds, &parts);
  char out[64];
  const std::size_t size = strftime(out, sizeof out, format, &parts);
  return {out, size};
}

std::optional<Duration> parsed(std::string_view text, const char* format) {
  tm parts{};
  const std::string whole(text);
  if (strptime(whole.c_str(), format, &parts) == nullptr) return std::nullopt;
  return std::chrono::seconds(timegm(&parts));
}

}  // namespace

// The C locale, in which these are English, is the process's: pawl sets no other.
std::string basic_time(Duration wall) {
  return written(wall, "%Y%m%dT%H%M%SZ");
}
std::string readable_time(Duration wall) {
  return written(wall, "%Y-%m-%d %H:%M:%S UTC");
}
std::optional<Duration> parse_http_date(std::string_view text) {
  return parsed(text, "%a, %d %b %Y %H:%M:%S GMT");
}
std::optional<Duration> parse_iso_time(std::string_view text) {
  return parsed(text, "%Y-%m-%dT%H:%M:%S");
}

}  // namespace pawl::s3
