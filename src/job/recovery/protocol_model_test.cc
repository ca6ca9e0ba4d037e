// The slot protocol, searched exhaustively: every interleaving of two and of three seats on a ring with one replica, and of
// three with two; and long walks by a seed where there are too many.
//
// The model's memory is slot words; what decides is the shipped code: choose_slot (the gate), report_of, combine,
// advance, plan_restore, in_lineage, append_lineage. Nothing orders the seats but the protocol itself: no collective
// anywhere. A state is packed into four words; breadth first, so that a counter-example is the shortest one.
//
// What may happen, at any instant: a window opens, waits for a slot, is captured, is void; a replica is opened, sealed,
// abandoned, acknowledged (late); a seat's report reaches the root (late); a seat learns the root's progress (late, any
// older one meanwhile); as many nodes as there are replicas die (their memory is gone), until the next commit, at once or
// one after the other; a recovery begins without a
// death; nodes freeze one by one while the others still run; the leader decides; spares, empty at first, are filled
// from their sources; nodes thaw one by one; a death in the middle of that, or another fault, opens a further
// generation over the same slots; a recovery ends in another world, turned around or without one of its seats, whose node leaves with
// all that it has. With pins, any step is pinned where that is allowed, and let go of; and a trainer that has chosen a slot
// opens it later.
//
// What must hold in every state: the greatest committed step (the one that was resumed from is, by decree) can be
// recovered now and after as many (further) deaths as the policy has left; the root commits only what every seat holds, and calls nothing void
// that was committed; nobody overwrites a pinned slot.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "job/persist/persist_round.h"
#include "job/recovery/lineage.h"
#include "job/recovery/planner.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

constexpr std::uint32_t kSlots = 2;
constexpr std::uint32_t kOwnSlotsMax = 3;
constexpr std::size_t kPinWalkMax = 400;  // pinned and let go of again, a walk never ends
constexpr std::uint32_t kSeatsMax = 3;
constexpr std::uint32_t kGenerationsMax = 3;
constexpr std::uint32_t kReplicasMax = 2;

struct Options {
  std::uint32_t seats = 2;
  std::uint32_t replicas = 1;  // with two the root combines what is so now: late reports would not fit into a state
  std::uint32_t last_step = 4;
  std::uint32_t last_generation = 2;
  bool stale_reports = true;           // the root combines whatever arrived last from each seat; else what is so now
  bool late_acknowledgements = false;  // on their way for a while; a late report is as good
  bool own_gate = true;
  bool replica_gate = true;
  bool spurious = true;           // recoveries without a death
  bool redundant_resume = true;   // else the greatest whole step, as if no copies were promised
  bool worlds = false;            // a recovery may end in another one
  bool renumbered = true;         // the planner is told of it
  bool kept_until_commit = true;  // what the world before had of the step to go on from
  std::uint32_t own_slots = kSlots;
  bool pins = false;        // only of one replica, without stale reports
  bool ask_may_pin = true;  // else a step is pinned whatever is known to be committed
  bool gate_sees_pins = true;
};

enum class Phase : std::uint8_t { idle, waiting, capturing, chosen };
enum class Mode : std::uint8_t { running, quiescing, restoring };

struct Copy {  // a slot
  std::uint8_t generation = 0, step = 0, state = 0;
  std::array<std::uint8_t, kReplicasMax> acknowledged{};  // by each holder: 1 on its way, 2 arrived
  bool pinned = false;                                    // of an own one
  bool chosen = false;                                    // the trainer is about to open it
  bool operator==(const Copy&) const = default;
};
using Slots = std::array<Copy, kSlots>;
using OwnSlots = std::array<Copy, kOwnSlotsMax>;  // the first Options::own_slots of them

struct Node {
  bool alive = true, frozen = false;
  bool member = true;  // of the world; who is none has nothing, and comes back never
  Phase phase = Phase::idle;
  std::uint8_t step = 0;  // of the trainer: its greatest window
  Progress known;
  OwnSlots own;
  std::array<Slots, kReplicasMax> replica;  // [j]: of the node j + 1 before it in the first world
  SeatReport report;                        // the last that reached the root
};

struct State {
  std::array<Node, kSeatsMax> nodes;
  std::uint8_t generation = 1;  // in which windows open
  std::uint8_t pending = 1;     // of the recovery, when not running
  Mode mode = Mode::running;
  std::uint8_t resume = 0;                                                // as decided last
  std::uint8_t base = 0;                                                  // where this generation began
  std::array<std::uint8_t, kGenerationsMax + 1> lineage{15, 15, 15, 15};  // [g]: R; 15: none
  Progress root;
  std::uint8_t held = 0;    // bit s: step s of this generation was held by every seat at some instant
  std::uint8_t deaths = 0;  // since the last commit
  bool turned = false;      // the ring goes the other way round
  bool rearranged = false;  // this world has not run yet
};

using Packed = std::array<std::uint64_t, 4>;

class Bits {
 public:
  void put(std::uint64_t value, int width) {
    if (value >> width != 0 || used_ + width > 64) std::abort();  // the model has outgrown its encoding
    bits_ |= value << used_;
    used_ += width;
  }
  [[nodiscard]] std::uint64_t take(int width) {
    const std::uint64_t value = bits_ >> used_ & ((std::uint64_t{1} << width) - 1);
    used_ += width;
    return value;
  }
  explicit Bits(std::uint64_t bits = 0) : bits_(bits) {}
  [[nodiscard]] std::uint64_t value() const { return bits_; }

 private:
  std::uint64_t bits_;
  int used_ = 0;
};

// With pins there is one holder.
std::uint64_t copy_bits(const Copy& copy) {
  const std::uint64_t last = copy.acknowledged[1] | std::uint64_t{copy.pinned} | std::uint64_t{copy.chosen} << 1;
  return copy.generation | copy.step << 2 | copy.state << 5 | copy.acknowledged[0] << 7 | last << 9;
}
Copy copy_of(std::uint64_t bits, bool pins) {
  Copy copy{static_cast<std::uint8_t>(bits & 3),
            static_cast<std::uint8_t>(bits >> 2 & 7),
            static_cast<std::uint8_t>(bits >> 5 & 3),
            {static_cast<std::uint8_t>(bits >> 7 & 3), 0}};
  if (pins) {
    copy.pinned = (bits >> 9 & 1) != 0;
    copy.chosen = (bits >> 10 & 1) != 0;
  } else {
    copy.acknowledged[1] = static_cast<std::uint8_t>(bits >> 9 & 3);
  }
  return copy;
}

void put(Bits& bits, Progress progress) {
  bits.put(progress.committed.value, 3);
  bits.put(progress.voided, 3);
}
Progress take_progress(Bits& bits) {
  const Step committed(bits.take(3));
  return Progress{committed, static_cast<std::uint32_t>(bits.take(3))};
}

