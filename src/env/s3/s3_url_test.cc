#include "env/s3/s3_url.h"

#include <gtest/gtest.h>

namespace pawl::s3 {
namespace {

TEST(S3Path, bucket_and_prefix) {
  EXPECT_EQ(parse_s3_path("s3://bucket/a/b c").value(), (S3Path{"bucket", "a/b c"}));
  EXPECT_EQ(parse_s3_path("s3://bucket/").value(), (S3Path{"bucket", ""}));
  EXPECT_EQ(parse_s3_path("s3://my.bucket-1").value(), (S3Path{"my.bucket-1", ""}));
  EXPECT_EQ(parse_s3_path("s3://bucket//x").value(), (S3Path{"bucket", "/x"}));
}

TEST(S3Path, what_is_none) {
  for (const char* path : {"/bucket", "S3://bucket", "s3://", "s3:///key", "s3://ab", "s3://Bucket/x", "s3://-ab/x",
                           "s3://a..b/x", "s3://b@cket/x"}) {
    EXPECT_EQ(parse_s3_path(path).error().code, Code::invalid) << path;
  }
}

TEST(Encoding, of_keys) {
  EXPECT_EQ(encode_key("a/b c+d=\xC3\xA9~"), "a/b%20c%2Bd%3D%C3%A9~");
  EXPECT_EQ(encode_segment("a/b"), "a%2Fb");
  EXPECT_EQ(decode_key("a/b+c%2Bd%C3%A9").value(), "a/b c+d\xC3\xA9");
  for (const char* wrong : {"%", "%4", "%zz", "a%+1"})
    EXPECT_EQ(decode_key(wrong).error().code, Code::corrupt) << wrong;
}

TEST(Encoding, every_byte_comes_back) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(decode_key(encode_segment(all)).value(), all);
}

TEST(Encoding, a_query_is_sorted_as_it_is_sent) {
  EXPECT_EQ(canonical_query({{"b", "x y"}, {"a", ""}, {"A", "/"}}), "A=%2F&a=&b=x%20y");
}

TEST(EndpointUrl, parts) {
  const Endpoint found = parse_endpoint("http://127.0.0.1:9000/base/").value();
  EXPECT_EQ(found.scheme, "http");
  EXPECT_EQ(found.authority, "127.0.0.1:9000");
  EXPECT_EQ(found.path, "/base");
  EXPECT_EQ(parse_endpoint("https://host:443").value().authority, "host");
}

TEST(EndpointUrl, what_is_none_is_not_quoted) {
  for (const char* url : {"host:9000", "ftp://host", "https://", "https://me:hidden@host", "https://host?hidden",
                          "https://host/#hidden"}) {
    const Result<Endpoint> found = parse_endpoint(url);
    ASSERT_FALSE(found) << url;
    EXPECT_EQ(found.error().code, Code::invalid);
    EXPECT_EQ(found.error().what.find("hidden"), std::string::npos);
  }
}

TEST(Address, of_both_styles) {
  const Endpoint aws = aws_endpoint("eu-central-1");
  EXPECT_EQ(address_of(aws, BucketPlace::virtual_host, "bucket", "a b").url,
            "https://bucket.s3.eu-central-1.amazonaws.com/a%20b");
  EXPECT_EQ(address_of(aws, BucketPlace::virtual_host, "bucket", "").path, "/");
  const Endpoint own{"http", "host:1", "/base"};
  EXPECT_EQ(address_of(own, BucketPlace::path, "bucket", "a/b").url, "http://host:1/base/bucket/a/b");
  EXPECT_EQ(address_of(own, BucketPlace::path, "bucket", "").path, "/base/bucket");
}

}  // namespace
}  // namespace pawl::s3
