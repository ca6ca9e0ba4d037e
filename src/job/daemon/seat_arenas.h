// SeatArenas: the arena for a seat, for its trainer and for the threads that bring its state here.
//
// Memory belongs to the loop; the calls named from_thread hand the question to it and wait for the answer. A fresh arena
// is made in a task of its own, for gigabytes take seconds; nobody makes a second one for the same seat meanwhile.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "job/daemon/equal_buckets.h"
#include "job/daemon/memory.h"
#include "job/daemon/node_context.h"

namespace pawl::job {

class SeatArenas {
 public:
  SeatArenas(NodeContext& context, Memory& memory) : context_(context), memory_(memory) {}

  using Then = std::function<void(Result<ArenaHandle>)>;
  // Calls `then` with the own arena for `spec`, on the loop: at once where it is there already. Never in place of one
  // that may be needed and has another layout, or other buckets. Fails: `invalid` then, with the first differences;
  // `full`.
  void own(const ArenaSpec& spec, Then then);
  // For a recovery to this generation; and for a stream of it, while it runs. Fail also: `cancelled` and `stale`, when
  // that is over.
  [[nodiscard]] Result<ArenaHandle> own_from_thread(const ArenaSpec& spec, Generation generation);
  [[nodiscard]] Result<ArenaHandle> replica_from_thread(const ArenaSpec& spec, Generation generation);
  [[nodiscard]] ArenaHandle find_from_thread(ArenaKind kind, Seat seat);  // nullptr: none
  [[nodiscard]] std::vector<EqualArena> equal_from_thread();              // own arenas, by what is equal on other seats
  [[nodiscard]] std::optional<ArenaSpec> spec_of(Seat seat) const;        // of its own arena; nullopt: it has none here
  // The step to resume from lies whole and frozen in the seat's own arena, as far as its header and table tell.
  [[nodiscard]] bool has(const Source& source) const;

 private:
  using Key = std::pair<ArenaKind, Seat>;
  struct Asked {
    ArenaSpec spec;
    Then then;
  };
  void find_or_make(const ArenaSpec& spec, Then then);
  // What `make` answers on the loop; `over` where it is over before or after that.
  using Make = void (SeatArenas::*)(const ArenaSpec& spec, Then then);
  [[nodiscard]] Result<ArenaHandle> from_thread(const ArenaSpec& spec, Make make, const std::function<bool()>& is_over,
                                                const Error& over);
  [[nodiscard]] Status check_layout(const ArenaSpec& spec) const;  // of an own one
  [[nodiscard]] bool holds_snapshot(const Arena& arena) const;     // that a recovery may need

  NodeContext& context_;
  Memory& memory_;
  std::map<Key, std::vector<Asked>> making_;  // who waits for the one that is being made; the first asked for it
};

}  // namespace pawl::job
