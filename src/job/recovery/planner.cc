#include "job/recovery/planner.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "job/recovery/lineage.h"
#include "job/recovery/members.h"
#include "job/recovery/paths.h"
#include "job/redundancy/placement.h"

namespace pawl::job {
namespace {

constexpr NodeLife kNowhere{};  // where a seat sat whose seat before has no place now

struct Candidate {
  NodeLife at;
  bool unreached = false;
  bool lingering = false;
  bool whole = true;  // all of the seat's stream may be read there
  const InventoryItem* item = nullptr;
  Seat seat = {};              // whose state: that of the item, or another one with equal bytes
  std::uint32_t distance = 0;  // of a path
  [[nodiscard]] bool is_path() const { return seat != item->seat; }
};
struct Part {
  Candidate at;
  Extent extent;  // what may be read there
};
using Parts = std::vector<Part>;

bool is_struck(const Struck& struck, NodeLife at, const InventoryItem& item) {
  return struck.at == at && struck.seat == item.seat && struck.kind == item.kind &&
         struck.slot_generation == item.slot_generation && struck.step == item.step;
}

bool is_usable(const PlanInput& input, const InventoryItem& item) {
  return item.state == SlotState::sealed && !item.torn && item.seat.value < input.seat_count && item.step > Step(0) &&
         is_in_memory(item.kind) && in_lineage(input.lineage, item.slot_generation, item.step);
}

// Calls `use` with each part of the item that is a source: most often all of it, in one.
template <class Use>
void for_sound_parts(const PlanInput& input, NodeLife at, const InventoryItem& item, Use use) {
  if (!is_usable(input, item)) return;
  if (input.struck.empty()) return use(item.extent);
  Extents struck;
  for (const Struck& one : input.struck)
    if (is_struck(one, at, item)) struck.push_back(one.extent);
  if (struck.empty()) return use(item.extent);
  for (const Extent& part : without({&item.extent, 1}, struck)) use(part);
}

// Whatever of it: a part is enough.
bool is_sound(const PlanInput& input, NodeLife at, const InventoryItem& item) {
  bool any = false;
  for_sound_parts(input, at, item, [&any](Extent) { any = true; });
  return any;
}

// The nearer one; ties broken by ids only, so that every node plans the same. Two generations of one step in the
// lineage are the same state: the later generation went on from that step or a greater one.
bool nearer(const Candidate& a, const Candidate& b) {
  const auto rank = [](const Candidate& c) {
    const bool is_replica = c.item->kind != SourceKind::own_arena;
    return std::tuple(c.is_path(), c.unreached, c.lingering, is_replica, c.distance, c.at, c.item->seat,
                      ~c.item->slot_generation.value);
  };
  if (const auto order = rank(a) <=> rank(b); order != 0) return order < 0;
  return a.item->layout_digest < b.item->layout_digest;
}
bool part_is_nearer(const Part& a, const Part& b) {
  if (nearer(a.at, b.at)) return true;
  return !nearer(b.at, a.at) && a.extent < b.extent;
}

// Only such can fill one slot together.
using Together = std::pair<Generation, std::uint64_t>;  // the slot's generation and its layout's digest
Together together_of(const InventoryItem& item) {
  return {item.slot_generation, item.layout_digest};
}
bool belong_together(const InventoryItem& a, const InventoryItem& b) {
  return together_of(a) == together_of(b);
}

struct StepSources {
  // index = seat. The nearest whole copy; where there is none, the nearest of the parts that are whole together, also with
  // those of other paths; where nothing of the seat's own is left, the nearest path that is equal in all.
  std::vector<Candidate> nearest;
  std::vector<std::uint32_t> whole_copies = {};  // index = seat
  std::vector<bool> lacks = {};  // index as in Promised::at: a copy of which nothing whole is there, at nodes that live
  std::map<Seat, Parts> parts = {};  // copies that are not whole
  std::uint32_t covered = 0;         // seats that have a nearest
  bool layouts_alike = true;         // of all copies of each seat, which are whole
};
using Steps = std::map<Step, StepSources, std::greater<>>;

Part part_at(const PlanInput& input, NodeLife at, const InventoryItem& item, Extent extent) {
  return {{at, contains(input.unreached, Unreached{item.seat, at}), contains(input.lingering, at), extent.is_whole(),
           &item, item.seat},
          extent};
}

Parts paths_of(const PlanInput& input, const Paths& paths, Seat seat, Step step, Generation generation) {
  Parts parts;
  for (const PathPart& path : paths.of(seat, step, generation, input.struck)) {
    Part part = part_at(input, path.at, *path.item, path.extent);
    part.at.unreached = contains(input.unreached, Unreached{seat, path.at});
    part.at.seat = seat;
    part.at.distance = path.distance;
    parts.push_back(part);
  }
  return parts;
}

// Of the seat's own parts the nearest of those that have the whole stream together, also with what lies on other paths;
// none: no such do.
template <class PathsOf>
std::optional<Candidate> nearest_together(Parts parts, PathsOf paths_at) {
  std::map<Together, Extents> together;
  for (const Part& part : parts) together[together_of(*part.at.item)].push_back(part.extent);
  for (auto& [one, extents] : together)
    if (!holes_in(extents).empty())
      for (const Part& path : paths_at(one.first)) extents.push_back(path.extent);
  std::erase_if(together, [](const auto& each) { return !holes_in(each.second).empty(); });
  std::erase_if(parts, [&](const Part& part) { return !together.contains(together_of(*part.at.item)); });
  const auto nearest = std::ranges::min_element(parts, part_is_nearer);
  return nearest != parts.end() ? std::optional(nearest->at) : std::nullopt;
}

// Nothing of the seat's own is left, not even sums: the nearest slot that was declared equal in every byte.
std::optional<Candidate> nearest_path(const PlanInput& input, const Paths& paths, Seat seat, Step step) {
  for (const Generation generation : paths.generations_of(seat, step)) {
    if (paths_differ(seat, step, generation, input.struck)) continue;
    Parts parts = paths_of(input, paths, seat, step, generation);
    std::erase_if(parts, [](const Part& part) { return !part.extent.is_whole(); });
    const auto nearest = std::ranges::min_element(parts, part_is_nearer);
    if (nearest != parts.end()) return nearest->at;
  }
  return std::nullopt;
}

void join_parts(const PlanInput& input, const Paths& paths, Step number, StepSources& step) {
  for (std::uint32_t i = 0; i < input.seat_count && step.covered < input.seat_count; ++i) {
    Candidate& best = step.nearest[i];
    if (best.item != nullptr) continue;
    const Seat seat(i);
    std::optional<Candidate> nearest;
    if (const auto parts = step.parts.find(seat); parts != step.parts.end())
      nearest = nearest_together(
          parts->second, [&](Generation generation) { return paths_of(input, paths, seat, number, generation); });
    else if (input.unproven)
      nearest = nearest_path(input, paths, seat, number);
    if (!nearest) continue;
    best = *nearest;
    ++step.covered;
  }
}

std::string place_of(NodeLife at, SourceKind kind) {
  return text(kind == SourceKind::own_arena ? "own copy" : "replica", " at node ", at.node);
}

// What lies on other paths.
Paths all_paths(const PlanInput& input) {
  Paths paths;
  for (const Inventory& inventory : input.inventories) {
    if (inventory.equal.empty() || contains(input.evicted, inventory.life)) continue;
    for (const InventoryItem& item : inventory.items)
      if (is_usable(input, item)) paths.add(inventory, item);
  }
  paths.finish();
  return paths;
}

// Where copies are promised: [seat * each] the own arena's node, then the holders, nearest first.
struct Promised {
  std::size_t each = 0;
  std::vector<NodeLife> at;
  std::vector<bool> alive;  // of each: its node is not evicted
};

// Of the seats that sit somewhere until now.
Promised promised_copies(const PlanInput& input) {
  const Ring ring = ring_of(input.seats, input.replica_count);
  Promised promised{std::size_t{1} + ring.replica_count(), {}, {}};
  promised.at.reserve(promised.each * input.seats.size());
  promised.alive.reserve(promised.each * input.seats.size());
  std::vector<NodeLife> evicted(input.evicted.begin(), input.evicted.end());
  std::ranges::sort(evicted);
  const auto add = [&](NodeLife life) {
    promised.at.push_back(life);
    promised.alive.push_back(!std::ranges::binary_search(evicted, life));
  };
  for (std::uint32_t position = 0; position < ring.position_count(); ++position) {
    const std::span<const std::uint32_t> holders = ring.holders_at(position);
    const std::uint32_t first = ring.first_seat(position).value;
    for (std::uint32_t seat = first; seat < first + ring.seats_at(position); ++seat) {
      add(input.seats[seat].life);
      for (const std::uint32_t holder : holders) add(input.seats[ring.first_seat(holder).value].life);
    }
  }
  return promised;
}

// Whether the item would be the i-th promised copy.
template <class Use>
void for_promised(const Promised& promised, NodeLife at, const InventoryItem& item, Use use) {
  if (promised.at.empty()) return;
  const std::size_t own = item.seat.value * promised.each;
  const bool is_own = item.kind == SourceKind::own_arena;
  const std::size_t end = own + (is_own ? 1 : promised.each);
  for (std::size_t i = own + (is_own ? 0 : 1); i < end; ++i)
    if (promised.at[i] == at) use(i);
}

void add(StepSources& step, const Promised& promised, const Part& part) {
  const Candidate& candidate = part.at;
  const Seat seat = candidate.item->seat;
  if (!candidate.whole) {
    step.layouts_alike = false;  // not looked at
    return step.parts[seat].push_back(part);
  }
  for_promised(promised, candidate.at, *candidate.item, [&step](std::size_t i) { step.lacks[i] = false; });
  Candidate& best = step.nearest[seat.value];
  ++step.whole_copies[seat.value];
  if (best.item == nullptr)
    ++step.covered;
  else if (best.item->layout_digest != candidate.item->layout_digest)
    step.layouts_alike = false;
  if (best.item == nullptr || nearer(candidate, best)) best = candidate;
}

StepSources& sources_at(Steps& steps, const PlanInput& input, const Promised& promised, Step step) {
  StepSources& sources = steps[step];
  if (sources.nearest.empty()) {
    sources.nearest.resize(input.seat_count);
    sources.whole_copies.resize(input.seat_count);
    sources.lacks = promised.alive;
  }
  return sources;
}

Steps sound_sources(const PlanInput& input, const Promised& promised, const Paths& paths) {
  Steps steps;
  for (const Inventory& inventory : input.inventories) {
    if (contains(input.evicted, inventory.life)) continue;
    for (const InventoryItem& item : inventory.items)
      for_sound_parts(input, inventory.life, item, [&](Extent part) {
        add(sources_at(steps, input, promised, item.step), promised, part_at(input, inventory.life, item, part));
      });
  }
  for (auto& [step, sources] : steps) join_parts(input, paths, step, sources);
  return steps;
}

// One that reaches to the stream's end counts as more than any that does not.
std::uint64_t bytes_of(const Extents& joined) {
  std::uint64_t bytes = 0;
  for (const Extent& extent : joined) bytes += extent.end - extent.begin;
  return bytes;
}

// Of the promised copies what is not there; index as in Promised::at.
struct Lacks {
  std::vector<bool> all;                // nothing of it is there
  std::map<std::size_t, Extents> some;  // only these bytes of it are missing
};

// What is missing of a copy of which these parts are there: nothing can be read from two slots together, so of the fuller
// one; of two alike of the later one, as every node does.
Extents least_holes(const std::map<Together, Extents>& parts) {
  std::optional<Extents> least;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    Extents holes = holes_in(part->second);
    if (!least || bytes_of(holes) < bytes_of(*least)) least = std::move(holes);
  }
  return least.value_or(Extents{{}});
}

// Of the promised copies that did not die with their node, what is not there at `step`.
Lacks lacking(const Promised& promised, const StepSources& step) {
  Lacks lacks{step.lacks, {}};
  std::map<std::size_t, std::map<Together, Extents>> parts;
  for (const auto& [seat, seats_parts] : step.parts)
    for (const Part& part : seats_parts)
      for_promised(promised, part.at.at, *part.at.item,
                   [&](std::size_t i) { parts[i][together_of(*part.at.item)].push_back(part.extent); });
  for (const auto& [i, there] : parts) {
    if (!lacks.all[i]) continue;  // whole besides, or evicted
    lacks.all[i] = false;
    if (Extents holes = least_holes(there); !holes.empty()) lacks.some[i] = std::move(holes);
  }
  return lacks;
}

bool is_within(const Lacks& part, const Lacks& all) {
  for (std::size_t i = 0; i < part.all.size(); ++i)
    if (part.all[i] && !all.all[i]) return false;
  return std::ranges::all_of(part.some, [&all](const auto& lack) {
    const auto found = all.some.find(lack.first);
    return all.all[lack.first] || (found != all.some.end() && covers(found->second, lack.second));
  });
}

// The climb that planner.h describes. 0: nothing is whole, or nothing was committed and no later step is kept as well.
Step choose_resume(const PlanInput& input, const Promised& promised, const Steps& steps, Step floor) {
  std::optional<Lacks> reached;
  if (floor == Step(0)) reached.emplace(Lacks{std::vector<bool>(promised.at.size(), false), {}});
  Step resume;
  Step greatest_whole;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->second.covered != input.seat_count) continue;
    greatest_whole = step->first;
    if (step->first < floor) continue;
    Lacks lacks = lacking(promised, step->second);
    if (reached && !is_within(lacks, *reached)) continue;
    resume = step->first;
    reached = std::move(lacks);
  }
  return reached ? resume : greatest_whole;
}

