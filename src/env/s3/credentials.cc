#include "env/s3/credentials.h"

#include <algorithm>
#include <cstdlib>

#include "base/text.h"
#include "env/byte_source.h"

namespace pawl::s3 {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// Of one kind of file, at its own path or in the home.
Result<std::string> text_of(const SettingsSources& sources, const char* variable, const char* in_home) {
  std::optional<std::string> path = sources.variable(variable);
  if (!path) {
    const std::optional<std::string> home = sources.variable("HOME");
    if (!home) return std::string();
    path = text(*home, in_home);
  }
  PAWL_ASSIGN(std::optional<std::string> content, sources.file(*path));
  return std::move(content).value_or(std::string());
}

struct Profile {
  std::string name;
  std::string credentials;  // texts of the files
  std::string config;

  [[nodiscard]] std::optional<std::string> value(std::string_view key) const {
    if (std::optional<std::string> found = profile_value(credentials, name, key)) return found;
    return profile_value(config, name == "default" ? name : text("profile ", name), key);
  }
};

Result<Credentials> read_credentials(const SettingsSources& sources, const Profile& profile) {
  const std::optional<std::string> id = sources.variable("AWS_ACCESS_KEY_ID");
  std::optional<std::string> secret = sources.variable("AWS_SECRET_ACCESS_KEY");
  if (id && secret)
    return Credentials{*id, Secret(std::move(*secret)), Secret(sources.variable("AWS_SESSION_TOKEN").value_or(""))};
  if (id || secret)
    return Error{Code::invalid,
                 text("credentials of S3: ", id ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY", " is set and ",
                      id ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID", " is not: set both")};
  std::optional<std::string> profile_id = profile.value("aws_access_key_id");
  std::optional<std::string> profile_secret = profile.value("aws_secret_access_key");
  if (profile_id && profile_secret)
    return Credentials{std::move(*profile_id), Secret(std::move(*profile_secret)),
                       Secret(profile.value("aws_session_token").value_or(""))};
  return Error{
      Code::invalid,
      text("credentials of S3: there are none: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into the "
           "profile \"",
           profile.name, "\" of ~/.aws/credentials (AWS_PROFILE names another one)")};
}

}  // namespace

SettingsSources real_settings_sources() {
  SettingsSources out;
  out.variable = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
  out.file = [](const std::string& path) -> Result<std::optional<std::string>> {
    constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 20;
    Result<std::string> found = read_head(path, kSizeMax);
    if (found) return std::optional<std::string>(std::move(found).value());
    if (found.error().code == Code::not_found) return std::optional<std::string>();
    return std::move(found).error();
  };
  return out;
}

std::optional<std::string> profile_value(std::string_view file, std::string_view section, std::string_view key) {
  bool inside = false;
  while (!file.empty()) {
    const std::size_t end = std::min(file.find('\n'), file.size());
    const std::string_view whole = file.substr(0, end);
    file.remove_prefix(std::min(end + 1, file.size()));
    const std::string_view line = trimmed(whole);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      inside = line.back() == ']' && trimmed(line.substr(1, line.size() - 2)) == section;
      continue;
    }
    const bool nested = whole.front() == ' ' || whole.front() == '\t';
    const std::size_t equals = line.find('=');
    if (!inside || nested || equals == line.npos) continue;
    if (trimmed(line.substr(0, equals)) == key) return std::string(trimmed(line.substr(equals + 1)));
  }
  return std::nullopt;
}

Result<S3Settings> read_settings(const SettingsSources& sources) {
  Profile profile;
  profile.name = sources.variable("AWS_PROFILE").value_or("default");
  PAWL_ASSIGN(profile.credentials, text_of(sources, "AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials"));
  PAWL_ASSIGN(profile.config, text_of(sources, "AWS_CONFIG_FILE", "/.aws/config"));
  S3Settings out;
  PAWL_ASSIGN(out.credentials, read_credentials(sources, profile));
  const auto first_of = [&](std::initializer_list<const char*> variables, const char* key) {
    for (const char* name : variables)
      if (std::optional<std::string> found = sources.variable(name)) return *found;
    return (*key == '\0' ? std::nullopt : profile.value(key)).value_or("");
  };
  out.region = first_of({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region");
  if (out.region.empty()) out.region = "us-east-1";
  out.endpoint = first_of({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url");
  out.certificates = first_of({"AWS_CA_BUNDLE"}, "ca_bundle");
  return out;
}

}  // namespace pawl::s3
