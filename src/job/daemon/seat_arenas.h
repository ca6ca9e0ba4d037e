// SeatArenas: the arena for a seat, for its trainer and for the threads that bring its state here.
//
// Memory belongs to the loop; the calls named from_thread hand the question to it and wait for the answer.
#pragma once

#include "job/daemon/memory.h"
#include "job/daemon/node_context.h"

namespace pawl::job {

class SeatArenas {
 public:
  SeatArenas(NodeContext& context, Memory& memory) : context_(context), memory_(memory) {}

  // The own arena for `spec`; never in place of one that may be needed and has another layout. Fails: `invalid` then,
  // with the first differences; `full`.
  [[nodiscard]] Result<ArenaHandle> own(const ArenaSpec& spec);
  [[nodiscard]] Result<ArenaHandle> own_from_thread(const ArenaSpec& spec);
  [[nodiscard]] Result<ArenaHandle> replica_from_thread(const ArenaSpec& spec);
  [[nodiscard]] ArenaHandle find_from_thread(ArenaKind kind, Seat seat);  // nullptr: none

 private:
  NodeContext& context_;
  Memory& memory_;
};

}  // namespace pawl::job
