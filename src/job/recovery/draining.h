// Draining: how the seats of a node that an operator takes out move to a spare without a step being done again.
//
// All trainers must stand between the same two steps when the recovery opens, and the step before must be committed:
// then it is the resume step, and nobody has begun a later one.
//   1. The trainer in the leaving node's lowest seat waits at its next step_begin; say it was about to begin s. So all
//      others are in s at most, and none of them can finish s without it.
//   2. Its pawld writes `pause` {generation, node, step: s}: nobody begins a step after s. Every member's pawld tells
//      its trainers' pages, and acknowledges. Only when all have does the trainer of 1. begin s.
//   3. All finish s, and wait at the next step_begin while s is captured and sent.
//   4. When s is committed, the first member that stays opens the next generation with the leaving node evicted.
// A drain may be ordered before anything is committed, or while the trainer evaluates: then 1. waits for its next
// step_begin, for as long as a trainer may take to start.
// Nothing of this is needed for safety: a recovery that opens at another moment costs a step, and loses nothing. So a
// death meanwhile is a recovery as ever; a pause counts in its own generation only; and whoever waits too long goes on.
// All obey the pause that stands until its order is gone: who follows registrations and who does not may see spares come and go at
// different moments, and some would go on while others wait for them. If the last spare goes then, and is not back soon, the leaving
// node gives up.
// One node at a time, only while a spare is free for it that answers on its data link: the leaving node asks before its
// trainer waits, and whoever opens the generation before it does. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "job/recovery/deadlines.h"
#include "job/recovery/decide.h"

namespace pawl::job {

// The key `pause`.
struct Pause {
  Generation generation;
  NodeLife leaving;           // for whose sake
  Step step;                  // the last that anybody begins
  std::int64_t revision = 0;  // of the key
  bool operator==(const Pause&) const = default;
};

// What operators ask for, and how far it has come, from the job's keys.
struct DrainOrders {
  std::vector<NodeLife> leaving;  // order/drain/<node>, by node
  std::optional<Pause> pause;
  std::map<NodeId, std::int64_t> paused;  // pause_ack/<generation>/<node>: which revision of `pause` its trainers know
};

// The step_begin at which the trainer of this node's lowest seat waits because its page says so.
struct PausedTrainer {
  Step before;  // the step that it is about to begin; 0: it doesn't wait
  Duration since{};
};

struct DrainView {
  const JobSpec& spec;
  const JobState& state;
  const DrainOrders& orders;
  std::span<const NodeRecord> nodes;
  std::span<const NodeId> cordoned;
  Step committed;  // as far as this node knows
  PausedTrainer waits;
  Duration now{};
  // Of the spares that this node has asked: they did not answer, or have not yet.
  std::span<const NodeLife> silent = {};
  std::span<const NodeLife> unprobed = {};
  bool voided = false;      // the pause's step: it is never committed in this generation
  Duration spareless = {};  // for so long no spare has been free for this node, which is to leave
  Duration leading = {};    // for so long it is this node's turn to leave, in this generation
  bool knows_nodes = true;  // else it only does what a pause says: who leaves, and who opens, know who is registered
};
inline constexpr Step kPauseAtNext{1};  // of a page: don't begin another step, whichever it is
struct DrainDuties {
  std::optional<NodeLife> leaving;  // who is being drained now
  Step page;                        // for the pages of this node's trainers: no step after this one; 0: go on
  Step first_page;                  // the same for the one in its lowest seat
  std::optional<Pause> propose;
  bool acknowledge = false;    // once the pages say it
  std::optional<Cause> open;   // the next generation
  std::string give_up;         // why the drain is given up; of the leaving node, and of who would open
  bool expired = false;        // this node has waited too long for others: the pause counts no more here
  std::vector<NodeLife> done;  // orders that nobody needs any more; of the leader
};
// Whose turn it is; nobody: no order can be followed now.
[[nodiscard]] std::optional<NodeLife> who_leaves(const DrainView& view);
// An order stands for this node, and no spare is free for it.
[[nodiscard]] bool lacks_spare(const DrainView& view, NodeLife self);
// Whether this node has to know which spares answer.
[[nodiscard]] bool must_ask_spares(const DrainView& view, NodeLife self);
[[nodiscard]] DrainDuties decide_draining(const DrainView& view, NodeLife self, const Deadlines& deadlines);

// Why this node can't be drained: no error, or a sentence with its remedy. For whoever gives the order. `others`: lives
// that are being drained, and will need spares of their own.
[[nodiscard]] Status may_drain(const JobSpec& spec, const JobState& state, std::span<const NodeRecord> nodes,
                               std::span<const NodeId> cordoned, std::span<const NodeLife> others, NodeLife leaving);

}  // namespace pawl::job
