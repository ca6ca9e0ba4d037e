// Questions: what this node answers to whoever asks it: its status, its inventory, and the holds of a drill. JSON, as in
// docs/protocol.md. Reads the other parts; only a drill's holds change anything.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "job/daemon/holds.h"
#include "job/daemon/memory.h"
#include "job/daemon/neighbours.h"
#include "job/daemon/node_context.h"
#include "job/daemon/recovery_watch.h"
#include "job/daemon/trainers.h"
#include "job/persist/persist_round.h"
#include "job/recovery/stragglers.h"
#include "job/redundancy/equal_sums.h"
#include "job/redundancy/progress.h"

namespace pawl::job {

class Questions {
 public:
  struct Parts {
    NodeContext& context;
    Trainers& trainers;
    Memory& memory;
    Holds& holds;
  };
  struct Hooks {
    std::function<Progress()> progress;
    std::function<std::optional<Duration>()> lease_age;  // nullopt: it was never registered
    std::function<std::uint64_t()> bytes_sent;           // over the wire, and received
    std::function<std::uint64_t()> bytes_received;
    std::function<std::uint64_t()> bytes_spared;
    std::function<std::vector<std::string>()> stopped_by;     // why protection has stopped
    std::function<std::string()> unhealthy = {};              // why this node may get no seats; empty: it may
    std::function<std::vector<Straggler>()> stragglers = {};  // that the root of the tree knows
    std::function<std::vector<Compared>()> differing = {};    // the same
    std::function<std::pair<PersistRecord, PersistTally>()> checkpoints = {};
    std::function<std::vector<Neighbours::View>()> neighbours;
    std::function<LoopTurns()> loop_turns;
    std::function<std::vector<RecoveryWatch::Wait>()> waits = {};  // of the recovery that is under way
  };
  Questions(Parts parts, std::string token, Hooks hooks)
      : parts_(parts), token_(std::move(token)), hooks_(std::move(hooks)) {}

  // `local`: over the Unix socket; others must show the token.
  [[nodiscard]] std::string answer(const std::string& question, bool local);

 private:
  [[nodiscard]] std::string status_json() const;
  [[nodiscard]] std::string inventory_json() const;
  [[nodiscard]] std::string hold_json(const std::string& phase, std::uint32_t local_index, std::uint64_t step);
  void release_holds();

  Parts parts_;
  const std::string token_;
  Hooks hooks_;
};

}  // namespace pawl::job
