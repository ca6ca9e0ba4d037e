// The launcher: `pawl run` once everything is decided. Starts the control (if it is ours) and one keeper a node,
// starts again what dies, speaks to people, and ends with the job.
//
// It takes no part in the job: it writes nothing to the control after the spec, tells nobody of a death, and holds no
// byte of state. What it started dies with it (parent-death signal). Main thread only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "env/process.h"
#include "job/control/control.h"
#include "job/membership/job_state.h"

namespace pawl::job {

struct NodePlan {
  NodeId node;
  std::string listen;       // host:port
  int netns_fd = -1;        // -1: no namespaces
  std::string link;         // in the fabric
  std::string domain = {};  // its failure domain; empty: it is one of its own
};

struct LaunchPlan {
  JobSpec spec;
  std::string directory;      // the job's
  std::string endpoints;      // of the control, for the nodes
  std::string own_endpoints;  // and for us
  std::string token;
  std::vector<std::string> control_argv;  // empty: the control is not ours
  std::vector<NodePlan> nodes;
  bool namespaces = false;
  std::string hosts_file;
  bool may_join = false;  // the spec may be there already, and must be equal
  bool restart_dead_nodes = false;
  bool keep = false;
  std::vector<std::string> trainer_argv;
  std::uint64_t grace_ms = 0;  // for the last checkpoint, after the first signal; 0: none is written
  std::string log_dir;
  std::uint32_t tee = 0;
  std::string daemon_command;
};

// Until the job has ended. The answer is the exit code; everything has been said.
[[nodiscard]] int launch(const LaunchPlan& plan);

// Writes the spec, or finds an equal one. Fails: `invalid`, naming the field that differs, or a job or node of that
// name that is there already; `unreachable`, with the remedy.
[[nodiscard]] Status admit(Control& control, const LaunchPlan& plan);

// How `ours` differs from `theirs`, for people; empty: not at all. Pure.
[[nodiscard]] std::string spec_difference(const JobSpec& ours, const JobSpec& theirs);

}  // namespace pawl::job
