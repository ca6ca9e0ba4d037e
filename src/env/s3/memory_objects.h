// MemoryObjects: an object storage in memory for tests, as HttpTransport. It proves checksums, and fails as it is told.
//
// Knows what S3Bucket sends. Lists have two keys a page. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/text.h"
#include "env/s3/digests.h"
#include "env/s3/http.h"
#include "env/s3/s3_url.h"

namespace pawl::s3 {

class MemoryObjects : public HttpTransport {
 public:
  enum class Fault { none, refused, lost };  // it has no effect, and answers so; it has its effect, and no answer

  explicit MemoryObjects(std::string bucket) : root_(text("https://store/", bucket)) {}

  // Of the request with that number, counted from 0. Called without a lock.
  std::function<Fault(std::uint64_t number, const HttpRequest& request)> fault;
  int refusal = 400;  // the status of those that are refused: the client does not try again

  Result<HttpAnswer> send(const HttpRequest& request) override {
    if (request.cancel != nullptr && *request.cancel) return Error{Code::cancelled, "cancelled"};
    const std::uint64_t number = count_++;
    const Fault how = fault ? fault(number, request) : Fault::none;
    if (how == Fault::refused) return refused(refusal, "InvalidRequest");
    HttpAnswer answer = serve(request);
    if (how == Fault::lost) return Error{Code::unreachable, "the answer was lost"};
    return answer;
  }

  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::map<std::string, std::string> objects() {
    const std::lock_guard lock(mutex_);
    std::map<std::string, std::string> out;
    for (const auto& [key, object] : objects_) out[key] = object.content;
    return out;
  }
  void replace(const std::string& key, std::string content) {
    const std::lock_guard lock(mutex_);
    objects_[key].content = std::move(content);
  }
  [[nodiscard]] std::size_t uploads() {
    const std::lock_guard lock(mutex_);
    return uploads_.size();
  }

 private:
  struct Object {
    std::string content;
    std::string etag;
    std::string token;
  };
  struct Upload {
    std::string key;
    std::string token;
    std::map<std::uint32_t, std::string> parts;
  };
  struct Asked {
    std::string key;
    std::map<std::string, std::string> query;
  };

  static HttpAnswer refused(int status, const std::string& code) {
    HttpAnswer answer;
    answer.status = status;
    answer.body = text("<Error><Code>", code, "</Code></Error>");
    return answer;
  }
  static std::string header(const HttpRequest& request, std::string_view name) {
    for (const auto& [key, value] : request.headers)
      if (key == name) return value;
    return "";
  }

  [[nodiscard]] Asked asked_in(const HttpRequest& request) const {
    Asked asked;
    std::string rest = request.url.substr(root_.size());
    const std::size_t mark = rest.find('?');
    std::string query = mark == rest.npos ? "" : rest.substr(mark + 1) + "&";
    rest.resize(std::min(mark, rest.size()));
    asked.key = rest.empty() ? "" : *decode_key(rest.substr(1));
    while (!query.empty()) {
      const std::string one = query.substr(0, query.find('&'));
      query.erase(0, one.size() + 1);
      const std::size_t is = one.find('=');
      asked.query[one.substr(0, is)] = *decode_key(one.substr(is + 1));
    }
    return asked;
  }

  HttpAnswer serve(const HttpRequest& request) {
    const std::lock_guard lock(mutex_);
    const Asked asked = asked_in(request);
    if (request.method == "PUT") return put(request, asked);
    if (request.method == "POST") return post(request, asked);
    if (request.method == "DELETE") return remove(asked);
    if (asked.query.contains("list-type")) return list(asked);
    return read(request, asked);
  }

  HttpAnswer put(const HttpRequest& request, const Asked& asked) {
    const std::string sum = header(request, "x-amz-checksum-crc32c");
    if (sum != base64_of(pawl::crc32c(request.body))) return refused(400, "BadDigest");
    std::string content(reinterpret_cast<const char*>(request.body.data()), request.body.size());
    HttpAnswer answer;
    answer.status = 200;
    const std::string etag = text("\"e", ++etags_, "\"");
    answer.headers = {{"etag", etag}, {"x-amz-checksum-crc32c", sum}};
    if (asked.query.contains("uploadId")) {
      const auto found = uploads_.find(asked.query.at("uploadId"));
      if (found == uploads_.end()) return refused(404, "NoSuchUpload");
      std::uint32_t number = 0;
      (void)parse_number(asked.query.at("partNumber"), number);
      found->second.parts[number] = std::move(content);
      return answer;
    }
    if (header(request, "If-None-Match") == "*" && objects_.contains(asked.key))
      return refused(412, "PreconditionFailed");
    objects_[asked.key] = {std::move(content), etag, header(request, "x-amz-meta-pawl-token")};
    return answer;
  }

