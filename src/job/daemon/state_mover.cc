#include "job/daemon/state_mover.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "job/recovery/local_trainer.h"
#include "job/recovery/members.h"
#include "job/recovery/spares.h"
#include "job/recovery/spread.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {

constexpr Duration kPauseMin = 20ms;
constexpr Duration kPauseMax = 1s;
constexpr std::size_t kFormersAtOnce = 4;
constexpr std::size_t kBeatsBetweenLooks = 20;     // at most, of who may form the job
constexpr std::size_t kSwapBytesMax = 1400 << 10;  // what etcd takes in one request, and what is around the values
constexpr std::size_t kSeatsToldMax = 64;          // in an event, which must fit into a key

}  // namespace

void StateMover::move(const JobState& next, const std::string& why) {
  if (moving_ || context_.clock->now() < paused_until_) return;
  if (next.phase == JobPhase::failed && handlers_.comes_before && handlers_.comes_before(next)) return;
  // Nobody acts on a state that the others can't read: its writer learns it as they do.
  JobMirror& mirror = context_.mirror;
  const Topology* const known = mirror.beside.known_topology();
  const Sheet* const sheet = mirror.beside.standing_sheet();
  WrittenState written =
      write_state(next, known, context_.state_limits.rows_max, {sheet, context_.state_limits.bytes_max});
  Result<JobState> read =
      read_state(written.state, written.topology ? &*written.topology : known, written.sheet ? &*written.sheet : sheet);
  std::vector<KeyChange> beside;
  if (written.topology) {
    beside.push_back(
        {KeyChange::Kind::put, mirror.keys().topology(written.topology->generation), to_json(*written.topology), 0});
    const auto readable = parse_topology(beside[0].value);
    if (!readable)
      read = readable.error();
    else if (readable->digest != written.topology->digest)
      read = Error{Code::invalid, "the topology reads as another one than was written"};
  }
  // Who reads the state that stands now, and then its sheet, reads both anew.
  if (sheet != nullptr && written.named != sheet->name)
    beside.push_back({KeyChange::Kind::erase, sheet_key(mirror.keys(), sheet->name), "", 0});
  if (written.sheet)
    beside.push_back({KeyChange::Kind::put, sheet_key(mirror.keys(), written.sheet->name), written.sheet->text, 0});
  std::size_t bytes = written.state.size();
  for (const KeyChange& change : beside) bytes += change.value.size();
  if (read && !beside.empty() && bytes > kSwapBytesMax)
    read = Error{Code::full, text("the state and what stands beside it have ", bytes, " bytes; the control takes ",
                                  kSwapBytesMax, " at once")};
  // Later a spare of another domain makes its row longer, and then nobody could refuse any more.
  if (const Status fits = room_to_form(next); read && !fits) read = fits.error();
  if (!read) {
    log_error("state_unwritable", "why", read.error().what);
    if (!mirror.has_state() && next.phase != JobPhase::failed) return refuse_to_form(next, read.error().what);
    return pause();
  }
  moving_ = true;
  std::string state = std::move(written.state);
  context_.control->compare_and_swap(
      mirror.keys().state(), mirror.state_revision(), std::move(state), std::move(beside),
      [this, next = std::move(*read), written = std::move(written), why](const Result<Swapped>& swap) mutable {
        if (swap && swap->won) context_.mirror.beside.note(std::move(written), swap->revision);
        on_swapped(std::move(next), why, swap);
      });
}

Status StateMover::room_to_form(const JobState& formed) const {
  const JobMirror& mirror = context_.mirror;
  if (mirror.has_state() || mirror.spec().domains.empty() || formed.phase == JobPhase::failed) return {};
  return check_rows(formed);
}

Status StateMover::check_rows(const JobState& formed) const {
  std::size_t address_bytes = 0, domain_bytes = 0;
  for (const Member& member : formed.seats) {
    address_bytes = std::max(address_bytes, member.address.size());
    domain_bytes = std::max(domain_bytes, member.domain.size());
  }
  return check_records_of(context_.mirror.spec(), address_bytes, domain_bytes);
}

