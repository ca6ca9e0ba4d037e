#include "job/daemon/pawld.h"

#include <unistd.h>
#include <csignal>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "env/files.h"
#include "env/network.h"
#include "env/process.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {
std::uint64_t number_in(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) && object[name].is_number_unsigned()
             ? object[name].get<std::uint64_t>()
             : 0;
}
std::uint64_t wall_ms() {
  return static_cast<std::uint64_t>(real_clock().wall() / 1ms);
}
}  // namespace

Pawld::Pawld(DaemonOptions options)
    : options_(std::move(options)),
      self_{NodeId(options_.node), Incarnation(options_.incarnation)},
      keys_(options_.job),
      workers_([this] { loop_->post([this] { drive(); }); }) {
  context_.workers = &workers_;
  context_.progress = &progress_bits_;
  context_.bytes_sent = &bytes_sent_;
  context_.bytes_received = &bytes_received_;
  context_.hold = [this](const char* phase, const std::atomic<bool>& ended) { hold_thread(phase, ended); };
}

Pawld::~Pawld() {
  watch_.reset();
  session_.reset();
}

Status Pawld::start() {
  PAWL_ASSIGN(loop_, Loop::make());
  peer_listener_ = Fd(options_.listen_fd);
  auto token = read_file(join_path(options_.run_dir, "token"), 4096);
  if (token) token_ = *token;
  keeper_ = std::make_unique<KeeperChannel>(
      *loop_, options_.keeper_fd,
      KeeperChannel::Handlers{.spawned = [this](std::uint32_t i, std::uint64_t pid,
                                                std::uint64_t started) { trainers_->spawned(i, pid, started); },
                              .exited = [this](std::uint32_t i, std::uint64_t pid,
                                               const std::string& how) { trainers_->exited(i, pid, how); },
                              .lost = [] { _exit(1); }});
  memory_ = std::make_unique<Memory>(
      Memory::Keeper{.hold = [this](const std::string& name, int fd) { keeper_->hold(name, fd); },
                     .drop = [this](const std::string& name) { keeper_->drop(name); }});
  trainers_ = std::make_unique<Trainers>(
      *loop_, options_.seats_per_node, options_.job, Fd(options_.local_fd),
      Trainers::Handlers{
          .on_request = [this](TrainerProcess& p, const Frame& f) { on_trainer_request(p, f); },
          .on_notice = [this](TrainerProcess& p) { on_notice(p); },
          .on_death = [this](TrainerProcess& p, const std::string& how) { on_trainer_death(p, how); },
          .on_question = [this](std::shared_ptr<Connection> c, const Frame& f) { on_question(c, f, true); },
          .hold = [this](const std::string& name, int fd) { keeper_->hold(name, fd); },
          .on_page = [this](TrainerProcess& p) { write_page(p); }});
  rendezvous_log_ = std::make_unique<RendezvousLog>(
      options_.job, [this](const std::string& name, int fd) { keeper_->hold(name, fd); });
  for (auto& [name, fd] : options_.held) {
    Status adopted;
    std::uint32_t index = 0;
    if (name.rfind("page.", 0) == 0 && parse_number(std::string_view(name).substr(5), index)) {
      adopted = trainers_->adopt_page(index, Fd(fd));
    } else if (name == RendezvousLog::kName) {
      adopted = rendezvous_log_->adopt(Fd(fd));
    } else {
      adopted = memory_->adopt(name, Fd(fd));
    }
    if (!adopted) {
      log_error("segment_refused", "name", name, "why", adopted.error().what);
      keeper_->drop(name);
    }
  }
  PAWL_ASSIGN(auto control, connect_control(options_.control, ControlOptions{.deadline = 2000ms, .token = token_}));
  session_ = std::make_unique<ControlSession>(*loop_, std::move(control));
  join_job();
  return {};
}

int Pawld::run() {
  loop_->run();
  return exit_code_;
}

void Pawld::join_job() {
  session_->call<Listing>([root = keys_.root](Control& control) { return control.list(root); },
                          [this](Result<Listing> listing) {
                            if (listing) return joined(*listing);
                            log_warn("control_away", "why", listing.error().what);
                            loop_->after(100ms, [this] { join_job(); });
                          });
}

