#include "job/daemon/pawld.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "env/files.h"
#include "job/daemon/pawld_parts.h"
#include "job/recovery/members.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {

constexpr Duration kListPause = 100ms;
constexpr Duration kUnreadyTick = 50ms;
constexpr Duration kBeforeNextTry = 1100ms;  // five that end in their first second end the node

class SessionCalls : public ControlCalls {
 public:
  SessionCalls(ControlSession& session, NodeContext& context) : session_(session), context_(context) {}
  void put(std::string key, std::string value, std::function<void(Status)> then) override {
    session_.call<Revision>(
        [key = std::move(key), value = std::move(value)](Control& control) { return control.put(key, value); },
        [then = std::move(then)](const Result<Revision>& put) { then(put ? Status() : Status(put.error())); });
  }
  void compare_and_swap(std::string key, Revision expected, std::string value, std::vector<KeyChange> beside,
                        std::function<void(Result<Swapped>)> then) override {
    Clock& clock = *context_.clock;
    const Duration begin_by = clock.now() + context_.deadlines.silence / 2;
    beside.push_back({KeyChange::Kind::put, key, std::move(value), 0});
    const KeyCompare compare{key, KeyCompare::Field::mod_revision, KeyCompare::Is::equal, expected};
    session_.call<Swapped>(
        [compare, changes = std::move(beside), begin_by, &clock](Control& control) -> Result<Swapped> {
          if (clock.now() > begin_by) return Error{Code::stale, "other calls took too long"};
          PAWL_ASSIGN(Transacted done, control.transact({compare}, changes));
          Swapped swapped{done.won, done.revision, std::nullopt};
          if (!done.won && !done.current.empty()) swapped.current = std::move(done.current[0]);
          return swapped;
        },
        std::move(then));
  }
  void tell(std::function<void(Control&)> work) override { session_.tell(std::move(work)); }

 private:
  ControlSession& session_;
  NodeContext& context_;
};

}  // namespace

Pawld::Pawld(DaemonOptions options, DaemonLines lines, const Environment& environment)
    : options_(std::move(options)),
      lines_(std::move(lines)),
      context_({NodeId(options_.node), Incarnation(options_.incarnation)}, options_.job, environment) {
  context_.address = options_.address;
  context_.state_limits = options_.state_limits;
  context_.mirror.reports.set_group_size(options_.report_group_size);
  context_.after = [this](Duration delay, std::function<void()> task) { loop_->after(delay, std::move(task)); };
  context_.post = [this](std::function<void()> task) { loop_->post(std::move(task)); };
  context_.drive = [this] { drive(); };
  context_.drive_soon = [this](Duration delay) { drive_soon(delay); };
  context_.exit = lines_.exit;
}

Pawld::~Pawld() {
  watches_.reports.reset();
  watches_.keys.reset();
  nodes_.reset();
  session_.reset();
}

// --- Start

Status Pawld::start() {
  PAWL_ASSIGN(loop_, Loop::make(*context_.environment));
  Files& files = context_.environment->files;
  if (lines_.token) {
    token_ = std::move(*lines_.token);
  } else if (!options_.run_dir.empty()) {  // whoever started the job has written it there
    auto token = read_file(join_path(options_.run_dir, "token"), 4096, files);
    if (!token) return std::move(token).error().within("the job's token");
    token_ = std::move(*token);
  }
  keeper_ = std::make_unique<KeeperChannel>(
      *loop_, std::move(lines_.keeper),
      KeeperChannel::Handlers{.spawned = [this](std::uint32_t i, std::uint64_t pid,
                                                std::uint64_t started) { parts_->trainers.spawned(i, pid, started); },
                              .exited =
                                  [this](const TrainerExited& exited) {
                                    parts_->trainers.exited(exited.local_index, exited.pid, exited.how, exited.said);
                                  },
                              .lost = [this] { context_.exit(1); },
                              .stop =
                                  [this](const StopAsked& asked) {
                                    parts_->last_checkpoint.stop_node(static_cast<int>(asked.signal),
                                                                      std::chrono::milliseconds(asked.grace_ms));
                                  }});
  parts_ = std::make_unique<Parts>(*this);
  if (Status adopted = adopt_held(); !adopted) {
    context_.clock->sleep(kBeforeNextTry);
    return adopted;
  }
  PAWL_ASSIGN(std::unique_ptr<Control> control, lines_.connect_control(token_));
  session_ = std::make_unique<ControlSession>(*loop_, std::move(control), [this](Duration asked, bool answered) {
    if (answered) return context_.attention.control_answered(asked, context_.clock->now(), context_.deadlines);
    context_.attention.control_failed();
  });
  control_calls_ = std::make_unique<SessionCalls>(*session_, context_);
  context_.control = control_calls_.get();
  tick();
  join_job();
  return {};
}

