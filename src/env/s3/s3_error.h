// What a failed call to S3 becomes: an error with bucket, key, status, S3's own code, and what to do. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "env/s3/answers.h"

namespace pawl::s3 {

struct FailedCall {
  std::string call;  // "put s3://bucket/key"
  int status = 0;
  ServerError server;
  std::string region;  // in which the request was signed
  Duration wall;       // when it was
  std::uint32_t attempts = 1;
};

// not_found, stale (a condition doesn't hold, a range is beyond the end), full (quota), timeout (the server was too busy each
// time), invalid (rights, credentials, region, clock), io (the rest).
[[nodiscard]] Error error_of(const FailedCall& failed);

}  // namespace pawl::s3
