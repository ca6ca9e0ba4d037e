#include "env/s3/s3_bucket.h"

#include <random>

#include "base/crc32c.h"
#include "base/text.h"
#include "env/s3/digests.h"
#include "env/s3/s3_error.h"
#include "env/s3/utc_time.h"

namespace pawl::s3 {
namespace {

constexpr const char* kTokenHeader = "x-amz-meta-pawl-token";

std::uint64_t random_number() {
  thread_local std::mt19937_64 source{(std::uint64_t{std::random_device()()} << 32) ^ std::random_device()()};
  return source();
}

std::string new_token() {
  std::string out;
  for (int half = 0; half < 2; ++half) {
    const std::uint64_t number = random_number();
    out += hex({reinterpret_cast<const unsigned char*>(&number), sizeof number});
  }
  return out;
}

std::string_view unquoted(std::string_view etag) {
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') return etag.substr(1, etag.size() - 2);
  return etag;
}

// The server's word against ours, where it says the same thing. An ETag is the MD5 unless the server encrypts with keys of its own.
Status prove_stored(const HttpAnswer& answer, const std::string& crc32c, const std::string& md5_digits) {
  const std::string_view theirs = answer.header("x-amz-checksum-crc32c");
  if (!crc32c.empty() && !theirs.empty() && theirs != crc32c)
    return Error{Code::corrupt, "the server's checksum differs from ours"};
  const std::string_view etag = unquoted(answer.header("etag"));
  if (etag.empty()) return Error{Code::corrupt, "the answer has no ETag"};
  const bool is_md5 = etag.size() == 32 && answer.header("x-amz-server-side-encryption").substr(0, 4) != "aws:" &&
                      answer.header("x-amz-server-side-encryption-customer-algorithm").empty();
  if (!md5_digits.empty() && is_md5 && etag != md5_digits)
    return Error{Code::corrupt, "the server's ETag is not the MD5 of what was sent"};
  return {};
}

Status prove_range(const HttpAnswer& answer, std::uint64_t offset_bytes, std::size_t size_bytes) {
  const std::string_view range = answer.header("content-range");
  if (answer.status == 206 && !range.starts_with(text("bytes ", offset_bytes, "-")))
    return Error{Code::invalid, text("the server sent another range than byte ", offset_bytes, " and on")};
  if (answer.status != 206 && offset_bytes != 0) return Error{Code::invalid, "the server does not send ranges"};
  if (answer.into_bytes != size_bytes)
    return Error{Code::stale, text("the object ends after ", answer.into_bytes, " of ", size_bytes, " bytes")};
  return {};
}

}  // namespace

Result<S3Bucket> S3Bucket::open(S3Options options, HttpTransport& transport, Clock& clock) {
  PAWL_TRY(parse_s3_path(text("s3://", options.bucket)));
  Endpoint endpoint = aws_endpoint(options.settings.region);
  if (!options.settings.endpoint.empty()) {
    PAWL_ASSIGN(endpoint, parse_endpoint(options.settings.endpoint));
  }
  return S3Bucket(std::move(options), std::move(endpoint), transport, clock);
}

S3Bucket::S3Bucket(S3Options options, Endpoint endpoint, HttpTransport& transport, Clock& clock)
    : options_(std::move(options)), endpoint_(std::move(endpoint)), transport_(&transport), clock_(&clock) {
  const bool in_path = !options_.settings.endpoint.empty() || options_.bucket.find('.') != std::string::npos;
  place_ = options_.place.value_or(in_path ? BucketPlace::path : BucketPlace::virtual_host);
}

Result<std::string> S3Bucket::put(const std::string& key, std::span<const std::byte> bytes, PutOptions how,
                                  const S3Call& call) {
  Request request = request_of("put", "PUT", key);
  request.body = bytes;
  std::string crc32c;
  add_sum(request, crc32c);
  const std::string token = new_token();
  if (how.only_if_absent) {
    request.headers.push_back({"If-None-Match", "*"});
    request.headers.push_back({kTokenHeader, token});
  }
  Outcome outcome = ask(request, call);
  if (!outcome.error) return std::string(outcome.answer.header("etag"));
  if (how.only_if_absent && outcome.answer.status == 412 && outcome.attempts > 1) {
    if (std::optional<std::string> etag = etag_if_made_by(key, token, call)) return *etag;
  }
  return std::move(*outcome.error);
}

Status S3Bucket::get(const std::string& key, std::uint64_t offset_bytes, std::span<std::byte> into,
                     const std::string& etag, const S3Call& call) {
  if (into.empty()) return {};
  Request request = request_of("get", "GET", key);
  request.headers.push_back({"Range", text("bytes=", offset_bytes, "-", offset_bytes + into.size() - 1)});
  if (!etag.empty()) request.headers.push_back({"If-Match", etag});
  request.into = into;
  request.proof = [&](const HttpAnswer& answer) { return prove_range(answer, offset_bytes, into.size()); };
  Outcome outcome = ask(request, call);
  if (outcome.error) return std::move(*outcome.error);
  return {};
}

Result<ObjectHead> S3Bucket::head(const std::string& key, const S3Call& call) {
  Outcome outcome = ask(request_of("head", "HEAD", key), call);
  if (outcome.error) return std::move(*outcome.error);
  ObjectHead out;
  if (!parse_number(outcome.answer.header("content-length"), out.size_bytes))
    return Error{Code::corrupt, text("head s3://", options_.bucket, "/", key, ": the answer has no size")};
  out.etag = outcome.answer.header("etag");
  out.token = outcome.answer.header(kTokenHeader);
  return out;
}

Status S3Bucket::remove(const std::string& key, const S3Call& call) {
  Outcome outcome = ask(request_of("remove", "DELETE", key), call);
  if (outcome.error && outcome.server.code != "NoSuchKey") return std::move(*outcome.error);
  return {};
}

Result<ListPage> S3Bucket::list_page(const ListQuery& query, const S3Call& call) {
  Request request = request_of("list", "GET", "");
  request.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", query.prefix}};
  if (!query.delimiter.empty()) request.query.push_back({"delimiter", query.delimiter});
  if (!query.continuation.empty()) request.query.push_back({"continuation-token", query.continuation});
  std::optional<ListPage> page;
  request.proof = [&](const HttpAnswer& answer) -> Status {
    PAWL_ASSIGN(page, parse_list_page(answer.body));
    return {};
  };
  Outcome outcome = ask(request, call);
  if (outcome.error) return std::move(*outcome.error);
  return std::move(*page);
}

Result<std::vector<ListedObject>> S3Bucket::list(const std::string& prefix, const S3Call& call) {
  std::vector<ListedObject> out;
  ListQuery query{prefix, "", ""};
  do {
    PAWL_ASSIGN(ListPage page, list_page(query, call));
    for (ListedObject& each : page.objects) out.push_back(std::move(each));
    if (page.continuation == query.continuation && !page.continuation.empty())
      return Error{Code::corrupt,
                   text("list s3://", options_.bucket, "/", prefix, ": the server sends one page for ever")};
    query.continuation = std::move(page.continuation);
  } while (!query.continuation.empty());
  return out;
}

Result<MultipartUpload> S3Bucket::begin_upload(const std::string& key, const S3Call& call) {
  MultipartUpload out{key, "", new_token()};
  Request request = request_of("begin upload to", "POST", key);
  request.query = {{"uploads", ""}};
  request.headers.push_back({kTokenHeader, out.token});
  if (options_.sum == UploadSum::crc32c) request.headers.push_back({"x-amz-checksum-algorithm", "CRC32C"});
  request.proof = [&](const HttpAnswer& answer) -> Status {
    PAWL_ASSIGN(out.id, parse_upload_id(answer.body));
    return {};
  };
  Outcome outcome = ask(request, call);
  if (outcome.error) return std::move(*outcome.error);
  return out;
}

Result<UploadedPart> S3Bucket::upload_part(const MultipartUpload& upload, std::uint32_t number,
                                           std::span<const std::byte> bytes, const S3Call& call) {
  UploadedPart out;
  out.number = number;
  Request request = request_of(text("upload part ", number, " of"), "PUT", upload.key);
  request.query = {{"partNumber", text(number)}, {"uploadId", upload.id}};
  request.body = bytes;
  add_sum(request, out.crc32c);
  Outcome outcome = ask(request, call);
  if (outcome.error) return std::move(*outcome.error);
  out.etag = outcome.answer.header("etag");
  return out;
}

Result<std::string> S3Bucket::complete_upload(const MultipartUpload& upload, const std::vector<UploadedPart>& parts,
                                              const S3Call& call) {
  const std::string document = complete_document(parts);
  Request request = request_of("complete upload to", "POST", upload.key);
  request.query = {{"uploadId", upload.id}};
  request.body = std::as_bytes(std::span(document));
  request.headers.push_back({"Content-Type", "application/xml"});
  request.silence_max = options_.complete_max;
  std::string etag;
  request.proof = [&](const HttpAnswer& answer) -> Status {
    PAWL_ASSIGN(etag, parse_completed_etag(answer.body));
    return {};
  };
  Outcome outcome = ask(request, call);
  if (!outcome.error) return etag;
  if (outcome.server.code == "NoSuchUpload") {  // done already, perhaps, by an attempt whose answer was lost
    if (std::optional<std::string> made = etag_if_made_by(upload.key, upload.token, call)) return *made;
  }
  return std::move(*outcome.error);
}

Status S3Bucket::abort_upload(const MultipartUpload& upload, const S3Call& call) {
  Request request = request_of("abort upload to", "DELETE", upload.key);
  request.query = {{"uploadId", upload.id}};
  Outcome outcome = ask(request, call);
  if (outcome.error && outcome.server.code != "NoSuchUpload") return std::move(*outcome.error);
  return {};
}

std::optional<std::string> S3Bucket::etag_if_made_by(const std::string& key, const std::string& token,
                                                     const S3Call& call) {
  Result<ObjectHead> found = head(key, call);
  if (!found || found.value().token != token) return std::nullopt;
  return std::move(found.value().etag);
}

S3Bucket::Request S3Bucket::request_of(std::string call, std::string method, const std::string& key) const {
  Request out;
  out.call = std::move(call);
  out.method = std::move(method);
  out.key = key;
  out.silence_max = options_.silence_max;
  return out;
}

// Of the request's body, into its headers; and the answer is to say the same.
void S3Bucket::add_sum(Request& request, std::string& crc32c) const {
  std::string md5_digits;
  if (options_.sum == UploadSum::crc32c) {
    crc32c = base64_of(pawl::crc32c(request.body));
    request.headers.push_back({"x-amz-checksum-crc32c", crc32c});
  } else {
    const Md5 digest = md5(request.body);
    md5_digits = hex(digest);
    request.headers.push_back({"Content-MD5", base64(digest)});
  }
  request.proof = [crc32c, md5_digits](const HttpAnswer& answer) { return prove_stored(answer, crc32c, md5_digits); };
}

std::string S3Bucket::name_of(const Request& request) const {
  return text(request.call, " s3://", options_.bucket, "/", request.key);
}

HttpRequest S3Bucket::signed_request(const Request& request, const S3Call& call, Duration wall) const {
  const RequestAddress address = address_of(endpoint_, place_, options_.bucket, request.key);
  const bool digested = options_.sign_payload || endpoint_.scheme == "http";
  UnsignedRequest plain{request.method, address.path, request.query, request.headers,
                        digested ? hex(sha256(request.body)) : std::string(kUnsignedPayload)};
  plain.headers.push_back({"Host", address.host});
  sign(plain, {wall, options_.settings.region}, options_.settings.credentials);
  HttpRequest out;
  out.method = request.method;
  const std::string query = canonical_query(request.query);
  out.url = query.empty() ? address.url : text(address.url, "?", query);
  out.headers = std::move(plain.headers);
  out.body = request.body;
  out.into = request.into;
  out.deadline = call.deadline;
  out.silence_max = request.silence_max;
  out.cancel = call.cancel;
  return out;
}

// One request and its answer; `attempts` is left to the caller.
S3Bucket::Outcome S3Bucket::attempt(const Request& request, const S3Call& call) const {
  Outcome out;
  const Duration wall = clock_->wall();
  Result<HttpAnswer> answer = transport_->send(signed_request(request, call, wall));
  if (!answer) {
    out.error = std::move(answer).error();
    return out;
  }
  out.answer = std::move(answer).value();
  const bool accepted = out.answer.status / 100 == 2;
  if (accepted && !is_error(out.answer.body)) {
    Status proven = request.proof ? request.proof(out.answer) : Status();
    if (!proven) out.error = std::move(proven).error();
    return out;
  }
  out.server = parse_error(out.answer.body);
  if (out.server.region.empty()) out.server.region = out.answer.header("x-amz-bucket-region");
  if (!out.server.server_time) out.server.server_time = parse_http_date(out.answer.header("date"));
  out.error = Error{Code::io, ""};
  return out;
}

S3Bucket::Outcome S3Bucket::ask(const Request& request, const S3Call& call) const {
  for (std::uint32_t attempts = 1;; ++attempts) {
    Outcome out = attempt(request, call);
    out.attempts = attempts;
    if (!out.error) return out;
    const bool answered = out.answer.status != 0 && out.error->what.empty();
    const bool again =
        answered ? is_worth_retrying(out.answer.status, out.server.code) : is_worth_retrying(out.error->code);
    Failure failure{attempts, call.deadline.left()};
    failure.asked = parse_retry_after(out.answer.header("retry-after"), clock_->wall());
    std::optional<Duration> wait;
    if (again) wait = wait_before_retry(failure, random_number(), options_.retry);
    const bool cancelled = call.cancel != nullptr && call.cancel->load(std::memory_order_relaxed);
    if (wait && !cancelled) {
      clock_->sleep(*wait);
      continue;
    }
    if (answered) {
      out.error = error_of(
          {name_of(request), out.answer.status, out.server, options_.settings.region, clock_->wall(), attempts});
    } else {
      out.error->what =
          text(name_of(request), ": ", out.error->what, attempts > 1 ? text(" after ", attempts, " attempts") : "");
    }
    return out;
  }
}

}  // namespace pawl::s3
