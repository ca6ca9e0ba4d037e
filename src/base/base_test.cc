#include <gtest/gtest.h>

#include <unistd.h>
#include <cerrno>
#include <cstdio>

#include "base/log.h"
#include "base/result.h"
#include "base/text.h"

namespace pawl {
namespace {

Result<int> half_of(int n) {
  if (n % 2 != 0) return Error{Code::invalid, text(n, " is odd")};
  return n / 2;
}

Result<int> quarter_of(int n) {
  PAWL_ASSIGN(int half, half_of(n));
  return half_of(half);
}

Status must_be_quartered(int n) {
  PAWL_TRY(quarter_of(n));
  return {};
}

TEST(Result, CarriesTheValueOrTheError) {
  EXPECT_EQ(*quarter_of(8), 2);
  EXPECT_EQ(quarter_of(6).error().what, "3 is odd");
  EXPECT_TRUE(must_be_quartered(4));
  EXPECT_EQ(must_be_quartered(5).error().code, Code::invalid);
}

TEST(Result, ErrorsAreWrittenOutermostFirst) {
  Error inner{Code::corrupt, "bucket 3: checksum differs"};
  EXPECT_EQ(std::move(inner).within("restore step 12").what, "restore step 12: bucket 3: checksum differs");
  EXPECT_EQ(system_error("open x", ENOENT).what, "open x: No such file or directory");
}

TEST(Text, WritesNumbersIdsAndStrings) {
  EXPECT_EQ(text("seat ", Seat(3), " of ", 4u, ' ', true, " ", -7), "seat 3 of 4 true -7");
  std::uint32_t number = 0;
  EXPECT_TRUE(parse_number("42", number));
  EXPECT_EQ(number, 42u);
  EXPECT_FALSE(parse_number("42x", number));
  EXPECT_FALSE(parse_number("", number));
  EXPECT_FALSE(parse_number("4294967296", number));
}

TEST(Log, WritesOneLineNameFirst) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  log_to(ends[1], LogLevel::info, "node=2");
  log_debug("unseen");
  log_info("quorum_formed", "generation", Generation(7), "why", "two words");
  log_to(STDERR_FILENO, LogLevel::info, "");
  char line[256];
  const ssize_t length = read(ends[0], line, sizeof line);
  const std::string got(line, length > 0 ? static_cast<std::size_t>(length) : 0);
  EXPECT_NE(got.find(" info node=2 quorum_formed generation=7 why=\"two words\"\n"), std::string::npos) << got;
  EXPECT_EQ(got.find("unseen"), std::string::npos);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace pawl
