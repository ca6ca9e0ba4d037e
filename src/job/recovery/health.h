// Health: whether a node may be given seats, from what it has tried on itself.
//
// A node that has no seat is judged before it gets one, and again and again while it is found unfit. A member is not:
// whether it goes on is seen from its work. Whether a seat's arenas fit into its memory is asked elsewhere
// (job/daemon/spare_memory.h). The daemon tries (job/daemon/health_gate.h); facts in, a reason out. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/recovery/deadlines.h"

namespace pawl::job {

inline constexpr std::uint64_t kHealthArenaBytes = std::uint64_t{256} << 10;  // made, filled and read back
inline constexpr std::size_t kHealthPeersMax = 3;                             // that are asked
// Of two nodes' wall clocks, beyond the way there and back. Only logs and what people read depend on them: it takes a clock
// that was never set.
inline constexpr Duration kClockApartMax = std::chrono::seconds(60);
inline constexpr Duration kDiskWithin = std::chrono::seconds(10);   // a disk has to answer
inline constexpr Duration kHealthAgain = std::chrono::seconds(30);  // until an unfit node is looked at again

// A member that was asked for its status, over the network on which copies travel.
struct HealthPeer {
  NodeId node;
  Status answered;
  Duration clock_ahead{};  // of ours
  Duration took{};
};
struct HealthFacts {
  Status arena;
  Status disk;                    // the run directory took a write, and a sync, within kDiskWithin
  Status probe;                   // the operator's command (--health-check)
  std::vector<HealthPeer> peers;  // empty: there is nobody to ask
};
struct Unfit {
  std::string why;   // a sentence without the node
  Duration again{};  // look again after this
};
// nullopt: it may have seats. One peer that doesn't answer, or whose clock is off, says more of that peer than of this
// node: all must.
[[nodiscard]] std::optional<Unfit> judge_health(const HealthFacts& facts, const Deadlines& deadlines);

}  // namespace pawl::job
