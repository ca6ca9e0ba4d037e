// All orders in which one seat's slot is fetched, restored from, said ready and let go, its pawld dying anywhere: on the
// shipped slots, gate and duties. No slot may ever be sealed with bytes of another step; and in the end both slots are
// of use again. The rules can be switched off: then it must be seen.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "base/crc32c.h"
#include "job/daemon/fetch.h"
#include "job/recovery/duties.h"
#include "job/recovery/lineage.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

constexpr Generation kOld{1};
constexpr Generation kNew{2};
constexpr Step kResume{41};
constexpr Step kNext{42};
constexpr std::uint32_t kBuckets = 2;

struct Rules {
  bool names_its_step = true;     // buckets carry the step of their writer, not that of the word
  bool looks = true;              // a returning pawld uses what lies here whole
  bool asks = true;               // ready only with the step here
  bool waits_for_fetches = true;  // running only when none touches memory
};

enum class Trainer : int { waits, reads, done, runs, writes_0, readies_0, writes_1, readies_1, seals, over };

struct State {
  bool ready = false;    // the key
  bool running = false;  // the job's phase
  int deaths_left = 2;
  // This pawld.
  bool begun = false;
  bool imported = false;
  bool followed = false;  // it runs
  bool ended = false;     // its fetch was told to
  int fetch = -1;         // the next thing that the fetch does; -1: there is none
  std::uint32_t fetch_slot = 0;
  Trainer trainer = Trainer::waits;
  std::uint32_t trainer_slot = 0;
  bool operator==(const State&) const = default;
};

