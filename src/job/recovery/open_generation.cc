// What a fault does to the job: a further generation, with whom, or its end.
#include <algorithm>

#include "base/text.h"
#include "job/recovery/classes.h"
#include "job/recovery/decide.h"
#include "job/recovery/members.h"

namespace pawl::job {
namespace {

constexpr std::size_t kDepartedMax = 64;

bool names_node(FaultKind kind) {
  return kind == FaultKind::node_lost || kind == FaultKind::node_silent || kind == FaultKind::leader_lost ||
         kind == FaultKind::drain;
}
bool names_trainer(FaultKind kind) {
  return kind == FaultKind::trainer_exit || kind == FaultKind::trainer_hang || kind == FaultKind::trainer_stuck;
}

// A cause with its place looked up.
struct Fault {
  Cause cause;
  std::optional<NodeLife> life;
  std::optional<Seat> seat;  // for a node its lowest
};

std::string describe(const Fault& fault) {
  std::string out = name_of(fault.cause.kind);
  if (fault.life) out += text(" node ", fault.life->node);
  if (fault.seat) out += text(" seat ", *fault.seat);
  if (!fault.cause.detail.empty()) out += text(" (", fault.cause.detail, ")");
  return out;
}

// Who waits for its seat's state from there, as the state says; nobody: it reads from elsewhere by now.
std::optional<NodeLife> importer_of(const JobState& state, const Cause& cause) {
  if (state.phase != JobPhase::restoring || !cause.seat || cause.seat->value >= state.seats.size()) return std::nullopt;
  const auto is_read = [&cause](const Source& source) { return source.from == cause.node; };
  if (std::ranges::none_of(sources_of(state.sources, *cause.seat), is_read)) return std::nullopt;
  return state.seats[cause.seat->value].life;
}

Fault locate(const JobState& state, Cause cause) {
  if (cause.kind == FaultKind::leader_lost && !cause.node) cause.node = state.leader;
  Fault fault{cause, cause.node, cause.seat};
  if (cause.kind == FaultKind::source_unreached) {
    fault.life = importer_of(state, cause);
  } else if (names_node(cause.kind)) {
    fault.seat = fault.life ? lowest_seat_of(state, *fault.life) : std::nullopt;
  } else if (cause.seat && cause.seat->value < state.seats.size() && !fault.life) {
    fault.life = state.seats[cause.seat->value].life;
  }
  return fault;
}

std::vector<Struck> newly_struck(const JobState& state, std::span<const Struck> struck) {
  std::vector<Struck> fresh;
  for (const Struck& source : struck)
    if (!contains(state.struck, source) && !contains(fresh, source)) fresh.push_back(source);
  return fresh;
}

// Whether `state` (already of the new generation) knows all that the fault says.
bool accounted_for(const JobState& state, JobPhase phase, const Fault& fault, bool strikes) {
  const FaultKind kind = fault.cause.kind;
  if (kind == FaultKind::none) return true;
  if (names_node(kind)) return !fault.life || !is_survivor(state, *fault.life);
  if (names_trainer(kind)) {
    if (!fault.seat || fault.seat->value >= state.seats.size()) return true;
    const NodeLife now_there = state.seats[fault.seat->value].life;
    return *fault.life != now_there || contains(state.evicted, now_there) || contains(state.restart, *fault.seat);
  }
  if (kind == FaultKind::communication)
    return phase == JobPhase::quiescing || (fault.life && !is_survivor(state, *fault.life));
  if (kind == FaultKind::last_checkpoint) return is_last(state);
  if (kind == FaultKind::corrupt_source) return !strikes;
  if (kind == FaultKind::source_unreached) return !fault.life || !is_survivor(state, *fault.life);
  return false;
}

// Counts this recovery and answers how many before it, of the same kind and place, brought no progress.
std::uint32_t count_attempt(JobState& state, const Fault& fault, Step committed) {
  std::erase_if(state.attempts, [&state](const Attempt& past) { return brought_progress(state, past); });
  // A failed exchange is between two; who of them reports it is chance. Its place is the suspect's, if there is one.
  std::optional<Seat> place = fault.seat;
  Step resume = state.resume;
  if (fault.cause.kind == FaultKind::communication) {
    place = fault.cause.node ? lowest_seat_of(state, *fault.cause.node) : std::nullopt;
    if (place) resume = std::max(resume, committed);  // so that the second time is known to be one
  }
  for (Attempt& past : state.attempts) {
    if (past.kind != fault.cause.kind || past.seat != place) continue;
    if (past.resume < resume) past.count = 0;
    past.resume = resume;
    return past.count++;
  }
  state.attempts.push_back({fault.cause.kind, place, resume, 1});
  return 0;
}

std::string stop_verdict(const Fault& fault, std::uint32_t attempts) {
  std::string verdict = text("stopped: ", describe(fault));
  if (attempts > 0) verdict += text(", for the ", attempts + 1, ". time without a new committed step");
  return text(verdict, "; ", class_of(fault.cause.kind).remedy);
}

// Applies one fault. Empty, or the verdict with which the job ends.
std::string apply(JobState& next, const Fault& fault, Step committed, std::string& why) {
  if (fault.cause.kind == FaultKind::source_unreached)  // for as long as a link is cut: it is kept once
    std::erase_if(next.causes, [&fault](const Cause& past) {
      return past.kind == fault.cause.kind && past.node == fault.cause.node && past.seat == fault.cause.seat;
    });
  next.causes.push_back(fault.cause);
  const std::uint32_t attempts = count_attempt(next, fault, committed);
  Action action = action_for(fault.cause, attempts);
  if (action == Action::stop && is_last(next)) action = class_of(fault.cause.kind).action;  // it ends in another way
  why += text(why.empty() ? "" : "; ", describe(fault));
  switch (action) {
    case Action::stop:
      if (is_last(next)) break;
      return stop_verdict(fault, attempts);
    case Action::replace_node:
      // Of a failed exchange the seat is only who reports it; without a suspect nobody in particular is replaced.
      if (!fault.life || (fault.cause.kind == FaultKind::communication && !fault.cause.node)) break;
      next.evicted.push_back(*fault.life);
      why += text(": node ", fault.life->node, " is replaced");
      return "";
    case Action::restart_trainer:
      next.restart.push_back(*fault.seat);
      why += ": its trainer is started anew";
      return "";
    case Action::roll_back_in_place:
      break;
  }
  why += ": all roll back in place";
  return "";
}

JobState further_generation(const JobState& state, NodeLife self) {
  JobState next = state;
  next.generation = state.generation.next();
  next.phase = JobPhase::quiescing;
  next.leader = self;
  next.sources.clear();
  next.plan_digest = 0;
  next.cold = false;
  next.waiting.clear();
  next.verdict.clear();
  if (state.phase != JobPhase::running) return next;
  // A new recovery. Whom the last one evicted may still be registered, but is never coming back as that life.
  next.departed.insert(next.departed.end(), state.evicted.begin(), state.evicted.end());
  if (next.departed.size() > kDepartedMax)
    next.departed.erase(next.departed.begin(), next.departed.end() - kDepartedMax);
  next.evicted.clear();
  next.struck.clear();
  next.restart.clear();
  next.causes.clear();
  return next;
}

// A leader that is no member (a spare had taken the lead) holds no seat: somebody else leads, and that is all.
bool lost_leader_without_seat(const JobState& state, const Fault& fault) {
  return fault.cause.kind == FaultKind::leader_lost && state.phase != JobPhase::running && fault.life == state.leader &&
         !is_survivor(state, state.leader);
}

}  // namespace

Decision open_generation(const JobState& state, std::span<const Cause> causes, NodeLife self,
                         std::span<const Struck> struck, Step committed) {
  if (state.phase != JobPhase::running && state.phase != JobPhase::quiescing && state.phase != JobPhase::restoring)
    return Wait{text("nothing to recover: the job is ", name_of(state.phase)), {}, true};

  JobState next = further_generation(state, self);
  const std::vector<Struck> strikes = newly_struck(next, struck);
  next.struck.insert(next.struck.end(), strikes.begin(), strikes.end());
  std::string why;
  std::string verdict;
  std::string known;
  bool takeover = false;
  for (const Cause& cause : causes)  // first: what others would stop, this ends
    if (cause.kind == FaultKind::last_checkpoint && !is_last(next))
      (void)apply(next, locate(state, cause), committed, why);
  for (const Cause& cause : causes) {
    const Fault fault = locate(state, cause);
    if (accounted_for(next, state.phase, fault, !strikes.empty())) {
      takeover = takeover || lost_leader_without_seat(state, fault);
      known += text(known.empty() ? "" : "; ", describe(fault));
    } else if (verdict.empty()) {
      verdict = apply(next, fault, committed, why);
    }
  }
  if (verdict.empty() && why.empty()) {
    if (!takeover) return Wait{text("nothing new: ", known.empty() ? "no cause" : known), {}, true};
    JobState same = state;
    same.leader = self;
    return StateMove{same, text("generation ", state.generation, ": node ", self.node, " leads, the leader is gone")};
  }
  if (verdict.empty() && next.generation.value > kGenerationMax)
    verdict = "stopped: no further generation can be numbered";
  if (!verdict.empty()) {
    JobState ended = failed(state, self, verdict);
    ended.causes = next.causes;
    ended.attempts = next.attempts;
    return StateMove{std::move(ended), std::move(verdict)};
  }
  return StateMove{next, text("generation ", next.generation, ": ", why)};
}

Decision open_generation(const JobState& state, const Cause& cause, NodeLife self, std::span<const Struck> struck,
                         Step committed) {
  return open_generation(state, std::span(&cause, 1), self, struck, committed);
}

}  // namespace pawl::job
