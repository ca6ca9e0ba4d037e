// Memory: the arenas in this node's care, its own seats' and its wards'.
//
// Segments are made here, handed to the keeper (who keeps them over our death) and adopted from it on return. All calls
// belong to the loop's thread; the Arena views handed out may be used by other threads as arena.h allows, and stay
// valid until drop() (HeldArena is shared, so a thread that still holds one keeps the mapping).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "env/fd.h"
#include "env/shared_memory.h"
#include "job/membership/job_state.h"
#include "job/snapshot/arena.h"

namespace pawl::job {

struct HeldArena {
  Fd fd;
  Mapping mapping;
  Arena arena;
};
using ArenaHandle = std::shared_ptr<HeldArena>;

class Memory {
 public:
  struct Keeper {  // tells the keeper; see docs/protocol.md
    std::function<void(const std::string& name, int fd)> hold;
    std::function<void(const std::string& name)> drop;
  };
  Memory(SharedMemory& shared, Keeper keeper) : shared_(shared), keeper_(std::move(keeper)) {}

  // A segment from the keeper ("own.3", "replica.2"). Fails: `corrupt`; it is then dropped.
  [[nodiscard]] Status adopt(const std::string& name, Fd fd);
  // The arena for spec.kind and spec.seat: the one that is there if its shape and layout are equal, else a fresh one in
  // its place. Fails: `full` with need and remedy.
  [[nodiscard]] Result<ArenaHandle> arena_for(const ArenaSpec& spec);
  [[nodiscard]] ArenaHandle find(ArenaKind kind, Seat seat) const;  // nullptr: none
  void drop(ArenaKind kind, Seat seat);
  void drop_all();

  void freeze_all();
  // At `running`: what is sealed, in the lineage and not struck out stays, all else becomes empty.
  void unfreeze_all(std::span<const LineageEntry> lineage, std::span<const Struck> struck);
  [[nodiscard]] std::vector<InventoryItem> inventory() const;
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  using Key = std::pair<ArenaKind, Seat>;
  SharedMemory& shared_;
  std::map<Key, ArenaHandle> arenas_;
  Keeper keeper_;
};

[[nodiscard]] std::string segment_name(ArenaKind kind, Seat seat);

}  // namespace pawl::job