int Pawld::run() {
  loop_->run();
  return exit_code_;
}

// What is not one of ours is dropped. What this process can't read may be the only copy: the keeper, which has it still,
// gives it to the next one.
Status Pawld::adopt_held() {
  for (auto& [name, fd] : lines_.held) {
    Status adopted;
    std::uint32_t index = 0;
    if (name.rfind("page.", 0) == 0 && parse_number(std::string_view(name).substr(5), index)) {
      adopted = parts_->trainers.adopt_page(index, std::move(fd));
    } else if (name == RendezvousLog::kName) {
      adopted = parts_->rendezvous_log.adopt(std::move(fd));
    } else {
      adopted = parts_->memory.adopt(name, std::move(fd));
    }
    if (adopted) continue;
    const Code code = adopted.error().code;
    log_error("segment_refused", "name", name, "why", adopted.error().what);
    if (code != Code::corrupt && code != Code::invalid) return std::move(adopted).error().within("segment " + name);
    keeper_->drop(name);
  }
  return {};
}

void Pawld::join_job() {
  session_->call<Listing>([root = context_.mirror.keys().root](Control& control) { return control.list(root); },
                          [this](const Result<Listing>& listing) {
                            if (listing) return joined(*listing);
                            log_warn("control_away", "why", listing.error().what);
                            loop_->after(kListPause, [this] { join_job(); });
                          });
}

bool Pawld::take_spec(const Listing& listing) {
  for (const KeyValue& kv : listing.kvs) {
    if (kv.key != context_.mirror.keys().spec()) continue;
    auto spec = parse_job_spec(kv.value);
    std::string why = spec ? "" : spec.error().what;
    if (spec && (spec->version != kProtocolVersion || spec->seats_per_node != options_.seats_per_node))
      why = "the job speaks another version, or has another number of trainers a node";
    if (!why.empty()) {
      log_error("spec_refused", "why", why);
      end_job(1);
      return false;
    }
    context_.mirror.set_spec(*spec);
    return true;
  }
  loop_->after(50ms, [this] { join_job(); });
  return false;
}

void Pawld::joined(const Listing& listing) {
  if (!take_spec(listing)) return;
  keeper_->read();  // which trainers live: others are started in the places of the rest
  const JobSpec& spec = context_.mirror.spec();
  context_.deadlines = derive_deadlines(std::chrono::milliseconds(spec.deadline_ms));
  parts_->streams.set_gate_off(spec.gate_off && spec.test_hooks);
  parts_->streams.set_fetch_sizes(options_.stream_sizes.fetch);
  parts_->streams.set_spread_sizes(options_.stream_sizes.spread);
  parts_->streams.set_send_limit(spec.replica_bytes_a_second);
  start_neighbours();
  start_registrations();
  ready_ = true;
  take(listing);
  watches_.keys = std::make_unique<KeyWatch>(
      *loop_, *session_, context_.mirror.keys().root, listing,
      KeyWatch::Handlers{.on_listing =
                             [this](const Listing& all) {
                               take(all);
                               context_.watched.keys.as_of = watches_.keys_begun;
                             },
                         .on_event = [this](const WatchEvent& event) { on_key(event); },
                         .on_listed = [this] { drive(); },
                         .on_listing_begun = [this] { watches_.keys_begun = context_.clock->now(); }});
  parts_->peers.open();
  parts_->trainers.open();
  parts_->watch.start_missing();
  parts_->health.begin();
  log_info("daemon_ready", "address", options_.address, "incarnation", context_.self.incarnation, "memory_bytes",
           parts_->memory.bytes());
  drive();
}