// Whoever waits for the job is told why it can't begin.
void StateMover::refuse_to_form(const JobState& formed, const std::string& why) {
  const Status fits = check_rows(formed);
  JobState refused;
  refused.generation = formed.generation;
  refused.phase = JobPhase::failed;
  refused.leader = context_.self;
  refused.verdict = text("cannot begin: ", fits ? why : fits.error().what);
  move(refused, refused.verdict);
}

void StateMover::on_swapped(JobState next, const std::string& why, const Result<Swapped>& swap) {
  moving_ = false;
  const Revision before = context_.mirror.state_revision();
  if (!swap) {
    log_warn("swap_failed", "why", swap.error().what);
    return pause();
  }
  if (swap->won) {
    log_info("state_moved", "generation", next.generation, "phase", name_of(next.phase), "why", why);
    if (next.phase == JobPhase::failed)
      events_.tell("job_failed", Json{{"verdict", next.verdict}, {"generation", next.generation.value}}.dump());
    if (next.phase == JobPhase::finished)
      events_.tell("job_finished", Json{{"generation", next.generation.value}}.dump());
    handlers_.on_won(std::move(next), swap->revision);
  } else if (swap->current) {
    handlers_.on_lost(*swap->current);
  }
  // A race that another has won is no reason to wait, if it has told us something.
  if (!swap->won && context_.mirror.state_revision() == before) {
    log_warn("swap_lost", "expected", before, "found", swap->current ? swap->current->mod_revision : 0);
    return pause();
  }
  pause_ = {};
  context_.drive();
}

void StateMover::pause() {
  pause_ = std::clamp(pause_ * 2, kPauseMin, kPauseMax);
  const Duration now = context_.clock->now();
  // Many that lost one race don't begin the next together.
  const Duration pause = pause_ / 2 + drawn_within(pause_ / 2, context_.self.node, now);
  paused_until_ = now + pause;
  context_.drive_soon(pause);
}

// Who forms the job looks through all nodes, at each of their keys. So the lowest few that are registered do, and each
// other one the more seldom the more are before it: should those stand still, it goes on without them.
bool StateMover::is_due_to_form() {
  if (!context_.knows_nodes()) return false;
  const auto& nodes = context_.mirror.registrations().nodes;
  if (nodes.size() < context_.mirror.spec().node_count) {
    forming_.enough_nodes_since = Duration::zero();
    return false;
  }
  std::size_t before = 0;
  for (const auto& [node, record] : nodes) {
    if (before == kFormersAtOnce) break;
    if (node >= context_.self.node) return true;
    ++before;
  }
  const Duration now = context_.clock->now();
  if (now < forming_.looks_at) return false;
  before = static_cast<std::size_t>(std::distance(nodes.begin(), nodes.lower_bound(context_.self.node)));
  const Duration pause = context_.deadlines.heartbeat_interval * std::min(before / kFormersAtOnce, kBeatsBetweenLooks);
  return std::exchange(forming_.looks_at, now + pause) != Duration::zero();
}

void StateMover::consider_forming() {
  if (!unfit_.empty()) return push_unfit();
  if (!is_due_to_form()) return;
  FormingView view{context_.mirror.spec(), context_.mirror.registrations().records(), 0, context_.orders.cordoned()};
  const Duration now = context_.clock->now();
  forming_.enough_nodes_since = enough_nodes_since(view, forming_.enough_nodes_since, now);
  if (forming_.enough_nodes_since > Duration::zero())
    view.waited_ms = static_cast<std::uint64_t>((now - forming_.enough_nodes_since) / 1ms);
  const Decision decision = decide_forming(view, context_.self);
  if (const StateMove* next = std::get_if<StateMove>(&decision)) move(next->next, next->why);
}

void StateMover::drive() {
  if (moving_ || context_.is_evicted()) return;
  push_unfit();
  push_causes();
  lead();
  tell_arenas();
}