void put(Bits& bits, std::span<const Copy> slots, int width) {  // slots are interchangeable: the lesser first
  std::array<std::uint64_t, kOwnSlotsMax> all{};
  std::ranges::transform(slots, all.begin(), copy_bits);
  std::sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(slots.size()));
  for (std::size_t i = 0; i < slots.size(); ++i) bits.put(all[i], width);
}
void take(Bits& bits, std::span<Copy> slots, int width, bool pins) {
  for (Copy& copy : slots) copy = copy_of(bits.take(width), pins);
}

int own_width(const Options& options) {
  return options.replicas == 1 && !options.pins ? 9 : 11;
}
std::uint32_t replicas_kept(const Options& options) {
  return options.worlds ? kReplicasMax : options.replicas;
}
bool keeps_reports(const Options& options) {
  return options.replicas == 1 && !options.worlds && !options.pins;
}

std::uint64_t pack(const Node& node, const Options& options) {
  Bits bits;
  bits.put(node.alive, 1);
  bits.put(node.frozen, 1);
  bits.put(node.member, 1);
  bits.put(static_cast<std::uint64_t>(node.phase), 2);
  bits.put(node.step, 3);
  put(bits, node.known);
  put(bits, std::span(node.own).first(options.own_slots), own_width(options));
  for (std::uint32_t j = 0; j < replicas_kept(options); ++j) put(bits, node.replica[j], 7);
  if (!keeps_reports(options)) return bits.value();
  put(bits, node.report.known);
  bits.put(node.report.held, 5);
  bits.put(node.report.voided, 5);
  return bits.value();
}

Node unpack_node(std::uint64_t word, const Options& options) {
  Bits bits(word);
  Node node;
  node.alive = bits.take(1) != 0;
  node.frozen = bits.take(1) != 0;
  node.member = bits.take(1) != 0;
  node.phase = static_cast<Phase>(bits.take(2));
  node.step = static_cast<std::uint8_t>(bits.take(3));
  node.known = take_progress(bits);
  take(bits, std::span(node.own).first(options.own_slots), own_width(options), options.pins);
  for (std::uint32_t j = 0; j < replicas_kept(options); ++j) take(bits, node.replica[j], 7, options.pins);
  if (!keeps_reports(options)) return node;
  node.report.known = take_progress(bits);
  node.report.held = bits.take(5);
  node.report.voided = bits.take(5);
  return node;
}

Packed pack(const State& state, const Options& options) {
  Bits bits;
  bits.put(state.generation, 2);
  bits.put(state.pending, 2);
  bits.put(static_cast<std::uint64_t>(state.mode), 2);
  bits.put(state.resume, 3);
  bits.put(state.base, 3);
  for (std::uint32_t g = 2; g <= kGenerationsMax; ++g) bits.put(state.lineage[g], 4);
  put(bits, state.root);
  bits.put(state.held, 6);
  bits.put(state.deaths, 2);
  bits.put(state.turned, 1);
  bits.put(state.rearranged, 1);
  std::array<std::uint64_t, kSeatsMax> words{};
  for (std::uint32_t i = 0; i < options.seats; ++i) words[i] = pack(state.nodes[i], options);
  std::array<std::uint64_t, kSeatsMax> least = words;  // the ring may be turned
  for (std::uint32_t turn = 1; turn < options.seats; ++turn) {
    std::rotate(words.begin(), words.begin() + 1, words.begin() + options.seats);
    least = std::min(least, words);
  }
  return {least[0], least[1], least[2], bits.value()};
}

State unpack(const Packed& packed, const Options& options) {
  State state;
  Bits bits(packed[3]);
  state.generation = static_cast<std::uint8_t>(bits.take(2));
  state.pending = static_cast<std::uint8_t>(bits.take(2));
  state.mode = static_cast<Mode>(bits.take(2));
  state.resume = static_cast<std::uint8_t>(bits.take(3));
  state.base = static_cast<std::uint8_t>(bits.take(3));
  for (std::uint32_t g = 2; g <= kGenerationsMax; ++g) state.lineage[g] = static_cast<std::uint8_t>(bits.take(4));
  state.root = take_progress(bits);
  state.held = static_cast<std::uint8_t>(bits.take(6));
  state.deaths = static_cast<std::uint8_t>(bits.take(2));
  state.turned = bits.take(1) != 0;
  state.rearranged = bits.take(1) != 0;
  for (std::uint32_t i = 0; i < options.seats; ++i) state.nodes[i] = unpack_node(packed[i], options);
  return state;
}

// Packed states in order of discovery, found again by an open-addressed table of their numbers.
class StateSet {
 public:
  StateSet() : table_(std::size_t{1} << 16, kNone) {}
  bool insert(const Packed& packed, std::uint32_t parent) {
    if ((states_.size() + 1) * 3 > table_.size() * 2) grow();
    std::uint32_t& place = find(packed);
    if (place != kNone) return false;
    place = static_cast<std::uint32_t>(states_.size());
    states_.push_back(packed);
    parents_.push_back(parent);
    return true;
  }
  [[nodiscard]] std::size_t size() const { return states_.size(); }
  [[nodiscard]] const Packed& at(std::size_t i) const { return states_[i]; }
  [[nodiscard]] std::uint32_t parent(std::size_t i) const { return parents_[i]; }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  static std::uint64_t hash(const Packed& packed) {
    std::uint64_t h = 0;
    for (const std::uint64_t word : packed) {
      h = (h ^ word) * 0x9E37'79B9'7F4A'7C15;
      h ^= h >> 32;
    }
    return h;
  }
  std::uint32_t& find(const Packed& packed) {
    std::size_t i = hash(packed) & (table_.size() - 1);
    while (table_[i] != kNone && states_[table_[i]] != packed) i = (i + 1) & (table_.size() - 1);
    return table_[i];
  }
  void grow() {
    table_.assign(table_.size() * 2, kNone);
    for (std::uint32_t i = 0; i < states_.size(); ++i) find(states_[i]) = i;
  }
  std::vector<Packed> states_;
  std::vector<std::uint32_t> parents_;
  std::vector<std::uint32_t> table_;
};

SlotWord word_of(const Copy& copy, bool frozen) {
  return SlotWord{Generation(copy.generation), Step(copy.step), static_cast<SlotState>(copy.state), frozen};
}
bool is_sealed(const Copy& copy) {
  return copy.state == 2;
}
bool is_dirty(const Copy& copy) {
  return copy.state == 1;
}
bool is(const Copy& copy, std::uint8_t generation, std::uint8_t step) {
  return copy.state != 0 && copy.generation == generation && copy.step == step;
}

constexpr const char* kLost = "LOST";
constexpr const char* kOverwritten = "WRONG: a pinned slot is overwritten";

class Model {
 public:
  explicit Model(Options options) : options_(options) {}

  struct Outcome {
    std::size_t states = 0;
    std::size_t decisions = 0;  // recoveries decided
    std::size_t worlds = 0;     // into which one may have ended besides
    std::uint32_t greatest_commit = 0;
    std::size_t pinned_everywhere = 0;  // states in which every seat has a pin
    std::optional<std::string> broken;  // what, and the shortest way there
  };

