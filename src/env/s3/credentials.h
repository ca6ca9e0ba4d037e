// Credentials and settings of S3, from the variables and files that AWS's own tools read.
//
// Pure but for what the caller passes in. A secret has no text: text(), errors and logs cannot take one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace pawl::s3 {

class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string value) : value_(std::move(value)) {}
  [[nodiscard]] bool empty() const { return value_.empty(); }
  [[nodiscard]] const std::string& reveal() const { return value_; }  // into a signature or a header, nowhere else

 private:
  std::string value_;
};

struct Credentials {
  std::string access_key_id;
  Secret secret_access_key;
  Secret session_token;  // empty: there is none
};

struct S3Settings {
  Credentials credentials;
  std::string region;
  std::string endpoint;      // empty: AWS's own
  std::string certificates;  // a file of authorities to trust instead of the system's; empty: the system's
};

struct SettingsSources {
  std::function<std::optional<std::string>(const std::string& name)> variable;      // of the environment
  std::function<Result<std::optional<std::string>>(const std::string& path)> file;  // its text; nothing where it is not
};

[[nodiscard]] SettingsSources real_settings_sources();

// AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or else the profile AWS_PROFILE (`default`) of
// AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials). AWS_REGION, AWS_DEFAULT_REGION, the profile's region in AWS_CONFIG_FILE
// (~/.aws/config), or us-east-1. AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url. AWS_CA_BUNDLE.
// Fails: `invalid`, saying what to set. No file's text is ever in an error.
[[nodiscard]] Result<S3Settings> read_settings(const SettingsSources& sources);

// The value of a key in [section] of a file such as ~/.aws/config; nothing where it is not there. Nested values are left out.
[[nodiscard]] std::optional<std::string> profile_value(std::string_view file, std::string_view section,
                                                       std::string_view key);

}  // namespace pawl::s3
