// What a recovery asks of the control, of its leader and of each other node, as a job grows: one node of n died, each has
// eight seats. scale_bench [--nodes 10,100,...] [--seconds S]. Prints tables, and the exponent of each growth.
//
// No network and no processes: the shipped mirror, state mover and decisions of the leader and of one other node run on
// keys in memory (test_control.h). All other nodes are what they put: the texts that their pawlds
// and collectors would write. Messages
// and bytes of the control are what these two nodes are told by their watches, theirs and those of all that are like them.
// A *turn* is what pawld decides after keys have changed. It takes as many keys at once as have come by then; so a
// recovery costs between one turn for all and one for each key. Times are of the CPU. Where turns for each key would take
// longer than S seconds, some are measured, evenly spaced, and the sum is estimated (~).
#include <ctime>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "job/daemon/events.h"
#include "job/daemon/holds.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/test_control.h"
#include "job/membership/node_report.h"
#include "job/recovery/duties.h"
#include "job/recovery/members.h"
#include "job/recovery/node_followers.h"
#include "job/recovery/planner.h"
#include "job/recovery/report_groups.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kSeatsPerNode = 8;
constexpr std::uint32_t kSpares = 2;
constexpr Step kCommitted(123'456);

double cpu_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "scale_bench: %s\n", why.c_str());
  std::exit(1);
}

class StillClock final : public Clock {
 public:
  Duration now() override { return now_; }
  Duration boottime() override { return now_; }
  Duration wall() override { return 500'000h + now_; }
  void sleep(Duration duration) override { now_ += duration; }

 private:
  Duration now_ = 1000s;
};

NodeLife life_of(std::uint32_t node) {
  return {NodeId(node), Incarnation(1'700'000'000'000'000'000u + node)};
}

// No two seats' are alike, as where a model is sharded.
std::uint64_t layout_of(Seat seat) {
  return (seat.value + 1) * 0x9e3779b97f4a7c15u;
}

std::string address_of(std::uint32_t node) {
  return text("10.", node >> 16, ".", node >> 8 & 255, ".", node & 255, ":41234");
}

// A job of `nodes` members that runs; node 5 is about to die.
struct Job {
  explicit Job(std::uint32_t node_count) : nodes(node_count), keys("scale") {
    spec.job = "scale";
    spec.node_count = nodes;
    spec.seats_per_node = kSeatsPerNode;
    spec.spare_count = kSpares;
    state.generation = Generation(1);
    state.phase = JobPhase::running;
    state.leader = life_of(0);
    state.ran = Generation(1);
    state.lineage = {{Generation(1), Step(0)}};
    for (std::uint32_t node = 0; node < nodes; ++node) {
      for (std::uint32_t local = 0; local < kSeatsPerNode; ++local) {
        const Seat seat(node * kSeatsPerNode + local);
        state.seats.push_back({seat, life_of(node), address_of(node), local});
      }
    }
  }
  [[nodiscard]] NodeLife victim() const { return life_of(5); }
  [[nodiscard]] std::uint32_t position_of(std::uint32_t node) const { return node == nodes ? 5 : node; }
  [[nodiscard]] NodeLife leader() const { return life_of(6); }  // beside it on the ring: the first to know
  [[nodiscard]] NodeLife other() const { return life_of(nodes - 2); }

