#include "checkpoint/output/partial_output.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "env/files.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

class PartialOutputTest : public testing::Test {
 protected:
  [[nodiscard]] std::string at(const std::string& name) const { return folder_.path(name); }
  [[nodiscard]] std::vector<std::string> names(const std::string& below = "") const {
    return *real_files().list(below.empty() ? folder_.path() : at(below));
  }
  static void write(const std::string& path, const std::string& content) {
    ASSERT_TRUE(write_file_atomically(path, content));
  }
  static std::string content(const std::string& path) {
    const auto bytes = read_file(path);
    return bytes ? *bytes : bytes.error().what;
  }

  const TemporaryDirectory folder_;
};
using Names = std::vector<std::string>;

TEST_F(PartialOutputTest, FileGetsItsNameLast) {
  auto output = PartialOutput::begin(at("out"), {});
  ASSERT_TRUE(output) << output.error().what;
  const std::string path = output->path_of("anything");
  write(path, "whole");
  EXPECT_EQ(names(), Names{"out.pawl-partial"});
  const Status published = output->publish();
  ASSERT_TRUE(published) << published.error().what;
  EXPECT_EQ(names(), Names{"out"});
  EXPECT_EQ(content(at("out")), "whole");
  struct stat found {};
  ASSERT_EQ(::stat(at("out").c_str(), &found), 0);
  const mode_t hidden = ::umask(0);
  ::umask(hidden);
  EXPECT_EQ(found.st_mode & 0777, 0666u & ~hidden);
}

TEST_F(PartialOutputTest, WhatIsNotPublishedIsGone) {
  {
    auto output = PartialOutput::begin(at("out/"), {.folder = true});
    ASSERT_TRUE(output) << output.error().what;
    write(output->path_of("a"), "1");
    EXPECT_EQ(names(), Names{"out.pawl-partial"});
  }
  EXPECT_EQ(names(), Names{});
}

TEST_F(PartialOutputTest, TheNextRunTakesOverWhatAKillLeft) {
  ASSERT_EQ(::mkdir(at("out.pawl-partial").c_str(), 0777), 0);
  write(at("out.pawl-partial/data"), "half");
  write(at("out.pawl-partial/old"), "half");
  auto output = PartialOutput::begin(at("out"), {.folder = true});
  ASSERT_TRUE(output) << output.error().what;
  EXPECT_EQ(names("out.pawl-partial"), Names{"held-by"});
  write(output->path_of("new"), "whole");
  ASSERT_TRUE(output->publish());
  EXPECT_EQ(names(), Names{"out"});
  EXPECT_EQ(names("out"), Names{"new"});
}

TEST_F(PartialOutputTest, RefusesASecondRun) {
  auto first = PartialOutput::begin(at("out"), {});
  ASSERT_TRUE(first);
  write(first->path_of(""), "1");
  const auto second = PartialOutput::begin(at("out"), {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::stale) << second.error().what;
  EXPECT_NE(second.error().what.find(text("is being written by process ", ::getpid(), " on ")), std::string::npos)
      << second.error().what;
  ASSERT_TRUE(first->publish());
  EXPECT_EQ(content(at("out")), "1");
}

TEST_F(PartialOutputTest, RefusesWhatStandsThere) {
  write(at("file"), "mine");
  ASSERT_EQ(::mkdir(at("empty").c_str(), 0777), 0);
  ASSERT_EQ(::mkdir(at("full").c_str(), 0777), 0);
  write(at("full/config.json"), "{}");
  const auto code = [&](const std::string& name, PartialOptions options) {
    const auto output = PartialOutput::begin(at(name), options);
    return output ? std::string("ok") : std::string(name_of(output.error().code));
  };
  EXPECT_EQ(code("file", {}), "invalid");
  EXPECT_EQ(code("file", {.overwrite = true}), "ok");
  EXPECT_EQ(code("file", {.folder = true, .overwrite = true}), "invalid");
  EXPECT_EQ(code("empty", {.folder = true}), "ok");
  EXPECT_EQ(code("full", {.folder = true}), "invalid");
  EXPECT_EQ(code("full", {.overwrite = true}), "invalid");
  EXPECT_EQ(code("no/such/folder", {}), "not_found");
  EXPECT_EQ(code("new", {.bytes = ~std::uint64_t{0}}), "full");
  EXPECT_EQ(code("..", {.folder = true}), "invalid");
  EXPECT_EQ(content(at("file")), "mine");
  EXPECT_EQ(names(), (Names{"empty", "file", "full"}));
}

TEST_F(PartialOutputTest, TakesOverAFolderAndLeavesOtherFiles) {
  ASSERT_EQ(::mkdir(at("model").c_str(), 0777), 0);
  for (const char* name : {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "model.safetensors.index.json"})
    write(at("model/" + std::string(name)), "old");
  auto output = PartialOutput::begin(at("model"), {.folder = true, .overwrite = true});
  ASSERT_TRUE(output) << output.error().what;
  write(output->path_of("model.safetensors"), "new");
  const Status published = output->publish();
  ASSERT_TRUE(published) << published.error().what;
  EXPECT_EQ(names(), Names{"model"});
  EXPECT_EQ(names("model"), (Names{"config.json", "model.safetensors"}));
  EXPECT_EQ(content(at("model/config.json")), "old");
}

TEST_F(PartialOutputTest, FilesMayLieInFolders) {
  ASSERT_TRUE(make_directories(at("out.pawl-partial/a/old")));
  write(at("out.pawl-partial/a/old/half"), "half");
  auto output = PartialOutput::begin(at("out"), {.folder = true});
  ASSERT_TRUE(output) << output.error().what;
  write(output->path_of("a/b/c.pt"), "1");
  write(output->path_of("a/d.pt"), "2");
  write(output->path_of("latest"), "a");
  const Status published = output->publish();
  ASSERT_TRUE(published) << published.error().what;
  EXPECT_EQ(names("out"), (Names{"a", "latest"}));
  EXPECT_EQ(names("out/a"), (Names{"b", "d.pt"}));
  EXPECT_EQ(content(at("out/a/b/c.pt")), "1");
}

TEST_F(PartialOutputTest, ExchangesAFolderThatHoldsTheMarker) {
  ASSERT_TRUE(make_directories(at("ckpt/deep")));
  write(at("ckpt/.metadata"), "old");
  write(at("ckpt/deep/old"), "old");
  const PartialOptions options{.folder = true, .overwrite = true, .bytes = 0, .marker = ".metadata"};
  {
    auto output = PartialOutput::begin(at("ckpt"), options);
    ASSERT_TRUE(output) << output.error().what;
    write(output->path_of(".metadata"), "new");
    EXPECT_EQ(content(at("ckpt/.metadata")), "old");
    const Status published = output->publish();
    ASSERT_TRUE(published) << published.error().what;
  }
  EXPECT_EQ(names(), Names{"ckpt"});
  EXPECT_EQ(names("ckpt"), Names{".metadata"});
  EXPECT_EQ(content(at("ckpt/.metadata")), "new");

  auto output = PartialOutput::begin(at("ckpt"), options);  // taken away while it is written
  ASSERT_TRUE(output) << output.error().what;
  write(output->path_of(".metadata"), "newer");
  ASSERT_EQ(::rename(at("ckpt/.metadata").c_str(), at("ckpt/thesis").c_str()), 0);
  const Status refused = output->publish();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("holds no .metadata"), std::string::npos) << refused.error().what;
  EXPECT_EQ(names("ckpt"), Names{"thesis"});
}

}  // namespace
}  // namespace pawl::checkpoint
