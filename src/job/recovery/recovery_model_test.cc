// A small world without processes around the shipped decisions: nodes with two slots a seat and kind, filled as the
// slot protocol allows, that die, rot and return at any point of a recovery. The same walk is driven by a seed (many
// worlds) and by an odometer over all choices (small worlds). What must hold is computed here anew, from a history of
// steps that knows nothing of lineages, and by looking at every slot.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "base/text.h"
#include "job/recovery/decide.h"
#include "job/recovery/members.h"
#include "job/recovery/planner.h"

namespace pawl::job {
namespace {

class Choices {
 public:
  virtual ~Choices() = default;
  virtual std::uint32_t pick(std::uint32_t count) = 0;  // 0..count-1
  virtual bool rarely(std::uint32_t one_in) = 0;        // spice; never in the exhaustive walk
  virtual bool exhaustive() const = 0;
};

class SeededChoices : public Choices {
 public:
  explicit SeededChoices(std::uint64_t seed) : random_(seed) {}
  std::uint32_t pick(std::uint32_t count) override { return static_cast<std::uint32_t>(random_() % count); }
  bool rarely(std::uint32_t one_in) override { return pick(one_in) == 0; }
  bool exhaustive() const override { return false; }

 private:
  std::mt19937_64 random_;
};

// Replays a prefix of choices and takes the first of each further one; advance() turns to the next sequence.
class AllChoices : public Choices {
 public:
  std::uint32_t pick(std::uint32_t count) override {
    if (at_ == digits_.size()) digits_.push_back({0, count});
    return digits_[at_++].value;
  }
  bool rarely(std::uint32_t) override { return false; }
  bool exhaustive() const override { return true; }
  bool advance() {
    at_ = 0;
    while (!digits_.empty() && ++digits_.back().value == digits_.back().count) digits_.pop_back();
    return !digits_.empty();
  }
  std::string sequence() const {
    std::string out;
    for (const Digit& digit : digits_) out += text(digit.value, ' ');
    return out;
  }

 private:
  struct Digit {
    std::uint32_t value, count;
  };
  std::vector<Digit> digits_;
  std::size_t at_ = 0;
};

// A stream is two halves: each may rot, be struck out, and be read by itself.
constexpr std::array kHalves{Extent{0, 4096}, Extent{4096, kStreamEnd}};
using Half = std::size_t;  // index in kHalves

struct Slot {
  Generation generation;
  Step step;
  SlotState state = SlotState::empty;
  std::array<bool, kHalves.size()> rotten{};  // other bytes than were sealed: seen only by who reads them
  std::array<bool, kHalves.size()> lacks{};   // no bytes at all: its node knows that
};
constexpr std::array<std::array<bool, 2>, 4> kOfHalves{{{false, false}, {true, false}, {false, true}, {true, true}}};
using Slots = std::array<Slot, 2>;
struct Node {
  bool alive = true;
  bool lingers = false;  // evicted, not alive as a member, and still there to be read from
  std::map<std::pair<Seat, SourceKind>, Slots> memory;
  Step known;  // greatest step that it knows to be committed
};

constexpr std::uint32_t kSeatsPerNodeMax = 3;

struct Options {
  std::uint32_t node_count = 2;
  std::uint32_t seats_per_node = 1;
  std::uint32_t spare_count = 1;
  std::uint32_t replica_count = 1;
  std::uint32_t epochs = 1;
  std::uint32_t events_max = 3;  // besides the first fault of a recovery
  bool within_policy = true;     // at most `replica_count` nodes that hold state die for each commit, nothing rots; as
                                 // long as fewer have died a recovery may be followed by another without a commit
  bool wait_for_spare = true;
  bool halves_lack = false;  // of the replicas of seat 0, in every way
  bool worlds = false;  // any recovery may end in another world; exhaustively: each that has less or turns the seats
};

class World {
 public:
  World(Options options, Choices& choices) : options_(options), choices_(choices) {
    spec_.node_count = options.node_count;
    spec_.seats_per_node = options.seats_per_node;
    spec_.spare_count = options.spare_count;
    spec_.replica_count = options.replica_count;
    spec_.wait_for_spare = options.wait_for_spare;
    holder_deaths_left_ = options.replica_count;
    for (std::uint32_t seat = 0; seat < options.node_count * options.seats_per_node; ++seat) {
      positions_.push_back(seat / options.seats_per_node);
      before_.emplace_back(seat);
    }
    first_ = before_;
    for (std::uint32_t id = 0; id < options.node_count + options.spare_count; ++id)
      nodes_[{NodeId(id), Incarnation(1)}];
  }

