#include "job/trainer/capture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/crc32c.h"
#include "job/redundancy/progress.h"
#include "job/trainer/test_state.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;

constexpr Generation kGeneration{3};

std::atomic<int> copies_in_flight{0};
std::atomic<int> copies_begun{0};
std::atomic<int> copy_delay_ms{0};

// Loads by words that tsan watches as well: a plain write meanwhile is a race, one by a test that means it is not.
void copy_words(std::byte* to, const std::byte* from, std::size_t size) {
  for (; size >= 8; size -= 8, to += 8, from += 8) {
    auto* word = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from));
    const std::uint64_t value = std::atomic_ref(*word).load(std::memory_order_relaxed);
    std::memcpy(to, &value, 8);
  }
  std::memcpy(to, from, size);
}

std::uint32_t watched_copy(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t seed) {
  ++copies_in_flight;
  ++copies_begun;
  if (const int delay = copy_delay_ms; delay > 0) real_clock().sleep(milliseconds(delay));
  copy_words(to, from, size);
  const std::uint32_t sum = crc32c({to, size}, seed);
  --copies_in_flight;
  return sum;
}
const CopyKernel kWatched{"watched", &watched_copy};

// A trainer's memory, page and arena in one process, with nobody else.
class Scene {
 public:
  explicit Scene(std::uint32_t thread_count = 1, std::size_t stable_words = 40'000, std::size_t volatile_words = 100,
                 std::uint32_t compared_window_count = 0, bool paranoid = false)
      : stable_(stable_words), staged_(volatile_words), layout_(layout(stable_words, volatile_words)) {
    bases_ = {reinterpret_cast<std::byte*>(stable_.data()), reinterpret_cast<std::byte*>(staged_.data())};

    CaptureSource source;
    source.plan = &plan_;
    source.bases = bases_;
    source.page = [this]() -> TrainerPage& { return *page_; };
    source.notify = [this] { ++notices_; };
    source.interrupted = [this] { return page_->stop.load() != 0; };
    capture_.emplace(arena_, source, CaptureOptions{thread_count, &kWatched, compared_window_count, 7, 0, paranoid});
  }

  void write_state(std::uint64_t step) { std::fill(stable_.begin(), stable_.end(), step); }
  void stage(std::uint64_t step) {
    std::fill(staged_.begin(), staged_.end(), ~step);
    capture_->stage_done();
  }
  void commit(std::uint64_t step) { page_->progress.store(Progress{Step(step), 0}.pack()); }
  Status open(std::uint64_t step) { return capture_->open(kGeneration, Step(step), step * 10); }

  // Steps of the slots that are marked.
  std::vector<std::uint64_t> torn() {
    std::vector<std::uint64_t> steps;
    for (std::uint32_t i = 0; i < arena_.slot_count(); ++i) {
      if (const SlotWord word = arena_.slot(i).word(); arena_.slot(i).torn(word)) steps.push_back(word.step.value);
    }
    return steps;
  }

