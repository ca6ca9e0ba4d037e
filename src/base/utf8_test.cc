#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace pawl {
namespace {

std::string written(std::uint32_t code) {
  std::string out;
  append_utf8(out, code);
  return out;
}

TEST(Utf8, EveryCharacterIsReadAsWritten) {
  std::string all;
  for (std::uint32_t code = 0; code <= 0x10ffff; ++code) {
    const std::string character = written(code);
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    ASSERT_EQ(surrogate ? 0 : character.size(), utf8_character_bytes(character)) << code;
    ASSERT_EQ(character.size(), utf8_character_bytes(character, Surrogates::allowed)) << code;
    if (!surrogate) all += character;
  }
  EXPECT_TRUE(is_utf8(all));
  EXPECT_EQ("\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf",
            written(0x7f) + written(0x80) + written(0x7ff) + written(0x800) + written(0xffff) + written(0x10000) +
                written(0x10ffff));
}

TEST(Utf8, WhatIsNoCharacterIsRefused) {
  EXPECT_EQ(0u, utf8_character_bytes(""));
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80", "\xff", "\xc2", "\xe2\x82", "\xf0\x9f\x98", "\xe2\x82x", "\xc2\xc2"}) {
    EXPECT_EQ(0u, utf8_character_bytes(bad, Surrogates::allowed));
    EXPECT_FALSE(is_utf8(std::string("eight bytes of ASCII, and then: ") + bad));
  }
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));
  EXPECT_TRUE(is_utf8("\xed\xa0\x80", Surrogates::allowed));
  EXPECT_TRUE(is_utf8(""));
}

}  // namespace
}  // namespace pawl
