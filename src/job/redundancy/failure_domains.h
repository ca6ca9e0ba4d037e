// Failure domains: which nodes die together, as an operator or a scheduler says it. A node of which nothing is said is a
// domain of its own, and so is the host itself within any: copies never share a node.
//
// A file names them for nodes by number (`pawl run --domains FILE`), one line each, in any order:
//
//   # rows of the machine room
//   0-3,8   rack1
//   4-7     rack2
//
// Or each node names its own: PAWL_DOMAIN in its environment, or the switch in Slurm's SLURM_TOPOLOGY_ADDR, which is there where
// the cluster has a topology ("s0.s4.node12": what its pattern has before the node). Pure. Who reads files and environment: cli/job.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace pawl::job {

inline constexpr std::size_t kDomainBytesMax = 64;

// A name is 1 to 64 of the characters A-Z a-z 0-9 . _ / : -. Fails: `invalid`.
[[nodiscard]] Status check_domain(std::string_view name);

using DomainTable = std::map<NodeId, std::string>;
// Fails: `invalid`, naming the line: a node twice, a name that is none, a range that runs backwards, more than 2^18 nodes.
[[nodiscard]] Result<DomainTable> parse_domains(std::string_view file);
// Of the same assignment, however it is written: what all nodes of a job must have alike.
[[nodiscard]] std::uint64_t digest_of(const DomainTable& table);

// The switches above the node. `pattern`: SLURM_TOPOLOGY_ADDR_PATTERN ("switch.switch.node").
// Fails: `invalid` where there is none above it: the cluster has no topology, or none of switches or blocks.
[[nodiscard]] Result<std::string> domain_in_slurm(std::string_view address, std::string_view pattern);

// Equal numbers for equal names, in the order in which they appear; each empty name is a domain of its own.
[[nodiscard]] std::vector<std::uint32_t> numbers_of_domains(std::span<const std::string> names);

}  // namespace pawl::job
