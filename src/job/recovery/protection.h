// Protection: whether the committed step still advances with the training, and what keeps it from that.
//
// No step waits for its copies, so nothing else would tell that copies are no longer made: a holder without memory, a
// cut stream, a slot that stays taken. Each node judges its own seats; a stop is said once, and so is its end.
// Pure. Who asks is job/daemon/protection_watch.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "job/membership/job_state.h"
#include "job/recovery/deadlines.h"
#include "job/snapshot/slot_word.h"

namespace pawl::job {

// So many windows must have gone by besides the deadline: where something is known to be in the way, and where nothing
// is, but copies may be slower than steps.
inline constexpr std::uint64_t kBlockedStepsMin = 2;
inline constexpr std::uint64_t kSlowStepsMin = 8;

// What a node knows of one of its seats in the generation that runs.
struct SeatProtection {
  Seat seat;
  Step reached;  // its trainer's windows are resolved up to here
  std::vector<SlotWord> slots;
  Step held;                                       // the greatest step that lies here and at every holder
  std::map<std::uint32_t, std::string> obstacles;  // by the holder's index: why it does not take what lies here
};
// Why no step after `committed` is held, a sentence; nullopt: one is, so others hold it up, or no window has been since.
struct ProtectionObstacle {
  std::string why;
  bool blocked = false;  // it does not go away by waiting
  bool operator==(const ProtectionObstacle&) const = default;
};
[[nodiscard]] std::optional<ProtectionObstacle> obstacle_of(const SeatProtection& seat, Generation generation,
                                                            Step committed);

struct ProtectionView {
  Duration now{};
  Generation generation;  // that runs
  Step committed;
  std::vector<SeatProtection> seats;  // of this node
  std::uint64_t bytes = 0;            // of their arenas: so much has to reach their holders
  bool is_root = false;               // who tells of a stop even if no seat here is its reason
  std::vector<NodeId> cut;            // to them no link stands, by which is told what every seat holds
};
// Why nothing is committed though it may be held, of a node with such a cut: a sentence.
[[nodiscard]] std::string why_cut(NodeId other);

struct ProtectionNotes {
  Generation generation;
  Step committed;
  Step reached;  // when `committed` was first seen
  Duration since{};
  bool stopped = false;
};
enum class ProtectionChange { none, stopped, resumed };
struct ProtectionVerdict {
  ProtectionNotes notes;
  ProtectionChange change = ProtectionChange::none;
};
[[nodiscard]] ProtectionVerdict judge_protection(const ProtectionView& view, ProtectionNotes notes,
                                                 const Deadlines& deadlines);

}  // namespace pawl::job
