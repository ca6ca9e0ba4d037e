// The run directory: where a job's processes on this machine find each other, and where commands find the job.
//
// $PAWL_RUN_DIR (default /tmp/pawl-<uid>), then /<job>/; all 0700. launcher.json says who runs what; a job is alive
// here as long as its launcher's process is. docs/protocol.md lists the files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cli/job/commands.h"
#include "job/control/control.h"

namespace pawl::job {

struct LauncherNode {
  NodeId node;
  std::uint64_t keeper_pid = 0;
  std::string address;  // as asked: port 0 is chosen by the keeper
  std::string netns;    // path of the node's network namespace; empty: the launcher's
  std::string link;     // the fabric's end of its cable; empty: none
};
struct Machine {  // names alone may be alike ("localhost")
  std::string host;
  std::string id;  // of /etc/machine-id; empty: there is none
  bool operator==(const Machine&) const = default;
};
[[nodiscard]] Machine this_machine();

struct LauncherRecord {
  std::uint64_t pid = 0;
  std::uint64_t start_time = 0;
  std::string job;
  std::string control;
  std::uint64_t control_pid = 0;  // 0: not ours
  std::string netns;              // the fabric's; empty: the machine's
  std::vector<LauncherNode> nodes;
  Machine machine = {};  // where the launcher runs: its pid means nothing elsewhere
};
[[nodiscard]] std::string to_json(const LauncherRecord& record);
[[nodiscard]] Result<LauncherRecord> parse_launcher_record(const std::string& json);
[[nodiscard]] bool is_running(const LauncherRecord& record);

[[nodiscard]] std::string run_root();
[[nodiscard]] std::string job_directory(const std::string& job);
[[nodiscard]] Result<LauncherRecord> read_launcher_record(const std::string& job);  // `not_found`

// A fresh directory for `job`, with the remains of an ended one of that name removed. From its first moment it holds a launcher.json
// that names this process, so nobody takes it for the remains of another; it has no control until the launcher writes it anew.
// Fails: `invalid` if a job of this name runs from here, the directory is that of another machine's launcher (on a
// file system that both share) which gave a sign of life in the last kSilenceMax (sign_of_life.h), or is being made by
// another, a directory is not ours alone, or its path is too long for sockets.
[[nodiscard]] Result<std::string> make_job_directory(const std::string& job);

// In a job's directory: what happened, one JSON object a line, once a job with a control of its own has ended.
inline constexpr const char* kEventsFile = "events.jsonl";

// After a job has ended well: leaves its logs and events, and nothing else, in its directory; and of ended jobs the newest
// kEndedJobsKept alone. Best effort: what can't be removed stays.
inline constexpr std::size_t kEndedJobsKept = 20;
void keep_logs_only(const std::string& directory);

// First line of the file, without blanks. Fails: `not_found`, `invalid` (empty, or others may read it).
[[nodiscard]] Result<std::string> read_token(const std::string& path);
// A fingerprint by which two tokens are told apart; far too short to give the token away.
[[nodiscard]] std::string token_digest(const std::string& token);

// How a command reaches a job: named, or the only one that runs from here.
struct JobAccess {
  std::string job;
  std::string endpoints;
  std::string token;
  std::optional<LauncherRecord> launcher;  // if it runs from here
  std::unique_ptr<Control> control;
};
// Fails: `not_found` (no job runs here; several do: name one), `invalid`.
[[nodiscard]] Result<JobAccess> find_job(const JobOptions& options);

}  // namespace pawl::job
