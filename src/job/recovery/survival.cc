#include "job/recovery/survival.h"

#include <algorithm>
#include <map>

#include "job/recovery/lineage.h"
#include "job/recovery/members.h"
#include "job/redundancy/failure_domains.h"

namespace pawl::job {
namespace {

bool is_whole_and_sound(const PlanInput& input, NodeLife at, const InventoryItem& item) {
  const bool struck = std::ranges::any_of(input.struck, [&](const Struck& one) {
    return one.at == at && one.seat == item.seat && one.kind == item.kind &&
           one.slot_generation == item.slot_generation && one.step == item.step;
  });
  return !struck && item.state == SlotState::sealed && !item.torn && item.extent.is_whole() &&
         in_lineage(input.lineage, item.slot_generation, item.step);
}

}  // namespace

ProtectionPlan plan_of_copies(std::span<const Member> seats, std::uint32_t replica_count) {
  const Ring ring = ring_of(seats, replica_count);
  Positions positions;
  for (std::uint32_t position = 0; position < ring.position_count(); ++position) {
    positions.seat_counts.push_back(ring.seats_at(position));
    positions.domains.push_back(ring.domain_of(position));
  }
  std::vector<StateGroup> groups;
  for (std::uint32_t seat = 0; seat < ring.seat_count(); ++seat) groups.push_back({{Seat(seat)}, 1, 0});
  ProtectionPolicy policy;
  policy.losses = ring.replica_count();
  policy.accepts_less = true;
  Result<ProtectionPlan> plan = protect(std::move(groups), positions, policy);
  return plan ? std::move(*plan) : ProtectionPlan{};  // none of its refusals can be
}

Survival survival_if(const ProtectionPlan& plan, const PlanInput& input, std::span<const NodeId> dead, Step step) {
  const Ring ring = ring_of(input.seats, input.replica_count);
  std::map<Seat, Seat> places;  // of the seats before
  for (const Member& member : input.seats) places.emplace(before_of(member), member.seat);
  std::vector<ShelfId> sound;
  for (const Inventory& inventory : input.inventories) {
    if (contains(dead, inventory.life.node) || contains(input.evicted, inventory.life)) continue;
    for (const InventoryItem& item : inventory.items) {
      const auto place = places.find(item.seat);
      if (item.step != step || place == places.end() || !is_whole_and_sound(input, inventory.life, item)) continue;
      const Seat seat = place->second;
      if (item.kind == SourceKind::own_arena && input.seats[seat.value].life == inventory.life)
        sound.push_back({ShelfKind::own, seat.value, 0});
      if (item.kind != SourceKind::replica) continue;
      const auto holders = ring.holders_at(ring.position_of(seat));
      for (std::uint32_t i = 0; i < holders.size(); ++i)
        if (input.seats[ring.first_seat(holders[i]).value].life == inventory.life)
          sound.push_back({ShelfKind::copy, seat.value, i});
    }
  }
  std::vector<std::string> domains;
  for (std::uint32_t position = 0; position < ring.position_count(); ++position)
    domains.push_back(input.seats[ring.first_seat(position).value].domain);
  return survival_of(plan, sound, numbers_of_domains(domains));
}

}  // namespace pawl::job