  [[nodiscard]] NodeRecord record(std::uint32_t node) const {
    NodeRecord record;
    record.life = life_of(node);
    record.address = address_of(node);
    record.lifeline = address_of(node);
    record.local_path = text("/tmp/pawl-1000/scale/node-", node, "/pawld.sock");
    record.keeper_pid = 1000;
    record.pawld_pid = 1001;
    record.healthy = true;
    record.parked = node < nodes ? 0 : kSeatsPerNode;
    record.arena_bytes = std::uint64_t{1} << 30;
    return record;
  }
  // Two slots of each own seat and of each ward. The step in flight is sealed, and not held everywhere yet.
  [[nodiscard]] Inventory inventory(std::uint32_t node) const {
    Inventory inventory;
    inventory.life = life_of(node);
    inventory.generation = Generation(2);
    inventory.committed = kCommitted;
    inventory.frozen_wall_ms = 1'700'000'000'000u;
    for (std::uint32_t local = 0; local < kSeatsPerNode; ++local) {
      const Seat own(node * kSeatsPerNode + local);
      const Seat ward((node + nodes - 1) % nodes * kSeatsPerNode + local);
      for (const std::uint64_t step : {kCommitted.value, kCommitted.value + 1}) {
        inventory.items.push_back(
            {own, SourceKind::own_arena, Generation(1), Step(step), SlotState::sealed, layout_of(own)});
        const SlotState state = step == kCommitted.value ? SlotState::sealed : SlotState::dirty;
        inventory.items.push_back({ward, SourceKind::replica, Generation(1), Step(step), state, layout_of(ward)});
      }
      inventory.trainers_alive.push_back(own);
    }
    return inventory;
  }
  [[nodiscard]] std::string frozen(std::uint32_t node) const {
    return nlohmann::json{{"at_ms", 1'700'000'000'000u},
                          {"at_monotonic_ns", 1'000'000'000'000u},
                          {"generation", 2},
                          {"kind", "frozen"},
                          {"node", node},
                          {"step", 41}}
        .dump();
  }

  const std::uint32_t nodes;
  JobSpec spec;
  JobKeys keys;
  JobState state;
};

// What a node's parts ask of the control, answered after they have asked.
class Calls final : public ControlCalls {
 public:
  explicit Calls(MemoryControl& control) : line_(control.connect()) {}
  void put(std::string key, std::string value, std::function<void(Status)> then) override {
    (void)line_->put(key, value, 0);
    answers_.emplace_back([then = std::move(then)] { then({}); });
  }
  void compare_and_swap(std::string key, Revision expected, std::string value, std::vector<KeyChange> beside,
                        std::function<void(Result<Swapped>)> then) override {
    beside.push_back({KeyChange::Kind::put, key, std::move(value), 0});
    const auto done = line_->transact({{key, {}, {}, expected}}, beside);
    if (!done || !done->won) give_up("a swap was lost");
    answers_.emplace_back([then = std::move(then), done] { then(Swapped{true, done->revision, std::nullopt}); });
  }
  void tell(std::function<void(Control&)> work) override { work(*line_); }
  void answer() {
    while (!answers_.empty()) {
      const auto answer = std::move(answers_.front());
      answers_.pop_front();
      answer();
    }
  }

 private:
  std::unique_ptr<Control> line_;
  std::deque<std::function<void()>> answers_;
};

struct Told {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
};

// One node's deciding parts.
class Node {
 public:
  Node(const Job& job, NodeLife self, MemoryControl& control)
      : context_(self, job.spec.job, real_environment()), calls_(control), line_(control.connect()) {
    context_.mirror.set_spec(job.spec);
    context_.deadlines = derive_deadlines(std::chrono::milliseconds(job.spec.deadline_ms));
    context_.clock = &clock_;
    context_.control = &calls_;
    context_.after = [this](Duration, std::function<void()> task) { later_.push_back(std::move(task)); };
    context_.post = [this](std::function<void()> task) { later_.push_back(std::move(task)); };
    context_.drive = [] {};
    context_.drive_soon = [](Duration) {};
    context_.followed.was_member = true;
    attend();
    std::string refused;
    const Listing listing = *line_->list(job.keys.root);
    refused = context_.mirror.apply_all(listing, clock_.now()).refused;
    if (!context_.mirror
             .has_state()) {  // the record is too large to be read: then decisions are all that can be measured
      std::printf("nodes %u: the state is refused: %s\n", job.nodes, refused.c_str());
      (void)context_.mirror.learn(job.state, listing.revision, clock_.now());
    }
    watch_ = line_->watch(job.keys.root, {}, [this](const WatchEvent& event) { events_.push_back(event); });
  }
  // Of a leader, and of all nodes of a small job (job/recovery/node_followers.h): who is registered.
  void follow_nodes() {
    (void)context_.mirror.apply_nodes(*line_->list(context_.mirror.keys().nodes()), clock_.now());
    context_.watched.keys.as_of = context_.watched.nodes.as_of = clock_.now();
  }
  // What a leader also watches while the recovery lasts, from before anything was reported.
  void watch_reports(Generation generation) {
    reports_ = line_->watch(context_.mirror.keys().reports(generation), {},
                            [this](const WatchEvent& event) { events_.push_back(event); });
    context_.heard.known = generation;
  }
  void leave_reports() { reports_.reset(); }