void Pawld::start_neighbours() {
  neighbours_ = std::make_unique<Neighbours>(
      *loop_, hello(Purpose::link), context_.deadlines,
      Neighbours::Handlers{.on_lost =
                               [this](NodeLife life, const std::string& proof) {
                                 const JobMirror& mirror = context_.mirror;
                                 if (mirror.is_over() || !mirror.roster().is_survivor(life)) return;
                                 parts_->mover.report({FaultKind::node_lost, life, std::nullopt, proof, 0});
                               },
                           .on_evicted =
                               [this](NodeLife life, const std::string& why) {
                                 if (!context_.is_evicted()) fence(text("node ", life.node, " says: ", why));
                               },
                           .on_up =
                               [this](NodeLife life) {
                                 if (!context_.mirror.is_member()) return;
                                 parts_->progress.on_link_up(life.node);
                                 parts_->persist.on_link_up(life.node);
                                 if (context_.mirror.node_at(0) == life.node) parts_->rendezvous.ask_again();
                               },
                           .on_answer =
                               [this](NodeLife, Frame& frame) {
                                 if (const auto value = message_in<PeerValueMessage>(frame))
                                   parts_->rendezvous.on_answer(frame.id, value->answer);
                               },
                           .generation = [this] { return context_.mirror.generation(); },
                           .lifeline_of = [this](NodeLife life) { return lifeline_of(life); }});
}

void Pawld::start_registrations() {
  registration_ = std::make_unique<OwnRegistration>(
      context_, *loop_, *session_,
      OwnRegistration::Hooks{.record = [this] { return node_record(); },
                             .on_renewed = [this](Duration boottime) { lease_renewed_ns_ = boottime.count(); }});
  nodes_ = std::make_unique<NodeFollower>(
      context_, *loop_, *session_, options_.follow_limits,
      NodeFollower::Handlers{.on_change = [this](const JobMirror::Change& change) { on_change(change); },
                             .on_event = [this](const WatchEvent& event) { on_key(event); },
                             .drive = [this] { drive_once_for_all(); },
                             .contacts = [this] { return neighbours_->contacts(); }});
}

std::string Pawld::lifeline_of(NodeLife life) {
  const NodeRecord* const record = context_.record_of(life, Haste::later);  // it only hastens what is noticed anyway
  return record != nullptr ? record->lifeline : "";
}

NodeRecord Pawld::node_record() const {
  NodeRecord record;
  record.life = context_.self;
  record.address = options_.address;
  record.lifeline = options_.lifeline;
  record.domain = options_.domain;
  record.local_path = join_path(join_path(options_.run_dir, text("node-", context_.self.node)), "pawld.sock");
  record.keeper_pid = static_cast<std::uint64_t>(context_.environment->processes.parent_pid());
  record.pawld_pid = static_cast<std::uint64_t>(context_.environment->processes.own_pid());
  record.parked = parts_->watch.parked();
  record.unhealthy = parts_->health.why_not();
  if (record.unhealthy.empty() && !parts_->spare_memory.fits())
    record.unhealthy = "its memory has no room for the arenas of a member's seats";
  record.healthy = record.unhealthy.empty();
  record.arena_bytes = parts_->memory.own_bytes_max();
  return record;
}

Hello Pawld::hello(Purpose purpose) const {
  Hello hello;
  hello.job = options_.job;
  hello.token = token_;
  hello.node = context_.self.node;
  hello.incarnation = context_.self.incarnation;
  hello.generation = context_.mirror.generation();
  hello.purpose = purpose;
  return hello;
}

// --- What the control says

void Pawld::on_key(const WatchEvent& event) {
  KeyValue kv = event.kv;
  kv.mod_revision = event.revision;
  note(kv, event.kind != WatchEvent::Kind::put);
  if (kv.key == context_.mirror.keys().state()) return drive();
  if (!kv.key.starts_with(context_.mirror.keys().all_progress())) drive_once_for_all();
}