  // Steps of the slots that are sealed and proven to hold exactly that step's bytes.
  std::vector<std::uint64_t> proven() {
    std::vector<std::uint64_t> steps;
    for (std::uint32_t i = 0; i < arena_.slot_count(); ++i) {
      const Slot slot = arena_.slot(i);
      const SlotWord word = slot.word();
      if (word.state != SlotState::sealed) continue;
      EXPECT_TRUE(slot.verify());
      EXPECT_EQ(slot.samples(), word.step.value * 10);
      const auto* words = reinterpret_cast<const std::uint64_t*>(slot.payload().data());
      for (std::size_t k = 0; k < stable_.size(); ++k) EXPECT_EQ(words[k], word.step.value);
      const auto* late = words + layout_.stable_bytes / 8;
      for (std::size_t k = 0; k < staged_.size(); ++k) EXPECT_EQ(late[k], ~word.step.value);
      if (::testing::Test::HasFailure()) return {};
      steps.push_back(word.step.value);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  std::vector<std::uint64_t> stable_, staged_;
  const SeatLayout layout_;
  const CopyPlan plan_{layout_, kTestBucketBytes};
  TestSegments segments_{layout_};
  Arena& arena_ = segments_.arena;
  TrainerPage* const page_ = segments_.page;
  std::vector<std::byte*> bases_;
  std::atomic<int> notices_{0};
  std::optional<Capture> capture_;

 private:
  static SeatLayout layout(std::size_t stable_words, std::size_t volatile_words) {
    std::vector<TestEntry> entries = {{"stable", stable_words}};
    if (volatile_words > 0) entries.push_back({"volatile", volatile_words, Lifetime::volatile_});
    return test_layout(entries);
  }
};

// What a trainer must not do: it races with the copy threads. The thread sanitizer is not to see it.
__attribute__((no_sanitize("thread"), noinline)) void write_in_the_window(std::uint64_t& word, std::uint64_t value) {
  word = value;
}

using Steps = std::vector<std::uint64_t>;

// The training thread writes at once after each fence, while the copy threads would still be at it if they were not
// done.
void train(Scene& scene, std::uint64_t steps) {
  for (std::uint64_t step = 1; step <= steps; ++step) {
    scene.write_state(step);
    ASSERT_TRUE(scene.open(step));
    scene.stage(step);
    const WindowResult window = scene.capture_->fence({});
    ASSERT_TRUE(window.captured) << window.why_void;
    EXPECT_EQ(window.step, Step(step));
    EXPECT_EQ(window.captured_bytes, scene.layout_.payload_bytes);
    EXPECT_EQ(copies_in_flight, 0);
    scene.write_state(1'000'000 + step);  // sealed bytes must not see it
    const Steps expected = step == 1 ? Steps{1} : Steps{step - 1, step};
    ASSERT_EQ(scene.proven(), expected);
    EXPECT_EQ(scene.page_->reached.load(), step);
    scene.commit(step);
  }
  EXPECT_EQ(scene.page_->windows_captured.load(), steps);
  EXPECT_EQ(scene.page_->windows_voided.load(), 0u);
  EXPECT_GE(scene.notices_, static_cast<int>(steps));
}

TEST(Capture, SealedBytesAreThoseOfTheStepWhateverIsWrittenAfterTheFence) {
  Scene scene;
  train(scene, 40);
}

TEST(Capture, ManyThreadsSealTheSame) {
  Scene scene(4);
  train(scene, 40);
}

TEST(Capture, AllVolatileOrNone) {
  Scene stable_only(2, 5000, 0);
  train(stable_only, 5);
  Scene one_bucket(2, 1, 1);  // stable and volatile share the only bucket
  train(one_bucket, 5);
}

TEST(Capture, ClosedGateVoidsTheWindowAndKeepsBothSlots) {
  Scene scene;
  for (std::uint64_t step = 1; step <= 2; ++step) {
    scene.write_state(step);
    ASSERT_TRUE(scene.open(step));
    scene.stage(step);
    ASSERT_TRUE(scene.capture_->fence({}).captured);
  }
  scene.write_state(3);
  ASSERT_TRUE(scene.open(3));
  scene.stage(3);
  const WindowResult window = scene.capture_->fence({});
  EXPECT_FALSE(window.captured);
  EXPECT_NE(window.why_void.find("no slot was free"), std::string::npos) << window.why_void;
  EXPECT_EQ(scene.page_->reached.load(), 3u);
  EXPECT_EQ(scene.page_->windows_voided.load(), 1u);
  EXPECT_EQ(scene.proven(), (Steps{1, 2}));

  scene.commit(2);  // the gate opens: 1 may go
  scene.write_state(4);
  ASSERT_TRUE(scene.open(4));
  scene.stage(4);
  EXPECT_TRUE(scene.capture_->fence({}).captured);
  EXPECT_EQ(scene.proven(), (Steps{2, 4}));
}

TEST(Capture, GateThatOpensWhileTheWindowIsOpenIsEnough) {
  Scene scene;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    scene.write_state(step);
    ASSERT_TRUE(scene.open(step));
    scene.stage(step);
    if (step == 3) {
      std::thread later([&] {
        real_clock().sleep(milliseconds(30));
        scene.commit(2);
      });
      const WindowResult window = scene.capture_->fence({.deadline = Deadline::never(), .waits_for_slot = true});
      later.join();
      EXPECT_TRUE(window.captured) << window.why_void;
    } else {
      ASSERT_TRUE(scene.capture_->fence({}).captured);
    }
  }
  EXPECT_EQ(scene.proven(), (Steps{2, 3}));
}

TEST(Capture, WithoutACommitFewerAndFewerWindowsAreTriedAndTheLastOneWhateverItsTurn) {
  Scene scene;
  std::uint64_t step = 0;
  const auto captured = [&](bool is_last) {
    scene.write_state(++step);
    EXPECT_TRUE(scene.open(step));
    scene.stage(step);
    const bool done = scene.capture_->fence({.deadline = Deadline::never(), .waits_for_slot = is_last}).captured;
    scene.page_->progress.store(Progress{Step(0), static_cast<std::uint32_t>(step)}.pack());  // it was void elsewhere
    return done;
  };
  std::uint64_t tried = 0;
  while (step < 64) tried += captured(false) ? 1 : 0;
  EXPECT_LT(tried, 40u);
  EXPECT_GT(tried, 15u);
  EXPECT_EQ(scene.page_->reached.load(), 64u);
  while (is_in_turn(Step(step + 1), 64)) (void)captured(false);
  EXPECT_TRUE(captured(true));
  while (is_in_turn(Step(step + 1), 64)) (void)captured(false);
  scene.commit(step);
  EXPECT_TRUE(captured(false));
}

TEST(Capture, GateOffOverwritesWhatIsNotCommitted) {
  Scene scene;
  scene.page_->gate_off = 1;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    scene.write_state(step);
    ASSERT_TRUE(scene.open(step));
    scene.stage(step);
    EXPECT_TRUE(scene.capture_->fence({}).captured);
  }
  EXPECT_EQ(scene.proven(), (Steps{2, 3}));
}