// Seats of whose stream some byte of `step` lies in one place only, among all that the survivors hold.
std::vector<Seat> single_copies(const PlanInput& input, const StepSources& sources) {
  std::vector<std::uint32_t> copies = sources.whole_copies;
  for (const auto& [seat, parts] : sources.parts) {
    Extents extents;
    for (const Part& part : parts) extents.push_back(part.extent);
    copies[seat.value] += least_cover(extents);
  }
  std::vector<Seat> single;
  for (std::uint32_t seat = 0; seat < input.seat_count; ++seat)
    if (copies[seat] == 1) single.emplace_back(seat);
  return single;
}

using Inventories = std::vector<const Inventory*>;

// Those that count, by life, so that a sentence reads the same on every node.
Inventories sorted_inventories(const PlanInput& input) {
  Inventories sorted;
  for (const Inventory& inventory : input.inventories)
    if (!contains(input.evicted, inventory.life)) sorted.push_back(&inventory);
  std::sort(sorted.begin(), sorted.end(), [](const Inventory* a, const Inventory* b) { return a->life < b->life; });
  return sorted;
}

// Why these copies of the seat (of one kind, in one memory) cannot give `step`. Empty: there are none.
std::string why_not(const PlanInput& input, const Inventory& inventory, Seat seat, SourceKind kind, Step step) {
  bool any = false;
  bool struck = false;
  bool dirty = false;
  bool torn = false;
  std::optional<Generation> abandoned;
  std::vector<Step> sound;
  Extents parts;
  for (const InventoryItem& item : inventory.items) {
    if (item.seat != seat || item.kind != kind) continue;
    any = true;
    const auto is_of_it = [&](const Struck& one) { return is_struck(one, inventory.life, item); };
    if (is_sound(input, inventory.life, item)) {
      if (item.step == step)
        for_sound_parts(input, inventory.life, item, [&parts](Extent part) { parts.push_back(part); });
      else
        sound.push_back(item.step);
    } else if (item.step == step && item.state == SlotState::dirty) {
      dirty = true;
    } else if (item.step == step && std::ranges::any_of(input.struck, is_of_it)) {
      struck = true;
    } else if (item.step == step && item.torn && in_lineage(input.lineage, item.slot_generation, step)) {
      torn = true;
    } else if (item.step == step && item.state == SlotState::sealed) {
      abandoned = std::max(abandoned, std::optional(item.slot_generation));
    }
  }
  if (!parts.empty() && !holes_in(parts).empty()) return text("has only ", to_text(joined_extents(parts)));
  if (!parts.empty()) sound.push_back(step);
  if (torn) return "was written while it was copied, which was found only when the copy was sealed";
  if (struck) return "struck out";
  if (abandoned) return text("of an abandoned history, generation ", *abandoned);
  if (dirty) return "only partly written";
  if (sound.empty()) return any ? "holds no sealed step" : "";
  std::sort(sound.begin(), sound.end());
  std::string held;
  for (const Step one : sound) held += text(held.empty() ? "holds step " : ",", one);
  return held;
}

