#include "job/redundancy/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <type_traits>
#include <vector>

namespace pawl::job {
namespace {

SlotWord word_of(std::uint64_t step, SlotState state, bool frozen = false, std::uint64_t generation = 1) {
  return SlotWord{Generation(generation), Step(step), state, frozen};
}
SlotWord sealed(std::uint64_t step) {
  return word_of(step, SlotState::sealed);
}
SlotWord dirty(std::uint64_t step) {
  return word_of(step, SlotState::dirty);
}

constexpr Generation kNow{1};

TEST(ProgressWord, PacksAndUnpacks) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const Progress progress{Step(random() & kStepMax), static_cast<std::uint32_t>(random() & kVoidedMax)};
    ASSERT_EQ(Progress::unpack(progress.pack()), progress);
  }
  EXPECT_EQ(Progress::unpack(0), Progress{});
}

TEST(ReuseGate, KeepsTheCommittedAndThePending) {
  const Progress progress{Step(10), 2};
  EXPECT_TRUE(may_overwrite(SlotWord{}, progress));
  EXPECT_TRUE(may_overwrite(sealed(9), progress));
  EXPECT_FALSE(may_overwrite(sealed(10), progress));
  EXPECT_TRUE(may_overwrite(sealed(11), progress));
  EXPECT_TRUE(may_overwrite(dirty(12), progress));
  EXPECT_FALSE(may_overwrite(sealed(13), progress));
  EXPECT_FALSE(may_overwrite(dirty(13), progress));
  EXPECT_FALSE(may_overwrite(word_of(9, SlotState::sealed, true), progress));
  EXPECT_FALSE(may_overwrite(word_of(0, SlotState::empty, true), progress));
  EXPECT_FALSE(may_overwrite(word_of(9, static_cast<SlotState>(3)), progress));
}

TEST(ReuseGate, ChoosesEmptyThenTheLeast) {
  const auto choose = [](std::vector<SlotWord> slots, Progress progress, std::uint64_t step) {
    return choose_slot(slots, progress, kNow, Step(step));
  };
  EXPECT_EQ(choose({sealed(1), SlotWord{}}, {Step(2)}, 3), 1u);
  EXPECT_EQ(choose({sealed(4), sealed(2), sealed(3)}, {Step(4)}, 5), 1u);
  EXPECT_EQ(choose({sealed(4), sealed(5)}, {Step(4)}, 6), std::nullopt);
  EXPECT_EQ(choose({sealed(4), sealed(5)}, {Step(4), 1}, 6), 1u);
  EXPECT_EQ(choose({SlotWord{}, dirty(5)}, {Step(4)}, 5), 1u);                                 // the sender came back
  EXPECT_EQ(choose({SlotWord{}, sealed(5)}, {Step(4)}, 5), std::nullopt);                      // it is there
  EXPECT_EQ(choose({word_of(5, SlotState::sealed, false, 0), SlotWord{}}, {Step(5)}, 5), 1u);  // another generation's
  EXPECT_EQ(choose({word_of(0, SlotState::empty, true), word_of(5, SlotState::dirty, true)}, {Step(9)}, 5),
            std::nullopt);
}

TEST(Report, SaysWhatIsHeldAndWhatIsVoid) {
  // Known: 10. Reached 15; holds 12, has 14 dirty; 11, 13 and 15 were void.
  const SlotView slots[] = {{sealed(12), true}, {dirty(14), false}};
  const SeatReport report = report_of(slots, Step(15), kNow, Progress{Step(10)});
  EXPECT_EQ(report.known, (Progress{Step(10), 1}));  // 11 is settled
  EXPECT_EQ(report.held, 0b0001u);                   // 12
  EXPECT_EQ(report.voided, 0b1010u);                 // 13 and 15
  // Another generation's slots say nothing: 12 and 14 are void then too.
  EXPECT_EQ(report_of(slots, Step(15), Generation(2), Progress{Step(10)}).known, (Progress{Step(10), 5}));
  // Not acknowledged everywhere: neither held nor void.
  const SlotView waiting[] = {{sealed(12), false}};
  EXPECT_EQ(report_of(waiting, Step(12), kNow, Progress{Step(11)}), (SeatReport{Progress{Step(11)}, 0, 0}));
}

