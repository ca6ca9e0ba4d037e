// The decisions of a recovery: values in, values and a reason out. The loop that asks is in job/daemon/.
//
// running -> quiescing(g+1): open_generation. quiescing -> restoring: decide_restore, once every member that is not
// evicted has reported its frozen inventory. restoring -> running: decide_running. Who misses a deadline is evicted by
// a further generation over the same frozen slots. Every function is pure and total; `now` is an argument; equal
// arguments give equal answers on every node, so any daemon can carry on what another began.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "job/membership/inventory.h"
#include "job/membership/job_state.h"
#include "job/recovery/classes.h"
#include "job/recovery/lineage.h"

namespace pawl::job {

// The first generation (1, restoring from step 0): enough healthy nodes with parked trainers. The lowest node ids
// become members, in order. StateMove to failed if they are in too few failure domains for the copies, without consent.
struct FormingView {
  JobSpec spec;
  std::vector<NodeRecord> nodes;
  std::uint64_t waited_ms = 0;        // since can_form(); lets members of a lower id come in late
  std::vector<NodeId> cordoned = {};  // these get no seat
};
struct Wait {
  std::string what;               // a named wait: "2 of 4 nodes", "inventory of node 3", "a spare for seat 2"
  std::vector<NodeLife> late;     // whom it waits for: evicted if the deadline passes
  bool without_deadline = false;  // e.g. for a spare
  Step committed = Step(0);       // known by now. Written into the state with `what`, so that who knows it may go
};
struct StateMove {
  JobState next;  // to be written by compare-and-swap
  std::string why;
};
using Decision = std::variant<Wait, StateMove>;

[[nodiscard]] bool can_form(const FormingView& view);  // enough nodes, whoever they are
[[nodiscard]] Decision decide_forming(const FormingView& view, NodeLife self);

// g+1 because of `cause`. Dead or silent nodes of the cause are evicted, its trainer goes to `restart`. The answer is a
// Wait (with no `late`) where the state already accounts for the cause (node evicted, or not a member any more; seat
// already in `restart` of this generation) or the job has ended. What happened before in the same recovery (evicted,
// struck, restart, causes) is carried over. Also a Wait: a communication fault while quiescing (all roll back anyway),
// a source that is not read from any more, and a corrupt source that names no new one. classes.h says what follows from a kind: roll back in place, restart,
// evict, or StateMove to failed (in the same generation). A leader that is no member is replaced without a new generation.
// Of a communication fault `seat` is who reports it and `node` the suspect (suspect.h), if there is one: it is replaced the
// second time that it is named without a new committed step. `committed`: the greatest that this node knows of.
// Of a source that was not reached (`node`) `seat` is whose state it has: all roll back and the next plan passes it over
// where another copy is; the second time without a new committed step the seat moves to a spare, if one is free or waited for (`--no-wait`: else
// the job ends).
// `cause` must be of the current generation, but nodes are recognised by their lives. The next leader is `self`.
[[nodiscard]] Decision open_generation(const JobState& state, const Cause& cause, NodeLife self,
                                       std::span<const Struck> struck = {}, Step committed = Step(0));
// The same for several at once, in one generation: two members missed one deadline.
[[nodiscard]] Decision open_generation(const JobState& state, std::span<const Cause> causes, NodeLife self,
                                       std::span<const Struck> struck = {}, Step committed = Step(0));

// What a recovery waits for while these have not reported (quiescing) or are not ready (restoring).
[[nodiscard]] std::string wait_for_reports(JobPhase phase, std::span<const NodeLife> missing);

struct QuiescingView {
  const JobSpec& spec;
  const JobState& state;               // not copied: it may have 100,000 seats
  std::vector<Inventory> inventories;  // of state.generation; of lingering nodes, too
  std::vector<NodeRecord> nodes;       // that are registered: spares among them. Surviving members may be left out
  std::vector<NodeId> cordoned = {};   // of these none becomes a member
  std::vector<NodeLife> silent = {};   // spares that did not answer on their data link: only if no other is left
  bool lingering_late = false;         // who lingers has had the time to report (duties.h)
  std::vector<Step> stored = {};       // of which checkpoints were published, the newest first
  // Another world, if one is wished: of each of its seats the seat before it, by the number by which that one's state goes.
  std::optional<std::vector<Seat>> wished = {};
};
// Wait, or StateMove to restoring, or StateMove to failed with the lost shards named (never a guess). A dead node's seats go to a
// healthy registered node that is no member, was not evicted, is not cordoned and has enough parked trainers (in the order
// of spares.h; with failure domains first one by which no copies come to share one, else that is said).
// Which step R is: planner.h. R = 0 is a cold restart, and only if nobody knew of a commit; with no survivor left who
// could know, it is refused. R below a known committed step (beyond the policy, or sources struck out) goes on, and
// `verdict` says what is redone. A seat whose living node reports no living trainer for it joins `restart`.
// `wished`: the same slots fill another world, with other seats, fewer or more, in any order. A seat sits where the seat before it
// sits, or where a spare takes that place; a seat before that nobody has now, at a spare. All trainers that stay start anew:
// their ranks and groups are others. Who has no seat left is evicted, and lingers like any other. Refused, with the reason in `why`
// and `verdict`, and the job goes on in its own world: where a seat before is named twice, seats of a node don't follow each
// other, fewer copies could be kept or are there of a seat that nobody has now, no spare is free, or that world, read from who
// stays in it, would go back behind a committed step, or behind the step from which the old one goes on. From step 0 every world is as good as any: its seats go by their own numbers.
// Where the members alone hold no step to go on from, or only an earlier one than was committed, the plan also reads from
// lingering nodes: evicted in this recovery, alive and registered, frozen in this very generation. It waits for their
// inventories as long as they are registered and not late; then for ever, and says so, if without them nothing is left to
// go on from.
// Where memory has no step to go on from, and everybody who may have one was heard or had the time, the newest checkpoint in storage that
// was not struck out is the last resort: all seats read it.
[[nodiscard]] Decision decide_restore(const QuiescingView& view, NodeLife self);
// The job is to end: this generation writes its newest step to storage, and no other goes on from it.
[[nodiscard]] bool is_last(const JobState& state);
// A job that is to end keeps the newest step that its memory holds whole: the step from which a recovery would go on, and of
// each seat one source that has all of it, wherever that is. No spare is needed for it, nor any trainer.
struct LastStep {
  Step step;                    // 0: none; see `why_not`
  Step committed;               // the greatest known
  std::vector<Source> sources;  // by seats
  std::string why_not;          // nothing was committed, or what is lost
};
// Of a state in quiescing. Wait: as in decide_restore.
[[nodiscard]] std::variant<Wait, LastStep> decide_last(const QuiescingView& view);
// Whether these members, whose inventories are missing, may be evicted: what the others have reported holds a step whole.
// If not, the job could only fail without them, so it waits for them as long as nobody proves them dead.
[[nodiscard]] bool can_restore_without(const QuiescingView& view, std::span<const NodeLife> late);
// Whether this life, which the recovery has evicted, lingers: what it holds may still be needed, so it stays frozen and
// lets others read until the job runs. Not if the recovery waits for a spare, can do without it, and gets that spare only
// when this node begins anew; nor if nobody is there any more who could need it. Of quiescing and restoring.
// It goes only when the state says all that it knew to be committed, and has nothing that another who lingers may lack: of him it
// waits for the report, but not for ever (`lingering_late`): a daemon may keep its lease and do nothing else.
// It can do without whom the members don't need together with those that linger and stay for longer than he does: drained
// ones first, then by id. No two count on each other, so what is needed stays, whoever of them has seen how much: of those
// that go, the one that would have stayed longest counts only on such as don't go, and what is frozen does not change.
[[nodiscard]] bool must_linger(const QuiescingView& view, NodeLife evicted);
// Of a state in `restoring`: sources that are yet to be read, of lives that it has evicted and that are gone. Nobody has
// links to those, so nobody else notices.
[[nodiscard]] std::vector<Struck> gone_sources(const JobState& state, std::span<const NodeLife> ready,
                                               std::span<const NodeLife> gone);

// A trainer process that ended by itself (an exception, sys.exit, the end of its script), nobody having killed it.
struct TrainerEnd {
  Seat seat;
  Generation generation;     // in which it sat
  std::string detail;        // "exited 1 after step 41, its output is in ..."
  Step step = Step(0);       // the last that it had begun
  std::string failure = {};  // what it said of it: "ValueError: ..."; empty: nothing
  std::uint32_t times = 1;   // in a row in which the seat has ended with this failure in this step, in one life each
  FailureClass failure_class = FailureClass::trainer_process;
  std::string remedy = {};
};
inline constexpr std::uint32_t kSameEndsMax = 2;

// All members ready -> running. Clears sources, struck, restart and waiting; evicted and causes stay until the next fault.
// `ends`: where several trainers ended by themselves in one recovery, the script is to blame more likely than their
// nodes. It may go on twice without a new committed step; then StateMove to failed.
[[nodiscard]] Decision decide_running(const JobState& state, std::span<const NodeLife> ready, NodeLife self,
                                      std::span<const TrainerEnd> ends = {});

// StateMove to failed where new processes would do the same again: a trainer has ended by itself with the same failure in
// the same step kSameEndsMax times, or in a way that is permanent or numerical; or those of all seats (of two at least)
// have ended by themselves since the job last ran, so nobody is left whom an outer fault could have spared. Else a Wait.
[[nodiscard]] Decision decide_ends(const JobState& state, std::span<const TrainerEnd> ends, NodeLife self);

// After all seats have finished.
[[nodiscard]] Decision decide_finished(const JobState& state, std::span<const Seat> finished, NodeLife self);

struct SeatStep {
  Seat seat;
  Step step;
};
// StateMove to failed where a seat has begun a step after the one with which another waits for the end: they can never end
// together. Else a Wait.
[[nodiscard]] Decision decide_apart(const JobState& state, std::span<const SeatStep> ended, SeatStep begun,
                                    NodeLife self);

}  // namespace pawl::job
