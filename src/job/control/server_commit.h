// Committer: joins the key values and their log. Nothing leaves the server before it is on disk.
//
// A request runs on the key values at once, in memory, one at a time; what it changed is queued for the log. Its answer,
// and every answer that may show that change, waits until the log has synced it. One thread writes: all that queued up
// during one sync goes into the next as one frame, so concurrent writers share an fsync. Leases expire on that thread.
// When the log fails, nothing more is answered but the failure: memory is ahead of the disk and must be dropped.
// Time in which this process or its disk stood still is given back to the leases, since nobody could renew them
// meanwhile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "env/thread.h"
#include "job/control/key_values.h"
#include "job/control/wal.h"

namespace pawl::job {

struct CommitterOptions {
  WalOptions wal;
  KeyValuesOptions key_values;
  std::uint64_t log_bytes_max = 64ull << 20;  // past it (and past twice what it last shrank to) the log is rewritten
  // Called on the committer's thread: all up to `revision` is durable; the log failed, for good.
  std::function<void(Revision revision)> on_durable = [](Revision) {};
  std::function<void(const Error&)> on_failure = [](const Error&) {};
};

class Committer {
 public:
  using Time = KeyValues::Time;
  using Work = std::function<void(KeyValues& values, Time now, KeyValues::Log* log)>;
  using Done = std::function<void(const Status& durable)>;

  // Replays the log. Fails: as Wal::open.
  static Result<std::unique_ptr<Committer>> open(CommitterOptions options);
  ~Committer();  // commits what is queued, then ends the thread

  // Runs `work` at once, on the caller's thread, with the key values locked (it must not call back into the committer).
  // `done` is called once, without the lock: on this thread if there is nothing to wait for, else on the committer's.
  void submit(const Work& work, Done done);

  // Durable events only.
  [[nodiscard]] EventSlice events(EventQuery query, std::size_t bytes_max);
  [[nodiscard]] Revision durable_revision();
  [[nodiscard]] Revision compacted();

  [[nodiscard]] std::uint64_t cluster_id() const { return cluster_id_; }
  [[nodiscard]] std::uint64_t member_id() const { return member_id_; }
  [[nodiscard]] std::uint64_t log_bytes() const { return log_bytes_; }

 private:
  explicit Committer(CommitterOptions options);
  Status replay();
  void run();
  void wait_for_work(std::unique_lock<std::mutex>& lock);
  void expire_leases();
  Status write(const KeyValues::Log& batch, const std::vector<KeyValues::Log>& snapshot);

  CommitterOptions options_;
  std::unique_ptr<Wal> wal_;  // the thread's, once it runs
  std::uint64_t cluster_id_ = 0;
  std::uint64_t member_id_ = 0;
  std::uint64_t shrunk_bytes_ = 0;
  std::atomic<std::uint64_t> log_bytes_ = 0;

  std::mutex mutex_;  // guards all below
  std::condition_variable work_ready_;
  KeyValues key_values_;
  KeyValues::Log queued_;      // in the key values, not yet given to the log
  std::vector<Done> waiting_;  // for all queued so far
  bool writing_ = false;
  bool stopping_ = false;
  Status failed_;
  Revision durable_revision_ = 0;
  Time awake_at_;                                        // when the thread was last known to run
  Time awake_by_ = Time::max() - std::chrono::hours(1);  // the thread is late if it runs only after it
  Thread thread_;
};

}  // namespace pawl::job
