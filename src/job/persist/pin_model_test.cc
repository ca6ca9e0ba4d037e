// Pins, searched exhaustively: every interleaving of two seats that capture, commit and overwrite steps while one of
// them is ordered, pinned and let go of again.
//
// The model's memory is slot words and pins; what decides is the shipped code: choose_slot (the gate), report_of, combine,
// advance, may_pin. Faults are left out: another generation ends an attempt, and a pin is then only a slot that is not used for
// a while. A trainer looks at its page, then at the slots, then swaps the word: others may do anything in between.
//
// What must hold in every state: a pinned slot has the step that was pinned, sealed. And with three slots the job goes on,
// whatever is pinned for however long: where no step is given up and no pin let go of, nothing ends before the last step is
// committed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "job/persist/persist_round.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

constexpr Generation kRunning(1);
constexpr std::uint8_t kNone = 255;

struct Options {
  std::uint32_t seats = 2;
  std::uint32_t slots = 3;
  std::uint8_t last_step = 4;
  std::uint8_t ordered = 1;
  bool pin_before_show = true;  // else the page is written first
  bool ask_may_pin = true;      // else it is pinned whatever the pages show
  bool fences_wait = false;     // for a slot; else they may give the step up at any instant
  bool lets_go = true;          // of pins
};

struct Copy {  // sealed, it is acknowledged
  std::uint8_t step = 0, state = 0;
  auto operator<=>(const Copy&) const = default;
};

enum class Phase : std::uint8_t { idle, looked, chosen, capturing };

struct Node {
  std::vector<Copy> own;
  Phase phase = Phase::idle;
  std::uint8_t step = 0;        // of the trainer: its greatest window
  std::uint8_t chosen = kNone;  // a slot
  Copy expected;                // and what was in it
  std::uint64_t seen = 0;       // progress, as the trainer has read it
  std::uint64_t page = 0;       // as it stands there
  std::uint64_t known = 0;      // to the daemon; what it is about to show
  bool knows_order = false, failed = false, let_go = false;
  std::uint8_t pinned = kNone;  // a slot
  auto operator<=>(const Node&) const = default;
};

struct State {
  std::vector<Node> nodes;
  std::uint64_t root = 0;
  auto operator<=>(const State&) const = default;
};

class PinModel {
 public:
  explicit PinModel(Options options) : options_(options) {}

  // Empty: what must hold does.
  std::string run() {
    State start;
    start.nodes.resize(options_.seats);
    for (Node& node : start.nodes) node.own.resize(options_.slots);
    add(start);
    while (!todo_.empty() && broken_.empty()) {
      const State state = todo_.back();
      todo_.pop_back();
      expand(state);
    }
    return broken_;
  }
  [[nodiscard]] std::size_t states() const { return seen_.size(); }
  [[nodiscard]] std::size_t pinned_everywhere() const { return pinned_everywhere_; }
  [[nodiscard]] std::size_t ends() const { return ends_; }
  [[nodiscard]] Step least_commit_at_an_end() const { return least_at_an_end_; }

 private:
  void add(const State& state) {
    is_end_ = is_end_ && state == now_;
    if (!seen_.insert(state).second) return;
    todo_.push_back(state);
    check(state);
  }

  void check(const State& state) {
    bool all = true;
    for (const Node& node : state.nodes) {
      all = all && node.pinned != kNone;
      if (node.pinned == kNone) continue;
      const Copy& copy = node.own[node.pinned];
      if (copy.step != options_.ordered || copy.state != 2)
        broken_ = text("a pinned slot has step ", int{copy.step}, " in state ", int{copy.state});
    }
    pinned_everywhere_ += all ? 1 : 0;
  }

  [[nodiscard]] SlotWord word_of(const Node& node, std::size_t slot, bool for_gate) const {
    const Copy& copy = node.own[slot];
    return {kRunning, Step(copy.step), static_cast<SlotState>(copy.state), for_gate && node.pinned == slot};
  }

  void expand(const State& state) {
    now_ = state;
    is_end_ = true;
    for (std::size_t i = 0; i < state.nodes.size(); ++i) {
      train(state, i);
      learn(state, i);
      persist(state, i);
    }
    advance_root(state);
    if (!is_end_) return;
    ++ends_;
    least_at_an_end_ = std::min(least_at_an_end_, Progress::unpack(state.root).committed);
  }

  void train(const State& state, std::size_t i) {
    const Node& node = state.nodes[i];
    State next = state;
    Node& to = next.nodes[i];
    if (node.phase == Phase::idle && node.step < options_.last_step) {
      ++to.step;
      look(to);
      add(next);
    } else if (node.phase == Phase::looked) {
      std::vector<SlotWord> words;
      for (std::size_t s = 0; s < node.own.size(); ++s) words.push_back(word_of(node, s, true));
      const auto slot = choose_slot(words, Progress::unpack(node.seen), kRunning, Step(node.step));
      if (slot) {
        to.phase = Phase::chosen;
        to.chosen = static_cast<std::uint8_t>(*slot);
        to.expected = node.own[*slot];
        add(next);
      } else {
        look(to);  // once more
        add(next);
        if (options_.fences_wait) return;
        to = node;
        to.phase = Phase::idle;  // the fence: void
        add(next);
      }
    } else if (node.phase == Phase::chosen) {
      if (node.own[node.chosen].step == node.expected.step && node.own[node.chosen].state == node.expected.state) {
        to.own[node.chosen] = {node.step, 1};
        to.phase = Phase::capturing;
      } else {
        look(to);
      }
      to.chosen = kNone;
      to.expected = {};
      add(next);
    } else if (node.phase == Phase::capturing) {
      for (Copy& copy : to.own)
        if (copy.state == 1) copy.state = 2;
      to.phase = Phase::idle;
      add(next);
    }
  }

