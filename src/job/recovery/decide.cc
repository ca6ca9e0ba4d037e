// The first generation, and the ends of a recovery and of the job.
#include "job/recovery/decide.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "job/recovery/members.h"
#include "job/recovery/planner.h"

namespace pawl::job {
namespace {

constexpr std::size_t kEndsNamedMax = 4;
constexpr std::uint32_t kSeveralMax = 2;
constexpr std::uint64_t kStartDeadlines = 10;  // for trainers that are starting: importing torch takes a while

// Nodes that can be members, by id. Of two lives of one node only the later counts.
std::vector<NodeRecord> able_nodes(const FormingView& view) {
  std::map<NodeId, NodeRecord> latest;
  for (const NodeRecord& node : view.nodes) {
    NodeRecord& known = latest.try_emplace(node.life.node, node).first->second;
    if (node.life.incarnation > known.life.incarnation) known = node;
  }
  std::vector<NodeRecord> able;
  for (const auto& [id, node] : latest)
    if (node.healthy && node.parked >= view.spec.seats_per_node && !contains(view.cordoned, id)) able.push_back(node);
  return able;
}

// Whether a node of a lower id may still come and should then be a member. Not for ever: one that nobody has seen gets
// a deadline, one whose trainers are starting several.
bool expects_lower(const FormingView& view, const std::vector<NodeRecord>& able) {
  const NodeId last = able[view.spec.node_count - 1].life.node;
  const bool dense = last.value == view.spec.node_count - 1;
  const bool all_there = able.size() >= std::uint64_t{view.spec.node_count} + view.spec.spare_count;
  const bool is_starting = std::ranges::any_of(view.nodes, [&](const NodeRecord& node) {
    return node.life.node < last && node.healthy && node.parked < view.spec.seats_per_node &&
           !contains(view.cordoned, node.life.node);
  });
  return !dense && !all_there && view.waited_ms < view.spec.deadline_ms * (is_starting ? kStartDeadlines : 1);
}

// Of the current recovery (or of the running generation), one a seat, by seat.
std::vector<TrainerEnd> recent(const JobState& state, std::span<const TrainerEnd> ends) {
  std::map<Seat, TrainerEnd> latest;
  for (const TrainerEnd& end : ends)
    if (end.seat.value < state.seats.size() && end.generation >= state.ran) latest.insert_or_assign(end.seat, end);
  std::vector<TrainerEnd> sorted;
  for (auto& [seat, end] : latest) sorted.push_back(std::move(end));
  return sorted;
}

std::string describe(const std::vector<TrainerEnd>& ends) {
  std::string out;
  for (std::size_t i = 0; i < ends.size() && i < kEndsNamedMax; ++i)
    out += text(i == 0 ? "" : "; ", "seat ", ends[i].seat, " ", ends[i].detail);
  if (ends.size() > kEndsNamedMax) out += text("; and ", ends.size() - kEndsNamedMax, " more");
  return out;
}

// Not empty: a new process in the seat would end like this one.
std::string why_not_again(const TrainerEnd& end) {
  const std::string remedy = end.remedy.empty() ? "" : text("; ", end.remedy);
  if (end.failure_class == FailureClass::permanent)
    return text("stopped: the trainer of seat ", end.seat,
                " failed, and a new process would fail the same way: ", end.detail, remedy);
  if (end.failure_class == FailureClass::numerical)
    return text("stopped: the training of seat ", end.seat, " went wrong in its numbers: ", end.detail, remedy);
  if (end.times < kSameEndsMax) return {};
  return text("stopped: the trainer of seat ", end.seat, " failed ", end.times, " times in the same way: ", end.detail,
              "; mend the script, or what it reads in step ", end.step, remedy);
}

// Counts a recovery in which several ended by themselves; how many before it brought no new committed step.
std::uint32_t count_several(JobState& state) {
  std::erase_if(state.attempts, [&state](const Attempt& past) { return brought_progress(state, past); });
  for (Attempt& past : state.attempts)
    if (past.kind == FaultKind::trainer_exit && !past.seat) return past.count++;
  state.attempts.push_back({FaultKind::trainer_exit, std::nullopt, state.resume, 1});
  return 0;
}

// Empty: the copies of each seat lie in domains of their own.
std::string too_few_domains(const JobSpec& spec, const std::vector<Member>& seats) {
  const Ring ring = ring_of(seats, spec.replica_count);
  if (ring.domain_count() > ring.replica_count()) return {};
  return text("cannot form: with ", spec.replica_count, spec.replica_count == 1 ? " copy" : " copies",
              " each seat's state must lie in ", spec.replica_count + 1, " failure domains, and nodes ",
              some_numbers_of(lives_of(seats)), " are in ", ring.domain_count(),
              "; let nodes of other domains train, keep fewer copies (--redundancy copies:", ring.domain_count() - 1,
              "), or accept that copies share a domain (--fewer-domains)");
}

}  // namespace

bool can_form(const FormingView& view) {
  return able_nodes(view).size() >= view.spec.node_count;
}

Decision decide_forming(const FormingView& view, NodeLife self) {
  const JobSpec& spec = view.spec;
  const std::vector<NodeRecord> able = able_nodes(view);
  if (able.size() < spec.node_count) return Wait{text(able.size(), " of ", spec.node_count, " nodes"), {}, true};
  if (spec.node_count == 0) return Wait{"a job of at least one node", {}, true};
  if (expects_lower(view, able)) return Wait{"nodes of lower ids that may still come", {}, true};

  JobState next;
  next.generation = Generation(1);
  next.phase = JobPhase::restoring;
  next.leader = self;
  const Ring ring = ring_of(spec);
  for (std::uint32_t node = 0; node < ring.position_count(); ++node) {
    for (std::uint32_t local = 0; local < ring.seats_at(node); ++local) {
      const Seat seat(ring.first_seat(node).value + local);
      next.seats.push_back({seat, able[node].life, able[node].address, local, able[node].domain, able[node].domain});
      next.sources.push_back({seat, SourceKind::nothing, {}, {}, {}});
    }
  }
  next.lineage = {
      {next.generation, Step(spec.checkpoints.resume_step.value - (spec.checkpoints.resume_step.value > 0 ? 1 : 0))}};
  next.resume = next.committed = spec.checkpoints.resume_step;
  if (spec.checkpoints.resume_step > Step(0)) next.sources = sources_in_storage(next, spec.checkpoints.resume_step);
  next.plan_digest = digest_of(next.sources, next.resume);
  if (const std::string why = too_few_domains(spec, next.seats); !why.empty() && !spec.fewer_domains) {
    // A node of another domain may still come.
    if (able.size() < std::uint64_t{spec.node_count} + spec.spare_count) return Wait{why, {}, true};
    return StateMove{failed(next, self, why), why};
  }
  return StateMove{next, text("generation 1: formed of nodes ", numbers_of(lives_of(next.seats)))};
}

std::string wait_for_reports(JobPhase phase, std::span<const NodeLife> missing) {
  const std::string nodes = some_numbers_of(missing);
  return phase == JobPhase::quiescing ? text("inventory of node ", nodes) : text("node ", nodes, " to be ready");
}

Decision decide_running(const JobState& state, std::span<const NodeLife> ready, NodeLife self,
                        std::span<const TrainerEnd> ends) {
  if (state.phase != JobPhase::restoring)
    return Wait{text("a decision (the job is ", name_of(state.phase), ")"), {}, true};
  const std::set<NodeLife> is_ready(ready.begin(), ready.end());
  std::vector<NodeLife> late = lives_of(state.seats);
  std::erase_if(late, [&is_ready](NodeLife life) { return is_ready.contains(life); });
  if (!late.empty()) {
    std::string what = wait_for_reports(state.phase, late);
    return Wait{std::move(what), std::move(late), false};
  }
  JobState next = state;
  if (const std::vector<TrainerEnd> several = recent(state, ends); several.size() >= 2) {
    if (const std::uint32_t before = count_several(next); before >= kSeveralMax) {
      std::string verdict = text("stopped: several trainers ended by themselves, for the ", before + 1,
                                 ". time without a new committed step: ", describe(several),
                                 "; read the end of their output: the same step fails again and again");
      return StateMove{failed(next, self, verdict), verdict};
    }
  }
  next.phase = JobPhase::running;
  next.leader = self;
  next.ran = state.generation;
  next.committed = state.resume;
  next.sources.clear();
  next.plan_digest = 0;
  next.struck.clear();
  next.restart.clear();
  next.waiting.clear();
  return StateMove{next, text("generation ", state.generation, ": runs from step ", state.resume)};
}

bool is_last(const JobState& state) {
  return std::ranges::any_of(state.causes, [](const Cause& cause) { return cause.kind == FaultKind::last_checkpoint; });
}

Decision decide_ends(const JobState& state, std::span<const TrainerEnd> ends, NodeLife self) {
  const std::vector<TrainerEnd> ended = recent(state, ends);
  const bool over = state.phase == JobPhase::finished || state.phase == JobPhase::failed || is_last(state);
  for (const TrainerEnd& end : ended) {
    std::string verdict = why_not_again(end);
    if (!over && !verdict.empty()) return StateMove{failed(state, self, verdict), verdict};
  }
  if (over || state.seats.size() < 2 || ended.size() < state.seats.size())
    return Wait{text(ended.size(), " of ", state.seats.size(), " trainers have ended by themselves"), {}, true};
  std::string verdict =
      text("stopped: the trainers of all ", state.seats.size(),
           " seats ended by themselves, none was killed: ", describe(ended),
           "; read the end of their output and mend the script: new processes would end the same way");
  return StateMove{failed(state, self, verdict), verdict};
}

Decision decide_apart(const JobState& state, std::span<const SeatStep> ended, SeatStep begun, NodeLife self) {
  for (const SeatStep& end : ended) {
    if (state.phase != JobPhase::running || end.seat == begun.seat || begun.step <= end.step) continue;
    std::string verdict = text("stopped: seat ", end.seat, " has ended after step ", end.step, " and seat ", begun.seat,
                               " has begun step ", begun.step,
                               ": all seats must end after the same step; end them with job.stop() (pawl_stop_after), "
                               "not with a break that only some of them take");
    return StateMove{failed(state, self, verdict), verdict};
  }
  return Wait{"all seats to end", {}, true};
}

Decision decide_finished(const JobState& state, std::span<const Seat> finished, NodeLife self) {
  if (state.phase != JobPhase::running)
    return Wait{text("the job to run (it is ", name_of(state.phase), ")"), {}, true};
  const std::set<Seat> ended(finished.begin(), finished.end());
  std::vector<Seat> missing;
  for (const Member& member : state.seats)
    if (!ended.contains(member.seat)) missing.push_back(member.seat);
  if (!missing.empty()) return Wait{text("seat ", numbers_of(missing), " to finish"), {}, true};
  JobState next = state;
  next.phase = JobPhase::finished;
  next.leader = self;
  next.verdict = text("all ", state.seats.size(), " seats have finished");
  return StateMove{next, next.verdict};
}

}  // namespace pawl::job
