#include "job/daemon/spare_memory.h"

#include <gtest/gtest.h>

#include "env/memory_margin.h"
#include "job/daemon/memory.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// Real segments; but as much memory as the test says, and a making that stands still while it wants it to.
class ScarceMemory final : public SharedMemory {
 public:
  AvailableMemory available() override { return {small, huge, std::uint64_t{2} << 20}; }
  Result<Fd> create(const std::string& name, std::uint64_t size_bytes) override {
    return real_shared_memory().create(name, size_bytes);
  }
  Result<Fd> create_slowly(const std::string& name, std::uint64_t size_bytes, const std::atomic<bool>& until,
                           std::uint64_t left_bytes_min) override {
    left = left_bytes_min;
    ++begun;
    if (refuses) return Error{Code::full, "segment " + name + ": needs more than there is"};
    while (stands_still && !until) std::this_thread::sleep_for(1ms);
    return real_shared_memory().create_slowly(name, size_bytes, until, 0);
  }
  Result<std::uint64_t> size_bytes(int fd) override { return real_shared_memory().size_bytes(fd); }
  Result<Mapping> map(int fd, std::uint64_t size_bytes, MapOptions options) override {
    return real_shared_memory().map(fd, size_bytes, options);
  }

  std::atomic<std::uint64_t> small = std::uint64_t{1} << 40;
  std::atomic<std::uint64_t> huge = 0;
  std::atomic<std::uint64_t> left = 0;  // to others, of what is made slowly
  std::atomic<bool> stands_still = false;
  std::atomic<bool> refuses = false;  // what is made slowly
  std::atomic<int> begun = 0;
};

// Node 2: the spare of a job of two, which has run for a while. A seat's arena is as large as test_arena().
class MemoryOfASpare : public testing::Test {
 protected:
  MemoryOfASpare() {
    node.context.post = [this](std::function<void()> task) { posted.post(std::move(task)); };
    tell_size(0, Arena::size_bytes(spec));
    tell_size(1, Arena::size_bytes(spec));
    node.run_in(JobPhase::running);
  }
  ~MemoryOfASpare() override {
    scarce.stands_still = false;
    settle();
  }
  void tell_size(std::uint32_t id, std::uint64_t bytes) {
    NodeRecord record;
    record.life = test_life(id);
    record.arena_bytes = bytes;
    const std::string value = to_json(record);
    (void)node.context.mirror.apply(node.context.mirror.keys().node(NodeId(id)), &value, ++node.revision,
                                    node.clock.now());
  }
  void look(std::uint32_t arenas = 0) {
    node.pass(6s);
    spare.consider({arenas, 0});
  }
  // Looks, and lets it make, until it wants nothing more.
  void settle() {
    for (int looks = 0; looks < 8; ++looks) {
      look();
      EXPECT_TRUE(posted.run_until([&] { return !spare.is_making(); }));
    }
  }

  ScarceMemory scarce;
  Environment world{real_environment().clock, real_environment().tasks,     real_environment().network,
                    real_environment().files, real_environment().processes, scarce};
  TestNode node{2, 2, world};
  PostedTasks posted;
  std::vector<std::string> refused;
  int changes = 0;
  SpareMemory spare{node.context,
                    {.on_refused = [this](const std::string& why) { refused.push_back(why); },
                     .on_record_changed = [this] { ++changes; }}};
  Memory memory{scarce, nobody_keeps(), &spare};
  const ArenaSpec spec = test_arena(ArenaKind::own, Seat(0), 5);
};

TEST_F(MemoryOfASpare, IsMadeWhileItWaitsAndBecomesItsArenas) {
  settle();
  EXPECT_EQ(spare.ready_count(), 2U) << "one own seat and one ward";
  EXPECT_EQ(memory.ready_bytes(), 2 * Arena::size_bytes(spec));
  EXPECT_EQ(memory.bytes(), 0U);
  ASSERT_TRUE(memory.arena_for(spec));
  ASSERT_TRUE(memory.arena_for(test_arena(ArenaKind::replica, Seat(1))));
  EXPECT_EQ(spare.ready_count(), 0U);
  const Slot slot = memory.find(ArenaKind::own, Seat(0))->arena.slot(0);
  capture_step(slot, Generation(1), Step(7));
  EXPECT_TRUE(slot.verify());
}