class Model {
 public:
  explicit Model(Rules rules) : rules_(rules) {
    ArenaSpec spec;
    spec.job = "model";
    spec.payload_bytes = spec.stable_bytes = kBuckets * 4096;
    spec.bucket_bytes = 4096;
    bytes_ = (Arena::size_bytes(spec) + 4095) / 4096 * 4096;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes_)));
    std::memset(memory_.get(), 0, bytes_);
    arena_ = *Arena::format({memory_.get(), bytes_}, spec);
  }
  void explore() { visit(State{}); }
  [[nodiscard]] const std::set<std::string>& found() const { return found_; }
  [[nodiscard]] std::size_t states() const { return seen_.size(); }

 private:
  using Act = void (Model::*)(State&);

  void visit(const State& state) {
    if (!seen_.insert(hash_of(state)).second) return;
    check();
    bool moved = false;
    const std::vector<std::byte> before(memory_.get(), memory_.get() + bytes_);
    for (const Act act :
         {&Model::follow, &Model::fetch, &Model::notice_end, &Model::train, &Model::lead, &Model::die}) {
      State next = state;
      (this->*act)(next);
      const bool changed = !(next == state) || std::memcmp(before.data(), memory_.get(), bytes_) != 0;
      if (changed && act != &Model::die) moved = true;
      if (changed) visit(next);
      std::memcpy(memory_.get(), before.data(), bytes_);
    }
    if (!moved) check_end(state);
  }

  std::size_t hash_of(const State& s) const {
    const int numbers[] = {s.ready,
                           s.running,
                           s.deaths_left,
                           s.begun,
                           s.imported,
                           s.followed,
                           s.ended,
                           s.fetch,
                           static_cast<int>(s.fetch_slot),
                           static_cast<int>(s.trainer),
                           static_cast<int>(s.trainer_slot)};
    const std::hash<std::string_view> hash;
    return hash({reinterpret_cast<const char*>(numbers), sizeof numbers}) * 31 +
           hash({reinterpret_cast<const char*>(memory_.get()), bytes_});
  }

  // --- What pawld does

  [[nodiscard]] bool is_here() const {
    Slot slot;
    std::uint32_t index = 0;
    return find_sealed(arena_, kOld, kResume, slot, index) && slot.word().frozen;
  }

  void follow(State& s) {
    JobState job;
    job.generation = kNew;
    job.phase = s.running ? JobPhase::running : JobPhase::restoring;
    Followed followed;
    followed.frozen = s.begun ? kNew : Generation(0);
    followed.restoring = followed.frozen;
    followed.running = s.followed ? kNew : Generation(0);
    const bool fetches = rules_.waits_for_fetches && s.fetch >= 0;
    Duties duties = duties_of(job, followed, {.imports = fetches});
    if (duties.freeze) {
      for (std::uint32_t i = 0; i < arena_.slot_count(); ++i) arena_.slot(i).freeze();
      followed.frozen = kNew;
      duties = duties_of(job, followed, {.imports = fetches});
    }
    if (duties.begin_restore) {
      s.begun = true;
      s.imported = rules_.looks && is_here();
      if (!s.imported) s.fetch = 0;
    }
    if (duties.end_copies) s.ended = true;
    if (duties.begin_running) return begin_running(s);
    if (s.running) return;
    if (s.trainer == Trainer::waits && s.imported) s.trainer = Trainer::reads;
    if (s.trainer == Trainer::done && (s.imported || !rules_.asks)) s.ready = true;
  }

  void begin_running(State& s) {
    const std::vector<LineageEntry> lineage{{kNew, kResume}};
    for (std::uint32_t i = 0; i < arena_.slot_count(); ++i) {
      const SlotWord word = arena_.slot(i).word();
      arena_.slot(i).unfreeze(word.state == SlotState::sealed && in_lineage(lineage, word.generation, word.step));
    }
    s.followed = true;
    if (s.trainer == Trainer::done) s.trainer = Trainer::runs;
  }

  void write(const Slot& slot, std::uint32_t bucket, Step step) {
    std::memset(slot.bucket(bucket).data(), static_cast<int>(step.value), slot.bucket(bucket).size());
  }

  // Open, then each bucket's bytes and its line in the table, then seal: apart, for anything may come between.
  void fetch(State& s) {
    if (s.fetch < 0) return;
    if (s.fetch == 0) {
      const Slot slot = slot_to_fill(arena_, kOld, kResume);
      s.fetch_slot = slot.payload().data() == arena_.slot(0).payload().data() ? 0 : 1;
      s.fetch = slot.open_frozen(kOld, kResume, 0) ? 1 : -1;
      return;
    }
    const Slot slot = arena_.slot(s.fetch_slot);
    const std::uint32_t bucket = static_cast<std::uint32_t>(s.fetch - 1) / 2;
    if (bucket == kBuckets) {
      if (slot.seal_frozen(kOld, kResume) && !s.running) s.imported = true;
      s.fetch = -1;
      return;
    }
    if (s.fetch % 2 == 1) {
      write(slot, bucket, kResume);
    } else {
      const SlotWord now = slot.word();
      const SlotWord of = rules_.names_its_step ? SlotWord{kOld, kResume} : now;
      // Its sum was proven as it landed, before whatever came meanwhile.
      slot.bucket_done(bucket, crc32c(std::vector<std::byte>(4096, std::byte{kResume.value})), of.generation, of.step);
    }
    ++s.fetch;
  }
  void notice_end(State& s) {
    if (s.ended) s.fetch = -1;
  }
  void die(State& s) {
    if (s.deaths_left == 0) return;
    const int left = s.deaths_left - 1;
    s = {.ready = s.ready,
         .running = s.running,
         .deaths_left = left,
         .trainer = s.trainer,
         .trainer_slot = s.trainer_slot};
  }
  void lead(State& s) { s.running = s.running || s.ready; }

  // --- What the trainer does

  void train(State& s) {
    const Slot slot = arena_.slot(s.trainer_slot);
    switch (s.trainer) {
      case Trainer::reads: {
        Slot source;
        std::uint32_t index = 0;
        if (!find_sealed(arena_, kOld, kResume, source, index) || !source.verify())
          found_.insert("a slot was taken away from who restores from it");
        s.trainer = Trainer::done;
        return;
      }
      case Trainer::done:
        if (s.followed) s.trainer = Trainer::runs;  // it asks again, after a restart of pawld
        return;
      case Trainer::runs: {
        const std::vector<SlotWord> words{arena_.slot(0).word(), arena_.slot(1).word()};
        const auto chosen = choose_slot(words, Progress{kResume, 0}, kNew, kNext);
        if (!chosen || !arena_.slot(*chosen).try_open(words[*chosen], kNew, kNext, 0)) return;
        s.trainer_slot = *chosen;
        break;
      }
      case Trainer::writes_0:
      case Trainer::writes_1:
        write(slot, s.trainer == Trainer::writes_0 ? 0 : 1, kNext);
        break;
      case Trainer::readies_0:
      case Trainer::readies_1:
        slot.bucket_done(s.trainer == Trainer::readies_0 ? 0 : 1,
                         crc32c(std::vector<std::byte>(4096, std::byte{kNext.value})), kNew, kNext);
        break;
      case Trainer::seals:
        if (!slot.try_seal(kNew, kNext)) found_.insert("a step could not be sealed");
        break;
      default:
        return;
    }
    s.trainer = static_cast<Trainer>(static_cast<int>(s.trainer) + 1);
  }

  // --- What must hold

  void check() {
    for (std::uint32_t i = 0; i < arena_.slot_count(); ++i) {
      const Slot slot = arena_.slot(i);
      const SlotWord word = slot.word();
      if (word.state != SlotState::sealed || !slot.verify()) continue;  // wrong sums are seen before anything is used
      for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket)
        if (slot.bucket(bucket)[0] != std::byte{static_cast<unsigned char>(word.step.value)})
          found_.insert("bytes of another step are sealed with right sums");
    }
  }
  void check_end(const State& s) {
    if (s.trainer != Trainer::over) found_.insert("the trainer does not get on");
    for (std::uint32_t i = 0; i < arena_.slot_count(); ++i)
      if (!arena_.slot(i).verify()) found_.insert("a slot is lost");
  }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const Rules rules_;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
  Arena arena_;
  std::set<std::size_t> seen_;
  std::set<std::string> found_;
};

std::set<std::string> explored(Rules rules) {
  Model model(rules);
  model.explore();
  EXPECT_GT(model.states(), 100u);
  std::printf("%zu states\n", model.states());
  return model.found();
}

TEST(ImportsModel, NoOrderMixesStepsOrLosesASlot) {
  EXPECT_EQ(explored({}), std::set<std::string>{});
}

TEST(ImportsModel, WithoutTheRulesBytesOfTheResumeStepAreSealedAsTheNextOnes) {
  const auto found = explored({.names_its_step = false, .looks = false, .asks = false, .waits_for_fetches = false});
  EXPECT_TRUE(found.count("bytes of another step are sealed with right sums"));
}

TEST(ImportsModel, EachRuleIsNeeded) {
  EXPECT_TRUE(explored({.looks = false}).count("a slot is lost"));
  EXPECT_FALSE(explored({.looks = false, .waits_for_fetches = false}).empty());
}

}  // namespace
}  // namespace pawl::job