  static void look(Node& node) {
    node.seen = node.page;
    node.phase = Phase::looked;
  }

  void advance_root(const State& state) {
    std::optional<SeatReport> all;
    for (const Node& node : state.nodes) {
      std::vector<SlotView> views;
      for (std::size_t s = 0; s < node.own.size(); ++s)
        views.push_back({word_of(node, s, false), node.own[s].state == 2});
      const bool open = node.phase == Phase::looked || node.phase == Phase::chosen;
      const SeatReport report =
          report_of(views, Step(node.step - (open ? 1u : 0u)), kRunning, Progress::unpack(node.known));
      all = all ? combine(*all, report) : report;
    }
    State next = state;
    next.root = advance(Progress::unpack(state.root), *all).pack();
    add(next);
  }

  // The daemon: first it knows, then it shows.
  void learn(const State& state, std::size_t i) {
    const Node& node = state.nodes[i];
    State next = state;
    Node& to = next.nodes[i];
    if (node.known == node.page && node.known != state.root) {
      to.known = join(Progress::unpack(node.known), Progress::unpack(state.root)).pack();
      if (options_.pin_before_show) consider_pin(to);
      add(next);
    } else if (node.known != node.page) {
      to.page = node.known;
      if (!options_.pin_before_show) {
        add(next);  // and only then
        return;
      }
      add(next);
    }
  }

  void persist(const State& state, std::size_t i) {
    const Node& node = state.nodes[i];
    State next = state;
    Node& to = next.nodes[i];
    if (!node.knows_order) {
      to.knows_order = true;
      consider_pin(to);
      add(next);
    }
    if (!options_.pin_before_show && node.knows_order && node.known == node.page) {
      to = node;
      consider_pin(to);
      add(next);
    }
    if (node.pinned != kNone && options_.lets_go) {
      to = node;
      to.pinned = kNone;
      to.let_go = true;
      add(next);
    }
  }

  // As Persist does: what the pages show is `page`, until `known` is written there.
  void consider_pin(Node& node) const {
    const Step step(options_.ordered);
    if (!node.knows_order || node.failed || node.let_go || node.pinned != kNone) return;
    if (Progress::unpack(node.known).settled() < step) return;
    if (options_.ask_may_pin && !may_pin(Progress::unpack(node.page), step)) {
      node.failed = true;
      return;
    }
    for (std::size_t s = 0; s < node.own.size(); ++s)
      if (node.own[s].state == 2 && node.own[s].step == options_.ordered) node.pinned = static_cast<std::uint8_t>(s);
    node.failed = node.pinned == kNone;
  }

  const Options options_;
  std::set<State> seen_;
  std::vector<State> todo_;
  std::string broken_;
  std::size_t pinned_everywhere_ = 0;
  State now_;
  bool is_end_ = false;  // nothing can happen any more
  std::size_t ends_ = 0;
  Step least_at_an_end_{kStepMax};
};

TEST(PinModel, APinnedStepStaysWhatItIsWhileLaterOnesAreCommitted) {
  PinModel model({});
  EXPECT_EQ(model.run(), "");
  EXPECT_GT(model.states(), 5'000u);
  EXPECT_GT(model.pinned_everywhere(), 100u) << "it is never pinned on all nodes";
}

TEST(PinModel, ThreeSlotsKeepTheJobGoingWhileOneIsPinned) {
  PinModel model({.fences_wait = true, .lets_go = false});
  EXPECT_EQ(model.run(), "");
  EXPECT_GT(model.pinned_everywhere(), 100u);
  EXPECT_GT(model.ends(), 0u);
  EXPECT_EQ(model.least_commit_at_an_end(), Step(4));
}

TEST(PinModel, WithTwoSlotsAPinStopsTheJob) {
  PinModel model({.slots = 2, .fences_wait = true, .lets_go = false});
  EXPECT_EQ(model.run(), "");
  EXPECT_EQ(model.least_commit_at_an_end(), Step(2));
}

TEST(PinModel, PinnedWhateverThePagesShowIsTooLate) {
  PinModel model({.ask_may_pin = false});
  EXPECT_NE(model.run(), "");
}

TEST(PinModel, PinnedAfterThePagesWereWrittenIsTooLate) {
  PinModel model({.pin_before_show = false, .ask_may_pin = false});
  EXPECT_NE(model.run(), "");
}

}  // namespace
}  // namespace pawl::job