TEST_F(MemoryOfASpare, IsNotMadeBeforeTheJobHasRunForAWhile) {
  node.run_in(JobPhase::restoring);
  look();
  node.run_in(JobPhase::running);
  spare.consider({});
  EXPECT_EQ(scarce.begun, 0);
}

TEST_F(MemoryOfASpare, OfAnotherSizeIsLetGo) {
  settle();
  ArenaSpec larger = spec;
  larger.payload_bytes *= 2;
  larger.stable_bytes *= 2;
  tell_size(1, Arena::size_bytes(larger));
  scarce.stands_still = true;
  look();
  EXPECT_EQ(spare.ready_count(), 0U);
  scarce.stands_still = false;
  settle();
  EXPECT_EQ(spare.ready_bytes(), 2 * Arena::size_bytes(larger));
  ASSERT_TRUE(memory.arena_for(spec)) << "a smaller arena fits, too";
  EXPECT_EQ(spare.ready_count(), 1U);
}

TEST_F(MemoryOfASpare, IsKeptWhenAllMembersDie) {
  settle();
  tell_size(0, 0);  // started again, as a spare
  const std::string key = node.context.mirror.keys().node(NodeId(1));
  (void)node.context.mirror.apply(key, nullptr, ++node.revision, node.clock.now());
  settle();
  EXPECT_EQ(spare.ready_count(), 2U) << "it gets one of their seats";
  EXPECT_EQ(scarce.begun, 2);
}

// Own seats' arenas have a third slot in a job with checkpoints, and those of wards have two.
TEST_F(MemoryOfASpare, OfAWardHasNoThirdSlot) {
  ArenaSpec own = spec;
  own.payload_bytes = own.stable_bytes = std::uint64_t{4} << 20;
  ArenaSpec ward = test_arena(ArenaKind::replica, Seat(1));
  ward.payload_bytes = ward.stable_bytes = own.payload_bytes;
  own.slot_count = 3;
  JobSpec with_checkpoints = node.context.mirror.spec();
  with_checkpoints.checkpoints.path = "/checkpoints";
  node.context.mirror.set_spec(with_checkpoints);
  for (const std::uint32_t member : {0, 1}) tell_size(member, Arena::size_bytes(own));
  settle();
  ASSERT_EQ(spare.ready_count(), 2U);
  EXPECT_LT(spare.ready_bytes(), Arena::size_bytes(own) + Arena::size_bytes(ward) + (std::uint64_t{1} << 20));
  ASSERT_TRUE(memory.arena_for(ward)) << "whichever comes first";
  EXPECT_EQ(spare.ready_bytes(), Arena::size_bytes(own)) << "the smaller one is taken";
  ASSERT_TRUE(memory.arena_for(own));
  EXPECT_EQ(spare.ready_count(), 0U);
}

TEST_F(MemoryOfASpare, WhatAMemberDoesNotNeedIsLetGo) {
  settle();
  node.state.seats[0].life = test_life(2);
  node.run_in(JobPhase::restoring);
  look(0);
  EXPECT_EQ(spare.ready_count(), 2U);
  look(1);
  EXPECT_EQ(spare.ready_count(), 1U);
  look(2);
  EXPECT_EQ(spare.ready_count(), 0U);
  EXPECT_EQ(scarce.begun, 2) << "a member makes none";
}

TEST_F(MemoryOfASpare, EndsWithTheJob) {
  settle();
  node.run_in(JobPhase::finished);
  look();
  EXPECT_EQ(spare.ready_bytes(), 0U);
}