TEST(Report, TheRootCommitsTheGreatestHeldByAll) {
  const SeatReport a{{Step(10)}, 0b0111, 0};
  const SeatReport b{{Step(10)}, 0b0010, 0b0001};
  EXPECT_EQ(advance({Step(10)}, combine(a, b)), Progress{Step(12)});
  EXPECT_EQ(advance({Step(10)}, combine(a, {{Step(10)}, 0, 0b0001})), (Progress{Step(10), 1}));
  EXPECT_EQ(advance({Step(14), 3}, combine(a, b)), (Progress{Step(14), 3}));       // never back
  EXPECT_EQ(advance({}, {Progress{Step(14), 3}, 0, 0}), (Progress{Step(14), 3}));  // a root that has forgotten
  EXPECT_EQ(advance({Step(10)}, combine({{Step(11)}, 1, 0}, {{Step(10)}, 2, 0})), Progress{Step(12)});
}

TEST(Report, FarBeyondTheWindowIsReachedInAFewRounds) {
  // pawld was away for a thousand steps: the seats are left with different steps, and 24 or 64 bits do not span them.
  const SlotView a[] = {{sealed(10), true}, {sealed(11), true}};
  const SlotView b[] = {{sealed(10), true}, {sealed(400), true}};
  Progress progress{Step(10)};
  int rounds = 0;
  while (progress != Progress{Step(10), 1000} && ++rounds < 10) {
    progress =
        advance(progress, combine(report_of(a, Step(1010), kNow, progress), report_of(b, Step(1010), kNow, progress)));
  }
  EXPECT_LE(rounds, 3);
  EXPECT_TRUE(may_overwrite(sealed(11), progress));
  EXPECT_TRUE(may_overwrite(sealed(400), progress));
  EXPECT_FALSE(may_overwrite(sealed(10), progress));
}

TEST(Report, OfTwoMomentsOfASubtreeBothAreTrue) {
  const SeatReport early{{Step(2)}, 0b0101, 0b0010}, late{{Step(4)}, 0b0010, 0b0100};
  const SeatReport both{{Step(4)}, 0b0011, 0b0100};
  EXPECT_EQ(merge(early, late), both);
  EXPECT_EQ(merge(late, early), both);
  EXPECT_EQ(merge(both, early), both);
}

TEST(Report, NumbersAtTheirEnds) {
  const SlotView none[] = {{SlotWord{}, false}};
  const SeatReport far = report_of(none, Step(kStepMax), kNow, Progress{});
  EXPECT_EQ(far.known, (Progress{Step(0), kVoidedMax}));
  EXPECT_EQ(far.voided, ~std::uint64_t{0});
  EXPECT_EQ(advance({}, far), (Progress{Step(0), kVoidedMax}));  // says less than it knows, nothing wrong
  const SeatReport other{{Step(1), kVoidedMax}, 1, 1};
  EXPECT_EQ(combine(far, other).known.committed, Step(1));
}

// The naive protocol on sets, beside the shipped code: seats seal, acknowledge and void at random, reports and progress
// travel late. What the code says is compared with what is so.
class RandomJob {
 public:
  RandomJob(std::uint64_t seed, std::size_t seat_count, std::size_t slot_count) : random_(seed), seats_(seat_count) {
    for (Member& seat : seats_) seat.slots.resize(slot_count);
  }

  void run(int events, bool quiet) {
    for (int i = 0; i < events && !testing::Test::HasFatalFailure(); ++i) {
      Member& seat = seats_[random_() % seats_.size()];
      switch (random_() % 7) {
        case 0:
        case 1:
          train(seat, quiet);
          break;
        case 2:
          seal_or_abandon(seat, quiet);
          break;
        case 3:
          acknowledge(seat);
          break;
        case 4:
          report(seat);
          break;
        case 5:
          if (quiet || random_() % 8 == 0) lead();
          break;
        case 6:
          if (quiet || random_() % 8 == 0) seat.known = join(seat.known, root_);
          break;
      }
    }
  }
  [[nodiscard]] std::uint64_t committed() const { return root_.committed.value; }
  [[nodiscard]] std::uint64_t truly_committed() const { return committed_.empty() ? 0 : *committed_.rbegin(); }
  void settle() {
    settling_ = true;
    for (int round = 0; round < 8; ++round) {
      for (Member& seat : seats_) report(seat);
      lead();
      for (Member& seat : seats_) seat.known = join(seat.known, root_);
    }
  }

