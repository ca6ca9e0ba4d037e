// NodeReport: what one node reports in a recovery, as others carry it to the control: a text with its own checksum.
//
//   report 1 inventory 12.1700000000000000012 generation 3
//   ...the lines of the record: an Inventory (inventory.h), or what the node's ready key would have
//   sum 1a2b3c4d
//
// `sum` is the CRC32C of all before its line. A node that puts its report itself puts the record alone. Several reports in
// one key follow each other; one that is damaged costs no other. docs/protocol.md has the grammar. Pure. Parsing refuses
// what it does not know (Code::corrupt); it never aborts. Sums find accidents, not attackers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "job/membership/inventory.h"
#include "job/membership/job_state.h"

namespace pawl::job {

enum class ReportKind : std::uint8_t { inventory, ready };
inline constexpr ReportKind kReportKinds[] = {ReportKind::inventory, ReportKind::ready};
[[nodiscard]] const char* name_of(ReportKind kind);
// In which phase of a recovery such a report is waited for.
[[nodiscard]] JobPhase phase_of(ReportKind kind);

struct NodeReport {
  ReportKind kind = ReportKind::inventory;
  NodeLife life;
  Generation generation;
  std::string record;                       // as the node's own key has it
  std::optional<Inventory> inventory = {};  // what it says, if it is one that was parsed
  bool operator==(const NodeReport&) const = default;
};
inline constexpr std::uint32_t kNodeReportVersion = 1;

// The record of a ready key.
[[nodiscard]] std::string ready_record(NodeLife life);
// Which life it names; 0: none.
[[nodiscard]] Incarnation incarnation_in_ready(std::string_view record);

[[nodiscard]] std::string to_text(const NodeReport& report);
// Also refused: a record that names another life or generation than the report does.
[[nodiscard]] Result<NodeReport> parse_node_report(std::string_view text);

// Each report of a key's value. What is between them belongs to the one before it.
[[nodiscard]] std::string join_reports(const std::vector<std::string>& reports);
[[nodiscard]] std::vector<std::string_view> split_reports(std::string_view joined);

// The node's own key for such a record.
[[nodiscard]] std::string key_of(const JobKeys& keys, ReportKind kind, Generation generation, NodeId node);
// The key of reports that `collector` has collected: `serial` is another for each.
[[nodiscard]] std::string collected_key(const JobKeys& keys, Generation generation, std::uint32_t group,
                                        NodeId collector, std::uint64_t serial);
// The group that such a key names; nullopt: it is another key.
[[nodiscard]] std::optional<std::uint32_t> group_in_collected_key(const JobKeys& keys, Generation generation,
                                                                  std::string_view key);

}  // namespace pawl::job
