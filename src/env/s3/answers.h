// What S3 answers in XML, and what it is told in it. Pure; elements that we don't know are passed over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace pawl::s3 {

// An error document. All fields may be empty: a proxy in front of a server answers in HTML, a HEAD with nothing.
struct ServerError {
  std::string code;  // "NoSuchKey"
  std::string message;
  std::string region;                   // where the bucket is, if the request went elsewhere
  std::optional<Duration> server_time;  // of RequestTimeTooSkewed
};

[[nodiscard]] ServerError parse_error(std::string_view document);
[[nodiscard]] bool is_error(std::string_view document);  // some calls fail with status 200

struct ListedObject {
  std::string key;
  std::uint64_t size_bytes = 0;
  std::string etag;
};

struct ListPage {
  std::vector<ListedObject> objects;
  std::vector<std::string> prefixes;  // beneath which there is more, where the list was to stop at a delimiter
  std::string continuation;           // ask for the next page with this; empty: it is the last one
};

// Each fails with `corrupt`.
[[nodiscard]] Result<ListPage> parse_list_page(std::string_view document);
[[nodiscard]] Result<std::string> parse_upload_id(std::string_view document);
[[nodiscard]] Result<std::string> parse_completed_etag(std::string_view document);

struct UploadedPart {
  std::uint32_t number = 0;  // 1..10000
  std::string etag;
  std::string crc32c;  // base64; empty: the upload has other checksums
};

[[nodiscard]] std::string complete_document(std::vector<UploadedPart> parts);  // in any order

}  // namespace pawl::s3