void StateMover::tell_fault(Cause& cause) {
  cause.detected_wall_ms = static_cast<std::uint64_t>(context_.clock->wall() / 1ms);
  log_warn("fault_detected", "kind", name_of(cause.kind), "node", cause.node ? text(cause.node->node) : "-", "seat",
           cause.seat ? text(*cause.seat) : "-", "detail", cause.detail);
  Json fields{{"fault", name_of(cause.kind)}, {"detail", cause.detail}};
  if (cause.node) fields["victim_node"] = cause.node->node.value;
  if (cause.seat) fields["victim_seat"] = cause.seat->value;
  events_.tell("fault_detected", fields.dump());
}

void StateMover::report(Cause cause, std::vector<Struck> struck) {
  if (context_.ending || context_.is_evicted() || !context_.mirror.is_member()) return;
  for (PendingCause& pending : causes_) {
    if (pending.cause.kind != cause.kind || pending.cause.node != cause.node || pending.cause.seat != cause.seat)
      continue;
    pending.reported_at = context_.clock->now();
    pending.generation = context_.mirror.generation();
    return;
  }
  tell_fault(cause);
  causes_.push_back({std::move(cause), std::move(struck), context_.clock->now(), context_.mirror.generation()});
  context_.drive_soon(0ms);
}

// Of what is not kept.
void StateMover::tell_once(Cause cause) {
  if (std::exchange(told_in_, context_.mirror.generation()) != context_.mirror.generation()) told_.clear();
  if (told_.insert(*cause.node).second) tell_fault(cause);
}

SuspicionView StateMover::suspicion() const {
  const Duration now = context_.clock->now();
  return {context_.mirror.state(),
          context_.mirror.registrations(),
          context_.mirror.accusations(),
          contacts_,
          context_.self,
          context_.attention.since(now, context_.deadlines),
          now,
          beating_,
          context_.watched.few_follow && context_.knows_nodes()};
}

// What n witnesses have said in a large job is much to look through for each key that comes. Whoever has heard the victim since then
// takes his word back at his next beat: that is waited for by who only counts words.
std::vector<Cause> StateMover::convicts() {
  if (!context_.knows_nodes()) return {};
  const SuspicionView view = suspicion();
  const Duration beat = context_.deadlines.heartbeat_interval;
  if (view.judges_all) {
    if (view.accusations.empty() || view.now - looked_.for_accused < beat) return {};
    looked_.for_accused = view.now;
  }
  std::vector<Cause> silent = convicted(view, context_.deadlines);
  if (!silent.empty() && !is_confirmed(silent_, silent, view.judges_all ? 4 * beat : Duration::zero())) silent.clear();
  return silent;
}

void StateMover::push_causes() {
  if (moving_ || !context_.mirror.is_member()) return;
  // A trainer that hangs is reported at every tick. If the control was away meanwhile, it may have gone on.
  std::erase_if(causes_, [&](const PendingCause& pending) {
    return pending.cause.kind == FaultKind::trainer_hang &&
           context_.clock->now() - pending.reported_at > context_.deadlines.silence / 2;
  });
  // Groups are made anew in each generation: that those of an earlier one have failed is no fault of this one's. Another has
  // opened it, perhaps for the same failure, and may have left quiescing before this node is here again.
  std::erase_if(causes_, [&](const PendingCause& pending) {
    return pending.cause.kind == FaultKind::communication && pending.generation != context_.mirror.generation();
  });
  std::vector<Cause> causes;
  std::vector<Struck> struck;
  for (const PendingCause& pending : causes_) {
    causes.push_back(pending.cause);
    struck.insert(struck.end(), pending.struck.begin(), pending.struck.end());
  }
  for (Cause& cause : convicts()) {
    cause.detected_wall_ms = static_cast<std::uint64_t>(context_.clock->wall() / 1ms);
    causes.push_back(std::move(cause));
  }
  if (causes.empty() || holds_.is_held_at("suspect")) return;
  const Decision decision = open_generation(context_.mirror.state(), causes, context_.self, struck, context_.committed);
  if (const StateMove* next = std::get_if<StateMove>(&decision)) return move(next->next, next->why);
  causes_.clear();  // the state accounts for them
}

