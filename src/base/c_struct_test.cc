#include "base/c_struct.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace pawl {
namespace {

// One struct in three versions. The library knows the middle one.
struct Old {
  std::size_t struct_size;
  std::uint64_t first;
};
struct Known {
  std::size_t struct_size;
  std::uint64_t first;
  std::uint64_t second;
};
struct New {
  std::size_t struct_size;
  std::uint64_t first;
  std::uint64_t second;
  std::uint64_t third;
};
constexpr CStruct kKnown{"pawl_thing", sizeof(Known), sizeof(Old)};

TEST(CStructs, WhatAnOlderCallerLacksIsZero) {
  const Old given{sizeof(Old), 5};
  ASSERT_TRUE(check_input_struct(&given, kKnown));
  const Known read = read_struct<Known>(&given);
  EXPECT_EQ(read.struct_size, sizeof(Known));
  EXPECT_EQ(read.first, 5u);
  EXPECT_EQ(read.second, 0u);
}

TEST(CStructs, WhatANewerCallerAddsMustBeZero) {
  New given{sizeof(New), 5, 6, 0};
  ASSERT_TRUE(check_input_struct(&given, kKnown));
  EXPECT_EQ(read_struct<Known>(&given).second, 6u);
  given.third = 7;
  const Status refused = check_input_struct(&given, kKnown);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
  EXPECT_NE(refused.error().what.find("pawl_thing"), std::string::npos) << refused.error().what;
  EXPECT_NE(refused.error().what.find("newer pawl"), std::string::npos) << refused.error().what;
}

TEST(CStructs, ASizeThatWasNeverSetIsRefused) {
  for (const std::size_t size : {std::size_t{0}, sizeof(Old) - 1, kStructBytesMax + 1, ~std::size_t{0}}) {
    const Known given{size, 1, 2};
    for (const Status& refused : {check_input_struct(&given, kKnown), check_output_struct(&given, kKnown)}) {
      ASSERT_FALSE(refused);
      EXPECT_NE(refused.error().what.find("PAWL_THING_INIT"), std::string::npos) << refused.error().what;
    }
  }
}

TEST(CStructs, AnswersFillWhatTheCallerHas) {
  const Known answer{0, 5, 6};
  Old older[2] = {{sizeof(Old), 1}, {77, 77}};
  fill_struct(&older[0], answer);
  EXPECT_EQ(older[0].struct_size, sizeof(Old));
  EXPECT_EQ(older[0].first, 5u);
  EXPECT_EQ(older[1].struct_size, 77u);  // behind it
  New newer{sizeof(New), 1, 2, 3};
  ASSERT_TRUE(check_output_struct(&newer, kKnown));
  fill_struct(&newer, answer);
  EXPECT_EQ(newer.struct_size, sizeof(New));
  EXPECT_EQ(newer.second, 6u);
  EXPECT_EQ(newer.third, 0u);
}

TEST(CStructs, ElementsOfAnArrayAreAsFarApartAsTheirSize) {
  New given[3] = {{sizeof(New), 1, 0, 0}, {sizeof(New), 2, 0, 0}, {sizeof(New), 3, 0, 0}};
  ASSERT_TRUE(check_input_structs(given, 3, kKnown));
  EXPECT_EQ(read_struct_at<Known>(given, 2).first, 3u);
  given[2].third = 1;
  EXPECT_FALSE(check_input_structs(given, 3, kKnown));
  given[2] = {sizeof(Known), 3, 0, 0};
  EXPECT_FALSE(check_input_structs(given, 3, kKnown));
  EXPECT_TRUE(check_input_structs(given, 2, kKnown));
  EXPECT_TRUE(check_input_structs(nullptr, 0, kKnown));
}

}  // namespace
}  // namespace pawl
