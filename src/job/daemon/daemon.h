// pawld: the snapshot management process, one a node. `pawl daemon` calls run_daemon; the keeper starts it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "job/daemon/replication.h"
#include "job/membership/job_state.h"
#include "job/recovery/node_followers.h"
#include "job/recovery/report_groups.h"

namespace pawl::job {

struct DaemonOptions {
  std::uint32_t node = 0;
  std::uint64_t incarnation = 0;
  std::string job;
  std::string control;   // endpoints
  std::string address;   // host:port of the listening socket, as others reach it
  std::string lifeline;  // host:port of the keeper's own, for lifelines; empty: it has none
  std::string domain;    // the node's failure domain; empty: it is one of its own
  std::string run_dir;   // of the job: <run_dir>/node-<id>/pawld.sock. Empty: a job without a token
  std::uint32_t seats_per_node = 1;
  StateLimits state_limits;                            // of write_state; a simulation's jobs are small
  std::uint32_t report_group_size = kReportGroupSize;  // positions whose reports one node collects; likewise
  FollowLimits follow_limits{};                        // how many follow who is registered; likewise
  StreamSizes stream_sizes;                            // likewise
  // Of a simulation: another world for the next recovery, as QuiescingView has it. Nothing else asks for one yet.
  std::function<std::optional<std::vector<Seat>>()> wished_world;
  int keeper_fd = 3;
  int listen_fd = 4;
  int local_fd = 5;
  int token_fd = -1;                              // from which the job's token is read; -1: from <run_dir>/token
  int death_fd = -1;                              // the page of PawldDeath; -1: the keeper has none for us
  std::vector<std::pair<std::string, int>> held;  // segments that the keeper gives back
};

// Serves until the job ends or the keeper dies. Returns the exit code.
int run_daemon(const DaemonOptions& options);

}  // namespace pawl::job
