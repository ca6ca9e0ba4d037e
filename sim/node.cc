#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "cluster.h"

namespace pawl::sim {

using namespace std::chrono_literals;
using job::HeldSegment;
using job::NodeKeeper;

Node::Node(Cluster& cluster, std::uint32_t index) : machine(index), cluster_(cluster) {
  address_ = text("10.0.0.", index, ":7000");
  local_ = text("local.", index);
  lifeline_ = text("10.0.0.", index, ":7001");
}

void Node::start() {
  Machines& machines = cluster_.machines;
  process_ = &machines.start(machine, text("keeper", machine), [this](const std::string&) {
    cluster_.machines.wires().close_port(lifeline_);
    // Of the others its pawld has copies.
    cluster_.scheduler.after(dying_, [this] {
      cluster_.machines.wires().close_port(address_);
      cluster_.machines.wires().close_port(local_);
      cluster_.drop_all(machine);
      over_ = true;
    });
  });
  world_ = new World(machines, *process_, 1);
  port_ = machines.wires().open_port(machine, address_);
  local_port_ = machines.wires().open_port(machine, local_);
  const auto lifelines = machines.wires().open_port(machine, lifeline_);
  lifelines_ = job::KeeperLifelines::start(world_->environment, listener_of(machines.wires(), *process_, lifelines),
                                           {NodeId(machine), cluster_.job, ""})
                   ->release();
  job::NodeKeeperOptions options;
  options.node = NodeId(machine);
  options.seats_per_node = cluster_.options.seats_per_node;
  const job::Deadlines deadlines = job::derive_deadlines(std::chrono::milliseconds(cluster_.options.deadline_ms));
  options.silence = deadlines.silence;
  options.daemon_silence = deadlines.silence / 2;
  options.lease = deadlines.lease;
  if (cluster_.storage.is_on()) options.stop_grace = std::chrono::seconds(60);
  keeper_ = std::make_unique<NodeKeeper>(options, *this);
  cluster_.scheduler.start(*process_, [this] { serve(); });
}

void Node::happen(std::function<void()> event) {
  events_.push_back(std::move(event));
  cluster_.scheduler.notify(waiting_);
}

void Node::serve() {
  Clock& clock = *cluster_.machines.at(machine).clock;
  keeper_->begin(clock.boottime());
  while (!keeper_->outcome()) {
    const Duration now = clock.boottime();
    if (events_.empty()) cluster_.scheduler.wait(waiting_, cluster_.scheduler.now() + keeper_->wait(now));
    while (!events_.empty()) {
      const auto event = std::move(events_.front());
      events_.pop_front();
      event();
    }
    read(channel_);
    keeper_->turn(clock.boottime());
  }
  cluster_.scheduler.after(Duration::zero(), [this] { kill(Duration::zero(), false); });
  cluster_.scheduler.sleep(1s);
}

void Node::read(const std::shared_ptr<End>& channel) {
  static std::vector<std::byte> buffer(64 << 10);  // one thread, and nothing waits here
  while (channel != nullptr) {
    const auto got = cluster_.machines.wires().receive(*channel, buffer);
    if (!got || *got == 0) return;
    std::vector<Fd> fds;
    for (Passed& one : channel->passed)
      if (one.segment.valid()) fds.push_back(std::move(one.segment));
    channel->passed.clear();
    const std::string_view packet(reinterpret_cast<const char*>(buffer.data()), *got);
    note(packet, fds);
    keeper_->on_message(packet, std::move(fds), cluster_.machines.at(machine).clock->boottime());
  }
}

void Node::note(std::string_view packet, const std::vector<Fd>& fds) {
  const auto message = job::parse_to_keeper(packet);
  if (!message) return;
  if (const auto* hold = std::get_if<job::HoldSegment>(&*message); hold != nullptr && fds.size() == 1)
    cluster_.keep(machine, hold->name, fds[0]);
  if (const auto* drop = std::get_if<job::DropSegment>(&*message)) cluster_.drop(machine, drop->name);
}

void Node::kill(Duration dying, bool silent) {
  const std::string how = "killed by SIGKILL";
  dying_ = dying;
  for (Process* process : all())
    if (process != nullptr)
      cluster_.machines.kill(*process, how, process == process_ ? Duration::zero() : dying, silent);
  channel_.reset();
}

void Node::terminate() {
  happen([this] { keeper_->stop(15, cluster_.machines.at(machine).clock->boottime()); });
}

std::vector<Process*> Node::stop() {
  std::vector<Process*> stopped = all();
  std::erase_if(stopped, [](const Process* process) { return process == nullptr || !process->alive; });
  for (Process* process : stopped) cluster_.scheduler.stop(*process);
  return stopped;
}

// --- NodeKeeper::Node

Result<std::uint64_t> Node::next_incarnation(std::uint64_t last) {
  cluster_.drop_all(machine);  // a new life: nothing of the last is kept
  const auto wall = static_cast<std::uint64_t>(cluster_.machines.at(machine).clock->wall().count());
  const std::uint64_t incarnation = std::max(wall, last + 1);
  lifelines_->begin_life(Incarnation(incarnation));
  return incarnation;
}

Result<std::uint64_t> Node::start_daemon(std::uint64_t incarnation, std::span<const HeldSegment> held,
                                         std::span<const job::FromKeeper> news) {
  Machines& machines = cluster_.machines;
  cluster_.pawld_began_at[machine] = cluster_.scheduler.now();
  // Before it has read the job from the control it answers nobody.
  if (cluster_.control.cuts[machine] > 0 || cluster_.control.downs > 0 || cluster_.control.stops > 0) {
    Duration& until = cluster_.may_be_evicted_until[machine];
    until = std::max(until, cluster_.scheduler.now() + 40s);
  }
  Process& process = machines.start(machine, text("pawld", machine), [this](const std::string& how) {
    const auto last = std::exchange(channel_, nullptr);
    if (last != nullptr) cluster_.machines.wires().deliver_now(*last);
    happen([this, how, last] {
      read(last);
      keeper_->on_daemon_exit(how, cluster_.machines.at(machine).clock->boottime());
    });
  });
  pawld_ = &process;
  machines.when_dying(process, [this, &process] {
    happen([this, &process] {
      if (pawld_ != &process || channel_ == nullptr) return;  // and has ended
      cluster_.machines.wires().deliver_now(*channel_);
      read(channel_);
      keeper_->on_daemon_dying(cluster_.machines.at(machine).clock->boottime());
    });
  });
  auto* world = new World(machines, process, process_->pid);
  auto [ours, theirs] = machines.wires().packet_pair(*process_, process);
  channel_ = ours;
  for (const job::FromKeeper& one : news) tell(one);
  job::DaemonOptions options;
  options.node = machine;
  options.incarnation = incarnation;
  options.job = cluster_.job;
  options.address = address_;
  options.lifeline = lifeline_;
  if (!cluster_.options.domains.empty()) options.domain = cluster_.options.domains[machine];
  options.seats_per_node = cluster_.options.seats_per_node;
  options.state_limits = {cluster_.options.state_rows_max, cluster_.options.state_bytes_max};
  options.report_group_size = cluster_.options.report_group_size;
  options.follow_limits = cluster_.options.follow_limits;
  options.stream_sizes = {cluster_.options.fetch_sizes, cluster_.options.spread_sizes};
  options.wished_world = [this] { return cluster_.worlds.wished(); };
  auto segments = std::make_shared<std::vector<std::pair<std::string, Fd>>>();
  for (const HeldSegment& one : held) segments->emplace_back(one.name, Fd(::dup(one.fd.get())));
  cluster_.scheduler.start(process, [this, &process, world, options, segments, end = theirs] {
    Scheduler& scheduler = cluster_.scheduler;
    scheduler.sleep(scheduler.between(5ms, 60ms));  // exec, and what a program does first
    job::DaemonLines lines;
    lines.keeper = stream_of(cluster_.machines.wires(), end);
    lines.peers = listener_of(cluster_.machines.wires(), process, port_);
    lines.trainers = listener_of(cluster_.machines.wires(), process, local_port_);
    lines.held = std::move(*segments);
    const auto end_process = [this, &process](int code) {
      cluster_.machines.kill(process, text("exited ", code));
      cluster_.scheduler.end_current();
    };
    lines.connect_control = [this, &process](const std::string&) {
      return Result<std::unique_ptr<job::Control>>(cluster_.control.connect(process));
    };
    lines.exit = end_process;
    if (cluster_.storage.is_on()) lines.checkpoints = cluster_.storage.client(process);
    auto* pawld = new job::Pawld(options, std::move(lines), world->environment);
    if (Status started = pawld->start(); !started) end_process(1);
    end_process(pawld->run());
  });
  // The keeper's poll returns when the channel has something to read.
  cluster_.scheduler.start(*process_, [this, end = ours] {
    while (!end->closed && !end->ended && end->broken.empty() && channel_ == end) {
      cluster_.scheduler.wait(end->waiting, cluster_.scheduler.now() + 1s);
      cluster_.scheduler.notify(waiting_);
    }
  });
  return std::uint64_t{process.pid};
}

void Node::kill_daemon() {
  if (pawld_ != nullptr) cluster_.machines.kill(*pawld_, "killed by SIGKILL", cluster_.scheduler.between(100us, 3ms));
}

Result<job::StartedTrainer> Node::start_trainer(std::uint32_t local_index, std::span<const std::string>) {
  Machines& machines = cluster_.machines;
  Process& process = machines.start(machine, text("trainer", machine), [this, local_index](const std::string& how) {
    happen([this, local_index, how] {
      keeper_->on_trainer_exit(local_index, how, cluster_.machines.at(machine).clock->boottime());
    });
  });
  trainers_[local_index] = &process;
  auto* world = new World(machines, process, process_->pid);
  cluster_.scheduler.start(
      process, [this, &process, world, local_index] { run_trainer(cluster_, process, *world, local_, local_index); });
  return job::StartedTrainer{process.pid, process.pid, "nowhere"};
}

void Node::kill_trainer(std::uint32_t local_index) {
  if (Process* process = trainer(local_index))
    cluster_.machines.kill(*process, "killed by SIGKILL", cluster_.scheduler.between(100us, 30ms));
}

Process* Node::trainer(std::uint32_t local_index) {
  const auto found = trainers_.find(local_index);
  return found != trainers_.end() && found->second->alive ? found->second : nullptr;
}

std::vector<Process*> Node::all() const {
  std::vector<Process*> all = {process_, pawld_};
  for (const auto& [local_index, trainer] : trainers_) all.push_back(trainer);
  return all;
}

void Node::tell(const job::FromKeeper& news) {
  if (channel_ == nullptr) return;
  const std::string packet = job::packet_of(news);
  (void)cluster_.machines.wires().send(*channel_, std::as_bytes(std::span(packet)));
}

}  // namespace pawl::sim
