// The subcommands about a running job: the options of each, and the call that runs it. One file each (run.cc, ...).
//
// Every call returns the process's exit code. Errors have then been printed on standard error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "cli/exit_codes.h"

namespace pawl::job {

enum class Namespaces : std::uint8_t { automatic, require, off };

struct UnusedFlag {  // torchrun's, without a meaning here
  std::string flag, value;
};

struct RunOptions {
  std::uint32_t node_count = 1;
  std::optional<std::uint32_t> node_count_max;  // --nnodes N:M
  std::uint32_t seats_per_node = 1;
  std::optional<std::uint32_t> node_rank;
  std::optional<std::uint32_t> spare_count;
  bool standalone = false;
  std::string control;
  std::string job;
  std::optional<std::uint32_t> replica_count;  // default: one, or none where a single node trains
  std::string redundancy;                      // a policy (job/redundancy/protection.h); empty: copies of that number
  std::string domains;                         // a file, "env" or "slurm"; empty: each node is a failure domain
  bool fewer_domains = false;                  // copies may share one if there are too few
  std::uint64_t memory_bytes = 0;              // of each node, for all its copies of state; 0: what it has
  std::uint64_t persist_bytes_a_second = 0;    // that each node writes to storage at most; 0: no limit
  std::uint64_t replica_bytes_a_second = 0;    // that each node sends to holders at most; 0: no limit
  std::string checkpoint;                      // a folder; empty: the job writes no checkpoints
  std::string resume;                          // a checkpoint's folder, or "auto"; empty: the job begins anew
  std::string every;                           // a number of steps, or a time; empty: 10m
  std::string grace;                           // a time; empty: 60s
  std::optional<std::uint64_t> keep_last;      // checkpoints; default: all
  std::optional<std::uint64_t> keep_every;     // steps; default: none beyond those
  std::uint64_t deadline_ms = 3000;
  std::uint64_t hang_ms = 20000;
  std::uint64_t start_timeout_s = 600;
  bool no_wait = false;
  std::string failure_signs;  // a file
  std::string health_check;   // a command
  bool test_hooks = false;
  bool gate_off = false;
  std::string token_file;
  std::string listen;
  Namespaces namespaces = Namespaces::automatic;
  std::optional<bool> restart_dead_nodes;  // default: only with --standalone
  bool keep = false;                       // the run directory, after a clean end
  std::string log_dir;
  std::optional<std::uint32_t> tee;  // default: what the trainer in seat 0 writes
  bool module = false;               // -m
  bool no_python = false;
  std::vector<UnusedFlag> without_effect;
  std::string daemon_command;  // test only
  std::vector<std::string> command;
};
int command_run(const RunOptions& options);

struct KeeperCommandOptions {
  std::uint32_t node = 0;
  std::string job, control, run_dir, listen, log_dir, daemon_command, domain;
  std::uint32_t seats_per_node = 1;
  std::uint64_t deadline_ms = 3000;
  std::uint64_t grace_ms = 0;
  std::uint32_t tee = 0;
  int tee_fd = -1;
  int netns_fd = -1;  // -1: stay in our namespaces
  std::string hosts_file;
  std::vector<std::string> command;
};
int command_keeper(const KeeperCommandOptions& options);

struct DaemonCommandOptions {
  std::uint32_t node = 0;
  std::uint64_t incarnation = 0;
  std::string job, control, address, lifeline, run_dir, domain;
  int keeper_fd = -1, listen_fd = -1, local_fd = -1, token_fd = -1, death_fd = -1;
  std::string held;  // NAME:FD,...
  std::uint32_t seats_per_node = 1;
};
int command_daemon(const DaemonCommandOptions& options);

struct ControlCommandOptions {
  std::string listen = "127.0.0.1:2379";
  std::string data_dir;
  std::string token_file;
};
int command_control(const ControlCommandOptions& options);

struct JobOptions {  // which job, and how the answer is written
  std::string job, control, token_file;
  bool json = false;
};
struct StatusOptions {
  JobOptions job;
  bool watch = false;
};
int command_status(const StatusOptions& options);

struct ExposureOptions {
  JobOptions job;
  std::vector<std::uint32_t> dead_nodes;  // --if; empty: each node in turn
};
int command_exposure(const ExposureOptions& options);

struct EventsOptions {
  JobOptions job;
  bool follow = false;
};
int command_events(const EventsOptions& options);

struct DrillOptions {
  JobOptions job;
  std::string action;  // kill stop continue cut heal
  std::string target;  // node trainer daemon control launcher
  std::string which;   // a node, "leader", or a seat
  std::optional<std::uint64_t> at_step;
  std::string phase;
  std::uint64_t timeout_ms = 60000;  // for --at-step and --phase
};
int command_drill(const DrillOptions& options);

struct NodeOptions {
  JobOptions job;
  std::string action;  // cordon uncordon drain
  std::uint32_t node = 0;
  std::uint64_t timeout_ms = 600000;  // of drain
  bool no_wait = false;
};
int command_node(const NodeOptions& options);

struct DoctorOptions {
  bool json = false;
  std::optional<std::string> python;  // --python: look only at this interpreter; empty: the one that runs scripts
};
int command_doctor(const DoctorOptions& options);

}  // namespace pawl::job
