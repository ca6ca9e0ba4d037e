#include "job/daemon/trainer_watch.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "env/files.h"
#include "job/recovery/decide.h"
#include "job/recovery/local_trainer.h"
#include "job/recovery/spares.h"
#include "job/recovery/suspect.h"
#include "pawl/pawl.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {

constexpr std::size_t kSignsBytesMax = 1 << 20;
constexpr int kGracesForOthers = 3;                               // until a node speaks that can't name a suspect
constexpr Duration kStillThere = 100ms;                           // until the next look whether a process is gone
constexpr auto kReplaceBadText = Json::error_handler_t::replace;  // a trainer says what it likes

}  // namespace

// --- Starts and kills

void TrainerWatch::start_missing() {
  if (context_.ending || context_.is_evicted()) return;
  // Nobody would give it a seat, or an end.
  if (context_.mirror.has_state() && (context_.mirror.is_over() || is_last(context_.mirror.state()))) return;
  for (TrainerProcess& trainer : trainers_.places()) {
    if (trainer.pid != 0) continue;
    if (!trainer.death.unseen.empty()) on_unseen_death(trainer);
    if (outlives_its_command(trainer)) {
      look_again();
      continue;
    }
    trainer.pid = kPidNotKnownYet;
    trainer.attached = {};
    trainer.seated = trainer.done = Generation(0);
    trainer.shared.page = nullptr;
    trainer.spawned_at = context_.clock->now();
    hooks_.spawn(trainer.index, environment(trainer));
  }
}

void TrainerWatch::look_again() {
  if (std::exchange(looks_again_, true)) return;
  context_.after(kStillThere, [this] {
    looks_again_ = false;
    start_missing();
  });
}

std::vector<std::string> TrainerWatch::environment(const TrainerProcess& trainer) const {
  const Ring& ring = context_.mirror.ring();
  const Generation generation = context_.mirror.generation();
  // Before the job is formed: the nodes of the lowest ids will be its members, in order.
  const std::uint32_t node = context_.self.node.value < ring.position_count() ? context_.self.node.value : 0;
  const bool seated = trainer.seat && trainer.seat->value < ring.seat_count();
  const Seat seat = seated ? *trainer.seat : Seat(ring.first_seat(node).value + trainer.index);
  const std::uint32_t group = seated ? ring.position_of(seat) : node;
  std::vector<std::string> environment = {
      text("RANK=", seat),
      text("LOCAL_RANK=", trainer.index),
      text("WORLD_SIZE=", ring.seat_count()),
      text("LOCAL_WORLD_SIZE=", ring.seats_at(group)),
      text("GROUP_RANK=", group),
      text("GROUP_WORLD_SIZE=", ring.position_count()),
      text("ROLE_RANK=", seat),
      text("ROLE_WORLD_SIZE=", ring.seat_count()),
      "ROLE_NAME=default",
      "TORCHELASTIC_RUN_ID=" + context_.job,
      text("TORCHELASTIC_RESTART_COUNT=", generation.value > 0 ? generation.value - 1 : 0)};
  // What is resumed was declared with what a checkpoint needs, and must be so again.
  const CheckpointSpec& checkpoints = context_.mirror.spec().checkpoints;
  if (const std::string& path = checkpoints.path.empty() ? checkpoints.resume_path : checkpoints.path; !path.empty())
    environment.push_back("PAWL_CHECKPOINT=" + path);
  if (!context_.environment->processes.environment_variable("OMP_NUM_THREADS"))
    environment.emplace_back("OMP_NUM_THREADS=1");
  return environment;
}

void TrainerWatch::kill(TrainerProcess& trainer, const std::string& why) {
  if (trainer.pid == 0 || trainer.dying) return;
  log_warn("trainer_killed", "place", trainer.index, "why", why);
  trainer.death.resident_bytes =
      context_.environment->processes.resident_bytes(static_cast<pid_t>(trainer.trainer().pid));
  trainer.begin_dying(context_.clock->now());
  trainer.death.killed = true;
  trainer.killed_why = why;
  trainer.ended.clear();
  trainer.line.waiting.clear();
  hooks_.kill(trainer.index);
}

