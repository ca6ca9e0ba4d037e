#include "job/daemon/trainer_pages.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"
#include "job/daemon/trainer_watch.h"
#include "pawl/pawl.h"

namespace pawl::job {
namespace {

constexpr Generation kGeneration{1};

// Node 0 of two, with room for two trainers; one is there.
class Pages : public testing::Test {
 protected:
  Pages() { process.shared.event = std::move(*real_network().make_event()); }
  void sit(JobPhase phase = JobPhase::running) {
    node.run_in(phase);
    process.seat = Seat(0);
    process.seated = kGeneration;
  }
  TrainerPage& page() { return *process.shared.page; }
  bool is_woken() { return process.shared.event->lower(); }
  ArenaHandle arena() { return *memory.arena_for(test_arena(ArenaKind::own, Seat(0))); }

  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Memory memory{real_shared_memory(), nobody_keeps()};
  Trainers trainers{*loop, 2, "test", nullptr, no_handlers()};
  TrainerProcess& process = trainers.places()[0];
  TestTrainer trainer{*loop, process};
  TrainerPages pages{node.context, trainers, memory};
};

TEST_F(Pages, SayWhoATrainerIs) {
  pages.write_all();
  EXPECT_EQ(page().world.load(), 2u);
  EXPECT_EQ(page().role.load(), std::uint64_t{PAWL_ROLE_UNKNOWN});
  node.run_in(JobPhase::running);
  pages.write_all();
  EXPECT_EQ(page().role.load(), std::uint64_t{PAWL_ROLE_SPARE});
  sit();
  pages.write_all();
  EXPECT_EQ(page().role.load(), std::uint64_t{PAWL_ROLE_SEATED});
  EXPECT_EQ(page().stop_step.load(), 0u);
  const std::string stop = R"({"step":9})";
  (void)node.context.mirror.apply(node.context.mirror.keys().stop(), &stop, ++node.revision, node.clock.now());
  pages.write_all();
  EXPECT_EQ(page().stop_step.load(), 9u);
}

TEST_F(Pages, ShowProgressToWhoHasASeatAndWakeItForACommit) {
  node.run_in(JobPhase::running);
  pages.show({Step(7), 1}, true);
  EXPECT_EQ(page().progress.load(), 0u);
  EXPECT_FALSE(is_woken());
  sit();
  pages.show({Step(7), 1}, false);
  EXPECT_EQ(Progress::unpack(page().progress.load()), (Progress{Step(7), 1}));
  EXPECT_FALSE(is_woken());
  pages.show({Step(8), 0}, true);
  EXPECT_EQ(Progress::unpack(page().progress.load()), (Progress{Step(8), 0}));
  EXPECT_TRUE(is_woken());
}

TEST_F(Pages, OpenTheWindowsAndAnswerWhoIsDone) {
  sit();
  node.state.resume = Step(41);
  (void)node.learn();
  trainer.asks(DoneMessage{kGeneration}, 5);
  pages.open_windows(true);
  EXPECT_EQ(page().generation.load(), 1u);
  EXPECT_EQ(page().resume_step.load(), 41u);
  EXPECT_EQ(page().gate_off.load(), 1u);
  const auto answers = trainer.answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].id, 5u);
  EXPECT_EQ(message_in<RunningMessage>(answers[0])->generation, kGeneration);
  pages.open_windows(false);
  EXPECT_EQ(page().gate_off.load(), 0u);
  EXPECT_TRUE(trainer.answers().empty());
}

TEST_F(Pages, RememberWhatThePawldBeforeThisOneKnew) {
  sit();
  EXPECT_EQ(pages.known_committed({Step(3), 0}), Step(3));
  page().progress.store(Progress{Step(8), 2}.pack());
  EXPECT_EQ(pages.known_committed({Step(3), 0}), Step(8));
  EXPECT_EQ(pages.known_committed({Step(9), 0}), Step(9));
  node.state.ran = Generation(2);
  (void)node.learn();
  EXPECT_EQ(pages.known_committed({Step(3), 0}), Step(3));
}

// A returning pawld puts a new process in the place of one that died meanwhile, and only then says what it knows.
TEST_F(Pages, RememberWhatThePageOfADeadTrainerSaid) {
  Fd fd = *real_shared_memory().create("test.page", kTrainerPageBytes);
  const Mapping mapping = *real_shared_memory().map(fd.get(), kTrainerPageBytes, {.populate = true});
  TrainerPage* const left = *initialise_page(mapping.bytes());
  left->progress.store(Progress{Step(57), 0}.pack());
  left->generation.store(1);
  ASSERT_TRUE(trainers.adopt_page(1, std::move(fd)));
  node.learn(JobPhase::quiescing);
  int spawned = 0;
  TrainerWatch watch{node.context,
                     trainers,
                     node.mover,
                     {.spawn = [&](std::uint32_t, std::span<const std::string>) { ++spawned; },
                      .kill = [](std::uint32_t) {},
                      .on_parked_changed = [] {},
                      .state_of = [](std::uint64_t) { return Result<char>('R'); }}};
  watch.start_missing();
  EXPECT_EQ(spawned, 1);
  EXPECT_EQ(pages.known_committed({}), Step(57));
  EXPECT_EQ(pages.known_committed({Step(60), 0}), Step(60));
  node.state.ran = Generation(2);  // which went on from an earlier step
  (void)node.learn();
  EXPECT_EQ(pages.known_committed({Step(50), 0}), Step(50));
}