// Others know of a generation before us: the server at the other end of our watch may stand still, and the watch takes
// longer to leave it than a short deadline for a recovery leaves.
void Pawld::on_beat(NodeId node, Generation generation) {
  beats_[node] = context_.clock->boottime();
  if (!watches_.keys || generation <= context_.mirror.generation()) return;
  watches_.keys->list_later(KeyWatch::Reason::others_generation, context_.deadlines.silence / 4, [this, generation] {
    const bool behind = !context_.ending && generation > context_.mirror.generation();
    if (behind) log_warn("watch_behind", "generation", context_.mirror.generation(), "others", generation);
    return behind;
  });
}

// In a recovery nobody's beat tells of its next step. If that is long in coming, the watch may stand still.
void Pawld::check_state() {
  const JobMirror& mirror = context_.mirror;
  if (!mirror.is_in(JobPhase::quiescing) && !mirror.is_in(JobPhase::restoring)) return;
  const Duration now = context_.clock->now();
  const Duration silence = context_.deadlines.silence;
  if (state_check_.of != mirror.state_revision()) {
    state_check_.of = mirror.state_revision();
    state_check_.due = now + silence;
    state_check_.pause = silence;
  }
  if (now < state_check_.due) return;
  state_check_.pause = 2 * state_check_.pause;  // many wait at once
  state_check_.due = now + state_check_.pause;
  session_->call<KeyValue>([key = mirror.keys().state()](Control& control) { return control.get(key); },
                           [this](const Result<KeyValue>& state) {
                             const Revision known = context_.mirror.state_revision();
                             if (!state || state->mod_revision <= known || context_.ending || !watches_.keys) return;
                             // It may be on its way here, as it is to all: they must not all list at once.
                             watches_.keys->list_later(KeyWatch::Reason::later_state, context_.deadlines.silence / 4,
                                                       [this, there = state->mod_revision] {
                                                         const Revision here = context_.mirror.state_revision();
                                                         if (context_.ending || there <= here) return false;
                                                         log_warn("watch_behind", "state", here, "control", there);
                                                         return true;
                                                       });
                           });
}

void Pawld::take(const Listing& listing) {
  context_.orders.apply_all(listing);
  const JobMirror::Change change = context_.mirror.apply_all(listing, context_.clock->now());
  if (change.unread > 0) await_state(change.unread);
  on_change(change);
  for (const KeyValue& kv : listing.kvs) {
    parts_->persist.on_key(kv.key, kv.value, kv.mod_revision);
    parts_->last_checkpoint.on_key(kv.key, kv.value, kv.mod_revision);
    parts_->progress.on_key(kv.key, kv.value);
  }
}

void Pawld::note(const KeyValue& kv, bool erased) {
  context_.orders.apply(kv.key, erased ? nullptr : &kv.value, kv.mod_revision);
  const JobMirror::Change change =
      context_.mirror.apply(kv.key, erased ? nullptr : &kv.value, kv.mod_revision, context_.clock->now());
  if (change.unread > 0) await_state(change.unread);
  on_change(change);
  if (erased) return;
  parts_->persist.on_key(kv.key, kv.value, kv.mod_revision);  // first: progress that was told later may follow
  parts_->last_checkpoint.on_key(kv.key, kv.value, kv.mod_revision);
  parts_->progress.on_key(kv.key, kv.value);
}

// What it names comes with the watch, right before the state; unless that has lost it.
void Pawld::await_state(Revision of) {
  context_.metrics.counter("states_unread_total", "States that came without the topology or the sheet that they name.")
      .add(1);
  if (!watches_.keys) return;
  if (std::exchange(state_check_.unread, of) != of) state_check_.unread_pause = context_.deadlines.silence / 4;
  watches_.keys->list_later(KeyWatch::Reason::unread_state, state_check_.unread_pause, [this, of] {
    const bool behind = !context_.ending && context_.mirror.state_revision() < of;
    if (behind) log_warn("state_incomplete", "state", of);
    return behind;
  });
  state_check_.unread_pause *= 2;  // what it names may be spoiled where it stands, and many wait at once
}

