#include "job/daemon/recovery_watch.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "job/recovery/members.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {

constexpr std::size_t kTellersMax = 4;  // of any job

}  // namespace

void RecoveryWatch::tick() {
  const JobMirror& mirror = parts_.context.mirror;
  waits_.clear();
  const bool recovers = mirror.is_in(JobPhase::quiescing) || mirror.is_in(JobPhase::restoring);
  if (!recovers || parts_.context.ending || parts_.context.is_evicted()) return;
  const JobState& state = mirror.state();
  if (std::tie(watched_, phase_) != std::tie(state.generation, state.phase)) {
    watched_ = state.generation;
    phase_ = state.phase;
    notes_.clear();
    leaders_ = {};
  }
  if (phase_ == JobPhase::restoring)
    for (const Seat seat : mirror.own_seats()) look_at(seat);
  tell_of_seats();
  look_at_leader();
}

void RecoveryWatch::look_at(Seat seat) {
  const WaitVerdict verdict =
      judge_wait(view_of(seat), notes_[seat], parts_.context.clock->now(), parts_.context.deadlines);
  notes_[seat] = verdict.notes;
  if (!verdict.wait) return;
  waits_.push_back({seat, *verdict.wait});
  if (!verdict.give_up.empty()) give_up(seat, verdict);
}

// A source from which nothing comes may be sound, and this node, too: the link between them is cut.
void RecoveryWatch::give_up(Seat seat, const WaitVerdict& verdict) {
  const Source* source = parts_.context.mirror.source_of(seat);
  if (verdict.notes.kind != WaitKind::fetch || source == nullptr)
    return parts_.mover.give_up_node_if_free(verdict.give_up);
  parts_.mover.report_if_free({FaultKind::source_unreached, source->from, seat, verdict.give_up, 0});
}

// By place, and of those only that are not among `others`.
bool RecoveryWatch::is_among_first(const std::vector<NodeLife>& others) const {
  const std::set<NodeLife> passed_over(others.begin(), others.end());
  std::size_t before = 0;
  for (const NodeLife& life : lives_of(parts_.context.mirror.state().seats)) {
    if (passed_over.contains(life)) continue;
    if (life == parts_.context.self) return true;
    if (++before == kTellersMax) return false;
  }
  return false;
}

// All survivors wait for a new member. If all of them asked who else does, each would hear what all have reported.
bool RecoveryWatch::may_ask_who_waits(Duration waited) const {
  const std::vector<NodeLife>& members = parts_.context.mirror.roster().members();
  const auto place = std::ranges::find(members, parts_.context.self) - members.begin();
  return waited >= kWaitToldAfter * (1 + place / static_cast<std::ptrdiff_t>(kTellersMax));
}

void RecoveryWatch::tell_of_seats() {
  const Duration now = parts_.context.clock->now();
  const auto due = [&](const Wait& wait) { return is_due(notes_[*wait.seat], now); };
  // In the end whoever is waited for is among them.
  if (parts_.context.mirror.state().ran == Generation(0) || std::ranges::none_of(waits_, due)) return;
  const Wait& longest = *std::ranges::max_element(waits_, {}, [](const Wait& wait) { return wait.wait.age; });
  if (!parts_.context.knows_reports() && !may_ask_who_waits(longest.wait.age)) return;
  parts_.context.want_reports();
  if (!parts_.context.knows_reports() || !is_among_first(parts_.context.mirror.reports.ready_members())) return;
  for (const Wait& wait : waits_) note_told(notes_[*wait.seat], now);
  tell(longest, waits_.size());
}

void RecoveryWatch::look_at_leader() {
  const std::string what = parts_.mover.waits_for();
  if (what.empty()) return;
  const Duration now = parts_.context.clock->now();
  if (leaders_.since == Duration::zero()) leaders_.since = now;
  waits_.push_back({std::nullopt, {what, now - leaders_.since, std::nullopt}});
  // Where nothing moves many take a turn to lead (lead_delay).
  const JobState& state = parts_.context.mirror.state();
  if (!is_due(leaders_, now) || (state.leader != parts_.context.self && !is_among_first(state.evicted))) return;
  note_told(leaders_, now);
  tell(waits_.back(), 0);
}

SeatView RecoveryWatch::view_of(Seat seat) const {
  const NodeContext& context = parts_.context;
  const JobMirror& mirror = context.mirror;
  SeatView view;
  view.seat = seat;
  view.begun = context.is_restoring();
  view.here = parts_.imports.has(seat);
  view.arena_taken = parts_.imports.may_copy(seat);
  view.fetch = parts_.imports.fetch_of(seat);
  view.fresh = mirror.state().resume == Step(0);
  view.trainer = trainer_at(seat);
  view.ready = mirror.reports.is_ready(context.self.node);
  const ArenaHandle arena = parts_.memory.find(ArenaKind::own, before_of(mirror, seat));
  view.bytes = arena ? arena->mapping.size_bytes() : mirror.registrations().arena_bytes_max;
  if (const Source* source = mirror.source_of(seat)) {
    view.source = source->from.node;
    view.in_storage = source->kind == SourceKind::storage;
  }
  return view;
}

SeatTrainer RecoveryWatch::trainer_at(Seat seat) const {
  const TrainerProcess* trainer = parts_.trainers.at_seat(seat);
  if (trainer != nullptr && trainer->dying) return SeatTrainer::dying;
  if (trainer == nullptr || trainer->pid == 0 || !trainer->line.connection) return SeatTrainer::absent;
  const Generation generation = parts_.context.mirror.generation();
  const TrainerLine& line = trainer->line;
  if (trainer->done == generation) return SeatTrainer::restored;
  if (line.waits_for(MessageKind::join)) return SeatTrainer::joins;
  if (trainer->seated.value > 0 && trainer->seated < generation) return SeatTrainer::leaves;
  if (line.waits_for(MessageKind::layout)) return SeatTrainer::declares;
  if (!line.rendezvous_waiting.empty()) return SeatTrainer::rendezvous;
  return trainer->seated == generation ? SeatTrainer::restores : SeatTrainer::absent;
}

// `seats`: as many of this node wait.
void RecoveryWatch::tell(const Wait& told, std::size_t seats) {
  const SeatWait& wait = told.wait;
  if (parts_.context.mirror.state().ran == Generation(0)) return;
  log_info("recovery_waits", "seat", told.seat ? text(*told.seat) : "-", "for_ms", wait.age / 1ms, "what", wait.what);
  Json fields{{"what", wait.what}, {"for_ms", wait.age / 1ms}};
  if (told.seat) fields["seat"] = told.seat->value;
  if (seats > 1) fields["seats"] = seats;
  if (wait.deadline) fields["deadline_ms"] = *wait.deadline / 1ms;
  parts_.events.tell("recovery_waits", fields.dump());
}

}  // namespace pawl::job
