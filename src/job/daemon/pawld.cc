#include "job/daemon/pawld.h"

#include "base/log.h"
#include "env/files.h"
#include "job/daemon/pawld_parts.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {

class SessionCalls : public ControlCalls {
 public:
  explicit SessionCalls(ControlSession& session) : session_(session) {}
  void put(std::string key, std::string value, std::function<void(Status)> then) override {
    session_.call<Revision>(
        [key = std::move(key), value = std::move(value)](Control& control) { return control.put(key, value); },
        [then = std::move(then)](Result<Revision> put) { then(put ? Status() : Status(put.error())); });
  }
  void compare_and_swap(std::string key, Revision expected, std::string value,
                        std::function<void(Result<Swapped>)> then) override {
    session_.call<Swapped>([key = std::move(key), expected, value = std::move(value)](
                               Control& control) { return control.compare_and_swap(key, expected, value); },
                           std::move(then));
  }
  void tell(std::function<void(Control&)> work) override { session_.tell(std::move(work)); }

 private:
  ControlSession& session_;
};

}  // namespace

Pawld::Pawld(DaemonOptions options, DaemonLines lines, const Environment& environment)
    : options_(std::move(options)),
      lines_(std::move(lines)),
      context_({NodeId(options_.node), Incarnation(options_.incarnation)}, options_.job, environment) {
  context_.address = options_.address;
  context_.after = [this](Duration delay, std::function<void()> task) { loop_->after(delay, std::move(task)); };
  context_.post = [this](std::function<void()> task) { loop_->post(std::move(task)); };
  context_.drive = [this] { drive(); };
  context_.drive_soon = [this](Duration delay) { drive_soon(delay); };
  context_.exit = lines_.exit;
}

Pawld::~Pawld() {
  watch_.reset();
  session_.reset();
}

// --- Start

Status Pawld::start() {
  PAWL_ASSIGN(loop_, Loop::make(*context_.environment));
  Files& files = context_.environment->files;
  if (auto token = read_file(join_path(options_.run_dir, "token"), 4096, files)) token_ = *token;
  keeper_ = std::make_unique<KeeperChannel>(
      *loop_, std::move(lines_.keeper),
      KeeperChannel::Handlers{.spawned = [this](std::uint32_t i, std::uint64_t pid,
                                                std::uint64_t started) { parts_->trainers.spawned(i, pid, started); },
                              .exited = [this](std::uint32_t i, std::uint64_t pid,
                                               const std::string& how) { parts_->trainers.exited(i, pid, how); },
                              .lost = [this] { context_.exit(1); }});
  parts_ = std::make_unique<Parts>(*this);
  adopt_held();
  PAWL_ASSIGN(std::unique_ptr<Control> control, lines_.connect_control(token_));
  session_ = std::make_unique<ControlSession>(*loop_, std::move(control));
  control_calls_ = std::make_unique<SessionCalls>(*session_);
  context_.control = control_calls_.get();
  join_job();
  return {};
}

int Pawld::run() {
  loop_->run();
  return exit_code_;
}

void Pawld::adopt_held() {
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
    log_error("segment_refused", "name", name, "why", adopted.error().what);
    keeper_->drop(name);
  }
}