// Counted from when this node began to be able to notice.
Duration StateMover::attentive_for(Duration since) const {
  const Duration now = context_.clock->now();
  const auto attentive = context_.attention.since(now, context_.deadlines);
  return attentive ? now - std::max(since, *attentive) : Duration::zero();
}

std::vector<NodeLife> StateMover::absent(std::vector<NodeLife> lives) const {
  const Duration now = context_.clock->now();
  const auto attentive = context_.attention.since(now, context_.deadlines);
  const Registrations& registrations = context_.mirror.registrations();
  if (!attentive) return {};
  std::erase_if(lives,
                [&](NodeLife life) { return !is_absent(registrations, life, *attentive, now, context_.deadlines); });
  return lives;
}

// What a lingering node held is lost with it; the plan is made anew without that.
bool StateMover::strike_gone_sources() {
  if (!context_.mirror.roster().reads_from_evicted()) return false;
  const JobState& state = context_.mirror.state();
  std::vector<NodeLife> gone = absent(state.evicted);
  for (const NodeLife& life : state.evicted)  // it has begun anew
    if (const auto& nodes = context_.mirror.registrations().nodes;
        nodes.contains(life.node) && nodes.at(life.node).life != life)
      gone.push_back(life);
  const std::vector<Struck> struck = gone_sources(state, context_.mirror.reports.ready_members(), gone);
  std::vector<Cause> causes;
  for (const Struck& source : struck)
    causes.push_back({FaultKind::corrupt_source, source.at, seat_after(state.seats, source.seat),
                      text("node ", source.at.node, ", which was evicted and had the only copy, is gone"), 0});
  if (causes.empty() || !is_confirmed(gone_, causes)) return false;
  for (Cause& cause : causes) cause.detected_wall_ms = static_cast<std::uint64_t>(context_.clock->wall() / 1ms);
  const Decision decision = open_generation(state, causes, context_.self, struck);
  const StateMove* next = std::get_if<StateMove>(&decision);
  if (next != nullptr) move(next->next, next->why);
  return next != nullptr;
}

// Asked from the first moment of a recovery on, so that nobody waits for it later.
SpareProbes::Answers StateMover::probed_spares() const {
  const JobMirror& mirror = context_.mirror;
  if (!handlers_.probe || !mirror.is_in(JobPhase::quiescing)) return {};
  const std::vector<NodeRecord> spares =
      spares_of(mirror.state(), records_of_others(mirror), context_.orders.cordoned());
  return spares.empty() ? SpareProbes::Answers{} : handlers_.probe(spares);
}

// Not while reports are missing and nobody of whom one is missing is late: then a recovery can only wait, and one of many
// nodes need not look through all that it knows for each key that comes.
bool StateMover::must_decide(Duration in_state_for) const {
  const JobMirror& mirror = context_.mirror;
  const Registrations& registrations = mirror.registrations();
  const auto& awaited = mirror.reports.awaited();
  if (awaited.empty() ||
      in_state_for > report_patience(mirror.state().phase, mirror.spec(), registrations, context_.deadlines))
    return true;
  std::vector<NodeLife> gone;
  for (const auto& [node, since] : registrations.gone_since)
    if (const auto seat = mirror.roster().lowest_seat_of(node); seat && awaited.contains(*seat))
      gone.push_back(awaited.at(*seat));
  return !absent(std::move(gone)).empty();
}

// Who is late, and what is given up with it, is not decided from what a watch has brought, which may stand still: the reports
// are listed once more after the time for them is over.
bool StateMover::has_heard_of_all(Duration in_state_for) {
  const JobMirror& mirror = context_.mirror;
  const Duration patience =
      report_patience(mirror.state().phase, mirror.spec(), mirror.registrations(), context_.deadlines);
  return in_state_for <= patience || has_reports_of(context_.clock->now() - (in_state_for - patience));
}

bool StateMover::has_reports_of(Duration moment) {
  if (context_.heard.as_of >= moment) return true;
  context_.heard.list_anew = true;
  return false;
}

