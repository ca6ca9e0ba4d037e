#include "cli/checkpoint/convert_workers.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/text.h"
#include "checkpoint/output/output_shares.h"
#include "checkpoint/output/partial_output.h"
#include "checkpoint/output/worker_meeting.h"
#include "cli/checkpoint/access.h"
#include "cli/checkpoint/progress.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookEvery = 20ms;
constexpr auto kBeatEvery = 1s;

std::uint32_t cores_of_machine() {
  return std::max(1u, std::thread::hardware_concurrency());
}

std::string meeting_folder(const ConvertOptions& options) {
  return join_path(partial_folder(options.target), kMeetingName);
}

Result<ExecuteReport> finish(ConvertOutput& output, const std::vector<ShareReport>& reports) {
  for (std::uint32_t i = 0; i < reports.size(); ++i)
    if (reports[i].bytes != output.share_bytes(i))
      return Error{Code::corrupt, text("worker ", i, " of ", reports.size(), " reports ", reports[i].bytes,
                                       " bytes; its share has ", output.share_bytes(i))};
  if (interrupted()) return Error{Code::cancelled, "interrupted"};
  PAWL_TRY(output.finish(reports));
  return sum_of(reports);
}

// --- One process alone.

Result<ExecuteReport> write_alone(ConvertOutput& output, const ConvertOptions& options, std::uint64_t bytes) {
  PAWL_TRY(output.begin({}));
  ProgressBar progress("convert", bytes);
  ExecuteOptions execution = execute_options(options.memory_bytes);
  execution.progress = [&](const ExecuteProgress& now) { progress.at(now.bytes_done); };
  PAWL_ASSIGN(ShareReport report, output.write(0, execution));
  return finish(output, {std::move(report)});
}

// --- Forked workers.

// How many bytes each worker has written: memory that all of them see.
class Board {
 public:
  explicit Board(std::uint32_t workers) : workers_(workers), bytes_(workers * sizeof(std::atomic<std::uint64_t>)) {
    void* map = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return;
    done_ = static_cast<std::atomic<std::uint64_t>*>(map);
    for (std::uint32_t i = 0; i < workers_; ++i) new (done_ + i) std::atomic<std::uint64_t>(0);
  }
  ~Board() {
    if (done_ != nullptr) ::munmap(done_, bytes_);
  }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  [[nodiscard]] bool valid() const { return done_ != nullptr; }
  void set(std::uint32_t worker, std::uint64_t bytes) { done_[worker].store(bytes, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t sum() const {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < workers_; ++i) sum += done_[i].load(std::memory_order_relaxed);
    return sum;
  }

 private:
  std::uint32_t workers_;
  std::size_t bytes_;
  std::atomic<std::uint64_t>* done_ = nullptr;
};

// The workers' processes; those that still run when this ends are killed: all they hold is in the partial output.
class Children {
 public:
  ~Children() {
    for (const pid_t pid : pids_)
      if (pid != 0) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_)
      if (pid != 0) (void)wait(pid, 0);
  }
  void add(pid_t pid) { pids_.push_back(pid); }
  [[nodiscard]] bool any() const {
    return std::ranges::any_of(pids_, [](pid_t pid) { return pid != 0; });
  }
  // Takes note of those that ended. Fails with what the first bad end was.
  Status look(const WorkerMeeting& meeting) {
    for (std::uint32_t i = 0; i < pids_.size(); ++i) {
      if (pids_[i] == 0) continue;
      const std::optional<int> how = wait(pids_[i], WNOHANG);
      if (!how) continue;
      pids_[i] = 0;
      if (WIFEXITED(*how) && WEXITSTATUS(*how) == 0) continue;
      PAWL_ASSIGN([[maybe_unused]] const WorkerMeeting::Standing standing, meeting.standing_of(i));
      const std::string end =
          WIFSIGNALED(*how) ? text("was killed by signal ", WTERMSIG(*how), " (", ::strsignal(WTERMSIG(*how)), ")")
                            : text("exited ", WEXITSTATUS(*how));
      return Error{
          Code::io,
          text("worker ", i, " of ", pids_.size(), " ", end,
               " before its share was written. Nothing was published at the target: you can rerun the command")};
    }
    return {};
  }

