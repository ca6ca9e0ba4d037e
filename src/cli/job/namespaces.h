// Namespaces: one machine plays many. Each node gets a network, an IPC, a mount and a host name of its own.
//
// The launcher lives in the fabric, a network namespace with a bridge (10.77.0.1/16); node i is 10.77.0.(10+i) behind
// a cable (veth) of its own. All are anonymous: the kernel removes them with the last process or descriptor. The
// launcher holds a descriptor of each node's, so a dead node's address still answers, with a refusal, as a machine's
// whose process died does. Needs CAP_SYS_ADMIN and `ip` (iproute2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "env/fd.h"

namespace pawl::job {

struct Fabric {
  std::vector<Fd> nodes;           // network namespaces, by node
  std::vector<std::string> links;  // the fabric's end of each node's cable
};

inline constexpr const char* kFabricAddress = "10.77.0.1";
inline constexpr std::uint32_t kFabricNodesMax = 200;
[[nodiscard]] std::string fabric_node_address(std::uint32_t node);
// What /etc/hosts holds in the nodes.
[[nodiscard]] std::string fabric_hosts(std::uint32_t node_count);

// Moves this process, which must have one thread, into a new fabric with `node_count` cables. On failure it stays
// where it was. Fails: `io` without the right to it, `not_found` without `ip`; the sentence says what to do.
[[nodiscard]] Result<Fabric> make_fabric(std::uint32_t node_count);

struct NodeNamespaces {
  int network_fd = -1;
  std::string host_name;
  std::string hosts_file;  // shown as /etc/hosts; empty: the machine's
};
// For the keeper, before anything else: enters the node's network, and gets an IPC, a mount (with a private /dev/shm)
// and a host name of its own.
[[nodiscard]] Status enter_node_namespaces(const NodeNamespaces& namespaces);

// Whether make_fabric could work here; tried in a child, for `pawl doctor`.
[[nodiscard]] Status probe_namespaces();

// Takes a node's cable out (or puts it back) in the fabric at `netns_path`; this process stays where it is.
[[nodiscard]] Status set_link(const std::string& netns_path, const std::string& link, bool up);

}  // namespace pawl::job
