#include "env/s3/signature.h"

#include <gtest/gtest.h>

#include "env/s3/digests.h"
#include "env/s3/utc_time.h"

namespace pawl::s3 {
namespace {

constexpr Duration kMay2013 = std::chrono::seconds(1369353600);     // 20130524T000000Z
constexpr Duration kAugust2015 = std::chrono::seconds(1440938160);  // 20150830T123600Z

Sha256 sha256_of(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

bool ends_with_signature(const std::string& authorization, std::string_view signature) {
  return authorization.ends_with(std::string("Signature=") + std::string(signature));
}

// The examples of AWS's "Signature Calculations for the Authorization Header" for S3.
class S3Examples : public testing::Test {
 protected:
  Credentials credentials{"AKIAIOSFODNN7EXAMPLE", Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), {}};
  SigningScope scope{kMay2013, "us-east-1"};
  std::string nothing = hex(sha256_of(""));

  std::string proof(UnsignedRequest request) {
    request.headers.push_back({"Host", "examplebucket.s3.amazonaws.com"});
    sign(request, scope, credentials);
    return request.headers.back().second;
  }
};

TEST_F(S3Examples, get_of_a_range) {
  const std::string made = proof({"GET", "/test.txt", {}, {{"Range", "bytes=0-9"}}, nothing});
  EXPECT_EQ(made,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST_F(S3Examples, put) {
  const std::string made =
      proof({"PUT",
             "/" + encode_key("test$file.text"),
             {},
             {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
             hex(sha256_of("Welcome to Amazon S3."))});
  EXPECT_TRUE(ends_with_signature(made, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd")) << made;
}

TEST_F(S3Examples, a_query_without_a_value) {
  const std::string made = proof({"GET", "/", {{"lifecycle", ""}}, {}, nothing});
  EXPECT_TRUE(ends_with_signature(made, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")) << made;
}

TEST_F(S3Examples, list) {
  const std::string made = proof({"GET", "/", {{"prefix", "J"}, {"max-keys", "2"}}, {}, nothing});
  EXPECT_TRUE(ends_with_signature(made, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")) << made;
}

// Of AWS's suite of tests, whose service is called "service".
class SuiteExamples : public testing::Test {
 protected:
  Credentials credentials{"AKIDEXAMPLE", Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"), {}};
  SigningScope scope{kAugust2015, "us-east-1", "service"};
  UnsignedRequest request{
      "GET", "/", {}, {{"Host", "example.amazonaws.com"}, {"X-Amz-Date", "20150830T123600Z"}}, hex(sha256_of(""))};
};

TEST_F(SuiteExamples, get_vanilla_step_by_step) {
  EXPECT_EQ(canonical_request(request),
            "GET\n/\n\nhost:example.amazonaws.com\nx-amz-date:20150830T123600Z\n\nhost;x-amz-date\n"
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(string_to_sign(request, scope),
            "AWS4-HMAC-SHA256\n20150830T123600Z\n20150830/us-east-1/service/aws4_request\n"
            "bb579772317eb040ac9ed261061d46c1f17a8133879d6129b6e1c25292927e63");
  EXPECT_TRUE(ends_with_signature(authorization(request, scope, credentials),
                                  "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"));
}

TEST_F(SuiteExamples, the_order_of_a_query) {
  request.query = {{"Param2", "value2"}, {"Param1", "value1"}};
  EXPECT_TRUE(ends_with_signature(authorization(request, scope, credentials),
                                  "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"));
}

TEST_F(SuiteExamples, unicode_in_a_path) {
  request.path = "/" + encode_key("\xE1\x88\xB4");
  EXPECT_TRUE(ends_with_signature(authorization(request, scope, credentials),
                                  "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"));
}

TEST_F(SuiteExamples, blanks_and_repeated_headers) {
  request.headers.push_back({"My-Header", "  a   b  "});
  request.headers.push_back({"my-header", "c"});
  EXPECT_NE(canonical_request(request).find("\nmy-header:a b,c\n"), std::string::npos);
}

TEST_F(SuiteExamples, a_session_token_is_a_signed_header) {
  credentials.session_token = Secret("the-token");
  request.payload_digest = kUnsignedPayload;
  sign(request, scope, credentials);
  EXPECT_NE(request.headers.back().second.find("x-amz-security-token"), std::string::npos);
  EXPECT_NE(canonical_request(request).find("x-amz-security-token:the-token"), std::string::npos);
  EXPECT_TRUE(canonical_request(request).ends_with("UNSIGNED-PAYLOAD"));
}

TEST(Digests, of_known_texts) {
  EXPECT_EQ(base64(md5(std::as_bytes(std::span(std::string_view("abc"))))), "kAFQmDzST7DWlj99KOF/cg==");
  EXPECT_EQ(hex(sha256_of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(base64_of(0xE3069283u), "4waSgw==");  // CRC32C of "123456789"
}

TEST(UtcTime, both_ways) {
  EXPECT_EQ(basic_time(kAugust2015), "20150830T123600Z");
  EXPECT_EQ(readable_time(kMay2013), "2013-05-24 00:00:00 UTC");
  EXPECT_EQ(parse_http_date("Fri, 24 May 2013 00:00:00 GMT"), kMay2013);
  EXPECT_EQ(parse_iso_time("2013-05-24T00:00:00Z"), kMay2013);
  EXPECT_EQ(parse_http_date("soon"), std::nullopt);
}

}  // namespace
}  // namespace pawl::s3