  // Applies what its watch has said.
  void take() {
    const double begun = cpu_ms();
    for (const WatchEvent& event : events_) {
      ++told.messages;
      told.bytes += event.kv.key.size() + event.kv.value.size();
      (void)context_.mirror.apply(event.kv.key, event.kind == WatchEvent::Kind::put ? &event.kv.value : nullptr,
                                  event.revision, clock_.now());
    }
    events_.clear();
    take_ms += cpu_ms() - begun;
  }
  // What pawld asks of its decisions when keys have changed.
  double turn() {
    attend();
    const double begun = cpu_ms();
    const JobState& state = context_.mirror.state();
    if (context_.is_evicted()) give_up("a sound node was evicted");
    if (standing_of(state, context_.mirror.roster(), {.self = context_.self, .was_member = true}) == Standing::member)
      (void)duties_of(state, context_.followed, {});
    mover_.drive();
    calls_.answer();
    const double ms = cpu_ms() - begun;
    for (const auto& task : std::exchange(later_, {})) task();
    return ms;
  }
  // What it asks of them every 50 ms, with all neighbours heard just now.
  double tick() {
    attend();
    std::vector<Contact> contacts;
    for (const Member& member : context_.mirror.linked_members())
      contacts.push_back({member.life, clock_.now(), clock_.now(), false});
    const double begun = cpu_ms();
    FenceView view;
    count_heard(view, context_.mirror.links(), contacts, {}, context_.deadlines);
    mover_.check_members(contacts);
    mover_.drive();
    return cpu_ms() - begun;
  }
  void report(const Cause& cause) { mover_.report(cause); }
  [[nodiscard]] const JobMirror& mirror() const { return context_.mirror; }

  Told told;
  double take_ms = 0;

 private:
  void attend() {
    context_.attention.ticked(clock_.now(), context_.deadlines);
    context_.attention.control_answered(clock_.now(), clock_.now(), context_.deadlines);
  }

  StillClock clock_;
  NodeContext context_;
  Calls calls_;
  std::unique_ptr<Control> line_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Watch> reports_;
  std::vector<WatchEvent> events_;
  std::vector<std::function<void()>> later_;
  Events tell_{context_};
  Holds holds_{real_tasks()};
  StateMover mover_{
      context_,
      tell_,
      holds_,
      {.on_won = [this](JobState next,
                        Revision revision) { (void)context_.mirror.learn(std::move(next), revision, clock_.now()); },
       .on_lost = [](const KeyValue&) { give_up("a swap was lost"); }}};
};

struct Costs {
  double take_ms = 0;      // parsing and applying what the watch says
  double each_ms = 0;      // a turn for each key
  double at_once_ms = 0;   // one turn for all keys of a phase
  bool estimated = false;  // each_ms
};
struct Row {
  std::uint32_t nodes = 0;
  std::size_t state_bytes = 0;     // the largest
  double messages_a_node = 0;      // that the control sends
  double messages = 0, bytes = 0;  // to all
  Costs leader, other;
  double tick_ms = 0;
  double puts = 0, put_bytes = 0;  // of reports, by nodes and collectors
  double between_nodes = 0;        // reports and acknowledgements
};

// The other nodes' puts of one phase, and the turns of both nodes that see them.
class Phase {
 public:
  Phase(Node& leader, Node& other, Row& row, double seconds)
      : leader_(leader), other_(other), row_(row), budget_ms_(1e3 * seconds) {}

