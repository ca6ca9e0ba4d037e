// PersistRound: which step is written to storage next, and how far that is. Decisions of the root of the tree. Pure.
//
// A round is one attempt of one step T, told before T is committed: each node pins T's slots before its trainers learn of
// a greater committed step, so that nobody may overwrite them, and says so up the tree; when all seats are pinned they are
// written, each by its own node, and published together, once a later step is committed: that a step was written while it
// was copied may be found as late as the end of its window. T void, a seat that could not pin it, another generation: the
// round is given up, and the next one is told further ahead. What could not be written (a full disk) is not tried again
// before the next step that is due.
// A trainer may ask for a step out of turn: that one, or the next that can be kept, is ordered at once, in place of a later one of
// which no seat is to keep anything yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "job/persist/persist_record.h"
#include "job/redundancy/progress.h"

namespace pawl::job {

struct PersistPolicy {  // one of these
  std::uint64_t every_steps = 0;
  Duration every{};
  bool is_auto =
      false;  // one after another, as fast as the storage takes them, with a pause: the least that can be lost
};
inline constexpr Duration kAutoPause = std::chrono::seconds(10);  // for all else that the storage has to do

// Whether a node may still pin a step, whose trainers' pages show this: else somebody may be about to overwrite it.
[[nodiscard]] inline bool may_pin(Progress shown, Step step) {
  return shown.committed <= step && !shown.is_void(step);
}

// What the seats below a node have done of an attempt.
struct PersistTally {
  std::uint32_t pinned = 0;   // seats
  std::uint32_t written = 0;  // seats, of those
  std::uint32_t proven = 0;   // seats, of those: the step's window is over, and it was not written meanwhile
  std::uint64_t bytes = 0;    // written so far
  std::string failed;         // why one of them can't; empty: none
  bool unpinned = false;      // it failed for want of the step, not of storage
  Step wanted;                // the greatest that a trainer has asked for; 0: none has
  bool operator==(const PersistTally&) const = default;
};
void add(PersistTally& all, const PersistTally& more);

inline constexpr Duration kPersistPatience = std::chrono::minutes(2);  // nothing is written, nobody answers
inline constexpr std::uint32_t kLastTries = 3;                         // of the job's last step

struct PersistView {
  PersistPolicy policy;
  PersistRecord record;
  Generation running;
  Progress progress;
  std::uint32_t seat_count = 0;
  PersistTally tally;        // of the record's attempt
  Duration since_change{};   // of record or tally
  Duration since_ended{};    // of the last attempt; before the first: since the job runs
  std::optional<Step> last;  // every seat has ended its steps, and this one, the last, is committed
  bool has_folder = true;    // this root has begun the folder of `writing`
};

struct PersistMove {
  enum class Kind : std::uint8_t { none, order, write, publish, give_up };
  Kind kind = Kind::none;
  Step step;           // of order
  std::string why;     // of give_up
  bool again = false;  // of give_up: for want of the step; another one is ordered at once
  bool operator==(const PersistMove&) const = default;
};
[[nodiscard]] PersistMove next_persist_move(const PersistView& view);
// As a generation that goes on from `resume` finds it. What was published of a later step is of another history: that step is
// written anew.
[[nodiscard]] PersistRecord going_on_from(const PersistRecord& record, Step resume);
// The record after it.
[[nodiscard]] PersistRecord after_order(const PersistRecord& record, Generation running, Step step);
[[nodiscard]] PersistRecord after_begin(const PersistRecord& record, std::string folder);
[[nodiscard]] PersistRecord after_publish(const PersistRecord& record, std::uint64_t wall_ms);
[[nodiscard]] PersistRecord after_give_up(const PersistRecord& record, const PersistMove& move, std::uint64_t wall_ms);

// Whether a job of which every seat has ended may end now, as far as storage is concerned.
[[nodiscard]] bool may_end(const PersistView& view);

}  // namespace pawl::job
