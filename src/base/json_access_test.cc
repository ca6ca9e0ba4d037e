#include "base/json_access.h"

#include <gtest/gtest.h>

namespace pawl {
namespace {

TEST(JsonAccess, GivesWhatIsThereAndOfThatKind) {
  const json found = json::parse(R"({"text":"a","number":18446744073709551615,"real":-1.5,"flag":true,"list":[1,2]})");
  EXPECT_EQ(string_in(found, "text"), "a");
  EXPECT_EQ(number_in(found, "number"), ~std::uint64_t{0});
  EXPECT_EQ(real_in(found, "real"), -1.5);
  EXPECT_TRUE(flag_in(found, "flag"));
  EXPECT_EQ(array_in(found, "list").size(), 2u);
}

// Nothing here may throw: src/ is built without exceptions, so that a wrong kind would end the process.
TEST(JsonAccess, WhatIsMissingOrOfAnotherKindIsNothing) {
  for (const char* other :
       {"", "not JSON", "null", "5", "[]", R"("x")", "{}", R"({"x":null})", R"({"x":{}})", R"({"x":-1})"}) {
    const json found = json::parse(other, nullptr, false);
    EXPECT_EQ(string_in(found, "x"), "") << other;
    EXPECT_EQ(number_in(found, "x"), 0u) << other;
    EXPECT_FALSE(flag_in(found, "x")) << other;
    EXPECT_TRUE(array_in(found, "x").empty()) << other;
  }
  EXPECT_EQ(number_in(json::parse(R"({"x":1.5})"), "x"), 0u);
  EXPECT_FALSE(flag_in(json::parse(R"({"x":"true"})"), "x"));
}

}  // namespace
}  // namespace pawl
