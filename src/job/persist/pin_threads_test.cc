// Threads of one process play a trainer that captures steps as fast as it finds slots, a daemon that commits them and pins
// one now and then, and the daemon's task that reads what is pinned. What must hold: a step that is ordered in time is there
// to be pinned, its bytes stay what they are until the pin is taken away, and meanwhile later steps are committed. Run under
// tsan too: nothing but the page, the pin and the word orders these threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "job/persist/persist_round.h"
#include "job/redundancy/progress.h"
#include "job/snapshot/arena.h"

namespace pawl::job {
namespace {

constexpr Generation kRunning(1);
constexpr int kPins = 400;
constexpr int kReads = 20;                // of each pinned step
constexpr std::uint64_t kCommitsMin = 2;  // while it is pinned

std::uint64_t content(Step step, std::size_t word) {
  const std::uint64_t mixed = ((step.value << 24) ^ word) * 0x9E37'79B9'7F4A'7C15;
  return mixed ^ (mixed >> 29);
}

std::span<std::uint64_t> words_of(const Slot& slot) {
  return {reinterpret_cast<std::uint64_t*>(slot.payload().data()), slot.payload().size() / 8};
}

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class PinThreads : public testing::Test {
 protected:
  PinThreads() {
    ArenaSpec spec;
    spec.job = "pins";
    spec.slot_count = kSlotCountPersisted;
    spec.payload_bytes = 4ULL * 4096;
    spec.bucket_bytes = 4096;
    const std::uint64_t size = (Arena::size_bytes(spec) + 4095) / 4096 * 4096;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, size)));
    std::fill_n(memory_.get(), size, std::byte{0});
    arena_ = *Arena::format({memory_.get(), size}, spec);
  }

  // As Capture::try_choose.
  std::optional<Slot> try_choose(Step step) {
    const Progress known = Progress::unpack(page_.load(std::memory_order_acquire));
    std::vector<SlotWord> words;
    for (std::uint32_t i = 0; i < arena_.slot_count(); ++i) words.push_back(arena_.slot(i).word_for_gate());
    const auto chosen = choose_slot(words, known, kRunning, step);
    if (!chosen || !arena_.slot(*chosen).try_open(words[*chosen], kRunning, step, step.value)) return std::nullopt;
    return arena_.slot(*chosen);
  }

  void train() {
    Step step;
    while (!stop_) {
      const std::optional<Slot> slot = try_choose(step.next());
      if (!slot) {
        std::this_thread::yield();
        continue;
      }
      step = step.next();
      const std::span<std::uint64_t> words = words_of(*slot);
      for (std::size_t i = 0; i < words.size(); ++i) words[i] = content(step, i);  // plain stores, which tsan watches
      for (std::uint32_t i = 0; i < slot->buckets().size(); ++i)
        slot->bucket_done(i, crc32c(slot->bucket(i)), kRunning, step);
      ASSERT_TRUE(slot->try_seal(kRunning, step));
    }
  }

  // What is pinned, until the daemon takes it back.
  void read() {
    while (!stop_) {
      const std::uint64_t step = to_read_.load(std::memory_order_acquire);
      if (step == 0) {
        std::this_thread::yield();
        continue;
      }
      for (int i = 0; i < kReads; ++i) wrong_words_ += count_wrong(Step(step));
      to_read_.store(0, std::memory_order_release);
    }
  }

  std::uint64_t count_wrong(Step step) const {
    const std::span<const std::uint64_t> words = words_of(pinned_);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < words.size(); ++i) wrong += words[i] == content(step, i) ? 0 : 1;
    return wrong;
  }

  [[nodiscard]] std::optional<Slot> sealed(Step step) const {
    for (std::uint32_t i = 0; i < arena_.slot_count(); ++i)
      if (arena_.slot(i).word() == SlotWord{kRunning, step, SlotState::sealed, false}) return arena_.slot(i);
    return std::nullopt;
  }

  [[nodiscard]] Step greatest_sealed() const {
    Step greatest;
    for (std::uint32_t i = 0; i < arena_.slot_count(); ++i)
      if (const SlotWord word = arena_.slot(i).word(); word.state == SlotState::sealed)
        greatest = std::max(greatest, word.step);
    return greatest;
  }

  // As Persist::before_show, and then the page. What one seat has sealed is committed.
  void commit() {
    const Step committed = greatest_sealed();
    if (committed == shown_.committed) return std::this_thread::yield();
    if (ordered_ && committed >= *ordered_) pin(*ordered_);
    shown_ = {committed, 0};
    page_.store(shown_.pack(), std::memory_order_release);
  }

  void pin(Step step) {
    ordered_.reset();
    ASSERT_TRUE(may_pin(shown_, step));
    const std::optional<Slot> slot = sealed(step);
    ASSERT_TRUE(slot) << "step " << step.value << " is not there, though the page shows only "
                      << shown_.committed.value;
    slot->pin(kRunning, step);
    pinned_ = *slot;
    to_read_.store(step.value, std::memory_order_release);
  }

  std::unique_ptr<std::byte, FreeMemory> memory_;
  Arena arena_;
  std::atomic<std::uint64_t> page_{0};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> to_read_{0};  // the step in `pinned_`; 0: nothing, or it has been read
  std::atomic<std::uint64_t> wrong_words_{0};

  // The daemon's own.
  Progress shown_;
  std::optional<Step> ordered_;
  Slot pinned_;
};

TEST_F(PinThreads, APinnedStepKeepsItsBytesWhileLaterOnesAreCommitted) {
  std::thread trainer([this] { train(); });
  std::thread task([this] { read(); });
  std::mt19937_64 random(1);
  for (int i = 0; i < kPins && !HasFailure(); ++i) {
    ordered_ = Step(shown_.committed.value + 1 + random() % 4);
    while (ordered_ && !HasFatalFailure()) commit();
    if (HasFatalFailure()) break;
    const std::uint64_t until = shown_.committed.value + kCommitsMin;
    while (to_read_.load(std::memory_order_acquire) != 0 || shown_.committed.value < until) commit();
    pinned_.unpin();
    EXPECT_EQ(wrong_words_, 0u) << "the step before " << shown_.committed.value << " was overwritten";
  }
  stop_ = true;
  trainer.join();
  task.join();
  std::printf("%d steps pinned, %lu committed\n", kPins, static_cast<unsigned long>(shown_.committed.value));
}

}  // namespace
}  // namespace pawl::job
