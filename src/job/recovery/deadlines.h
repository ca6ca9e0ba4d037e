// One deadline budget from which all other waits are derived and named.
//
// The budget (default 3 s, taken as 0.5 s .. 10 min) is how long a silent node may stay unnoticed. Always:
// heartbeat_interval * 10 <= silence < lease, inventory <= trainer_free <= restore, both graces < silence, and
// lease / 4 < absence < lease.
// Pure.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/ids.h"

namespace pawl::job {

struct Deadlines {
  // Of the budget                  at 3 s
  Duration heartbeat_interval;   // 1/60    50 ms  between neighbours
  Duration silence;              // 1       3 s    no word from an accepting neighbour: pawld restarts within this, or
                                 //                the node is silent
  Duration redial;               // 1/8     375 ms nothing was heard on a link: another is made beside it. At least
                                 //                200 ms. What cuts all links for less than silence - redial evicts
                                 //                nobody
  Duration communication_grace;  // 1/10    300 ms a collective failed: how long a death may take to show before rolling
                                 //                back in place
  Duration trainer_exit_grace;   // 1/150   20 ms  a trainer died: how long the rest of its node may take to die with it
  Duration inventory;     // 1       3 s    a member that has not reported its frozen inventory is evicted; at least
                          //                kControlRetry
  Duration trainer_free;  // 10/3    10 s   a trainer that has not joined is killed and restarted in its seat
  Duration restore;       // 10      30 s   a member that is not ready is evicted; at least 10 s: bytes take time
  Duration fetch;         // 10/3    10 s   nothing comes of a slot: its fetch connects anew; a third of restore
  Duration lease;         // 5/3     5 s    a node's registration, whole seconds, at least 2; also the age at
                          //                which a cut-off node fences itself
  Duration absence;       // 2/3     2 s    a registration that has been gone for longer is not about to return:
                          //                a quarter of a lease, in which all others that lost the control at the
                          //                same moment lose theirs, and a quarter of the silence for the news
  Duration leader;        // 1       3 s    a recovery stands still and nothing new has come: another member leads.
                          //                A pawld that restarts does so within this
  Duration fence;         // 10/3    10 s   a window not copied out by then is void
  Duration protection;    // 10/3  10 s   windows go by and the committed step stands still for longer: that is said
};
// A member of the control takes a call and says nothing (it was stopped): so long until the call has been made to another
// one (ControlOptions::deadline). Whoever has to put a key in time may need it.
inline constexpr Duration kControlRetry = std::chrono::seconds(2);

// What takes time by its bytes, and how many a second at least: what a deadline has to leave room for, not a forecast.
inline constexpr std::uint64_t kGivenBackPerSecond = std::uint64_t{4}
                                                     << 30;                 // by a process that ends, before it is gone
inline constexpr std::uint64_t kMovedPerSecond = std::uint64_t{100} << 20;  // into another node's memory
[[nodiscard]] Duration time_to_give_back(std::uint64_t bytes);
[[nodiscard]] Duration time_to_move(std::uint64_t bytes);

// Not of the budget: what a script may still do when the job has finished (evaluate, save its model).
inline constexpr Duration kLeaveMax = std::chrono::minutes(10);

// budget: JobSpec::deadline_ms.
[[nodiscard]] Deadlines derive_deadlines(Duration budget);

// Whether a daemon must fence itself (kill its trainers, drop its slots, come back as a spare): its lease is older than
// its bound by BOOTTIME, and either it was stalled itself, or it hears no more than half of the members, itself among
// them: the others may have gone on without it. Who has no links with some of the members, as in larger jobs, can't count
// them, and fences only if it hears nobody: to fence is to drop what may be the last copy. The control alone being away
// fences nobody.
struct FenceView {
  Duration now_boottime;
  Duration lease_renewed_boottime;  // 0: never
  Duration last_tick_boottime;      // of our own loop, before this one
  std::uint32_t members = 1;        // itself and those it has links with, but for those that are proven dead
  std::uint32_t heard = 1;          // of these itself, and those heard within the deadline for silence
  bool knows_all = true;            // there are no others
};
[[nodiscard]] bool must_fence(const FenceView& view, const Deadlines& deadlines);

// Whether a local trainer hangs: no progress for `hang` outside a collective (or it is stopped).
struct TrainerView {
  Duration since_progress;
  std::uint32_t phase = 0;  // pawl_phase
  bool stopped = false;     // process state T
  bool in_step = false;
};
[[nodiscard]] bool hangs(const TrainerView& view, Duration hang, const Deadlines& deadlines);

}  // namespace pawl::job
