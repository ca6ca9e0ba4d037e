#include "job/daemon/protection_watch.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// Node 0 of two; its replica goes to node 1, whom nobody plays.
class Watched : public testing::Test {
 protected:
  Watched() {
    trainer.process().seat = Seat(0);
    trainer.process().seated = Generation(1);
    node.run_in(JobPhase::running);
    watch.begin();
  }
  void pass(Duration time, std::uint64_t reached) {
    trainer.process().shared.page->reached.store(reached);
    while (time > 0s) {
      node.pass(1s);
      time -= 1s;
    }
  }

  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Memory memory{real_shared_memory(), nobody_keeps()};
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  TestTrainer trainer{*loop, trainers.places()[0]};
  SeatArenas arenas{node.context, memory};
  std::atomic<std::uint64_t> bits{0};
  Streams streams{node.context, memory, arenas,
                  node.holds,   bits,   {.hello = [](Purpose) { return Hello{}; }, .on_held = [] {}}};
  Progress progress;
  std::vector<NodeId> cut;
  ProtectionWatch watch{
      {node.context, trainers, memory, streams, node.events}, [this] { return progress; }, [this] { return cut; }};
};

TEST_F(Watched, AStopAndItsEndAreToldAndWhyIsKnownMeanwhile) {
  const ArenaHandle arena = *memory.arena_for(test_arena(ArenaKind::own, Seat(0)));
  arena->arena.slot(0).freeze();  // left behind by a recovery
  pass(20s, 0);
  EXPECT_EQ(node.control.tells, 0);  // no window yet: nothing to protect
  EXPECT_TRUE(watch.stopped_by().empty());
  pass(20s, 5);
  EXPECT_EQ(node.control.tells, 1);
  EXPECT_EQ(watch.stopped_by(),
            std::vector<std::string>{"seat 0: nothing after step 0 is protected: its slot 0 is frozen, at step 0"});
  pass(60s, 50);
  EXPECT_EQ(node.control.tells, 1);  // once
  progress.committed = Step(50);
  pass(4s, 51);
  EXPECT_EQ(node.control.tells, 2);
  EXPECT_TRUE(watch.stopped_by().empty());
}

TEST_F(Watched, ACutLinkOfTheProgressTreeIsToldAndNamed) {
  const ArenaHandle arena = *memory.arena_for(test_arena(ArenaKind::own, Seat(0)));
  cut = {NodeId(1)};
  pass(20s, 0);
  pass(20s, 5);
  EXPECT_EQ(node.control.tells, 1);
  ASSERT_FALSE(watch.stopped_by().empty());
  EXPECT_EQ(watch.stopped_by()[0].rfind("nothing after step 0 is committed: no link stands to node 1", 0), 0u)
      << watch.stopped_by()[0];
}

TEST_F(Watched, AStepThatWasGivenUpIsToldAndCounted) {
  watch.on_given_up({.seat = Seat(0), .step = Step(7), .bucket = 2, .is_own_wrong = true, .holder = NodeId(1)});
  node.pass(kEventDelay);
  EXPECT_EQ(node.control.tells, 1);
  EXPECT_EQ(node.context.metrics.counter("steps_given_up_total", "").value(), 1u);
}

TEST_F(Watched, NobodyLooksWhileTheJobIsNotRunning) {
  (void)memory.arena_for(test_arena(ArenaKind::own, Seat(0)));
  node.learn(JobPhase::quiescing);
  pass(60s, 50);
  EXPECT_EQ(node.control.tells, 0);
  EXPECT_TRUE(node.timers.empty());
}

}  // namespace
}  // namespace pawl::job
