#include "env/s3/s3_bytes.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "base/text.h"

namespace pawl::s3 {
namespace {

// One object, which may be replaced, and the ranges that were asked for.
class OneObject : public HttpTransport {
 public:
  Result<HttpAnswer> send(const HttpRequest& request) override {
    HttpAnswer answer;
    answer.status = 200;
    answer.headers = {{"content-length", text(content.size())}, {"etag", etag}};
    if (request.method == "HEAD") return answer;
    unsigned long first = 0, last = 0;
    for (const auto& each : request.headers) {
      if (each.first == "Range") {
        ranges.push_back(each.second);
        EXPECT_EQ(std::sscanf(each.second.c_str(), "bytes=%lu-%lu", &first, &last), 2);
      }
      if (each.first == "If-Match" && each.second != etag) answer.status = 412;
    }
    if (answer.status == 412) return answer;
    answer.status = 206;
    answer.headers = {{"content-range", text("bytes ", first, "-", last, "/", content.size())}};
    answer.into_bytes = last - first + 1;
    EXPECT_EQ(request.into.size(), answer.into_bytes);
    std::memcpy(request.into.data(), content.data() + first, answer.into_bytes);
    return answer;
  }
  std::string content = "0123456789abcdefghij";
  std::string etag = "\"one\"";
  std::vector<std::string> ranges;
};

class S3BytesTest : public testing::Test {
 protected:
  static S3Options options() {
    S3Options out;
    out.settings.region = "us-east-1";
    out.bucket = "bucket";
    return out;
  }
  OneObject object;
  S3Bucket bucket = S3Bucket::open(options(), object, real_clock()).value();
  std::unique_ptr<ByteSource> source = open_s3_bytes(bucket, "key", {.window_bytes = 8, .call = {}}).value();
};

TEST_F(S3BytesTest, every_range_of_any_size) {
  for (std::size_t offset = 0; offset <= object.content.size(); ++offset)
    for (std::size_t size = 0; size <= object.content.size() - offset; ++size)
      EXPECT_EQ(read_text(*source, offset, size).value(), object.content.substr(offset, size));
}

TEST_F(S3BytesTest, small_reads_share_a_request_and_large_ones_have_their_own) {
  for (const std::uint64_t offset : {2, 3, 6}) EXPECT_TRUE(read_text(*source, offset, 4));
  EXPECT_TRUE(read_text(*source, 0, 20));
  EXPECT_TRUE(read_text(*source, 18, 2));
  EXPECT_EQ(object.ranges, (std::vector<std::string>{"bytes=2-9", "bytes=0-19", "bytes=18-19"}));
}

TEST_F(S3BytesTest, nothing_beyond_the_end) {
  std::byte two[2];
  EXPECT_EQ(source->read(19, two).error().code, Code::corrupt);
  EXPECT_EQ(source->read(~0ull, two).error().code, Code::corrupt);
  EXPECT_TRUE(object.ranges.empty());
}

TEST_F(S3BytesTest, a_replaced_object_is_noticed_and_no_window_stays) {
  object.etag = "\"two\"";
  for (int time = 0; time < 2; ++time) EXPECT_EQ(read_text(*source, 0, 2).error().code, Code::stale);
}

}  // namespace
}  // namespace pawl::s3
