// SigV4: AWS's Signature Version 4, with which each request proves that its sender knows the secret key.
//
// Pure: the moment is an argument. A signature holds no secret; headers do if they hold a session's token.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "env/s3/credentials.h"
#include "env/s3/s3_url.h"

namespace pawl::s3 {

using Headers = std::vector<std::pair<std::string, std::string>>;

// In place of the payload's digest: TLS protects it, and no second pass over the bytes is needed.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct UnsignedRequest {
  std::string method;
  std::string path;            // encoded
  Query query;                 // not encoded
  Headers headers;             // names in any case; with Host; all are signed
  std::string payload_digest;  // SHA-256 of the body in hexadecimal digits, or kUnsignedPayload
};

struct SigningScope {
  Duration wall;  // now, since 1970
  std::string region;
  std::string service = "s3";
};

// The steps, as AWS documents and tests them one by one.
[[nodiscard]] std::string canonical_request(const UnsignedRequest& request);
[[nodiscard]] std::string string_to_sign(const UnsignedRequest& request, const SigningScope& scope);
[[nodiscard]] std::string authorization(const UnsignedRequest& request, const SigningScope& scope,
                                        const Credentials& credentials);

// Adds what S3 wants to all requests: x-amz-date, x-amz-content-sha256, the session's token, and Authorization.
void sign(UnsignedRequest& request, const SigningScope& scope, const Credentials& credentials);

}  // namespace pawl::s3
