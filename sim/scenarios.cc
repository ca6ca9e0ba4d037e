#include "scenarios.h"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <utility>

namespace pawl::sim {

using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t machines(std::initializer_list<std::uint32_t> all) {
  std::uint32_t mask = 0;
  for (const std::uint32_t machine : all) mask |= 1u << machine;
  return mask;
}

// Two racks: the first half of the members in one, the others in the other; each spare in one by turns.
ClusterOptions in_racks(std::uint32_t members, std::uint32_t spares) {
  ClusterOptions options;
  options.members = members;
  options.spares = spares;
  for (std::uint32_t machine = 0; machine < members + spares; ++machine)
    options.domains.emplace_back((machine < members ? machine < members / 2 : machine % 2 == 0) ? "rack0" : "rack1");
  return options;
}

ClusterOptions cluster(std::uint32_t members, std::uint32_t spares) {
  ClusterOptions options;
  options.members = members;
  options.spares = spares;
  options.ring_exchange = true;
  return options;
}

// Few follow who is registered, as in a large job.
ClusterOptions few_follow(std::uint32_t members, std::uint32_t spares) {
  ClusterOptions options = cluster(members, spares);
  options.follow_limits = {0, 1};
  return options;
}

// With collected reports of which half is spoiled.
ClusterOptions in_groups(std::uint32_t members, std::uint32_t group, std::uint32_t spares) {
  ClusterOptions options = cluster(members, spares);
  options.report_group_size = group;
  options.bad_collectors = true;
  return options;
}

// Seats that many apart have equal bytes; fetched by several streams, bucket by bucket.
ClusterOptions with_paths(std::uint32_t members, std::uint32_t spares, std::uint32_t stride) {
  ClusterOptions options = cluster(members, spares);
  options.equal_stride = stride;
  options.fetch_sizes = {0, kBucketBytes};
  return options;
}

InjectedFault when_well(FaultType type, std::uint32_t mask, Duration length) {
  InjectedFault fault;
  fault.type = type;
  fault.when_well = true;
  fault.mask = mask;
  fault.machine = static_cast<std::uint32_t>(std::countr_zero(mask));
  fault.length = length;
  return fault;
}

InjectedFault cut_off_from_news(Duration after, std::uint32_t mask, Duration length) {
  InjectedFault fault = when_well(FaultType::lost_watch, mask, length);
  fault.when_well = false;
  fault.after = after;
  return fault;
}

InjectedFault drained(std::uint32_t machine, Duration length) {
  return when_well(FaultType::drain_node, machines({machine}), length);
}

constexpr std::uint32_t kKeys = 1u << static_cast<unsigned>(WatchKind::keys);
constexpr std::uint32_t kReports = 1u << static_cast<unsigned>(WatchKind::reports);
constexpr std::uint32_t kNodes = 1u << static_cast<unsigned>(WatchKind::nodes);

InjectedFault watches(InjectedFault fault, std::uint32_t which, Duration late = {}) {
  fault.turns = which;
  fault.more = late;
  return fault;
}

InjectedFault later(Duration after, FaultType type, std::uint32_t machine, Duration length = {}) {
  InjectedFault fault;
  fault.type = type;
  fault.after = after;
  fault.machine = machine;
  fault.mask = machines({machine});
  fault.length = length;
  return fault;
}

InjectedFault world_of(Duration after, std::uint32_t seats, std::uint32_t turns) {
  InjectedFault fault = later(after, FaultType::change_world, 0, 5s);
  fault.when_well = after == 0ms;
  fault.mask = seats;
  fault.turns = turns;
  return fault;
}

// Other seats, in another order, at nodes of which each may have up to two.
std::vector<Scenario> of_worlds() {
  using enum FaultType;
  const auto two_each = [](std::uint32_t members, std::uint32_t spares) {
    ClusterOptions options = cluster(members, spares);
    options.seats_per_node = 2;
    return options;
  };
  return {
      {"world-shrinks",
       "a seat of three vanishes with its node, and the others change places",
       cluster(3, 0),
       {world_of(0ms, 0b101, 1), later(10ms, kill_trainer, 0), later(20s, must_be_well, 0)}},
      {"world-shrinks-instead-of-waiting",
       "a node dies and there is no spare: the job goes on without its seat",
       cluster(4, 0),
       {world_of(0ms, 0b1011, 0), later(10ms, kill_node, 2, 60s), later(20s, must_be_well, 0)}},
      {"world-turns-and-a-node-dies",
       "all seats change their numbers, and a node dies before anything is committed after that",
       two_each(4, 1),
       {world_of(0ms, 0xff, 2), later(10ms, kill_trainer, 0), later(400ms, kill_node, 1, 60s),
        later(30s, must_be_well, 0)}},
      {"world-shrinks-and-a-spare-comes",
       "seats of two nodes vanish, which have one each then; later one of these dies, and a spare takes its only seat",
       two_each(3, 1),
       {world_of(0ms, 0b110110, 0), later(10ms, kill_trainer, 0), later(10s, kill_node, 2, 60s),
        later(30s, must_be_well, 0)}},
  };
}

// What the registrations' own watch tells late or not at all, and nodes that begin to follow it in the middle of something.
std::vector<Scenario> of_registrations() {
  using enum FaultType;
  return {
      {"registered-unseen",
       "a member loses its registration and registers again, and only the watch of who is registered does not tell it",
       cluster(5, 1),
       {when_well(cut_control, machines({3}), 9s),
        watches(cut_off_from_news(8900ms, machines({0, 1, 2, 4}), 30s), kNodes),
        watches(cut_off_from_news(0ms, machines({3}), 8s), kKeys), later(4s, kill_trainer, 1),
        later(20s, must_be_well, 0)}},
      {"followers-begin-late",
       "the member that follows registrations dies, and then whoever leads its recovery",
       [] {
         ClusterOptions options = few_follow(6, 2);
         options.replicas = 2;
         return options;
       }(),
       {when_well(kill_node, machines({3}), 90s), later(20ms, kill_leader, 0, 90s), later(40s, must_be_well, 0)}},
      {"followers-see-nothing",
       "the same, and no watch of who is registered tells anything: it is listed",
       [] {
         ClusterOptions options = few_follow(6, 2);
         options.replicas = 2;
         return options;
       }(),
       {watches(when_well(lost_watch, machines({0, 1, 2, 3, 4, 5, 6, 7}), 60s), kNodes),
        later(100ms, kill_node, 3, 90s), later(20ms, kill_leader, 0, 90s), later(40s, must_be_well, 0)}},
      {"followers-hear-late",
       "the member that follows registrations loses its power, and whoever follows them then hears each change 5 s "
       "late",
       few_follow(6, 1),
       {watches(when_well(late_watch, machines({0, 1, 2, 3, 4, 5, 6}), 90s), kNodes, 5s),
        later(100ms, power_off, 3, 60s), later(50s, must_be_well, 0)}},
      {"followers-gone",
       "the member that follows registrations and another one lose their power: nobody is left there who may convict "
       "them",
       [] {
         ClusterOptions options = few_follow(6, 2);
         options.replicas = 2;
         return options;
       }(),
       {when_well(must_be_well, machines({0}), 0s), later(20s, power_off, 3, 90s), later(0ms, power_off, 1, 90s),
        later(50s, must_be_well, 0)}},
      {"follower-registers-again",
       "a member of which few follow the registration loses it, and registers again under a leader that has listed",
       few_follow(5, 1),
       {when_well(cut_control, machines({3}), 9s),
        watches(cut_off_from_news(8900ms, machines({1, 3}), 30s), kKeys | kReports | kNodes),
        later(4s, kill_trainer, 1), later(20s, must_be_well, 0)}},
      {"leader-without-control-among-few-followers",
       "whoever leads a recovery loses only the control: of the others some begin to follow who is registered, and one "
       "takes over",
       [] {
         ClusterOptions options = few_follow(5, 2);
         options.replicas = 2;
         return options;
       }(),
       {when_well(kill_node, machines({3}), 400s), later(2ms, cut_control, 4, 300s), later(200s, must_run, 0)}},
      {"drained-among-few-followers",
       "a node is drained where only it and whoever opens know that there is a spare",
       few_follow(5, 1),
       {drained(2, 60s), later(30s, must_be_well, 0)}},
  };
}

ClusterOptions storing(ClusterOptions options, StorageHealth health, bool may_go_back = false) {
  options.may_go_back = may_go_back;
  options.storage.health = health;
  options.storage.every_steps = 10;
  options.storage.keep_last = 2;
  return options;
}

ClusterOptions stopped(ClusterOptions options) {
  options.is_stopped = true;
  return options;
}

InjectedFault must(Duration after, FaultType type) {
  return later(after, type, 0);
}

// Of the steps that go to storage, and of those that come from there.
std::vector<Scenario> of_storage() {
  using enum FaultType;
  const auto must_store_twice = [](Duration within) {
    return std::vector<InjectedFault>{when_well(must_be_well, machines({0}), 0s), must(within, must_have_stored),
                                      must(within, must_have_stored)};
  };
  const std::vector<InjectedFault> killed_twice = {when_well(must_be_well, machines({0}), 0s),
                                                   must(10s, must_have_stored),
                                                   later(0ms, kill_node, 0, 60s),
                                                   must(20s, must_have_stored),
                                                   later(0ms, kill_pawld, 1),
                                                   later(40ms, kill_pawld, 2),
                                                   must(20s, must_have_stored),
                                                   must(0ms, must_be_well)};
  return {
      {"stored", "nothing happens: steps are stored, and the last one is", storing(cluster(3, 1), StorageHealth::sound),
       must_store_twice(8s)},
      {"stored-slowly", "the same, and each call may take seconds", storing(cluster(3, 1), StorageHealth::slow),
       must_store_twice(60s)},
      {"stored-through-deaths", "the root dies, then pawlds that write: steps are stored after each",
       storing(cluster(3, 1), StorageHealth::sound), killed_twice},
      {"stopped",
       "all nodes are told to end while it trains: the last step is stored",
       stopped(storing(cluster(3, 1), StorageHealth::sound)),
       {when_well(must_be_well, machines({0}), 0s), must(3s, must_be_well)}},
      {"stopped-slowly",
       "the same, and each call may take seconds",
       stopped(storing(cluster(3, 1), StorageHealth::slow)),
       {when_well(must_be_well, machines({0}), 0s), must(3s, must_be_well)}},
      {"stopped-broken",
       "the same, and no call to the storage succeeds: all end, and say why",
       stopped(storing(cluster(3, 1), StorageHealth::broken)),
       {when_well(must_be_well, machines({0}), 0s), must(3s, must_be_well)}},
      {"stopped-stuck",
       "the same, and no call to the storage returns",
       stopped(storing(cluster(3, 1), StorageHealth::stuck)),
       {when_well(must_be_well, machines({0}), 0s), must(3s, must_be_well)}},
      {"storage-broken",
       "no call to the storage succeeds: the job trains and ends",
       storing(cluster(3, 1), StorageHealth::broken),
       {when_well(must_be_well, machines({0}), 0s), must(20s, must_be_well)}},
      {"storage-stuck",
       "no call to the storage returns: the job trains and ends",
       storing(cluster(3, 1), StorageHealth::stuck),
       {when_well(must_be_well, machines({0}), 0s), must(20s, must_be_well)}},
      {"storage-gone-on-from",
       "two of three nodes die at once, with both copies of a seat: the newest checkpoint is taken",
       storing(cluster(3, 1), StorageHealth::sound, true),
       {when_well(must_be_well, machines({0}), 0s), must(10s, must_have_stored),
        when_well(kill_two_nodes, machines({0, 1}), 5s), must(40s, must_have_gone_back), must(0ms, must_be_well)}},
      {"storage-gone-on-from-by-all",
       "all nodes die at once, and come back empty",
       storing(cluster(3, 2), StorageHealth::sound, true),
       {when_well(must_be_well, machines({0}), 0s), must(10s, must_have_stored),
        when_well(kill_two_nodes, machines({0, 1, 2}), 5s), must(60s, must_have_gone_back), must(0ms, must_be_well)}},
  };
}

}  // namespace

