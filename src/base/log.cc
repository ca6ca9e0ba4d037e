#include "base/log.h"

#include <unistd.h>
#include <atomic>
#include <ctime>
#include <mutex>

namespace pawl {
namespace {

std::atomic<int> log_fd{STDERR_FILENO};
std::atomic<LogLevel> log_least{LogLevel::info};
std::mutex who_mutex;
std::string who_name;
std::atomic<void (*)(LogLevel, std::string_view)> log_sink{nullptr};

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warn:
      return "warn";
    case LogLevel::error:
      return "error";
  }
  return "error";
}

std::string time_text() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char seconds[32];
  const std::size_t length = strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
  std::string micros = std::to_string(now.tv_nsec / 1000);
  return std::string(seconds, length) + "." + std::string(6 - micros.size(), '0') + micros + "Z";
}

// In quotes where the value has blanks or quotes.
void append_quoted(std::string& out, std::string_view value) {
  if (!value.empty() && value.find_first_of(" \"\n\t=") == std::string_view::npos) {
    out.append(value);
    return;
  }
  out.push_back('"');
  for (char c : value) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c == '\n' ? ' ' : c);
  }
  out.push_back('"');
}

}  // namespace

void log_to(int fd, LogLevel least, std::string who) {
  log_fd = fd;
  log_least = least;
  std::lock_guard lock(who_mutex);
  who_name = std::move(who);
}

void log_through(void (*sink)(LogLevel, std::string_view), LogLevel least) {
  log_sink = sink;
  log_least = least;
}

void log_fields(LogLevel level, std::string_view event, std::initializer_list<TextPart> fields) {
  if (level < log_least.load()) return;
  const auto sink = log_sink.load();
  std::string line;
  if (sink == nullptr) {
    line = time_text();
    line.append(" ").append(name_of(level)).append(" ");
    std::lock_guard lock(who_mutex);
    if (!who_name.empty()) line.append(who_name).append(" ");
  }
  line.append(event);
  bool is_key = true;
  for (const TextPart& field : fields) {
    if (is_key) {
      line.push_back(' ');
      append_text(line, field);
      line.push_back('=');
    } else {
      append_quoted(line, join_text({field}));
    }
    is_key = !is_key;
  }
  if (sink != nullptr) return sink(level, line);
  line.push_back('\n');
  // A log that cannot be written must never stop the work it tells of.
  [[maybe_unused]] ssize_t written = ::write(log_fd.load(), line.data(), line.size());
}

}  // namespace pawl