  HttpAnswer post(const HttpRequest& request, const Asked& asked) {
    HttpAnswer answer;
    answer.status = 200;
    if (asked.query.contains("uploads")) {
      const std::string id = text("u", ++etags_);
      uploads_[id] = {asked.key, header(request, "x-amz-meta-pawl-token"), {}};
      answer.body =
          text("<InitiateMultipartUploadResult><UploadId>", id, "</UploadId></InitiateMultipartUploadResult>");
      return answer;
    }
    const auto found = uploads_.find(asked.query.at("uploadId"));
    if (found == uploads_.end()) return refused(404, "NoSuchUpload");
    Object object{"", text("\"e", ++etags_, "\""), found->second.token};
    std::size_t left = found->second.parts.size();
    for (const auto& [number, part] : found->second.parts) {
      if (--left > 0 && part.size() < (std::size_t{5} << 20)) return refused(400, "EntityTooSmall");
      object.content += part;
    }
    answer.body = text("<CompleteMultipartUploadResult><ETag>", object.etag, "</ETag></CompleteMultipartUploadResult>");
    objects_[found->second.key] = std::move(object);
    uploads_.erase(found);
    return answer;
  }

  HttpAnswer remove(const Asked& asked) {
    if (asked.query.contains("uploadId"))
      uploads_.erase(asked.query.at("uploadId"));
    else
      objects_.erase(asked.key);
    HttpAnswer answer;
    answer.status = 204;
    return answer;
  }

  HttpAnswer list(const Asked& asked) {
    const std::string& prefix = asked.query.at("prefix");
    const auto token = asked.query.find("continuation-token");
    auto at = objects_.lower_bound(prefix);
    if (token != asked.query.end()) at = objects_.lower_bound(token->second);
    HttpAnswer answer;
    answer.status = 200;
    answer.body = "<ListBucketResult><EncodingType>url</EncodingType>";
    for (int count = 0; at != objects_.end() && at->first.starts_with(prefix); ++at, ++count) {
      if (count == 2) {
        answer.body +=
            text("<IsTruncated>true</IsTruncated><NextContinuationToken>", at->first, "</NextContinuationToken>");
        break;
      }
      answer.body += text("<Contents><Key>", encode_key(at->first), "</Key><Size>", at->second.content.size(),
                          "</Size></Contents>");
    }
    answer.body += "</ListBucketResult>";
    return answer;
  }

  HttpAnswer read(const HttpRequest& request, const Asked& asked) {
    const auto found = objects_.find(asked.key);
    if (found == objects_.end()) return refused(404, "NoSuchKey");
    const Object& object = found->second;
    HttpAnswer answer;
    answer.status = 200;
    answer.headers = {{"etag", object.etag}, {"content-length", text(object.content.size())}};
    if (!object.token.empty()) answer.headers.push_back({"x-amz-meta-pawl-token", object.token});
    if (request.method == "HEAD") return answer;
    const std::string match = header(request, "If-Match");
    if (!match.empty() && match != object.etag) return refused(412, "PreconditionFailed");
    const std::string range = header(request, "Range");  // "bytes=3-7"
    std::uint64_t first = 0;
    (void)parse_number(std::string_view(range).substr(6, range.find('-') - 6), first);
    if (first >= object.content.size()) return refused(416, "InvalidRange");
    answer.into_bytes = std::min<std::size_t>(request.into.size(), object.content.size() - first);
    std::memcpy(request.into.data(), object.content.data() + first, answer.into_bytes);
    answer.status = 206;
    answer.headers.push_back(
        {"content-range", text("bytes ", first, "-", first + answer.into_bytes - 1, "/", object.content.size())});
    return answer;
  }

  const std::string root_;
  std::atomic<std::uint64_t> count_{0};
  std::mutex mutex_;  // of what follows
  std::map<std::string, Object> objects_;
  std::map<std::string, Upload> uploads_;
  std::uint64_t etags_ = 0;
};

}  // namespace pawl::s3