void Pawld::joined(const Listing& listing) {
  bool have_spec = false;
  for (const KeyValue& kv : listing.kvs) {
    if (kv.key != keys_.spec()) continue;
    auto spec = parse_job_spec(kv.value);
    if (!spec) {
      log_error("spec_refused", "why", spec.error().what);
      return end_job(1);
    }
    spec_ = *spec;
    have_spec = true;
  }
  if (!have_spec) {
    loop_->after(50ms, [this] { join_job(); });
    return;
  }
  if (spec_.version != kProtocolVersion || spec_.seats_per_node != options_.seats_per_node) {
    log_error("spec_refused", "why", "the job speaks another version, or has another number of trainers a node");
    return end_job(1);
  }
  deadlines_ = derive_deadlines(std::chrono::milliseconds(spec_.deadline_ms));
  context_.gate_off = spec_.gate_off && spec_.test_hooks;
  neighbours_ = std::make_unique<Neighbours>(
      *loop_, hello(Purpose::link), deadlines_,
      Neighbours::Handlers{
          .on_lost = [this](NodeLife life, FaultKind kind, const std::string& why) { lost_neighbour(life, kind, why); },
          .on_up = [this](NodeLife life) { on_link_up(life); },
          .on_answer = [this](NodeLife life, Frame& frame) { on_link_answer(life, frame); },
          .generation = [this] { return state_ ? state_->generation : Generation(0); }});
  ready_ = true;
  note_all(listing);
  watch_ = session_->watch(keys_.root, listing.revision + 1, [this](const WatchEvent& event) { on_key(event); });
  loop_->watch(peer_listener_.get(), kRead, [this](const Ready&) { accept_peer(); });
  trainers_->open();
  start_missing_trainers();
  register_node();
  log_info("daemon_ready", "address", options_.address, "incarnation", self_.incarnation, "memory_bytes",
           memory_->bytes());
  tick();
  drive();
}

void Pawld::on_key(const WatchEvent& event) {
  if (event.kind == WatchEvent::Kind::resync) {
    session_->call<Listing>([root = keys_.root](Control& control) { return control.list(root); },
                            [this](Result<Listing> listing) {
                              if (!listing) return;
                              note_all(*listing);
                              drive();
                            });
    return;
  }
  const bool put = event.kind == WatchEvent::Kind::put;
  note_key(event.kv.key, put ? &event.kv.value : nullptr, event.revision);
  if (event.kv.key.rfind(keys_.events(), 0) != 0) drive();
}

// The state first: what the others say belongs to its generation.
void Pawld::note_all(const Listing& listing) {
  for (const KeyValue& kv : listing.kvs)
    if (kv.key == keys_.state()) note_key(kv.key, &kv.value, kv.mod_revision);
  for (const KeyValue& kv : listing.kvs)
    if (kv.key != keys_.state()) note_key(kv.key, &kv.value, kv.mod_revision);
}