// Who has come back may be registered, and nobody may accuse him any more, and a watch that stands still does not tell it. So
// nobody is given up before this node knows all that stood there after that was first due; lately, if a swap has failed since.
bool StateMover::is_confirmed(Charge& charge, std::span<const Cause> causes, Duration after) {
  std::vector<NodeLife> lives;
  for (const Cause& cause : causes) lives.push_back(*cause.node);
  const Generation generation = context_.mirror.generation();
  const Duration now = context_.clock->now();
  if (charge.lives != lives || charge.generation != generation || now - charge.since > context_.deadlines.silence)
    charge = {std::move(lives), generation, now};
  return now - charge.since >= after && context_.knows_all_since(charge.since + after);
}

std::string StateMover::waits_for() const {
  if (!awaits_reports_) return waits_for_;
  std::vector<NodeLife> missing;
  for (const auto& [seat, life] : context_.mirror.reports.awaited()) missing.push_back(life);
  return wait_for_reports(context_.mirror.state().phase, missing);
}

void StateMover::probe_spares_early() {
  const JobMirror& mirror = context_.mirror;
  const std::pair now(mirror.state_revision(), mirror.registrations().changes);
  if (std::exchange(looked_.for_spares, now) != now) (void)probed_spares();
}

void StateMover::lead() {
  if (moving_) return;
  waits_for_.clear();
  awaits_reports_ = false;
  const JobMirror& mirror = context_.mirror;
  const JobState& state = mirror.state();
  // In all other phases nobody leads: a view of a large job is not worth making for each key that changes.
  const bool recovers = state.phase == JobPhase::quiescing || state.phase == JobPhase::restoring;
  const std::vector<TrainerEnd> ends = mirror.ends();
  if (!recovers && ends.empty()) return;
  const auto delay = lead_delay({state, mirror.registrations(), context_.self, attentive_for(mirror.news_at()),
                                 context_.watched.few_follow, context_.watched.has_post},
                                context_.deadlines);
  if (!delay) return;
  const Decision ended = decide_ends(state, ends, context_.self);
  if (const StateMove* next = std::get_if<StateMove>(&ended)) return move(next->next, next->why);
  if (recovers) context_.want_reports();
  // Who has not heard of them is not late, gone, or no spare.
  if (!recovers || !context_.knows_reports() || !context_.knows_nodes()) return;
  if (strike_gone_sources()) return;
  const Duration in_state_for = std::max(attentive_for(mirror.state_since()) - *delay, Duration::zero());
  if (!must_decide(in_state_for)) {
    awaits_reports_ = true;
    return probe_spares_early();
  }
  if (!has_heard_of_all(in_state_for)) return;
  const SpareProbes::Answers probed = probed_spares();
  if (auto lead = decide_lead(
          {mirror.spec(), state, mirror.reports.inventories(), records_of_others(mirror),
           mirror.reports.ready_members(), ends, in_state_for, mirror.registrations(), absent(survivors_of(state)),
           context_.orders.cordoned(), probed.silent, handlers_.stored ? handlers_.stored() : std::vector<Step>(),
           handlers_.wished_world ? handlers_.wished_world() : std::nullopt},
          context_.self, context_.deadlines))
    act_on(std::move(*lead), probed.pending);
}

void StateMover::act_on(Lead lead, std::span<const NodeLife> unprobed) {
  const JobState& state = context_.mirror.state();
  if (StateMove* const next = std::get_if<StateMove>(&lead.decision)) {
    if (state.phase == JobPhase::quiescing && holds_.is_held_at("decide")) return;
    const bool blind = std::ranges::any_of(
        next->next.seats, [unprobed](const Member& member) { return contains(unprobed, member.life); });
    if (blind) return;  // until it has answered, or is silent
    if (next->next.phase == JobPhase::restoring) tell_restore(*next);
    if (next->next.committed > Step(0))  // before that not all have said how large theirs are
      next->next.arena_bytes = std::max(next->next.arena_bytes, context_.mirror.registrations().arena_bytes_max);
    return move(next->next, next->why);
  }
  const Wait& wait = std::get<Wait>(lead.decision);
  waits_for_ = wait.what;
  if (wait.without_deadline && (state.waiting != wait.what || state.committed < wait.committed)) {
    JobState waiting = state;
    waiting.waiting = wait.what;
    waiting.committed = std::max(state.committed, wait.committed);
    if (state.waiting != wait.what && !lead.last) events_.tell("spare_waiting", Json{{"what", wait.what}}.dump());
    return move(waiting, "waiting for " + wait.what);
  }
  if (lead.last) return handlers_.write_last(*lead.last);
  if (lead.late.empty()) return;
  const bool registered = is_confirmed(late_, lead.late);
  if (!has_reports_of(late_.since) || !registered) return;
  for (const Cause& late : lead.late) tell_once(late);
  const Decision decision = open_generation(state, lead.late, context_.self);
  if (const StateMove* next = std::get_if<StateMove>(&decision)) move(next->next, next->why);
}