void TrainerWatch::count_parked() {
  std::uint32_t parked = 0;
  for (const TrainerProcess& trainer : trainers_.places()) parked += trainer.line.waits_for(MessageKind::join) ? 1 : 0;
  if (parked != parked_.exchange(parked) && !context_.mirror.is_member()) hooks_.on_parked_changed();
}

void TrainerWatch::on_seated(TrainerProcess& trainer) {
  trainer.returning.busy_at = context_.clock->now();
  trainer.ended.clear();
  early_exits_.erase(trainer.index);
}

// --- Deaths and faults

void TrainerWatch::on_death(TrainerProcess& trainer, const std::string& told) {
  if (context_.ending) return;
  // Nobody tells how a process ended whose command doesn't.
  const bool untold = trainer.death.behind && told.rfind("exited 0", 0) == 0 && !trainer.finished;
  const std::string how = (untold ? "died behind a command that " : "") + told;
  const JobMirror& mirror = context_.mirror;
  const bool confirmed = !how.empty();
  log_warn("trainer_died", "place", trainer.index, "seat", trainer.seat ? text(*trainer.seat) : "-", "how",
           confirmed ? how : "robust mutex");
  const std::optional<Seat> seat = trainer.seat;
  const std::string failure = ended_by_itself(how) ? failure_in(trainer.death.said) : "";
  if (mirror.is_over()) {
    if (mirror.is_in(JobPhase::finished) && ended_by_itself(how) && how.rfind("exited 0", 0) != 0)
      note_end(trainer, how, failure);
    return context_.drive();
  }
  count_parked();
  if (confirmed) {
    const bool had_seat = trainer.seated.value > 0;
    const FailureSign* sign = sign_of(how, failure, users_signs());
    note_end(trainer, how, failure);
    put_exit(trainer, how, sign);
    const bool machine = sign != nullptr && sign->failure_class == FailureClass::node && ended_by_itself(how);
    if (machine && seat && mirror.is_member() && mirror.state().ran.value > 0)
      return mover_.give_up_node(text("its machine failed the trainer of seat ", *seat, ": ", trainer.ended));
    int& early_exits = early_exits_[trainer.index];
    const Respawn respawn = decide_respawn({context_.clock->now(), trainer.spawned_at, had_seat, early_exits,
                                            mirror.has_state(), mirror.is_member(), trainer.ended, sign});
    early_exits = respawn.early_exits;
    if (!respawn.give_up.empty()) return mover_.give_up_node(respawn.give_up);
    if (respawn.unfit)
      log_error("spare_unfit", "place", trainer.index, "how", how, "again_after_ms", respawn.pause / 1ms);
    context_.after(respawn.pause, [this] { start_missing(); });
  }
  if (!seat || !mirror.is_member() || trainer.seated != mirror.generation()) return;
  if (confirmed && mirror.is_in(JobPhase::restoring)) {
    const std::string why = why_unfit_for_seat(++restore_exits_[trainer.index], trainer.ended, layout_refusal_);
    if (!why.empty()) return mover_.give_up_node(why);
  }
  report_death_later(*seat, trainer.index);
}

// For people.
void TrainerWatch::note_end(TrainerProcess& trainer, const std::string& how, const std::string& failure) {
  const bool had_seat = trainer.seated.value > 0;
  const bool has_step = trainer.shared.page != nullptr && had_seat;
  trainer.ended =
      how_it_ended(how, trainer.killed_why,
                   has_step ? std::optional(Step(trainer.shared.page->step.load())) : std::nullopt, failure);
  trainer.killed_why.clear();
  if (!hooks_.tell || !trainer.seat || !had_seat) return;
  Json fields{{"seat", trainer.seat->value}, {"how", trainer.ended}};
  if (context_.mirror.is_in(JobPhase::finished)) fields["after_all"] = failed_after_all_ = true;
  hooks_.tell("trainer_ended", fields.dump(-1, ' ', false, kReplaceBadText));
}