 private:
  static std::optional<int> wait(pid_t pid, int flags) {
    int how = 0;
    pid_t ended = 0;
    do ended = ::waitpid(pid, &how, flags);
    while (ended < 0 && errno == EINTR);
    if (ended == pid) return how;
    return std::nullopt;
  }
  std::vector<pid_t> pids_;  // 0: it ended
};

WorkerMeeting forked_meeting(const ConvertOptions& options, std::uint32_t worker, const std::string& attempt) {
  WorkerMeeting meeting({meeting_folder(options), worker, options.workers, "", "forked"});
  meeting.set_attempt(attempt);
  return meeting;
}

// In the child: never returns.
[[noreturn]] void be_worker(ConvertOutput& output, const ConvertOptions& options, const WorkerMeeting& meeting,
                            std::uint32_t worker, Board& board, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ExecuteOptions execution = execute_options(worker_memory(options));
  execution.threads = std::max(1u, cores_of_machine() / options.workers);
  execution.progress = [&](const ExecuteProgress& now) { board.set(worker, now.bytes_done); };
  const Result<ShareReport> report = output.write(worker, execution);
  const Status left = report ? meeting.leave_report(*report) : Status(report.error());
  if (!left) meeting.leave_failure(left.error());
  ::_exit(left ? 0 : 1);
}

Result<ExecuteReport> write_forked(ConvertOutput& output, const ConvertOptions& options, std::uint64_t bytes) {
  const std::string attempt = new_nonce();
  PAWL_TRY(output.begin(attempt));
  WorkerMeeting meeting = forked_meeting(options, 0, attempt);
  PAWL_TRY(meeting.open());
  Board board(options.workers);
  if (!board.valid()) return system_error("memory that workers share", errno);
  std::fflush(nullptr);
  Children children;
  const pid_t parent = ::getpid();
  for (std::uint32_t i = 0; i < options.workers; ++i) {
    const pid_t pid = ::fork();
    if (pid < 0) return system_error(text("start worker ", i, " of ", options.workers), errno);
    if (pid == 0) be_worker(output, options, forked_meeting(options, i, attempt), i, board, parent);
    children.add(pid);
  }
  {
    ProgressBar progress("convert", bytes);
    while (children.any()) {
      if (interrupted()) return Error{Code::cancelled, "interrupted"};
      PAWL_TRY(children.look(meeting));
      progress.at(board.sum());
      std::this_thread::sleep_for(kLookEvery);
    }
  }
  // All have ended well: their reports are there.
  PAWL_ASSIGN(const std::vector<ShareReport> reports, meeting.wait_for_reports({1ms, &interrupted()}, [](auto) {}));
  return finish(output, reports);
}

// --- Processes that somebody started.

// Tells the others how far this one is, and ends it where it has nothing more to go on for.
class Pulse {
 public:
  explicit Pulse(const WorkerMeeting& meeting) : meeting_(meeting), thread_([this] { run(); }) {}
  ~Pulse() {
    ended_ = true;
    thread_.join();
  }
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;
  std::atomic<std::uint64_t> bytes{0};
  [[nodiscard]] const std::atomic<bool>& stop() const { return stop_; }
  [[nodiscard]] bool was_left() const { return was_left_; }

 private:
  void run() {
    std::uint64_t told = 0;
    auto next = std::chrono::steady_clock::now();
    for (; !ended_; std::this_thread::sleep_for(kLookEvery)) {
      if (interrupted()) stop_ = true;
      if (std::chrono::steady_clock::now() < next) continue;
      next += kBeatEvery;
      if (!meeting_.goes_on()) was_left_ = stop_ = true;
      if (const std::uint64_t now = bytes; now != told && meeting_.tell_progress(now)) told = now;
    }
  }
  const WorkerMeeting& meeting_;
  std::atomic<bool> ended_{false}, stop_{false}, was_left_{false};
  std::thread thread_;  // last: it uses the others
};

