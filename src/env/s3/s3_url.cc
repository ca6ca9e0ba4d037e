#include "env/s3/s3_url.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::s3 {
namespace {

constexpr std::string_view kScheme = "s3://";

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}
bool is_lower_alphanumeric(char c) {
  return is_alphanumeric(c) && (c < 'A' || c > 'Z');
}

bool is_bucket_name(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && is_lower_alphanumeric(name.front()) &&
         is_lower_alphanumeric(name.back()) && name.find("..") == name.npos &&
         std::ranges::all_of(name, [](char c) { return is_lower_alphanumeric(c) || c == '-' || c == '.'; });
}

std::string encode(std::string_view bytes, bool keep_slashes) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(bytes.size());
  for (const char c : bytes) {
    if (is_alphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~' || (keep_slashes && c == '/')) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace

bool is_s3_path(std::string_view path) {
  return path.starts_with(kScheme);
}

Result<S3Path> parse_s3_path(std::string_view path) {
  if (!is_s3_path(path)) return Error{Code::invalid, text(path, ": write s3://BUCKET/PREFIX")};
  const std::string_view rest = path.substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view bucket = rest.substr(0, slash);
  if (!is_bucket_name(bucket))
    return Error{Code::invalid,
                 text(path, ": \"", bucket,
                      "\" is no name of a bucket: 3 to 63 lower-case letters, digits, '-' and '.', with a letter "
                      "or digit at both ends")};
  return S3Path{std::string(bucket), std::string(rest.substr(std::min(slash + 1, rest.size())))};
}

std::string encode_segment(std::string_view bytes) {
  return encode(bytes, false);
}
std::string encode_key(std::string_view key) {
  return encode(key, true);
}

Result<std::string> decode_key(std::string_view encoded) {
  std::string out;
  out.reserve(encoded.size());
  for (std::size_t at = 0; at < encoded.size(); ++at) {
    if (encoded[at] != '%') {
      out += encoded[at] == '+' ? ' ' : encoded[at];
      continue;
    }
    std::uint8_t byte = 0;
    const std::string_view digits = encoded.substr(at + 1, 2);
    if (digits.size() != 2 || !parse_number(digits, byte, 16))
      return Error{Code::corrupt, text("\"", encoded, "\" is not encoded as keys are")};
    out += static_cast<char>(byte);
    at += 2;
  }
  return out;
}

std::string canonical_query(const Query& query) {
  Query encoded;
  for (const auto& each : query) encoded.push_back({encode_segment(each.first), encode_segment(each.second)});
  std::sort(encoded.begin(), encoded.end());
  std::string out;
  for (const auto& each : encoded) out += text(out.empty() ? "" : "&", each.first, "=", each.second);
  return out;
}

Result<Endpoint> parse_endpoint(std::string_view url) {
  const std::size_t colon = url.find("://");
  const std::string_view scheme = url.substr(0, std::min(colon, url.size()));
  const std::string_view rest = colon == url.npos ? std::string_view() : url.substr(colon + 3);
  const std::string_view authority = rest.substr(0, rest.find('/'));
  std::string_view path = rest.substr(authority.size());
  while (path.ends_with('/')) path.remove_suffix(1);
  const bool plain =
      std::ranges::all_of(url, [](char c) { return c > ' ' && c < 0x7f && c != '@' && c != '?' && c != '#'; });
  if ((scheme != "http" && scheme != "https") || authority.empty() || !plain) {
    // Not quoted: it may hold a password.
    return Error{
        Code::invalid,
        "the endpoint of S3 is no http[s]://HOST[:PORT] without user, query and fragment: set AWS_ENDPOINT_URL_S3"};
  }
  std::string host(authority);  // as curl sends it: without the scheme's own port
  const std::string_view own_port = scheme == "http" ? ":80" : ":443";
  if (host.ends_with(own_port)) host.resize(host.size() - own_port.size());
  return Endpoint{std::string(scheme), std::move(host), std::string(path)};
}

Endpoint aws_endpoint(std::string_view region) {
  return {"https", text("s3.", region, region.starts_with("cn-") ? ".amazonaws.com.cn" : ".amazonaws.com"), ""};
}

RequestAddress address_of(const Endpoint& endpoint, BucketPlace place, std::string_view bucket, std::string_view key) {
  RequestAddress out;
  const bool in_host = place == BucketPlace::virtual_host;
  out.host = in_host ? text(bucket, ".", endpoint.authority) : endpoint.authority;
  out.path = endpoint.path;
  if (!in_host) out.path += text("/", bucket);
  if (in_host || !key.empty()) out.path += text("/", encode_key(key));
  out.url = text(endpoint.scheme, "://", out.host, out.path);
  return out;
}

}  // namespace pawl::s3
