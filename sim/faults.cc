#include "faults.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "base/log.h"
#include "base/text.h"

namespace pawl::sim {

using namespace std::chrono_literals;

namespace {

const char* name_of(FaultType type) {
  static const char* const names[kFaultTypes] = {
      "kill_trainer", "stop_trainer",     "kill_pawld",         "stop_pawld",     "kill_node",
      "power_off",    "pause_node",       "cut_data",           "cut_data_out",   "cut_control",
      "control_down", "control_stopped",  "slow_control",       "slow_network",   "no_memory",
      "wall_jump",    "flip_bits",        "flip_on_wire",       "kill_two_nodes", "outage",
      "pause_all",    "cut_link",         "late_watch",         "lost_watch",     "kill_trainer_and_pawld",
      "kill_leader",  "drain_node",       "change_world",       "flip_unsent",    "must_be_well",
      "must_run",     "must_have_stored", "must_have_gone_back"};
  return names[static_cast<unsigned>(type)];
}

constexpr Duration kCommitsWithin = 4s;  // while a link is cut: what is known takes a detour
constexpr Duration kGreetingTakes = 50ms;
constexpr Duration kGivenUpAfter = 5s;  // a killed trainer that has not died by then: its node goes, too

bool strikes(const InjectedFault& fault, std::uint32_t machine) {
  return machine < kMaskedMachines && (fault.mask >> machine & 1) != 0;
}

bool flips_memory(const InjectedFault& fault) {
  return fault.type == FaultType::flip_bits || fault.type == FaultType::flip_unsent;
}

// A node may lose its memory by it.
bool costs_memory(const InjectedFault& fault) {
  switch (fault.type) {
    case FaultType::kill_node:
    case FaultType::kill_two_nodes:
    case FaultType::power_off:
    case FaultType::pause_node:
    case FaultType::cut_data:
    case FaultType::cut_data_out:
    case FaultType::cut_link:  // of a link between two: whoever of the others is lost meanwhile can't tell who is to go
    case FaultType::no_memory:
    case FaultType::flip_bits:
    case FaultType::flip_unsent:
      return true;
    case FaultType::kill_trainer:
      return fault.more > kGivenUpAfter;
    default:
      return false;
  }
}

void give_drain_order(Cluster& cluster, job::NodeLife leaving) {
  const job::JobKeys keys(cluster.job);
  const std::string nothing = "{}";
  const std::string order = text("{\"incarnation\":", leaving.incarnation, "}");
  log_warn("sim_drain", "node", leaving.node);
  cluster.may_be_evicted_until[leaving.node.value] = Duration::max();
  cluster.order(keys.cordon(leaving.node), &nothing);
  cluster.order(keys.drain(leaving.node), &order);
}

void take_drain_order_back(Cluster& cluster, NodeId node) {
  const job::JobKeys keys(cluster.job);
  cluster.order(keys.drain(node), nullptr);
  cluster.order(keys.cordon(node), nullptr);
}

class Drainer : public std::enable_shared_from_this<Drainer> {
 public:
  Drainer(Cluster& cluster, std::function<void()> on_end)
      : cluster_(cluster), on_end_(std::move(on_end)), random_(cluster.options.seed * 0x9e3779b97f4a7c15ull + 23) {}
  void begin() {
    later(Duration(static_cast<std::int64_t>(random_() % 3'000'000'000)), [this] { give_order(); });
  }

 private:
  void later(Duration delay, std::function<void()> what) {
    cluster_.scheduler.after(delay, [self = shared_from_this(), what = std::move(what)] { what(); });
  }
  void give_order() {
    if (cluster_.is_over()) return;
    if (!cluster_.is_well()) return later(20ms, [this] { give_order(); });
    const std::vector<job::Member>& seats = cluster_.state()->seats;
    leaving_ = seats[random_() % seats.size()].life;
    give_drain_order(cluster_, leaving_);
    kills_ward_ = cluster_.options.nothing_else && cluster_.options.replicas == 1 && random_() % 2 == 0;
    wait(cluster_.scheduler.now() + 1s + Duration(static_cast<std::int64_t>(random_() % 40'000'000'000)));
  }
  void wait(Duration until) {
    const auto& state = *cluster_.state();
    if (kills_ward_ && state.phase == job::JobPhase::quiescing && std::ranges::count(state.evicted, leaving_) > 0)
      kill_ward();
    const bool seated = std::ranges::any_of(state.seats, [&](const auto& member) { return member.life == leaving_; });
    if (seated && cluster_.scheduler.now() < until)
      return later(kills_ward_ ? 1ms : 50ms, [this, until] { wait(until); });
    take_drain_order_back(cluster_, leaving_.node);
    on_end_();
  }
  // The node of which only the leaving one has a copy.
  void kill_ward() {
    kills_ward_ = false;
    const std::vector<job::Member>& seats = cluster_.state()->seats;
    const auto mine = std::ranges::find(seats, leaving_, &job::Member::life);
    const job::Ring ring = cluster_.ring();
    const auto wards = ring.wards_of(ring.position_of(Seat(static_cast<std::uint32_t>(mine - seats.begin()))));
    if (wards.empty()) return;  // a node of a large failure domain may hold nobody's
    const std::uint32_t ward = seats[wards.front().value].life.node.value;
    log_warn("sim_drain_ward_dies", "node", ward);
    cluster_.may_be_evicted_until[ward] = Duration::max();
    Node& dying = *cluster_.nodes[ward];
    dying.kill(0ms, false);
    later(100ms, [this, &dying] { cluster_.replace_node(dying); });
  }

  Cluster& cluster_;
  std::function<void()> on_end_;
  std::mt19937_64 random_;
  bool kills_ward_ = false;
  job::NodeLife leaving_;
};

class Injector : public std::enable_shared_from_this<Injector> {
 public:
  Injector(Cluster& cluster, std::vector<InjectedFault> faults, std::function<void()> on_end)
      : cluster_(cluster), faults_(std::move(faults)), on_end_(std::move(on_end)) {}

  void next() {
    if (at_ == faults_.size()) return finish();
    const InjectedFault& fault = faults_[at_];
    wait(fault.after, fault.when_well);
  }

 private:
  void wait(Duration delay, bool when_well) {
    cluster_.scheduler.after(delay, [self = shared_from_this(), when_well] {
      if (when_well && !self->has_been_well()) return self->wait(50ms, when_well);
      const InjectedFault fault = self->faults_[self->at_++];
      log_warn("sim_fault", "what", text_of(fault));
      self->strike(fault);
      self->well_since_ = Duration::max();
      self->next();
    });
  }
  // For long enough that whatever the faults before have done has shown.
  bool has_been_well() {
    const Duration now = cluster_.scheduler.now();
    const std::uint64_t generation = cluster_.state() ? cluster_.state()->generation.value : 0;
    if (!cluster_.is_well() || active_ > 0)
      well_since_ = Duration::max();
    else if (well_since_ == Duration::max() || well_generation_ != generation)
      well_since_ = now, well_generation_ = generation;
    const Duration enough = at_ == 0 ? Duration::zero() : std::chrono::milliseconds(cluster_.options.deadline_ms) / 2;
    return well_since_ != Duration::max() && now - well_since_ >= enough;
  }
  void finish() {
    if (active_ > 0) {
      cluster_.scheduler.after(50ms, [self = shared_from_this()] { self->finish(); });
      return;
    }
    on_end_();
  }
  void heal(Duration after, std::function<void()> how) {
    ++active_;
    cluster_.scheduler.after(after, [self = shared_from_this(), how = std::move(how)] {
      --self->active_;
      how();
    });
  }
  // What was done to it may make others evict it, for some time after.
  void blame(std::uint32_t machine, Duration length) {
    Duration& until = cluster_.may_be_evicted_until[machine];
    until = std::max(until, cluster_.scheduler.now() + length + 40s);
  }

  void strike(const InjectedFault& fault) {
    if (fault.type < FaultType::must_be_well) {
      ++strikes_;
      cluster_.storage.on_strike();
    }
    Scheduler& scheduler = cluster_.scheduler;
    Machines& machines = cluster_.machines;
    Wires& wires = machines.wires();
    Node* node = cluster_.nodes[fault.machine].get();
    if (node == nullptr) return;  // it has not begun
    blame_without_pawld();
    if (takes_its_domain_along(fault)) return strike_domain(fault);
    switch (fault.type) {
      case FaultType::kill_trainer:
        if (fault.more > kGivenUpAfter) blame(fault.machine, fault.more);  // it does not die: its node is given up
        if (Process* trainer = node->trainer(fault.turns % cluster_.options.seats_per_node))
          machines.kill(*trainer, "killed by SIGKILL", fault.more);
        break;
      case FaultType::stop_trainer:
        if (Process* trainer = node->trainer(fault.turns % cluster_.options.seats_per_node)) {
          scheduler.stop(*trainer);
          heal(fault.length, [&scheduler, trainer] { scheduler.go_on(*trainer); });
        }
        break;
      case FaultType::kill_trainer_and_pawld:
        if (Process* trainer = node->trainer(fault.turns % cluster_.options.seats_per_node))
          machines.kill(*trainer, "killed by SIGKILL");
        [[fallthrough]];
      case FaultType::kill_pawld:
        kill_pawld(fault);
        break;
      case FaultType::stop_pawld:
        if (Process* pawld = node->pawld()) {
          without_pawld_until_[fault.machine] = scheduler.now() + fault.length;
          if (active_ > 0) blame(fault.machine, fault.length);
          scheduler.stop(*pawld);
          heal(fault.length, [&scheduler, pawld] { scheduler.go_on(*pawld); });
        }
        break;
      case FaultType::kill_two_nodes:
        for (std::uint32_t i = 0; i < machines.count(); ++i)
          if (strikes(fault, i)) {
            InjectedFault one = fault;
            one.type = FaultType::kill_node;
            one.machine = i;
            strike(one);
          }
        break;
      case FaultType::kill_leader: {
        InjectedFault leader = fault;
        leader.type = FaultType::kill_node;
        leader.machine = cluster_.state()->leader.node.value;
        strike(leader);
        break;
      }
      case FaultType::kill_node:
      case FaultType::power_off: {
        const bool silent = fault.type == FaultType::power_off;
        blame(fault.machine, fault.length);
        if (silent) wires.set_power(fault.machine, false);
        node->kill(fault.more, silent);
        heal(fault.length + fault.more, [this, self = shared_from_this(), machine = fault.machine, silent, node] {
          if (silent) cluster_.machines.wires().set_power(machine, true);
          cluster_.replace_node(*node);
        });
        break;
      }
      case FaultType::pause_node:
        blame(fault.machine, fault.length);
        stop(*node, fault.length);
        break;
      case FaultType::cut_data:
      case FaultType::cut_data_out:
        cut_data(fault);
        break;
      case FaultType::cut_link:
        cut_link(fault);
        break;
      case FaultType::outage:
        all_may_be_late(fault.length);
        blame_a_long_outage(fault.length);
        cut_all(1);
        heal(fault.length, [this] { cut_all(-1); });
        away(cluster_.control.downs, fault.length);
        break;
      case FaultType::pause_all:
        all_may_be_late(fault.length);
        if (scheduler.now() >= cluster_.nobody_speaks_until) nobody_speaks_since_ = scheduler.now();
        cluster_.nobody_speaks_until = std::max(cluster_.nobody_speaks_until, scheduler.now() + fault.length + 300ms);
        for (std::uint32_t i = 0; i < machines.count(); ++i) {
          Node* each = cluster_.nodes[i].get();
          if (each == nullptr) continue;
          stop(*each, fault.length + scheduler.between(0ms, 300ms));
        }
        break;
      case FaultType::cut_control:
        for (std::uint32_t i = 0; i < machines.count(); ++i)
          if (strikes(fault, i)) {
            ++cluster_.control.cuts[i];
            blame_beginner(i, fault.length);
            Duration& late = cluster_.may_be_late_until[i];
            late = std::max(late, scheduler.now() + fault.length + 2s);
          }
        cluster_.control.touch();
        blame_the_unreachable(fault.length);
        heal(fault.length, [this, fault] {
          for (std::uint32_t i = 0; i < cluster_.machines.count(); ++i)
            if (strikes(fault, i)) --cluster_.control.cuts[i];
          cluster_.control.touch();
        });
        break;
      case FaultType::control_down:
        blame_beginners(fault.length);
        away(cluster_.control.downs, fault.length);
        break;
      case FaultType::control_stopped:
        blame_beginners(fault.length);
        away(cluster_.control.stops, fault.length);
        break;
      case FaultType::late_watch:
      case FaultType::lost_watch:
        trouble_watches(fault);
        break;
      case FaultType::drain_node:
        order_drain({NodeId(fault.machine), Incarnation(node->incarnation())}, fault.length);
        break;
      case FaultType::change_world:
        wish_world(fault);
        break;
      case FaultType::slow_control:
        cluster_.control.disk = fault.more;
        heal(fault.length, [this] { cluster_.control.disk = 300us; });
        break;
      case FaultType::slow_network:
        set_latency(fault.more);
        heal(fault.length, [this] { set_latency(60us); });
        break;
      case FaultType::no_memory:
        blame(fault.machine, fault.length);
        machines.at(fault.machine).memory->has_room = false;
        heal(fault.length, [&machines, machine = fault.machine] { machines.at(machine).memory->has_room = true; });
        break;
      case FaultType::wall_jump:
        machines.at(fault.machine).clock->wall_ahead += fault.more;
        // Somebody sets it right: until then its node rightly gets no seats.
        heal(fault.length + 5s, [&machines, machine = fault.machine, more = fault.more] {
          machines.at(machine).clock->wall_ahead -= more;
        });
        break;
      case FaultType::flip_on_wire:
        damage_wire(1 + fault.turns % 2);  // a link that damages three of three is rightly given up
        break;
      case FaultType::must_be_well:
        if (!cluster_.is_well()) cluster_.violate("the job does not run by now, or does not commit");
        break;
      case FaultType::must_run:
        if (cluster_.state()->phase != job::JobPhase::running) cluster_.violate("the job does not run by now");
        break;
      case FaultType::must_have_stored:
        if (cluster_.storage.newest().value <= stored_before_)
          cluster_.violate("nothing was stored by now: " + cluster_.storage.describe());
        stored_before_ = cluster_.storage.newest().value;
        break;
      case FaultType::must_have_gone_back:
        if (cluster_.returns == 0) cluster_.violate("the job has not gone on from storage by now");
        break;
      case FaultType::flip_bits:
        flip_bits(fault.machine);
        if (Process* trainer = node->trainer(fault.turns % cluster_.options.seats_per_node))
          machines.kill(*trainer, "killed by SIGKILL");
        break;
      case FaultType::flip_unsent:
        flip_unsent(fault.machine);
        break;
    }
  }

  // A rack loses its power: all nodes in it at once, which is as bad as one, while no copies share a domain.
  bool takes_its_domain_along(const InjectedFault& fault) const {
    return fault.type == FaultType::kill_node && fault.turns % 4 != 3 && !cluster_.options.domains.empty() &&
           cluster_.state() && !cluster_.state()->seats.empty() && cluster_.keeps_domains_apart();
  }
  void strike_domain(InjectedFault fault) {
    const std::vector<std::string>& domains = cluster_.options.domains;
    const std::string& dying = domains[fault.machine];
    log_warn("sim_domain_dies", "domain", dying);
    fault.turns = 3;  // this machine alone
    for (std::uint32_t i = 0; i < domains.size(); ++i) {
      fault.machine = i;
      if (domains[i] == dying) strike(fault);
    }
  }

  // Nobody is to be replaced for it: what a watch does not tell can be listed.
  void trouble_watches(const InjectedFault& fault) {
    const auto change = [this, fault](int by) {
      for (std::uint32_t i = 0; i < cluster_.machines.count(); ++i)
        for (std::size_t kind = 0; kind < kWatchKinds; ++kind) {
          if (!strikes(fault, i) || (fault.turns >> kind & 1) == 0) continue;
          WatchTrouble& trouble = cluster_.control.watches[i][kind];
          if (fault.type == FaultType::lost_watch)
            trouble.losses += by;
          else
            trouble.late += by * fault.more;
        }
    };
    change(1);
    heal(fault.length, [this, fault, change] {
      if (fault.type == FaultType::lost_watch && (fault.turns & kCompacted) != 0) cluster_.control.compact();
      change(-1);
      cluster_.control.touch();
    });
  }

  void wish_world(const InjectedFault& fault) {
    std::vector<Seat> world;
    for (const Seat seat : cluster_.worlds.first())
      if (strikes(fault, seat.value)) world.push_back(seat);
    std::rotate(world.begin(), world.begin() + fault.turns, world.end());
    cluster_.worlds.wish(std::move(world));
    heal(fault.length, [this, changes = cluster_.worlds.changes()] {
      cluster_.worlds.give_up();
      if (cluster_.worlds.changes() == changes) cluster_.violate("the job has no other world by now");
    });
  }

  void order_drain(job::NodeLife leaving, Duration length) {
    give_drain_order(cluster_, leaving);
    heal(length, [this, node = leaving.node] { take_drain_order_back(cluster_, node); });
  }

  void stop(Node& node, Duration length) {
    heal(length, [this, stopped = node.stop()] {
      for (Process* process : stopped) cluster_.scheduler.go_on(*process);
    });
  }

  void damage_wire(std::uint32_t times) {
    if (times == 0) return;
    cluster_.machines.wires().damage_next(cluster_.scheduler.one_in(2) ? 1 : 1024);
    cluster_.scheduler.after(cluster_.scheduler.between(1ms, 100ms),
                             [self = shared_from_this(), times] { self->damage_wire(times - 1); });
  }

  // Its keeper has another one speak in time, unless something else takes more of that time.
  // A daemon that has just begun may not have read the job yet, and answers nobody before it has.
  void blame_beginner(std::uint32_t machine, Duration length) {
    if (cluster_.scheduler.now() - cluster_.pawld_began_at[machine] < 1s) blame(machine, length);
  }
  void blame_beginners(Duration length) {
    for (std::uint32_t i = 0; i < cluster_.machines.count(); ++i) blame_beginner(i, length);
  }

  void blame_without_pawld() {
    for (const auto& [machine, until] : without_pawld_until_)
      if (until > cluster_.scheduler.now()) blame(machine, until - cluster_.scheduler.now());
  }

  void kill_pawld(const InjectedFault& fault) {
    Process* pawld = cluster_.nodes[fault.machine]->pawld();
    if (pawld == nullptr) return;
    // Without the control the next one does not know the job, and answers nobody.
    if (cluster_.control.cuts[fault.machine] > 0) blame(fault.machine, fault.length);
    const std::uint64_t at = pawld->turns + fault.turns;
    ++active_;
    const auto earlier = cluster_.scheduler.after_turn;
    const auto over = std::make_shared<bool>(false);
    const Duration dying = fault.turns % 2 == 0 ? 0ms : 600ms;  // 4 GiB to give back
    cluster_.scheduler.after_turn = [this, self = shared_from_this(), pawld, at, dying, earlier,
                                     over](Process& process) {
      if (earlier) earlier(process);
      if (*over || &process != pawld || pawld->turns < at) return;
      *over = true;
      cluster_.machines.kill(*pawld, "killed by SIGKILL", dying);
      --active_;
    };
    watch_for_another_end(pawld, over);
  }

  // A pawld that is to be killed at its next turn, or a later one, may end before.
  void watch_for_another_end(Process* pawld, const std::shared_ptr<bool>& over) {
    cluster_.scheduler.after(1s, [this, self = shared_from_this(), pawld, over] {
      if (*over) return;
      if (pawld->alive) return watch_for_another_end(pawld, over);
      *over = true;
      --active_;
    });
  }

  void cut_data(const InjectedFault& fault) {
    const auto change = [this, fault](int by) {
      Wires& wires = cluster_.machines.wires();
      for (std::uint32_t a = 0; a < cluster_.machines.count(); ++a)
        for (std::uint32_t b = 0; b < cluster_.machines.count(); ++b) {
          const bool from_in = strikes(fault, a);
          const bool to_in = strikes(fault, b);
          const bool cut = fault.type == FaultType::cut_data ? from_in != to_in : from_in && !to_in;
          if (cut) wires.path(a, b).cuts += by;
        }
    };
    for (std::uint32_t i = 0; i < cluster_.machines.count(); ++i)
      if (strikes(fault, i)) blame(i, fault.length);
    change(1);
    blame_the_unreachable(fault.length);
    heal(fault.length, [change] { change(-1); });
  }

  // A machine without the control is as good as dead to those who have it if none of them has its data either. Whose
  // links are cut, nobody can tell from there.
  void blame_the_unreachable(Duration length) {
    Wires& wires = cluster_.machines.wires();
    const auto has_control = [this](std::uint32_t machine) { return cluster_.control.cuts[machine] == 0; };
    for (std::uint32_t i = 0; i < cluster_.machines.count(); ++i) {
      std::uint32_t others = 0, reached = 0;  // of those who have the control
      for (std::uint32_t j = 0; j < cluster_.machines.count(); ++j) {
        if (j == i || !has_control(j)) continue;
        ++others;
        if (wires.is_open(i, j) && wires.is_open(j, i)) ++reached;
      }
      if (!has_control(i) && others > 0 && reached == 0) blame(i, length);
    }
  }

  // Nobody is to be replaced for it; but of two members each is half of the job.
  void cut_link(const InjectedFault& fault) {
    std::vector<std::uint32_t> ends;
    for (std::uint32_t i = 0; i < cluster_.machines.count(); ++i)
      if (strikes(fault, i)) ends.push_back(i);
    const Duration restore = job::derive_deadlines(std::chrono::milliseconds(cluster_.options.deadline_ms)).restore;
    if (cluster_.ring().position_count() == 2 || fault.length > restore)  // one end may need what the other has
      for (const std::uint32_t i : ends) blame(i, fault.length);
    const auto change = [this, ends](int by) {
      Wires& wires = cluster_.machines.wires();
      wires.path(ends[0], ends[1]).cuts += by;
      wires.path(ends[1], ends[0]).cuts += by;
    };
    change(1);
    blame_the_unreachable(fault.length);
    const bool trains =
        cluster_.trains_without_link(ends[0], ends[1]) && cluster_.is_well() && active_ == 0 && is_alone();
    const Duration noticed = std::chrono::milliseconds(cluster_.options.deadline_ms) + 2s;
    std::function<bool()> advances = [] { return true; };
    if (trains) {
      log_warn("sim_training_goes_on");
      advances = expect_commits(noticed);
    }
    heal(trains ? std::max(noticed + kCommitsWithin, fault.length) : fault.length, [this, change, advances] {
      change(-1);
      if (!advances()) cluster_.violate("nothing was committed while a link was cut that training does not need");
    });
  }

  bool is_alone() const { return !cluster_.options.drain && !cluster_.options.loses_too_much; }

  // Tells whether anything was committed from then on, or something else has happened meanwhile.
  std::function<bool()> expect_commits(Duration from) {
    const auto before = std::make_shared<std::uint64_t>(0);
    cluster_.scheduler.after(from,
                             [this, self = shared_from_this(), before] { *before = cluster_.greatest_committed(); });
    return [this, self = shared_from_this(), before, strikes = strikes_, generation = cluster_.state()->generation] {
      return strikes != strikes_ || cluster_.is_over() || cluster_.state()->generation != generation ||
             cluster_.greatest_committed() > *before;
    };
  }

  void cut_all(int by) {
    for (std::uint32_t a = 0; a < cluster_.machines.count(); ++a)
      for (std::uint32_t b = 0; b < cluster_.machines.count(); ++b)
        if (a != b) cluster_.machines.wires().path(a, b).cuts += by;
  }

  // Nothing is done to one of them that is not done to all, so nobody is to be replaced; but a recovery that was under
  // way has deadlines.
  void all_may_be_late(Duration length) {
    for (Duration& until : cluster_.may_be_late_until) until = std::max(until, cluster_.scheduler.now() + length + 2s);
  }

  // After it links have to be made anew before the deadline for silence, which their own deadline and a greeting take. A node that
  // was stopped before it, and goes on within it, has been silent for both.
  void blame_a_long_outage(Duration length) {
    const Duration now = cluster_.scheduler.now();
    if (now < cluster_.nobody_speaks_until) length += now - nobody_speaks_since_;
    const job::Deadlines deadlines = job::derive_deadlines(std::chrono::milliseconds(cluster_.options.deadline_ms));
    if (length + deadlines.redial + kGreetingTakes <= deadlines.silence) return;
    for (std::uint32_t i = 0; i < cluster_.machines.count(); ++i) blame(i, length);
  }

  void away(int& faults, Duration length) {
    ++faults;
    cluster_.control.touch();
    heal(length, [this, &faults] {
      --faults;
      cluster_.control.touch();
    });
  }

  void set_latency(Duration latency) {
    Wires& wires = cluster_.machines.wires();
    for (std::uint32_t a = 0; a < cluster_.machines.count(); ++a)
      for (std::uint32_t b = 0; b < cluster_.machines.count(); ++b) {
        wires.path(a, b).latency = latency;
        wires.path(a, b).jitter = latency * 2;
      }
  }

  void flip_bits(std::uint32_t machine) {
    KeptArena* newest = nullptr;
    job::Slot slot;
    for (KeptArena& kept : cluster_.arenas()) {
      if (kept.machine != machine || !kept.name.starts_with("own.")) continue;
      for (std::uint32_t i = 0; i < kept.arena.slot_count(); ++i) {
        const job::SlotWord word = kept.arena.slot(i).word();
        if (word.state != job::SlotState::sealed || (newest != nullptr && word.step <= slot.word().step)) continue;
        newest = &kept;
        slot = kept.arena.slot(i);
      }
    }
    if (newest == nullptr) return;
    for (std::uint32_t i = 0; i < newest->arena.slot_count(); ++i) {
      job::SlotWord word = newest->arena.slot(i).word();
      word.frozen = false;
      newest->seen[i] = word.pack();  // it knows: that these bytes are wrong is our doing
    }
    cluster_.storage.flipped(slot.word().step);
    slot.payload()[cluster_.scheduler.random(std::size_t{kBuckets} * kBucketBytes)] ^= std::byte{0x10};
  }

  // In the next step that is captured there, before anybody has seen those bytes: no holder gets the step whole. Nothing else is
  // done, so steps are committed after it.
  void flip_unsent(std::uint32_t machine) {
    const Duration noticed = 1s;
    const std::function<bool()> advances =
        cluster_.is_well() && active_ == 0 && is_alone() ? expect_commits(noticed) : [] { return true; };
    const auto over = std::make_shared<bool>(false);
    const auto began = std::make_shared<bool>(false);  // a capture of which no bucket was there
    const auto earlier = cluster_.scheduler.after_turn;
    cluster_.scheduler.after_turn = [this, self = shared_from_this(), machine, over, began, earlier](Process& process) {
      if (earlier) earlier(process);
      if (!*over) *over = flip_first_bucket(machine, *began);
    };
    heal(noticed + kCommitsWithin, [this, over, advances] {
      *over = true;
      if (!advances()) cluster_.violate("nothing was committed after bits had flipped in a copy that was on its way");
    });
  }
  // True: done. Looked for after each turn, so a bucket that has just come was seen by nobody else.
  bool flip_first_bucket(std::uint32_t machine, bool& began) {
    bool begins = false;
    for (KeptArena& kept : cluster_.arenas()) {
      if (kept.machine != machine || !kept.name.starts_with("own.")) continue;
      for (std::uint32_t i = 0; i < kept.arena.slot_count(); ++i) {
        const job::Slot slot = kept.arena.slot(i);
        job::SlotWord word = slot.word();
        if (word.state != job::SlotState::dirty || word.frozen) continue;
        if (!slot.bucket_ready(0, word.generation, word.step)) {
          begins = true;
          continue;
        }
        if (!began || slot.bucket_ready(1, word.generation, word.step)) continue;
        cluster_.storage.flipped(word.step);
        slot.bucket(0)[cluster_.scheduler.random(std::size_t{kBucketBytes})] ^= std::byte{0x10};
        word.state = job::SlotState::sealed;
        kept.seen[i] = word.pack();  // when it is sealed: that these bytes are wrong is our doing
        return true;
      }
    }
    began = begins;
    return false;
  }

  Cluster& cluster_;
  const std::vector<InjectedFault> faults_;
  Duration nobody_speaks_since_{};
  std::function<void()> on_end_;
  std::size_t at_ = 0;
  int active_ = 0;
  std::map<std::uint32_t, Duration> without_pawld_until_;  // by machine: it was stopped
  int strikes_ = 0;
  std::uint64_t stored_before_ = 0;
  Duration well_since_ = Duration::max();
  std::uint64_t well_generation_ = 0;
};

}  // namespace

std::string text_of(const InjectedFault& fault) {
  return text(name_of(fault.type), " after ", fault.after / 1ms, " ms", fault.when_well ? " (when well)" : "",
              " machine ", fault.machine, " mask ", fault.mask, " for ", fault.length / 1ms, " ms, more ",
              fault.more / 1ms, " ms, turns ", fault.turns);
}

std::vector<InjectedFault> draw_faults(std::uint64_t seed, const ClusterOptions& options) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ull + 17);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const auto between = [&](Duration least, Duration most) {
    return least + Duration(static_cast<std::int64_t>(below(static_cast<std::uint64_t>((most - least).count()) + 1)));
  };
  const std::uint32_t all = options.members + options.spares;
  const std::uint32_t machines = std::min(all, kMaskedMachines - 1);
  const Duration silence = std::chrono::milliseconds(options.deadline_ms);
  std::vector<InjectedFault> faults;
  const std::size_t count = 1 + below(4);
  for (std::size_t i = 0; i < count; ++i) {
    InjectedFault fault;
    fault.type = static_cast<FaultType>(below(kFaultTypes - 9));  // the last nine are not drawn
    fault.machine = static_cast<std::uint32_t>(below(all));
    fault.after = below(3) == 0 ? between(0ms, 30ms) : between(0ms, 1500ms);
    fault.when_well = i == 0 ? below(4) != 0 : below(3) == 0;
    fault.length = below(2) == 0 ? between(10ms, silence / 2) : between(10ms, silence * 4);
    fault.mask = 1u << fault.machine % machines;
    fault.turns = static_cast<std::uint32_t>(below(2) == 0 ? below(40) : below(2000));
    if (fault.type == FaultType::kill_two_nodes && options.replicas < 2) fault.type = FaultType::kill_node;
    if (fault.type == FaultType::kill_node && options.replicas >= 2 && fault.turns % 2 == 0)
      fault.type = FaultType::kill_two_nodes;
    if (fault.type == FaultType::kill_pawld && fault.length < 1s) {
      fault.type = FaultType::kill_trainer_and_pawld;
      fault.turns %= 64;
    }
    if (fault.type == FaultType::flip_bits && fault.turns % 2 == 0) fault.type = FaultType::flip_unsent;
    switch (fault.type) {
      case FaultType::cut_link:  // training stands still while it lasts: for less than what passes for a hang
        fault.length = std::min(fault.length, kHang * 9 / 10);
        [[fallthrough]];
      case FaultType::kill_two_nodes:
        fault.mask |= 1u << (fault.machine + 1 + below(machines - 1)) % machines;
        break;
      case FaultType::kill_node:
      case FaultType::power_off:
        fault.more = fault.type == FaultType::power_off || below(2) == 0 ? Duration::zero() : between(0ms, silence * 2);
        break;
      case FaultType::kill_trainer:
        fault.more = below(3) == 0 ? between(0ms, silence) : Duration::zero();
        if (below(20) == 0) fault.more = between(10s, 120s);  // stuck in the kernel
        break;
      case FaultType::cut_control:
        fault.mask = static_cast<std::uint32_t>(below((1u << machines) - 1) + 1);
        break;
      case FaultType::late_watch:
      case FaultType::lost_watch:
        if (below(3) == 0) fault.mask = static_cast<std::uint32_t>(below((1u << machines) - 1) + 1);
        fault.turns = static_cast<std::uint32_t>(1 + below(2 * kCompacted - 1));
        if (fault.turns == kCompacted) fault.turns = 2 * kCompacted - 1;
        fault.length = below(3) == 0 ? between(1s, 20s) : fault.length;
        fault.more = below(2) == 0 ? between(1ms, 300ms) : between(300ms, 5s);
        break;
      case FaultType::slow_control:
        fault.more = between(1ms, 300ms);
        break;
      case FaultType::slow_network:
        fault.more = between(1ms, silence / 40);  // several round trips fit into the deadlines
        break;
      case FaultType::wall_jump:
        fault.more = between(-100'000s, 100'000s);
        break;
      default:
        break;
    }
    if (costs_memory(fault)) fault.when_well = true;
    // Until somebody reads them, nobody knows that those bytes are wrong.
    if (!faults.empty() && flips_memory(faults.back())) fault.when_well = true;
    faults.push_back(fault);
  }
  return faults;
}

void drain_a_node(Cluster& cluster, std::function<void()> on_end) {
  std::make_shared<Drainer>(cluster, std::move(on_end))->begin();
}

void inject(Cluster& cluster, std::vector<InjectedFault> faults, std::function<void()> on_end) {
  std::make_shared<Injector>(cluster, std::move(faults), std::move(on_end))->next();
}

void stop_all(Cluster& cluster) {
  std::mt19937_64 random(cluster.options.seed ^ 0x3c79ac492ba7b653ull);
  const auto drawn = [&](Duration most) {
    return Duration(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most.count())));
  };
  for (std::uint32_t i = 0; i < cluster.machines.count(); ++i)
    cluster.scheduler.after(drawn(400ms), [&cluster, i] {
      if (cluster.nodes[i] == nullptr || cluster.nodes[i]->is_over()) return;
      const bool is_spare = std::ranges::none_of(
          cluster.state()->seats, [i](const job::Member& member) { return member.life.node == NodeId(i); });
      if (is_spare) cluster.may_be_evicted_until[i] = Duration::max();  // it leaves at once, and may just get a seat
      cluster.nodes[i]->terminate();
    });
  const auto machine = static_cast<std::uint32_t>(random() % cluster.machines.count());
  const std::uint64_t what = random() % 4;
  const bool may_lose = cluster.options.replicas > 0 && cluster.machines.count() > 1;
  if (what == 0 || (what == 1 && !may_lose)) return;
  if (what == 1) cluster.may_be_evicted_until[machine] = Duration::max();
  cluster.scheduler.after(drawn(2s), [&cluster, machine, what] {
    Node* const node = cluster.nodes[machine].get();
    if (node == nullptr || node->is_over() || cluster.is_over()) return;
    cluster.storage.on_strike();
    log_info("sim_stop_strikes", "machine", machine, "what", what == 1 ? "node" : what == 2 ? "pawld" : "trainer");
    if (what == 1) return node->kill(0ms, false);
    Process* const one = what == 2 ? node->pawld() : node->trainer(0);
    if (one != nullptr) cluster.machines.kill(*one, "killed by SIGKILL");
  });
}

}  // namespace pawl::sim
