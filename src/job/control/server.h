// ControlServer: the one-node control server that pawl brings along; it speaks the etcd v3 protocol (proto/rpc.proto).
//
// What it answered is on disk, and comes back after a restart with the same revisions, cluster and member ids; leases
// come back with their full time, and watches resume from where they were. One server per data directory, held by a
// lock that ends with the process. Runs on gRPC's threads and one of its own; any number of watches.
// A cluster uses real etcd; this one serves one machine, or a small job that can wait for its restart.
// Not kept from etcd: users and roles (one shared token instead), members, alarms, periodic watch progress.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/control/server_commit.h"

namespace pawl::job {

struct ControlServerOptions {
  // "host:port" (port 0: any free one) or "unix:/path". At least one.
  std::vector<std::string> addresses = {"127.0.0.1:0"};
  std::string data_directory;  // made if absent
  std::string token;           // every call must carry it; empty: everybody is served
  bool fsync = true;           // false only where losing acknowledged writes with the machine's power is no loss
  std::uint64_t log_bytes_max = 64ull << 20;
  KeyValuesOptions key_values;
  Files* files = nullptr;  // borrowed; null: the real ones
};

class ControlServer {
 public:
  // Serves when it returns. Fails: `invalid` (an address or directory that is wrong or in use, with the remedy),
  // `corrupt` (the log: nothing is changed), `full`, `io`.
  static Result<std::unique_ptr<ControlServer>> start(ControlServerOptions options);
  ~ControlServer();  // ends all streams and waits for calls under way
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // As asked, with the real ports: what clients connect to.
  [[nodiscard]] const std::vector<std::string>& addresses() const { return addresses_; }
  // Readable once the log failed: then every call is refused, and the server is to be ended and started anew.
  [[nodiscard]] int failed_fd() const { return failed_fd_; }
  [[nodiscard]] Status failure() const;

 private:
  struct Parts;
  ControlServer();
  std::unique_ptr<Parts> parts_;
  std::vector<std::string> addresses_;
  int failed_fd_ = -1;
};

// Serves until `stop_fd` is readable (or closed by the other side), then stops cleanly. `ready` is called once, with
// the addresses. Fails: as start(); or with the log's failure.
Status run_control_server(const ControlServerOptions& options, int stop_fd,
                          const std::function<void(const std::vector<std::string>&)>& ready = nullptr);

}  // namespace pawl::job