std::span<const Scenario> scenarios() {
  using enum FaultType;
  // Nodes have the seats of their numbers at first: node 0 is the root, of the rendezvous and of the tree.
  static const auto* all = new std::vector<Scenario>{
      {"rack",
       "four of nine nodes are cut off together, and keep the control: nobody can tell which part should go on",
       cluster(9, 1),
       {when_well(cut_data, machines({2, 3, 4, 5}), 45s)}},
      {"rack-with-root",
       "the same, with the root among them",
       cluster(9, 1),
       {when_well(cut_data, machines({0, 1, 2, 3}), 45s)}},
      {"rack-and-death",
       "the same, and then a node of the larger part dies",
       cluster(9, 2),
       {when_well(cut_data, machines({2, 3, 4, 5}), 45s), later(6s, kill_node, 7, 1s)}},
      {"root-link",
       "a link of the root, of the tree and of the rendezvous, is cut through a whole recovery, which ends while it is "
       "cut",
       cluster(6, 1),
       {when_well(cut_link, machines({0, 2}), 60s), later(100ms, kill_trainer, 4), later(20s, must_be_well, 0)}},
      {"root-link-and-spare",
       "the same, and a spare takes a seat",
       cluster(6, 1),
       {when_well(cut_link, machines({0, 2}), 60s), later(100ms, kill_node, 4, 90s), later(25s, must_be_well, 0)}},
      {"root-dies-beside-a-cut-link",
       "a link to the node that becomes the root is cut",
       cluster(6, 1),
       {when_well(cut_link, machines({6, 2}), 60s), later(100ms, kill_node, 0, 90s), later(25s, must_be_well, 0)}},
      {"source-link",
       "the spare does not reach the only node that holds the dead one's state, and there is another spare",
       cluster(5, 2),
       {when_well(cut_link, machines({2, 5}), 300s), later(100ms, kill_node, 1, 400s), later(120s, must_be_well, 0)}},
      {"source-link-alone",
       "the same, and there is no other: the job waits for the link, however long that takes, and then goes on",
       cluster(5, 1),
       {when_well(cut_link, machines({2, 5}), 900s), later(100ms, kill_node, 1, 1000s), later(960s, must_be_well, 0)}},
      {"source-link-two-copies",
       "the spare does not reach one of two nodes that hold the dead one's state, and takes the other copy",
       [] {
         ClusterOptions options = cluster(5, 1);
         options.replicas = 2;
         return options;
       }(),
       {when_well(cut_link, machines({2, 5}), 300s), later(100ms, kill_node, 1, 400s), later(45s, must_run, 0)}},
      {"drained-and-cut-off",
       "a member and the spare lose the control while a node is drained: the member is late, evicted, and has copies "
       "that the "
       "drained one has, too. It is the spare that the job waits for",
       [] {
         ClusterOptions options = cluster(3, 1);
         options.deadline_ms = 1000;
         return options;
       }(),
       {drained(1, 60s), later(30ms, cut_control, 2, 3200ms), later(40s, must_be_well, 0)}},
      {"reports-late",
       "the reports reach whoever leads 10 s late, through a whole recovery: they are there to be listed",
       cluster(5, 1),
       {watches(when_well(late_watch, machines({0, 1, 2, 3, 4, 5}), 60s), kReports, 10s),
        later(100ms, kill_node, 1, 90s), later(30s, must_be_well, 0)}},
      {"reports-lost",
       "no watch of the reports tells anything through a whole recovery",
       cluster(5, 1),
       {watches(when_well(lost_watch, machines({0, 1, 2, 3, 4, 5}), 60s), kReports), later(100ms, kill_node, 1, 90s),
        later(30s, must_be_well, 0)}},
      {"keys-late",
       "one member hears of the job's keys 3 s late, through a whole recovery: no reason to replace it",
       cluster(5, 1),
       {watches(when_well(late_watch, machines({3}), 60s), kKeys, 3s), later(100ms, kill_node, 1, 90s),
        later(40s, must_be_well, 0)}},
      {"keys-compacted",
       "the watches of two members are lost through a whole recovery, and what they missed was compacted",
       cluster(5, 1),
       {watches(when_well(lost_watch, machines({2, 3}), 6s), kKeys | kReports | kCompacted),
        later(100ms, kill_node, 1, 90s), later(40s, must_be_well, 0)}},
      {"report-unseen",
       "a member reports when the watch of the one that leads tells nothing any more",
       cluster(5, 1),
       {when_well(cut_control, machines({3}), 2s), later(1900ms, kill_trainer, 1),
        watches(later(60ms, lost_watch, 1, 30s), kReports), later(20s, must_be_well, 0)}},
      {"back-unseen",
       "a member loses its registration and registers again, which the watches of the one that leads next do not tell; "
       "its own do not tell it of the recovery",
       cluster(5, 1),
       {when_well(cut_control, machines({3}), 9s),
        watches(cut_off_from_news(8900ms, machines({1, 3}), 30s), kKeys | kReports | kNodes),
        later(4s, kill_trainer, 1), later(20s, must_be_well, 0)}},
      {"collectors-fail",
       "a node dies, and of what the collectors of reports put half is lost, late, changed, or of the last generation, "
       "or they die over it",
       in_groups(7, 3, 1),
       {when_well(kill_node, machines({1}), 90s), later(15s, kill_trainer, 4), later(20s, must_be_well, 0)}},
      {"collectors-fail-and-the-leader-dies",
       "the same, and whoever leads dies while reports are on their way to it",
       [] {
         ClusterOptions options = in_groups(9, 3, 2);
         options.replicas = 2;
         return options;
       }(),
       {when_well(kill_node, machines({4}), 90s), later(25ms, kill_leader, 0, 90s), later(40s, must_be_well, 0)}},
      {"collectors-without-data",
       "a collector's data links are cut when a node of its group dies: whoever does not reach it goes another way",
       [] {
         ClusterOptions options = in_groups(7, 3, 2);
         options.bad_collectors = false;
         options.replicas = 2;
         return options;
       }(),
       {when_well(cut_data, machines({0}), 2s), later(20ms, kill_node, 2, 90s), later(40s, must_be_well, 0)}},
      {"leader-without-control",
       "whoever leads a recovery loses only the control, for as long as it takes: others hear it, and take over",
       [] {
         ClusterOptions options = cluster(5, 2);
         options.replicas = 2;
         return options;
       }(),
       {when_well(kill_node, machines({3}), 400s), later(2ms, cut_control, 4, 300s), later(200s, must_run, 0)}},
      {"rack-lost",
       "a rack dies, half of the members, with one copy of each seat: each of them has its copy in the other rack",
       in_racks(4, 4),
       {when_well(kill_node, machines({1}), 40s), later(20s, must_be_well, 0)}},
      {"flipped-before-it-was-sent",
       "bits flip in a copy that is on its way to its holder: that step is given up, and the next ones are committed",
       cluster(4, 1),
       {when_well(flip_unsent, machines({1}), {}), later(10s, must_be_well, 0)}},
      {"path-left",
       "a node dies together with the only one that has a copy of its state: another data-parallel path has the same bytes",
       with_paths(4, 2, 1),
       {when_well(kill_two_nodes, machines({1, 2}), 40s), later(20s, must_be_well, 0)}},
      {"path-left-of-two",
       "the same, of a model in two parts: half of the seats have other bytes",
       with_paths(6, 3, 2),
       {when_well(kill_two_nodes, machines({1, 2, 3}), 40s), later(20s, must_be_well, 0)}},
      {"path-differs",
       "a seat declares what is not so, that its bytes are those of others: nobody is given them when a node dies",
       [] {
         ClusterOptions options = with_paths(4, 2, 1);
         options.differs = Seat(3);
         return options;
       }(),
       {when_well(kill_node, machines({1}), 40s), later(20s, must_be_well, 0)}},
      {"path-differs-itself",
       "and when it dies itself, it is not given theirs",
       [] {
         ClusterOptions options = with_paths(4, 2, 1);
         options.differs = Seat(1);
         return options;
       }(),
       {when_well(kill_node, machines({1}), 40s), later(20s, must_be_well, 0)}},
  };
  static const auto* every = [] {
    auto* both = new std::vector<Scenario>(*all);
    for (Scenario& one : of_registrations()) both->push_back(std::move(one));
    for (Scenario& one : of_worlds()) both->push_back(std::move(one));
    for (Scenario& one : of_storage()) both->push_back(std::move(one));
    return both;
  }();
  return *every;
}

const Scenario* scenario_named(std::string_view name) {
  const auto found = std::ranges::find(scenarios(), name, &Scenario::name);
  return found == scenarios().end() ? nullptr : &*found;
}

}  // namespace pawl::sim