TEST(Capture, DeadlineVoidsAndNothingIsReadAfterwards) {
  Scene scene(2);
  scene.write_state(1);
  copy_delay_ms = 20;
  ASSERT_TRUE(scene.open(1));  // and not staged: it can't be done before the deadline, however late that is looked at
  const WindowResult window = scene.capture_->fence({.deadline = Deadline::in(milliseconds(50))});
  EXPECT_EQ(copies_in_flight, 0);
  copy_delay_ms = 0;
  EXPECT_FALSE(window.captured);
  EXPECT_NE(window.why_void.find("deadline"), std::string::npos) << window.why_void;
  EXPECT_EQ(scene.proven(), Steps{});
  for (std::uint32_t i = 0; i < 2; ++i) EXPECT_EQ(scene.arena_.slot(i).word().state, SlotState::empty);
  EXPECT_EQ(scene.page_->reached.load(), 1u);

  scene.write_state(2);
  ASSERT_TRUE(scene.open(2));
  scene.stage(2);
  EXPECT_TRUE(scene.capture_->fence({}).captured);
  EXPECT_EQ(scene.proven(), Steps{2});
}

// A copy that will take longer than a fence may wait, as fast as it goes so far, isn't waited for at all.
TEST(Capture, ACopyThatComesTooLateIsVoidAtOnce) {
  Scene scene(1);
  scene.write_state(1);
  copies_begun = 0;
  copy_delay_ms = 100;  // 79 buckets
  ASSERT_TRUE(scene.open(1));
  scene.stage(1);
  while (copies_begun < 7) real_clock().sleep(milliseconds(1));  // a sixteenth is done
  const WindowResult window = scene.capture_->fence({.wait_max = std::chrono::milliseconds(500)});
  copy_delay_ms = 0;
  EXPECT_FALSE(window.captured);
  EXPECT_NE(window.why_void.find("PAWL_FENCE_SHARE"), std::string::npos) << window.why_void;

  scene.write_state(2);
  ASSERT_TRUE(scene.open(2));
  scene.stage(2);
  EXPECT_TRUE(scene.capture_->fence({.wait_max = std::chrono::seconds(60)}).captured);
  EXPECT_EQ(scene.proven(), Steps{2});
}