TEST_F(Pages, AReturningPawldRejoinsATrainerThatRunsInTheGeneration) {
  sit();
  process.seated = process.done = Generation(0);
  page().progress.store(Progress{Step(8), 2}.pack());
  EXPECT_EQ(pages.rejoin({Step(3), 0}), (Progress{Step(3), 0}));  // it has not begun the generation
  EXPECT_EQ(process.seated, Generation(0));
  page().generation.store(1);
  EXPECT_EQ(pages.rejoin({Step(3), 0}), (Progress{Step(8), 2}));
  EXPECT_EQ(process.seated, kGeneration);
  EXPECT_EQ(process.done, kGeneration);
}

TEST_F(Pages, ReportWhatTheHoldersHave) {
  const Progress known{Step(10), 0};
  EXPECT_EQ(pages.report(known), (SeatReport{known, 0, 0}));  // no seat here
  sit();
  EXPECT_EQ(pages.report(known), (SeatReport{known, 0, 0}));  // no arena
  const Slot slot = arena()->arena.slot(0);
  capture_step(slot, kGeneration, Step(11));
  page().reached.store(11);
  EXPECT_EQ(pages.report(known), (SeatReport{known, 0, 0}));  // sealed, but no holder has it
  ASSERT_TRUE(slot.acknowledge(kGeneration, Step(11), 0));
  EXPECT_EQ(pages.report(known), (SeatReport{known, 1, 0}));
  process.seated = Generation(0);
  EXPECT_EQ(pages.report(known), (SeatReport{known, 0, 0}));  // it may still be restoring into that arena
}

TEST_F(Pages, ReportAStepThatWasSkippedAsVoid) {
  sit();
  capture_step(arena()->arena.slot(0), kGeneration, Step(12));
  page().reached.store(12);
  EXPECT_EQ(pages.report({Step(10), 0}).known, (Progress{Step(10), 1}));  // step 11
}

TEST_F(Pages, ReportAStepThatWasGivenUpAsVoid) {
  sit();
  capture_step(arena()->arena.slot(0), kGeneration, Step(11));
  page().reached.store(11);
  EXPECT_EQ(pages.report({Step(10), 0}).known, (Progress{Step(10), 0}));
  ASSERT_TRUE(arena()->arena.slot(0).try_give_up(kGeneration, Step(11)));
  EXPECT_EQ(pages.report({Step(10), 0}).known, (Progress{Step(10), 1}));
}

TEST_F(Pages, ALastStepIsGivenUpIfNoSlotHasItAnyMore) {
  sit();
  process.last_steps.commit_first = Step(11);
  EXPECT_FALSE(pages.has_given_up_last(process));  // no arena
  const Slot slot = arena()->arena.slot(0);
  EXPECT_FALSE(pages.has_given_up_last(process));  // its window has not come so far
  capture_step(slot, kGeneration, Step(11));
  page().reached.store(11);
  EXPECT_FALSE(pages.has_given_up_last(process));
  ASSERT_TRUE(slot.try_give_up(kGeneration, Step(11)));
  EXPECT_TRUE(pages.has_given_up_last(process));
  process.last_steps.commit_first = Step(0);  // it has had no window
  EXPECT_FALSE(pages.has_given_up_last(process));
}

TEST_F(Pages, ReportOnlyWhatAllSeatsOfTheNodeHold) {
  node.state.seats.push_back({Seat(2), test_life(0), "", 1});
  sit();
  TrainerProcess& second = trainers.places()[1];
  TestTrainer its_trainer{*loop, second};
  second.seat = Seat(2);
  second.seated = kGeneration;
  for (const Seat seat : {Seat(0), Seat(2)}) {
    EXPECT_EQ(pages.report({Step(10), 0}).held, 0u);
    const Slot slot = (*memory.arena_for(test_arena(ArenaKind::own, seat)))->arena.slot(0);
    capture_step(slot, kGeneration, Step(11));
    ASSERT_TRUE(slot.acknowledge(kGeneration, Step(11), 0));
    trainers.at_seat(seat)->shared.page->reached.store(11);
  }
  EXPECT_EQ(pages.report({Step(10), 0}).held, 1u);
}

}  // namespace
}  // namespace pawl::job