// What other paths have of it is not enough.
std::string part_on_paths(const PlanInput& input, const Paths& paths, Seat seat, Step step) {
  for (const Generation generation : paths.generations_of(seat, step)) {
    if (paths_differ(seat, step, generation, input.struck)) return "other paths: what was declared equal is not";
    Extents extents;
    for (const PathPart& part : paths.of(seat, step, generation, input.struck)) extents.push_back(part.extent);
    if (!extents.empty()) return text("other paths: only ", to_text(joined_extents(extents)));
  }
  return {};
}

std::string lost_sentence(const PlanInput& input, const Paths& paths, const Inventories& inventories, Seat seat,
                          Step step) {
  std::string places;
  const auto add = [&places](std::string_view place) { places += text(places.empty() ? "" : "; ", place); };
  const auto add_kind = [&](SourceKind kind, std::string_view name) {
    bool any = false;
    for (const Inventory* inventory : inventories) {
      const std::string why = why_not(input, *inventory, seat, kind, step);
      if (why.empty()) continue;
      any = true;
      add(text(name, " at node ", inventory->life.node, ": ", why));
    }
    return any;
  };
  const bool seated = seat.value < input.seats.size();
  const NodeLife owner = seated ? input.seats[seat.value].life : kNowhere;
  if (!add_kind(SourceKind::own_arena, "own")) {
    if (seated && owner != kNowhere) {
      add(text("own: node ", owner.node, contains(input.evicted, owner) ? " evicted" : " holds nothing of it"));
    } else {
      add("own: in no survivor's memory");
    }
  }
  if (!add_kind(SourceKind::replica, "replica")) add("replica: in no survivor's memory");
  if (const std::string part = part_on_paths(input, paths, seat, step); !part.empty()) add(part);
  std::string gone;
  for (const NodeLife& life : input.evicted)
    if (!seated || life != owner) gone += text(gone.empty() ? "evicted besides: node " : ",", life.node);
  if (!gone.empty()) add(gone);
  const Seat before = input.wished ? (*input.wished)[seat.value] : seat;
  const std::string named = before == seat ? text("seat ", seat) : text("seat ", seat, " (before: seat ", before, ")");
  return text(named, ": no sealed copy of step ", step, " (", places, ")");
}