  Outcome run() {
    State start;
    for (Node& node : start.nodes) node.report = SeatReport{};
    add(start, 0);
    for (std::size_t at = 0; at < set_.size() && !outcome_.broken; ++at) {
      now_ = static_cast<std::uint32_t>(at);
      state_ = unpack(set_.at(at), options_);
      expand();
    }
    outcome_.states = set_.size();
    return outcome_;
  }

  // By a seed: one of what may happen next, again and again until nothing may.
  Outcome walk(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    walking_ = true;
    next_.push_back(State{});
    while (!next_.empty() && !outcome_.broken && (!options_.pins || way_.size() < kPinWalkMax)) {
      state_ = next_[random() % next_.size()];
      way_.push_back(state_);
      const Packed here = packed(state_);
      next_.clear();
      for (calm_ = random() % 8 != 0;; calm_ = false) {  // a fault is one of few that may happen: nothing would commit
        expand();
        std::erase_if(next_, [&](const State& next) { return packed(next) == here; });  // else a walk never ends
        if (!next_.empty() || !calm_) break;
      }
    }
    outcome_.states = way_.size();
    return outcome_;
  }

 private:
  // --- What may happen next

  void expand() {
    for (const std::uint32_t i : ring(state_)) {
      if (state_.nodes[i].alive && !state_.nodes[i].frozen) {
        train(i);
        for (std::uint32_t j = 0; j < options_.replicas; ++j) spread(i, j);
        report_and_learn(i);
        if (options_.pins) pin(i);
      }
      if (options_.pins) unpin(i);
      die(i);
      freeze_or_thaw(i);
      restore(i);
    }
    if (!options_.stale_reports) lead();
    if (options_.spurious && state_.mode != Mode::quiescing) suspect();
    decide();
    go_on();
  }

  // --- Who sits where: nodes in the order of their seats

  [[nodiscard]] std::vector<std::uint32_t> ring(const State& state) const {
    std::vector<std::uint32_t> nodes;
    for (std::uint32_t i = 0; i < options_.seats; ++i)
      if (state.nodes[i].member) nodes.push_back(i);
    if (state.turned) std::ranges::reverse(nodes);
    return nodes;
  }
  [[nodiscard]] std::uint32_t holder(const State& state, std::uint32_t i, std::uint32_t j) const {
    const std::vector<std::uint32_t> nodes = ring(state);
    const auto at = static_cast<std::size_t>(std::ranges::find(nodes, i) - nodes.begin());
    return nodes[(at + 1 + j) % nodes.size()];
  }
  // Where node h has the replica of what was node i's seat.
  [[nodiscard]] std::uint32_t shelf(std::uint32_t h, std::uint32_t i) const {
    return (h + options_.seats - i - 1) % options_.seats;
  }

  void train(std::uint32_t i) {
    const Node& node = state_.nodes[i];
    if (node.phase == Phase::idle && node.step < options_.last_step) {
      State next = state_;
      ++next.nodes[i].step;
      open_window(next, i);
    }
    if (node.phase == Phase::waiting) {
      open_window(state_, i);  // a slot came free
      State next = state_;
      next.nodes[i].phase = Phase::idle;  // the fence: void
      add(next);
    }
    if (node.phase == Phase::chosen) {
      const auto chosen = std::ranges::find_if(node.own, &Copy::chosen);
      open_slot(state_, i, static_cast<std::size_t>(chosen - node.own.begin()));
    }
    if (node.phase == Phase::capturing) {
      for (const bool in_time : {true, false}) {
        State next = state_;
        next.nodes[i].phase = Phase::idle;
        for (Copy& copy : next.nodes[i].own) {
          if (!is_dirty(copy)) continue;
          if (in_time)
            copy.state = 2;
          else
            copy = Copy{};
        }
        add(next);
      }
    }
  }

  void open_window(State next, std::uint32_t i) {
    Node& node = next.nodes[i];
    const auto slot = choose(std::span(node.own).first(options_.own_slots), node.known, options_.own_gate, node.step);
    if (slot && !options_.pins) return open_slot(next, i, *slot);
    node.phase = slot ? Phase::chosen : Phase::waiting;
    if (slot) node.own[*slot].chosen = true;
    add(next);
  }

  // A pin doesn't change the word, so whoever has chosen the slot before opens it.
  void open_slot(State next, std::uint32_t i, std::size_t slot) {
    Node& node = next.nodes[i];
    for (const Copy& copy : node.own) expect(!is(copy, next.generation, node.step), "a step is captured twice");
    expect(!node.own[slot].pinned, kOverwritten);
    node.phase = Phase::capturing;
    node.own[slot] = Copy{.generation = next.generation, .step = node.step, .state = 1};
    add(next);
  }

  // One at a time. Of any step: which one is ordered is not of interest here.
  void pin(std::uint32_t i) {
    const OwnSlots& own = state_.nodes[i].own;
    if (std::ranges::any_of(own, &Copy::pinned)) return;
    for (std::size_t s = 0; s < own.size(); ++s) {
      if (!is_sealed(own[s]) || (options_.ask_may_pin && !may_pin(state_.nodes[i].known, Step(own[s].step)))) continue;
      State next = state_;
      next.nodes[i].own[s].pinned = true;
      add(next);
    }
  }

  void unpin(std::uint32_t i) {
    State next = state_;
    for (Copy& copy : next.nodes[i].own) copy.pinned = false;
    if (next.nodes[i].own != state_.nodes[i].own) add(next);
  }

  // The replica stream of seat i to its holder j.
  void spread(std::uint32_t i, std::uint32_t j) {
    const std::uint32_t h = holder(state_, i, j);
    const std::uint32_t s = shelf(h, i);
    const Node& owner = state_.nodes[i];
    const Slots& replica = state_.nodes[h].replica[s];
    if (!state_.nodes[h].alive || state_.nodes[h].frozen) return;
    const auto owner_has = [&](const Copy& copy) {
      return std::ranges::any_of(owner.own, [&](const Copy& own) { return is(own, copy.generation, copy.step); });
    };
    const bool busy = std::ranges::any_of(replica, [&](const Copy& c) { return is_dirty(c) && owner_has(c); });
    for (std::uint32_t r = 0; r < kSlots; ++r) {  // the owner has given up what was being sent
      if (!is_dirty(replica[r]) || owner_has(replica[r])) continue;
      State next = state_;
      next.nodes[h].replica[s][r] = Copy{};
      add(next);
    }
    for (std::size_t o = 0; o < owner.own.size(); ++o) {
      const Copy& own = owner.own[o];
      if (own.state == 0 || own.generation != state_.generation) continue;
      if (own.acknowledged[j] == 1) {
        State next = state_;
        next.nodes[i].own[o].acknowledged[j] = 2;
        add(next);
      }
      if (own.acknowledged[j] != 0) continue;
      const auto there = std::ranges::find_if(replica, [&](const Copy& c) { return is(c, own.generation, own.step); });
      if (there == replica.end()) {
        if (!busy) open_replica(h, s, own);
      } else if (is_dirty(*there) && is_sealed(own)) {
        State next = state_;
        next.nodes[h].replica[s][static_cast<std::size_t>(there - replica.begin())].state = 2;
        next.nodes[i].own[o].acknowledged[j] = options_.late_acknowledgements ? 1 : 2;
        add(next);
      }
    }
  }

