// Inventory: what one daemon's frozen memory holds, and the record by which it reports that in a recovery.
//
// One leader reads such a record of every node, so it is a short text: seats that hold the same share a line.
//
//   inventory 3 12.1700000000000000012 generation 3 committed 41 frozen_ms 1800000000000
//   alive 96-103
//   replica 88-95 2.41 2.42.dirty layout F5ny5h1mcsI
//   own_arena 96-103 2.41 2.42 layout F5ny5h1mcsI
//   equal 96-103 0+1*512 0-8589934592 Xk3b9q2LmPA
//   end
//
// The last row: these bytes of the own arenas of 96 to 103, each with 511 other seats, side by side, were declared equal. A slot
// that holds only a part of its stream says which: "replica 3-3 2.41:0-4096 layout ..."; one that is torn: "2.41.torn". docs/protocol.md has the grammar.
// Pure. Parsing refuses what it does not know (Code::corrupt, naming the line): another version, words missing or too many,
// numbers out of range, slots that are not in order, text beyond kRecordBytesMax, more than kInventorySlotsMax slots. It
// never aborts.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "job/layout/equal_state.h"
#include "job/layout/extent.h"
#include "job/membership/job_state.h"

namespace pawl::job {

struct InventoryItem {
  Seat seat;
  SourceKind kind = SourceKind::nothing;  // own_arena or replica
  Generation slot_generation;
  Step step;
  SlotState state = SlotState::empty;  // sealed or dirty; dirty slots are listed for the record, never a source
  std::uint64_t layout_digest = 0;
  Extent extent = {};  // of the seat's stream, in bytes: what lies there of it
  bool torn = false;   // sealed, and marked since: written while it was copied
  auto operator<=>(const InventoryItem&) const = default;
};

// A part of the seat's own slots that was declared equal on others. Whether it is, only sums can tell.
struct EqualOffer {
  SeatsAlong seats;  // `seat` among them
  EqualExtent state;
  Seat seat;
  auto operator<=>(const EqualOffer&) const = default;
};

// reports/<generation>/inventory/<node>
struct Inventory {
  NodeLife life;
  Generation generation;
  Step committed;  // greatest step this daemon knew to be committed
  std::vector<InventoryItem> items;
  std::vector<Seat> trainers_alive;  // seats here whose trainer process lives
  std::uint64_t frozen_wall_ms = 0;
  std::vector<EqualOffer> equal = {};  // of seats with own slots here
  bool operator==(const Inventory&) const = default;
};

inline constexpr std::uint32_t kInventoryVersion = 3;
inline constexpr std::size_t kInventorySlotsMax = std::size_t{1} << 18;

// Written in ascending order, and so read. Empty slots are left out: they say nothing.
[[nodiscard]] std::string to_text(const Inventory& inventory);
[[nodiscard]] Result<Inventory> parse_inventory(std::string_view record);

}  // namespace pawl::job
