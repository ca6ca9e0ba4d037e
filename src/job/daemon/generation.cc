// Pawld and the generations: causes go up, states come down, the leader moves them. Rules: docs/protocol.md.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "job/daemon/pawld.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {
constexpr std::size_t kEventsMax = 4096;
}  // namespace

bool Pawld::is_member() const {
  return state_ &&
         std::any_of(state_->seats.begin(), state_->seats.end(), [&](const Member& m) { return m.life == self_; });
}

bool Pawld::is_evicted(NodeLife life) const {
  auto among = [&](const std::vector<NodeLife>& lives) {
    return std::find(lives.begin(), lives.end(), life) != lives.end();
  };
  return state_ && (among(state_->evicted) || among(state_->departed));
}

Duration Pawld::in_state_for() const {
  return real_clock().now() - state_since_;
}

bool Pawld::held_back(const std::string& phase) {
  std::lock_guard lock(hold_mutex_);
  auto found = holds_.find(phase);
  if (found == holds_.end()) return false;
  found->second = true;
  return true;
}

void Pawld::consider_forming() {
  FormingView view{spec_, {}, 0};
  for (const auto& [id, record] : nodes_) view.nodes.push_back(record);
  const bool enough = can_form(view);
  if (!enough) enough_nodes_since_ = Duration::zero();
  if (enough && enough_nodes_since_ == Duration::zero()) enough_nodes_since_ = real_clock().now();
  view.waited_ms = enough ? static_cast<std::uint64_t>((real_clock().now() - enough_nodes_since_) / 1ms) : 0;
  const Decision decision = decide_forming(view, self_);
  if (const StateMove* move = std::get_if<StateMove>(&decision)) swap_state(move->next, move->why);
}

void Pawld::learn_state(const JobState& state, Revision revision) {
  if (revision <= state_revision_) return;
  const bool new_generation = !state_ || state.generation != state_->generation;
  const bool new_phase = new_generation || state.phase != state_->phase;
  state_revision_ = revision;
  state_ = state;
  for (const Struck& struck : state.struck)
    if (struck.at == self_ && std::find(struck_here_.begin(), struck_here_.end(), struck) == struck_here_.end())
      struck_here_.push_back(struck);
  if (new_generation) {
    inventories_.clear();
    readies_.clear();
  }
  if (new_phase) {
    state_since_ = real_clock().now();
    log_info("state", "generation", state.generation, "phase", name_of(state.phase), "resume", state.resume, "leader",
             state.leader.node);
    take_seats();
    watch_members();
  }
}

void Pawld::take_seats() {
  for (TrainerProcess& place : trainers_->places()) place.seat.reset();
  for (const Member& member : state_->seats)
    if (member.life == self_ && member.local_index < trainers_->places().size())
      trainers_->places()[member.local_index].seat = member.seat;
  for (TrainerProcess& place : trainers_->places()) write_page(place);
}

void Pawld::swap_state(const JobState& next, const std::string& why) {
  if (swapping_) return;
  swapping_ = true;
  const Revision expected = state_revision_;
  session_->call<Swapped>(
      [key = keys_.state(), expected, value = to_json(next)](Control& control) {
        return control.compare_and_swap(key, expected, value);
      },
      [this, next, why](Result<Swapped> swap) {
        swapping_ = false;
        if (!swap) {
          log_warn("control_away", "why", swap.error().what);
          return drive_soon(20ms);
        }
        if (swap->won) {
          log_info("state_moved", "generation", next.generation, "phase", name_of(next.phase), "why", why);
          if (next.phase == JobPhase::failed)
            tell_event("job_failed", Json{{"verdict", next.verdict}, {"generation", next.generation.value}}.dump());
          if (next.phase == JobPhase::finished)
            tell_event("job_finished", Json{{"generation", next.generation.value}}.dump());
          learn_state(next, swap->revision);
        } else if (swap->current) {
          note_key(swap->current->key, &swap->current->value, swap->current->mod_revision);
        }
        drive();
      });
}