// It died while no pawld was here to see it. The keeper tells of each process that has ended and has no successor: its
// death may have been reported before, then the state accounts for it.
void TrainerWatch::on_unseen_death(TrainerProcess& trainer) {
  const std::string how = std::exchange(trainer.death.unseen, {});
  if (!trainer.seat || !context_.mirror.is_member()) return;
  log_warn("trainer_died_unseen", "place", trainer.index, "seat", *trainer.seat, "how", how);
  trainer.ended = how_it_ended(how, "", std::nullopt);
  report_death_later(*trainer.seat, trainer.index);
}

// If the whole node is dying, this one will not live to say so: wait a moment rather than cost two generations.
void TrainerWatch::report_death_later(Seat seat, std::uint32_t index, std::string_view else_how) {
  const Generation generation = context_.mirror.generation();
  context_.after(context_.deadlines.trainer_exit_grace, [this, generation, seat, index, else_how] {
    if (context_.ending || context_.mirror.generation() != generation) return;
    const std::string& ended = trainers_.places()[index].ended;
    const std::string how = ended.empty() ? std::string(else_how) : ended;
    if (auto cause = cause_of_death(context_.mirror.state(), context_.self, seat, how))
      mover_.report(std::move(*cause));
  });
}

// An end that nobody brought about from outside is told to all: decide_ends, decide_running.
void TrainerWatch::put_exit(const TrainerProcess& trainer, const std::string& how, const FailureSign* sign) {
  if (!trainer.seat || trainer.seated.value == 0 || !ended_by_itself(how)) return;
  TrainerEnd end{*trainer.seat, trainer.seated, trainer.ended};
  if (trainer.shared.page != nullptr) end.step = Step(trainer.shared.page->step.load());
  end.failure = failure_in(trainer.death.said);
  if (sign != nullptr) {
    end.failure_class = sign->failure_class;
    end.remedy = sign->remedy;
  }
  const std::optional<TrainerEnd> before = context_.mirror.end_of(*trainer.seat);
  end = next_end(std::move(end), before ? &*before : nullptr);
  context_.mirror.note_end(end);
  context_.control->tell([key = context_.mirror.keys().exit(*trainer.seat), value = to_json(end)](Control& control) {
    (void)control.put(key, value);
  });
}

void TrainerWatch::on_fault(TrainerProcess& trainer, Generation generation, const std::string& what,
                            const std::string& lost) {
  log_info("trainer_reports_fault", "place", trainer.index, "generation", generation, "what", what, "lost", lost);
  if (!context_.mirror.has_state() || generation != context_.mirror.generation() || !trainer.seat) return;
  put_fault({*trainer.seat, lost});
  // A death shows within the grace and is then the cause; else the group is rolled back in place.
  const Duration grace = context_.deadlines.communication_grace;
  const bool others_judge = context_.watched.few_follow;
  if (others_judge) faults().what = what;
  context_.after(others_judge ? kGracesForOthers * grace : grace,
                 [this, generation, seat = *trainer.seat, what, others_judge] {
                   if (!others_judge || !context_.knows_nodes()) judge_fault(generation, seat, what);
                 });
}

TrainerWatch::Faults& TrainerWatch::faults() {
  const Generation generation = context_.mirror.generation();
  if (faults_.of != generation) faults_ = {generation, context_.clock->now(), "an exchange failed", false};
  return faults_;
}

