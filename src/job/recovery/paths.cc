#include "job/recovery/paths.h"

#include <algorithm>
#include <tuple>

namespace pawl::job {
namespace {

Extent common_part(Extent a, Extent b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

bool is_of(const Struck& struck, const EqualSlots& slot, Seat reader) {
  const bool of_path = struck.kind == SourceKind::path && struck.seat == reader && struck.of == slot.item->seat;
  const bool of_itself = struck.kind == SourceKind::own_arena && struck.seat == slot.item->seat;
  return (of_path || of_itself) && struck.at == slot.at && struck.slot_generation == slot.item->slot_generation &&
         struck.step == slot.item->step;
}

Extents offered(const EqualSlots& slot) {
  Extents there;
  for (const EqualOffer* offer : slot.offers) there.push_back(common_part(offer->state.extent, slot.item->extent));
  return there;
}

Extents readable(const EqualSlots& slot, const Extents& there, Seat reader, std::span<const Struck> all_struck) {
  Extents struck;
  for (const Struck& one : all_struck)
    if (is_of(one, slot, reader)) struck.push_back(one.extent);
  return without(there, struck);
}

// Those that are only gone or damaged say nothing of the others.
template <class Accept>
std::size_t differing_paths(Seat reader, Step step, Generation generation, std::span<const Struck> all_struck,
                            Accept accept) {
  std::set<Seat> paths;
  for (const Struck& one : all_struck)
    if (one.differs && one.seat == reader && one.step == step && one.slot_generation == generation &&
        accept(one.extent))
      paths.insert(one.of);
  return paths.size();
}

// So many paths of one slot have proved to differ that what was declared equal is not.
bool is_refuted(Seat reader, Step step, Generation generation, std::span<const Struck> all_struck) {
  return differing_paths(reader, step, generation, all_struck, [](Extent) { return true; }) >= kPathsMax;
}

std::uint32_t place_in(const SeatsAlong& seats, Seat seat) {
  return (seat.value - seats.first.value) / seats.stride;
}

}  // namespace

bool are_enough(std::span<const Source> there, std::span<const Source> all) {
  const auto is_path = [](const Source& source) { return source.kind == SourceKind::path; };
  Extents extents;
  for (const Source& source : there) extents.push_back(source.extent);
  return holes_in(extents).empty() && (!std::ranges::all_of(there, is_path) || std::ranges::all_of(all, is_path));
}

bool paths_differ(Seat seat, Step step, Generation generation, std::span<const Struck> struck) {
  return differing_paths(seat, step, generation, struck, [](Extent extent) { return extent.is_whole(); }) > 1;
}

void Paths::add(const Inventory& inventory, const InventoryItem& item) {
  if (item.kind != SourceKind::own_arena || inventory.equal.empty()) return;
  const auto [known, is_new] = offers_.try_emplace(&inventory);
  if (is_new)
    for (const EqualOffer& offer : inventory.equal) known->second[offer.seat].push_back(&offer);
  const auto offers = known->second.find(item.seat);
  if (offers == known->second.end()) return;
  for (const EqualOffer* offer : offers->second) {
    const SeatsAlong& seats = offer->seats;
    // Of other seats than an axis of a mesh has, nobody would find them.
    if (seats != seats_with(item.seat, seats.stride, seats.count)) continue;
    std::vector<EqualSlots>& slots = slots_[{item.step, item.slot_generation, seats}];
    if (slots.empty() || slots.back().item != &item) slots.push_back({inventory.life, &item, {}});
    slots.back().offers.push_back(offer);
    shapes_[item.step].insert({item.slot_generation, {seats.stride, seats.count}});
  }
}

void Paths::finish() {
  for (auto& [key, slots] : slots_)
    std::ranges::sort(slots, {},
                      [](const EqualSlots& slot) { return std::tuple(slot.item->seat, slot.at, *slot.item); });
}

std::vector<PathPart> Paths::of(Seat seat, Step step, Generation generation, std::span<const Struck> struck) const {
  std::vector<PathPart> parts;
  const auto shapes = shapes_.find(step);
  if (shapes == shapes_.end() || is_refuted(seat, step, generation, struck)) return parts;
  for (const auto& [slot_generation, shape] : shapes->second) {
    if (slot_generation != generation) continue;
    const SeatsAlong seats = seats_with(seat, shape.first, shape.second);
    const auto found = slots_.find({step, generation, seats});
    if (found == slots_.end()) continue;
    const std::vector<EqualSlots>& slots = found->second;
    const auto next = std::ranges::upper_bound(slots, seat, {}, [](const EqualSlots& slot) { return slot.item->seat; });
    const auto begin = static_cast<std::size_t>(next - slots.begin());
    std::set<Seat> taken;
    Extents wanted;
    Extents had;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const EqualSlots& slot = slots[(begin + i) % slots.size()];
      const Seat other = slot.item->seat;
      if (other == seat) continue;
      const bool is_further = taken.size() >= kPathsMax && !taken.contains(other);
      if (is_further && covers(had, wanted)) break;
      const Extents there = offered(slot);
      const Extents left = readable(slot, there, seat, struck);
      wanted.insert(wanted.end(), there.begin(), there.end());
      if (is_further && covers(had, left)) continue;  // it lacks what the others lack
      const std::uint32_t distance = (place_in(seats, other) + seats.count - place_in(seats, seat)) % seats.count;
      for (const Extent& extent : left) {
        parts.push_back({slot.at, slot.item, extent, distance});
        taken.insert(other);
      }
      had.insert(had.end(), left.begin(), left.end());
      had = joined_extents(std::move(had));
      wanted = joined_extents(std::move(wanted));
    }
  }
  return parts;
}

std::vector<Generation> Paths::generations_of(Seat seat, Step step) const {
  std::vector<Generation> generations;
  const auto shapes = shapes_.find(step);
  if (shapes == shapes_.end()) return generations;
  for (auto shape = shapes->second.rbegin(); shape != shapes->second.rend(); ++shape) {
    const SeatsAlong seats = seats_with(seat, shape->second.first, shape->second.second);
    const bool is_new = generations.empty() || generations.back() != shape->first;
    if (is_new && slots_.contains({step, shape->first, seats})) generations.push_back(shape->first);
  }
  return generations;
}

}  // namespace pawl::job
