#include "env/s3/credentials.h"

#include <gtest/gtest.h>

#include <map>
#include <type_traits>

#include "base/text.h"

namespace pawl::s3 {
namespace {

struct World {
  std::map<std::string, std::string> variables, files;

  [[nodiscard]] Result<S3Settings> read() const {
    SettingsSources sources;
    sources.variable = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end()) return std::nullopt;
      return found->second;
    };
    sources.file = [this](const std::string& path) -> Result<std::optional<std::string>> {
      const auto found = files.find(path);
      if (found == files.end()) return std::optional<std::string>();
      return std::optional<std::string>(found->second);
    };
    return read_settings(sources);
  }
};

TEST(Settings, variables_come_first) {
  World world;
  world.variables = {{"HOME", "/h"},
                     {"AWS_ACCESS_KEY_ID", "id"},
                     {"AWS_SECRET_ACCESS_KEY", "secret"},
                     {"AWS_SESSION_TOKEN", "t"},
                     {"AWS_REGION", "eu-west-1"},
                     {"AWS_ENDPOINT_URL", "http://all"},
                     {"AWS_CA_BUNDLE", "/ca"},
                     {"AWS_ENDPOINT_URL_S3", "http://s3"}};
  world.files["/h/.aws/credentials"] = "[default]\naws_access_key_id=other\naws_secret_access_key=other\n";
  const S3Settings found = world.read().value();
  EXPECT_EQ(found.credentials.access_key_id, "id");
  EXPECT_EQ(found.credentials.secret_access_key.reveal(), "secret");
  EXPECT_EQ(found.credentials.session_token.reveal(), "t");
  EXPECT_EQ(found.region, "eu-west-1");
  EXPECT_EQ(found.endpoint, "http://s3");
  EXPECT_EQ(found.certificates, "/ca");
}

TEST(Settings, a_profile_in_files) {
  World world;
  world.variables = {{"HOME", "/h"}, {"AWS_PROFILE", "work"}};
  world.files["/h/.aws/credentials"] =
      "# mine\n[default]\naws_access_key_id = wrong\n\n[ work ]\r\naws_access_key_id = "
      "id\r\naws_secret_access_key=a=b/c\n";
  world.files["/h/.aws/config"] =
      "[default]\nregion = wrong\n[profile work]\nregion = eu-north-1\ns3 =\n  region = nested\nendpoint_url = "
      "http://here:1\n";
  const S3Settings found = world.read().value();
  EXPECT_EQ(found.credentials.access_key_id, "id");
  EXPECT_EQ(found.credentials.secret_access_key.reveal(), "a=b/c");
  EXPECT_TRUE(found.credentials.session_token.empty());
  EXPECT_EQ(found.region, "eu-north-1");
  EXPECT_EQ(found.endpoint, "http://here:1");
}

TEST(Settings, other_files_and_the_default_region) {
  World world;
  world.variables = {{"AWS_SHARED_CREDENTIALS_FILE", "/c"}};
  world.files["/c"] = "[default]\naws_access_key_id=id\naws_secret_access_key=secret";
  EXPECT_EQ(world.read().value().region, "us-east-1");
}

TEST(Settings, what_is_missing_is_named_and_no_secret) {
  World world;
  EXPECT_NE(world.read().error().what.find("set AWS_ACCESS_KEY_ID"), std::string::npos);
  world.variables["AWS_SECRET_ACCESS_KEY"] = "hush";
  const Error half = world.read().error();
  EXPECT_EQ(half.code, Code::invalid);
  EXPECT_NE(half.what.find("AWS_ACCESS_KEY_ID is not"), std::string::npos);
  EXPECT_EQ(half.what.find("hush"), std::string::npos);
}

static_assert(std::is_constructible_v<TextPart, std::string> && !std::is_constructible_v<TextPart, Secret>,
              "a secret must not get into an error or a log");

}  // namespace
}  // namespace pawl::s3