// Without being paranoid one bucket of 79 is looked at, and what is written before it is copied shows in no copy.
TEST(Capture, ParanoidFindsEveryWrite) {
  for (std::uint64_t step = 1; step <= 30; ++step) {
    Scene scene(1, 40'000, 100, 0, true);
    scene.write_state(step);
    ASSERT_TRUE(scene.open(step));
    scene.stage(step);
    std::atomic_ref(scene.stable_[step * 1300]) = 0;
    const WindowResult window = scene.capture_->fence({});
    EXPECT_EQ(window.written, std::optional<std::uint32_t>(0)) << step;
  }
}

TEST(Capture, FreezeWinsOverSeal) {
  Scene scene;
  scene.write_state(1);
  ASSERT_TRUE(scene.open(1));
  while (scene.page_->reached.load() != 1) real_clock().sleep(milliseconds(1));
  for (std::uint32_t i = 0; i < 2; ++i) scene.arena_.slot(i).freeze();
  scene.stage(1);  // only now: until then it can't be sealed
  const WindowResult window = scene.capture_->fence({});
  EXPECT_FALSE(window.captured);
  EXPECT_NE(window.why_void.find("recovery"), std::string::npos) << window.why_void;
  EXPECT_EQ(scene.proven(), Steps{});
}

TEST(Capture, InterruptionEndsTheFence) {
  Scene scene;
  scene.write_state(1);
  ASSERT_TRUE(scene.open(1));  // and never staged: the fence would wait for ever
  std::thread later([&] {
    real_clock().sleep(milliseconds(20));
    scene.page_->stop = 1;
  });
  const WindowResult window = scene.capture_->fence({});
  later.join();
  EXPECT_FALSE(window.captured);
  EXPECT_EQ(scene.proven(), Steps{});
}

TEST(Capture, StopVoidsTheOpenWindowAndItCanBeginAgain) {
  Scene scene(3);
  for (std::uint64_t step = 1; step <= 20; ++step) {
    scene.write_state(step);
    ASSERT_TRUE(scene.open(step));
    if (step % 2 == 0) scene.stage(step);
    if (step % 3 == 0) std::this_thread::yield();
    scene.capture_->stop("test");
    EXPECT_EQ(copies_in_flight, 0);
    EXPECT_FALSE(scene.capture_->is_open());
    scene.proven();  // whatever was sealed before the stop is whole
    scene.commit(step);
  }
}

TEST(Capture, WindowsThatAreComparedSealTheSame) {
  Scene scene(2, 40'000, 100, 20);
  train(scene, 40);
}

// Sealed means that others may commit it: a window that turns out to be written can't be taken back then.
TEST(Capture, AWindowThatIsComparedIsSealedAtItsFenceOrWhereNothingIsWritten) {
  Scene scene(1, 5000, 100, 2);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    scene.write_state(step);
    ASSERT_TRUE(scene.open(step));
    scene.stage(step);
    real_clock().sleep(milliseconds(30));
    EXPECT_EQ(scene.page_->windows_captured.load(), step - 1);
    if (step == 2) {
      scene.capture_->settle();
      while (scene.page_->windows_captured.load() < 2) real_clock().sleep(milliseconds(1));
    }
    EXPECT_TRUE(scene.capture_->fence({}).captured);
    scene.commit(step);
  }
  EXPECT_EQ(scene.proven(), (Steps{1, 2}));
}

TEST(Capture, AWriteAfterTheCopyVoidsAWindowThatIsCompared) {
  Scene scene(1, 500'000, 100, 1);  // more buckets than sums are taken of
  scene.write_state(1);
  ASSERT_TRUE(scene.open(1));
  scene.stage(1);
  for (std::uint32_t i = 0; i < scene.plan_.bucket_count(); ++i) {
    const auto copied = [&](std::uint32_t slot) {
      return scene.arena_.slot(slot).bucket_ready(i, kGeneration, Step(1));
    };
    while (!copied(0) && !copied(1)) real_clock().sleep(milliseconds(1));
  }
  write_in_the_window(scene.stable_[123'456], 77);
  const WindowResult window = scene.capture_->fence({});
  EXPECT_FALSE(window.captured);
  EXPECT_EQ(window.written, std::optional<std::uint32_t>(0));
  EXPECT_NE(window.why_void.find("written"), std::string::npos) << window.why_void;
  EXPECT_EQ(scene.proven(), Steps{});
}

// The copy agrees with the memory then, and is of no step all the same.
TEST(Capture, AWriteBeforeTheCopyVoidsTheWindowToo) {
  for (const std::uint32_t compared : {0u, 9u}) {
    Scene scene(1, 500, 100, compared);  // one bucket
    for (std::uint64_t step = 1; step <= 3; ++step) {
      scene.write_state(step);
      ASSERT_TRUE(scene.open(step));
      scene.stage(step);
      if (step < 3) {
        ASSERT_TRUE(scene.capture_->fence({}).captured);
        continue;
      }
      scene.write_state(1003);  // no slot is free yet
      const WindowResult window = scene.capture_->fence({.deadline = Deadline::never(), .waits_for_slot = true});
      EXPECT_FALSE(window.captured);
      EXPECT_EQ(window.written, std::optional<std::uint32_t>(0));
    }
    EXPECT_EQ(scene.proven(), (Steps{1, 2}));
  }
}

// A trainer that ignores what the fence reports, and writes in each window.
TEST(Capture, WindowsAreComparedUntilEnoughOfThemWereRight) {
  Scene scene(1, 100'000, 100, 2);
  for (std::uint64_t step = 1; step <= 6; ++step) {
    scene.write_state(step);
    ASSERT_TRUE(scene.open(step));
    scene.stage(step);
    write_in_the_window(scene.stable_[54'321], 77);
    const WindowResult window = scene.capture_->fence({});
    EXPECT_FALSE(window.captured) << step;
    EXPECT_TRUE(window.written.has_value()) << step;
  }
  EXPECT_EQ(scene.proven(), Steps{});
}

TEST(Capture, APauseThatIsOverSettlesNothing) {
  Scene scene(1, 500, 100, 9);
  scene.write_state(1);
  ASSERT_TRUE(scene.open(1));
  scene.capture_->settle();  // nothing is staged yet, so nothing can be sealed
  scene.capture_->unsettle();
  scene.stage(1);
  real_clock().sleep(milliseconds(30));
  EXPECT_EQ(scene.page_->windows_captured.load(), 0u);
  write_in_the_window(scene.stable_[3], 77);
  const WindowResult window = scene.capture_->fence({});
  EXPECT_FALSE(window.captured);
  EXPECT_TRUE(window.written.has_value());
}

TEST(Capture, AWriteThatIsSeenAfterTheSealIsTold) {
  Scene scene(1, 500, 100);
  scene.write_state(1);
  ASSERT_TRUE(scene.open(1));
  scene.stage(1);
  while (scene.page_->windows_captured.load() < 1) real_clock().sleep(milliseconds(1));
  write_in_the_window(scene.stable_[499], 5);
  const WindowResult window = scene.capture_->fence({});
  EXPECT_TRUE(window.captured);
  EXPECT_EQ(window.written, std::optional<std::uint32_t>(0));
  EXPECT_EQ(scene.torn(), Steps{1});
  scene.commit(1);
  for (std::uint64_t step = 2; step <= 3; ++step) {
    scene.write_state(step);
    ASSERT_TRUE(scene.open(step));
    scene.stage(step);
    EXPECT_TRUE(scene.capture_->fence({}).captured);
    scene.commit(step);
  }
  EXPECT_EQ(scene.torn(), Steps{});
}

TEST(Capture, AWindowThatFailsAfterTheSealIsMarked) {
  Scene scene(1, 500, 100);
  scene.write_state(1);
  ASSERT_TRUE(scene.open(1));
  scene.capture_->fail("before");
  EXPECT_FALSE(scene.capture_->fence({}).captured);
  EXPECT_EQ(scene.torn(), Steps{});
  scene.write_state(2);
  ASSERT_TRUE(scene.open(2));
  scene.stage(2);
  while (scene.page_->windows_captured.load() < 1) real_clock().sleep(milliseconds(1));
  scene.capture_->fail("the trainer has seen a write");
  EXPECT_TRUE(scene.capture_->fence({}).captured);
  EXPECT_EQ(scene.torn(), Steps{2});
}

TEST(Capture, SecondWindowIsRefusedAndAFailedOneIsVoid) {
  Scene scene;
  scene.write_state(1);
  ASSERT_TRUE(scene.open(1));
  const Status second = scene.open(2);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::invalid);
  scene.capture_->fail("blob sampler: save answered 1");
  const WindowResult window = scene.capture_->fence({});
  EXPECT_FALSE(window.captured);
  EXPECT_EQ(window.why_void, "blob sampler: save answered 1");
}

}  // namespace
}  // namespace pawl::job
