#include "cli/job/run_directory.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/json_access.h"
#include "base/text.h"
#include "cli/job/sign_of_life.h"
#include "cli/job/trainer_command.h"
#include "env/files.h"
#include "env/process.h"
#include "env/random.h"
#include "job/daemon/keeper.h"

namespace pawl::job {

Machine this_machine() {
  std::string host(256, '\0');
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  const std::string id = read_file("/etc/machine-id", 256).value_or("");
  return {host.c_str(), id.substr(0, id.find('\n'))};
}

std::string to_json(const LauncherRecord& record) {
  json nodes = json::array();
  for (const LauncherNode& node : record.nodes)
    nodes.push_back({{"node", node.node.value},
                     {"keeper_pid", node.keeper_pid},
                     {"address", node.address},
                     {"netns", node.netns},
                     {"link", node.link}});
  const json all = {{"pid", record.pid},           {"start_time", record.start_time},   {"job", record.job},
                    {"control", record.control},   {"control_pid", record.control_pid}, {"netns", record.netns},
                    {"host", record.machine.host}, {"machine", record.machine.id},      {"nodes", nodes}};
  return all.dump(1) + "\n";
}

Result<LauncherRecord> parse_launcher_record(const std::string& content) {
  const json all = json::parse(content, nullptr, false);
  if (!all.is_object() || number_in(all, "pid") == 0) return Error{Code::corrupt, "launcher.json: cannot be parsed"};
  LauncherRecord record{number_in(all, "pid"),
                        number_in(all, "start_time"),
                        string_in(all, "job"),
                        string_in(all, "control"),
                        number_in(all, "control_pid"),
                        string_in(all, "netns"),
                        {},
                        {string_in(all, "host"), string_in(all, "machine")}};
  for (const json& node : array_in(all, "nodes"))
    record.nodes.push_back({NodeId(static_cast<std::uint32_t>(number_in(node, "node"))), number_in(node, "keeper_pid"),
                            string_in(node, "address"), string_in(node, "netns"), string_in(node, "link")});
  return record;
}

bool is_running(const LauncherRecord& record) {
  return is_alive(static_cast<pid_t>(record.pid), record.start_time);
}

std::string run_root() {
  const char* root = std::getenv("PAWL_RUN_DIR");
  return root != nullptr && *root != '\0' ? root : text("/tmp/pawl-", ::getuid());
}

std::string job_directory(const std::string& job) {
  return join_path(run_root(), job);
}

namespace {

Result<LauncherRecord> read_record_in(const std::string& directory) {
  PAWL_ASSIGN(const std::string content, read_file(join_path(directory, "launcher.json"), 1 << 20));
  return parse_launcher_record(content);
}

}  // namespace

Result<LauncherRecord> read_launcher_record(const std::string& job) {
  return read_record_in(job_directory(job));
}

namespace {

constexpr std::uint32_t kNodesExpectedMax = 99'999;  // a node's number is part of its socket's path

// The longest path of a socket in the directory is that of a node's pawld (job/daemon/keeper.h).
Status check_socket_paths(const std::string& directory) {
  constexpr std::size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;
  const std::size_t longest = node_socket_path(directory, NodeId(kNodesExpectedMax)).size();
  if (longest <= kSocketPathMax) return {};
  return Error{Code::invalid, text("run directory ", directory, ": the sockets in it would have paths of up to ",
                                   longest, " bytes, and Linux allows ", kSocketPathMax,
                                   ": set PAWL_RUN_DIR to a folder whose path is at least ", longest - kSocketPathMax,
                                   " bytes shorter, or choose a shorter --job")};
}

Error of_another_machine(const LauncherRecord& record, const std::string& directory, Duration silence) {
  using std::chrono::seconds;
  const std::string there = record.machine.host;
  return {Code::invalid,
          text("run directory ", directory, ": belongs to a `pawl run` on ",
               there == this_machine().host ? text("another machine named ", there) : there, " (launcher ", record.pid,
               ") that gave a sign of life ", std::max<std::int64_t>(silence / seconds(1), 0),
               " s ago, and machines can't share a run directory: set PAWL_RUN_DIR to a folder that is local "
               "to each machine, and use --log-dir for logs in a shared one. If that `pawl run` was killed, or its "
               "machine is "
               "gone, start again in ",
               (kSilenceMax - silence) / seconds(1) + 1, " s")};
}

// `directory`: where that of the job lies at the moment.
Status check_has_ended(const std::string& job, const std::string& directory) {
  const Result<LauncherRecord> record = read_record_in(directory);
  if (!record) return {};
  if (!record->machine.host.empty() && record->machine != this_machine()) {
    PAWL_ASSIGN(const Duration silence, since_sign_of_life(directory, run_root()));
    return silence > kSilenceMax ? Status() : of_another_machine(*record, job_directory(job), silence);
  }
  if (!is_running(*record)) return {};
  return Error{Code::invalid, text("job ", job, " already runs from ", run_root(), " (launcher ", record->pid,
                                   "): choose another --job, or another PAWL_RUN_DIR")};
}

// Moves what is there out of the way first, and looks again: another may have been faster since it was looked at.
Status remove_ended(const std::string& job) {
  const std::string directory = job_directory(job);
  const std::string aside = join_path(run_root(), text(".old-", random_hex(8)));
  if (std::rename(directory.c_str(), aside.c_str()) != 0)
    return errno == ENOENT ? Status() : system_error(text("run directory ", directory), errno);
  if (Status ended = check_has_ended(job, aside); !ended) {
    (void)std::rename(aside.c_str(), directory.c_str());  // the error that counts is the first
    return ended;
  }
  return remove_tree(run_root(), aside);
}

Status write_first_record(const std::string& job, const std::string& directory) {
  const auto own = static_cast<std::uint64_t>(::getpid());
  LauncherRecord record{own, process_start_time(::getpid()).value_or(0), job, "", 0, "", {}, this_machine()};
  return write_file_atomically(join_path(directory, "launcher.json"), to_json(record));
}

// A folder with something in it is never replaced by a rename: of several only one gets the name.
Status give_name(const std::string& fresh, const std::string& directory) {
  if (std::rename(fresh.c_str(), directory.c_str()) == 0) return {};
  if (errno != EEXIST && errno != ENOTEMPTY) return system_error(text("run directory ", directory), errno);
  return Error{Code::invalid, text("run directory ", directory,
                                   ": another `pawl run` has made it in this moment: choose another "
                                   "--job, or set PAWL_RUN_DIR to a folder that is local to each machine")};
}

}  // namespace

Result<std::string> make_job_directory(const std::string& job) {
  PAWL_TRY(check_job_name(job));
  PAWL_TRY(make_private_directory(run_root()));
  const std::string directory = job_directory(job);
  PAWL_TRY(check_has_ended(job, directory));
  PAWL_TRY(check_socket_paths(directory));
  const std::string fresh = join_path(run_root(), text(".new-", random_hex(8)));
  PAWL_TRY(make_private_directory(fresh));
  const auto take = [&]() -> Status {
    PAWL_TRY(write_first_record(job, fresh));
    PAWL_TRY(remove_ended(job));
    return give_name(fresh, directory);
  };
  if (Status taken = take(); !taken) {
    (void)remove_tree(run_root(), fresh);  // likewise
    return std::move(taken).error();
  }
  return directory;
}

namespace {

// Jobs without a launcher, oldest first.
std::vector<std::string> ended_jobs() {
  std::vector<std::pair<std::int64_t, std::string>> ended;
  for (const std::string& name : real_files().list(run_root()).value_or({})) {
    struct stat found {};
    const std::string directory = job_directory(name);
    if (::stat(directory.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) continue;
    if (!path_exists(join_path(directory, "launcher.json"))) ended.emplace_back(found.st_mtime, directory);
  }
  std::sort(ended.begin(), ended.end());
  std::vector<std::string> directories;
  for (auto& [time, directory] : ended) directories.push_back(std::move(directory));
  return directories;
}

}  // namespace

void keep_logs_only(const std::string& directory) {
  const auto keep = [](const std::string& folder, const auto& kept) {
    for (const std::string& name : real_files().list(folder).value_or({}))
      if (!kept(name)) (void)remove_tree(run_root(), join_path(folder, name));
  };
  keep(directory, [](const std::string& name) {
    return name.starts_with("node-") || name == "control.log" || name == kEventsFile;
  });
  for (const std::string& name : real_files().list(directory).value_or({}))
    if (name.starts_with("node-"))
      keep(join_path(directory, name), [](const std::string& file) { return file == "log"; });
  const std::vector<std::string> ended = ended_jobs();
  for (std::size_t i = 0; i + kEndedJobsKept < ended.size(); ++i) (void)remove_tree(run_root(), ended[i]);
}

Result<std::string> read_token(const std::string& path) {
  PAWL_ASSIGN(std::string token, read_file(path, 4096));
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && (found.st_mode & 077) != 0)
    return Error{Code::invalid, text("token file ", path, ": other users can read it; run chmod 600 on it")};
  token = token.substr(0, token.find('\n'));
  std::erase_if(token, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
  if (token.empty()) return Error{Code::invalid, text("token file ", path, ": empty; write a secret into it")};
  return token;
}

std::string token_digest(const std::string& token) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : token) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  std::string hex;
  for (int shift = 60; shift >= 0; shift -= 4) hex += "0123456789abcdef"[(hash >> shift) & 15];
  return hex;
}

