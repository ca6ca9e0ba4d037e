// ProgressBar: how far a long command is, on standard error: a bar on a terminal, else a line every few seconds.
//
// Also what ends one early: SIGINT and SIGTERM set a flag that the executor looks at. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace pawl::checkpoint {

[[nodiscard]] std::string bytes_text(std::uint64_t bytes);  // "5.2 GiB", "17 B"
[[nodiscard]] std::string duration_text(double seconds);    // "3 s", "2 min 05 s", "1 h 07 min"
// "convert  45 %  2.3 of 5.0 GiB  1.2 GiB/s  3 s left"; with a bar of `bar` characters, if that is not 0.
[[nodiscard]] std::string progress_text(const std::string& verb, std::uint64_t done, std::uint64_t all, double seconds,
                                        std::uint32_t bar);

class ProgressBar {
 public:
  ProgressBar(std::string verb, std::uint64_t bytes_all);
  ~ProgressBar();  // wipes the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void at(std::uint64_t bytes_done);

 private:
  using Clock = std::chrono::steady_clock;
  std::mutex mutex_;
  const std::string verb_;
  const std::uint64_t all_;
  const bool is_terminal_;
  const Clock::time_point began_;
  Clock::time_point shown_;
  bool has_bar_ = false;
};

// From the first call on SIGINT and SIGTERM set this instead of ending the process, and SIGXFSZ is an error of write().
[[nodiscard]] const std::atomic<bool>& interrupted();

}  // namespace pawl::checkpoint