void Pawld::note_key(const std::string& key, const std::string* value, Revision revision) {
  auto number_after = [&](const std::string& prefix, std::uint64_t& number) {
    return key.rfind(prefix, 0) == 0 && parse_number(std::string_view(key).substr(prefix.size()), number);
  };
  std::uint64_t number = 0;
  if (key == keys_.state()) {
    if (value == nullptr) return;
    auto state = parse_job_state(*value);
    if (!state) return log_error("state_refused", "why", state.error().what);
    learn_state(*state, revision);
  } else if (number_after(keys_.nodes(), number)) {
    const NodeId node(static_cast<std::uint32_t>(number));
    auto record = value != nullptr ? parse_node_record(*value) : Result<NodeRecord>(Error{Code::not_found, ""});
    if (record) {
      nodes_[node] = *record;
      node_gone_since_.erase(node);
    } else {
      nodes_.erase(node);
      node_gone_since_[node] = real_clock().now();
    }
  } else if (value != nullptr && state_ && number_after(keys_.inventories(state_->generation), number)) {
    if (auto inventory = parse_inventory(*value)) inventories_[inventory->life.node] = *inventory;
  } else if (value != nullptr && state_ && number_after(keys_.readies(state_->generation), number)) {
    readies_[NodeId(static_cast<std::uint32_t>(number))] = state_->generation;
  } else if (value != nullptr && key == keys_.stop()) {
    const Json json = Json::parse(*value, nullptr, false);
    stop_step_ = Step(number_in(json, "step"));
    for (TrainerProcess& place : trainers_->places()) write_page(place);
  } else if (value != nullptr && state_ && number_after(keys_.stop_acks(state_->generation), number)) {
    stop_acks_[NodeId(static_cast<std::uint32_t>(number))] = state_->generation;
  } else if (value != nullptr && number_after(keys_.finishes(), number)) {
    const Json json = Json::parse(*value, nullptr, false);
    const Finish finish{Generation(number_in(json, "generation")), Step(number_in(json, "step")),
                        json.is_object() && json.value("committed", Json()) == true};
    if (finish.generation.value > 0) finishes_[Seat(static_cast<std::uint32_t>(number))] = finish;
  } else if (value != nullptr && number_after(keys_.exits(), number)) {
    const Json json = Json::parse(*value, nullptr, false);
    const Seat seat(static_cast<std::uint32_t>(number));
    if (json.is_object() && json.contains("detail") && json["detail"].is_string())
      ends_[seat] = {seat, Generation(number_in(json, "generation")), json["detail"].get<std::string>()};
  }
}

void Pawld::drive() {
  if (!ready_ || ending_) return;
  if (!state_) return consider_forming();
  apply_state();
  if (ending_) return;
  push_causes();
  if (state_->leader == self_) lead();
  consider_stop();
  consider_finish();
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
  if (ending_) return;
  neighbours_->tick();
  keeper_->alive(Duration(lease_renewed_ns_.load()));
  fence_if_cut_off();
  check_trainers();
  check_leases();
  drive();
  loop_->after(deadlines_.heartbeat_interval, [this] { tick(); });
}

void Pawld::fence_if_cut_off() {
  FenceView view;
  view.now_boottime = real_clock().boottime();
  view.lease_renewed_boottime = Duration(lease_renewed_ns_.load());
  view.last_tick_boottime = loop_->last_round_boottime();
  view.neighbour_heard_boottime = neighbours_->last_heard_boottime();
  view.has_neighbours = neighbours_->has_any();
  if (view.lease_renewed_boottime == Duration::zero() || !must_fence(view, deadlines_)) return;
  log_error("fencing_itself", "lease_age_ms", (view.now_boottime - view.lease_renewed_boottime) / 1ms);
  ending_ = true;
  keeper_->reset("cut off: the lease is older than its bound and no neighbour was heard");
}

NodeRecord Pawld::node_record() const {
  NodeRecord record;
  record.life = self_;
  record.address = options_.address;
  record.local_path = join_path(join_path(options_.run_dir, text("node-", self_.node)), "pawld.sock");
  record.keeper_pid = static_cast<std::uint64_t>(getppid());
  record.pawld_pid = static_cast<std::uint64_t>(getpid());
  record.parked = parked_.load();
  record.healthy = true;  // it got here: memory, descriptors, control and listening sockets are sound
  return record;
}

void Pawld::register_node() {
  session_->keep_registered(
      keys_.node(self_.node), deadlines_.lease, [this] { return to_json(node_record()); },
      [this](Duration boottime) { lease_renewed_ns_ = boottime.count(); });
}

void Pawld::tell_event(const std::string& kind, std::string fields_json) {
  Json event = Json::parse(fields_json, nullptr, false);
  if (!event.is_object()) event = Json::object();
  event["kind"] = kind;
  event["at_ms"] = wall_ms();
  event["at_monotonic_ns"] = real_clock().now().count();
  event["node"] = self_.node.value;
  if (!event.contains("generation")) event["generation"] = state_ ? state_->generation.value : 0;
  const std::string key = keys_.event(static_cast<std::uint64_t>(real_clock().wall().count()), self_.node);
  // A little later: what is told must not stand in the way of what is decided.
  loop_->after(20ms, [this, key, value = event.dump()] {
    session_->tell([key, value](Control& control) { (void)control.put(key, value); });
  });
}