  void live() {
    state_ = std::get<StateMove>(decide_forming({spec_, records(), 0}, {NodeId(0), Incarnation(1)})).next;
    run();
    for (std::uint32_t epoch = 0; epoch < options_.epochs && state_.phase == JobPhase::running; ++epoch) {
      if (choices_.rarely(3)) change_topology();
      train();
      recover();
      if (testing::Test::HasFatalFailure()) return;
      if (options_.within_policy) {
        if (holder_deaths_left_ < 0) return;  // a death, and an escalation besides that replaced another node
        ASSERT_EQ(state_.phase, JobPhase::running) << state_.verdict;
        ASSERT_GE(state_.resume, committed_);
        commit_owed_ = holder_deaths_left_ == 0;
        check_deaths_are_survived(static_cast<std::uint32_t>(holder_deaths_left_));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }

  const JobState& state() const { return state_; }
  std::uint64_t decisions() const { return decisions_; }
  std::uint64_t joined() const { return joined_; }          // seats that were read from parts of copies
  std::uint64_t topologies() const { return topologies_; }  // that were not the first one's
  struct Worlds {
    std::uint64_t smaller = 0, larger = 0, turned = 0, refused = 0;
  };
  const Worlds& worlds() const { return worlds_; }

 private:
  // --- what is true

  std::uint32_t seat_count() const { return static_cast<std::uint32_t>(positions_.size()); }
  std::uint32_t first_seat_of(std::uint32_t position) const {
    return static_cast<std::uint32_t>(std::ranges::find(positions_, position) - positions_.begin());
  }
  std::vector<NodeLife> holders_of(Seat seat) const {
    std::vector<NodeLife> holders;
    for (std::uint32_t i = 1; i <= options_.replica_count; ++i) {
      const std::uint32_t position = (positions_[seat.value] + i) % (positions_.back() + 1);
      holders.push_back(state_.seats[first_seat_of(position)].life);
    }
    return holders;
  }
  // By what the seat's state goes.
  Seat before(Seat seat) const { return before_[seat.value]; }
  // On the line of steps that the job goes on with.
  bool valid(const Slot& slot) const {
    return slot.step > Step(0) && slot.step.value <= history_.size() &&
           history_[slot.step.value - 1] == slot.generation;
  }
  bool struck(NodeLife at, Seat seat, SourceKind kind, const Slot& slot, Half half) const {
    return std::ranges::any_of(state_.struck, [&](const Struck& one) {
      return one.at == at && one.seat == seat && one.kind == kind && one.slot_generation == slot.generation &&
             one.step == slot.step && one.extent.overlaps(kHalves[half]);
    });
  }
  bool has_copy(Seat seat, Step step) const { return has_half(seat, step, 0) && has_half(seat, step, 1); }
  bool has_half(Seat seat, Step step, Half half) const {
    for (const NodeLife& at : readable())
      for (const auto& [key, slots] : nodes_.at(at).memory)
        for (const Slot& slot : slots)
          if (key.first == seat && slot.step == step && slot.state == SlotState::sealed && valid(slot) &&
              !slot.lacks[half] && !struck(at, seat, key.second, slot, half))
            return true;
    return false;
  }
  std::uint32_t copies(Step step) const {
    return static_cast<std::uint32_t>(
        std::ranges::count_if(world_, [&](const Seat before) { return has_copy(before, step); }));
  }
  using Place = std::tuple<NodeLife, Seat, SourceKind, Half>;
  bool has(const Place& place, Step step) const {
    const NodeLife at = std::get<0>(place);
    const Seat seat = std::get<1>(place);
    const SourceKind kind = std::get<2>(place);
    const Half half = std::get<3>(place);
    const auto memory = nodes_.at(at).memory.find({seat, kind});
    if (memory == nodes_.at(at).memory.end()) return false;
    return std::any_of(memory->second.begin(), memory->second.end(), [&](const Slot& slot) {
      return slot.step == step && slot.state == SlotState::sealed && valid(slot) && !slot.lacks[half] &&
             !struck(at, seat, kind, slot, half);
    });
  }
  // The copies of `step` that survivors owe, by who sits where.
  std::set<Place> owed(Step step) const {
    std::set<Place> owed;
    for (std::uint32_t i = 0; i < seat_count(); ++i) {
      const Seat seat = before(Seat(i));
      if (!contains(world_, seat)) continue;
      for (Half half = 0; half < kHalves.size(); ++half) {
        owed.insert({state_.seats[i].life, seat, SourceKind::own_arena, half});
        for (const NodeLife& holder : holders_of(Seat(i))) owed.insert({holder, seat, SourceKind::replica, half});
      }
    }
    const std::vector<NodeLife> there = readable();
    std::erase_if(owed, [&](const Place& place) { return !contains(there, std::get<0>(place)) || has(place, step); });
    return owed;
  }
  std::vector<NodeLife> readable() const {
    std::vector<NodeLife> lives = survivors_of(state_);
    if (reads_lingering_) lives.insert(lives.end(), lingering_.begin(), lingering_.end());
    std::erase_if(lives, [this](NodeLife life) { return contains(leaving_, life); });
    return lives;
  }
  // From the members alone, if that is enough; else from those that linger and have reported, too.
  Step recoverable() { return recoverable_in(before_); }
  // Of these seats before.
  Step recoverable_in(const std::vector<Seat>& world) {
    world_ = world;
    const Step of_members = recoverable_from();
    if (of_members >= known()) return of_members;
    reads_lingering_ = true;
    const Step of_all = recoverable_from();
    reads_lingering_ = false;
    return std::max(of_members, of_all);
  }
  // By brute force: from the step that must not be given up, on to whole steps while nothing more is owed; failing
  // that, the greatest that is whole.
  Step recoverable_from() const {
    const Step floor = std::max(known(), state_.lineage.empty() ? Step(0) : state_.lineage.back().resume);
    Step best;
    Step any;
    std::optional<std::set<Place>> least;
    if (floor == Step(0)) least.emplace();
    for (std::uint64_t s = 1; s <= history_.size(); ++s) {
      const Step step(s);
      if (copies(step) < world_.size()) continue;
      any = step;
      const std::set<Place> more = owed(step);
      if (step < floor || (least && !std::includes(least->begin(), least->end(), more.begin(), more.end()))) continue;
      best = step;
      least = more;
    }
    return least ? best : any;
  }
  Step known() const {
    Step known = state_.committed;
    for (const NodeLife& life : survivors_of(state_)) known = std::max(known, nodes_.at(life).known);
    for (const NodeLife& life : lingering_) known = std::max(known, nodes_.at(life).known);
    return known;
  }

  // As a job that shrinks, grows or is laid out anew: other seats on other nodes, any number at each, in a generation of its
  // own that goes on from the same step. What `pawl run` asked for stays as it was.
  void change_topology() {
    std::vector<NodeLife> lives = lives_of(state_.seats);
    for (const auto& [life, node] : nodes_)
      if (node.alive && !contains(lives, life)) lives.push_back(life);
    const auto least = options_.replica_count + 1;
    lives.resize(least + choices_.pick(static_cast<std::uint32_t>(lives.size()) - least + 1));
    ++topologies_;
    state_.generation = state_.ran = state_.generation.next();
    state_.lineage.push_back({state_.generation, state_.resume});
    state_.departed.insert(state_.departed.end(), state_.evicted.begin(), state_.evicted.end());
    state_.evicted.clear();
    state_.sources.clear();
    state_.restart.clear();
    state_.attempts.clear();
    state_.seats.clear();
    positions_.clear();
    before_.clear();
    for (std::uint32_t position = 0; position < lives.size(); ++position) {
      for (std::uint32_t local = 0, count = 1 + choices_.pick(kSeatsPerNodeMax); local < count; ++local) {
        const Seat seat(seat_count());
        state_.seats.push_back({seat, lives[position], text("host", lives[position].node), local});
        state_.sources.push_back({seat, SourceKind::nothing, {}, {}, {}});
        positions_.push_back(position);
        before_.push_back(seat);
      }
    }
    for (auto& [life, node] : nodes_) node.memory.clear();
    for (std::uint32_t i = 0; i < seat_count() && state_.resume > Step(0); ++i) {
      const Slots whole{Slot{history_[state_.resume.value - 1], state_.resume, SlotState::sealed}, Slot{}};
      nodes_.at(state_.seats[i].life).memory[{Seat(i), SourceKind::own_arena}] = whole;
      for (const NodeLife& holder : holders_of(Seat(i)))
        nodes_.at(holder).memory[{Seat(i), SourceKind::replica}] = whole;
    }
    holder_deaths_left_ = options_.replica_count;
    commit_owed_ = false;
  }

  // --- training: slots as the protocol may leave them

  Slot& other_than(Slots& slots, Step step) {
    const bool first = slots[0].state == SlotState::sealed && slots[0].step == step && valid(slots[0]);
    return slots[first ? 1 : 0];
  }

  // After this some seats are further than `committed_`, which is whole in every own arena and at every holder, or the
  // step from which this generation went on.
  void train() {
    const bool first = history_.empty();
    const std::uint32_t advance = choices_.exhaustive() ? (first ? 1 : 0) : choices_.pick(5);
    const bool commits = advance > 0 || (options_.within_policy && commit_owed_);
    const Step base(state_.resume.value + (commits ? std::max(advance, 1u) : 0));
    while (history_.size() < base.value + 1) history_.push_back(state_.generation);
    for (std::uint32_t i = 0; i < seat_count(); ++i) {
      const Seat seat = before(Seat(i));
      Slots& own = nodes_.at(state_.seats[i].life).memory[{seat, SourceKind::own_arena}];
      const bool further = fill(own, base, commits, true);
      for (const NodeLife& holder : holders_of(Seat(i)))
        fill(nodes_.at(holder).memory[{seat, SourceKind::replica}], base, commits, further);
    }
    committed_ = base;
    if (held_by_all(Step(base.value + 1))) committed_ = Step(base.value + 1);
    if (committed_ > state_.resume) {
      holder_deaths_left_ = options_.replica_count;
      drop_others(false);
    }
    for (const Member& member : state_.seats) {
      const std::uint64_t lag = committed_.value - state_.resume.value;
      nodes_.at(member.life).known = Step(
          state_.resume.value + (choices_.exhaustive() ? lag : choices_.pick(static_cast<std::uint32_t>(lag) + 1)));
    }
    if (options_.halves_lack) {
      lack_halves();
    } else if (!options_.within_policy) {
      rot();
    }
  }

  void lack_halves() {
    for (const NodeLife& holder : holders_of(Seat(0)))
      nodes_.at(holder).memory[{before(Seat(0)), SourceKind::replica}][0].lacks =
          kOfHalves[choices_.pick(static_cast<std::uint32_t>(kOfHalves.size()))];
  }

  // Whether the slot pair ends with base+1 sealed. `may_seal`: what it is a copy of is sealed.
  bool fill(Slots& slots, Step base, bool commits, bool may_seal) {
    if (commits) slots[0] = {history_[base.value - 1], base, SlotState::sealed};
    Slot& other = other_than(slots, base);
    const Generation generation = history_[base.value];
    switch (choices_.pick(choices_.exhaustive() ? 2 : 4)) {
      case 0:
        other = {generation, base.next(), SlotState::dirty};
        break;
      case 1:
        other = {generation, base.next(), may_seal ? SlotState::sealed : SlotState::dirty};
        break;
      case 2:
        if (commits) other = {};
        break;
      default:  // what was there before, or the step before base
        if (commits && base > Step(1)) other = {history_[base.value - 2], Step(base.value - 1), SlotState::sealed};
    }
    return other.state == SlotState::sealed && other.step == base.next();
  }

  bool held_by_all(Step step) {
    const auto sealed = [&](NodeLife at, Seat seat, SourceKind kind) {
      const Slots& slots = nodes_.at(at).memory[{seat, kind}];
      return std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
        return slot.step == step && slot.state == SlotState::sealed && valid(slot);
      });
    };
    for (std::uint32_t i = 0; i < seat_count(); ++i) {
      const Seat seat = before(Seat(i));
      if (!sealed(state_.seats[i].life, seat, SourceKind::own_arena)) return false;
      for (const NodeLife& holder : holders_of(Seat(i)))
        if (!sealed(holder, seat, SourceKind::replica)) return false;
    }
    return true;
  }

