// HttpTransport: one HTTP request and its answer; the seam where a test or a simulation has its own.
//
// The real one is libcurl, with a connection for each request that is under way; they are kept and used again.
// It follows no redirects and repeats nothing: that is the caller's business. Thread-safe; calls block.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "env/clock.h"
#include "env/s3/signature.h"

namespace pawl::s3 {

struct HttpRequest {
  std::string method;
  std::string url;
  Headers headers;
  std::span<const std::byte> body;  // read during the call only, straight from where it lies
  std::span<std::byte> into;  // if not empty: where the body of an answer with 2xx goes; longer ones are `corrupt`
  Deadline deadline = Deadline::never();
  Duration silence_max = std::chrono::seconds(30);  // no byte in either direction for so long: `timeout`
  const std::atomic<bool>* cancel = nullptr;        // set by another thread: it ends within a second, as `cancelled`
};

struct HttpAnswer {
  int status = 0;
  Headers headers;             // names in lower case
  std::string body;            // what did not go into `into`
  std::size_t into_bytes = 0;  // how much did

  [[nodiscard]] std::string_view header(std::string_view name) const;  // empty: it has none
};

class HttpTransport {
 public:
  virtual ~HttpTransport() = default;
  // Any status is an answer. Fails: `unreachable`, `timeout`, `cancelled`, `corrupt` (too long an answer), `invalid` (a wrong
  // address, a certificate that is not trusted), `io`. No error has a header in it.
  [[nodiscard]] virtual Result<HttpAnswer> send(const HttpRequest& request) = 0;
};

struct CurlOptions {
  Duration connect_max = std::chrono::seconds(10);
  std::string certificates;  // a file of authorities to trust; empty: the system's
};

[[nodiscard]] std::unique_ptr<HttpTransport> curl_transport(CurlOptions options);

}  // namespace pawl::s3
