#include "cli/checkpoint/progress.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "cli/output.h"

namespace pawl::checkpoint {
namespace {

constexpr auto kBarEvery = std::chrono::milliseconds(100);
constexpr auto kLineEvery = std::chrono::seconds(5);

std::atomic<bool> g_interrupted{false};
void note_signal(int) {
  g_interrupted.store(true);
}

void write_error(const std::string& words) {
  std::fwrite(words.data(), 1, words.size(), stderr);
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1023.95 && unit < 6; ++unit) value /= 1024;
  return text(unit == 0 ? text(bytes) : fixed(value, 1), " ", kUnits[unit]);
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::max(0.0, seconds) + 0.5);
  const auto two = [](std::uint64_t number) { return text(number < 10 ? "0" : "", number); };
  if (whole < 60) return text(whole, " s");
  if (whole < 3600) return text(whole / 60, " min ", two(whole % 60), " s");
  return text(whole / 3600, " h ", two(whole % 3600 / 60), " min");
}

std::string progress_text(const std::string& verb, std::uint64_t done, std::uint64_t all, double seconds,
                          std::uint32_t bar) {
  const double share = all == 0 ? 1 : std::min(1.0, static_cast<double>(done) / static_cast<double>(all));
  std::string out = verb;
  if (bar != 0) {
    const auto full = static_cast<std::uint32_t>(share * bar);
    out += text(" [", std::string(full, '#'), std::string(bar - full, '.'), "]");
  }
  out += text(" ", fixed(share * 100, 0), " %  ", bytes_text(done), " of ", bytes_text(all));
  if (seconds <= 0 || done == 0) return out;
  const double rate = static_cast<double>(done) / seconds;
  out += text("  ", bytes_text(static_cast<std::uint64_t>(rate)), "/s");
  if (done < all) out += text("  ", duration_text(static_cast<double>(all - done) / rate), " left");
  return out;
}

ProgressBar::ProgressBar(std::string verb, std::uint64_t bytes_all)
    : verb_(std::move(verb)),
      all_(bytes_all),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      began_(Clock::now()),
      shown_(began_) {}

ProgressBar::~ProgressBar() {
  if (has_bar_) write_error("\r\033[K");
}

void ProgressBar::at(std::uint64_t bytes_done) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (now - shown_ < (is_terminal_ ? std::chrono::nanoseconds(kBarEvery) : std::chrono::nanoseconds(kLineEvery)))
    return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - began_).count();
  if (is_terminal_) {
    has_bar_ = true;
    write_error("\r\033[K" + progress_text(verb_, bytes_done, all_, seconds, 24));
    std::fflush(stderr);
  } else {
    write_error(text("pawl: ", progress_text(verb_, bytes_done, all_, seconds, 0), "\n"));
  }
}

const std::atomic<bool>& interrupted() {
  static const bool is_set = [] {
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second one ends the process at once
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
    action.sa_handler = SIG_IGN;
    action.sa_flags = 0;
    ::sigaction(SIGXFSZ, &action, nullptr);
    return true;
  }();
  (void)is_set;
  return g_interrupted;
}

}  // namespace pawl::checkpoint
