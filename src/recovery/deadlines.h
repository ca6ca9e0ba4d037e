// One deadline budget from which all other waits are derived and named.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace pawl {

struct Deadlines {
  Duration heartbeat_interval;   // between neighbours
  Duration silence;              // no word from an accepting neighbour: pawld restarts within this, or the node is silent
  Duration communication_grace;  // a collective failed: how long a death may take to show before rolling back in place
  Duration trainer_exit_grace;   // a trainer died: how long the rest of its node may take to die with it
  Duration inventory;            // a member that has not reported its frozen inventory is evicted
  Duration trainer_free;         // a trainer that has not joined is killed and restarted in its seat
  Duration restore;              // a member that is not ready is evicted
  Duration lease;                // a node's registration; also the age at which a cut-off node fences itself
  Duration fence;                // a window not copied out by then is void
};
// budget: JobSpec::deadline_ms.
[[nodiscard]] Deadlines derive_deadlines(Duration budget);

// Whether a daemon must fence itself (kill its trainers, drop its slots, come back as a spare): its lease is older than
// its bound by BOOTTIME, and either it was stalled itself, or none of its neighbours has been heard since. The control
// alone being away fences nobody.
struct FenceView {
  Duration now_boottime;
  Duration lease_renewed_boottime;
  Duration last_tick_boottime;      // of our own loop, before this one
  Duration neighbour_heard_boottime;  // latest of all neighbours; 0 if there are none
  bool has_neighbours = false;
};
[[nodiscard]] bool must_fence(const FenceView& view, const Deadlines& deadlines);

// Whether a local trainer hangs: no progress for `hang` outside a collective (or it is stopped).
struct TrainerView {
  Duration since_progress;
  std::uint32_t phase = 0;   // pawl_phase
  bool stopped = false;      // process state T
  bool in_step = false;
};
[[nodiscard]] bool hangs(const TrainerView& view, Duration hang, const Deadlines& deadlines);

}  // namespace pawl