void Pawld::end_job(int code) {
  if (ending_) return;
  ending_ = true;
  log_info("daemon_ends", "code", code);
  if (trainers_)
    for (TrainerProcess& place : trainers_->places()) trainers_->stop(place);
  keeper_->end(code);
  loop_->after(10s, [this] { loop_->stop(); });  // the keeper ends us sooner
}

Hello Pawld::hello(Purpose purpose) const {
  Hello hello;
  hello.job = options_.job;
  hello.token = token_;
  hello.node = self_.node;
  hello.incarnation = self_.incarnation;
  hello.generation = state_ ? state_->generation : Generation(0);
  hello.purpose = purpose;
  return hello;
}

void Pawld::accept_peer() {
  for (;;) {
    auto accepted = try_accept(peer_listener_.get());
    if (!accepted || !accepted->valid()) return;
    auto weak = std::make_shared<std::weak_ptr<Connection>>();
    auto connection = Connection::make(*loop_, std::move(*accepted),
                                       {.on_frame =
                                            [this, weak](Frame& frame) {
                                              if (auto c = weak->lock()) on_peer_hello(c, frame);
                                            },
                                        .on_close =
                                            [this, weak](const Error&) {
                                              if (auto c = weak->lock()) peers_.erase(c);
                                            }});
    *weak = connection;
    peers_[connection] = std::nullopt;
  }
}

void Pawld::on_peer_hello(const std::shared_ptr<Connection>& connection, Frame& frame) {
  auto known = peers_.find(connection);
  if (known != peers_.end() && known->second) {  // a link that was welcomed
    return on_link_incoming({*known->second, Incarnation(0)}, connection, frame);
  }
  if (is<QuestionMessage>(frame)) return on_question(connection, frame, false);
  auto refuse = [&](PeerRefusal kind, const std::string& why) {
    connection->send(frame_of(PeerRefusedMessage{kind, why}));
  };
  Hello hello;
  if (!is<Hello>(frame) || !decode(frame.payload, hello)) return refuse(PeerRefusal::never, "not pawl's protocol");
  if (hello.version != kPeerWireVersion)
    return refuse(PeerRefusal::never, text("this is version ", kPeerWireVersion, ", yours ", hello.version,
                                           ": run one release on all nodes"));
  if (hello.job != options_.job)
    return refuse(PeerRefusal::never, "another job (" + options_.job + ") has this address");
  if (hello.token != token_) return refuse(PeerRefusal::never, "wrong token: all nodes of a job share one");
  if (hello.expected.value != 0 && hello.expected != self_.incarnation)
    return refuse(PeerRefusal::stale, "that life of this node is over");
  if (is_evicted({hello.node, hello.incarnation})) return refuse(PeerRefusal::stale, "you were evicted");
  if (hello.purpose == Purpose::link) {
    connection->send(frame_of(WelcomeMessage{self_.node, self_.incarnation}));
    peers_[connection] = hello.node;
    return;
  }
  if (!state_ || hello.generation > state_->generation) return refuse(PeerRefusal::later, "not yet in that generation");
  if (hello.generation < state_->generation) return refuse(PeerRefusal::stale, "that generation is over");
  const bool seated = hello.purpose != Purpose::data ||
                      (hello.seat.value < state_->seats.size() &&
                       state_->seats[hello.seat.value].life == NodeLife{hello.node, hello.incarnation});
  if (!seated) return refuse(PeerRefusal::stale, "that seat is not yours");
  if (hello.purpose == Purpose::data) return adopt_data(connection, hello);
  if (hello.purpose == Purpose::fetch) return adopt_fetch(connection);
  refuse(PeerRefusal::never, "unknown purpose");
}

int run_daemon(const DaemonOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  log_to(STDERR_FILENO, LogLevel::info, text("node=", options.node));
  Pawld daemon(options);
  if (Status started = daemon.start(); !started) {
    log_error("daemon_failed", "why", started.error().what);
    return 1;
  }
  const int code = daemon.run();
  _exit(code);  // streams may still stand in system calls; the kernel closes them, the keeper holds the memory
}

}  // namespace pawl::job
