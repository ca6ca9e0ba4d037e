// BadServer: an HTTP server on the loopback for tests, which answers as its script says, badly if that says so.
//
// One request after another, each connection until the script cuts it. What was asked is kept. An empty script: 500.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"

namespace pawl::s3 {

struct BadAnswer {
  int status = 200;
  std::string headers = {};  // "Name: value\r\n..."
  std::string body = {};
  bool cut = false;         // the connection ends without an answer
  std::size_t missing = 0;  // bytes of the body that are announced, and not sent before the connection ends
  std::chrono::milliseconds delay = std::chrono::milliseconds(0);
  std::string header_of_head = {};  // the Content-Length of an answer to HEAD, which has no body
};

struct SeenRequest {
  std::string line;  // "GET /bucket/key HTTP/1.1"
  std::string headers;
  std::string body;

  [[nodiscard]] bool has(std::string_view part) const { return headers.find(part) != std::string::npos; }
};

class BadServer {
 public:
  explicit BadServer(std::vector<BadAnswer> script) : script_(script.begin(), script.end()) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 16) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      std::abort();
    url_ = text("http://127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~BadServer() {
    ending_ = true;
    thread_.join();
    close(listener_);
  }
  BadServer(const BadServer&) = delete;
  BadServer& operator=(const BadServer&) = delete;

  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] std::vector<SeenRequest> seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  bool wait_for(int fd) {  // false: the server is ending
    pollfd what{fd, POLLIN, 0};
    while (!ending_)
      if (poll(&what, 1, 20) > 0) return true;
    return false;
  }

  void serve() {
    while (wait_for(listener_)) {
      const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      while (serve_one(connection)) {
      }
      close(connection);
    }
  }

  bool read_request(int connection, SeenRequest& request) {
    std::string got;
    std::size_t end = got.npos, wanted = 0;
    while (end == got.npos || got.size() < wanted) {
      char buffer[65536];
      if (!wait_for(connection)) return false;
      const ssize_t count = recv(connection, buffer, sizeof buffer, 0);
      if (count <= 0) return false;
      got.append(buffer, static_cast<std::size_t>(count));
      if (end != got.npos || (end = got.find("\r\n\r\n")) == got.npos) continue;
      const std::size_t length = got.find("Content-Length: ");
      wanted = end + 4 + (length < end ? std::strtoull(got.c_str() + length + 16, nullptr, 10) : 0);
    }
    const std::size_t line = got.find("\r\n");
    request = {got.substr(0, line), got.substr(line, end - line), got.substr(end + 4)};
    return true;
  }

  bool serve_one(int connection) {
    SeenRequest request;
    if (!read_request(connection, request)) return false;
    BadAnswer answer{.status = 500};
    {
      const std::lock_guard lock(mutex_);
      seen_.push_back(request);
      if (!script_.empty()) {
        answer = script_.front();
        script_.pop_front();
      }
    }
    for (auto waited = std::chrono::milliseconds(0); waited < answer.delay && !ending_;
         waited += std::chrono::milliseconds(10))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (answer.cut) return false;
    const bool head = request.line.starts_with("HEAD");
    const std::string size = head && !answer.header_of_head.empty() ? answer.header_of_head : text(answer.body.size());
    std::string out = text("HTTP/1.1 ", answer.status, " x\r\n", answer.headers, "Content-Length: ", size, "\r\n\r\n");
    if (!head) out += answer.body.substr(0, answer.body.size() - answer.missing);
    return send(connection, out.data(), out.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(out.size()) &&
           answer.missing == 0;
  }

  std::mutex mutex_;
  std::deque<BadAnswer> script_;
  std::vector<SeenRequest> seen_;
  std::string url_;
  int listener_ = -1;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace pawl::s3