  void open_replica(std::uint32_t h, std::uint32_t s, const Copy& own) {
    State next = state_;
    Node& holder = next.nodes[h];
    const auto slot = choose(holder.replica[s], holder.known, options_.replica_gate, own.step);
    if (!slot) return;  // busy: asked again later
    holder.replica[s][*slot] = Copy{.generation = own.generation, .step = own.step, .state = 1};
    add(next);
  }

  [[nodiscard]] std::optional<std::uint32_t> choose(std::span<const Copy> slots, Progress known, bool gate,
                                                    std::uint8_t step) const {
    std::vector<SlotWord> words;  // as Slot::word_for_gate gives them
    for (const Copy& copy : slots) words.push_back(word_of(copy, copy.pinned && options_.gate_sees_pins));
    if (!gate) known.committed = Step(kStepMax);  // as the daemon's test flag does
    return choose_slot(words, known, Generation(state_.generation), Step(step));
  }

  [[nodiscard]] SeatReport report(const Node& node) const {
    std::array<SlotView, kOwnSlotsMax> views;
    for (std::size_t s = 0; s < views.size(); ++s) {
      views[s] = SlotView{word_of(node.own[s], false), is_sealed(node.own[s]) && is_everywhere(node.own[s])};
    }
    const bool is_open = node.phase == Phase::waiting || node.phase == Phase::chosen;
    const Step reached(is_open ? node.step - 1 : node.step);
    return report_of(views, reached, Generation(state_.generation), node.known);
  }

  void report_and_learn(std::uint32_t i) {
    if (options_.stale_reports) {
      State next = state_;
      next.nodes[i].report = report(state_.nodes[i]);
      SeatReport all = next.nodes[0].report;
      for (std::uint32_t n = 1; n < options_.seats; ++n) all = combine(all, next.nodes[n].report);
      next.root = advance(next.root, all);
      add(next);
    }
    State next = state_;
    next.nodes[i].known = join(state_.nodes[i].known, state_.root);
    if (next.nodes[i].known.committed > Step(next.resume)) drop_others(next, i, false);
    add(next);
  }

  void lead() {
    const std::vector<std::uint32_t> nodes = ring(state_);
    for (const std::uint32_t n : nodes) {
      if (!state_.nodes[n].alive || state_.nodes[n].frozen) return;
    }
    SeatReport all = report(state_.nodes[nodes[0]]);
    for (const std::uint32_t n : nodes) all = combine(all, report(state_.nodes[n]));
    State next = state_;
    next.root = advance(next.root, all);
    add(next);
  }

  // --- Faults and recovery

  void open_generation(State& next) const {
    if (next.mode != Mode::quiescing) next.pending = static_cast<std::uint8_t>(next.pending + 1);
    next.mode = Mode::quiescing;
  }

  [[nodiscard]] bool may_open_generation() const {
    return state_.mode == Mode::quiescing || state_.pending < options_.last_generation;
  }

  void die(std::uint32_t i) {
    if (calm_ || state_.deaths == options_.replicas || !state_.nodes[i].alive || !may_open_generation()) return;
    State next = state_;
    const SeatReport last = next.nodes[i].report;
    next.nodes[i] = Node{};
    next.nodes[i].alive = false;
    next.nodes[i].frozen = true;
    next.nodes[i].report = last;  // it may still lie at the root
    ++next.deaths;
    open_generation(next);
    add(next);
  }

  void suspect() {
    if (calm_ || !may_open_generation()) return;
    State next = state_;
    open_generation(next);
    add(next);
  }

  void freeze_or_thaw(std::uint32_t i) {
    const Node& node = state_.nodes[i];
    State next = state_;
    if (state_.mode == Mode::quiescing && node.alive && !node.frozen) {
      next.nodes[i].frozen = true;
      if (node.phase == Phase::chosen) next.nodes[i].phase = Phase::waiting;  // the word has changed
      for (Copy& copy : next.nodes[i].own) copy.chosen = false;
      add(next);
    }
    if (state_.mode == Mode::running && node.alive && node.frozen) {
      Node& thawed = next.nodes[i];
      const std::vector<LineageEntry> lineage = lineage_of(state_);
      for (const std::span<Copy> slots :
           {std::span<Copy>(thawed.own), std::span<Copy>(thawed.replica[0]), std::span<Copy>(thawed.replica[1])}) {
        for (Copy& copy : slots) {
          if (!is_sealed(copy) || !in_lineage(lineage, Generation(copy.generation), Step(copy.step))) copy = Copy{};
          copy.acknowledged = {};
        }
      }
      drop_others(next, i, options_.kept_until_commit);
      thawed.frozen = false;
      thawed.phase = Phase::idle;
      thawed.step = state_.resume;
      thawed.known = Progress{Step(state_.resume)};
      add(next);
    }
  }

  // As each node does: only its seat's and its wards' arenas stay; and what has the step to go on from, until a later one is
  // committed.
  void drop_others(State& state, std::uint32_t n, bool still_needed) const {
    if (!options_.worlds) return;
    for (std::uint32_t i = 0; i < options_.seats; ++i) {
      if (i == n) continue;
      Slots& slots = state.nodes[n].replica[shelf(n, i)];
      bool is_ward = false;
      for (std::uint32_t j = 0; state.nodes[i].member && j < options_.replicas; ++j)
        is_ward = is_ward || holder(state, i, j) == n;
      const bool is_needed = still_needed && state.nodes[i].member && usable(state, slots, state.resume);
      if (!is_ward && !is_needed) slots = Slots{};
    }
  }

  void decide() {
    if (state_.mode != Mode::quiescing) return;
    for (const std::uint32_t n : ring(state_)) {
      if (state_.nodes[n].alive && !state_.nodes[n].frozen) return;
    }
    ++outcome_.decisions;
    const Plan plan = plan_of(state_);
    const std::uint32_t wanted = options_.redundant_resume ? redundant(state_) : recoverable(state_, 0);
    expect(plan.resume.value == wanted, "the planner differs from the plain search");
    go_into(state_, plan);
    if (options_.worlds) decide_worlds(plan);
  }

