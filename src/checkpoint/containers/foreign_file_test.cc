#include "checkpoint/containers/foreign_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/formats/fixtures.h"

namespace pawl::checkpoint {
namespace {

using namespace std::string_literals;

std::string what_is(const std::string& bytes, ForeignText text = ForeignText::told) {
  MemoryBytes source(bytes);
  const std::optional<Error> error = foreign_file(source, text);
  return error ? error->what : "";
}

TEST(ForeignFile, WhatPawlReadsIsNotForeign) {
  for (const std::string name : {"L_wild/golden.safetensors", "L_wild/protocol1.pt", "L_wild/program.pt2"})
    EXPECT_EQ(what_is(fixtures::content(fixtures::small_set() + "/torch/" + name)), "") << name;
}

TEST(ForeignFile, BytesThatSayNothingAreNot) {
  EXPECT_EQ(what_is("\x01\x02\x03\xff"), "");
  EXPECT_EQ(what_is(std::string(5000, '\x01')), "");
}

TEST(ForeignFile, ErrorsSayWhatItIsAndTheRemedy) {
  EXPECT_EQ(what_is("\x1f\x8b\x08rest"s), "compressed with gzip, which pawl does not read: unpack it first (gunzip)");
  EXPECT_EQ(what_is(std::string(8192, '\0')),
            "a file of 8192 bytes whose first 4096 are zeros: a copy or download made room for it and did not fill it; "
            "get it again");
  EXPECT_EQ(what_is("version https://git-lfs.github.com/spec/v1\nsize x\n"),
            "a git-lfs pointer to a file, not that file: fetch it with `git lfs pull`, or download it");
}

TEST(ForeignFile, TextIsShownAsFarAsItIsText) {
  EXPECT_EQ(what_is("Zugriff verweigert: \xc3\xa9\nnext"),
            "text that begins with \"Zugriff verweigert: \xc3\xa9\": if a download should have been here, download it "
            "again");
  EXPECT_EQ(what_is("Entry\x01not found"), "");
  EXPECT_EQ(what_is("Entry not found", ForeignText::left_out), "");
  EXPECT_NE(what_is("<html", ForeignText::told).find("a web page"), std::string::npos);
  // A character that the end of what is looked at cuts.
  EXPECT_NE(what_is(std::string(4095, 'a') + "\xc3\xa9 and more").find("text that begins with"), std::string::npos);
}

TEST(ForeignFile, NamesTellFoldersOfOthers) {
  const auto what = [](const std::vector<std::string>& names) {
    const std::optional<Error> error = foreign_folder(names);
    return error ? error->what : "";
  };
  EXPECT_NE(what({"model.ckpt-7.data-00000-of-00001", "model.ckpt-7.index"}).find("TensorFlow"), std::string::npos);
  EXPECT_EQ(what({"model.safetensors", "notes.index"}), "");
}

}  // namespace
}  // namespace pawl::checkpoint