// Of what should still be there, the step that is nearly whole (the least such): what it lacks is what was lost. What
// is known to be committed may lag behind, and its slots may long hold later steps.
Step nearly_whole(const Steps& steps, Step committed) {
  Step best = committed;
  std::uint32_t covered = 0;
  for (const auto& [step, sources] : steps) {
    if (step < committed || sources.covered == 0 || sources.covered < covered) continue;
    best = step;
    covered = sources.covered;
  }
  return best;
}

// Each seat without a source of `step`.
std::vector<std::string> lost_at(const PlanInput& input, const Paths& paths, const Steps& steps, Step step) {
  const Inventories inventories = sorted_inventories(input);
  std::vector<std::string> lost;
  const auto found = steps.find(step);
  for (std::uint32_t seat = 0; seat < input.seat_count; ++seat)
    if (found == steps.end() || found->second.nearest[seat].item == nullptr)
      lost.push_back(lost_sentence(input, paths, inventories, Seat(seat), step));
  return lost;
}

// Where a seat's state lies in its own arena, where the seat is, nothing else is ever read.
bool needs_others(const PlanInput& input, const Candidate& nearest) {
  const std::size_t seat = nearest.seat.value;
  return nearest.is_path() || nearest.item->kind != SourceKind::own_arena || !nearest.whole ||
         seat >= input.seats.size() || input.seats[seat].life != nearest.at;
}