  // Each that decide_restore would take: turned around, or without one of the seats.
  void decide_worlds(const Plan& own) {
    std::vector<State> worlds;
    State turned = state_;
    turned.turned = !turned.turned;
    worlds.push_back(turned);
    const std::vector<std::uint32_t> nodes = ring(state_);
    for (const std::uint32_t leaving : nodes) {
      if (nodes.size() <= options_.replicas + 1) break;
      State smaller = state_;
      const SeatReport last = smaller.nodes[leaving].report;
      if (smaller.nodes[leaving].alive && ++smaller.deaths > options_.replicas) continue;
      smaller.nodes[leaving] = Node{};
      smaller.nodes[leaving].alive = smaller.nodes[leaving].member = false;
      smaller.nodes[leaving].frozen = true;
      smaller.nodes[leaving].report = last;
      worlds.push_back(smaller);
    }
    for (const State& world : worlds) {
      std::vector<Seat> wished;
      for (const std::uint32_t n : ring(world)) wished.emplace_back(n);
      const Plan plan = plan_of(state_, &world, wished);
      if (plan.resume < own.committed || plan.resume < own.resume) continue;
      ++outcome_.worlds;
      State into = world;
      into.rearranged = true;
      go_into(into, plan);
    }
  }

  void go_into(const State& world, const Plan& plan) {
    State next = world;
    next.resume = static_cast<std::uint8_t>(plan.resume.value);
    next.mode = Mode::restoring;
    std::vector<LineageEntry> lineage = lineage_of(state_);
    append_lineage(lineage, {Generation(state_.pending), plan.resume});
    next.lineage.fill(15);
    for (const LineageEntry& entry : lineage)
      next.lineage[entry.generation.value] = static_cast<std::uint8_t>(entry.resume.value);
    for (const std::uint32_t n : ring(next)) {
      if (!next.nodes[n].alive) seat_spare(next.nodes[n]);
    }
    add(next);
  }

  // Its memory is empty, and it survives or dies like any other from now on.
  static void seat_spare(Node& node) {
    const SeatReport last = node.report;
    node = Node{};
    node.frozen = true;
    node.report = last;
  }

  // A seat without step R of its own (its node is a spare, or its slot was lost) fetches it from the planned source.
  void restore(std::uint32_t i) {
    if (state_.mode != Mode::restoring) return;
    if (!state_.nodes[i].alive || state_.resume == 0 || has_resume(state_, i)) return;
    State next = state_;
    Node& node = next.nodes[i];
    const Plan plan = plan_of(state_);
    const std::vector<std::uint32_t> nodes = ring(state_);
    const Seat seat(static_cast<std::uint32_t>(std::ranges::find(nodes, i) - nodes.begin()));
    const auto sources = sources_of(plan.sources, seat);
    if (!expect(!sources.empty() && plan.resume.value == state_.resume, "a planned source has gone")) return;
    const Source& source = sources.front();
    if (!expect(has_slot_of(i, source), "WRONG: it is another seat's state that is read")) return;
    // Whatever is of least use: nothing whole, then the older step; as slot_to_fill.
    const auto use = [](const Copy& c) { return c.pinned ? 255 : is_sealed(c) ? c.step : 0; };
    const auto slot = std::ranges::min_element(std::span(node.own).first(options_.own_slots), {}, use);
    expect(!slot->pinned, kOverwritten);
    *slot = Copy{.generation = static_cast<std::uint8_t>(source.slot_generation.value),
                 .step = static_cast<std::uint8_t>(source.step.value),
                 .state = 2};
    add(next);
  }

  // Of what is node i's seat, where the source says.
  [[nodiscard]] bool has_slot_of(std::uint32_t i, const Source& source) const {
    const std::uint32_t at = source.from.node.value;
    const Node& node = state_.nodes[at];
    if (at == i && source.kind == SourceKind::replica) return false;
    const std::span<const Copy> slots =
        source.kind == SourceKind::own_arena ? std::span<const Copy>(node.own) : node.replica[shelf(at, i)];
    return (source.kind == SourceKind::replica || at == i) && std::ranges::any_of(slots, [&](const Copy& c) {
             return is_sealed(c) && c.generation == source.slot_generation.value && c.step == source.step.value;
           });
  }

  void go_on() {
    if (state_.mode != Mode::restoring) return;
    State next = state_;
    for (const std::uint32_t n : ring(state_)) {
      if (!state_.nodes[n].alive || (state_.resume > 0 && !has_resume(state_, n))) return;
      next.nodes[n].report = SeatReport{Progress{Step(state_.resume)}, 0, 0};
    }
    next.mode = Mode::running;
    next.generation = state_.pending;
    next.base = state_.resume;
    next.root = Progress{Step(state_.resume)};
    next.held = 0;
    next.rearranged = false;
    if (state_.resume == 0) next.deaths = 0;
    add(next);
  }

  [[nodiscard]] static bool has_resume(const State& state, std::uint32_t i) {
    const std::vector<LineageEntry> lineage = lineage_of(state);
    return std::ranges::any_of(state.nodes[i].own, [&](const Copy& c) {
      return is_sealed(c) && c.step == state.resume && in_lineage(lineage, Generation(c.generation), Step(c.step));
    });
  }

  [[nodiscard]] static std::vector<LineageEntry> lineage_of(const State& state) {
    std::vector<LineageEntry> lineage;
    for (std::uint32_t g = 2; g <= kGenerationsMax; ++g) {
      if (state.lineage[g] != 15) lineage.push_back({Generation(g), Step(state.lineage[g])});
    }
    return lineage;
  }

  // For a wished world without those that leave.
  [[nodiscard]] Plan plan_of(const State& state, const State* world = nullptr,
                             std::span<const Seat> wished = {}) const {
    std::vector<Inventory> inventories;
    std::vector<NodeLife> evicted;
    std::vector<Member> seats;
    for (const std::uint32_t n : ring(state)) {
      const Seat seat(static_cast<std::uint32_t>(seats.size()));
      seats.push_back({seat, {NodeId(n), Incarnation(1)}, "", 0});
      if (options_.renumbered && seat != Seat(n)) seats.back().before = Seat(n);
    }
    for (std::uint32_t n = 0; n < options_.seats; ++n) {
      const Node& node = state.nodes[n];
      const NodeLife life{NodeId(n), Incarnation(1)};
      if (!node.alive || (world != nullptr && !world->nodes[n].member)) {
        evicted.push_back(life);
        continue;
      }
      Inventory inventory;
      inventory.life = life;
      inventory.committed = node.known.committed;
      inventory.generation = Generation(state.pending);
      const auto list = [&](const Copy& copy, Seat seat, SourceKind kind) {
        if (copy.state == 0) return;
        inventory.items.push_back(
            {seat, kind, Generation(copy.generation), Step(copy.step), static_cast<SlotState>(copy.state), 1});
      };
      for (const Copy& copy : node.own) list(copy, Seat(n), SourceKind::own_arena);
      for (std::uint32_t j = 0; j < (options_.worlds ? options_.seats - 1 : options_.replicas); ++j) {
        const Seat ward((n + options_.seats - 1 - j) % options_.seats);
        for (const Copy& copy : node.replica[j]) list(copy, ward, SourceKind::replica);
      }
      inventories.push_back(std::move(inventory));
    }
    const std::vector<LineageEntry> lineage = lineage_of(state);
    PlanInput input;
    input.seat_count = static_cast<std::uint32_t>(seats.size());
    input.inventories = inventories;
    input.lineage = lineage;
    input.evicted = evicted;
    input.committed = Step(state.base);
    if (options_.redundant_resume) input.seats = seats;
    if (world != nullptr) input.wished = wished;
    input.replica_count = options_.replicas;
    return plan_restore(input);
  }

