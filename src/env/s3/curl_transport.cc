#include <curl/curl.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/text.h"
#include "env/s3/http.h"

namespace pawl::s3 {
namespace {

constexpr std::size_t kAnswerMax = std::size_t{32} << 20;  // a list of a thousand keys has 3 MB at most

using Handle = std::unique_ptr<CURL, void (*)(CURL*)>;
using List = std::unique_ptr<curl_slist, void (*)(curl_slist*)>;

// One request under way: what curl's calls back work on.
struct Exchange {
  const HttpRequest& request;
  CURL* handle;
  HttpAnswer answer;
  std::size_t sent_bytes = 0;
};

std::size_t on_header(char* line, std::size_t one, std::size_t size, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  std::string_view text(line, one * size);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
  if (text.starts_with("HTTP/")) {  // another answer: those before it were interim ones
    exchange.answer.headers.clear();
    return one * size;
  }
  const std::size_t colon = text.find(':');
  if (colon == text.npos) return one * size;
  std::string name(text.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  text.remove_prefix(colon + 1);
  while (text.starts_with(' ')) text.remove_prefix(1);
  exchange.answer.headers.push_back({std::move(name), std::string(text)});
  return one * size;
}

std::size_t on_body(char* bytes, std::size_t one, std::size_t size, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  HttpAnswer& answer = exchange.answer;
  const std::size_t count = one * size;
  long status = 0;
  curl_easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
  const std::span<std::byte> into = exchange.request.into;
  if (!into.empty() && status / 100 == 2) {
    if (count > into.size() - answer.into_bytes) return CURL_WRITEFUNC_ERROR;
    if (count != 0) std::memcpy(into.data() + answer.into_bytes, bytes, count);
    answer.into_bytes += count;
    return count;
  }
  if (count > kAnswerMax - answer.body.size()) return CURL_WRITEFUNC_ERROR;
  answer.body.append(bytes, count);
  return count;
}

std::size_t on_read(char* to, std::size_t one, std::size_t size, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::span<const std::byte> rest = exchange.request.body.subspan(exchange.sent_bytes);
  const std::size_t count = std::min(one * size, rest.size());
  if (count != 0) std::memcpy(to, rest.data(), count);
  exchange.sent_bytes += count;
  return count;
}

int on_seek(void* user, curl_off_t offset, int origin) {  // on a kept connection that the server has just closed
  auto& exchange = *static_cast<Exchange*>(user);
  if (origin != SEEK_SET || offset < 0 || static_cast<std::size_t>(offset) > exchange.request.body.size())
    return CURL_SEEKFUNC_FAIL;
  exchange.sent_bytes = static_cast<std::size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const std::atomic<bool>* cancel = static_cast<Exchange*>(user)->request.cancel;
  return cancel != nullptr && cancel->load(std::memory_order_relaxed) ? 1 : 0;
}

Code code_of(CURLcode failure) {
  switch (failure) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
      return Code::unreachable;
    case CURLE_OPERATION_TIMEDOUT:
      return Code::timeout;
    case CURLE_ABORTED_BY_CALLBACK:
      return Code::cancelled;
    case CURLE_WRITE_ERROR:
      return Code::corrupt;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return Code::invalid;
    default:
      return Code::io;
  }
}

long milliseconds_of(Duration duration) {
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<long>(std::clamp<std::int64_t>(rounded, 1, std::int64_t{1} << 30));
}

void set_direction(CURL* handle, const HttpRequest& request) {
  if (request.method == "GET") {
    curl_easy_setopt(handle, CURLOPT_HTTPGET, 1L);
  } else if (request.method == "HEAD") {
    curl_easy_setopt(handle, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    curl_easy_setopt(handle, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(handle, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  } else {
    curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

class CurlTransport final : public HttpTransport {
 public:
  explicit CurlTransport(CurlOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Result<HttpAnswer> send(const HttpRequest& request) override {
    if (request.deadline.passed()) return Error{Code::timeout, "the deadline has passed"};
    Handle handle = take();
    if (!handle) return Error{Code::full, "no memory for a request"};
    Exchange exchange{request, handle.get(), {}, 0};
    Result<HttpAnswer> result = perform(exchange);
    curl_easy_reset(handle.get());  // its connection stays
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(handle));
    return result;
  }

 private:
  Handle take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return {curl_easy_init(), curl_easy_cleanup};
    Handle out = std::move(idle_.back());
    idle_.pop_back();
    return out;
  }

  Result<HttpAnswer> perform(Exchange& exchange) {
    const HttpRequest& request = exchange.request;
    CURL* handle = exchange.handle;
    List headers(nullptr, curl_slist_free_all);
    for (const auto& each : request.headers) add(headers, text(each.first, ": ", each.second));
    add(headers, "Expect:");  // a server that doesn't know it costs a second
    char cause[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, cause);
    set_limits(exchange);
    set_direction(handle, request);
    curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(handle, CURLOPT_HEADERDATA, &exchange);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, &exchange);
    curl_easy_setopt(handle, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(handle, CURLOPT_READDATA, &exchange);
    curl_easy_setopt(handle, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(handle, CURLOPT_SEEKDATA, &exchange);
    curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(handle, CURLOPT_XFERINFODATA, &exchange);
    curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    const CURLcode done = curl_easy_perform(handle);
    if (done != CURLE_OK) return Error{code_of(done), *cause != '\0' ? cause : curl_easy_strerror(done)};
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    exchange.answer.status = static_cast<int>(status);
    return std::move(exchange.answer);
  }

  void set_limits(Exchange& exchange) {
    CURL* handle = exchange.handle;
    const HttpRequest& request = exchange.request;
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);  // as it was signed
    curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
    curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 1L << 19);
    curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, milliseconds_of(options_.connect_max));
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, std::max(1L, milliseconds_of(request.silence_max) / 1000));
    if (!request.deadline.is_never())
      curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, milliseconds_of(request.deadline.left()));
    if (!options_.certificates.empty()) curl_easy_setopt(handle, CURLOPT_CAINFO, options_.certificates.c_str());
  }

  static void add(List& list, const std::string& line) {
    curl_slist* longer = curl_slist_append(list.get(), line.c_str());
    if (longer == nullptr) return;
    (void)list.release();
    list.reset(longer);
  }

  const CurlOptions options_;
  std::mutex mutex_;
  std::vector<Handle> idle_;  // as many as there were requests at once
};

}  // namespace

std::string_view HttpAnswer::header(std::string_view name) const {
  for (const auto& each : headers)
    if (each.first == name) return each.second;
  return {};
}

std::unique_ptr<HttpTransport> curl_transport(CurlOptions options) {
  static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);  // once, before any thread has a handle
  (void)kReady;
  return std::make_unique<CurlTransport>(std::move(options));
}

}  // namespace pawl::s3