// All that are needed. Others let a seat read from more nodes; where it has nothing left they are what it is compared with.
void add_paths(const PlanInput& input, const Paths& paths, Step step, const StepSources& chosen,
               std::map<Seat, Parts>& all) {
  const bool are_many = all.size() > kSeatsWithPathsMax;
  std::size_t further = kFurtherPathsMax;
  for (auto& [seat, parts] : all) {
    const Candidate& nearest = chosen.nearest[seat.value];
    const bool is_alone = nearest.is_path();
    ExtentUnion had;
    for (const Part& part : parts) had.add(part.extent);
    Parts there = paths_of(input, paths, seat, step, nearest.item->slot_generation);
    std::ranges::stable_sort(there, {}, [](const Part& path) { return path.at.lingering; });
    for (const Part& path : there) {
      if (is_alone && !(path.extent.is_whole() && belong_together(*nearest.item, *path.at.item))) continue;
      if (!had.add(path.extent)) {
        if (further == 0 || (!is_alone && (are_many || path.at.lingering))) continue;
        --further;
      }
      parts.push_back(path);
    }
  }
}

// Of the seats that need others, all from which the state can be read.
std::map<Seat, Parts> all_sources(const PlanInput& input, const Paths& paths, Step step, const StepSources& chosen) {
  std::map<Seat, Parts> all;
  std::vector<bool> needs(input.seat_count);
  for (const Candidate& nearest : chosen.nearest)
    if (needs_others(input, nearest)) {
      all[nearest.seat] = {};
      needs[nearest.seat.value] = true;
    }
  if (all.empty()) return all;
  for (const Inventory& inventory : input.inventories) {
    if (contains(input.evicted, inventory.life)) continue;
    for (const InventoryItem& item : inventory.items) {
      if (item.step != step || item.seat.value >= input.seat_count || !needs[item.seat.value]) continue;
      if (!belong_together(*chosen.nearest[item.seat.value].item, item)) continue;
      for_sound_parts(input, inventory.life, item,
                      [&](Extent extent) { all[item.seat].push_back(part_at(input, inventory.life, item, extent)); });
    }
  }
  add_paths(input, paths, step, chosen, all);
  return all;
}