  // --- What must hold

  // Whether a copy is sealed at `step` of the history that goes on. Beside the planner, on plain memory.
  [[nodiscard]] static bool usable(const State& state, const Copy& copy, std::uint32_t step) {
    if (!is_sealed(copy) || copy.step != step) return false;
    for (std::uint32_t g = copy.generation + 1u; g <= kGenerationsMax; ++g) {
      if (state.lineage[g] < step) return false;
    }
    return true;
  }
  [[nodiscard]] static bool usable(const State& state, std::span<const Copy> slots, std::uint32_t step) {
    return std::ranges::any_of(slots, [&](const Copy& copy) { return usable(state, copy, step); });
  }

  // Whether every seat has `step` somewhere, should the nodes of `dead` (bits) be gone too.
  [[nodiscard]] bool whole(const State& state, std::uint32_t step, std::uint32_t dead) const {
    for (const std::uint32_t i : ring(state)) {
      bool found = (dead >> i & 1) == 0 && usable(state, state.nodes[i].own, step);
      for (std::uint32_t h = 0; h < options_.seats && !found; ++h)
        found = h != i && (dead >> h & 1) == 0 && usable(state, state.nodes[h].replica[shelf(h, i)], step);
      if (!found) return false;
    }
    return true;
  }

  // The greatest such step.
  [[nodiscard]] std::uint32_t recoverable(const State& state, std::uint32_t dead) const {
    for (std::uint32_t step = options_.last_step; step > 0; --step) {
      if (whole(state, step, dead)) return step;
    }
    return 0;
  }

  // The step to resume from: from the floor up, the next that is whole and lacks no copy that the one before it has,
  // among the living. A bit a copy.
  [[nodiscard]] std::uint32_t redundant(const State& state) const {
    std::uint32_t floor = state.base;
    for (std::uint32_t n = 0; n < options_.seats; ++n) {
      const std::uint64_t known = state.nodes[n].known.committed.value;
      if (state.nodes[n].alive) floor = std::max(floor, static_cast<std::uint32_t>(known));
    }
    for (std::uint32_t g = kGenerationsMax; g > 1; --g) {
      if (state.lineage[g] == 15) continue;
      floor = std::max(floor, std::uint32_t{state.lineage[g]});
      break;
    }
    std::uint32_t resume = 0;
    std::uint32_t missing = floor == 0 ? 0 : ~0u;
    for (std::uint32_t step = std::max(floor, 1u); step <= options_.last_step; ++step) {
      std::uint32_t lacks = 0;
      for (const std::uint32_t n : ring(state)) {
        if (state.nodes[n].alive && !usable(state, state.nodes[n].own, step)) lacks |= 1u << n;
        for (std::uint32_t j = 0; j < options_.replicas; ++j) {
          const std::uint32_t h = holder(state, n, j);
          if (state.nodes[h].alive && !usable(state, state.nodes[h].replica[shelf(h, n)], step))
            lacks |= 1u << (kSeatsMax * (1 + j) + n);
        }
      }
      if (!whole(state, step, 0) || (lacks & ~missing) != 0) continue;
      resume = step;
      missing = lacks;
    }
    return resume;
  }

  bool expect(bool holds, const char* what) {
    if (!holds && !outcome_.broken) {
      outcome_.broken = std::string(what) + way_to(now_);
      if (checked_ != nullptr) *outcome_.broken += "\n  then " + text_of(*checked_);
    }
    return holds;
  }

  [[nodiscard]] bool is_everywhere(const Copy& copy) const {
    return std::all_of(copy.acknowledged.begin(), copy.acknowledged.begin() + options_.replicas,
                       [](std::uint8_t acknowledged) { return acknowledged == 2; });
  }

  void note_held(State& state) const {
    if (state.rearranged) return;  // what is left of the last generation was held in another world
    for (std::uint32_t step = 1; step <= options_.last_step; ++step) {
      bool all = true;
      for (const std::uint32_t i : ring(state)) {
        all = all && std::ranges::any_of(state.nodes[i].own, [&](const Copy& c) {
                return is_sealed(c) && is(c, state.generation, static_cast<std::uint8_t>(step)) && is_everywhere(c);
              });
      }
      if (all) state.held |= static_cast<std::uint8_t>(1u << step);
    }
    if (state.held != 0 && state.mode == Mode::running) state.deaths = 0;
  }

  void check(const State& state) {
    checked_ = &state;
    // A lineage's greatest committed step: of this generation, else where it went on.
    std::uint32_t committed = state.base;
    for (std::uint32_t step = 1; step <= options_.last_step; ++step) {
      if ((state.held >> step & 1) != 0) committed = std::max(committed, step);
    }
    outcome_.greatest_commit = std::max(outcome_.greatest_commit, committed);
    const bool all_pinned = std::ranges::all_of(
        ring(state), [&](std::uint32_t n) { return std::ranges::any_of(state.nodes[n].own, &Copy::pinned); });
    outcome_.pinned_everywhere += all_pinned ? 1 : 0;
    expect(state.root.committed.value <= committed, "the root knows of a commit that is none");
    expect(state.root.committed.value == state.base || (state.held >> state.root.committed.value & 1) != 0,
           "the root has committed a step that not every seat held");
    for (std::uint64_t step = state.root.committed.value + 1; step <= state.root.settled().value; ++step) {
      expect((state.held >> step & 1) == 0, "the root calls void what was committed");
    }
    expect(recoverable(state, 0) >= committed, "LOST: a committed step cannot be recovered");
    for (std::uint32_t dead = 1; dead < 1u << options_.seats; ++dead) {
      std::uint32_t deaths = 0;
      for (std::uint32_t n = 0; n < options_.seats; ++n)
        if ((dead >> n & 1) != 0) deaths += state.nodes[n].alive ? 1 : kSeatsMax;
      if (state.deaths + deaths <= options_.replicas)
        expect(recoverable(state, dead) >= committed,
               "LOST: a committed step would not survive what the policy covers");
    }
    checked_ = nullptr;
  }

  // States that no future can tell apart become one: what the gate gives up is as good as empty (never the last copy of
  // a commit, or check() would have found it), and a report says nothing beside what the root knows already.
  void simplify(State& state) const {
    for (std::uint32_t i = 0; i < options_.seats; ++i) {
      Node& node = state.nodes[i];
      const SeatReport known{state.root, ~std::uint64_t{0}, 0};
      if (options_.stale_reports && state.mode != Mode::restoring) node.report = combine(node.report, known);
      if (!node.alive || node.frozen) continue;
      for (Copy& copy : node.own) {
        // Nor can it be pinned any more.
        if (is_sealed(copy) && !copy.pinned && options_.ask_may_pin && may_overwrite(word_of(copy, false), node.known))
          copy = Copy{.chosen = copy.chosen};
      }
      for (Slots& slots : node.replica)
        for (Copy& copy : slots)
          if (is_sealed(copy) && may_overwrite(word_of(copy, false), node.known)) copy = Copy{};
    }
  }