void Pawld::apply_state() {
  const JobState& state = *state_;
  if (state.phase == JobPhase::finished || state.phase == JobPhase::failed) {
    if (state.phase == JobPhase::failed) log_error("job_failed", "verdict", state.verdict);
    if (state.phase == JobPhase::finished)
      for (TrainerProcess& place : trainers_->places())
        trainers_->answer(place, MessageKind::finish, FinishedMessage{});
    const bool gone = std::all_of(trainers_->places().begin(), trainers_->places().end(),
                                  [](const TrainerProcess& p) { return p.pid == 0 || p.finished; });
    if (state.phase == JobPhase::finished && is_member() && !gone && in_state_for() < kLeaveMax)
      return;  // trainers leave on their own
    return end_job(state.phase == JobPhase::finished ? 0 : 1);
  }
  if (is_evicted(self_) || (was_member_ && !is_member())) {
    log_error("evicted", "generation", state.generation);
    ending_ = true;
    return keeper_->reset(text("evicted in generation ", state.generation));
  }
  if (!is_member()) return;
  was_member_ = true;
  if (state.phase != JobPhase::running && frozen_ < state.generation) freeze();
  if (state.phase == JobPhase::quiescing) put_inventory();
  if (state.phase == JobPhase::restoring && frozen_ == state.generation) {
    if (restoring_ < state.generation && workers_.idle() && !held_back("import")) begin_restore();
    if (restoring_ == state.generation) seat_trainers();
  }
  if (state.phase == JobPhase::running && running_ < state.generation) begin_running();
}

void Pawld::freeze() {
  const JobState& state = *state_;
  end_streams();
  memory_->freeze_all();
  frozen_ = state.generation;
  enter_store();
  for (TrainerProcess& place : trainers_->places()) {
    trainers_->interrupt(place, state.generation);
    const bool restart =
        place.seat && std::find(state.restart.begin(), state.restart.end(), *place.seat) != state.restart.end();
    if (restart && place.pid != 0 && place.seated.value > 0) kill_trainer(place, "its seat is to be restarted");
  }
  tell_event("frozen", "{}");
}

void Pawld::put_inventory() {
  const JobState& state = *state_;
  if (inventories_.count(self_.node) > 0 || held_back("frozen")) return;
  Inventory inventory;
  inventory.life = self_;
  inventory.generation = state.generation;
  inventory.committed = known_committed();
  inventory.items = memory_->inventory();
  inventory.frozen_wall_ms = static_cast<std::uint64_t>(real_clock().wall() / 1ms);
  for (TrainerProcess& place : trainers_->places())
    if (place.seat && place.pid != 0 && !place.dying) inventory.trainers_alive.push_back(*place.seat);
  inventories_[self_.node] = inventory;
  session_->call<Revision>([key = keys_.inventory(state.generation, self_.node),
                            value = to_json(inventory)](Control& control) { return control.put(key, value); },
                           [this, generation = state.generation](Result<Revision> put) {
                             if (put || !state_ || state_->generation != generation) return;
                             inventories_.erase(self_.node);  // again, at the next drive
                             drive_soon(20ms);
                           });
}

// Also of the pawld before us: it wrote what it knew into the trainers' pages.
Step Pawld::known_committed() const {
  Step known = progress_.committed;
  for (const TrainerProcess& place : trainers_->places())
    if (place.page != nullptr) known = std::max(known, Progress::unpack(place.page->progress.load()).committed);
  return known;
}

void Pawld::lead() {
  if (swapping_) return;
  const JobState& state = *state_;
  std::vector<TrainerEnd> ends;
  for (const auto& [seat, end] : ends_) ends.push_back(end);
  Decision decision = decide_ends(state, ends, self_);
  if (const StateMove* move = std::get_if<StateMove>(&decision)) return swap_state(move->next, move->why);
  Duration patience = deadlines_.inventory;
  if (state.phase == JobPhase::quiescing) {
    QuiescingView view{spec_, state, {}, {}};
    for (const auto& [node, inventory] : inventories_) view.inventories.push_back(inventory);
    for (const auto& [node, record] : nodes_) view.nodes.push_back(record);
    decision = decide_restore(view, self_);
    if (std::holds_alternative<StateMove>(decision) && held_back("decide")) return;
  } else if (state.phase == JobPhase::restoring) {
    std::vector<NodeLife> ready;
    for (const Member& member : state.seats)
      if (auto found = readies_.find(member.life.node); found != readies_.end() && found->second == state.generation)
        ready.push_back(member.life);
    decision = decide_running(state, ready, self_, ends);
    // Each pawld knows better what its trainers are doing, and has patience with them (check_returning): this is for
    // one that lives and does nothing.
    patience = std::chrono::milliseconds(spec_.start_ms) + 2 * deadlines_.restore;
  } else {
    return;
  }
  if (const StateMove* move = std::get_if<StateMove>(&decision)) {
    if (move->next.phase == JobPhase::restoring) {
      Json sources = Json::array();
      for (const Source& source : move->next.sources)
        sources.push_back(
            {{"seat", source.seat.value}, {"kind", name_of(source.kind)}, {"node", source.from.node.value}});
      Json seats = Json::array();
      for (const Member& member : move->next.seats)
        if (member.seat.value < state.seats.size() && !(state.seats[member.seat.value].life == member.life))
          seats.push_back({{"seat", member.seat.value},
                           {"from", state.seats[member.seat.value].life.node.value},
                           {"to", member.life.node.value}});
      tell_event("restore_decided", Json{{"resume", move->next.resume.value},
                                         {"cold", move->next.cold},
                                         {"sources", sources},
                                         {"moved", seats},
                                         {"why", move->why}}
                                        .dump());
    }
    return swap_state(move->next, move->why);
  }
  const Wait& wait = std::get<Wait>(decision);
  if (wait.without_deadline && state.waiting != wait.what) {
    JobState next = state;
    next.waiting = wait.what;
    tell_event("spare_waiting", Json{{"what", wait.what}}.dump());
    return swap_state(next, "waiting for " + wait.what);
  }
  if (!wait.without_deadline && !wait.late.empty() && in_state_for() > patience)
    for (const NodeLife& late : wait.late)
      report_cause({FaultKind::node_silent, late, std::nullopt, "missed the deadline: " + wait.what, 0});
}