Source source_at(const Candidate& candidate, Extent extent) {
  const InventoryItem& item = *candidate.item;
  if (candidate.is_path())
    return {candidate.seat, SourceKind::path, candidate.at, item.slot_generation, item.step, extent, item.seat};
  return {item.seat, item.kind, candidate.at, item.slot_generation, item.step, extent};
}

// Sorted parts that have the whole stream, and may be more than a state can name: those that are needed, then the nearest.
void keep_what_is_needed(Parts& parts) {
  if (parts.size() <= kSourcesMax) return;
  ExtentUnion had;
  Parts kept;
  Parts others;
  // Its own first: without their sums nothing of a path is proven.
  for (const bool of_paths : {false, true})
    for (const Part& part : parts)
      if (part.at.is_path() == of_paths) (had.add(part.extent) ? kept : others).push_back(part);
  std::ranges::stable_sort(others, {}, [](const Part& part) { return part.at.is_path(); });
  for (std::size_t i = 0; i < others.size() && kept.size() < kSourcesMax; ++i) kept.push_back(others[i]);
  std::ranges::sort(kept, part_is_nearer);
  parts = std::move(kept);
}

// By seats, of each the nearest first.
std::vector<Source> sources_of(const PlanInput& input, const Paths& paths, Step step, const StepSources& chosen) {
  std::map<Seat, Parts> all = all_sources(input, paths, step, chosen);
  std::vector<Source> sources;
  sources.reserve(chosen.nearest.size());
  auto next = all.begin();  // by seats, as they are
  for (const Candidate& nearest : chosen.nearest) {
    if (next == all.end() || next->first != nearest.seat) {
      sources.push_back(source_at(nearest, {}));
      continue;
    }
    std::ranges::sort(next->second, part_is_nearer);
    keep_what_is_needed(next->second);
    for (const Part& part : next->second)
      if (const Source source = source_at(part.at, part.extent); sources.empty() || sources.back() != source)
        sources.push_back(source);
    ++next;
  }
  return sources;
}

// Sound copies of a chosen step whose layout is not that of the chosen copy.
std::vector<std::string> other_layouts(const PlanInput& input, Step step, const StepSources& chosen) {
  std::vector<std::string> notes;
  for (const Inventory& inventory : input.inventories) {
    if (chosen.layouts_alike) break;
    if (contains(input.evicted, inventory.life)) continue;
    for (const InventoryItem& item : inventory.items) {
      if (item.step != step || !is_sound(input, inventory.life, item)) continue;
      const Candidate& used = chosen.nearest[item.seat.value];
      if (!used.is_path() && used.item->layout_digest != item.layout_digest)
        notes.push_back(text("seat ", item.seat, ": ", place_of(inventory.life, item.kind),
                             " has another layout than the ", place_of(used.at, used.item->kind), " at step ", step,
                             ", which is used"));
    }
  }
  for (const Candidate& used : chosen.nearest)
    if (used.is_path())
      notes.push_back(text("seat ", used.seat, ": nothing of its own is left of step ", step,
                           ", so it goes on from what seat ", used.item->seat, " at node ", used.at.node,
                           " has, which was declared equal"));
  std::sort(notes.begin(), notes.end());
  return notes;
}

