// A launcher's sign of life: the time at which its launcher.json was touched last.
//
// A pid says nothing on another machine. On a file system that machines share, or that outlives them, this tells a
// `pawl run` that lives from one that was killed with its machine. It is compared with the time of a file that is touched
// there now, so that it does not matter what the clocks of the machines say where the file system gives the time.
// Who is suspended, or can't reach the file system, for kSilenceMax looks dead.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/ids.h"
#include "base/result.h"

namespace pawl::job {

inline constexpr Duration kSignEvery = std::chrono::seconds(5);
inline constexpr Duration kSilenceMax = std::chrono::seconds(60);

// Touches launcher.json in `directory` now and every kSignEvery until it is destroyed, in a thread of its own: neither a disk nor a
// terminal that stands still may make one of the two wait for the other. Best effort.
class SignOfLife {
 public:
  explicit SignOfLife(const std::string& directory);
  ~SignOfLife();
  SignOfLife(const SignOfLife&) = delete;
  SignOfLife& operator=(const SignOfLife&) = delete;

 private:
  void run();

  const std::string path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

// Since the last one in `directory`; makes a file for a moment in `scratch`, on the same file system. Negative where the file system's time
// has gone back. Fails: `io`, also without a launcher.json.
[[nodiscard]] Result<Duration> since_sign_of_life(const std::string& directory, const std::string& scratch);

}  // namespace pawl::job