  void rot() {
    for (auto& [life, node] : nodes_)
      for (auto& [key, slots] : node.memory)
        for (Slot& slot : slots)
          if (slot.state == SlotState::sealed && choices_.rarely(12))
            slot.rotten = kOfHalves[1 + choices_.pick(static_cast<std::uint32_t>(kOfHalves.size()) - 1)];
  }

  // --- what the nodes tell

  std::vector<NodeRecord> records() {
    std::vector<NodeRecord> out;
    for (const auto& [life, node] : nodes_) {
      if (!node.alive && !node.lingers && !choices_.rarely(4)) continue;  // a registration may outlive its node
      NodeRecord record;
      record.life = life;
      record.address = text("host", life.node, ":", life.incarnation);
      record.parked = lowest_seat_of(state_, life) ? 0 : kSeatsPerNodeMax;
      record.healthy = true;
      const auto known = std::find_if(out.begin(), out.end(),
                                      [&record](const NodeRecord& r) { return r.life.node == record.life.node; });
      if (known == out.end()) {
        out.push_back(record);
      } else {
        *known = record;  // one key a node
      }
    }
    return out;
  }

  void report() {
    std::vector<NodeLife> lives = survivors_of(state_);
    for (const auto& [life, node] : nodes_)
      if (node.lingers && !choices_.rarely(3)) lives.push_back(life);
    for (const NodeLife& life : lives) {
      const Node& node = nodes_.at(life);
      if ((!node.alive && !node.lingers) || reported(life)) continue;
      Inventory inventory{life, state_.generation, node.known, {}, {}, 0};
      for (const auto& [key, slots] : node.memory)
        for (const Slot& slot : slots)
          list(slot, {key.first, key.second, slot.generation, slot.step, slot.state, 7}, inventory.items);
      for (const Member& member : state_.seats)
        if (member.life == life) inventory.trainers_alive.push_back(member.seat);
      inventories_.push_back(inventory);
    }
  }
  void list(const Slot& slot, InventoryItem item, std::vector<InventoryItem>& items) const {
    if (slot.lacks == kOfHalves[0]) return items.push_back(item);
    for (Half half = 0; half < kHalves.size(); ++half) {
      item.extent = kHalves[half];
      if (!slot.lacks[half]) items.push_back(item);
    }
  }
  bool reported(NodeLife life) const {
    return std::any_of(inventories_.begin(), inventories_.end(), [&](const Inventory& i) { return i.life == life; });
  }

