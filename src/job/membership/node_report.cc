#include "job/membership/node_report.h"

#include <cstdio>
#include <span>
#include <utility>

#include "base/crc32c.h"
#include "base/json_access.h"

namespace pawl::job {
namespace {

constexpr std::string_view kBegin = "report ";
constexpr std::string_view kSum = "\nsum ";
constexpr std::size_t kSumDigits = 8;

std::string sum_of(std::string_view text) {
  char digits[kSumDigits + 1];
  (void)std::snprintf(digits, sizeof digits, "%08x", crc32c(std::as_bytes(std::span(text))));
  return digits;
}

Error corrupt(std::string_view what) {
  return {Code::corrupt, text("report: ", what)};
}

std::string_view take_word(std::string_view& rest) {
  const std::size_t at = rest.find(' ');
  const std::string_view word = rest.substr(0, at);
  rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + 1);
  return word;
}

bool read_life(std::string_view word, NodeLife& life) {
  const std::size_t dot = word.find('.');
  return dot != std::string_view::npos && parse_number(word.substr(0, dot), life.node.value) &&
         parse_number(word.substr(dot + 1), life.incarnation.value);
}

// Returns what is wrong with it; empty: nothing.
std::string_view read_head(std::string_view line, NodeReport& out) {
  if (take_word(line) != "report") return "is none";
  std::uint32_t version = 0;
  if (!parse_number(take_word(line), version) || version != kNodeReportVersion) return "of another version";
  const std::string_view kind = take_word(line);
  if (kind != name_of(ReportKind::inventory) && kind != name_of(ReportKind::ready)) return "of another kind";
  out.kind = kind == name_of(ReportKind::ready) ? ReportKind::ready : ReportKind::inventory;
  if (!read_life(take_word(line), out.life)) return "the node's life is not NODE.INCARNATION";
  if (take_word(line) != "generation" || !parse_number_up_to(kGenerationMax, take_word(line), out.generation.value, 10))
    return "the generation is missing or out of range";
  return line.empty() ? "" : "has words that this version does not know";
}

}  // namespace

const char* name_of(ReportKind kind) {
  return kind == ReportKind::ready ? "ready" : "inventory";
}

JobPhase phase_of(ReportKind kind) {
  return kind == ReportKind::ready ? JobPhase::restoring : JobPhase::quiescing;
}

std::string ready_record(NodeLife life) {
  return json{{"incarnation", life.incarnation.value}}.dump();
}

Incarnation incarnation_in_ready(std::string_view record) {
  return Incarnation(number_in(json::parse(record, nullptr, false), "incarnation"));
}

std::string to_text(const NodeReport& report) {
  std::string out = text(kBegin, kNodeReportVersion, ' ', name_of(report.kind), ' ', report.life.node, '.',
                         report.life.incarnation, " generation ", report.generation, '\n', report.record);
  return out += text(kSum, sum_of(out));
}

Result<NodeReport> parse_node_report(std::string_view whole) {
  const std::size_t sum = whole.rfind('\n');
  if (sum == std::string_view::npos || !whole.substr(sum).starts_with(kSum)) return corrupt("has no sum");
  if (whole.substr(sum + kSum.size()) != sum_of(whole.substr(0, sum))) return corrupt("its sum is another");
  whole = whole.substr(0, sum);
  const std::size_t head = whole.find('\n');
  if (head == std::string_view::npos) return corrupt("has no record");
  NodeReport report;
  if (const std::string_view wrong = read_head(whole.substr(0, head), report); !wrong.empty()) return corrupt(wrong);
  report.record = whole.substr(head + 1);
  if (report.kind == ReportKind::ready) {
    if (incarnation_in_ready(report.record) != report.life.incarnation) return corrupt("its record is of another life");
    return report;
  }
  PAWL_ASSIGN(Inventory inventory, parse_inventory(report.record));
  if (inventory.life != report.life || inventory.generation != report.generation)
    return corrupt("its record is of another life or generation");
  report.inventory = std::move(inventory);
  return report;
}

std::string join_reports(const std::vector<std::string>& reports) {
  std::string joined;
  for (const std::string& report : reports) joined += (joined.empty() ? "" : "\n") + report;
  return joined;
}

std::vector<std::string_view> split_reports(std::string_view joined) {
  std::vector<std::string_view> reports;
  const std::string between = text('\n', kBegin);
  while (!joined.empty()) {
    const std::size_t end = joined.find(between);
    reports.push_back(joined.substr(0, end));
    joined.remove_prefix(end == std::string_view::npos ? joined.size() : end + 1);
  }
  return reports;
}

std::string key_of(const JobKeys& keys, ReportKind kind, Generation generation, NodeId node) {
  return kind == ReportKind::ready ? keys.ready(generation, node) : keys.inventory(generation, node);
}

std::string collected_key(const JobKeys& keys, Generation generation, std::uint32_t group, NodeId collector,
                          std::uint64_t serial) {
  return text(keys.collected(generation), group, '/', collector, '.', serial);
}

std::optional<std::uint32_t> group_in_collected_key(const JobKeys& keys, Generation generation, std::string_view key) {
  const std::string prefix = keys.collected(generation);
  if (!key.starts_with(prefix)) return std::nullopt;
  key.remove_prefix(prefix.size());
  std::uint32_t group = 0;
  const std::size_t slash = key.find('/');
  if (slash == std::string_view::npos || !parse_number(key.substr(0, slash), group)) return std::nullopt;
  return group;
}

}  // namespace pawl::job
