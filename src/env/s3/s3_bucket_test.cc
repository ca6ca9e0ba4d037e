#include "env/s3/s3_bucket.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "env/s3/bad_server.h"

namespace pawl::s3 {
namespace {

constexpr const char* kSecret = "never-to-be-seen";
constexpr const char* kToken = "nor-this-token";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string error_document(const std::string& code) {
  return text("<Error><Code>", code, "</Code><Message>as told</Message></Error>");
}

// A bucket on a server with that script.
struct Bucket {
  BadServer server;
  std::unique_ptr<HttpTransport> transport = curl_transport({});
  S3Options options;

  explicit Bucket(std::vector<BadAnswer> script) : server(std::move(script)) {
    unsetenv("http_proxy");
    options.settings.credentials = {"id", Secret(kSecret), Secret(kToken)};
    options.settings.region = "us-east-1";
    options.settings.endpoint = server.url();
    options.bucket = "bucket";
    options.retry = {.attempts_max = 4,
                     .wait_first = std::chrono::milliseconds(1),
                     .wait_max = std::chrono::milliseconds(2),
                     .asked_max = std::chrono::seconds(1)};
    options.sum = UploadSum::md5;
  }
  S3Bucket open() { return S3Bucket::open(options, *transport, real_clock()).value(); }
};

const BadAnswer kStored{.headers = "ETag: \"900150983cd24fb0d6963f7d28e17f72\"\r\n"};  // MD5 of "abc"

TEST(S3Bucket, a_put_is_repeated_until_it_is_stored) {
  Bucket bucket({{.status = 500}, {.status = 503, .body = error_document("SlowDown")}, {.cut = true}, kStored});
  EXPECT_EQ(bucket.open().put("a b+c", bytes_of("abc"), {}, {}).value(), "\"900150983cd24fb0d6963f7d28e17f72\"");
  const std::vector<SeenRequest> seen = bucket.server.seen();
  ASSERT_EQ(seen.size(), 4u);
  for (const SeenRequest& each : seen) {
    EXPECT_EQ(each.line, "PUT /bucket/a%20b%2Bc HTTP/1.1");
    EXPECT_EQ(each.body, "abc");
    EXPECT_TRUE(each.has("Content-MD5: kAFQmDzST7DWlj99KOF/cg=="));
    EXPECT_TRUE(each.has("Authorization: AWS4-HMAC-SHA256 Credential=id/"));
    EXPECT_FALSE(each.has(kSecret));
  }
}

TEST(S3Bucket, an_etag_that_is_not_the_md5_is_no_success) {
  Bucket bucket({{.headers = "ETag: \"00000000000000000000000000000000\"\r\n"}, kStored});
  EXPECT_TRUE(bucket.open().put("key", bytes_of("abc"), {}, {}));
  EXPECT_EQ(bucket.server.seen().size(), 2u);
}

TEST(S3Bucket, an_etag_of_a_server_that_encrypts_is_none) {
  Bucket bucket(
      {{.headers = "ETag: \"00000000000000000000000000000000\"\r\nx-amz-server-side-encryption: aws:kms\r\n"}});
  EXPECT_TRUE(bucket.open().put("key", bytes_of("abc"), {}, {}));
  EXPECT_EQ(bucket.server.seen().size(), 1u);
}

TEST(S3Bucket, a_checksum_that_differs_is_no_success) {
  const std::string other = "ETag: \"e\"\r\nx-amz-checksum-crc32c: AAAAAA==\r\n",
                    same = "ETag: \"e\"\r\nx-amz-checksum-crc32c: 4waSgw==\r\n";
  Bucket bucket({{.headers = other}, {.headers = same}});
  bucket.options.sum = UploadSum::crc32c;
  EXPECT_TRUE(bucket.open().put("key", bytes_of("123456789"), {}, {}));
  EXPECT_EQ(bucket.server.seen().size(), 2u);
  EXPECT_TRUE(bucket.server.seen().at(0).has("x-amz-checksum-crc32c: 4waSgw=="));
}

TEST(S3Bucket, errors_name_all_but_secrets) {
  Bucket bucket({});
  const Error failed = bucket.open().put("dir/key", bytes_of("abc"), {}, {}).error();
  EXPECT_EQ(failed.code, Code::io);
  EXPECT_EQ(failed.what, "put s3://bucket/dir/key: status 500 after 4 attempts: the server failed: look into its log");
  Bucket refusing({{.status = 403, .body = error_document("SignatureDoesNotMatch")}});
  const Error refused = refusing.open().head("key", {}).error();
  EXPECT_EQ(refused.code, Code::invalid);
  for (const Error& each : {failed, refused})
    for (const char* secret : {kSecret, kToken}) EXPECT_EQ(each.what.find(secret), std::string::npos);
  EXPECT_EQ(refusing.server.seen().size(), 1u);
}

TEST(S3Bucket, a_clock_that_is_wrong_is_named_with_both_times) {
  Bucket bucket(
      {{.status = 403,
        .body = "<Error><Code>RequestTimeTooSkewed</Code><ServerTime>2013-05-24T00:00:00Z</ServerTime></Error>"}});
  const Error failed = bucket.open().remove("key", {}).error();
  EXPECT_NE(failed.what.find("the server's 2013-05-24 00:00:00 UTC"), std::string::npos) << failed.what;
  EXPECT_NE(failed.what.find("this machine's clock says 2"), std::string::npos) << failed.what;
}

TEST(S3Bucket, a_wrong_region_is_named_with_the_right_one) {
  Bucket bucket(
      {{.status = 400, .body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"}});
  EXPECT_NE(bucket.open().list_page({}, {}).error().what.find("set AWS_REGION=eu-west-1"), std::string::npos);
}

TEST(S3Bucket, a_range_that_is_cut_is_read_again) {
  const std::string range = "Content-Range: bytes 3-8/100\r\n";
  Bucket bucket({{.status = 206, .headers = range, .body = "wrong!", .missing = 3},
                 {.status = 206, .headers = range, .body = "defghi"}});
  std::string into(6, '?');
  ASSERT_TRUE(bucket.open().get("key", 3, std::as_writable_bytes(std::span(into)), "\"e\"", {}));
  EXPECT_EQ(into, "defghi");
  EXPECT_TRUE(bucket.server.seen().at(1).has("Range: bytes=3-8"));
  EXPECT_TRUE(bucket.server.seen().at(1).has("If-Match: \"e\""));
}

TEST(S3Bucket, other_bytes_than_asked_for_are_no_success) {
  std::string into(6, '?');
  const auto code_of = [&](BadAnswer answer) {
    Bucket bucket({std::move(answer)});
    bucket.options.retry.attempts_max = 1;
    return bucket.open().get("key", 3, std::as_writable_bytes(std::span(into)), "", {}).error().code;
  };
  EXPECT_EQ(code_of({.status = 206, .headers = "Content-Range: bytes 0-5/9\r\n", .body = "abcdef"}), Code::invalid);
  EXPECT_EQ(code_of({.status = 200, .body = "abcdef"}), Code::invalid);
  EXPECT_EQ(code_of({.status = 206, .headers = "Content-Range: bytes 3-4/5\r\n", .body = "de"}), Code::stale);
  EXPECT_EQ(code_of({.status = 206, .headers = "Content-Range: bytes 3-8/9\r\n", .body = "longer than asked"}),
            Code::corrupt);
  EXPECT_EQ(code_of({.status = 412}), Code::stale);
  EXPECT_EQ(code_of({.status = 416}), Code::stale);
  EXPECT_EQ(code_of({.status = 404, .body = error_document("NoSuchKey")}), Code::not_found);
}

// The token that the first request has sent, in the answer to HEAD.
class LostAnswer : public HttpTransport {
 public:
  Result<HttpAnswer> send(const HttpRequest& request) override {
    for (const auto& each : request.headers)
      if (each.first == "x-amz-meta-pawl-token") token = each.second;
    HttpAnswer answer;
    if (request.method == "HEAD") {
      answer.status = 200;
      answer.headers = {
          {"content-length", "3"}, {"etag", "\"ours\""}, {"x-amz-meta-pawl-token", foreign ? "other" : token}};
      return answer;
    }
    if (request.url.ends_with("?uploads=")) {
      answer.status = 200;
      answer.body = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
      return answer;
    }
    if (++attempts == 1) return Error{Code::unreachable, "the connection ended"};
    answer.status = request.method == "PUT" ? 412 : 404;
    answer.body = error_document(request.method == "PUT" ? "PreconditionFailed" : "NoSuchUpload");
    return answer;
  }
  std::string token;
  bool foreign = false;
  int attempts = 0;
};

S3Options quick_options() {
  S3Options out;
  out.settings.credentials = {"id", Secret(kSecret), {}};
  out.settings.region = "us-east-1";
  out.bucket = "bucket";
  out.retry.wait_first = out.retry.wait_max = std::chrono::milliseconds(1);
  return out;
}

TEST(S3Bucket, an_upload_whose_answer_was_lost_is_known_as_ours) {
  for (const bool foreign : {false, true}) {
    LostAnswer transport;
    transport.foreign = foreign;
    S3Bucket bucket = S3Bucket::open(quick_options(), transport, real_clock()).value();
    const MultipartUpload upload = bucket.begin_upload("key", {}).value();
    const Result<std::string> done = bucket.complete_upload(upload, {{1, "e", ""}}, {});
    EXPECT_EQ(done.has_value(), !foreign);
    if (foreign) {
      EXPECT_EQ(done.error().code, Code::not_found);
    }
  }
}

TEST(S3Bucket, a_put_if_absent_whose_answer_was_lost_is_known_as_ours) {
  for (const bool foreign : {false, true}) {
    LostAnswer transport;
    transport.foreign = foreign;
    S3Bucket bucket = S3Bucket::open(quick_options(), transport, real_clock()).value();
    const Result<std::string> done = bucket.put("key", bytes_of("abc"), {.only_if_absent = true}, {});
    EXPECT_EQ(done.has_value(), !foreign);
    if (foreign) {
      EXPECT_EQ(done.error().code, Code::stale);
    }
  }
}

TEST(S3Bucket, an_error_with_status_200_completes_nothing) {
  Bucket bucket({{.body = "\n \n" + error_document("InternalError")},
                 {.body = "<CompleteMultipartUploadResult><ETag>e-1</ETag></CompleteMultipartUploadResult>"}});
  EXPECT_EQ(bucket.open().complete_upload({"key", "u", "t"}, {{1, "e", ""}}, {}).value(), "e-1");
  EXPECT_EQ(bucket.server.seen().size(), 2u);
  EXPECT_EQ(bucket.server.seen().at(1).line, "POST /bucket/key?uploadId=u HTTP/1.1");
}

TEST(S3Bucket, all_pages_of_a_list) {
  Bucket bucket(
      {{.body = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t/1</NextContinuationToken>"
                "<Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>"},
       {.body = "<not XML"},
       {.body = "<ListBucketResult><Contents><Key>b</Key><Size>2</Size></Contents></ListBucketResult>"}});
  EXPECT_EQ(bucket.open().list("p", {}).value().size(), 2u);
  EXPECT_EQ(bucket.server.seen().at(2).line,
            "GET /bucket?continuation-token=t%2F1&encoding-type=url&list-type=2&prefix=p HTTP/1.1");
}

TEST(S3Bucket, a_silent_server_is_given_up) {
  Bucket bucket({{.delay = std::chrono::seconds(20)}});
  bucket.options.retry.attempts_max = 1;
  bucket.options.silence_max = std::chrono::seconds(1);
  EXPECT_EQ(bucket.open().head("key", {}).error().code, Code::timeout);
}

TEST(S3Bucket, no_attempt_passes_the_deadline) {
  Bucket bucket({{.delay = std::chrono::seconds(20)}});
  const Deadline deadline = Deadline::in(std::chrono::milliseconds(100));
  EXPECT_EQ(bucket.open().head("key", {deadline, nullptr}).error().code, Code::timeout);
}

TEST(S3Bucket, a_call_is_cancelled_while_it_waits) {
  Bucket bucket({{.delay = std::chrono::seconds(20)}});
  std::atomic<bool> cancel{false};
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    cancel = true;
  });
  EXPECT_EQ(bucket.open().head("key", {Deadline::never(), &cancel}).error().code, Code::cancelled);
  canceller.join();
}

TEST(S3Bucket, an_address_where_nobody_listens_is_unreachable) {
  Bucket bucket({});
  bucket.options.settings.endpoint = "http://127.0.0.1:1";
  bucket.options.retry.attempts_max = 2;
  const Error failed = bucket.open().head("key", {}).error();
  EXPECT_EQ(failed.code, Code::unreachable);
  EXPECT_TRUE(failed.what.ends_with("after 2 attempts")) << failed.what;
}

TEST(S3Bucket, a_retry_waits_as_long_as_the_server_asks) {
  Bucket bucket({{.status = 503, .headers = "Retry-After: 1\r\n"}, kStored});
  const Duration began = real_clock().now();
  EXPECT_TRUE(bucket.open().put("key", bytes_of("abc"), {}, {}));
  EXPECT_GE(real_clock().now() - began, std::chrono::seconds(1));
}

TEST(S3Bucket, over_tls_the_payload_is_not_digested) {
  struct Catching : HttpTransport {
    HttpRequest caught;
    Result<HttpAnswer> send(const HttpRequest& request) override {
      caught = request;
      return Error{Code::cancelled, ""};
    }
  } transport;
  S3Bucket bucket = S3Bucket::open(quick_options(), transport, real_clock()).value();
  EXPECT_FALSE(bucket.put("k", bytes_of("abc"), {}, {}));
  EXPECT_EQ(transport.caught.url, "https://bucket.s3.us-east-1.amazonaws.com/k");
  bool unsigned_payload = false;
  for (const auto& each : transport.caught.headers) unsigned_payload |= each.second == kUnsignedPayload;
  EXPECT_TRUE(unsigned_payload);
}

}  // namespace
}  // namespace pawl::s3
