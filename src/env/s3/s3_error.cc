#include "env/s3/s3_error.h"

#include <algorithm>

#include "base/text.h"
#include "env/s3/utc_time.h"

namespace pawl::s3 {
namespace {

constexpr std::size_t kMessageMax = 200;

struct Meaning {
  Code code;
  std::string remedy;
};

Meaning forbidden(const FailedCall& failed) {
  const std::string& code = failed.server.code;
  if (code == "RequestTimeTooSkewed") {
    const std::string theirs = failed.server.server_time ? readable_time(*failed.server.server_time) : "unknown";
    return {Code::invalid, text("this machine's clock says ", readable_time(failed.wall), ", the server's ", theirs,
                                ": set the clock (NTP)")};
  }
  if (code == "SignatureDoesNotMatch") return {Code::invalid, "check AWS_SECRET_ACCESS_KEY and AWS_REGION"};
  if (code == "InvalidAccessKeyId")
    return {Code::invalid, "check AWS_ACCESS_KEY_ID, and that the endpoint is the right one"};
  if (code == "ExpiredToken" || code == "InvalidToken")
    return {Code::invalid, "get new credentials: AWS_SESSION_TOKEN is no longer valid"};
  if (code == "QuotaExceeded") return {Code::full, "free some room, or ask for more"};
  return {Code::invalid, "these credentials may not do it: check the bucket's policy and the user's rights"};
}

Meaning meaning_of(const FailedCall& failed) {
  const std::string& code = failed.server.code;
  if (code == "NoSuchBucket") return {Code::not_found, "create the bucket, or correct its name"};
  if (!failed.server.region.empty() && failed.server.region != failed.region)
    return {Code::invalid, text("the bucket is in ", failed.server.region, ", not in ", failed.region,
                                ": set AWS_REGION=", failed.server.region)};
  switch (failed.status) {
    case 301:
    case 302:
    case 307:
    case 308:
      return {Code::invalid,
              text("the bucket is elsewhere: check AWS_REGION (now ", failed.region, ") and AWS_ENDPOINT_URL_S3")};
    case 401:
      return {Code::invalid, "check the credentials"};
    case 403:
      return forbidden(failed);
    case 404:
      return {Code::not_found, ""};
    case 409:
    case 412:
      return {Code::stale, "it is there already, or was changed meanwhile"};
    case 416:
      return {Code::stale, "the object is shorter than expected"};
    case 507:
      return {Code::full, "free some room, or ask for more"};
    default:
      break;
  }
  if (failed.status == 429 || failed.status == 503)
    return {Code::timeout, "the server is overloaded: try again later, or with fewer requests at once"};
  if (failed.status >= 500) return {Code::io, "the server failed: look into its log"};
  return {Code::io, ""};
}

std::string plain(std::string_view message) {
  std::string out(message.substr(0, kMessageMax));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, ' ');
  return out;
}

}  // namespace

Error error_of(const FailedCall& failed) {
  const Meaning meaning = meaning_of(failed);
  std::string what = text(failed.call, ": status ", failed.status);
  if (!failed.server.code.empty()) what += text(" ", plain(failed.server.code));
  if (!failed.server.message.empty()) what += text(" (", plain(failed.server.message), ")");
  if (failed.attempts > 1) what += text(" after ", failed.attempts, " attempts");
  if (!meaning.remedy.empty()) what += text(": ", meaning.remedy);
  return {meaning.code, std::move(what)};
}

}  // namespace pawl::s3