 private:
  struct Member {
    std::vector<SlotView> slots;
    std::uint64_t step = 0, reached = 0;
    Progress known;
    std::vector<SeatReport> reports{{}};  // the last few; the root sees any of them
  };

  void train(Member& seat, bool quiet) {
    std::uint64_t least = seat.step;
    for (const Member& other : seats_) least = std::min(least, other.step);
    if (seat.step > least + 2) return;  // a collective somewhere
    for (SlotView& slot : seat.slots)
      if (slot.word.state == SlotState::dirty) seal(slot);  // fence
    std::vector<SlotWord> words;
    for (const SlotView& slot : seat.slots) words.push_back(slot.word);
    const std::uint64_t step = ++seat.step;
    const auto chosen = choose_slot(words, seat.known, kNow, Step(step));
    if (chosen && (quiet || random_() % 5 != 0)) {
      const SlotWord old = words[*chosen];
      // The gate, by sets: what goes is below a committed step, or can never be committed.
      if (old.state == SlotState::sealed && truly_committed() <= old.step.value) {
        ASSERT_TRUE(is_void(old.step.value)) << "step " << old.step.value;
      }
      seat.slots[*chosen] = {dirty(step), false};
    }
    seat.reached = step;
  }
  void seal(SlotView& slot) { slot.word.state = SlotState::sealed; }
  void seal_or_abandon(Member& seat, bool quiet) {
    for (SlotView& slot : seat.slots) {
      if (slot.word.state != SlotState::dirty) continue;
      if (!quiet && random_() % 4 == 0)
        slot = {};
      else
        seal(slot);
    }
  }
  void acknowledge(Member& seat) {
    for (SlotView& slot : seat.slots) slot.held_by_all = slot.held_by_all || slot.word.state == SlotState::sealed;
    for (const SlotView& mine : seat.slots) {
      const std::uint64_t step = mine.word.step.value;
      const auto holds = [&](const Member& m) {
        return std::ranges::any_of(m.slots,
                                   [&](const SlotView& s) { return s.held_by_all && s.word.step.value == step; });
      };
      if (mine.held_by_all && std::ranges::all_of(seats_, holds)) committed_.insert(step);
    }
  }
  [[nodiscard]] bool is_void(std::uint64_t step) const {
    if (committed_.contains(step)) return false;
    return std::ranges::any_of(seats_, [&](const Member& m) {
      return m.reached >= step && std::ranges::none_of(m.slots, [&](const SlotView& s) {
               return s.word.state != SlotState::empty && s.word.step.value == step;
             });
    });
  }
  void report(Member& seat) {
    seat.reports.push_back(report_of(seat.slots, Step(seat.reached), kNow, seat.known));
    if (seat.reports.size() > 3) seat.reports.erase(seat.reports.begin());
  }
  void lead() {
    SeatReport all = pick(seats_[0]);
    for (std::size_t i = 1; i < seats_.size(); ++i) all = combine(all, pick(seats_[i]));
    const Progress before = root_;
    root_ = advance(root_, all);
    ASSERT_GE(root_.committed, before.committed);
    ASSERT_TRUE(root_.committed == Step(0) || committed_.contains(root_.committed.value)) << root_.committed.value;
    for (std::uint64_t step = root_.committed.value + 1; step <= root_.settled().value; ++step) {
      ASSERT_FALSE(committed_.contains(step)) << step;
      ASSERT_TRUE(is_void(step)) << step;
    }
  }
  // Links keep the order, but the root may work with what came before.
  const SeatReport& pick(Member& seat) {
    return seat.reports[settling_ ? seat.reports.size() - 1 : random_() % seat.reports.size()];
  }

  std::mt19937_64 random_;
  std::vector<Member> seats_;
  Progress root_;
  std::set<std::uint64_t> committed_;
  bool settling_ = false;  // the root takes the newest reports
};

