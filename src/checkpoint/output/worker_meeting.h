// WorkerMeeting: where processes that write shares of one output find each other: files in a folder of the output in
// the making (checkpoint/output/partial_output.h), on a file system that all of them see. No network, no clock in
// common.
//
//   hello-<worker>-<nonce>   of each process: its job, its place among the workers, the digest of what it would write
//   go                       worker 0's: the attempt, and the nonces of those that belong to it
//   beat-<worker>-<attempt>  how many bytes it has written so far
//   report-, failed-<worker>-<attempt>   how it ended: a ShareReport, or a sentence
//
// What always holds: a process writes only after it read a `go` that names its own nonce, which this process made up:
// so worker 0 of the same attempt was alive after it started, and what an earlier attempt left is never joined. A
// report counts only with the attempt, the digest and the number of workers that it was asked for. Each file is written
// atomically and carries its checksum. Deadlines name who was waited for.
// A meeting object is for one thread; several may be at one folder.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/output/output_plan.h"

namespace pawl::checkpoint {

inline constexpr const char* kMeetingName = "workers";  // in the partial folder

struct MeetingOptions {
  std::string folder;  // of the meeting
  std::uint32_t worker = 0;
  std::uint32_t workers = 1;
  std::string job;     // one word: whose workers these are; may be empty
  std::string digest;  // checkpoint/output/output_shares.h
};

struct MeetingWait {
  std::chrono::milliseconds longest{600'000};
  const std::atomic<bool>* cancel = nullptr;
};

[[nodiscard]] std::string new_nonce();  // 16 hexadecimal digits, from the system's randomness

class WorkerMeeting {
 public:
  explicit WorkerMeeting(MeetingOptions options) : options_(std::move(options)) {}

  // Worker 0, once the folder above is its own. Fails: `io`, `full`.
  [[nodiscard]] Status open();
  // Worker 0: waits until all others are there, and lets them go. Fails: `timeout`, naming who is missing; `invalid` if
  // one has another source, plan or number of workers, which is told to all of them; `cancelled`.
  [[nodiscard]] Status gather(const std::string& attempt, const MeetingWait& wait);
  // The others: waits for worker 0, and answers its attempt. Fails as gather().
  [[nodiscard]] Result<std::string> join(const MeetingWait& wait);
  // Without gather() and join(): forked processes know.
  void set_attempt(std::string attempt) { attempt_ = std::move(attempt); }

  // After gather() and join():
  [[nodiscard]] bool goes_on() const;  // `go` is there, and is of this attempt
  [[nodiscard]] Status tell_progress(std::uint64_t bytes) const;
  [[nodiscard]] Status leave_report(const ShareReport& report) const;
  void leave_failure(const Error& error) const;  // as good as can be

  // What a worker left so far. Fails: with what it failed with, named; `corrupt` for a report that is no report;
  // `stale` if it is of another attempt, plan or number of workers.
  struct Standing {
    std::uint64_t bytes = 0;            // as told
    std::optional<ShareReport> report;  // once it is done
  };
  [[nodiscard]] Result<Standing> standing_of(std::uint32_t worker) const;
  // Waits for the reports of all workers, from 0 on, as long as each one without a report tells progress at least once
  // in `longest`. `progress` gets the sum now and then. Fails as standing_of; `timeout`; `cancelled`.
  [[nodiscard]] Result<std::vector<ShareReport>> wait_for_reports(
      const MeetingWait& wait, const std::function<void(std::uint64_t bytes)>& progress) const;

 private:
  [[nodiscard]] std::string path(std::string_view name) const;
  [[nodiscard]] Status check_hello(std::string_view hello) const;

  MeetingOptions options_;
  std::string attempt_;
};

}  // namespace pawl::checkpoint