  void puts(std::size_t count, const std::function<void(std::size_t)>& put) {
    each_ = {};
    std::size_t next_measured = count / 2;  // one in the middle tells how many can be measured
    std::size_t stride = 0;
    for (std::size_t i = 0; i < count; ++i) {
      put(i);
      if (i + 1 == count) break;  // the last turn is the one that decides
      if (i != next_measured) continue;
      leader_.take();
      other_.take();
      measure();
      if (stride == 0) {
        const double all_ms = each_.total_ms() * static_cast<double>(count);
        stride = std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(all_ms / 2 / budget_ms_)));
      }
      next_measured += stride;
    }
    leader_.take();
    other_.take();
    const double scale = each_.turns > 0 ? static_cast<double>(count - 1) / static_cast<double>(each_.turns) : 0;
    add(row_.leader, each_.leader_ms * scale, leader_.turn(), scale > 2.5);
    add(row_.other, each_.other_ms * scale, other_.turn(), scale > 2.5);
    leader_.take();
    other_.take();
  }

 private:
  struct Each {
    double leader_ms = 0, other_ms = 0;
    std::size_t turns = 0;
    [[nodiscard]] double total_ms() const { return leader_ms + other_ms; }
  };
  void measure() {
    each_.leader_ms += leader_.turn();
    each_.other_ms += other_.turn();
    ++each_.turns;
  }
  static void add(Costs& costs, double each_ms, double last_ms, bool estimated) {
    costs.each_ms += each_ms + last_ms;
    costs.at_once_ms += last_ms;
    costs.estimated = costs.estimated || estimated;
  }

  Node& leader_;
  Node& other_;
  Row& row_;
  double budget_ms_;
  Each each_;
};

void expect(const Node& node, JobPhase phase, Generation generation) {
  if (!node.mirror().is_in(phase) || node.mirror().generation() != generation)
    give_up(text("the job is ", name_of(node.mirror().state().phase), " and should be ", name_of(phase)));
}

struct Put {
  std::string key;
  std::string value;
};
// What nodes put in one phase where no collector fails: in a job of one group each its own key.
std::vector<Put> puts_of(const Job& job, const std::vector<std::uint32_t>& nodes, ReportKind kind) {
  std::vector<Put> puts;
  std::vector<std::string> group;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeLife life = life_of(nodes[i]);
    const std::string record = kind == ReportKind::ready ? ready_record(life) : to_text(job.inventory(nodes[i]));
    if (job.nodes <= kReportGroupSize) {
      puts.push_back({key_of(job.keys, kind, Generation(2), life.node), record});
      continue;
    }
    group.push_back(to_text(NodeReport{kind, life, Generation(2), record}));
    const std::uint32_t mine = job.position_of(nodes[i]) / kReportGroupSize;
    if (i + 1 < nodes.size() && job.position_of(nodes[i + 1]) / kReportGroupSize == mine) continue;
    puts.push_back({collected_key(job.keys, Generation(2), mine, NodeId(mine * kReportGroupSize), puts.size()),
                    join_reports(std::exchange(group, {}))});
  }
  return puts;
}