void Pawld::report_cause(Cause cause, std::vector<Struck> struck) {
  if (ending_ || !is_member()) return;
  for (const PendingCause& pending : causes_)
    if (pending.cause.kind == cause.kind && pending.cause.node == cause.node && pending.cause.seat == cause.seat)
      return;
  cause.detected_wall_ms = static_cast<std::uint64_t>(real_clock().wall() / 1ms);
  log_warn("fault_detected", "kind", name_of(cause.kind), "node", cause.node ? text(cause.node->node) : "-", "seat",
           cause.seat ? text(*cause.seat) : "-", "detail", cause.detail);
  Json fields{{"fault", name_of(cause.kind)}, {"detail", cause.detail}};
  if (cause.node) fields["victim_node"] = cause.node->node.value;
  if (cause.seat) fields["victim_seat"] = cause.seat->value;
  tell_event("fault_detected", fields.dump());
  causes_.push_back({std::move(cause), std::move(struck)});
  drive_soon(0ms);
}

void Pawld::push_causes() {
  if (swapping_ || !is_member()) return;
  if (causes_.empty() || held_back("suspect")) return;
  std::vector<Cause> causes;
  std::vector<Struck> struck;
  for (const PendingCause& pending : causes_) {
    causes.push_back(pending.cause);
    struck.insert(struck.end(), pending.struck.begin(), pending.struck.end());
  }
  const Decision decision = open_generation(*state_, causes, self_, struck);
  if (const StateMove* move = std::get_if<StateMove>(&decision)) return swap_state(move->next, move->why);
  causes_.clear();  // the state accounts for them
}

void Pawld::lost_neighbour(NodeLife life, FaultKind kind, const std::string& detail) {
  if (!state_ || state_->phase == JobPhase::finished || state_->phase == JobPhase::failed) return;
  report_cause({kind, life, std::nullopt, detail, 0});
}

// A member whose registration ended: decided by its neighbours while a link to it stands; else by whoever notices.
void Pawld::check_leases() {
  if (!state_ || state_->phase == JobPhase::finished || state_->phase == JobPhase::failed) return;
  if (!is_member()) return consider_orphaned_job();
  // A leader without a seat (it has evicted itself, or was a spare) is nobody's neighbour: only its lease tells.
  const NodeLife leader = state_->leader;
  const bool sits =
      std::any_of(state_->seats.begin(), state_->seats.end(), [&](const Member& m) { return m.life == leader; });
  const bool led = state_->phase == JobPhase::quiescing || state_->phase == JobPhase::restoring;
  if (led && (is_evicted(leader) || (!sits && !is_registered(leader))))
    report_cause({FaultKind::leader_lost, leader, std::nullopt, "who led is gone", 0});
  for (const Member& member : state_->seats) {
    const NodeLife life = member.life;
    if (life == self_ || is_evicted(life) || neighbours_->is_up(life.node)) continue;
    auto record = nodes_.find(life.node);
    if (record != nodes_.end() && record->second.life.incarnation != life.incarnation)
      report_cause({FaultKind::node_lost, life, std::nullopt, "it began anew with another incarnation", 0});
    auto gone = node_gone_since_.find(life.node);
    if (gone != node_gone_since_.end() && real_clock().now() - gone->second > deadlines_.silence / 2)
      report_cause({FaultKind::node_lost, life, std::nullopt, "its lease ended", 0});
  }
}