TEST(RandomJob, SaysNothingFalseAndGoesOn) {
  std::uint64_t commits = 0;
  for (std::uint64_t seed = 1; seed <= 300 && !HasFatalFailure(); ++seed) {
    RandomJob job(seed, 2 + seed % 4, 2 + seed % 3);
    job.run(3000, false);
    const std::uint64_t before = job.committed();
    job.run(3000, true);  // no void but for want of slots: commits must come, whatever went before
    job.settle();
    ASSERT_GT(job.committed(), before) << "seed " << seed;
    ASSERT_LE(job.committed(), job.truly_committed());
    commits += job.committed();
  }
  EXPECT_GT(commits, 0u);
}

// --- A job some of whose seats say and learn everything so many steps later than others

class LateSeats {
 public:
  // Each so-manieth step has a window.
  LateSeats(const std::vector<std::uint64_t>& lags, std::uint64_t window_every)
      : window_every_(window_every), seats_(lags.size()) {
    for (std::size_t i = 0; i < lags.size(); ++i) seats_[i].lag = lags[i];
  }
  void train(std::uint64_t steps) {
    while (steps-- > 0) one_step();
  }
  [[nodiscard]] Step committed() const { return known_.empty() ? Step(0) : known_.back().committed; }

 private:
  struct Late {
    std::uint64_t lag = 0;
    std::vector<SlotWord> slots = std::vector<SlotWord>(2);
    std::vector<SeatReport> reports;
    Turns turns;
  };
  void one_step() {
    const std::uint64_t now = known_.size() + 1;
    const auto before = [now](const auto& all, std::uint64_t lag) {  // as of so many steps ago
      return now > lag + 1 ? all[now - lag - 2] : typename std::decay_t<decltype(all)>::value_type{};
    };
    for (Late& seat : seats_) {
      const Progress known = before(known_, seat.lag);
      if (now % window_every_ == 0) seat.turns.open();
      if (now % window_every_ == 0 && seat.turns.takes(kNow, Step(now), known))
        if (const auto slot = choose_slot(seat.slots, known, kNow, Step(now))) seat.slots[*slot] = sealed(now);
      std::vector<SlotView> views;
      for (const SlotWord& word : seat.slots) views.push_back({word, true});
      seat.reports.push_back(report_of(views, Step(now), kNow, known));
    }
    SeatReport all = before(seats_[0].reports, seats_[0].lag);
    for (const Late& seat : seats_) all = combine(all, before(seat.reports, seat.lag));
    known_.push_back(advance(known_.empty() ? Progress{} : known_.back(), all));
  }

  const std::uint64_t window_every_;
  std::vector<Late> seats_;
  std::vector<Progress> known_;  // the root's, after each step
};

TEST(LateSeats, GoOnToCommitHoweverLateTheyAre) {
  for (const std::vector<std::uint64_t>& lags :
       {std::vector<std::uint64_t>{0, 1}, {0, 2}, {0, 0, 3}, {0, 5, 1}, {0, 1, 7}, {0, 3, 9, 12}}) {
    LateSeats job(lags, 1);
    for (int i = 0; i < 5; ++i) {
      const Step before = job.committed();
      job.train(200);
      EXPECT_GT(job.committed(), before) << lags.back() << " " << i;
    }
  }
}

TEST(LateSeats, WhereFewStepsHaveWindowsEachOfThemIsTaken) {
  for (const std::uint64_t every : {16u, 17u, 100u}) {
    LateSeats job({0, 1, 2}, every);
    job.train(50 * every + 5);
    EXPECT_EQ(job.committed(), Step(50 * every));
  }
}

TEST(LateSeats, WhoeverCountsFewerWindowsTakesTheSameStepsAndSomeBesides) {
  for (std::uint64_t step = 1; step < 400; ++step)
    for (std::uint32_t fruitless = 1; fruitless < 300; ++fruitless) {
      if (!is_in_turn(Step(step), fruitless)) continue;
      EXPECT_TRUE(is_in_turn(Step(step), fruitless - 1)) << step << " " << fruitless;
    }
  for (std::uint32_t fruitless = 0; fruitless < 8; ++fruitless) EXPECT_TRUE(is_in_turn(Step(7), fruitless));
  for (std::uint64_t first = 1; first < 100'000;
       first += 97) {  // one of any 64 in a row has its turn, whatever was before
    std::uint64_t step = first;
    while (!is_in_turn(Step(step), ~std::uint32_t{0})) ++step;
    EXPECT_LT(step, first + 64);
  }
}

}  // namespace
}  // namespace pawl::job