// Deadlines depend on how large arenas are, which the nodes of a large job don't know of each other. It is told when there is
// something to move, and then again by whoever leads a recovery.
void StateMover::tell_arenas() {
  const JobMirror& mirror = context_.mirror;
  const Registrations& registrations = mirror.registrations();
  if (moving_ || !mirror.is_in(JobPhase::running) || !registrations.known || context_.committed == Step(0)) return;
  if (mirror.state().leader != context_.self || mirror.state().arena_bytes > 0) return;
  for (const NodeLife& life : mirror.roster().survivors())
    if (!registrations.has(life) || registrations.nodes.at(life.node).arena_bytes == 0) return;
  JobState next = mirror.state();
  next.arena_bytes = registrations.arena_bytes_max;
  move(next, text("the largest arena of a seat has ", next.arena_bytes, " bytes"));
}

void StateMover::tell_restore(const StateMove& move) {
  const JobState& state = context_.mirror.state();
  Json sources = Json::array();  // of the seats that read from another node
  for (const Source& source : move.next.sources)
    if (sources.size() < kSeatsToldMax && source.kind != SourceKind::nothing &&
        source.from != move.next.seats[source.seat.value].life)
      sources.push_back(
          {{"seat", source.seat.value}, {"kind", name_of(source.kind)}, {"node", source.from.node.value}});
  Json seats = Json::array();
  for (const Member& member : move.next.seats)
    if (seats.size() < kSeatsToldMax && member.seat.value < state.seats.size() &&
        !(state.seats[member.seat.value].life == member.life))
      seats.push_back({{"seat", member.seat.value},
                       {"from", state.seats[member.seat.value].life.node.value},
                       {"to", member.life.node.value}});
  events_.tell("restore_decided", Json{{"resume", move.next.resume.value},
                                       {"cold", move.next.cold},
                                       {"sources", sources},
                                       {"moved", seats},
                                       {"why", move.why}}
                                      .dump());
}

void StateMover::check_members(std::span<const Contact> contacts, std::vector<NodeId> beating) {
  const JobMirror& mirror = context_.mirror;
  contacts_.assign(contacts.begin(), contacts.end());
  beating_ = std::move(beating);
  if (!mirror.has_state() || mirror.is_over() || context_.is_evicted()) return;
  accuse();
  if (!mirror.is_member()) return take_over_orphan();
  report_absent();
}

// Where few know who is registered, they speak of all and not only of their neighbours, when something has changed.
void StateMover::report_absent() {
  const JobMirror& mirror = context_.mirror;
  if (!context_.watched.few_follow) {
    for (const Cause& cause : absent_members(mirror.state(), mirror.registrations(), mirror.links(), context_.self))
      report(cause);
    return;
  }
  const std::pair as_of(mirror.state_revision(), mirror.registrations().changes);
  if (std::exchange(looked_.for_absent, as_of) == as_of) return;
  const Links all{context_.knows_nodes() ? mirror.roster().survivors() : mirror.links().lives, true};
  for (const Cause& cause : absent_members(mirror.state(), mirror.registrations(), all, context_.self)) report(cause);
}

