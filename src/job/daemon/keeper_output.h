// KeeperOutput: what a node's trainers write to their stdout and stderr, on its way to the logs and to the terminal.
//
// Trainers write into pipes, never to a disk: a disk that is full or slow must not fail or stop a training. A thread of
// its own reads the pipes, because writing a log may take long, and the keeper must not stand still (it would take itself
// for stopped). What a log can't hold is lost there, and that is said once. The terminal gets whole lines; what it can't
// take at once is left out there. Calls come from one thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "env/fd.h"
#include "env/poller.h"
#include "env/thread.h"

namespace pawl::job {

// Bits of KeeperOptions::tee.
inline constexpr std::uint32_t kTeeStdout = 1;
inline constexpr std::uint32_t kTeeStderr = 2;
inline constexpr std::uint32_t kTeeFirstSeat = 4;  // only of the trainer in seat 0, and as it writes it

struct KeeperOutputOptions {
  NodeId node;
  std::uint32_t seats_per_node = 1;
  std::uint32_t tee = 0;
  int tee_fd = -1;  // non-blocking
};

struct TrainerStreams {  // for the new process
  Fd stdout_end;
  Fd stderr_end;
};

class KeeperOutput {
 public:
  explicit KeeperOutput(const KeeperOutputOptions& options);
  ~KeeperOutput();
  KeeperOutput(const KeeperOutput&) = delete;
  KeeperOutput& operator=(const KeeperOutput&) = delete;

  // Of a new trainer in this place. Fails: `full` without descriptors or threads.
  [[nodiscard]] Result<TrainerStreams> open(std::uint32_t local_index, Fd stdout_log, Fd stderr_log);
  // Whether the trainer in this place has seat 0. What it wrote before, a little of it, is shown then.
  void show(std::uint32_t local_index, bool shown);
  // The end of what the trainer wrote to its stderr. It has ended: all of that is read first, if `patience` suffices.
  [[nodiscard]] std::string close(std::uint32_t local_index, Duration patience);

 private:
  struct Stream;
  using Streams = std::vector<std::shared_ptr<Stream>>;
  void run();
  void read(Stream& stream);
  void pass_on(Stream& stream, std::string_view bytes);
  void write_log(Stream& stream, std::string_view bytes);
  void write_lines(Stream& stream, bool ended);
  [[nodiscard]] Streams living();

  const KeeperOutputOptions options_;
  Event wake_;  // places_ has changed
  std::mutex mutex_;
  std::condition_variable ended_;
  std::map<std::uint32_t, Streams> places_;  // stdout, stderr
  bool stopping_ = false;
  Thread thread_;  // from the first trainer on
};

}  // namespace pawl::job
