#include "job/daemon/memory.h"

#include <gtest/gtest.h>

#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

// What the keeper is told, in order.
struct Told {
  std::vector<std::string> words;
  Memory::Keeper keeper() {
    return {.hold = [this](const std::string& name, int) { words.push_back("hold " + name); },
            .drop = [this](const std::string& name) { words.push_back("drop " + name); },
            .let_go =
                [this](ArenaHandle dropped) {
                  if (let_go != nullptr) let_go->push_back(std::move(dropped));
                }};
  }
  std::vector<ArenaHandle>* let_go = nullptr;
};

TEST(MemoryOfANode, TellsTheKeeperWhatIsKeptAndWhatNotAnyMore) {
  Told told;
  Memory memory(real_shared_memory(), told.keeper());
  const ArenaSpec spec = test_arena(ArenaKind::own, Seat(0), 5);
  const auto made = memory.make(spec);
  ASSERT_TRUE(made);
  EXPECT_TRUE(told.words.empty()) << "nobody keeps it yet";
  EXPECT_EQ(memory.find_equal(spec), nullptr);
  memory.put(*made);
  EXPECT_EQ(told.words, std::vector<std::string>{"hold own.0"});
  EXPECT_EQ(memory.find_equal(spec), *made);
  EXPECT_EQ(memory.find_equal(test_arena(ArenaKind::own, Seat(0), 6)), nullptr) << "another layout";
  ArenaSpec of_more = spec;
  of_more.shelf_count = 2;
  EXPECT_EQ(memory.find_equal(of_more), nullptr) << "no room for a second acknowledgement";
  EXPECT_EQ(*memory.arena_for(spec), *made);

  std::vector<ArenaHandle> let_go;
  told.let_go = &let_go;
  memory.put(*memory.make(test_arena(ArenaKind::own, Seat(0), 6)));
  EXPECT_EQ(let_go, std::vector<ArenaHandle>{*made}) << "to give it back takes time by its bytes: not here";
  EXPECT_EQ(told.words, (std::vector<std::string>{"hold own.0", "drop own.0", "hold own.0"}));
}

TEST(SlotsOf, AreHeldByAllOnceEveryHolderHasAcknowledgedTheStepThatIsSealed) {
  Memory memory(real_shared_memory(), nobody_keeps());
  ArenaSpec spec = test_arena(ArenaKind::own, Seat(0));
  spec.shelf_count = 40;
  const auto made = memory.make(spec);
  ASSERT_TRUE(made);
  const Arena& arena = (*made)->arena;
  const Slot slot = arena.slot(1);
  const auto held = [&] { return slots_of(arena).at(1).held_by_all; };
  EXPECT_FALSE(held()) << "there is nothing yet";
  open_step(slot, Generation(1), Step(6));
  for (std::uint32_t i = 0; i < 40; ++i) (void)slot.acknowledge(Generation(1), Step(6), i);
  EXPECT_FALSE(held()) << "it is being written";
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) capture_bucket(slot, i);
  ASSERT_TRUE(slot.try_seal(Generation(1), Step(6)));
  EXPECT_TRUE(held());
  capture_step(slot, Generation(1), Step(8));
  EXPECT_FALSE(held()) << "that was another step";
  for (std::uint32_t i = 0; i < 40; ++i) {
    EXPECT_FALSE(held()) << "holder " << i << " has said nothing";
    EXPECT_TRUE(slot.acknowledge(Generation(1), Step(8), i));
  }
  EXPECT_TRUE(held());
  EXPECT_EQ(slots_of(arena).at(1).word.step, Step(8));
}

TEST(SlotsOf, AreHeldOnceSealedWhereTheSeatFeedsNobody) {
  Memory memory(real_shared_memory(), nobody_keeps());
  ArenaSpec spec = test_arena(ArenaKind::own, Seat(0));
  spec.shelf_count = 0;
  const auto made = memory.make(spec);
  ASSERT_TRUE(made);
  const Slot slot = (*made)->arena.slot(0);
  EXPECT_FALSE(slots_of((*made)->arena).at(0).held_by_all);
  open_step(slot, Generation(1), Step(6));
  EXPECT_FALSE(slots_of((*made)->arena).at(0).held_by_all);
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) capture_bucket(slot, i);
  ASSERT_TRUE(slot.try_seal(Generation(1), Step(6)));
  EXPECT_TRUE(slots_of((*made)->arena).at(0).held_by_all);
}

}  // namespace
}  // namespace pawl::job
