// KeeperMessages: what a node's keeper and its pawld say to each other. The table is in docs/protocol.md.
//
// Each message is one packet of text on a SOCK_SEQPACKET pair: its word, then its fields. Descriptors travel beside it.
// parse_...() are the inverse of packet_of(). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"

namespace pawl::job {

// --- pawld -> keeper

struct HoldSegment {  // descriptor: the segment. The keeper gives it to the next pawld
  std::string name;
};
struct DropSegment {
  std::string name;
};
struct SpawnTrainer {  // answered by TrainerSpawned or TrainerExited
  std::uint32_t local_index = 0;
  std::vector<std::string> environment;  // "NAME=value", over the keeper's own
};
struct KillTrainer {  // answered by TrainerExited
  std::uint32_t local_index = 0;
};
struct ShowTrainer {  // it has seat 0, or has it no more: whether its output is what people see
  std::uint32_t local_index = 0;
  bool shown = false;
};
struct PawldAlive {          // every heartbeat
  Duration lease_renewed{};  // boottime
};
struct FenceNode {  // kill the trainers and this pawld; all that is held stays, and so does the incarnation
  std::string reason;
};
struct ResetNode {  // drop what is held, too, and begin again with a new incarnation
  std::string reason;
};
struct EndNode {
  std::uint32_t code = 0;  // exit code, 0..255
};
using ToKeeper = std::variant<HoldSegment, DropSegment, SpawnTrainer, KillTrainer, ShowTrainer, PawldAlive, FenceNode,
                              ResetNode, EndNode>;

// --- keeper -> pawld

struct TrainerSpawned {  // also once for each living trainer when a new pawld starts
  std::uint32_t local_index = 0;
  std::uint64_t pid = 0;
  std::uint64_t start_time = 0;
};
struct TrainerExited {
  std::uint32_t local_index = 0;
  std::uint64_t pid = 0;
  std::string how;        // "exited 1", and where its output is
  std::string said = {};  // the end of what it wrote to its stderr, lines
};
struct StopAsked {  // this node was told to end, and does so by then; pawld answers with EndNode. Also to a new pawld
  std::uint32_t signal = 0;
  std::uint64_t grace_ms = 0;
};
using FromKeeper = std::variant<TrainerSpawned, TrainerExited, StopAsked>;

[[nodiscard]] std::string packet_of(const ToKeeper& message);
[[nodiscard]] std::string packet_of(const FromKeeper& message);
// nullopt: not such a message.
[[nodiscard]] std::optional<ToKeeper> parse_to_keeper(std::string_view packet);
[[nodiscard]] std::optional<FromKeeper> parse_from_keeper(std::string_view packet);

}  // namespace pawl::job