// In a large job few know whether there is a spare, so they speak for all whose trainers have failed. All others do so later, should
// nobody have: they can't name a suspect.
void TrainerWatch::judge_for_all() {
  const JobMirror& mirror = context_.mirror;
  const bool may_judge = mirror.is_in(JobPhase::running) || mirror.is_in(JobPhase::restoring);
  if (!context_.watched.few_follow || !context_.knows_nodes() || mirror.faults.empty() || !may_judge) return;
  Faults& found = faults();
  if (found.judged || context_.clock->now() - found.since < context_.deadlines.communication_grace) return;
  found.judged = true;
  judge_fault(mirror.generation(), mirror.faults.begin()->first, found.what);
}

void TrainerWatch::judge_fault(Generation generation, Seat seat, const std::string& what) {
  const JobMirror& mirror = context_.mirror;
  if (mirror.generation() != generation || context_.ending) return;
  if (!mirror.is_in(JobPhase::running) && !mirror.is_in(JobPhase::restoring)) return;
  // Who can't be replaced is not named: all roll back in place for as long as that is tried.
  const bool has_spare = !spares_of(mirror.state(), records_of_others(mirror), context_.orders.cordoned()).empty();
  const std::optional<NodeLife> suspect = has_spare ? name_suspect(mirror.state(), mirror.faults) : std::nullopt;
  mover_.report({FaultKind::communication, suspect, seat, what, 0});
}

// Whoever decides first sees what the others have found.
void TrainerWatch::put_fault(const FaultReport& report) {
  if (context_.mirror.faults.size() >= kFaultReportsMax) return;
  context_.mirror.faults.insert_or_assign(report.seat, report);
  context_.control->tell([key = context_.mirror.keys().fault(context_.mirror.generation(), report.seat),
                          value = to_json(report)](Control& control) { (void)control.put(key, value); });
}

// --- Checks

void TrainerWatch::check() {
  if (context_.ending) return;
  show_first_seat();
  for (TrainerProcess& trainer : trainers_.places())
    if (trainer.dying && trainer.pid != 0 && trainer.pid != kPidNotKnownYet) check_dying(trainer);
  if (!context_.mirror.is_member()) return;
  judge_for_all();
  const bool running = context_.is_running();
  const bool returning = context_.is_restoring();
  for (TrainerProcess& trainer : trainers_.places()) {
    if (!trainer.seat || trainer.pid == 0 || trainer.pid == kPidNotKnownYet || trainer.dying || trainer.finished)
      continue;
    if (is_held(trainer)) continue;
    if (running && trainer.shared.page != nullptr) check_running(trainer);
    if (returning) check_returning(trainer);
  }
}

// A drill's hold of a step excuses nobody from coming back: it ends where a recovery is pending (job/trainer/trainer.cc).
bool TrainerWatch::is_held(const TrainerProcess& trainer) const {
  const TrainerPage* page = trainer.shared.page;
  return page != nullptr && page->held.load() != 0 && (context_.is_running() || is_of_recovery(page->phase.load()));
}

// `pawl run --failure-signs` has checked the file and names it to all that it starts.
std::span<const FailureSign> TrainerWatch::users_signs() {
  if (signs_) return *signs_;
  signs_.emplace();
  const auto path = context_.environment->processes.environment_variable("PAWL_FAILURE_SIGNS");
  if (!path) return *signs_;
  const Result<std::string> lines = read_file(*path, kSignsBytesMax, context_.environment->files);
  Result<std::vector<FailureSign>> signs = lines ? parse_signs(*lines) : lines.error();
  if (signs)
    signs_ = std::move(signs).value();
  else
    log_warn("failure_signs_refused", "path", *path, "why", signs.error().what);
  return *signs_;
}

// Rank 0's output is what people see, on whichever node it is.
void TrainerWatch::show_first_seat() {
  if (!hooks_.show) return;
  for (const TrainerProcess& trainer : trainers_.places()) {
    const bool runs = trainer.pid != 0 && trainer.pid != kPidNotKnownYet;
    const bool shown = runs && trainer.seat == Seat(0);
    if (std::exchange(shown_[trainer.index], shown) != shown) hooks_.show(trainer.index, shown);
  }
}

