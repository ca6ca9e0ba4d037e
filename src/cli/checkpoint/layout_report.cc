#include "cli/checkpoint/layout_report.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "cli/checkpoint/progress.h"
#include "cli/checkpoint/text.h"
#include "cli/output.h"
#include "tensor/enumerate.h"
#include "tensor/short_layout.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint32_t kRanksMax = 1 << 14;

ModelRules rules_of(Family family) {
  switch (family) {
    case Family::gpt:
    case Family::gpt_neox:
      return ModelRules::gpt;
    case Family::llama:
      return ModelRules::llama;
    case Family::mixtral:
      return ModelRules::mixtral;
  }
  return ModelRules::gpt;
}

Result<Family> family_for(const CheckpointView& view, std::optional<Family> given) {
  if (!given) given = family_of_huggingface(view);
  if (!given) given = family_of_megatron(view);
  if (!given)
    return Error{Code::invalid,
                 "layout: the model family is not known from the tensors' names: pass it with --family (gpt, llama, "
                 "mixtral or gpt_neox)"};
  return *given;
}

std::vector<NamedTensor> named_tensors(const CheckpointView& view) {
  std::vector<NamedTensor> tensors;
  for (const StoredTensor& tensor : view.tensors)
    tensors.push_back({tensor.name, tensor.role, tensor.type, tensor.shape});
  return tensors;
}

// A buffer is a tensor's or a flat group's, whose members have one role.
const std::string& role_of(const JobLayout& layout, const Buffer& buffer) {
  const auto tensor_count = static_cast<std::uint32_t>(layout.tensors.size());
  if (buffer.number < tensor_count) return layout.tensors[buffer.number].role;
  return layout.tensors[layout.groups[buffer.number - tensor_count].members.front().tensor].role;
}

// Packed types are rounded up to whole bytes.
std::uint64_t buffer_bytes(const Buffer& buffer) {
  const std::uint64_t bits = size_bits(buffer.dtype);
  return bits % 8 == 0 ? buffer.size * (bits / 8) : (buffer.size * bits + 7) / 8;
}

std::uint64_t sum(const std::vector<std::uint64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
}

std::string mesh_text(const Mesh& mesh) {
  std::string out;
  for (const Mesh::Axis& axis : mesh.axes)
    if (axis.size > 1) out += text(out.empty() ? "" : " x ", axis.name, " ", axis.size);
  return out.empty() ? "one rank" : out;
}

std::string ranks_text(const LayoutReport& report, std::size_t shown) {
  std::vector<std::vector<std::string>> rows = {{"RANK"}};
  const std::vector<Mesh::Axis>& axes = report.meshes[0].axes;
  for (const Mesh::Axis& axis : axes)
    if (axis.size > 1) rows[0].push_back(axis.name);
  for (const std::string& role : report.roles) rows[0].push_back(printable(role));
  rows[0].emplace_back("ALL");
  for (std::size_t i = 0; i < shown; ++i) {
    const LayoutReport::RankBytes& rank = report.ranks[i];
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(text(i));
    for (std::size_t a = 0; a < axes.size(); ++a)
      if (axes[a].size > 1) row.push_back(text(rank.coordinates[a]));
    for (const std::uint64_t bytes : rank.bytes) row.push_back(bytes_text(bytes));
    row.push_back(bytes_text(sum(rank.bytes)));
  }
  return table(rows);
}

}  // namespace

Result<LayoutReport> report_layout(const CheckpointView& view, const std::string& words, std::optional<Family> family) {
  if (view.tensors.empty()) return Error{Code::not_found, "layout: the checkpoint has no tensors"};
  LayoutReport report;
  report.layout = words;
  PAWL_ASSIGN(report.family, family_for(view, family));
  PAWL_ASSIGN(const JobLayout layout,
              parse_short_layout(words, rules_of(report.family), named_tensors(view), &report.left_out));
  if (layout.world > kRanksMax)
    return Error{Code::invalid, text("layout: ", layout.world, " ranks; this command counts at most ", kRanksMax)};
  report.meshes = layout.meshes;
  for (const RoleTotal& total : totals_of(view)) report.roles.push_back(total.role);
  const Enumeration enumeration(layout);
  for (std::uint32_t r = 0; r < layout.world; ++r) {
    LayoutReport::RankBytes& rank = report.ranks.emplace_back();
    rank.coordinates = coordinates_of(layout.meshes[0], r);
    rank.bytes.resize(report.roles.size());
    for (const Buffer& buffer : enumeration.buffers_of(r)) {
      const auto role = std::ranges::find(report.roles, role_of(layout, buffer));
      rank.bytes[static_cast<std::size_t>(role - report.roles.begin())] += buffer_bytes(buffer);
    }
  }
  return report;
}

std::string layout_text(const LayoutReport& report, std::optional<std::size_t> shown_max) {
  std::uint64_t least = ~std::uint64_t{0}, most = 0, all = 0;
  for (const LayoutReport::RankBytes& rank : report.ranks) {
    const std::uint64_t bytes = sum(rank.bytes);
    least = std::min(least, bytes);
    most = std::max(most, bytes);
    all += bytes;
  }
  std::vector<std::vector<std::string>> head = {{"layout", report.layout.empty() ? "one rank" : report.layout},
                                                {"family", std::string(name_of(report.family))}};
  for (const Mesh& mesh : report.meshes) head.push_back({text("mesh ", mesh.name), mesh_text(mesh)});
  head.push_back({"ranks", text(report.ranks.size())});
  head.push_back({"bytes of a rank", text(bytes_text(least), " to ", bytes_text(most))});
  head.push_back({"bytes of all ranks", bytes_text(all)});
  const std::size_t shown = std::min(report.ranks.size(), shown_max.value_or(report.ranks.size()));
  std::string out = table(head) + "\n" + ranks_text(report, shown);
  if (shown < report.ranks.size()) out += text("... and ", report.ranks.size() - shown, " ranks more (--all)\n");
  if (!report.left_out.empty()) out += "\n";
  const std::size_t named = std::min(report.left_out.size(), shown_max.value_or(report.left_out.size()));
  for (std::size_t i = 0; i < named; ++i) out += text("LEFT OUT: ", printable(report.left_out[i]), "\n");
  if (named < report.left_out.size()) out += text("... and ", report.left_out.size() - named, " more (--all)\n");
  return out;
}

json layout_json(const LayoutReport& report) {
  json document = {{"layout", report.layout}, {"family", name_of(report.family)}, {"world", report.ranks.size()},
                   {"meshes", json::array()}, {"ranks", json::array()},           {"left_out", report.left_out}};
  for (const Mesh& mesh : report.meshes) {
    json axes = json::array();
    for (const Mesh::Axis& axis : mesh.axes) axes.push_back({{"name", axis.name}, {"size", axis.size}});
    document["meshes"].push_back({{"name", mesh.name}, {"axes", axes}});
  }
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const LayoutReport::RankBytes& rank = report.ranks[i];
    json one = {{"rank", i}, {"bytes", sum(rank.bytes)}, {"coordinates", json::object()}, {"roles", json::object()}};
    for (std::size_t a = 0; a < rank.coordinates.size(); ++a)
      one["coordinates"][report.meshes[0].axes[a].name] = rank.coordinates[a];
    for (std::size_t r = 0; r < rank.bytes.size(); ++r) one["roles"][report.roles[r]] = rank.bytes[r];
    document["ranks"].push_back(std::move(one));
  }
  return document;
}

}  // namespace pawl::checkpoint