Row recover(std::uint32_t nodes, double seconds) {
  Row row;
  row.nodes = nodes;
  Job job(nodes);
  MemoryControl control;
  for (std::uint32_t node = 0; node < nodes + kSpares; ++node)
    control.put(job.keys.node(NodeId(node)), to_json(job.record(node)));
  const WrittenState written = write_state(job.state, nullptr);
  if (written.topology) control.put(job.keys.topology(written.topology->generation), to_json(*written.topology));
  control.put(job.keys.state(), written.state);
  Node leader(job, job.leader(), control);
  Node other(job, job.other(), control);
  leader.follow_nodes();
  if (nodes <= kAllFollowMax) other.follow_nodes();
  for (int i = 0; i < 3; ++i) row.tick_ms += other.tick() / 3;
  std::vector<std::uint32_t> alive;  // all that put something besides the two nodes' own state mover
  for (std::uint32_t node = 0; node < nodes; ++node)
    if (life_of(node) != job.victim()) alive.push_back(node);

  Phase phase(leader, other, row, seconds);
  const auto note_state = [&] { row.state_bytes = std::max(row.state_bytes, control.value(job.keys.state()).size()); };
  phase.puts(1, [&](std::size_t) {
    leader.report({FaultKind::node_lost, job.victim(), std::nullopt, "its keeper's address refuses", 0});
  });
  expect(leader, JobPhase::quiescing, Generation(2));
  leader.watch_reports(Generation(2));
  note_state();
  // Events come one by one; nobody's turn sees them.
  for (std::size_t i = 0; i < alive.size(); ++i)
    control.put(job.keys.event(1'700'000'000'000'000'000u + i, NodeId(alive[i])), job.frozen(alive[i]));
  const std::vector<Put> inventories = puts_of(job, alive, ReportKind::inventory);
  phase.puts(inventories.size(), [&](std::size_t i) { control.put(inventories[i].key, inventories[i].value); });
  expect(leader, JobPhase::restoring, Generation(2));
  if (leader.mirror().state().resume != kCommitted) give_up("it resumes from another step than the committed one");
  note_state();
  std::vector<std::uint32_t> members;
  for (std::uint32_t node = 0; node < nodes; ++node)
    members.push_back(life_of(node) == job.victim() ? nodes : node);  // its seats are the spare's
  const std::vector<Put> readies = puts_of(job, members, ReportKind::ready);
  phase.puts(readies.size(), [&](std::size_t i) { control.put(readies[i].key, readies[i].value); });
  expect(leader, JobPhase::running, Generation(2));
  note_state();
  leader.leave_reports();
  phase.puts(1, [&](std::size_t) {  // what Generations::tidy_keys erases
    (void)control.connect()->erase_prefix(job.keys.reports(Generation(2)));
  });
  for (const std::vector<Put>* puts : {&inventories, &readies}) {
    row.puts += static_cast<double>(puts->size());
    for (const Put& put : *puts) row.put_bytes += static_cast<double>(put.value.size());
    if (nodes > kReportGroupSize) row.between_nodes += 2.0 * static_cast<double>(alive.size());
  }
  row.leader.take_ms = leader.take_ms;
  row.other.take_ms = other.take_ms;
  const auto to_all = [nodes](std::uint64_t leaders, std::uint64_t others) {
    return static_cast<double>(leaders) + static_cast<double>(others) * (nodes - 2 + kSpares);
  };
  row.messages_a_node = static_cast<double>(other.told.messages);
  row.messages = to_all(leader.told.messages, other.told.messages);
  row.bytes = to_all(leader.told.bytes, other.told.bytes);
  return row;
}

// What the control sends while the root falls silent, until it is evicted.
struct Silence {
  std::uint32_t nodes = 0;
  double accusers = 0;
  double told_bytes = 0;    // each word, to all
  double asked_bytes = 0;   // by those who convict it, before they write that down
  double listed_bytes = 0;  // if they listed all keys for that
};

constexpr double kTallyBytes = 110;  // an answer with one key and without its value

Silence fall_silent(std::uint32_t nodes) {
  const Job job(nodes);
  Registrations registrations;
  double listing = static_cast<double>(write_state(job.state, nullptr).state.size());
  for (std::uint32_t node = 0; node < nodes + kSpares; ++node) {
    const NodeRecord record = job.record(node);
    registrations.note(NodeId(node), &record, 0s);
    listing += static_cast<double>(job.keys.node(NodeId(node)).size() + to_json(record).size());
  }
  const NodeLife root = life_of(0);
  SuspicionView view{job.state, registrations, {}, {}, job.other(), 0s, 1000s};
  const std::vector<NodeLife> accusers = witnesses_of(view, root, derive_deadlines(3s));
  double words = 0;
  for (const NodeLife& accuser : accusers)
    words += static_cast<double>(job.keys.accusation(Generation(1), root.node, accuser.node).size() +
                                 to_json(Accusation{root, accuser}).size());
  const auto count = static_cast<double>(accusers.size());
  return {nodes, count, words * (nodes + kSpares), count * kTallyBytes, count * (listing + words)};
}