  void add(const State& next) { add(next, now_); }
  void add(State next, std::uint32_t parent) {
    note_held(next);
    check(next);
    simplify(next);
    if (walking_)
      next_.push_back(next);
    else
      (void)set_.insert(packed(next), parent);
  }
  [[nodiscard]] Packed packed(const State& state) const { return pack(state, options_); }

  [[nodiscard]] std::string way_to(std::uint32_t at) const {
    if (walking_) {
      std::string out;
      for (const State& state : way_) out += "\n  " + text_of(state);
      return out;
    }
    std::vector<std::uint32_t> way{at};
    while (way.back() != 0) way.push_back(set_.parent(way.back()));
    std::reverse(way.begin(), way.end());
    std::string out;
    for (const std::uint32_t each : way) out += "\n  " + text_of(unpack(set_.at(each), options_));
    return out;
  }

  [[nodiscard]] std::string text_of(const State& state) const {
    static constexpr const char* kModes[] = {"running", "quiescing", "restoring"};
    std::string out =
        text(kModes[static_cast<int>(state.mode)], " g", state.generation, " next g", state.pending, " R", state.resume,
             " root ", state.root.committed, "+", state.root.voided, state.turned ? " turned" : "");
    for (std::uint32_t i = 0; i < options_.seats; ++i) {
      const Node& node = state.nodes[i];
      out += text(" | ", node.member ? "" : "no member ", node.alive ? "" : "dead ", node.frozen ? "frozen " : "",
                  "step ", node.step, " knows ", node.known.committed, "+", node.known.voided, " own");
      for (const Copy& c : node.own) out += copy_text(c);
      for (std::uint32_t j = 0; j < (options_.worlds ? options_.seats - 1 : options_.replicas); ++j) {
        out += " replica";
        for (const Copy& c : node.replica[j]) out += copy_text(c);
      }
    }
    return out;
  }
  [[nodiscard]] static std::string copy_text(const Copy& c) {
    if (c.state == 0) return c.chosen ? " -?" : " -";
    return text(' ', c.generation, '.', c.step, is_sealed(c) ? "" : "~", c.pinned ? "!" : "", c.chosen ? "?" : "",
                std::string(c.acknowledged[0] + c.acknowledged[1], '+'));
  }

  Options options_;
  StateSet set_;
  State state_;
  std::uint32_t now_ = 0;
  const State* checked_ = nullptr;
  Outcome outcome_;
  bool walking_ = false, calm_ = false;  // calm: no fault
  std::vector<State> next_, way_;
};

Model::Outcome search(const char* name, Options options) {
  Model::Outcome outcome = Model(options).run();
  std::printf("%s: %zu states, %zu recoveries decided, greatest commit %u%s\n", name, outcome.states, outcome.decisions,
              outcome.greatest_commit, outcome.broken ? ", BROKEN" : "");
  return outcome;
}

TEST(SlotProtocol, TwoSeatsLoseNothingInAnyInterleaving) {
  const auto outcome = search("two seats, four steps", {.seats = 2, .last_step = 4, .last_generation = 1});
  EXPECT_FALSE(outcome.broken) << *outcome.broken;
  EXPECT_EQ(outcome.greatest_commit, 4u);
}

TEST(SlotProtocol, TwoSeatsLoseNothingThroughARecovery) {
  const auto outcome = search("two seats, three steps, a recovery", {.seats = 2, .last_step = 3, .last_generation = 2});
  EXPECT_FALSE(outcome.broken) << *outcome.broken;
  EXPECT_EQ(outcome.greatest_commit, 3u);
  EXPECT_GT(outcome.decisions, 0u);
}

TEST(SlotProtocol, TwoSeatsLoseNothingThroughTwoRecoveriesAndADeathInOne) {
  const auto outcome =
      search("two seats, two steps, two recoveries", {.seats = 2, .last_step = 2, .last_generation = 3});
  EXPECT_FALSE(outcome.broken) << *outcome.broken;
  EXPECT_GT(outcome.decisions, 0u);
}

TEST(SlotProtocol, TwoSeatsLoseNothingThroughTwoRecoveriesAndACommitBetween) {
  const auto outcome = search("two seats, three steps, two recoveries",
                              {.seats = 2, .last_step = 3, .last_generation = 3, .stale_reports = false});
  EXPECT_FALSE(outcome.broken) << *outcome.broken;
  EXPECT_EQ(outcome.greatest_commit, 3u);
}

TEST(SlotProtocol, LateAcknowledgementsChangeNothing) {
  const auto outcome =
      search("two seats, three steps, a recovery, late acknowledgements",
             {.seats = 2, .last_step = 3, .last_generation = 2, .stale_reports = false, .late_acknowledgements = true});
  EXPECT_FALSE(outcome.broken) << *outcome.broken;
}

TEST(SlotProtocol, ThreeSeatsLoseNothingThroughARecovery) {
  const auto outcome = search("three seats, two steps, a recovery",
                              {.seats = 3, .last_step = 2, .last_generation = 2, .stale_reports = false});
  EXPECT_FALSE(outcome.broken) << *outcome.broken;
  EXPECT_EQ(outcome.greatest_commit, 2u);
}

// --- Pins. Two slots are enough to overwrite one; that a third one keeps the job going is pin_model_test's.

Model::Outcome search_pins(const char* name, Options options) {
  options.pins = true;
  options.stale_reports = false;
  return search(name, options);
}

TEST(SlotProtocol, APinnedSlotKeepsItsStepThroughARecovery) {
  const auto outcome =
      search_pins("two seats, three steps, a death, pins", {.last_step = 3, .last_generation = 2, .spurious = false});
  EXPECT_FALSE(outcome.broken) << *outcome.broken;
  EXPECT_EQ(outcome.greatest_commit, 3u);
  EXPECT_GT(outcome.decisions, 0u);
  EXPECT_GT(outcome.pinned_everywhere, 1000u);
}

TEST(SlotProtocol, LongWalksWithPinsInThreeSlotsLoseNothing) {
  Model::Outcome all;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    const Options options{.seats = 3,
                          .last_step = 4,
                          .last_generation = 3,
                          .stale_reports = false,
                          .own_slots = kOwnSlotsMax,
                          .pins = true};
    const auto outcome = Model(options).walk(seed);
    ASSERT_FALSE(outcome.broken) << "seed " << seed << ": " << *outcome.broken;
    all.states += outcome.states;
    all.decisions += outcome.decisions;
    all.greatest_commit += outcome.greatest_commit;
    all.pinned_everywhere += outcome.pinned_everywhere;
  }
  std::printf("walks with pins: %zu states, %zu recoveries decided, %u commits, all pinned in %zu\n", all.states,
              all.decisions, all.greatest_commit, all.pinned_everywhere);
  EXPECT_GT(all.decisions, 3000u);
  EXPECT_GT(all.greatest_commit, 3000u);
  EXPECT_GT(all.pinned_everywhere, 1000u);
}

