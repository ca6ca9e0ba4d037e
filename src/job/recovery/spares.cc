#include "job/recovery/spares.h"

#include <algorithm>
#include <map>
#include <utility>

#include "job/recovery/members.h"

namespace pawl::job {
namespace {

// A later life of an evicted node is a spare like any other; the evicted life itself, or an earlier one, is not.
bool may_be_spare(const JobState& state, const Roster& roster, const NodeRecord& node) {
  const auto bars = [&node](NodeLife gone) {
    return gone.node == node.life.node && gone.incarnation >= node.life.incarnation;
  };
  if (std::any_of(state.evicted.begin(), state.evicted.end(), bars)) return false;
  if (std::any_of(state.departed.begin(), state.departed.end(), bars)) return false;
  // Nor a node of which an earlier life still counts as a member: its old seats come first.
  return node.healthy && !roster.has_survivor(node.life.node);
}

// How often the job has evicted it.
std::ptrdiff_t evictions_of(const JobState& state, NodeId node) {
  return std::ranges::count(state.evicted, node, &NodeLife::node) +
         std::ranges::count(state.departed, node, &NodeLife::node);
}

}  // namespace

std::vector<NodeRecord> spares_of(const JobState& state, std::span<const NodeRecord> nodes,
                                  std::span<const NodeId> cordoned, std::span<const NodeLife> silent) {
  const Roster roster(state);
  std::map<NodeId, NodeRecord> spares;
  for (const NodeRecord& node : nodes) {
    if (contains(cordoned, node.life.node) || !may_be_spare(state, roster, node)) continue;
    NodeRecord& known = spares.try_emplace(node.life.node, node).first->second;
    if (node.life.incarnation > known.life.incarnation) known = node;
  }
  std::vector<NodeRecord> sorted;
  for (auto& [id, node] : spares) sorted.push_back(std::move(node));
  // What it was evicted for may last: a node whose links are cut registers again at once.
  std::ranges::stable_sort(sorted, {}, [&](const NodeRecord& node) {
    return std::pair(contains(silent, node.life), evictions_of(state, node.life.node));
  });
  return sorted;
}

}  // namespace pawl::job
