// Decisions of one daemon about a trainer process on its own node: how long it may take to come back, and what follows
// from its end.
//
// Values in (`now` among them), a value and a reason out. The daemon looks at the process, kills and starts it
// (job/daemon/trainer_watch.h). Whether a running trainer hangs is in deadlines.h. Pure.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "job/recovery/classes.h"
#include "job/recovery/deadlines.h"
#include "job/recovery/decide.h"

namespace pawl::job {

inline constexpr int kEarlyExitsMax = 3;
inline constexpr Duration kEarly = std::chrono::seconds(60);
inline constexpr Duration kUnfitPause = std::chrono::seconds(30);  // of a spare whose trainer doesn't stay to wait
// A process whose robust mutex tells of its death: within this its end is told, too. Later, what it was started by
// (bash -c, uv run, srun) goes on without it.
inline constexpr Duration kEndToldMax = std::chrono::seconds(1);
// A killed process gives back its memory and is gone within this, and a second more for each GiB that it had.
inline constexpr Duration kDyingMax = std::chrono::seconds(30);

// A trainer on its way back into the job, while the state is `restoring`.
struct ReturningView {
  Duration now{};
  Generation generation;       // of the state
  Duration restoring_since{};  // this daemon began to restore then
  Duration spawned_at{};
  Duration since_progress{};      // of the process
  bool waits_for_others = false;  // an answer of pawld, or a key of the rendezvous
  bool waits_to_join = false;
  bool stopped = false;    // process state T
  bool was_there = false;  // its page says that it has run in an earlier generation
  Generation seated;       // it was last told its seat in this generation
  Generation done;         // it last said that it is restored in this generation
};
// What earlier looks at this trainer found.
struct ReturningNotes {
  Duration busy_at{};        // it last waited for others, or was given its seat, then
  Duration stopped_since{};  // the process has been stopped since then; 0: it is not
};
struct ReturningVerdict {
  ReturningNotes notes;
  std::optional<std::string> kill;  // why
};
// Who waits for others is not to blame. A process that was there before has little to do; a new one may have to import
// and build everything, and has the time `start` for that.
[[nodiscard]] ReturningVerdict decide_returning(const ReturningView& view, ReturningNotes notes, Duration start,
                                                const Deadlines& deadlines);

// A process that is dead by its robust mutex or was killed, and whose end nobody has told yet.
struct DyingView {
  Duration now{};
  Duration since{};  // that was seen, or done, then
  std::uint64_t resident_bytes = 0;
  bool killed = false;  // with all that it was started by
};
struct DyingVerdict {
  bool kill = false;    // what it was started by holds its place
  std::string give_up;  // not empty: it doesn't die (a system call that doesn't return), so its node goes; why
};
[[nodiscard]] DyingVerdict decide_dying(const DyingView& view);

// How a process ended, for people: what, when, where to look. `how` is the keeper's word; `killed_why` is not empty if
// this daemon killed it; `step` is the last that it has begun, if it ever had a seat; `failure` is what it said.
[[nodiscard]] std::string how_it_ended(const std::string& how, const std::string& killed_why, std::optional<Step> step,
                                       const std::string& failure = {});
// Whether it ended by itself. Such an end is told to all (decide_ends, decide_running).
[[nodiscard]] bool ended_by_itself(const std::string& how);

// A process has ended for certain. When to start the next one in its place, or why not to.
struct RespawnView {
  Duration now{};
  Duration spawned_at{};
  bool had_seat = false;
  int early_exits = 0;      // in this place before this one: soon, and without a seat
  bool job_formed = false;  // there is a state
  bool is_member = false;
  std::string ended;                  // how_it_ended
  const FailureSign* sign = nullptr;  // of its end, if one shows
};
struct Respawn {
  Duration pause{};
  int early_exits = 0;  // this one included
  bool unfit = false;   // a spare's trainer does not even stay to wait: `pause` is long
  std::string give_up;  // not empty: don't start another, this node can't do it; why
};
[[nodiscard]] Respawn decide_respawn(const RespawnView& view);

// The end of a seat's trainer by itself, as all are told of it. `before`: what they were told of the seat last, if they
// were. The same failure in the same step as before counts on; one that is a peer's doing never does.
[[nodiscard]] TrainerEnd next_end(TrainerEnd end, const TrainerEnd* before);

// A new process in a seat ended for the `exits`-th time before the job runs. Not empty: this node is no place for it, why.
[[nodiscard]] std::string why_unfit_for_seat(int exits, const std::string& ended, const std::string& layout_refusal);

// What a trainer's death means for the job, once the grace is over (the whole node may have died with it). `ended` is
// empty while only the robust mutex has told of the death. That is enough for a first death; a repeated one may end in
// a verdict, which has to say how it ended, and that is known soon. nullopt: nothing to report, or not yet.
[[nodiscard]] std::optional<Cause> cause_of_death(const JobState& state, NodeLife self, Seat seat,
                                                  const std::string& ended);

// Whether another node still fetches its seat's state from this one: it does not give itself up before that node is
// `ready`. What it holds may be the only copy; not so where it is only one of several paths (job/recovery/paths.h).
[[nodiscard]] bool others_fetch_from(const JobState& state, std::span<const NodeLife> ready, NodeLife self);

// This node can't do its part; another may. If the job has never run anywhere, the script is more likely at fault: then
// the job ends. Of a node without a seat nothing follows. `state`: nullptr before the job is formed.
[[nodiscard]] std::variant<std::monostate, Cause, StateMove> decide_give_up(const JobState* state, NodeLife self,
                                                                            const std::string& why);

}  // namespace pawl::job
