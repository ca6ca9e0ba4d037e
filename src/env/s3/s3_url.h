// Where an object is: s3://bucket/prefix as users write it, the address of a request as HTTP has it.
//
// Pure. Keys are bytes, UTF-8 by convention; every byte but letters, digits and "-._~" is encoded, also '+'.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace pawl::s3 {

struct S3Path {
  std::string bucket;
  std::string prefix;  // a key or the beginning of keys, without a slash in front; may be empty
  friend bool operator==(const S3Path&, const S3Path&) = default;
};

[[nodiscard]] bool is_s3_path(std::string_view path);  // whether it begins with "s3://"

// Fails: `invalid` unless it is s3://BUCKET[/PREFIX] with a bucket's name as S3 allows them: 3 to 63 characters, lower-case letters,
// digits, '-' and '.', a letter or digit at both ends.
[[nodiscard]] Result<S3Path> parse_s3_path(std::string_view path);

// Percent-encoded as SigV4 wants it, upper-case hexadecimal digits.
[[nodiscard]] std::string encode_segment(std::string_view bytes);  // '/' is encoded, too
[[nodiscard]] std::string encode_key(std::string_view key);        // '/' stays
// Fails: `corrupt`. '+' is a blank, as S3 writes it in lists.
[[nodiscard]] Result<std::string> decode_key(std::string_view encoded);

using Query = std::vector<std::pair<std::string, std::string>>;  // names and values, not encoded

// In order of the encoded names: a=1&b=. The text that is signed and the one that is sent.
[[nodiscard]] std::string canonical_query(const Query& query);

struct Endpoint {
  std::string scheme;     // http or https
  std::string authority;  // host, or host:port, as the header Host has it
  std::string path;       // what comes before all keys, encoded, without a slash at its end; mostly empty
};

// Fails: `invalid` unless it is http[s]://HOST[:PORT][/PATH], without a user's name, a query or a fragment.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view url);
[[nodiscard]] Endpoint aws_endpoint(std::string_view region);

// Virtual hosts: the bucket is the first label of the host's name. Path style: it is the first segment of the path; what most servers
// but AWS's want, and a bucket with a dot over TLS, since the server's certificate has no such name.
enum class BucketPlace : unsigned char { virtual_host, path };

struct RequestAddress {
  std::string host;  // the header
  std::string path;  // encoded, begins with a slash
  std::string url;   // all of it, without a query
};

[[nodiscard]] RequestAddress address_of(const Endpoint& endpoint, BucketPlace place, std::string_view bucket,
                                        std::string_view key);

}  // namespace pawl::s3