Result<ShareReport> write_own_share(ConvertOutput& output, const ConvertOptions& options, WorkerMeeting& meeting,
                                    const ShareCheck& before, ProgressBar& bar) {
  const std::uint32_t worker = *options.worker;
  Pulse pulse(meeting);
  ExecuteOptions execution = execute_options(options.memory_bytes);
  execution.cancel = &pulse.stop();
  execution.progress = [&](const ExecuteProgress& now) {
    pulse.bytes = now.bytes_done;
    bar.at(now.bytes_done);
  };
  const Status checked = before(output.share_tensors(worker));
  Result<ShareReport> report = checked ? output.write(worker, execution) : Result<ShareReport>(checked.error());
  if (!report && pulse.was_left())
    return Error{Code::cancelled, text("worker 0 ended this attempt, see its output; the share of worker ", worker,
                                       " of ", options.workers, " is not used")};
  if (report && worker != 0) PAWL_TRY(meeting.leave_report(*report));
  if (!report) meeting.leave_failure(report.error());
  return report;
}

Result<ExecuteReport> write_as_worker(ConvertOutput& output, const ConvertOptions& options, const OutputPlan& plan,
                                      const CheckpointView& view, const ShareCheck& before) {
  const std::uint32_t worker = *options.worker;
  const MeetingWait wait{std::chrono::milliseconds(options.wait_ms), &interrupted()};
  WorkerMeeting meeting(
      {meeting_folder(options), worker, options.workers, options.job, conversion_digest(plan, view, options)});
  ProgressBar bar("convert", worker == 0 ? plan.data_bytes : output.share_bytes(worker));
  if (worker != 0) {
    PAWL_ASSIGN(const std::string attempt, meeting.join(wait));
    output.join(attempt);
    PAWL_ASSIGN(ShareReport report, write_own_share(output, options, meeting, before, bar));
    return sum_of(std::span(&report, 1));
  }
  const std::string attempt = new_nonce();
  PAWL_TRY(output.begin(attempt));
  PAWL_TRY(meeting.open());
  PAWL_TRY(meeting.gather(attempt, wait));
  PAWL_ASSIGN(ShareReport own, write_own_share(output, options, meeting, before, bar));
  PAWL_TRY(meeting.leave_report(own));
  PAWL_ASSIGN(const std::vector<ShareReport> reports,
              meeting.wait_for_reports(wait, [&](std::uint64_t bytes) { bar.at(bytes); }));
  if (!meeting.goes_on())
    return Error{Code::stale, text(partial_folder(options.target),
                                   " was taken over by another conversion: only one at "
                                   "a time can write to a target")};
  return finish(output, reports);
}

// As another process sees it too, whatever the path it came by.
std::string file_identity(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return "?";
  return text(last_name(path), " ", std::uint64_t{static_cast<std::uint64_t>(found.st_size)}, " ",
              std::int64_t{found.st_mtim.tv_sec}, ".", std::int64_t{found.st_mtim.tv_nsec}, "\n");
}

}  // namespace

std::uint32_t worker_count(const ConvertOptions& options) {
  return options.workers;
}

std::uint64_t worker_memory(const ConvertOptions& options) {
  return options.worker ? options.memory_bytes : options.memory_bytes / options.workers;
}

bool is_publisher(const ConvertOptions& options) {
  return options.worker.value_or(0) == 0;
}

std::string conversion_digest(const OutputPlan& plan, const CheckpointView& view, const ConvertOptions& options) {
  std::string more = text("memory ", options.memory_bytes, "\ntrusted ", options.trusted_replica.value_or(~0u), "\n");
  for (const StoredFile& file : view.files)
    if (file.codec != StoredFile::Codec::content) more += file_identity(file.path);
  return digest_of(view, plan, more);
}

Result<ExecuteReport> write_together(ConvertOutput& output, const ConvertOptions& options, const OutputPlan& plan,
                                     const CheckpointView& view, const ShareCheck& before) {
  if (options.worker) return write_as_worker(output, options, plan, view, before);
  if (options.workers > 1) return write_forked(output, options, plan.data_bytes);
  return write_alone(output, options, plan.data_bytes);
}

}  // namespace pawl::checkpoint