void Pawld::on_change(const JobMirror::Change& change) {
  if (change.spoiled) log_warn("sheet_spoiled", "generation", context_.mirror.generation());
  if (!change.refused.empty()) return log_error("state_refused", "why", change.refused);
  if (change.stop) parts_->pages.write_all();
  if (change.lost && !std::exchange(control_lost_, true)) tell_control_lost();
  if (change.phase) {
    const JobState& state = context_.mirror.state();
    log_info("state", "generation", state.generation, "phase", name_of(state.phase), "resume", state.resume, "leader",
             state.leader.node);
    parts_->seats.take();
    parts_->pages.write_all();
    parts_->reports.on_state();
    parts_->collector.on_state();
  }
  // Who is registered matters only to who has no seat, and where a job of two needs a third (watched_by).
  const bool by_nodes =
      change.nodes && (!context_.mirror.is_member() || context_.mirror.roster().survivors().size() < 3);
  if (change.phase) context_.watched.wanted.clear();  // who is still wanted is wanted again below
  if (change.phase || by_nodes)
    neighbours_->set(context_.mirror.linked_members());
  else if (change.nodes)
    neighbours_->set_lifelines();  // a registration tells where one ends
  if (change.nodes) registration_->check();
}

// What this node read last need not be what the control took last: a swap that only another has read, or that nobody
// has, would be undone by writing it back, and of one generation there would be two lines. So nobody does. Training and
// capture go on with the state that is known here; every swap loses from now on, after pauses.
void Pawld::tell_control_lost() {
  log_error("control_lost_data", "generation", context_.mirror.generation(), "revision",
            context_.mirror.state_revision());
  if (context_.mirror.is_root())
    parts_->events.tell("control_lost_data",
                        R"({"detail":"no recovery is possible any more; save a checkpoint, and start the job anew"})");
}

// --- Driving

void Pawld::drive() {
  drive_parts();
  if (!ready_ || context_.ending || nodes_ == nullptr) return;  // that of a daemon that is being taken apart is gone
  follow_keys();
  nodes_->take_step();
  follow_reports();
}

void Pawld::follow_keys() {
  if (!std::exchange(context_.watched.keys.ask_anew, false) || !watches_.keys) return;
  watches_.keys->confirm(context_.deadlines.silence / 4, [this](Duration begun) {
    context_.watched.keys.as_of = begun;
    drive_once_for_all();
  });
}

void Pawld::follow_reports() {
  JobMirror& mirror = context_.mirror;
  const bool anew = std::exchange(context_.heard.list_anew, false);
  const bool recovers = mirror.is_in(JobPhase::quiescing) || mirror.is_in(JobPhase::restoring);
  const bool wanted = recovers && context_.heard.wanted == mirror.generation();
  if (const Generation of = wanted ? mirror.generation() : Generation(0);
      std::exchange(watches_.reports_of, of) == of) {
    if (anew && watches_.reports)
      watches_.reports->list_later(KeyWatch::Reason::reports, Duration::zero(), [] { return true; });
    return;
  }
  watches_.reports.reset();
  if (!wanted) return;
  watches_.reports = std::make_unique<KeyWatch>(
      *loop_, *session_, mirror.keys().reports(watches_.reports_of), Listing{{}, mirror.state_revision()},
      KeyWatch::Handlers{.on_listing =
                             [this](const Listing& all) {
                               if (watches_.reports_of != context_.mirror.generation()) return;
                               context_.mirror.apply_reports(all, context_.clock->now());
                               context_.heard.known = watches_.reports_of;
                               context_.heard.as_of = watches_.reports_begun;
                             },
                         .on_event = [this](const WatchEvent& event) { on_key(event); },
                         .on_listed = [this] { drive_once_for_all(); },
                         .on_listing_begun = [this] { watches_.reports_begun = context_.clock->now(); }});
  watches_.reports->list_later(KeyWatch::Reason::reports, Duration::zero(), [] { return true; });
}

void Pawld::drive_parts() {
  if (!ready_ || context_.ending) return;
  parts_->last_checkpoint.consider_stop();
  if (context_.ending) return;
  if (!context_.mirror.has_state()) return parts_->mover.consider_forming();
  parts_->generations.follow();
  if (context_.ending) return;
  if (context_.is_evicted()) return parts_->last_checkpoint.drive();  // it may linger for what it holds
  parts_->mover.drive();
  parts_->persist.drive();
  parts_->last_checkpoint.drive();
  parts_->retention.drive();
  parts_->job_end.consider_stop();
  parts_->job_end.consider_finish();
  parts_->drains.consider();
}