void Pawld::join_job() {
  session_->call<Listing>([root = context_.mirror.keys().root](Control& control) { return control.list(root); },
                          [this](Result<Listing> listing) {
                            if (listing) return joined(*listing);
                            log_warn("control_away", "why", listing.error().what);
                            loop_->after(100ms, [this] { join_job(); });
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
  const JobSpec& spec = context_.mirror.spec();
  context_.deadlines = derive_deadlines(std::chrono::milliseconds(spec.deadline_ms));
  parts_->streams.set_gate_off(spec.gate_off && spec.test_hooks);
  start_neighbours();
  ready_ = true;
  note_all(listing);
  watch_ = session_->watch(context_.mirror.keys().root, listing.revision + 1,
                           [this](const WatchEvent& event) { on_key(event); });
  parts_->peers.open();
  parts_->trainers.open();
  parts_->watch.start_missing();
  register_node();
  log_info("daemon_ready", "address", options_.address, "incarnation", context_.self.incarnation, "memory_bytes",
           parts_->memory.bytes());
  tick();
  drive();
}

void Pawld::start_neighbours() {
  neighbours_ = std::make_unique<Neighbours>(
      *loop_, hello(Purpose::link), context_.deadlines,
      Neighbours::Handlers{.on_lost =
                               [this](NodeLife life, FaultKind kind, const std::string& why) {
                                 if (context_.mirror.has_state() && !context_.mirror.is_over())
                                   parts_->mover.report({kind, life, std::nullopt, why, 0});
                               },
                           .on_up =
                               [this](NodeLife life) {
                                 if (!context_.mirror.is_member()) return;
                                 parts_->progress.on_link_up(life.node);
                                 if (context_.mirror.node_at(0) == life.node) parts_->rendezvous.ask_again();
                               },
                           .on_answer =
                               [this](NodeLife, Frame& frame) {
                                 if (const auto value = message_in<PeerValueMessage>(frame))
                                   parts_->rendezvous.on_answer(frame.id, value->answer);
                               },
                           .generation = [this] { return context_.mirror.generation(); }});
}

void Pawld::register_node() {
  session_->keep_registered(
      context_.mirror.keys().node(context_.self.node), context_.deadlines.lease,
      [this] { return to_json(node_record()); }, [this](Duration boottime) { lease_renewed_ns_ = boottime.count(); });
}

NodeRecord Pawld::node_record() const {
  NodeRecord record;
  record.life = context_.self;
  record.address = options_.address;
  record.local_path = join_path(join_path(options_.run_dir, text("node-", context_.self.node)), "pawld.sock");
  record.keeper_pid = static_cast<std::uint64_t>(context_.environment->processes.parent_pid());
  record.pawld_pid = static_cast<std::uint64_t>(context_.environment->processes.own_pid());
  record.parked = parts_->watch.parked();
  record.healthy = true;  // it got here: memory, descriptors, control and listening sockets are sound
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
  if (event.kind == WatchEvent::Kind::resync) {
    session_->call<Listing>([root = context_.mirror.keys().root](Control& control) { return control.list(root); },
                            [this](Result<Listing> listing) {
                              if (!listing) return;
                              note_all(*listing);
                              drive();
                            });
    return;
  }
  KeyValue kv = event.kv;
  kv.mod_revision = event.revision;
  note(kv, event.kind != WatchEvent::Kind::put);
  if (kv.key.rfind(context_.mirror.keys().events(), 0) != 0) drive();
}

// The state first: what the others say belongs to its generation.
void Pawld::note_all(const Listing& listing) {
  const std::string state = context_.mirror.keys().state();
  for (const KeyValue& kv : listing.kvs)
    if (kv.key == state) note(kv);
  for (const KeyValue& kv : listing.kvs)
    if (kv.key != state) note(kv);
}

void Pawld::note(const KeyValue& kv, bool erased) {
  on_change(context_.mirror.apply(kv.key, erased ? nullptr : &kv.value, kv.mod_revision, context_.clock->now()));
}

void Pawld::on_change(const JobMirror::Change& change) {
  if (!change.refused.empty()) return log_error("state_refused", "why", change.refused);
  if (change.stop) parts_->pages.write_all();
  if (!change.state) return;
  const JobState& state = context_.mirror.state();
  parts_->imports.note_struck(state.struck);
  if (!change.phase) return;
  log_info("state", "generation", state.generation, "phase", name_of(state.phase), "resume", state.resume, "leader",
           state.leader.node);
  parts_->seats.take();
  parts_->pages.write_all();
  neighbours_->set(context_.mirror.linked_members());
}

// --- Driving

void Pawld::drive() {
  if (!ready_ || context_.ending) return;
  if (!context_.mirror.has_state()) return parts_->mover.consider_forming();
  parts_->generations.follow();
  if (context_.ending) return;
  parts_->mover.drive();
  parts_->job_end.consider_stop();
  parts_->job_end.consider_finish();
}

void Pawld::drive_soon(Duration delay) {
  if (drive_planned_) return;
  drive_planned_ = true;
  loop_->after(delay, [this] {
    drive_planned_ = false;
    drive();
  });
}

void Pawld::tick() {
  if (context_.ending) return;
  neighbours_->tick();
  keeper_->alive(Duration(lease_renewed_ns_.load()));
  fence_if_cut_off();
  parts_->watch.check();
  parts_->mover.check_members([this](NodeId node) { return neighbours_->is_up(node); });
  drive();
  loop_->after(context_.deadlines.heartbeat_interval, [this] { tick(); });
}

void Pawld::fence_if_cut_off() {
  FenceView view;
  view.now_boottime = context_.clock->boottime();
  view.lease_renewed_boottime = Duration(lease_renewed_ns_.load());
  view.last_tick_boottime = loop_->last_round_boottime();
  view.neighbour_heard_boottime = neighbours_->last_heard_boottime();
  view.has_neighbours = neighbours_->has_any();
  if (!must_fence(view, context_.deadlines)) return;
  log_error("fencing_itself", "lease_age_ms", (view.now_boottime - view.lease_renewed_boottime) / 1ms);
  context_.ending = true;
  keeper_->reset("cut off: the lease is older than its bound and no neighbour was heard");
}

void Pawld::end_job(int code) {
  if (context_.ending) return;
  context_.ending = true;
  log_info("daemon_ends", "code", code);
  for (TrainerProcess& trainer : parts_->trainers.places()) parts_->trainers.stop(trainer);
  keeper_->end(code);
  loop_->after(10s, [this] { loop_->stop(); });  // the keeper ends us sooner
}

}  // namespace pawl::job
