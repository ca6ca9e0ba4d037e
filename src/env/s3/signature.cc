#include "env/s3/signature.h"

#include <algorithm>

#include "base/text.h"
#include "env/s3/digests.h"
#include "env/s3/utc_time.h"

namespace pawl::s3 {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Without blanks around it, and with one blank for each run of them within.
std::string single_blanks(std::string_view value) {
  std::string out;
  bool blank = false;
  for (const char c : value) {
    if (c == ' ' || c == '\t') {
      blank = !out.empty();
      continue;
    }
    if (blank) out += ' ';
    blank = false;
    out += c;
  }
  return out;
}

// Sorted by name; values of one name joined in the order in which they are sent.
Headers canonical_headers(const Headers& headers) {
  Headers sorted;
  for (const auto& each : headers) sorted.push_back({lower(each.first), single_blanks(each.second)});
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Headers joined;
  for (auto& each : sorted) {
    if (!joined.empty() && joined.back().first == each.first) {
      joined.back().second += text(",", each.second);
    } else {
      joined.push_back(std::move(each));
    }
  }
  return joined;
}

std::string signed_names(const Headers& canonical) {
  std::string out;
  for (const auto& each : canonical) out += text(out.empty() ? "" : ";", each.first);
  return out;
}

std::string_view as_key(const Sha256& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string scope_text(const SigningScope& scope) {
  return text(basic_time(scope.wall).substr(0, 8), "/", scope.region, "/", scope.service, "/aws4_request");
}

Sha256 signing_key(const SigningScope& scope, const Secret& secret) {
  const Sha256 date = hmac_sha256("AWS4" + secret.reveal(), basic_time(scope.wall).substr(0, 8));
  const Sha256 region = hmac_sha256(as_key(date), scope.region);
  const Sha256 service = hmac_sha256(as_key(region), scope.service);
  return hmac_sha256(as_key(service), "aws4_request");
}

}  // namespace

std::string canonical_request(const UnsignedRequest& request) {
  const Headers headers = canonical_headers(request.headers);
  std::string out = text(request.method, "\n", request.path, "\n", canonical_query(request.query), "\n");
  for (const auto& each : headers) out += text(each.first, ":", each.second, "\n");
  return out + text("\n", signed_names(headers), "\n", request.payload_digest);
}

std::string string_to_sign(const UnsignedRequest& request, const SigningScope& scope) {
  const std::string canonical = canonical_request(request);
  return text(kAlgorithm, "\n", basic_time(scope.wall), "\n", scope_text(scope), "\n",
              hex(sha256(std::as_bytes(std::span(canonical)))));
}

std::string authorization(const UnsignedRequest& request, const SigningScope& scope, const Credentials& credentials) {
  const Sha256 key = signing_key(scope, credentials.secret_access_key);
  const Sha256 signature = hmac_sha256(as_key(key), string_to_sign(request, scope));
  return text(kAlgorithm, " Credential=", credentials.access_key_id, "/", scope_text(scope),
              ",SignedHeaders=", signed_names(canonical_headers(request.headers)), ",Signature=", hex(signature));
}

void sign(UnsignedRequest& request, const SigningScope& scope, const Credentials& credentials) {
  request.headers.push_back({"x-amz-content-sha256", request.payload_digest});
  request.headers.push_back({"x-amz-date", basic_time(scope.wall)});
  if (!credentials.session_token.empty())
    request.headers.push_back({"x-amz-security-token", credentials.session_token.reveal()});
  std::string proof = authorization(request, scope, credentials);
  request.headers.push_back({"Authorization", std::move(proof)});
}

}  // namespace pawl::s3
