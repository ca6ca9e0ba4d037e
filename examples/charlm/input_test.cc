#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "settings.h"
#include "text_data.h"

namespace charlm {
namespace {

Outcome parse(std::vector<const char*> arguments, Settings* settings) {
  arguments.insert(arguments.begin(), "charlm");
  return parse_settings(static_cast<int>(arguments.size()), arguments.data(), settings);
}

TEST(Settings, AreReadInBothSpellings) {
  Settings settings;
  ASSERT_TRUE(parse({"--steps", "7", "--seed=9", "--batch=3", "--hidden", "16", "--learning-rate=0.5", "--data", "x",
                     "--record=y", "--verbose"},
                    &settings)
                  .ok());
  EXPECT_EQ(settings.steps, 7u);
  EXPECT_EQ(settings.seed, 9u);
  EXPECT_EQ(settings.batch, 3u);
  EXPECT_EQ(settings.hidden, 16u);
  EXPECT_EQ(settings.learning_rate, 0.5);
  EXPECT_EQ(settings.data, "x");
  EXPECT_EQ(settings.record, "y");
  EXPECT_TRUE(settings.verbose);
}

TEST(Settings, WrongOnesAreNamed) {
  Settings settings;
  for (const std::vector<const char*>& wrong : std::vector<std::vector<const char*>>{{"--stesp", "7"},
                                                                                     {"--steps"},
                                                                                     {"--steps", "0"},
                                                                                     {"--steps", "7x"},
                                                                                     {"--steps", "-1"},
                                                                                     {"--hidden", "3"},
                                                                                     {"--learning-rate", "nan"},
                                                                                     {"--data", ""},
                                                                                     {"--data="},
                                                                                     {"seven"}}) {
    const Outcome parsed = parse(wrong, &settings);
    EXPECT_FALSE(parsed.ok()) << wrong[0];
    EXPECT_NE(parsed.what.find(std::string(wrong[0]).substr(0, 6)), std::string::npos) << parsed.what;
  }
}

class TextData : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "charlm_text.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  std::filesystem::path folder_;
  Text text_;
};

TEST_F(TextData, AFolderIsItsTextFilesInOrder) {
  write("b.txt", "second ");
  write("a/deep/x", "first ");
  write("c.bin", std::string("no\0text", 7));
  ASSERT_TRUE(load_text(folder_.string(), 5, &text_).ok());
  EXPECT_EQ(std::string(text_.bytes.begin(), text_.bytes.end()), "first second ");
  const std::uint64_t hash = text_.hash;
  write("b.txt", "secund ");
  ASSERT_TRUE(load_text(folder_.string(), 5, &text_).ok());
  EXPECT_NE(text_.hash, hash);
}

TEST_F(TextData, StopsAtEightMebibytes) {
  for (const char* name : {"1", "2", "3"}) write(name, std::string(3 << 20, name[0]));
  ASSERT_TRUE(load_text(folder_.string(), 5, &text_).ok());
  EXPECT_EQ(text_.bytes.size(), kTextBytesMax);
  EXPECT_EQ(text_.bytes.back(), '3');
}

TEST_F(TextData, EmptyAndMissingAreSentences) {
  const Outcome empty = load_text(folder_.string(), 18, &text_);
  EXPECT_NE(empty.what.find("too little text (0 bytes, at least 18"), std::string::npos) << empty.what;
  const Outcome missing = load_text((folder_ / "none").string(), 18, &text_);
  EXPECT_NE(missing.what.find("No such file"), std::string::npos) << missing.what;
}

}  // namespace
}  // namespace charlm