bool Pawld::is_registered(NodeLife life) const {
  const auto record = nodes_.find(life.node);
  return record != nodes_.end() && record->second.life == life;
}

// All who sat in the job are gone at once, so none of them says so: the lowest of the others does, and leads.
void Pawld::consider_orphaned_job() {
  std::vector<Cause> causes;
  bool orphaned = state_->phase == JobPhase::running || !is_registered(state_->leader);
  for (const Member& member : state_->seats) {
    if (is_evicted(member.life)) continue;
    orphaned = orphaned && !is_registered(member.life);
    causes.push_back({FaultKind::node_lost, member.life, std::nullopt, "its lease ended", 0});
  }
  const bool mine = !nodes_.empty() && nodes_.begin()->first == self_.node;
  const Duration now = real_clock().now();
  if (!orphaned || !mine)
    orphaned_since_ = Duration::zero();
  else if (orphaned_since_ == Duration::zero())
    orphaned_since_ = now;
  if (orphaned_since_ == Duration::zero() || now - orphaned_since_ < deadlines_.silence) return;
  if (causes.empty()) causes.push_back({FaultKind::leader_lost, state_->leader, std::nullopt, "no member is left", 0});
  const Decision decision = open_generation(*state_, causes, self_);
  if (const StateMove* move = std::get_if<StateMove>(&decision)) swap_state(move->next, move->why);
}

void Pawld::watch_members() {
  std::vector<Member> wanted;
  if (is_member() && state_->phase != JobPhase::finished && state_->phase != JobPhase::failed) {
    const std::uint32_t count = spec_.node_count;
    const std::uint32_t mine = my_position();
    std::set<std::uint32_t> positions = {
        0, (mine + 1) % count, (mine + 2) % count, (mine + count - 1) % count, 2 * mine + 1, 2 * mine + 2};
    if (mine > 0) positions.insert((mine - 1) / 2);
    for (std::uint32_t position : positions) {
      if (position >= count || position == mine) continue;
      const std::size_t seat = std::size_t{position} * spec_.seats_per_node;
      if (seat < state_->seats.size() && !is_evicted(state_->seats[seat].life)) wanted.push_back(state_->seats[seat]);
    }
  }
  neighbours_->set(wanted);
}

void Pawld::begin_running() {
  const JobState& state = *state_;
  memory_->unfreeze_all(state.lineage, struck_here_);
  struck_here_.clear();
  restore_exits_.clear();
  running_ = state.generation;
  frozen_ = std::max(frozen_, state.generation);
  enter_store();
  Progress progress{state.resume, 0};
  for (TrainerProcess& place : trainers_->places()) {
    if (!place.seat) continue;
    if (place.page != nullptr && place.page->generation.load() == state.generation.value) {  // we returned into it
      const Progress known = Progress::unpack(place.page->progress.load());
      progress = join(progress, known);
      place.seated = place.done = state.generation;
    }
  }
  child_reports_.clear();
  last_report_.reset();
  set_progress(progress);
  const std::vector<Seat> wards = wards_of(my_position(), ring());
  for (std::uint32_t seat = 0; seat < state.seats.size(); ++seat) {
    if (std::find(wards.begin(), wards.end(), Seat(seat)) == wards.end()) memory_->drop(ArenaKind::replica, Seat(seat));
    if (!(state.seats[seat].life == self_)) memory_->drop(ArenaKind::own, Seat(seat));
  }
  for (TrainerProcess& place : trainers_->places()) {
    if (!place.seat || place.page == nullptr) continue;
    place.page->gate_off.store(context_.gate_off ? 1 : 0);
    place.page->resume_step.store(state.resume.value);
    place.page->generation.store(state.generation.value, std::memory_order_release);
    trainers_->answer(place, MessageKind::done, RunningMessage{state.generation});
  }
  start_streams();
  if (state.leader != self_) return;
  tell_event("running", Json{{"resume", state.resume.value}}.dump());
  tidy_keys();
}

void Pawld::tidy_keys() {
  session_->tell([keys = keys_, generation = state_->generation](Control& control) {
    (void)control.erase_prefix(keys.inventories(generation));
    (void)control.erase_prefix(keys.readies(generation));
    (void)control.erase_prefix(keys.stop_acks(Generation(generation.value - 1)));
    auto events = control.list(keys.events());
    if (!events) return;
    for (std::size_t i = 0; i + kEventsMax < events->kvs.size(); ++i) (void)control.erase(events->kvs[i].key);
  });
}

}  // namespace pawl::job