// --- Worlds: all that is above speaks of places in the world that is planned for.

// From the seat before to its place, if it has any there.
class Places {
 public:
  explicit Places(std::span<const Seat> before) {
    for (std::uint32_t i = 0; i < before.size(); ++i) places_.emplace_back(before[i], Seat(i));
    std::ranges::sort(places_);
  }
  [[nodiscard]] std::optional<Seat> of(Seat before) const {
    const auto found = std::ranges::lower_bound(places_, before, {}, &std::pair<Seat, Seat>::first);
    return found != places_.end() && found->first == before ? std::optional(found->second) : std::nullopt;
  }

 private:
  std::vector<std::pair<Seat, Seat>> places_;
};

// An input whose slots, strikes and seats go by their places. Refers to the one that it was made of, and to `before`.
struct InPlaces {
  std::vector<Inventory> inventories;
  std::vector<Struck> struck;
  std::vector<Unreached> unreached;
  std::vector<Member> seats;
  Promised promised;
  PlanInput input;
};

// Each one that has a place, with that; the others are of no use to this world.
template <class Item>
std::vector<Item> in_places(std::span<const Item> items, const Places& places) {
  std::vector<Item> placed;
  for (const Item& item : items)
    if (const std::optional<Seat> place = places.of(item.seat)) {
      placed.push_back(item);
      placed.back().seat = *place;
    }
  return placed;
}

void put_in_places(InPlaces& out, const PlanInput& from, std::span<const Seat> before) {
  const Places places(before);
  for (const Inventory& inventory : from.inventories) {
    Inventory placed = inventory;
    placed.items = in_places(std::span<const InventoryItem>(inventory.items), places);
    placed.equal.clear();
    out.inventories.push_back(std::move(placed));
  }
  out.struck = in_places(from.struck, places);
  for (const Unreached& one : from.unreached)
    if (const auto place = places.of(before_of(from.seats, one.seat))) out.unreached.push_back({*place, one.at});
  const Promised promised = from.seats.empty() ? Promised() : promised_copies(from);
  out.promised.each = promised.each;
  out.promised.at.resize(promised.each * before.size(), kNowhere);
  out.promised.alive.resize(promised.each * before.size(), false);
  out.seats.resize(from.seats.empty() ? 0 : before.size());
  for (std::size_t i = 0; i < from.seats.size(); ++i) {
    const auto place = places.of(before_of(from.seats[i]));
    if (!place) continue;
    out.seats[place->value] = from.seats[i];
    for (std::size_t copy = 0; copy < promised.each; ++copy) {
      out.promised.at[place->value * promised.each + copy] = promised.at[i * promised.each + copy];
      out.promised.alive[place->value * promised.each + copy] = promised.alive[i * promised.each + copy];
    }
  }
  out.input = from;
  out.input.seat_count = static_cast<std::uint32_t>(before.size());
  out.input.inventories = out.inventories;
  out.input.struck = out.struck;
  out.input.unreached = out.unreached;
  out.input.seats = out.seats;
  out.input.wished = before;
}

Plan plan_in_places(const PlanInput& input, const Promised& promised);

using OneStep = std::tuple<Seat, Generation, Step>;
OneStep step_of(const InventoryItem& item) {
  return {item.seat, item.slot_generation, item.step};
}

// All copies of a seat's step have the same bytes, and the mark of one may not have come to the others.
std::vector<Inventory> marked_alike(std::span<const Inventory> inventories) {
  std::set<OneStep> torn;
  for (const Inventory& inventory : inventories)
    for (const InventoryItem& item : inventory.items)
      if (item.torn) torn.insert(step_of(item));
  if (torn.empty()) return {};
  std::vector<Inventory> marked(inventories.begin(), inventories.end());
  for (Inventory& inventory : marked)
    for (InventoryItem& item : inventory.items)
      item.torn = item.state == SlotState::sealed && torn.contains(step_of(item));
  return marked;
}

}  // namespace