// Meant to fail: somebody may have chosen the slot before.
TEST(SlotProtocol, AStepThatIsPinnedWhateverThePageShowsIsOverwritten) {
  const auto outcome = search_pins("pins set too late", {.last_step = 3, .last_generation = 1, .ask_may_pin = false});
  ASSERT_TRUE(outcome.broken);
  EXPECT_TRUE(outcome.broken->starts_with(kOverwritten)) << *outcome.broken;
}

TEST(SlotProtocol, AGateThatLooksAtNoPinOverwritesOne) {
  const auto outcome =
      search_pins("a gate that sees no pins", {.last_step = 3, .last_generation = 1, .gate_sees_pins = false});
  ASSERT_TRUE(outcome.broken);
  EXPECT_TRUE(outcome.broken->starts_with(kOverwritten)) << *outcome.broken;
}

// --- Other worlds

TEST(SlotProtocol, ThreeSeatsLoseNothingWhereARecoveryEndsInAnotherWorld) {
  const auto outcome =
      search("three seats, one step, two recoveries, other worlds",
             {.seats = 3, .last_step = 1, .last_generation = 3, .stale_reports = false, .worlds = true});
  EXPECT_FALSE(outcome.broken) << *outcome.broken;
  EXPECT_EQ(outcome.greatest_commit, 1u);
  EXPECT_GT(outcome.worlds, 0u);
}

Model::Outcome walk_through_worlds(Options options, std::uint64_t walks) {
  Model::Outcome all;
  options.worlds = true;
  options.stale_reports = false;
  for (std::uint64_t seed = 1; seed <= walks && !all.broken; ++seed) {
    const auto outcome = Model(options).walk(seed);
    all.states += outcome.states;
    all.decisions += outcome.decisions;
    all.worlds += outcome.worlds;
    all.greatest_commit += outcome.greatest_commit;
    all.broken = outcome.broken;
  }
  std::printf("walks through worlds: %zu states, %zu recoveries decided, %zu other worlds, %u commits%s\n", all.states,
              all.decisions, all.worlds, all.greatest_commit, all.broken ? ", BROKEN" : "");
  return all;
}

TEST(SlotProtocol, LongWalksThroughWorldsLoseNothing) {
  for (const std::uint32_t replicas : {1u, 2u}) {
    const auto all =
        walk_through_worlds({.seats = 3, .replicas = replicas, .last_step = 4, .last_generation = 3}, 3000);
    EXPECT_FALSE(all.broken) << *all.broken;
    EXPECT_GT(all.worlds, 3000u);
    EXPECT_GT(all.greatest_commit, 1500u);
  }
}

// Meant to fail: what the numbers of the seats before are for.
TEST(SlotProtocol, APlannerThatTakesNewNumbersForOldOnesIsFound) {
  const auto all = walk_through_worlds({.seats = 3, .last_step = 4, .last_generation = 3, .renumbered = false}, 8000);
  EXPECT_TRUE(all.broken);
}

// Meant to fail: what the copies that stay until the next commit are for.
TEST(SlotProtocol, AWorldThatDropsTheOldOnesCopiesAtOnceLosesAStep) {
  const auto all =
      walk_through_worlds({.seats = 3, .last_step = 4, .last_generation = 3, .kept_until_commit = false}, 8000);
  ASSERT_TRUE(all.broken);
  EXPECT_EQ(all.broken->substr(0, 4), kLost) << *all.broken;
}

TEST(SlotProtocol, ThreeSeatsWithTwoReplicasLoseNothingWhenTwoDie) {
  const auto outcome = search(
      "three seats, two replicas, one step, a recovery",
      {.seats = 3, .replicas = 2, .last_step = 1, .last_generation = 2, .stale_reports = false, .spurious = false});
  EXPECT_FALSE(outcome.broken) << *outcome.broken;
  EXPECT_EQ(outcome.greatest_commit, 1u);
  EXPECT_GT(outcome.decisions, 0u);
}

TEST(SlotProtocol, LongWalksOfThreeSeatsWithTwoReplicasLoseNothing) {
  std::size_t states = 0, decisions = 0;
  std::uint32_t commits = 0;
  for (std::uint64_t seed = 1; seed <= 10'000; ++seed) {
    const auto outcome =
        Model({.seats = 3, .replicas = 2, .last_step = 4, .last_generation = 3, .stale_reports = false}).walk(seed);
    ASSERT_FALSE(outcome.broken) << "seed " << seed << ": " << *outcome.broken;
    states += outcome.states;
    decisions += outcome.decisions;
    commits += outcome.greatest_commit;
  }
  std::printf("walks: %zu states, %zu recoveries decided, %u commits\n", states, decisions, commits);
  EXPECT_GT(decisions, 10'000u);
  EXPECT_GT(commits, 5'000u);
}

// Meant to fail: the alarm must ring.
TEST(SlotProtocol, WithoutTheGateAStepIsLost) {
  const auto outcome = search("no gate at all", {.last_generation = 1, .own_gate = false, .replica_gate = false});
  ASSERT_TRUE(outcome.broken);
  EXPECT_EQ(outcome.broken->substr(0, 4), kLost) << *outcome.broken;
}

TEST(SlotProtocol, WalksWithoutTheGateLoseAStep) {
  bool lost = false;
  for (std::uint64_t seed = 1; seed <= 1000 && !lost; ++seed) {
    const auto outcome = Model({.seats = 3,
                                .replicas = 2,
                                .last_generation = 1,
                                .stale_reports = false,
                                .own_gate = false,
                                .replica_gate = false})
                             .walk(seed);
    lost = outcome.broken && outcome.broken->starts_with(kLost);
  }
  EXPECT_TRUE(lost);
}

TEST(SlotProtocol, TwoSlotsWithALocalFenceOnlyLoseAStep) {
  for (const std::uint32_t seats : {2u, 3u}) {
    const auto outcome = search("a seat's own slots without the gate",
                                {.seats = seats, .last_generation = 1, .stale_reports = false, .own_gate = false});
    ASSERT_TRUE(outcome.broken) << seats << " seats";
    EXPECT_EQ(outcome.broken->substr(0, 4), kLost) << *outcome.broken;
  }
}

// What the planner's rule is for. The greatest whole step may lie nowhere twice; going on from it gives up the older
// one that does, and one death loses what was committed. Found by this search.
TEST(SlotProtocol, ResumingFromTheGreatestWholeStepLosesAStep) {
  const auto outcome = search("resuming from the greatest whole step",
                              {.last_step = 3, .last_generation = 2, .redundant_resume = false});
  ASSERT_TRUE(outcome.broken);
  EXPECT_EQ(outcome.broken->substr(0, 4), kLost) << *outcome.broken;
}

}  // namespace
}  // namespace pawl::job