// plan_restore as the leader asks it, where one node of `nodes` died. Milliseconds of CPU, the least of three.
double restore_plan_ms(std::uint32_t nodes) {
  const Job job(nodes);
  std::vector<Inventory> inventories;
  for (std::uint32_t node = 0; node < nodes; ++node)
    if (life_of(node) != job.victim()) inventories.push_back(job.inventory(node));
  const std::vector<NodeLife> evicted = {job.victim()};
  PlanInput input;
  input.seat_count = nodes * kSeatsPerNode;
  input.inventories = inventories;
  input.lineage = job.state.lineage;
  input.evicted = evicted;
  input.committed = kCommitted;
  input.seats = job.state.seats;
  double least = 1e18;
  for (int i = 0; i < 3; ++i) {
    const double begun = cpu_ms();
    const Plan plan = plan_restore(input);
    least = std::min(least, cpu_ms() - begun);
    if (plan.resume != kCommitted || plan.sources.size() != input.seat_count)
      give_up("plan_restore found another plan");
  }
  return least;
}

// The keys of a recovery in which every twentieth node died at once: the largest of each kind.
struct ManyDeaths {
  std::size_t state_bytes = 0, sheet_bytes = 0, topology_bytes = 0;
};

class DeathKeys {
 public:
  explicit DeathKeys(const JobState& before) { note(before); }
  void note(const JobState& state) {
    WrittenState written = write_state(state, topology_ ? &*topology_ : nullptr, kMovedRowsMax,
                                       {sheet_ ? &*sheet_ : nullptr, kStateBytesMax});
    if (written.topology) topology_ = std::move(written.topology);
    if (written.sheet) sheet_ = std::move(written.sheet);
    const auto read = read_state(written.state, topology_ ? &*topology_ : nullptr, sheet_ ? &*sheet_ : nullptr);
    if (!read || *read != state) give_up("a state is not read as it was written");
    most.state_bytes = std::max(most.state_bytes, written.state.size());
    if (written.named) most.sheet_bytes = std::max(most.sheet_bytes, sheet_->text.size());
    if (topology_) most.topology_bytes = std::max(most.topology_bytes, to_json(*topology_).size());
  }
  ManyDeaths most;

 private:
  std::optional<Topology> topology_;
  std::optional<Sheet> sheet_;
};

JobState state_of(const Decision& decision) {
  const StateMove* const move = std::get_if<StateMove>(&decision);
  if (move == nullptr) give_up("a recovery of many deaths only waits: " + std::get<Wait>(decision).what);
  return move->next;
}

ManyDeaths many_die(std::uint32_t nodes) {
  const Job job(nodes);
  DeathKeys keys(job.state);
  std::vector<Cause> causes;
  std::vector<NodeRecord> spares;
  std::vector<Inventory> inventories;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    if (node % 20 == 5) {
      causes.push_back({FaultKind::node_lost, life_of(node), std::nullopt, "its keeper's address refuses", 1});
      const auto spare = nodes + static_cast<std::uint32_t>(spares.size());
      spares.push_back(job.record(spare));
    } else {
      inventories.push_back(job.inventory(node));
    }
  }
  const JobState quiescing = state_of(open_generation(job.state, causes, job.leader()));
  keys.note(quiescing);
  const JobState restoring = state_of(decide_restore({job.spec, quiescing, inventories, spares}, job.leader()));
  keys.note(restoring);
  keys.note(state_of(decide_running(restoring, lives_of(restoring.seats), job.leader())));
  return keys.most;
}