// Says whom this node accuses, and withdraws what does not hold any more.
void StateMover::accuse() {
  if (!context_.knows_nodes() && !context_.watched.few_follow) return;
  const JobMirror& mirror = context_.mirror;
  const Duration now = context_.clock->now();
  const SuspicionView view = suspicion();
  const std::vector<NodeLife> accused = accused_by(view, context_.deadlines);
  const auto stands = [&](NodeLife victim) { return contains(view.accusations, Accusation{victim, context_.self}); };
  // What was said comes back as a key; until then, and if the control is slow, it is not said again and again. To withdraw
  // it never waits: others may convict by it some heartbeats after it was said.
  const auto may_speak = [&](NodeLife victim, bool accusing) {
    const auto [spoken, first] = spoken_at_.try_emplace({victim, accusing}, now);
    if (!first && now - spoken->second < context_.deadlines.silence / 4) return false;
    spoken->second = now;
    return true;
  };
  const JobKeys& keys = mirror.keys();
  for (const NodeLife& victim : accused) {
    if (stands(victim) || !may_speak(victim, true)) continue;
    tell_once({FaultKind::node_silent, victim, std::nullopt, "no sign of life", 0});
    context_.control->put(keys.accusation(mirror.generation(), victim.node, context_.self.node),
                          to_json(Accusation{victim, context_.self}), [](const Status&) {});
  }
  for (const Accusation& own : view.accusations) {
    if (own.accuser != context_.self || contains(accused, own.victim) || !may_speak(own.victim, false)) continue;
    log_info("accusation_withdrawn", "node", own.victim.node);
    context_.control->tell([key = keys.accusation(mirror.generation(), own.victim.node, context_.self.node)](
                               Control& control) { (void)control.erase(key); });
  }
}

void StateMover::take_over_orphan() {
  const JobMirror& mirror = context_.mirror;
  const Orphaned orphaned = decide_orphaned(mirror.state(), mirror.registrations(), contacts_, context_.self,
                                            orphaned_since_, context_.clock->now(), context_.deadlines);
  orphaned_since_ = orphaned.since;
  for (const Cause& cause : orphaned.causes) tell_once(cause);
  if (orphaned.move) return move(orphaned.move->next, orphaned.move->why);
  if (orphaned.unproven.empty() || attentive_for(orphaned.since) < context_.deadlines.lease) return;
  if (std::exchange(told_in_generation_.away, mirror.generation()) == mirror.generation()) return;
  const std::string nodes = numbers_of(orphaned.unproven);
  log_warn("members_away", "nodes", nodes);
  events_.tell("members_away",
               Json{{"nodes", nodes}, {"detail", "no member reaches the control; they may train on"}}.dump());
}

void StateMover::give_up_node(const std::string& why) {
  if (unfit_.empty()) unfit_ = why;
  push_unfit();
}

void StateMover::give_up_node_if_free(const std::string& why) {
  if (!is_fetched_from()) give_up_node(why);
}

void StateMover::report_if_free(Cause cause) {
  if (!is_fetched_from()) report(std::move(cause));
}

bool StateMover::is_fetched_from() const {
  const JobMirror& mirror = context_.mirror;
  if (!mirror.has_state() || !others_fetch_from(mirror.state(), {}, context_.self)) return false;
  context_.want_reports();
  return others_fetch_from(mirror.state(), mirror.reports.ready_members(), context_.self);
}

// Until the job is over or has run, and while others fetch from here: nothing else says it again.
void StateMover::push_unfit() {
  const JobMirror& mirror = context_.mirror;
  if (unfit_.empty() || context_.is_evicted()) return;
  auto decision = decide_give_up(mirror.has_state() ? &mirror.state() : nullptr, context_.self, unfit_);
  if (const StateMove* failed = std::get_if<StateMove>(&decision)) {
    if (!mirror.is_over()) return move(failed->next, failed->why);
    return unfit_.clear();
  }
  if (is_fetched_from()) return;
  const std::string why = std::exchange(unfit_, {});
  if (Cause* cause = std::get_if<Cause>(&decision)) return report(std::move(*cause));
  if (std::exchange(told_in_generation_.unfit, mirror.generation()) != mirror.generation())
    log_error("spare_unfit", "why", why);
}

}  // namespace pawl::job
