// MemoryBucket: an HttpTransport for tests, behind which one bucket's objects lie in memory. Heads, ranges, conditions and
// lists of at most three keys a page; what was asked for is kept. Thread-safe.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "env/s3/http.h"
#include "env/s3/s3_url.h"

namespace pawl::s3 {

class MemoryBucket final : public HttpTransport {
 public:
  void put(const std::string& key, std::string content) {
    const std::lock_guard lock(mutex_);
    objects_[key] = {std::move(content), text('"', ++versions_, '"')};
  }
  // "GET a/b 0-99", "HEAD a/b", "LIST a/".
  [[nodiscard]] std::vector<std::string> seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

  Result<HttpAnswer> send(const HttpRequest& request) override {
    const std::lock_guard lock(mutex_);
    const std::string_view url = request.url;
    const std::size_t bucket = url.find('/', std::string_view("http://").size()) + 1;
    const std::size_t question = std::min(url.find('?'), url.size());
    const std::size_t slash = url.find('/', bucket);
    if (slash >= question || slash + 1 == question) return list(url.substr(std::min(question + 1, url.size())));
    const std::string key = decode_key(url.substr(slash + 1, question - slash - 1)).value();
    const auto found = objects_.find(key);
    std::string range;
    for (const auto& [name, value] : request.headers)
      if (name == "Range") range = value.substr(std::string_view("bytes=").size());
    seen_.push_back(text(request.method, " ", key, range.empty() ? "" : " ", range));
    if (found == objects_.end()) return HttpAnswer{.status = 404, .headers = {}, .body = {}};
    const auto& [content, etag] = found->second;
    for (const auto& [name, value] : request.headers)
      if (name == "If-Match" && value != etag) return HttpAnswer{.status = 412, .headers = {}, .body = {}};
    HttpAnswer answer{.status = 200, .headers = {{"etag", etag}, {"content-length", text(content.size())}}, .body = {}};
    if (request.method != "GET") return answer;
    const std::size_t begin = std::strtoull(range.c_str(), nullptr, 10);
    if (begin >= content.size()) return HttpAnswer{.status = 416, .headers = {}, .body = {}};
    answer.status = 206;
    answer.headers.push_back({"content-range", text("bytes ", range, "/", content.size())});
    answer.into_bytes = std::min(request.into.size(), content.size() - begin);
    std::memcpy(request.into.data(), content.data() + begin, answer.into_bytes);
    return answer;
  }

 private:
  static std::string value_of(std::string_view query, std::string_view name) {
    const std::string text = "&" + std::string(query) + "&";
    const std::size_t at = text.find("&" + std::string(name) + "=");
    if (at == text.npos) return {};
    const std::size_t begin = at + name.size() + 2;
    return decode_key(text.substr(begin, text.find('&', begin) - begin)).value();
  }

  HttpAnswer list(std::string_view query) {
    const std::string prefix = value_of(query, "prefix"), after = value_of(query, "continuation-token");
    const bool is_folder = !value_of(query, "delimiter").empty();
    seen_.push_back(text("LIST ", prefix));
    std::set<std::string> all;
    for (const auto& [key, object] : objects_) {
      if (!key.starts_with(prefix)) continue;
      const std::size_t slash = is_folder ? key.find('/', prefix.size()) : key.npos;
      all.insert(slash == key.npos ? key : key.substr(0, slash + 1));
    }
    std::string body = "<ListBucketResult>", last;
    std::size_t count = 0;
    auto each = after.empty() ? all.begin() : all.upper_bound(after);
    for (; each != all.end() && count < 3; ++each, ++count) {
      last = *each;
      body += is_folder && each->ends_with('/') && *each != prefix
                  ? text("<CommonPrefixes><Prefix>", encode_key(*each), "</Prefix></CommonPrefixes>")
                  : text("<Contents><Key>", encode_key(*each), "</Key><Size>0</Size><ETag>x</ETag></Contents>");
    }
    if (each != all.end())
      body += text("<IsTruncated>true</IsTruncated><NextContinuationToken>", last, "</NextContinuationToken>");
    return HttpAnswer{.status = 200, .headers = {}, .body = body + "</ListBucketResult>"};
  }

  std::mutex mutex_;
  std::map<std::string, std::pair<std::string, std::string>> objects_;  // content and ETag by key
  std::uint64_t versions_ = 0;
  std::vector<std::string> seen_;
};

}  // namespace pawl::s3