// The protection of a whole job: who holds whose copies, asked for each seat and each position.
double placement_ms(std::uint32_t nodes) {
  const Ring ring(std::vector<std::uint32_t>(nodes, kSeatsPerNode), 1);
  const double begun = cpu_ms();
  std::uint64_t sum = 0;
  for (std::uint32_t seat = 0; seat < ring.seat_count(); ++seat) sum += ring.holders_of(Seat(seat)).front();
  for (std::uint32_t position = 0; position < nodes; ++position) sum += ring.wards_of(position).size();
  if (sum == 0) give_up("an empty placement");
  return cpu_ms() - begun;
}

// Of the two largest sizes: how the cost grows with the nodes.
template <class Rows, class Value>
double exponent(const Rows& rows, Value value) {
  if (rows.size() < 2) return std::nan("");
  const auto& b = rows[rows.size() - 1];
  const auto& a = rows[rows.size() - 2];
  return std::log(value(b) / value(a)) / std::log(static_cast<double>(b.nodes) / a.nodes);
}

void print_recoveries(const std::vector<Row>& rows) {
  std::printf("\nOne recovery, one node of n dead, %u seats a node, %u spares. CPU in ms.\n", kSeatsPerNode, kSpares);
  std::printf(
      "| nodes | largest state, bytes | messages a node | messages in all | MB in all | leader: keys, turn a key, turn "
      "for all | another node: keys, turn a key, turn for all | tick |\n|---|---|---|---|---|---|---|---|\n");
  for (const Row& row : rows)
    std::printf("| %u | %zu | %.0f | %.3g | %.3g | %.2f, %s%.3g, %.2f | %.2f, %s%.3g, %.2f | %.4f |\n", row.nodes,
                row.state_bytes, row.messages_a_node, row.messages, row.bytes / 1e6, row.leader.take_ms,
                row.leader.estimated ? "~" : "", row.leader.each_ms, row.leader.at_once_ms, row.other.take_ms,
                row.other.estimated ? "~" : "", row.other.each_ms, row.other.at_once_ms, row.tick_ms);
  std::printf("| n^ | %.2f | %.2f | %.2f | %.2f | %.2f, %.2f, %.2f | %.2f, %.2f, %.2f | %.2f |\n",
              exponent(rows, [](const Row& r) { return static_cast<double>(r.state_bytes); }),
              exponent(rows, [](const Row& r) { return r.messages_a_node; }),
              exponent(rows, [](const Row& r) { return r.messages; }),
              exponent(rows, [](const Row& r) { return r.bytes; }),
              exponent(rows, [](const Row& r) { return r.leader.take_ms; }),
              exponent(rows, [](const Row& r) { return r.leader.each_ms; }),
              exponent(rows, [](const Row& r) { return r.leader.at_once_ms; }),
              exponent(rows, [](const Row& r) { return r.other.take_ms; }),
              exponent(rows, [](const Row& r) { return r.other.each_ms; }),
              exponent(rows, [](const Row& r) { return r.other.at_once_ms; }),
              exponent(rows, [](const Row& r) { return r.tick_ms; }));
}

// Whether it grows like n log n, and not faster: 1 and below.
double of_n_log_n(double growth, double nodes_before, double nodes) {
  return growth / (nodes * std::log(nodes) / (nodes_before * std::log(nodes_before)));
}

