// S3Bucket: the objects of one bucket, by S3's protocol.
//
// Each call blocks until it is done, has failed for good, or its deadline has passed; what may pass is tried again
// (retry_policy.h). Thread-safe: as many requests are under way as there are calls, each with a connection of its own, so
// digests and TLS use the callers' cores. Bytes go straight from and to the caller's memory.
// All calls fail as error_of (s3_error.h) and HttpTransport::send say, naming bucket and key.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "env/clock.h"
#include "env/s3/answers.h"
#include "env/s3/http.h"
#include "env/s3/retry_policy.h"
#include "env/s3/s3_url.h"

namespace pawl::s3 {

// By which the server proves what arrived. crc32c costs nothing; servers that don't know it ignore it, and know md5.
enum class UploadSum : unsigned char { crc32c, md5 };

struct S3Options {
  S3Settings settings;
  std::string bucket;
  std::optional<BucketPlace>
      place;  // nothing: the path for an endpoint of one's own or a name with dots, else the host
  UploadSum sum = UploadSum::crc32c;
  bool sign_payload = false;  // with its SHA-256 also over TLS, where it isn't needed; without TLS it always is
  RetryOptions retry;
  Duration silence_max = std::chrono::seconds(30);   // as HttpRequest's
  Duration complete_max = std::chrono::minutes(10);  // the same, while a server puts the parts of an upload together
};

struct S3Call {
  Deadline deadline = Deadline::never();      // for all attempts together
  const std::atomic<bool>* cancel = nullptr;  // looked at within a second, but for waits before another attempt
};

struct ObjectHead {
  std::uint64_t size_bytes = 0;
  std::string etag;
  std::string token;  // of the put or upload that made it, if it was ours and had one
};

struct MultipartUpload {
  std::string key;
  std::string id;
  std::string token;  // by which the object is known as this upload's
};

struct ListQuery {
  std::string prefix;
  std::string delimiter;     // "/": as in a folder; empty: everything beneath
  std::string continuation;  // of the page before
};

class S3Bucket {
 public:
  // Of a transport and a clock that outlive it. Fails: `invalid`.
  [[nodiscard]] static Result<S3Bucket> open(S3Options options, HttpTransport& transport, Clock& clock);

  // The new object's ETag. `only_if_absent`: fails with `stale` where there is one already; an own attempt whose answer was lost is known.
  struct PutOptions {
    bool only_if_absent = false;
  };
  [[nodiscard]] Result<std::string> put(const std::string& key, std::span<const std::byte> bytes, PutOptions how,
                                        const S3Call& call);
  // Fills `into` from that offset on. `stale` if the object is too short, or, where an ETag is
  // given, has another one.
  [[nodiscard]] Status get(const std::string& key, std::uint64_t offset_bytes, std::span<std::byte> into,
                           const std::string& etag, const S3Call& call);
  [[nodiscard]] Result<ObjectHead> head(const std::string& key, const S3Call& call);
  [[nodiscard]] Status remove(const std::string& key, const S3Call& call);  // also where there is none
  [[nodiscard]] Result<ListPage> list_page(const ListQuery& query, const S3Call& call);
  [[nodiscard]] Result<std::vector<ListedObject>> list(const std::string& prefix, const S3Call& call);  // all pages

  // An object in parts, which may be sent at once and in any order: numbers 1 to 10000, of at least 5 MiB but the last.
  // What is begun is completed or aborted: the server keeps its parts.
  [[nodiscard]] Result<MultipartUpload> begin_upload(const std::string& key, const S3Call& call);
  [[nodiscard]] Result<UploadedPart> upload_part(const MultipartUpload& upload, std::uint32_t number,
                                                 std::span<const std::byte> bytes, const S3Call& call);
  // The object's ETag. Also where the answer to an earlier attempt was lost.
  [[nodiscard]] Result<std::string> complete_upload(const MultipartUpload& upload,
                                                    const std::vector<UploadedPart>& parts, const S3Call& call);
  [[nodiscard]] Status abort_upload(const MultipartUpload& upload, const S3Call& call);  // also where there is none

 private:
  struct Request {
    std::string call;  // "put"
    std::string method;
    std::string key;
    Query query;
    Headers headers;
    std::span<const std::byte> body;
    std::span<std::byte> into;
    std::function<Status(const HttpAnswer&)> proof;  // of an answer with 2xx; a `corrupt` one is tried again
    Duration silence_max;
  };
  struct Outcome {
    std::optional<Error> error;
    HttpAnswer answer;
    ServerError server;
    std::uint32_t attempts = 0;
  };

  S3Bucket(S3Options options, Endpoint endpoint, HttpTransport& transport, Clock& clock);
  [[nodiscard]] Request request_of(std::string call, std::string method, const std::string& key) const;
  [[nodiscard]] Outcome ask(const Request& request, const S3Call& call) const;
  [[nodiscard]] Outcome attempt(const Request& request, const S3Call& call) const;
  [[nodiscard]] HttpRequest signed_request(const Request& request, const S3Call& call, Duration wall) const;
  [[nodiscard]] std::string name_of(const Request& request) const;
  void add_sum(Request& request, std::string& crc32c) const;
  [[nodiscard]] std::optional<std::string> etag_if_made_by(const std::string& key, const std::string& token,
                                                           const S3Call& call);

  S3Options options_;
  Endpoint endpoint_;
  BucketPlace place_;
  HttpTransport* transport_;
  Clock* clock_;
};

}  // namespace pawl::s3
