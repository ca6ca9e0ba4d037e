#include "job/redundancy/failure_domains.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/digest.h"
#include "base/text.h"

namespace pawl::job {
namespace {

constexpr std::uint32_t kNodesMax = std::uint32_t{1} << 18;
constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view words) {
  const std::size_t first = words.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return words.substr(first, words.find_last_not_of(kBlanks) - first + 1);
}

// Until `end`, or to the end; `rest` goes on behind it.
std::string_view next_part(std::string_view& rest, char end) {
  const std::size_t at = rest.find(end);
  const std::string_view part = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return part;
}

// A comment begins with its line, or behind a blank: "rack#1" is no name, and is refused instead of read as "rack".
std::string_view without_comment(std::string_view line) {
  for (std::size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1))
    if (at == 0 || kBlanks.find(line[at - 1]) != std::string_view::npos) return line.substr(0, at);
  return line;
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("._/:-").find(c) != std::string_view::npos;
}

struct NodeRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};

Result<NodeRange> parse_range(std::string_view words) {
  NodeRange range;
  const std::size_t dash = words.find('-');
  const bool good = parse_number(words.substr(0, dash), range.first) &&
                    (dash == std::string_view::npos || parse_number(words.substr(dash + 1), range.last));
  if (!good) return Error{Code::invalid, text('"', words, "\": expected a node's number, or FIRST-LAST")};
  if (dash == std::string_view::npos) range.last = range.first;
  if (range.last < range.first) return Error{Code::invalid, text('"', words, "\": the greater number comes second")};
  if (range.last >= kNodesMax)
    return Error{Code::invalid, text('"', words, "\": nodes are numbered below ", kNodesMax)};
  return range;
}

Status add_line(DomainTable& table, std::string_view line) {
  const std::size_t blank = line.find_first_of(kBlanks);
  if (blank == std::string_view::npos)
    return Error{Code::invalid, text('"', line, "\": expected nodes, a blank, and the name of their failure domain")};
  const std::string_view name = trimmed(line.substr(blank));
  PAWL_TRY(check_domain(name));
  for (std::string_view rest = line.substr(0, blank); !rest.empty();) {
    PAWL_ASSIGN(const NodeRange range, parse_range(next_part(rest, ',')));
    for (std::uint32_t node = range.first; node <= range.last; ++node) {
      const auto [known, is_new] = table.try_emplace(NodeId(node), name);
      if (!is_new) return Error{Code::invalid, text("node ", node, " is in ", name, ", and above in ", known->second)};
    }
  }
  return {};
}

}  // namespace

Status check_domain(std::string_view name) {
  if (!name.empty() && name.size() <= kDomainBytesMax && std::ranges::all_of(name, is_name_character)) return {};
  return Error{Code::invalid, text("failure domain \"", name.substr(0, kDomainBytesMax), "\": expected 1 to ",
                                   kDomainBytesMax, " letters, digits and . _ / : -")};
}

Result<DomainTable> parse_domains(std::string_view file) {
  DomainTable table;
  std::uint32_t number = 0;
  for (std::string_view rest = file; !rest.empty();) {
    std::string_view line = next_part(rest, '\n');
    ++number;
    line = trimmed(without_comment(line));
    if (line.empty()) continue;
    if (Status added = add_line(table, line); !added) return std::move(added).error().within(text("line ", number));
  }
  if (table.empty()) return Error{Code::invalid, "it names no node"};
  return table;
}

std::uint64_t digest_of(const DomainTable& table) {
  std::string lines;  // that one would write for each node
  for (const auto& [node, name] : table) lines += text(node, ' ', name, '\n');
  return pawl::digest_of(lines);
}

Result<std::string> domain_in_slurm(std::string_view address, std::string_view pattern) {
  const auto refused = [address, pattern](std::string_view why) {
    return Error{Code::invalid, text("SLURM_TOPOLOGY_ADDR=", address, " (pattern ", pattern, ") ", why,
                                     "; name the domains in a file")};
  };
  std::size_t end = 0;  // of the labels above the node, whose own name may have dots
  std::string_view rest = pattern;
  for (std::string_view label = next_part(rest, '.'); label == "switch" || label == "block";
       label = next_part(rest, '.')) {
    end = address.find('.', end == 0 ? 0 : end + 1);
    if (end == std::string_view::npos) return refused("has fewer parts than its pattern");
  }
  if (!pattern.ends_with(".node") || !rest.empty()) return refused("is of a topology that pawl does not know");
  if (end == 0) return refused("names no switch: the cluster has no topology");
  std::string name(address.substr(0, end));
  PAWL_TRY(check_domain(name));
  return name;
}

std::vector<std::uint32_t> numbers_of_domains(std::span<const std::string> names) {
  std::vector<std::uint32_t> numbers;
  std::unordered_map<std::string_view, std::uint32_t> known;
  std::uint32_t next = 0;
  for (const std::string& name : names) {
    if (name.empty()) {
      numbers.push_back(next++);
      continue;
    }
    const auto [found, is_new] = known.try_emplace(name, next);
    if (is_new) ++next;
    numbers.push_back(found->second);
  }
  return numbers;
}

}  // namespace pawl::job