  // --- a recovery

  void recover() {
    events_left_ = options_.events_max;
    if (!options_.within_policy) holder_deaths_left_ = 99;
    holders_ = lives_of(state_.seats);
    tried_.clear();
    first_fault();
    for (std::uint32_t round = 0; state_.phase != JobPhase::running && state_.phase != JobPhase::failed; ++round) {
      ASSERT_LT(round, 200u) << "does not end";
      if (state_.phase == JobPhase::quiescing) {
        quiesce();
      } else {
        restore();
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  void first_fault() {
    const std::vector<NodeLife> members = survivors_of_running();
    switch (choices_.pick(3)) {
      case 0:
        return fault({FaultKind::communication, {}, {}, "", 0});
      case 1:
        return fault({FaultKind::trainer_exit, {}, Seat(choices_.pick(seat_count())), "", 0});
      default: {
        const NodeLife victim = members[choices_.pick(static_cast<std::uint32_t>(members.size()))];
        kill(victim);
        const bool led = choices_.rarely(3);
        if (led) state_.leader = victim;
        return fault({led ? FaultKind::leader_lost : FaultKind::node_lost,
                      led ? std::nullopt : std::optional(victim),
                      {},
                      "",
                      0});
      }
    }
  }
  std::vector<NodeLife> survivors_of_running() const { return lives_of(state_.seats); }

  // Something further happens, or not. True: a further generation is open.
  bool disturb() {
    for (auto& [life, node] : nodes_) node.lingers = node.lingers && !choices_.rarely(12);
    if (events_left_ == 0) return false;
    std::vector<NodeLife> mortal;
    for (const auto& [life, node] : nodes_)
      if (node.alive && (holder_deaths_left_ > 0 || !contains(holders_, life))) mortal.push_back(life);
    const std::uint32_t quiet = choices_.exhaustive() ? 1 : 6;
    const std::uint32_t chosen = choices_.pick(static_cast<std::uint32_t>(mortal.size()) + quiet);
    const Generation before = state_.generation;
    if (chosen < mortal.size()) {
      --events_left_;
      kill(mortal[chosen]);
      const bool noticed = choices_.pick(2) == 0;
      if (noticed) fault({FaultKind::node_lost, mortal[chosen], {}, "", 0});
    } else if (choices_.rarely(6)) {
      --events_left_;
      const Seat seat(choices_.pick(seat_count()));
      const std::uint32_t kind = choices_.pick(3);
      if (kind == 2 && state_.phase == JobPhase::restoring)
        fault({FaultKind::source_unreached, sources_of(state_.sources, seat).front().from, seat, "", 0});
      else
        fault({kind == 0 ? FaultKind::trainer_stuck : FaultKind::communication, {}, seat, "", 0});
    }
    return state_.generation != before || state_.phase == JobPhase::failed;
  }

  void kill(NodeLife life) {
    nodes_.at(life).alive = nodes_.at(life).lingers = false;
    if (contains(holders_, life)) --holder_deaths_left_;
  }

  void fault(const Cause& cause, const std::vector<Struck>& strikes = {}) {
    faults(std::vector<Cause>{cause}, strikes);
  }
  void faults(const std::vector<Cause>& causes, const std::vector<Struck>& strikes = {}) {
    const Decision decision = open_generation(state_, causes, any_self(), strikes);
    expect_same(decision, open_generation(state_, causes, any_self(), strikes));
    if (const StateMove* move = std::get_if<StateMove>(&decision)) take(move->next);
  }

  void quiesce() {
    if (choices_.rarely(2)) report();
    if (disturb()) return;
    report();
    if (disturb()) return;
    QuiescingView view{spec_, state_, inventories_, records()};
    if (options_.worlds) view.wished = wish();
    lingering_.clear();  // as far as anybody can know
    for (const NodeRecord& node : view.nodes)
      if (contains(state_.evicted, node.life) && reported(node.life)) lingering_.push_back(node.life);
    const Decision decision = decide_restore(view, any_self());
    expect_same(decision, decide_restore(shuffled(view), any_self()));
    if (const Wait* wait = std::get_if<Wait>(&decision)) {
      if (wait->what.find("which was evicted and may hold") != std::string::npos) return;  // or its lease ends
      if (wait->late.empty()) return wait_for_spare(*wait, view);
      return miss_deadline(wait->late);
    }
    const JobState next = std::get<StateMove>(decision).next;
    if (next.phase == JobPhase::failed) {
      check_failed(next);
      take(next);
      return;
    }
    next_before_ = planned_ = before_;
    next_positions_ = positions_;
    if (view.wished && *view.wished != before_) {
      check_world(next, view);
      if (testing::Test::HasFatalFailure()) return;
    }
    if (next.cold)  // nothing has been before
      for (std::uint32_t seat = 0; seat < next_before_.size(); ++seat) next_before_[seat] = Seat(seat);
    check_restoring(next, view);
    if (testing::Test::HasFatalFailure()) return;
    before_ = next_before_;
    positions_ = next_positions_;
    leaving_.clear();
    take(next);
    history_.resize(state_.resume.value);  // what came later is void for ever
    for (const Member& member : state_.seats) nodes_[member.life];
  }

  void wait_for_spare(const Wait& wait, const QuiescingView& view) {
    ASSERT_TRUE(wait.without_deadline);
    ASSERT_TRUE(options_.wait_for_spare);
    ASSERT_NE(wait.what.find("a spare for seat"), std::string::npos) << wait.what;
    state_.committed = std::max(state_.committed, wait.committed);  // as whoever leads writes it
    // Dead ones come back as new lives, with nothing, and so do those that nobody can need.
    for (const NodeLife& gone : state_.evicted) {
      const auto node = nodes_.find(gone);
      const bool lingers = node != nodes_.end() && node->second.lingers;
      if (lingers && must_linger(view, gone)) continue;
      if (lingers) node->second.lingers = false;
      const bool back = std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
        return node.first.node == gone.node && node.second.alive;
      });
      if (!back) nodes_[{gone.node, Incarnation(++incarnation_)}];
    }
    for (std::uint32_t id = options_.node_count; id < options_.node_count + options_.spare_count; ++id)
      if (std::none_of(nodes_.begin(), nodes_.end(),
                       [&](const auto& n) { return n.first.node.value == id && n.second.alive; }))
        nodes_[{NodeId(id), Incarnation(++incarnation_)}];
    // Who holds the only copies makes way for nobody: people start another node.
    if (std::ranges::any_of(nodes_, [](const auto& node) { return node.second.lingers; }))
      nodes_[{NodeId(50), Incarnation(++incarnation_)}];
  }

  void miss_deadline(const std::vector<NodeLife>& late) {
    std::vector<Cause> causes;
    for (const NodeLife& life : late) {
      ASSERT_FALSE(nodes_.at(life).alive) << "waits for a node that has reported";
      causes.push_back({FaultKind::node_silent, life, {}, "", 0});
    }
    faults(causes);
  }

  void restore() {
    // Some have imported when the next thing happens, some have not.
    const std::uint32_t until = choices_.exhaustive() ? seat_count() : choices_.pick(seat_count() + 1);
    for (std::uint32_t seat = 0; seat < until; ++seat)
      if (import(Seat(seat))) return;
    if (disturb()) return;
    for (std::uint32_t seat = until; seat < seat_count(); ++seat)
      if (import(Seat(seat))) return;
    std::vector<NodeLife> ready;
    for (const NodeLife& life : lives_of(state_.seats))
      if (nodes_.at(life).alive) ready.push_back(life);
    const Decision decision = decide_running(state_, ready, any_self());
    expect_same(decision, decide_running(state_, ready, any_self()));
    if (const Wait* wait = std::get_if<Wait>(&decision)) return miss_deadline(wait->late);
    run();
  }

  // Some of the seats that there are, in another order, or with some that have been: the state of these may lie here still.
  std::vector<Seat> wish() {
    std::vector<Seat> wished = before_;
    if (choices_.exhaustive()) {
      const std::uint32_t all = seat_count() + 2;
      const std::uint32_t which = choices_.pick(all);
      if (which == seat_count()) std::ranges::reverse(wished);
      if (which < seat_count() && seat_count() > options_.replica_count + 1) wished.erase(wished.begin() + which);
      if (which == seat_count() + 1) wished = first_;  // as it was at the beginning
      return wished;
    }
    switch (choices_.pick(6)) {
      case 0:
        wished = first_;
        break;
      case 1:
        std::ranges::reverse(wished);
        break;
      case 2:
        wished.erase(wished.begin() + choices_.pick(static_cast<std::uint32_t>(wished.size())));
        break;
      case 3:
        std::rotate(wished.begin(), wished.begin() + choices_.pick(static_cast<std::uint32_t>(wished.size())),
                    wished.end());
        break;
      case 4:
        wished.emplace_back(choices_.pick(12));
        break;
      default:
        break;
    }
    return wished;
  }

  // Whether it is the wished world is known from the slots: no committed step may be lost by it, and none be given up.
  void check_world(const JobState& next, const QuiescingView& view) {
    const std::vector<Seat>& wished = *view.wished;
    leaving_ = survivors_of(state_);
    for (const Member& member : state_.seats)
      if (contains(wished, before(member.seat))) std::erase(leaving_, member.life);
    if (next.verdict.find("that was wished is refused") != std::string::npos) {
      ++worlds_.refused;
      if (next.verdict.find("can't go on from there") != std::string::npos) {
        ASSERT_LT(recoverable_in(wished), known()) << next.verdict;
      }
      leaving_.clear();
      return;
    }
    const Step of_wished = recoverable_in(wished);
    std::vector<NodeLife> gone;
    std::swap(gone, leaving_);
    const Step own = recoverable();
    std::swap(gone, leaving_);
    ASSERT_GE(of_wished, known()) << "goes back for a wish";
    ASSERT_GE(of_wished, own);
    std::uint64_t& count = wished.size() < before_.size()   ? worlds_.smaller
                           : wished.size() > before_.size() ? worlds_.larger
                                                            : worlds_.turned;
    ++count;
    // Who stays sits where he sat; who has no seat left is evicted; each node's seats follow each other.
    std::map<Seat, NodeLife> sat;
    for (const Member& member : state_.seats) sat[before(member.seat)] = member.life;
    next_before_.clear();
    next_positions_.clear();
    ASSERT_EQ(next.seats.size(), wished.size());
    for (std::uint32_t seat = 0; seat < wished.size(); ++seat) {
      const NodeLife here = next.seats[seat].life;
      const auto was = sat.find(wished[seat]);
      if (was != sat.end() && is_survivor(state_, was->second)) {
        ASSERT_EQ(here, was->second);
      }
      const bool follows = seat > 0 && next.seats[seat - 1].life == here;
      next_positions_.push_back(seat == 0 ? 0 : next_positions_.back() + (follows ? 0 : 1));
      next_before_.push_back(wished[seat]);
    }
    planned_ = wished;
    for (const NodeLife& life : leaving_) ASSERT_TRUE(contains(next.evicted, life));
    ASSERT_FALSE(contains(next.evicted, next.leader));
    changes_world_ = true;
  }

  // Reads a seat's sources as a daemon would: each half from the first that has it. True: it can't be had, and a further
  // generation is open.
  bool import(Seat seat) {
    const auto sources = sources_of(state_.sources, seat);
    if (sources.front().kind == SourceKind::nothing) return false;
    const NodeLife to = state_.seats[seat.value].life;
    if (!nodes_.at(to).alive) return false;
    std::vector<Struck> strikes;
    std::optional<Source> dead;
    Slot copy{sources.front().slot_generation, sources.front().step, SlotState::sealed};
    bool whole = true;
    for (Half half = 0; half < kHalves.size(); ++half)
      whole = std::ranges::any_of(sources, [&](const Source& source) { return read(source, half, strikes, dead); }) &&
              whole;
    if (!whole) return source_failed(seat, strikes, dead);
    const Source& nearest = sources.front();
    if (to == nearest.from && nearest.kind == SourceKind::own_arena && nearest.extent.is_whole() && strikes.empty())
      return false;
    Slots& own = nodes_.at(to).memory[{before(seat), SourceKind::own_arena}];
    const bool over_first = own[0].step == copy.step || own[1].state == SlotState::sealed;
    own[over_first ? 0 : 1] = copy;
    return false;
  }
  bool read(const Source& source, Half half, std::vector<Struck>& strikes, std::optional<Source>& dead) {
    if (!source.extent.overlaps(kHalves[half])) return false;
    if (const Node& from = nodes_.at(source.from); !from.alive && !from.lingers) {
      dead = source;
      return false;
    }
    const Slots& there = nodes_.at(source.from).memory[{before(source.seat), source.kind}];
    const auto found = std::ranges::find_if(there, [&source](const Slot& slot) {
      return slot.generation == source.slot_generation && slot.step == source.step && slot.state == SlotState::sealed;
    });
    EXPECT_NE(found, there.end()) << "a source that does not exist";
    if (found == there.end()) std::abort();
    EXPECT_FALSE(found->lacks[half]) << "a part that does not exist";
    if (!found->rotten[half]) return true;
    strikes.push_back(
        {source.from, before(source.seat), source.kind, source.slot_generation, source.step, kHalves[half]});
    return false;
  }
  bool source_failed(Seat seat, const std::vector<Struck>& strikes, const std::optional<Source>& dead) {
    if (!strikes.empty()) {  // a daemon reports what the sources said, and then whatever else there is
      for (const Struck& strike : strikes)
        EXPECT_TRUE(tried_.insert({strike.at, strike.seat, strike.kind, strike.step, strike.extent}).second)
            << "the same bad source twice";
      fault({FaultKind::corrupt_source, {}, seat, "", 0}, strikes);
    } else if (contains(state_.evicted, dead->from)) {
      const std::vector<NodeLife> gone{dead->from};
      fault({FaultKind::corrupt_source, {}, seat, "", 0}, gone_sources(state_, {}, gone));
    } else {
      fault({FaultKind::node_lost, dead->from, {}, "", 0});
    }
    return true;
  }

  void run() {
    state_ = std::get<StateMove>(decide_running(state_, lives_of(state_.seats), any_self())).next;
    for (auto& [life, node] : nodes_) {
      node.lingers = false;
      for (auto& [key, slots] : node.memory)
        for (Slot& slot : slots)
          if (slot.rotten != kOfHalves[0] || (!valid(slot) && choices_.pick(choices_.exhaustive() ? 1 : 2) == 0))
            slot = {};
      node.known = state_.resume;
    }
    for (auto node = nodes_.begin(); node != nodes_.end();)  // the dead, and what spares held by accident of the model
      node = node->second.alive ? std::next(node) : nodes_.erase(node);
    drop_others(true);
  }

  // As each daemon does: only its seats' and its wards' arenas stay, and until a further commit what else has the step from which
  // this generation goes on.
  void drop_others(bool all_need_it) {
    if (!options_.worlds) return;
    std::map<NodeLife, std::set<std::pair<Seat, SourceKind>>> kept;
    for (std::uint32_t i = 0; i < seat_count(); ++i) {
      kept[state_.seats[i].life].insert({before(Seat(i)), SourceKind::own_arena});
      for (const NodeLife& holder : holders_of(Seat(i))) kept[holder].insert({before(Seat(i)), SourceKind::replica});
    }
    for (auto& [life, node] : nodes_)
      std::erase_if(node.memory, [&, life = life](const auto& arena) {
        const bool needed = all_need_it && contains(before_, arena.first.first) &&
                            std::ranges::any_of(arena.second, [this](const Slot& slot) {
                              return slot.state == SlotState::sealed && slot.step == state_.resume;
                            });
        return !kept[life].contains(arena.first) && !needed;
      });
  }

  // --- what must hold

  // What was resumed from counts as committed, and survives as many further deaths as the policy has left.
  void check_deaths_are_survived(std::uint32_t deaths, std::size_t from = 0) {
    if (state_.resume == Step(0)) return;
    if (deaths == 0) {
      world_ = before_;
      ASSERT_EQ(copies(state_.resume), seat_count())
          << text("step ", state_.resume, " would die with the nodes ", text_of(state_.evicted));
      return;
    }
    const std::vector<NodeLife> lives = lives_of(state_.seats);
    for (std::size_t i = from; i < lives.size(); ++i) {
      state_.evicted.push_back(lives[i]);
      ASSERT_NO_FATAL_FAILURE(check_deaths_are_survived(deaths - 1, i + 1));
      state_.evicted.pop_back();
    }
  }
  static std::string text_of(const std::vector<NodeLife>& lives) {
    std::string out;
    for (const NodeLife& life : lives) out += text(out.empty() ? "" : ", ", life.node);
    return out;
  }

  NodeLife any_self() { return {NodeId(100 + ++selves_ % 7), Incarnation(1)}; }

  void take(const JobState& next) {
    ++decisions_;
    ASSERT_GE(next.generation, state_.generation) << "a generation went back";
    ASSERT_EQ(next.seats.size(), seat_count());
    changes_world_ = false;
    if (decisions_ % 16 == 0) {
      const auto parsed = parse_job_state(to_json(next));
      ASSERT_TRUE(parsed) << parsed.error().what;
      ASSERT_EQ(*parsed, next);
    }
    if (next.generation != state_.generation) {
      inventories_.clear();
      lingering_.clear();
    }
    state_ = next;
    for (const NodeLife& life : state_.evicted) {
      const auto node = nodes_.find(life);
      if (node == nodes_.end() || !node->second.alive) continue;
      kill(life);  // an escalation: it lives, and lingers, or is just dying
      node->second.lingers = choices_.rarely(2);
    }
  }

  // I1: whoever decides, and in whatever order he heard, all decide alike.
  static void expect_same(Decision a, Decision b) {
    ASSERT_EQ(a.index(), b.index());
    if (Wait* wait = std::get_if<Wait>(&a)) {
      ASSERT_EQ(wait->what, std::get<Wait>(b).what);
      ASSERT_EQ(wait->late, std::get<Wait>(b).late);
      return;
    }
    StateMove& first = std::get<StateMove>(a);
    StateMove& second = std::get<StateMove>(b);
    first.next.leader = second.next.leader = {};
    ASSERT_EQ(first.why, second.why);
    ASSERT_EQ(first.next, second.next);
  }

  QuiescingView shuffled(QuiescingView view) {
    std::mt19937_64 random(++selves_);
    std::shuffle(view.nodes.begin(), view.nodes.end(), random);
    std::shuffle(view.inventories.begin(), view.inventories.end(), random);
    for (Inventory& inventory : view.inventories) std::shuffle(inventory.items.begin(), inventory.items.end(), random);
    return view;
  }

  void check_restoring(const JobState& next, const QuiescingView& view) {
    ASSERT_EQ(next.phase, JobPhase::restoring);
    // R is just what looking at every slot finds.
    ASSERT_EQ(next.resume, recoverable_in(planned_));
    ASSERT_EQ(next.cold, next.resume == Step(0));
    ASSERT_TRUE(!next.cold || known() == Step(0)) << "silent replay from zero";
    const bool is_refused = next.verdict.find("that was wished is refused") != std::string::npos;
    ASSERT_EQ(next.verdict.empty() || is_refused, next.resume >= known() || is_refused) << next.verdict;
    ASSERT_EQ(next.lineage.back(), (LineageEntry{next.generation, next.resume}));
    ASSERT_EQ(next.plan_digest, digest_of(next.sources, next.resume));
    // I2: one owner a seat, one node's worth of seats a life, one life a node.
    std::map<NodeLife, std::set<std::uint32_t>> positions;
    std::set<NodeId> ids;
    ASSERT_EQ(next.seats.size(), next_before_.size());
    for (std::uint32_t seat = 0; seat < next.seats.size(); ++seat) {
      const Member& member = next.seats[seat];
      ASSERT_EQ(member.seat, Seat(seat));
      ASSERT_EQ(before_of(member), next_before_[seat]);
      if (worlds_.smaller + worlds_.larger + worlds_.turned == 0) {
        ASSERT_EQ(member.local_index, seat - first_seat_of(positions_[seat]));
      }
      ASSERT_FALSE(contains(next.evicted, member.life)) << "an evicted life sits again";
      positions[member.life].insert(next_positions_[seat]);
      if (!changes_world_ && member.life != state_.seats[seat].life) {
        ASSERT_TRUE(contains(state_.evicted, state_.seats[seat].life)) << "a survivor lost its seat";
        ASSERT_TRUE(std::any_of(view.nodes.begin(), view.nodes.end(),
                                [&](const NodeRecord& r) { return r.life == member.life; }));
      }
    }
    ASSERT_EQ(positions.size(), next_positions_.back() + 1);
    for (const auto& [life, held] : positions) {
      ASSERT_EQ(held.size(), 1u);
      ASSERT_TRUE(ids.insert(life.node).second);
    }
    for (std::uint32_t seat = 0; seat < next.seats.size(); ++seat) {
      const auto sources = sources_of(next.sources, Seat(seat));
      Extents extents;
      for (const Source& source : sources) {
        check_source(next, source, Seat(seat));
        extents.push_back(source.extent);
      }
      ASSERT_TRUE(holes_in(extents).empty()) << "sources that don't have all";
      if (std::ranges::none_of(extents, &Extent::is_whole)) ++joined_;
    }
  }

  void check_source(const JobState& next, const Source& source, Seat seat) {
    ASSERT_EQ(source.seat, seat);
    if (next.cold) {
      ASSERT_EQ(source.kind, SourceKind::nothing);
      return;
    }
    ASSERT_NE(source.kind, SourceKind::nothing);
    ASSERT_EQ(source.step, next.resume);
    ASSERT_TRUE(is_survivor(state_, source.from) || contains(lingering_, source.from)) << "a source on an evicted node";
    const Slots& slots = nodes_.at(source.from).memory.at({next_before_[seat.value], source.kind});
    const auto slot = std::find_if(slots.begin(), slots.end(), [&](const Slot& s) {
      return s.generation == source.slot_generation && s.step == source.step && s.state == SlotState::sealed;
    });
    ASSERT_NE(slot, slots.end()) << "a source that is not sealed";
    ASSERT_TRUE(valid(*slot)) << "a source of an abandoned history";
    for (Half half = 0; half < kHalves.size(); ++half)
      ASSERT_FALSE(source.extent.overlaps(kHalves[half]) &&
                   struck(source.from, next_before_[seat.value], source.kind, *slot, half))
          << "a struck source";
  }

  void check_failed(const JobState& next) {
    ASSERT_NE(next.verdict, "");
    if (next.verdict.find("cannot go on: no healthy node is free") == 0) {
      ASSERT_FALSE(options_.wait_for_spare);
      return;
    }
    ASSERT_EQ(recoverable(), Step(0)) << next.verdict;
    if (survivors_of(state_).empty()) return;
    ASSERT_GT(known(), Step(0)) << next.verdict;
    // Named are just the seats that the best step from there on lacks.
    Step best = known();
    for (std::uint64_t step = known().value; step <= history_.size(); ++step)
      if (copies(Step(step)) > copies(best)) best = Step(step);
    for (std::uint32_t seat = 0; seat < seat_count(); ++seat) {
      const Seat goes_by = before(Seat(seat));
      const std::string by = goes_by == Seat(seat) ? "" : text(" (before: seat ", goes_by, ")");
      const bool named =
          next.verdict.find(text("seat ", seat, by, ": no sealed copy of step ", best, " ")) != std::string::npos;
      ASSERT_EQ(named, !has_copy(goes_by, best)) << next.verdict;
    }
  }

  Options options_;
  Choices& choices_;
  JobSpec spec_;
  JobState state_;
  std::vector<std::uint32_t> positions_;  // by seat, in the generation's topology
  std::vector<Seat> before_;              // by seat: by what its state goes
  std::vector<Seat> first_;
  std::vector<Seat> world_;  // that is looked at: seats before
  bool changes_world_ = false;
  std::vector<Seat> planned_;  // seats before, of which the next state's step is chosen
  std::vector<Seat> next_before_;
  std::vector<std::uint32_t> next_positions_;
  std::vector<NodeLife> leaving_;  // nothing is read from them
  Worlds worlds_;
  std::uint64_t topologies_ = 0;
  std::map<NodeLife, Node> nodes_;
  std::vector<Generation> history_;  // [s-1]: the generation that computed step s
  Step committed_;                   // the fact
  std::vector<Inventory> inventories_;
  std::vector<NodeLife> holders_;
  std::vector<NodeLife> lingering_;  // those that have reported
  bool reads_lingering_ = false;
  std::set<std::tuple<NodeLife, Seat, SourceKind, Step, Extent>> tried_;
  std::uint64_t joined_ = 0;
  std::uint32_t events_left_ = 0;
  std::int64_t holder_deaths_left_ = 0;
  bool commit_owed_ = false;  // as many have died since the last commit as the policy covers
  std::uint64_t incarnation_ = 1;
  std::uint64_t selves_ = 0;
  std::uint64_t decisions_ = 0;
};

std::uint64_t cases_per_test(std::uint64_t usual) {
  const char* wanted = std::getenv("PAWL_MODEL_CASES");
  std::uint64_t cases = usual;
  return wanted != nullptr && parse_number(std::string_view(wanted), cases) ? cases : usual;
}

Options drawn(SeededChoices& choices) {
  Options options;
  options.replica_count = 1 + choices.pick(3) / 2;
  options.node_count = options.replica_count + 1 + choices.pick(3);
  options.seats_per_node = 1 + choices.pick(2);
  options.spare_count = choices.pick(3);
  options.epochs = 1 + choices.pick(4);
  options.events_max = choices.pick(5);
  return options;
}

TEST(RecoveryModel, WithinThePolicyEveryCommittedStepIsRecovered) {
  const std::uint64_t cases = cases_per_test(12000);
  std::uint64_t topologies = 0;
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    SeededChoices choices(seed);
    World world(drawn(choices), choices);
    ASSERT_NO_FATAL_FAILURE(world.live()) << "seed " << seed;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    topologies += world.topologies();
  }
  EXPECT_GT(topologies, cases / 10) << "the world must change between generations";
}

// Seats vanish, come back and change their order, in any recovery, under whatever else happens.
void expect_worlds(bool within_policy, std::uint64_t cases) {
  World::Worlds all;
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    SeededChoices choices(seed * 104'729);
    Options options = drawn(choices);
    options.worlds = true;
    options.within_policy = within_policy;
    World world(options, choices);
    ASSERT_NO_FATAL_FAILURE(world.live()) << "seed " << seed;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    all.smaller += world.worlds().smaller;
    all.larger += world.worlds().larger;
    all.turned += world.worlds().turned;
    all.refused += world.worlds().refused;
  }
  std::printf("%s\n", text("worlds: ", all.smaller, " smaller, ", all.larger, " larger, ", all.turned, " turned, ",
                           all.refused, " refused")
                          .c_str());
  if (cases < 1000) return;
  EXPECT_GT(all.smaller, cases / 20);
  EXPECT_GT(all.larger, 0u);
  EXPECT_GT(all.turned, cases / 20);
  EXPECT_GT(all.refused, cases / 20);
}

TEST(RecoveryModel, WithinThePolicyAnotherWorldLosesNoCommittedStep) {
  expect_worlds(true, cases_per_test(12000));
}

TEST(RecoveryModel, BeyondThePolicyAnotherWorldIsWhatIsReallyThere) {
  expect_worlds(false, cases_per_test(12000));
}

TEST(RecoveryModel, BeyondThePolicyItGoesBackOrRefusesByWhatIsReallyThere) {
  const std::uint64_t cases = cases_per_test(20000);
  std::uint64_t recovered = 0;
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    SeededChoices choices(seed * 7919);
    Options options = drawn(choices);
    options.within_policy = false;
    if (choices.rarely(6)) options.replica_count = 0;
    options.wait_for_spare = !choices.rarely(4);
    World world(options, choices);
    ASSERT_NO_FATAL_FAILURE(world.live()) << "seed " << seed;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    (world.state().phase == JobPhase::running ? recovered : refused) += 1;
  }
  if (cases > 1000) {  // the walk must see both ends often
    EXPECT_GT(recovered, cases / 10);
    EXPECT_GT(refused, cases / 10);
  }
}

void walk_all(Options options, std::uint64_t least) {
  AllChoices choices;
  std::uint64_t walks = 0;
  std::uint64_t joined = 0;
  do {
    World world(options, choices);
    ASSERT_NO_FATAL_FAILURE(world.live()) << "choices " << choices.sequence();
    ASSERT_FALSE(testing::Test::HasFailure()) << "choices " << choices.sequence();
    joined += world.joined();
    ++walks;
  } while (choices.advance());
  EXPECT_GE(walks, least);
  EXPECT_EQ(joined > 0, options.halves_lack);
}

TEST(RecoveryModel, EveryWalkOfTwoNodesWithinThePolicy) {
  Options options;
  options.spare_count = 2;
  options.events_max = 2;
  walk_all(options, 5000);
}

// The second begins before anything was committed after the first.
TEST(RecoveryModel, EveryWalkOfTwoRecoveriesOfTwoNodesWithinThePolicy) {
  Options options;
  options.epochs = 2;
  options.events_max = 0;
  walk_all(options, 5000);
}

TEST(RecoveryModel, EveryWalkOfThreeNodesThatHoldEverythingThreeTimesWithinThePolicy) {
  Options options;
  options.node_count = 3;
  options.replica_count = 2;
  options.spare_count = 2;
  options.events_max = 1;
  walk_all(options, 5000);
}

TEST(RecoveryModel, EveryWalkOfTwoNodesBeyondThePolicy) {
  Options options;
  options.events_max = 2;
  options.within_policy = false;
  walk_all(options, 5000);
}

// Each recovery of each walk ends in every world: as it is, turned around, without any one seat, as it was first.
TEST(RecoveryModel, EveryWalkOfThreeNodesIntoEveryWorld) {
  Options options;
  options.node_count = 3;
  options.events_max = 1;
  options.worlds = true;
  walk_all(options, 2000);
}

TEST(RecoveryModel, EveryWalkOfTwoNodesOfTwoSeatsIntoEveryWorld) {
  Options options;
  options.seats_per_node = 2;
  options.events_max = 0;
  options.worlds = true;
  walk_all(options, 2000);
}

// Nobody has all of a seat, and two together do.
TEST(RecoveryModel, EveryWalkOfThreeNodesWhoseReplicasLackHalves) {
  Options options;
  options.node_count = 3;
  options.replica_count = 2;
  options.spare_count = 2;
  options.events_max = 0;
  options.within_policy = false;
  options.halves_lack = true;
  walk_all(options, 5000);
}

TEST(RecoveryModel, EveryWalkOfThreeNodesWithOneFurtherDeath) {
  Options options;
  options.node_count = 3;
  options.events_max = 1;
  options.within_policy = false;
  walk_all(options, 5000);
}

}  // namespace
}  // namespace pawl::job