void Pawld::drive_soon(Duration delay) {
  if (drives_.planned) return;
  drives_.planned = true;
  loop_->after(delay, [this] {
    drives_.planned = false;
    drive();
  });
}

// The nodes of a large job all say something at once, and a drive looks at all that they have said.
void Pawld::drive_once_for_all() {
  if (std::exchange(drives_.posted, true)) return;
  loop_->post([this] {
    drives_.posted = false;
    drive();
  });
}

void Pawld::tick() {
  if (context_.ending) return;
  keeper_->alive(Duration(lease_renewed_ns_.load()));
  if (!ready_) {  // the keeper must know that this pawld lives, however long the control takes
    loop_->after(kUnreadyTick, [this] { tick(); });
    return;
  }
  context_.attention.ticked(context_.clock->now(), context_.deadlines);
  count_turns();
  neighbours_->tick();
  fence_if_cut_off();
  check_state();
  parts_->watch.check();
  parts_->spare_memory.consider(
      {static_cast<std::uint32_t>(parts_->memory.arenas().size()), parts_->memory.own_bytes_max()});
  context_.mirror.nodes.note_own_arena(parts_->memory.own_bytes_max());
  parts_->paces.tick();
  parts_->progress.tick();
  parts_->persist.tick();
  parts_->mover.check_members(neighbours_->contacts(), beating());
  drive();
  parts_->recovery.tick();
  parts_->rendezvous.tick();
  loop_->after(context_.deadlines.heartbeat_interval, [this] { tick(); });
}

void Pawld::count_turns() {
  Counter& busy = context_.metrics.counter("loop_long_turns_total", "Turns that kept the loop busy for over 10 ms.");
  busy.add(loop_->turns().long_count - busy.value());
  Counter& crowded = context_.metrics.counter("loop_crowded_turns_total",
                                              "Turns of the loop of over 10 ms in which it mostly waited for a core.");
  crowded.add(loop_->turns().crowded_count - crowded.value());
  const std::uint64_t refused = context_.mirror.reports.take_refused();
  if (refused > 0) log_warn("reports_refused", "count", refused);
  reports_refused(context_.metrics).add(refused);
}

std::vector<NodeId> Pawld::beating() const {
  std::vector<NodeId> nodes;
  for (const auto& [node, beat] : beats_)
    if (context_.clock->boottime() - beat <= context_.deadlines.silence) nodes.push_back(node);
  return nodes;
}

void Pawld::fence_if_cut_off() {
  FenceView view;
  view.now_boottime = context_.clock->boottime();
  view.lease_renewed_boottime = Duration(lease_renewed_ns_.load());
  view.last_tick_boottime = loop_->last_round_boottime();
  if (const JobMirror& mirror = context_.mirror; mirror.has_state())
    count_heard(view, mirror.links(), neighbours_->contacts(), beats_, context_.deadlines);
  if (!must_fence(view, context_.deadlines)) return;
  fence(text("cut off: the lease is ", (view.now_boottime - view.lease_renewed_boottime) / 1ms, " ms old, and of ",
             view.members, " members ", view.heard, " are heard, this one among them"));
}

void Pawld::fence(const std::string& why) {
  if (std::exchange(context_.ending, true)) return;
  log_error("fencing_itself", "why", why);
  keeper_->fence(why);
}

void Pawld::end_job(int code) {
  if (context_.ending) return;
  context_.ending = true;
  log_info("daemon_ends", "code", code);
  for (TrainerProcess& trainer : parts_->trainers.places()) parts_->trainers.stop(trainer);
  // What was told of the end goes to the control first, in its order, if the control is there.
  const auto end = [this, code] { keeper_->end(code); };
  loop_->after(kEventDelay, [this, end] { context_.control->tell([this, end](Control&) { loop_->post(end); }); });
  loop_->after(500ms, end);
  loop_->after(10s, [this] { loop_->stop(); });  // the keeper ends us sooner
}

}  // namespace pawl::job
