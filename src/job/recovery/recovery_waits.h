// Recovery waits: what a seat of a node that restores waits for, in words, and for how long it may.
//
// A wait keeps its kind as long as it is the same one, so its age is known: whoever looks at the job is told after
// kWaitToldAfter, and again from time to time. Some waits are bounded where they are judged: a trainer that does not join or
// restore is killed (local_trainer.h), a source that is gone is struck out (decide.h), a member that is not ready goes
// (duties.h). Here: what the own node does in other tasks, of which nobody else would notice that it stands still. When its
// deadline has passed the node gives up its seats, and says why; a spare may do better.
// Pure. Who asks is job/daemon/recovery_watch.h.
#pragma once

#include <optional>
#include <string>

#include "base/ids.h"
#include "job/membership/job_state.h"
#include "job/recovery/deadlines.h"

namespace pawl::job {

inline constexpr Duration kWaitToldAfter = std::chrono::seconds(2);
inline constexpr Duration kWaitToldEvery = std::chrono::seconds(8);  // then after twice as long each time, up to
inline constexpr Duration kWaitToldEveryMax = std::chrono::minutes(5);
// Of a fetch that begins anew again and again and never comes further than it was: after so many tries what they bring
// no longer counts.
inline constexpr std::uint32_t kFruitlessTriesMax = 5;

// The fetch of a seat's state from the node that has it.
struct FetchState {
  std::uint64_t received = 0;  // bytes of this try
  std::uint64_t total = 0;     // 0: not known yet
  std::uint32_t tries = 0;
  std::string failed;  // how the last try ended; empty: this is the first
};

// How far the trainer of a seat is on its way back.
enum class SeatTrainer : std::uint8_t {
  absent,      // no process runs, or it has not called pawl yet
  dying,       // it was killed, and its process has not ended
  leaves,      // it has not come out of the step in which the recovery found it
  joins,       // it waits for its seat
  declares,    // its layout: it waits for its arena
  rendezvous,  // it waits for what others say there
  restores,
  restored,
};

struct SeatView {
  Seat seat;
  bool begun = false;        // this node restores: nothing of an older generation touches its memory any more
  bool here = false;         // the resume step lies in its arena, or there is none
  bool arena_taken = false;  // a copy thread of its trainer may still write into that
  NodeId source;             // who has the step, if it is not here
  bool in_storage = false;   // that is a checkpoint
  std::optional<FetchState> fetch;
  std::uint64_t bytes = 0;  // of its arena, or of the largest in the job, as far as this node knows
  SeatTrainer trainer = SeatTrainer::absent;
  bool ready = false;  // it has restored, and its node has said so
  bool fresh = false;  // the job starts: layouts and arenas wait for seat 0's, whenever that comes
};

enum class WaitKind : std::uint8_t {
  none,
  copies,
  trainer_end,
  trainer_start,
  trainer_leave,
  source_address,
  fetch,
  seating,
  arena,
  rendezvous,
  trainer_restore,
  ready,
};
struct WaitNotes {
  WaitKind kind = WaitKind::none;
  Duration since{};
  Duration told_at{};          // 0: not yet
  Duration told_pause{};       // until it is told once more
  std::uint64_t received = 0;  // of a fetch: as much as this try had brought when it was last looked at
  std::uint64_t most = 0;      // that any try has brought
  std::uint32_t most_try = 0;  // which one that was
  Duration moved_at{};         // when bytes last came
};
struct SeatWait {
  std::string what;  // "412 MiB from node 2, 3rd try: connection refused"
  Duration age{};
  std::optional<Duration> deadline;  // of those that are judged here, as an age; of a fetch each byte moves it on
};
struct WaitVerdict {
  WaitNotes notes;
  std::optional<SeatWait> wait;  // nullopt: the seat is ready
  bool tell = false;             // now is the time to tell people; who does notes it (note_told)
  std::string give_up;           // not empty: the deadline has passed, why this node can't do it
};
[[nodiscard]] WaitVerdict judge_wait(const SeatView& view, WaitNotes notes, Duration now, const Deadlines& deadlines);

[[nodiscard]] bool is_due(const WaitNotes& notes, Duration now);  // to be told
void note_told(WaitNotes& notes, Duration now);

// So long nothing may come of a seat's state of that many bytes, wherever it stands: at the source, which may have to
// prove it first, on the wire, or in memory that is being made here.
[[nodiscard]] Duration fetch_deadline(std::uint64_t bytes, const Deadlines& deadlines);

}  // namespace pawl::job