void print_reports(const std::vector<Row>& rows) {
  std::printf(
      "\nThe reports of that recovery, none of it lost. Groups of %u.\n| nodes | puts | kB put | messages between "
      "nodes "
      "|\n|---|---|---|---|\n",
      kReportGroupSize);
  for (const Row& row : rows)
    std::printf("| %u | %.0f | %.4g | %.0f |\n", row.nodes, row.puts, row.put_bytes / 1e3, row.between_nodes);
  std::printf("| n^ | %.2f | %.2f | %.2f |\n", exponent(rows, [](const Row& r) { return r.puts; }),
              exponent(rows, [](const Row& r) { return r.put_bytes; }),
              exponent(rows, [](const Row& r) { return r.between_nodes; }));
  if (rows.size() < 2) return;
  const Row& a = rows[rows.size() - 2];
  const Row& b = rows.back();
  const auto all = [](const Row& r) { return r.messages + r.between_nodes + r.puts; };
  const auto cpu = [](const Row& r) { return r.leader.take_ms + r.leader.each_ms; };
  std::printf("against n log n (at most 1 where it grows no faster): messages %.2f, bytes %.2f, leader's CPU %.2f\n",
              of_n_log_n(all(b) / all(a), a.nodes, b.nodes), of_n_log_n(b.bytes / a.bytes, a.nodes, b.nodes),
              of_n_log_n(cpu(b) / cpu(a), a.nodes, b.nodes));
}

void print_silences(const std::vector<Silence>& rows) {
  std::printf(
      "\nThe root falls silent. The control sends, in kB:\n| nodes | accusers | their words to all | what they ask "
      "before "
      "the eviction | if they listed all keys for it |\n|---|---|---|---|---|\n");
  for (const Silence& row : rows)
    std::printf("| %u | %.0f | %.4g | %.3g | %.4g |\n", row.nodes, row.accusers, row.told_bytes / 1e3,
                row.asked_bytes / 1e3, row.listed_bytes / 1e3);
  std::printf("| n^ | %.2f | %.2f | %.2f | %.2f |\n", exponent(rows, [](const Silence& r) { return r.accusers; }),
              exponent(rows, [](const Silence& r) { return r.told_bytes; }),
              exponent(rows, [](const Silence& r) { return r.asked_bytes; }),
              exponent(rows, [](const Silence& r) { return r.listed_bytes; }));
}

std::vector<std::uint32_t> numbers_in(std::string_view list) {
  std::vector<std::uint32_t> numbers;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    std::uint32_t number = 0;
    if (!parse_number(list.substr(0, end), number) || number < 10) give_up("--nodes takes numbers from 10 on: 10,100");
    numbers.push_back(number);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return numbers;
}

int run(int count, char** arguments) {
  std::vector<std::uint32_t> sizes = {10, 100, 1000, 10'000};
  double seconds = 5;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view name = arguments[i];
    if (name == "--nodes") {
      sizes = numbers_in(arguments[i + 1]);
    } else if (name == "--seconds") {
      seconds = std::atof(arguments[i + 1]);
    } else {
      give_up(text("unknown option ", name));
    }
  }
  std::vector<Row> rows;
  for (const std::uint32_t nodes : sizes) rows.push_back(recover(nodes, seconds));
  print_recoveries(rows);
  print_reports(rows);
  std::vector<Silence> silences;
  for (const std::uint32_t nodes : sizes) silences.push_back(fall_silent(nodes));
  print_silences(silences);
  std::printf(
      "\nEvery twentieth node dies at once. The largest of each key, in bytes:\n"
      "| nodes | state, which all watch | its sheet | its topology |\n|---|---|---|---|\n");
  for (const std::uint32_t nodes : sizes) {
    const ManyDeaths most = many_die(nodes);
    std::printf("| %u | %zu | %zu | %zu |\n", nodes, most.state_bytes, most.sheet_bytes, most.topology_bytes);
  }
  std::printf("\nplan_restore, one node dead, CPU: ");
  for (const std::uint32_t nodes : {1250u, 12'500u})
    std::printf("%u seats %.1f ms; ", nodes * kSeatsPerNode, restore_plan_ms(nodes));
  std::printf("\nplacement of all seats and wards, CPU: %u seats %.1f ms\n", 12'500 * kSeatsPerNode,
              placement_ms(12'500));
  return 0;
}

}  // namespace
}  // namespace pawl::job

int main(int count, char** arguments) {
  return pawl::job::run(count, arguments);
}