Plan plan_restore(const PlanInput& told) {
  const std::vector<Inventory> marked = marked_alike(told.inventories);
  PlanInput input = told;
  if (!marked.empty()) input.inventories = marked;
  const bool has_seats = input.seats.size() == input.seat_count;
  if (!input.wished && !are_renumbered(input.seats))
    return plan_in_places(input, has_seats ? promised_copies(input) : Promised());
  std::vector<Seat> before;
  if (!input.wished)
    for (const Member& member : input.seats) before.push_back(before_of(member));
  InPlaces placed;
  put_in_places(placed, input, input.wished.value_or(before));
  return plan_in_places(placed.input, placed.promised);
}

namespace {

Plan plan_in_places(const PlanInput& input, const Promised& promised) {
  Plan plan;
  plan.committed = input.committed;
  for (const Inventory& inventory : input.inventories)
    if (!contains(input.evicted, inventory.life)) plan.committed = std::max(plan.committed, inventory.committed);

  Step floor = plan.committed;
  if (!input.lineage.empty()) floor = std::max(floor, input.lineage.back().resume);
  const Paths paths = all_paths(input);
  const Steps steps = sound_sources(input, promised, paths);  // the greatest first
  plan.resume = choose_resume(input, promised, steps, floor);
  if (const auto chosen = steps.find(plan.resume); chosen != steps.end()) {
    plan.sources = sources_of(input, paths, plan.resume, chosen->second);
    if (input.replica_count > 0) plan.single_copies = single_copies(input, chosen->second);
    plan.notes = other_layouts(input, plan.resume, chosen->second);
  }
  const bool nothing_ever = plan.committed == Step(0) && steps.empty();
  if (plan.resume < plan.committed || (plan.resume == Step(0) && !nothing_ever))
    plan.lost = lost_at(input, paths, steps, nearly_whole(steps, plan.committed));
  return plan;
}

}  // namespace

Exposure exposure_if(const PlanInput& input, std::span<const NodeId> dead, Step newest_step) {
  std::vector<NodeLife> evicted(input.evicted.begin(), input.evicted.end());
  Step committed = std::max(input.committed, newest_step);
  bool anybody = false;
  const auto dies = [dead](NodeLife life) { return contains(dead, life.node); };
  for (const Inventory& inventory : input.inventories) {
    committed = std::max(committed, inventory.committed);
    if (dies(inventory.life)) {
      evicted.push_back(inventory.life);
    } else if (!contains(input.evicted, inventory.life)) {
      anybody = true;
    }
  }
  for (const Member& member : input.seats)
    if (dies(member.life) && !contains(evicted, member.life)) evicted.push_back(member.life);

  PlanInput after = input;
  after.evicted = evicted;
  after.committed = committed;
  Plan plan = plan_restore(after);
  Exposure exposure;
  exposure.resume = plan.resume;
  exposure.recoverable = plan.resume > Step(0) || (committed == Step(0) && anybody);
  exposure.steps_lost = committed > plan.resume ? committed.value - plan.resume.value : 0;
  exposure.lost = std::move(plan.lost);
  if (exposure.recoverable) return exposure;
  after.unproven = true;
  const Step unproven = plan_restore(after).resume;
  if (unproven > Step(0))
    exposure.lost.push_back(text("the job would go on from step ", unproven,
                                 " as other seats have it, which was declared equal and which nothing proves"));
  return exposure;
}

std::uint64_t digest_of(std::span<const Source> sources, Step resume) {
  std::uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a over whole words
  const auto mix = [&digest](std::uint64_t word) {
    digest = (digest ^ word) * 0x100000001b3u;
    digest ^= digest >> 29;
  };
  mix(resume.value);
  for (const Source& source : sources) {
    mix(source.seat.value);
    mix(static_cast<std::uint64_t>(source.kind));
    mix(source.from.node.value);
    mix(source.from.incarnation.value);
    mix(source.slot_generation.value);
    mix(source.step.value);
    mix(source.extent.begin);
    mix(source.extent.end);
    if (source.kind == SourceKind::path) mix(source.of.value);
  }
  return digest;
}

}  // namespace pawl::job
