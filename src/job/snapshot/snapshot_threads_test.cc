// Threads of one process play a trainer (with its copy threads), a daemon that freezes at random instants, and a reader
// that verifies whatever it finds. What must hold: nothing torn ever verifies, what was sealed before a freeze is
// whole, and nothing is sealed after one. Run under tsan too.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "job/snapshot/arena.h"

namespace pawl::job {
namespace {

constexpr int kGenerations = 300;
constexpr std::uint32_t kCopyThreads = 2;

std::uint64_t content(Generation generation, Step step, std::size_t word) {
  std::uint64_t mixed = (generation.value << 50) ^ (step.value << 24) ^ word;
  mixed *= 0x9E37'79B9'7F4A'7C15;
  return mixed ^ (mixed >> 29);
}

struct Job {
  Arena arena;
  std::atomic<std::uint64_t> pending{1};  // recover_generation
  std::atomic<std::uint64_t> running{1};  // the generation in which windows may be opened
  std::atomic<std::uint64_t> resume{0};   // R
  std::atomic<std::uint64_t> joined{0};   // the trainer is out of the arena, for this generation
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> sealed_count{0}, voided_count{0};

  // Copy threads: the trainer hands out one step at a time.
  std::barrier<> begin{kCopyThreads + 1}, end{kCopyThreads + 1};
  Slot target;
  SlotWord identity;
  bool copy_ends = false;
  std::atomic<std::uint32_t> next_bucket{0};
};

void fill_buckets(const Slot& slot, SlotWord identity, std::atomic<std::uint32_t>& next,
                  std::vector<std::uint64_t>& live) {
  const std::uint32_t count = static_cast<std::uint32_t>(slot.buckets().size());
  for (std::uint32_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
    const std::span<std::byte> bucket = slot.bucket(i);
    const std::size_t first = static_cast<std::size_t>(bucket.data() - slot.payload().data()) / 8;
    live.resize(bucket.size() / 8);
    for (std::size_t word = 0; word < live.size(); ++word)
      live[word] = content(identity.generation, identity.step, first + word);
    // Every second bucket by plain stores, which tsan watches; the others by the shipped kernel, which it does not.
    std::uint32_t crc = 0;
    if (i % 2 == 0) {
      auto* to = reinterpret_cast<std::uint64_t*>(bucket.data());
      for (std::size_t word = 0; word < live.size(); ++word) to[word] = live[word];
      crc = crc32c(bucket);
    } else {
      crc = copy_crc32c(bucket.data(), reinterpret_cast<const std::byte*>(live.data()), bucket.size());
    }
    slot.bucket_done(i, crc, identity.generation, identity.step);
  }
}

void copy_thread(Job& job) {
  std::vector<std::uint64_t> live;
  while (true) {
    job.begin.arrive_and_wait();
    if (job.copy_ends) return;
    fill_buckets(job.target, job.identity, job.next_bucket, live);
    job.end.arrive_and_wait();
  }
}

// One window: true if it was sealed.
bool capture(Job& job, Generation generation, Step step, std::mt19937_64& random) {
  // No gate here: slots are reused whenever they are not frozen, which is harder on the reader than the protocol is.
  const Slot slot = job.arena.slot(static_cast<std::uint32_t>(step.value % job.arena.slot_count()));
  if (!slot.try_open(slot.word(), generation, step, step.value)) return false;
  job.target = slot;
  job.identity = SlotWord{generation, step, SlotState::dirty, false};
  job.next_bucket = 0;
  job.begin.arrive_and_wait();
  job.end.arrive_and_wait();
  if (random() % 16 == 0) {
    (void)slot.try_abandon(generation, step);
    return false;
  }
  return slot.try_seal(generation, step);
}

void trainer(Job& job) {
  std::mt19937_64 random(1);
  Generation generation(1);
  Step step(0);
  while (!job.stop) {
    if (job.pending.load(std::memory_order_acquire) > generation.value) {
      const std::uint64_t next = job.pending.load(std::memory_order_acquire);
      job.joined.store(next, std::memory_order_release);  // the copy threads are idle: out of the arena
      while (job.running.load(std::memory_order_acquire) < next && !job.stop) std::this_thread::yield();
      generation = Generation(next);
      step = Step(job.resume.load(std::memory_order_acquire));
      continue;
    }
    step = step.next();
    (capture(job, generation, step, random) ? job.sealed_count : job.voided_count) += 1;
  }
  job.copy_ends = true;
  job.begin.arrive_and_wait();
}

void expect_whole(const Slot& slot, SlotWord word) {
  ASSERT_TRUE(slot.verify()) << slot.verify().error().what;
  const auto* payload = reinterpret_cast<const std::uint64_t*>(slot.payload().data());
  for (std::size_t i = 0; i < slot.payload().size() / 8; ++i) {
    ASSERT_EQ(payload[i], content(word.generation, word.step, i)) << "word " << i << " of step " << word.step.value;
  }
}

// Freezes, checks, waits for the trainer to be out, sometimes rebuilds a slot, and lets go on.
void daemon(Job& job) {
  std::mt19937_64 random(2);
  std::vector<std::uint64_t> live;
  for (std::uint64_t generation = 2; generation < 2 + kGenerations && !testing::Test::HasFatalFailure(); ++generation) {
    for (std::uint64_t spin = random() % 3000; spin > 0; --spin) job.pending.load(std::memory_order_relaxed);
    const std::uint64_t sealed = job.sealed_count;
    while (generation % 4 == 0 && job.sealed_count == sealed) std::this_thread::yield();
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    std::vector<SlotWord> frozen;
    for (std::uint32_t i = 0; i < job.arena.slot_count(); ++i) frozen.push_back(job.arena.slot(i).freeze());
    for (std::uint32_t i = 0; i < job.arena.slot_count(); ++i) {
      if (frozen[i].state == SlotState::sealed) expect_whole(job.arena.slot(i), frozen[i]);
    }
    job.pending.store(generation, std::memory_order_release);
    while (job.joined.load(std::memory_order_acquire) < generation) std::this_thread::yield();
    std::uint64_t greatest = 0;
    for (std::uint32_t i = 0; i < job.arena.slot_count(); ++i) {
      const Slot slot = job.arena.slot(i);
      ASSERT_EQ(slot.word(), frozen[i]) << "a frozen slot has changed";
      SlotWord word = frozen[i];
      if (word.state != SlotState::sealed && random() % 2 == 0) {  // restored from elsewhere, as a daemon does
        word = SlotWord{Generation(generation - 1), Step(random() % 1000), SlotState::sealed, true};
        ASSERT_TRUE(slot.open_frozen(word.generation, word.step, 0));
        std::atomic<std::uint32_t> next{0};
        fill_buckets(slot, word, next, live);
        ASSERT_TRUE(slot.seal_frozen(word.generation, word.step));
      }
      const bool keep = word.state == SlotState::sealed && random() % 8 != 0;
      if (keep) expect_whole(slot, word);
      if (keep) greatest = std::max(greatest, word.step.value);
      slot.unfreeze(keep);
    }
    job.resume.store(greatest, std::memory_order_release);
    job.running.store(generation, std::memory_order_release);
  }
}

// Reads without any lock: what verifies and stood still must be one step's content, whole.
void reader(Job& job, std::uint64_t& whole, std::uint64_t& dropped) {
  std::vector<std::uint64_t> copy(job.arena.spec().payload_bytes / 8);
  for (std::uint32_t turn = 0; !job.stop && !testing::Test::HasFatalFailure(); ++turn) {
    const Slot slot = job.arena.slot(turn % job.arena.slot_count());
    const SlotWord before = slot.word();
    if (before.state != SlotState::sealed) continue;
    auto* to = reinterpret_cast<std::byte*>(copy.data());
    for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) {
      const std::span<std::byte> bucket = slot.bucket(i);
      copy_crc32c(to + (bucket.data() - slot.payload().data()), bucket.data(), bucket.size());
    }
    const Status verified = slot.verify();
    SlotWord after = slot.word();
    after.frozen = before.frozen;
    if (!verified || after != before) {
      // Torn bytes are excused by a word that has moved, and by nothing else.
      ASSERT_TRUE(verified || verified.error().code == Code::stale) << verified.error().what;
      ++dropped;
      continue;
    }
    for (std::size_t i = 0; i < copy.size(); ++i) {
      ASSERT_EQ(copy[i], content(before.generation, before.step, i)) << "torn at word " << i;
    }
    ++whole;
  }
}

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// Seal and freeze set off at the same instant, again and again: what either says must be what the other says.
TEST(SnapshotThreads, ExactlyOneOfSealAndFreezeWins) {
  ArenaSpec spec;
  spec.job = "threads";
  spec.payload_bytes = 64 * 4096;  // a table long enough for a freeze to fall into the middle of a seal
  spec.bucket_bytes = 4096;
  const std::uint64_t size = (Arena::size_bytes(spec) + 4095) / 4096 * 4096;
  const std::unique_ptr<std::byte, FreeMemory> memory(static_cast<std::byte*>(std::aligned_alloc(4096, size)));
  std::fill_n(memory.get(), size, std::byte{0});
  const Arena arena = *Arena::format({memory.get(), size}, spec);
  const Slot slot = arena.slot(0);
  std::atomic<std::uint64_t> turn{0}, done{0};
  bool sealed = false;
  constexpr std::uint64_t kTurns = 20'000;
  std::thread trainer([&] {
    for (std::uint64_t i = 1; i <= kTurns; ++i) {
      while (turn.load(std::memory_order_acquire) < i) std::this_thread::yield();
      sealed = slot.try_seal(Generation(1), Step(i));
      done.store(i, std::memory_order_release);
    }
  });
  std::uint64_t seals = 0, wrong = 0;
  std::mt19937_64 random(3);
  for (std::uint64_t i = 1; i <= kTurns; ++i) {
    wrong += slot.try_open(slot.word(), Generation(1), Step(i), 0) ? 0 : 1;
    for (std::uint32_t bucket = 0; bucket < slot.buckets().size(); ++bucket)
      slot.bucket_done(bucket, bucket, Generation(1), Step(i));
    if (i % 8 == 1)
      slot.freeze();  // the freeze comes first for certain, the seal in the next case, else as it falls out
    turn.store(i, std::memory_order_release);
    while (i % 8 == 2 && done.load(std::memory_order_acquire) < i) std::this_thread::yield();
    for (std::uint64_t spin = random() % 4000; spin > 0; --spin) (void)done.load(std::memory_order_relaxed);
    const SlotWord frozen = slot.freeze();
    while (done.load(std::memory_order_acquire) < i) std::this_thread::yield();
    wrong += (frozen.state == SlotState::sealed) == sealed && slot.word() == frozen ? 0 : 1;
    seals += sealed ? 1 : 0;
    slot.unfreeze(false);
  }
  trainer.join();
  std::printf("sealed %lu of %lu\n", static_cast<unsigned long>(seals), static_cast<unsigned long>(kTurns));
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(seals, 0u);
  EXPECT_LT(seals, kTurns);
}

TEST(SnapshotThreads, NothingTornEverVerifies) {
  ArenaSpec spec;
  spec.job = "threads";
  spec.payload_bytes = 9 * 4096 + 808;
  spec.bucket_bytes = 4096;
  const std::uint64_t size = (Arena::size_bytes(spec) + 4095) / 4096 * 4096;
  const std::unique_ptr<std::byte, FreeMemory> memory(static_cast<std::byte*>(std::aligned_alloc(4096, size)));
  std::fill_n(memory.get(), size, std::byte{0});
  Job job;
  job.arena = *Arena::format({memory.get(), size}, spec);
  std::uint64_t whole = 0, dropped = 0;
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kCopyThreads; ++i) threads.emplace_back([&] { copy_thread(job); });
  threads.emplace_back([&] { trainer(job); });
  threads.emplace_back([&] { reader(job, whole, dropped); });
  daemon(job);
  job.stop = true;
  for (std::thread& thread : threads) thread.join();
  RecordProperty("whole", static_cast<int>(whole));
  std::printf("sealed %lu, void %lu; the reader saw %lu whole, %lu dropped while it read\n",
              static_cast<unsigned long>(job.sealed_count), static_cast<unsigned long>(job.voided_count),
              static_cast<unsigned long>(whole), static_cast<unsigned long>(dropped));
  EXPECT_GE(job.sealed_count, kGenerations / 4u);
  EXPECT_GT(whole, 0u);
}

}  // namespace
}  // namespace pawl::job