// A seat must not wait for what is made slowly.
TEST_F(MemoryOfASpare, IsNotWaitedForWhileItIsMade) {
  scarce.stands_still = true;
  look();
  ASSERT_TRUE(posted.run_until([&] { return scarce.begun == 1; }));
  const auto made = memory.make(spec);
  ASSERT_TRUE(made);
  EXPECT_FALSE(spare.is_making());
}

TEST_F(MemoryOfASpare, TooLittleIsSaidOnceWithTheArithmeticAndTakesItsHealth) {
  scarce.small = 2 * Arena::size_bytes(spec);  // and nothing for the others
  look();
  look();
  EXPECT_FALSE(spare.fits());
  ASSERT_EQ(refused.size(), 1U);
  for (const char* words : {"to be a spare", "1 own seat(s) and 1 replica(s) of others", "are available"})
    EXPECT_NE(refused[0].find(words), std::string::npos) << refused[0];
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(scarce.begun, 0);
  scarce.small = 3 * Arena::size_bytes(spec);
  settle();
  EXPECT_TRUE(spare.fits());
  EXPECT_EQ(changes, 2);
  EXPECT_EQ(spare.ready_count(), 2U);
}

TEST_F(MemoryOfASpare, OneThatWasRefusedIsAcceptedWhileARecoveryWaitsForASpare) {
  scarce.small = Arena::size_bytes(spec);
  look();
  EXPECT_FALSE(spare.fits());
  node.run_in(JobPhase::quiescing);
  look();
  EXPECT_FALSE(spare.fits());
  scarce.small = 3 * Arena::size_bytes(spec);
  look();
  EXPECT_TRUE(spare.fits());
  EXPECT_EQ(changes, 2) << "its registration says so";
  EXPECT_EQ(scarce.begun, 0) << "members need theirs first";
}

TEST_F(MemoryOfASpare, ReservedPagesThatHoldNoWholeArenaDoNotCount) {
  scarce.small = 2 * Arena::size_bytes(spec);
  scarce.huge = std::uint64_t{1} << 20;
  look();
  EXPECT_FALSE(spare.fits());
}

TEST_F(MemoryOfASpare, LeavesAMarginWhileItIsMade) {
  settle();
  EXPECT_EQ(spare.ready_count(), 2U);
  EXPECT_EQ(scarce.left, memory_margin_bytes(scarce.small));
}

// What it has itself counts: else it would refuse itself once it is done.
TEST_F(MemoryOfASpare, WhatIsReadyCountsAsAvailable) {
  settle();
  scarce.small = 0;
  look();
  EXPECT_TRUE(spare.fits());
}

// Nor while it makes some: what is there of them already is taken, and not ready yet.
TEST_F(MemoryOfASpare, WhatItMakesDoesNotRefuseIt) {
  scarce.stands_still = true;
  look();
  ASSERT_TRUE(posted.run_until([&] { return scarce.begun == 1; }));
  scarce.small = Arena::size_bytes(spec);
  look();
  EXPECT_TRUE(spare.fits());
  EXPECT_EQ(refused.size(), 0U);
  scarce.small = 3 * Arena::size_bytes(spec);
}

TEST_F(MemoryOfASpare, ThatCouldNotBeMadeTakesItsHealthUntilItIs) {
  scarce.refuses = true;
  settle();
  EXPECT_FALSE(spare.fits());
  ASSERT_EQ(refused.size(), 1U) << "said once";
  EXPECT_NE(refused[0].find("needs more than there is"), std::string::npos) << refused[0];
  EXPECT_GT(scarce.begun, 1) << "it tries again";
  scarce.refuses = false;
  settle();
  EXPECT_TRUE(spare.fits());
  EXPECT_EQ(changes, 2);
  EXPECT_EQ(spare.ready_count(), 2U);
}

TEST_F(MemoryOfASpare, AnArenaOfAnotherSizeIsTold) {
  spare.consider({1, 4096});
  EXPECT_EQ(changes, 1);
  look(1);
  EXPECT_EQ(changes, 2);
}

}  // namespace
}  // namespace pawl::job