void TrainerWatch::check_dying(TrainerProcess& trainer) {
  const TrainerDeath& death = trainer.death;
  const DyingVerdict verdict = decide_dying({context_.clock->now(), death.since, death.resident_bytes, death.killed});
  if (verdict.kill) {
    trainer.death.killed = true;
    hooks_.kill(trainer.index);
  }
  if (!verdict.give_up.empty()) mover_.give_up_node(verdict.give_up);
}

// What the keeper started has ended, and the process that trained has not: two must not write into one arena. Or this
// pawld has just begun and nobody has died: the keeper tells which trainers run only after it has started it.
bool TrainerWatch::outlives_its_command(TrainerProcess& trainer) const {
  if (!lives(context_.environment->processes, trainer.attached)) return false;
  if (trainer.death.since == Duration::zero()) trainer.death.since = context_.clock->now();
  const DyingVerdict verdict = decide_dying({context_.clock->now(), trainer.death.since, 0, true});
  if (!verdict.give_up.empty()) mover_.give_up_node(verdict.give_up);
  return true;
}

// A page that nothing was written into yet says 0: its process has been there since it was started, no longer.
Duration TrainerWatch::since_progress(const TrainerProcess& trainer) const {
  Duration last = trainer.spawned_at;
  if (trainer.shared.page != nullptr)
    last = std::max(last, Duration(static_cast<std::int64_t>(trainer.shared.page->progress_at_ns.load())));
  return std::max(Duration::zero(), context_.clock->now() - last);
}

// Who has just made progress is not stopped: no need to look.
bool TrainerWatch::is_stopped(const TrainerProcess& trainer, Duration since_progress) const {
  if (since_progress < 500ms) return false;
  const auto process = hooks_.state_of(trainer.trainer().pid);
  return process && (*process == 'T' || *process == 't');
}

void TrainerWatch::check_running(TrainerProcess& trainer) {
  // Whoever ran here in this generation is gone, and a new process waits in its place: the pawld before us started it, and
  // did not come to say why.
  if (trainer.line.waits_for(MessageKind::join) && trainer.seated != context_.mirror.generation())
    return report_death_later(*trainer.seat, trainer.index, "its process died, and its pawld before it said how");
  TrainerView view;
  view.since_progress = since_progress(trainer);
  if (view.since_progress < 500ms) return;
  view.phase = static_cast<std::uint32_t>(trainer.shared.page->phase.load());
  view.stopped = is_stopped(trainer, view.since_progress);
  const bool waits_for_others = trainer.line.waits();
  view.in_step = !waits_for_others && view.phase != PAWL_PHASE_ASIDE && view.phase != PAWL_PHASE_FINISH;
  if (!hangs(view, std::chrono::milliseconds(context_.mirror.spec().hang_ms), context_.deadlines)) return;
  mover_.report(
      {FaultKind::trainer_hang, context_.self, trainer.seat,
       text("no progress for ", view.since_progress / 1ms, " ms", view.stopped ? ", the process is stopped" : ""), 0});
}

void TrainerWatch::check_returning(TrainerProcess& trainer) {
  ReturningView view;
  view.now = context_.clock->now();
  view.generation = context_.mirror.generation();
  view.restoring_since = context_.followed.restoring_since;
  view.spawned_at = trainer.spawned_at;
  view.since_progress = since_progress(trainer);
  view.waits_for_others = trainer.line.waits();
  view.waits_to_join = trainer.line.waits_for(MessageKind::join);
  view.stopped = is_stopped(trainer, view.since_progress);
  view.was_there = trainer.shared.page != nullptr && trainer.shared.page->generation.load() > 0;
  view.seated = trainer.seated;
  view.done = trainer.done;
  const ReturningVerdict verdict = decide_returning(
      view, trainer.returning, std::chrono::milliseconds(context_.mirror.spec().start_ms), context_.deadlines);
  trainer.returning = verdict.notes;
  if (verdict.kill) kill(trainer, *verdict.kill);
}

}  // namespace pawl::job
