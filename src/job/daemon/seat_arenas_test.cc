#include "job/daemon/seat_arenas.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

class ArenasOfSeats : public testing::Test {
 protected:
  ArenasOfSeats() {
    node.context.post = [this](std::function<void()> task) { posted.post(std::move(task)); };
    node.run_in(JobPhase::restoring);
  }
  TestNode node;
  PostedTasks posted;
  Memory memory{real_shared_memory(), nobody_keeps()};
  SeatArenas arenas{node.context, memory};
  ArenaSpec spec = test_arena(ArenaKind::own, Seat(0), 5);
  ArenaSpec other = test_arena(ArenaKind::own, Seat(0), 6);
};

TEST_F(ArenasOfSeats, TheSameLayoutGetsTheSameArena) {
  const auto first = arenas.own(spec);
  ASSERT_TRUE(first);
  capture_step((*first)->arena.slot(0), Generation(1), Step(7));
  const auto second = arenas.own(spec);
  ASSERT_TRUE(second);
  EXPECT_EQ(*first, *second);
}

TEST_F(ArenasOfSeats, AnotherLayoutReplacesAnArenaWithoutASnapshot) {
  const auto first = arenas.own(spec);
  open_step((*first)->arena.slot(0), Generation(1), Step(7));
  const auto second = arenas.own(other);
  ASSERT_TRUE(second);
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0))->arena.spec().layout_digest, 6u);
}

TEST_F(ArenasOfSeats, AnotherLayoutMustNotReplaceASnapshot) {
  const auto first = arenas.own(spec);
  capture_step((*first)->arena.slot(1), Generation(1), Step(7));
  const auto second = arenas.own(other);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::invalid);
  EXPECT_NE(second.error().what.find("the layout of its snapshot differs"), std::string::npos) << second.error().what;
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), *first);
}

TEST_F(ArenasOfSeats, AColdRestartForgetsTheSnapshot) {
  const auto first = arenas.own(spec);
  capture_step((*first)->arena.slot(1), Generation(1), Step(7));
  node.state.cold = true;
  (void)node.learn();
  EXPECT_TRUE(arenas.own(other));
}

TEST_F(ArenasOfSeats, TasksAskTheLoopAndWait) {
  Result<ArenaHandle> own = Error{Code::io, "not asked"};
  Result<ArenaHandle> replica = Error{Code::io, "not asked"};
  ArenaHandle found;
  ArenaHandle missing;
  std::atomic<bool> done{false};
  std::thread task([&] {
    own = arenas.own_from_thread(spec);
    replica = arenas.replica_from_thread(test_arena(ArenaKind::replica, Seat(1)));
    found = arenas.find_from_thread(ArenaKind::replica, Seat(1));
    missing = arenas.find_from_thread(ArenaKind::replica, Seat(0));
    done = true;
  });
  EXPECT_TRUE(posted.run_until([&] { return done.load(); }));
  task.join();
  ASSERT_TRUE(own);
  EXPECT_EQ(*own, memory.find(ArenaKind::own, Seat(0)));
  ASSERT_TRUE(replica);
  EXPECT_EQ(*replica, found);
  EXPECT_EQ(missing, nullptr);
}

}  // namespace
}  // namespace pawl::job
