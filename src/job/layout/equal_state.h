// EqualState: what a seat declared to be equal on several seats, and on which: one group for each set of mesh axes.
//
// A seat's entries that are equal along the same axes of a mesh, in the order of name and role, are a group's stream. The
// group's name is the axes and the seat's place on all others, so each seat computes alone to which groups it belongs. Where
// two seats of a group have an entry at the same place of their payloads, its bytes may be read from either: `extents` are
// those places, and what lies between their entries is zero. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "job/layout/extent.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {

struct SeatsAlong {  // first, first + stride, ...: `count` of them
  Seat first;
  std::uint32_t stride = 1;
  std::uint32_t count = 1;
  [[nodiscard]] bool has(Seat seat) const;
  auto operator<=>(const SeatsAlong&) const = default;
};
// Of that stride and count, the one in which `seat` is, as the axes of a mesh cut them: from a multiple of stride times count.
[[nodiscard]] SeatsAlong seats_with(Seat seat, std::uint32_t stride, std::uint32_t count);

struct EqualExtent {         // of the payload
  Extent extent;             // to kStreamEnd: the rest of the payload is in it
  std::uint64_t digest = 0;  // of the group's name, and of what lies there at which place
  auto operator<=>(const EqualExtent&) const = default;
};

struct EqualState {
  std::string group;  // "data: dp of tp=1"
  SeatsAlong seats;
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;  // of the entries, wherever they lie in the payload
  std::vector<EqualExtent> extents;
};

inline constexpr std::size_t kEqualExtentsMax =
    16;  // of a group, the longest; more would not pay their line in a record

// Of the groups with more than one seat, by name. Left out are those along axes between which others lie, whose seats are no
// SeatsAlong. `layout` was built or parsed, and `seat` is one of its world. Cost: O(n log n) in entries.
[[nodiscard]] std::vector<EqualState> equal_state_of(const SeatLayout& layout, Seat seat);

}  // namespace pawl::job
