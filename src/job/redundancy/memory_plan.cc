#include "job/redundancy/memory_plan.h"

#include <cstdio>
#include <string>

#include "base/text.h"

namespace pawl::job {
namespace {

std::string gibibytes(std::uint64_t bytes) {
  char number[32];
  std::snprintf(number, sizeof number, "%.1f GiB", static_cast<double>(bytes) / (std::uint64_t{1} << 30));
  return number;
}

}  // namespace

std::uint64_t bytes_needed(const MemoryPlan& plan) {
  return plan.arena_bytes * plan.seats_per_node * (std::uint64_t{1} + plan.replica_count);
}

Status check_memory(const MemoryPlan& plan, std::uint64_t available_bytes) {
  const std::uint64_t needed = bytes_needed(plan);
  if (needed <= available_bytes) return {};
  const std::uint32_t wards = plan.seats_per_node * plan.replica_count;
  std::string remedy = "protect less state per node, or give each node more memory";
  if (plan.replica_count > 0 &&
      bytes_needed({plan.arena_bytes, plan.slot_count, plan.seats_per_node, 0}) <= available_bytes)
    remedy += text(", or have fewer replicas (--replicas ", plan.replica_count - 1, ")");
  return Error{Code::invalid,
               text("this node has too little memory for the job's policy: ", plan.seats_per_node, " own seat(s) and ",
                    wards, " replica(s) of others, ", plan.slot_count, " slots of ",
                    gibibytes(plan.arena_bytes / plan.slot_count), " each, are ", gibibytes(needed), "; ",
                    gibibytes(available_bytes), " are available, and a spare needs as much: ", remedy)};
}

}  // namespace pawl::job
