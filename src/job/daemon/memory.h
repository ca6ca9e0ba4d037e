// Memory: the arenas in this node's care, its own seats' and its wards'.
//
// Segments are made here, handed to the keeper (who keeps them over our death) and adopted from it on return. All calls
// but make() belong to the loop's thread, and none of those takes time by bytes (an adopted segment is entered into the
// page table by whoever reads it); the Arena views handed out may be used by other threads as arena.h allows, and stay
// valid until drop() (HeldArena is shared, so a thread that still holds one keeps the mapping).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "env/fd.h"
#include "env/shared_memory.h"
#include "job/daemon/spare_memory.h"
#include "job/membership/inventory.h"
#include "job/membership/job_state.h"
#include "job/redundancy/progress.h"
#include "job/snapshot/arena.h"

namespace pawl::job {

struct HeldArena {
  Fd fd;
  Mapping mapping;
  Arena arena;
  Pages pages = Pages::small;
};
using ArenaHandle = std::shared_ptr<HeldArena>;

class Memory {
 public:
  struct Keeper {  // tells the keeper; see docs/protocol.md
    std::function<void(const std::string& name, int fd)> hold;
    std::function<void(const std::string& name)> drop;
    // What was dropped: to be destroyed where it may take time by its bytes. Unset: here.
    std::function<void(ArenaHandle)> let_go = {};
  };
  // `spare`, if there is one, has segments ready for make(); it outlives this.
  Memory(SharedMemory& shared, Keeper keeper, SpareMemory* spare = nullptr)
      : shared_(shared), keeper_(std::move(keeper)), spare_(spare) {}

  // A segment from the keeper ("own.3", "replica.2"). Fails: `corrupt` or `invalid` if it is none: it is then of no use;
  // `full`, `io` if it can't be read here and now: it may be sound.
  [[nodiscard]] Status adopt(const std::string& name, Fd fd);
  // The arena for spec.kind and spec.seat that is there, if its shape and layout are equal; else nullptr.
  [[nodiscard]] ArenaHandle find_equal(const ArenaSpec& spec) const;
  // A fresh one, which nobody keeps yet. Takes time by its bytes, so not on the loop: any task. Fails: `full` with need
  // and remedy.
  [[nodiscard]] Result<ArenaHandle> make(const ArenaSpec& spec) const;
  // Keeps it, in place of the one that is there.
  void put(const ArenaHandle& made);
  // All of this in one: the one that is there, or a fresh one. Only for whoever may stand still meanwhile.
  [[nodiscard]] Result<ArenaHandle> arena_for(const ArenaSpec& spec);
  [[nodiscard]] ArenaHandle find(ArenaKind kind, Seat seat) const;  // nullptr: none
  void drop(ArenaKind kind, Seat seat);
  void drop_all_but(std::span<const Seat> own, std::span<const Seat> replicas);

  // From here to unfreeze_all every slot is frozen, those of arenas that come meanwhile too: no stream that has not seen
  // its end yet can open one of them.
  void freeze_all();
  // What proved wrong here is nobody's source any more: frozen slots become empty (and stay frozen). One of which only a
  // part did is emptied at `running`.
  void empty_struck(std::span<const Struck> struck, NodeLife self);
  // A part of what the frozen slot with this word's generation and step holds is wrong: others may still read the rest.
  void note_wrong(ArenaKind kind, Seat seat, SlotWord word);
  // At `running`: what is sealed, in the lineage and right stays, all else of generations before this one becomes empty.
  void unfreeze_all(std::span<const LineageEntry> lineage, Generation running);
  [[nodiscard]] std::vector<InventoryItem> inventory() const;
  // What the layouts of own arenas declare equal on other seats. Cost: a layout is read once.
  [[nodiscard]] std::vector<EqualOffer> equal_offers();
  // What its trainer declares now, which may be another process: of the seat's slots nothing else is offered to others.
  void note_declared(const ArenaSpec& declared);
  [[nodiscard]] std::uint64_t bytes() const;                                    // of arenas
  [[nodiscard]] std::uint64_t ready_bytes() const;                              // of segments for arenas to come
  [[nodiscard]] std::uint64_t own_bytes_max() const { return own_bytes_max_; }  // of the largest own arena; any thread
  [[nodiscard]] std::vector<ArenaHandle> arenas() const;

 private:
  using Key = std::pair<ArenaKind, Seat>;
  SharedMemory& shared_;
  std::map<Key, ArenaHandle> arenas_;
  struct Offers {
    std::uint64_t layout_digest = 0;
    std::vector<EqualOffer> offers;
  };
  std::map<Seat, Offers> offers_;                         // of own arenas, as last asked
  std::map<Seat, std::vector<EqualOffer>> offers_limit_;  // where the trainer's layout is not the arena's
  void note_own_bytes();
  [[nodiscard]] Result<ReadySegment> segment_for(const ArenaSpec& spec) const;
  Keeper keeper_;
  SpareMemory* const spare_;
  std::atomic<std::uint64_t> own_bytes_max_{0};
  bool frozen_ = false;
  std::set<std::tuple<Key, Generation, Step>> wrong_;  // in a part
};

// Of an own arena.
[[nodiscard]] inline std::uint32_t own_slot_count(const JobSpec& spec) {
  return spec.checkpoints.path.empty() ? kSlotCountMin : kSlotCountPersisted;
}

// What the slots of an own arena hold, each as of one instant: an acknowledgement of another step than its word's does
// not count.
[[nodiscard]] std::vector<SlotView> slots_of(const Arena& arena);

[[nodiscard]] std::string segment_name(ArenaKind kind, Seat seat);

}  // namespace pawl::job
