#include "job/redundancy/memory_plan.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>

#include "base/text.h"
#include "job/snapshot/arena.h"

namespace pawl::job {
namespace {

std::string size_text(std::uint64_t bytes) {
  if (bytes < std::uint64_t{1} << 20) return text(bytes, " bytes");
  const bool is_small = bytes < std::uint64_t{1} << 30;
  char number[32];
  std::snprintf(number, sizeof number, is_small ? "%.1f MiB" : "%.1f GiB",
                static_cast<double>(bytes) / (std::uint64_t{1} << (is_small ? 20 : 30)));
  return number;
}

std::uint32_t wards_of(const MemoryPlan& plan) {
  return std::max(plan.wards_per_node, plan.seats_per_node * plan.replica_count);
}

// Of one ward's arena.
std::uint64_t ward_bytes(const MemoryPlan& plan) {
  return plan.arena_bytes / plan.slot_count * std::min(plan.slot_count, kSlotCountMin);
}

// The same, and room for what of an arena is no slot, mostly the layout's text. A larger one is made when it is needed.
std::uint64_t ward_segment_bytes(const MemoryPlan& plan) {
  constexpr std::uint64_t kBesideSlots = std::uint64_t{1} << 20;
  constexpr std::uint64_t kPage = 4096;
  return std::min(plan.arena_bytes, (ward_bytes(plan) + kBesideSlots) / kPage * kPage);
}

}  // namespace

std::uint32_t arenas_needed(const MemoryPlan& plan) {
  return plan.seats_per_node + wards_of(plan);
}

std::uint64_t bytes_needed(const MemoryPlan& plan) {
  return plan.arena_bytes * plan.seats_per_node + ward_bytes(plan) * wards_of(plan);
}

std::vector<std::uint64_t> segments_wanted(const MemoryPlan& plan, const ReadyView& view) {
  const std::uint32_t needed = plan.arena_bytes == 0 ? 0 : arenas_needed(plan);
  if (view.is_member && !view.is_spare)
    return std::vector<std::uint64_t>(std::min(view.ready, needed - std::min(needed, view.arenas_here)));
  if (!view.is_spare || needed == 0) return {};
  std::vector<std::uint64_t> sizes(plan.seats_per_node, plan.arena_bytes);
  sizes.resize(needed, ward_segment_bytes(plan));
  return sizes;
}

SegmentsKept keep_segments(const std::vector<std::uint64_t>& ready, const std::vector<std::uint64_t>& wanted) {
  std::vector<std::size_t> order(ready.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return ready[a] > ready[b]; });
  SegmentsKept found;
  for (const std::uint64_t size : wanted)
    if (const std::size_t next = found.kept.size(); next < order.size() && ready[order[next]] >= size)
      found.kept.push_back(order[next]);
    else
      found.missing.push_back(size);
  return found;
}

Status check_memory(const MemoryPlan& plan, std::uint64_t available_bytes) {
  const std::uint64_t needed = bytes_needed(plan);
  const bool is_budget = plan.budget_bytes > 0 && plan.budget_bytes < available_bytes;
  const std::uint64_t allowed = is_budget ? plan.budget_bytes : available_bytes;
  if (needed <= allowed) return {};
  const std::uint32_t wards = wards_of(plan);
  const char* more = !is_budget      ? "give each node more memory"
                     : plan.of_spare ? "begin a new job that allows more (--memory)"
                                     : "allow more (--memory)";
  std::string remedy = text("protect less state per node, or ", more);
  if (plan.replica_count > 0 && bytes_needed({plan.arena_bytes, plan.slot_count, plan.seats_per_node, 0}) <= allowed)
    remedy += text(", or have fewer replicas (--replicas ", plan.replica_count - 1, ")");
  return Error{
      Code::invalid,
      text(is_budget ? "--memory allows too little " : "this node has too little memory ",
           plan.of_spare ? "to be a spare under" : "for", " the job's policy: ", plan.seats_per_node,
           " own seat(s) and ", wards, " replica(s) of others, ", plan.slot_count, " slots of ",
           size_text(plan.arena_bytes / plan.slot_count), " each",
           plan.slot_count > kSlotCountMin ? " (two of a replica; the third is for --checkpoint)" : "", ", are ",
           size_text(needed), "; ", size_text(allowed), is_budget ? " are allowed" : " are available",
           plan.of_spare ? "" : ", and a spare needs as much", ": ", remedy)};
}

}  // namespace pawl::job
