// Paths: the own slots of other seats whose bytes were declared equal to a seat's own, as sources of the planner.
//
// A seat's replicas are few and chosen; its data-parallel paths are many, and have its bytes anyway. Whether they are equal
// is not asked here: whoever reads them compares sums (job/daemon/fetch.h), and strikes a path that differs for that seat only.
// Pure.
#pragma once

#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "job/membership/inventory.h"
#include "job/membership/job_state.h"

namespace pawl::job {

inline constexpr std::uint32_t kPathsMax = 4;  // of a seat, unless they lack something; as many as a fetch has streams
// Where more seats than that read from others, paths are named only for what nobody else has: no two seats have the same
// ones, so they would take a row of the state each; and seats that were lost in a row would all read from the same neighbours.
inline constexpr std::size_t kSeatsWithPathsMax = 16;
// Of all seats together, besides those that are needed: one is some 60 bytes of a state, which has room for 1 MiB.
inline constexpr std::size_t kFurtherPathsMax = 4096;

// Own slots that were declared equal on the same seats, in the order of their seats.
struct EqualSlots {
  NodeLife at;
  const InventoryItem* item = nullptr;  // an own slot that is a source for its own seat
  std::vector<const EqualOffer*> offers;
};

struct PathPart {
  NodeLife at;
  const InventoryItem* item = nullptr;  // of the other seat
  Extent extent;                        // of both seats' streams
  std::uint32_t distance = 0;  // seats of the group in between, so that seats that need paths take different ones
};

// Whether `there`, of `all` sources of a seat, are enough to restore it: they have the whole stream, and with it what proves
// paths, if the seat has any slot of its own left.
[[nodiscard]] bool are_enough(std::span<const Source> there, std::span<const Source> all);

// Whether two whole paths of that slot were struck out for `seat` because they differ: from each other, or from what the seat's
// own trainer declares.
[[nodiscard]] bool paths_differ(Seat seat, Step step, Generation generation, std::span<const Struck> struck);

class Paths {
 public:
  // `item` lies at a node that may be read from; inventory and item outlive this.
  void add(const Inventory& inventory, const InventoryItem& item);
  void finish();  // after the last one; nothing is found before
  [[nodiscard]] bool empty() const { return slots_.empty(); }
  // Of at most kPathsMax other seats, the next in the group first: what `seat` can read there at that step and generation,
  // without what was struck out for it, or for the other seat itself. Of further ones only what all of these lack.
  [[nodiscard]] std::vector<PathPart> of(Seat seat, Step step, Generation generation,
                                         std::span<const Struck> struck) const;
  // Slot generations in which any path of the seat has the step, the latest first.
  [[nodiscard]] std::vector<Generation> generations_of(Seat seat, Step step) const;

 private:
  struct Key {
    Step step;
    Generation generation;
    SeatsAlong seats;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<EqualSlots>> slots_;
  std::map<Step, std::set<std::pair<Generation, std::pair<std::uint32_t, std::uint32_t>>>> shapes_;  // stride and count
  std::map<const Inventory*, std::map<Seat, std::vector<const EqualOffer*>>> offers_;
};

}  // namespace pawl::job