namespace {

// Of one that has begun: before that its launcher.json names no control.
std::optional<LauncherRecord> launcher_of(const std::string& job) {
  Result<LauncherRecord> record = read_launcher_record(job);
  if (!record || record->control.empty() || !is_running(*record)) return {};
  return std::move(record).value();
}

Result<std::string> only_running_job() {
  std::vector<std::string> running;
  for (const std::string& name : real_files().list(run_root()).value_or({}))
    if (launcher_of(name)) running.push_back(name);
  if (running.size() == 1) return running.front();
  if (running.empty())
    return Error{Code::not_found,
                 text("no job runs from ", run_root(), "; start one with `pawl run`, or pass --job and --control")};
  std::string names;
  for (const std::string& name : running) names += text(names.empty() ? "" : ", ", name);
  return Error{Code::not_found, text("several jobs run here: choose one with --job (", names, ")")};
}

}  // namespace

Result<JobAccess> find_job(const JobOptions& options) {
  JobAccess access;
  access.job = options.job;
  if (access.job.empty()) {
    PAWL_ASSIGN(access.job, only_running_job());
  }
  PAWL_TRY(check_job_name(access.job));
  access.launcher = launcher_of(access.job);
  const std::string local_socket = join_path(job_directory(access.job), "control.sock");
  access.endpoints = options.control;
  if (access.endpoints.empty()) {
    if (!access.launcher)
      return Error{Code::not_found,
                   text("job ", access.job, " does not run from ", run_root(), "; pass --control HOST:PORT")};
    access.endpoints = access.launcher->control_pid != 0 ? text("unix:", local_socket) : access.launcher->control;
  }
  const std::string own_token = join_path(job_directory(access.job), "token");
  const char* variable = std::getenv("PAWL_TOKEN_FILE");
  std::string token_file = options.token_file;
  if (token_file.empty() && variable != nullptr) token_file = variable;
  if (token_file.empty() && path_exists(own_token)) token_file = own_token;
  if (!token_file.empty()) {
    PAWL_ASSIGN(access.token, read_token(token_file));
  }
  PAWL_ASSIGN(access.control, connect_control(access.endpoints, {.token = access.token}));
  return access;
}

}  // namespace pawl::job
