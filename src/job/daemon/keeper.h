// The keeper: the small parent of a node's pawld and trainers, which outlives both.
//
// It owns what must survive pawld: the TCP listening socket (so peers see "refused" exactly when the node is dead), the
// Unix listening socket, and a descriptor of every memory segment, which each new pawld gets back. It maps none of them,
// so it dies in a millisecond or two; what it alone has, its lifelines (keeper_lifelines.h), ends then. It starts pawld
// again when that dies or falls silent, and starts and kills trainers when pawld asks. It knows nothing of the job: the
// words it understands are the table in docs/protocol.md ("Keeper <-> pawld"). Always: every child dies with it
// (parent-death signal); one that did not run for longer than the silence deadline kills its trainers and pawld, drops
// all segments and begins a new incarnation, as others have gone on without it. Not here: namespaces
// (cli/job/namespaces.h), which node lives or dies (job/recovery). One thread decides: poll(2) over pidfds, the channel
// and signals. Others carry the trainers' output, hold the lifelines, and close what pawld has dropped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "env/network.h"

namespace pawl::job {

struct KeeperOptions {
  NodeId node;
  std::string job;
  std::string control;  // handed on to pawld
  std::string run_dir;  // the job's directory: <run root>/<job>; ours is node-<id> in it
  Address listen;       // port 0: any free one
  std::uint32_t seats_per_node = 1;
  std::string domain;                                 // handed on to pawld, which registers it
  Duration silence = std::chrono::seconds(1);         // of our own: the others have gone on without us
  Duration daemon_silence = std::chrono::seconds(1);  // of pawld: it is started anew
  Duration lease = std::chrono::seconds(2);           // of the node's registration: where no pawld lives to renew it
  Duration trainer_grace = std::chrono::seconds(2);   // that trainers have to end themselves where the node ends
  Duration stop_grace{};                 // SIGTERM, SIGINT: the job's newest step may be written to storage
  std::vector<std::string> daemon_argv;  // what to start as pawld, before its flags: {"/proc/self/exe", "daemon"}
  std::vector<std::string> trainer_argv;
  std::string log_dir;    // empty: trainers write to the node's log
  std::uint32_t tee = 0;  // kTee...: which of the trainers' output goes to `tee_fd` as well
  int tee_fd = -1;        // non-blocking; whole lines; what doesn't fit is left out there (never in the log)
};

// Runs until pawld says `end CODE` (the answer is CODE), until SIGTERM or SIGINT (128 + signal), or until pawld can't
// be kept alive. Call from the main thread of a process that has no other. Blocks SIGTERM, SIGINT; ignores SIGPIPE.
// Fails: `invalid` (the address is taken or wrong, with the remedy), `full`, `io`; `unreachable` when pawld died
// five times in a row within a second of its start.
[[nodiscard]] Result<int> run_keeper(const KeeperOptions& options);

// The node's own directory, log and socket in the job's directory.
[[nodiscard]] std::string node_directory(const std::string& run_dir, NodeId node);
[[nodiscard]] std::string node_log_path(const std::string& run_dir, NodeId node);
[[nodiscard]] std::string node_socket_path(const std::string& run_dir, NodeId node);

// `base` with `additions` put over it by name, in the order of `additions`.
[[nodiscard]] std::vector<std::string> merge_environment(std::vector<std::string> base,
                                                         const std::vector<std::string>& additions);

}  // namespace pawl::job
