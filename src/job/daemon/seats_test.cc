// Seats on a node with two of them; the flow from the start to a running job is in generations_test.cc.
#include "job/daemon/seats.h"

#include <gtest/gtest.h>

#include <array>
#include <tuple>

#include "base/digest.h"
#include "job/daemon/test_layout.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"
#include "job/layout/seat_layout.h"
#include "pawl/pawl.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class TwoSeats : public testing::Test {
 protected:
  TwoSeats() : TwoSeats(world_with_arenas_at_once()) {}
  explicit TwoSeats(const Environment& environment) : node(1, 0, environment) {
    JobSpec spec = node.context.mirror.spec();
    spec.seats_per_node = 2;
    node.context.mirror.set_spec(spec);
    node.state.seats = {{Seat(0), test_life(0), "", 0}, {Seat(1), test_life(0), "", 1}};
    node.state.leader = test_life(9);  // so this node only reports
    node.state.lineage = {{Generation(1), Step(0)}};
    node.run_in(JobPhase::restoring);
    seats.take();
    rendezvous.enter();
    imports.begin();
  }
  template <class Message>
  void ask(TestTrainer& trainer, const Message& message, std::uint64_t id = 1) {
    seats.on_request(trainer.process(), trainer.asks(message, id));
  }
  void declare(TestTrainer& trainer, std::uint64_t rows, std::uint64_t capacity = 0) {
    ask(trainer, declaration_of(test_layout(rows, capacity)));
  }
  static void capture(const Slot& slot, Step step) {
    ASSERT_TRUE(slot.try_open(slot.word(), Generation(1), step, 0));
    for (std::uint32_t i = 0; i < slot.buckets().size(); ++i)
      slot.bucket_done(i, crc32c(slot.bucket(i)), Generation(1), step);
    ASSERT_TRUE(slot.try_seal(Generation(1), step));
  }
  template <class Message>
  static std::optional<Message> answer(TestTrainer& trainer) {
    for (const Frame& frame : trainer.answers())
      if (auto message = message_in<Message>(frame)) return *message;
    return std::nullopt;
  }
  std::vector<Cause> causes() {
    node.mover.drive();
    if (node.control.swaps.empty()) return {};
    return parse_job_state(node.control.swaps.back().value)->causes;
  }

  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Memory memory{real_shared_memory(), nobody_keeps()};
  Trainers trainers{*loop, 2, "test", nullptr, no_handlers()};
  TestTrainer first{*loop, trainers.places()[0]};
  TestTrainer second{*loop, trainers.places()[1]};
  SeatArenas arenas{node.context, memory};
  TrainerWatch watch{node.context,
                     trainers,
                     node.mover,
                     {.spawn = [](std::uint32_t, std::span<const std::string>) {},
                      .kill = [](std::uint32_t) {},
                      .on_parked_changed = [] {},
                      .state_of = [](std::uint64_t) { return Result<char>('R'); }}};
  RendezvousLog log{real_shared_memory(), "test", [](const std::string&, int) {}};
  RendezvousServer rendezvous{node.clock,
                              log,
                              {.generation = [this] { return node.context.mirror.generation(); },
                               .is_root = [] { return true; },
                               .send_to_root = [](std::uint64_t, const RendezvousRequest&) { return true; }}};
  std::atomic<std::uint64_t> progress{0};
  Streams streams{node.context, memory,   arenas,
                  node.holds,   progress, {.hello = [](Purpose) { return Hello{}; }, .on_held = [] {}}};
  Imports imports{node.context, trainers, arenas, streams, node.mover, node.events, [](Purpose) { return Hello{}; }};
  JobEnd job_end{node.context,
                 trainers,
                 node.mover,
                 [] { return Progress{}; },
                 {.is_given_up = [](const TrainerProcess&) { return false; }, .do_again = {}}};
  ReportSender reports{*loop, node.context, {.hello = [](Purpose) { return Hello{}; }, .collect_here = {}}};
  Seats seats{{node.context, trainers, memory, arenas, imports, streams, watch, rendezvous, job_end, node.mover,
               node.holds, reports}};
};

TEST_F(TwoSeats, TheStateSaysWhoSitsWhere) {
  EXPECT_EQ(first.process().seat, Seat(0));
  EXPECT_EQ(second.process().seat, Seat(1));
  EXPECT_EQ(trainers.at_seat(Seat(1)), &second.process());
  node.state.seats[1].life = test_life(0, 9);  // another life of this node has it
  (void)node.learn();
  seats.take();
  EXPECT_FALSE(second.process().seat);
  node.state.seats[1] = {Seat(1), test_life(0), "", 7};  // of a node with more trainers
  (void)node.learn();
  seats.take();
  EXPECT_FALSE(second.process().seat);
}

TEST_F(TwoSeats, AJoinIsAnsweredOnceAGeneration) {
  node.holds.set("seated");
  ask(second, JoinMessage{});
  seats.answer_waiting();
  EXPECT_FALSE(answer<SeatedMessage>(second));
  node.holds.release_all();
  seats.answer_waiting();
  const auto seated = answer<SeatedMessage>(second);
  ASSERT_TRUE(seated);
  EXPECT_EQ(seated->seat, Seat(1));
  EXPECT_EQ(seated->local_rank, 1u);
  EXPECT_EQ(seated->world, 2u);
  ask(second, JoinMessage{}, 2);
  seats.answer_waiting();
  EXPECT_FALSE(answer<SeatedMessage>(second));  // it waits for a further generation
  first.process().dying = true;
  ask(first, JoinMessage{});
  seats.answer_waiting();
  EXPECT_FALSE(answer<SeatedMessage>(first));
}

TEST_F(TwoSeats, EqualLayoutsGetTheirArenas) {
  declare(second, 5);
  EXPECT_FALSE(answer<ArenaMessage>(second));  // seat 0's is not known yet
  declare(first, 5);
  EXPECT_TRUE(answer<ArenaMessage>(first));
  EXPECT_TRUE(answer<ArenaMessage>(second));
  EXPECT_TRUE(causes().empty());
}

// The larger seat counts, whichever comes first. (Each may hold what the other one doesn't share.)
TEST_F(TwoSeats, TogetherNeedNoMoreThanTheBudget) {
  JobSpec spec = node.context.mirror.spec();
  spec.memory_bytes = 1;
  node.context.mirror.set_spec(spec);
  declare(first, 5);
  const auto refused = answer<RefusedMessage>(first);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->why.find("--memory allows too little"), std::string::npos) << refused->why;
  spec.memory_bytes = std::uint64_t{1} << 30;
  node.context.mirror.set_spec(spec);
  declare(first, 5, 0);
  const auto granted = answer<ArenaMessage>(first);
  ASSERT_TRUE(granted);
  spec.memory_bytes = 2 * granted->size_bytes;
  node.context.mirror.set_spec(spec);
  declare(second, 5, 1 << 20);
  const auto larger = answer<RefusedMessage>(second);
  ASSERT_TRUE(larger) << "it is the second one on this node, and larger";
  EXPECT_NE(larger->why.find("--memory allows too little"), std::string::npos) << larger->why;
  declare(second, 5);
  EXPECT_TRUE(answer<ArenaMessage>(second));
}

// Its own on each seat but for what it declares equal; shared_text says nothing of it.
SeatLayout layout_with_equal(std::uint64_t rows, std::uint64_t own_rows, std::uint32_t equal_axes = 1) {
  LayoutBuilder builder(2);
  EXPECT_TRUE(builder.add_mesh({"dense", {{"dp", 2}}}));
  for (const auto& [name, count, axes] : {std::tuple("own", own_rows, 0u), std::tuple("wte", rows, equal_axes)}) {
    LayoutEntry entry;
    entry.name = name;
    entry.role = "weight";
    entry.shape = {count, 3};
    entry.box = whole_box(entry.shape);
    entry.mesh = 0;
    entry.placement = TensorPlacement::unique;
    entry.equal_axes = axes;
    EXPECT_TRUE(builder.add(entry));
  }
  return *builder.build();
}

TEST_F(TwoSeats, SeatsOfAGroupWithEqualStateGetTheirArenasWhereverItLies) {
  ask(first, declaration_of(layout_with_equal(1000, 1)));
  ask(second, declaration_of(layout_with_equal(1000, 100)));
  EXPECT_TRUE(answer<ArenaMessage>(first));
  EXPECT_TRUE(answer<ArenaMessage>(second));
  EXPECT_TRUE(causes().empty());
}

// Less than a bucket can't be proven: what the planner counted on and nobody can read would cost spare after spare.
TEST_F(TwoSeats, WhatIsOfferedToOthersIsWholeBuckets) {
  ask(first, declaration_of(layout_with_equal(1000, 1)));
  ASSERT_TRUE(answer<ArenaMessage>(first));
  const std::vector<EqualOffer> offers = memory.equal_offers();
  ASSERT_EQ(offers.size(), 1u);
  EXPECT_EQ(offers[0].state.extent, (Extent{4096, kStreamEnd})) << "12 bytes before it are its own";
  ask(second, declaration_of(layout_with_equal(1000, 1000)));
  ASSERT_TRUE(answer<ArenaMessage>(second));
  EXPECT_EQ(memory.equal_offers().back().state.extent, (Extent{12288, kStreamEnd}));
}

TEST_F(TwoSeats, LessThanABucketIsNotOffered) {
  ask(first, declaration_of(layout_with_equal(5, 1)));
  EXPECT_TRUE(answer<ArenaMessage>(first));
  EXPECT_TRUE(memory.equal_offers().empty());
}

TEST_F(TwoSeats, SeatsOfAGroupThatDeclareDifferentStateAreRefusedByName) {
  ask(first, declaration_of(layout_with_equal(5, 1)));
  ask(second, declaration_of(layout_with_equal(6, 1)));
  EXPECT_TRUE(answer<ArenaMessage>(first));
  const auto refused = answer<RefusedMessage>(second);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->why.find("group 'dense: dp': seats 0 and 1 should have the same state"), std::string::npos)
      << refused->why;
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].kind, FaultKind::layout_conflict);
}

TEST_F(TwoSeats, LayoutsThatDisagreeAreRefusedWithTheDifference) {
  declare(first, 5);
  declare(second, 6);
  EXPECT_TRUE(answer<ArenaMessage>(first));
  const auto refused = answer<RefusedMessage>(second);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->why.find("tensor wte (weight): [5,3]"), std::string::npos) << refused->why;
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].kind, FaultKind::layout_conflict);
  EXPECT_EQ(reported[0].seat, Seat(1));
}

TEST_F(TwoSeats, ALayoutThatCanNotBeReadIsRefused) {
  LayoutMessage message;
  message.payload_bytes = message.stable_bytes = 4096;
  message.bucket_bytes = 4096;
  message.layout = "no layout";
  message.layout_digest = digest_of(message.layout);
  declare(first, 5);
  ask(second, message);
  auto refused = answer<RefusedMessage>(second);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->why.find("this seat's layout"), std::string::npos) << refused->why;
  ++message.layout_digest;
  ask(second, message);
  refused = answer<RefusedMessage>(second);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->why.find("the layout's digest"), std::string::npos) << refused->why;
}

TEST_F(TwoSeats, ARestoredSnapshotBringsItsLayoutWithIt) {
  node.state.resume = Step(41);
  (void)node.learn();
  declare(second, 6);
  EXPECT_TRUE(answer<ArenaMessage>(second));
}

TEST_F(TwoSeats, ABlobGetsTheCapacityOfTheSnapshotThatLiesHere) {
  declare(first, 5, 100);
  ASSERT_TRUE(answer<ArenaMessage>(first));
  const ArenaHandle held = memory.find(ArenaKind::own, Seat(0));
  capture(held->arena.slot(1), Step(41));
  memory.freeze_all();
  node.state.resume = Step(41);
  node.state.sources = {{Seat(0), SourceKind::own_arena, test_life(0), Generation(1), Step(41)}};
  (void)node.learn();
  imports.begin();
  for (const std::uint64_t capacity : {10u, 9000u}) {
    declare(first, 5, capacity);
    EXPECT_TRUE(answer<ArenaMessage>(first));
    EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), held);
  }
  declare(first, 6, 10);
  const auto refused = answer<RefusedMessage>(first);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->why.find("tensor wte (weight)"), std::string::npos) << refused->why;
}

// A communication hook, say, which is there only from the third step on: a process that begins anew has not got it yet.
TEST_F(TwoSeats, ASnapshotIsRestoredWhateverIsDeclaredEqualNowAndOnlyWhatBothSayIsOffered) {
  const SeatLayout with = layout_with_equal(1000, 1, 1);
  const SeatLayout without = layout_with_equal(1000, 1, 0);
  ask(first, declaration_of(with));
  ask(second, declaration_of(without));
  ASSERT_TRUE(answer<ArenaMessage>(first));
  ASSERT_TRUE(answer<ArenaMessage>(second));
  const std::array held{memory.find(ArenaKind::own, Seat(0)), memory.find(ArenaKind::own, Seat(1))};
  for (const ArenaHandle& arena : held) capture(arena->arena.slot(1), Step(41));
  ASSERT_EQ(memory.equal_offers().size(), 1u);
  memory.freeze_all();
  node.state.resume = Step(41);
  node.state.sources = {{Seat(0), SourceKind::own_arena, test_life(0), Generation(1), Step(41)},
                        {Seat(1), SourceKind::own_arena, test_life(0), Generation(1), Step(41)}};
  (void)node.learn();
  imports.begin();
  ask(first, declaration_of(without));
  ask(second, declaration_of(with));
  EXPECT_TRUE(answer<ArenaMessage>(first));
  EXPECT_TRUE(answer<ArenaMessage>(second));
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), held[0]);
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(1)), held[1]);
  EXPECT_TRUE(memory.equal_offers().empty());
  ask(first, declaration_of(with));
  EXPECT_TRUE(answer<ArenaMessage>(first));
  EXPECT_EQ(memory.equal_offers().size(), 1u);
}

// Nothing proves it: a seat that has, or declares, anything else than the other does not go on from it.
TEST_F(TwoSeats, WhatCameFromAnotherSeatAloneIsOfThatVeryDeclaration) {
  node.state.resume = Step(41);
  node.state.sources = {{Seat(0), SourceKind::path, test_life(5), Generation(1), Step(41), {}, Seat(1)},
                        {Seat(1), SourceKind::own_arena, test_life(5), Generation(1), Step(41)}};
  const SeatLayout with = layout_with_equal(1000, 1, 1);
  const LayoutMessage captured = declaration_of(with);
  ArenaSpec spec;
  spec.job = node.context.job;
  spec.seat = Seat(0);
  spec.kind = ArenaKind::own;
  spec.bucket_bytes = captured.bucket_bytes;
  spec.payload_bytes = captured.payload_bytes;
  spec.stable_bytes = captured.stable_bytes;
  spec.layout = captured.layout;
  spec.layout_digest = captured.layout_digest;
  capture((*memory.arena_for(spec))->arena.slot(1), Step(41));
  memory.freeze_all();
  (void)node.learn();
  imports.begin();
  ask(first, captured);
  EXPECT_TRUE(answer<ArenaMessage>(first));
  EXPECT_TRUE(causes().empty());
  ask(first, declaration_of(layout_with_equal(1000, 1, 0)));
  const auto refused = answer<RefusedMessage>(first);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->why.find("tensor wte (weight)"), std::string::npos) << refused->why;
  ASSERT_FALSE(causes().empty());
  const std::vector<Struck> struck = parse_job_state(node.control.swaps.back().value)->struck;
  ASSERT_EQ(struck.size(), 2u);
  EXPECT_EQ(struck[0].kind, SourceKind::path);
  EXPECT_EQ(struck[0].of, Seat(1));
  EXPECT_TRUE(struck[0].differs);
  EXPECT_EQ(struck[1], (Struck{test_life(0), Seat(0), SourceKind::own_arena, Generation(1), Step(41)}))
      << "what was imported from it";
}

// An arena of what a seat declares would be replaced by the one that comes with the snapshot.
TEST_F(TwoSeats, ALayoutWaitsForTheSnapshotThatIsOnItsWay) {
  node.state.resume = Step(41);
  node.state.sources = {{Seat(0), SourceKind::replica, test_life(5), Generation(1), Step(41)}};
  (void)node.learn();
  imports.begin();
  declare(first, 5, 10);
  seats.answer_waiting();
  EXPECT_FALSE(answer<ArenaMessage>(first));
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), nullptr);
  ArenaSpec spec;
  spec.job = node.context.job;
  spec.seat = Seat(0);
  spec.kind = ArenaKind::own;
  spec.bucket_bytes = 4096;
  const SeatLayout captured = test_layout(5, 100);
  spec.payload_bytes = captured.payload_bytes;
  spec.stable_bytes = captured.stable_bytes;
  spec.layout = text_of(captured);
  const ArenaHandle held = *memory.arena_for(spec);
  capture(held->arena.slot(1), Step(41));
  memory.freeze_all();
  imports.begin();  // and finds it
  seats.answer_waiting();
  EXPECT_TRUE(answer<ArenaMessage>(first));
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), held);
  seats.answer_waiting();
  EXPECT_FALSE(answer<ArenaMessage>(first)) << "once";
}

TEST_F(TwoSeats, ALayoutIsForWhoHasASeatAndMustFitIntoMemory) {
  second.process().seat.reset();
  declare(second, 5);
  EXPECT_NE(answer<RefusedMessage>(second)->why.find("before a seat"), std::string::npos);
  LayoutMessage none;
  ask(first, none);
  EXPECT_TRUE(answer<RefusedMessage>(first));
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), nullptr);
}

class LittleMemory final : public SharedMemory {
 public:
  AvailableMemory available() override { return {4096}; }
  Result<Fd> create(const std::string& name, std::uint64_t size_bytes) override {
    return real_shared_memory().create(name, size_bytes);
  }
  Result<std::uint64_t> size_bytes(int fd) override { return real_shared_memory().size_bytes(fd); }
  Result<Mapping> map(int fd, std::uint64_t size_bytes, MapOptions options) override {
    return real_shared_memory().map(fd, size_bytes, options);
  }
};

const Environment& little_environment() {
  static LittleMemory memory;
  const Environment& real = real_environment();
  static const Environment little{
      real.clock, world_with_arenas_at_once().tasks, real.network, real.files, real.processes, memory};
  return little;
}

class TwoSeatsWithLittleMemory : public TwoSeats {
 protected:
  TwoSeatsWithLittleMemory() : TwoSeats(little_environment()) {}
};

TEST_F(TwoSeatsWithLittleMemory, APolicyThatDoesNotFitIsRefusedBeforeTheJobRuns) {
  declare(first, 5);
  const auto refused = answer<RefusedMessage>(first);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, std::uint32_t{PAWL_INVALID});  // not to be tried again
  EXPECT_NE(refused->why.find("too little memory for the job's policy: 2 own seat(s)"), std::string::npos)
      << refused->why;
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), nullptr);

  node.state.ran = Generation(1);  // a trainer in Python declares its layout in its first step
  (void)node.learn();
  declare(first, 5);
  EXPECT_TRUE(answer<RefusedMessage>(first));

  node.state.committed = Step(3);  // later a copy less is better than no job
  (void)node.learn();
  declare(first, 5);
  EXPECT_TRUE(answer<ArenaMessage>(first));
}

TEST_F(TwoSeats, ARestoreIsAnsweredWhenTheStepLiesInTheArena) {
  node.state.resume = Step(41);
  node.state.sources = {{Seat(0), SourceKind::own_arena, test_life(0), Generation(1), Step(41)},
                        {Seat(1), SourceKind::replica, test_life(5), Generation(1), Step(41)}};
  (void)node.learn();
  declare(first, 5);
  declare(second, 5);
  (void)first.answers();
  const Arena& arena = memory.find(ArenaKind::own, Seat(0))->arena;
  const Slot slot = arena.slot(1);
  ASSERT_TRUE(slot.try_open(slot.word(), Generation(1), Step(41), 0));
  slot.bucket_done(0, crc32c(slot.bucket(0)), Generation(1), Step(41));
  ASSERT_TRUE(slot.try_seal(Generation(1), Step(41)));
  memory.freeze_all();
  imports.begin();
  ask(first, RestoreMessage{Generation(1)}, 8);
  ask(second, RestoreMessage{Generation(1)}, 9);
  const auto there = answer<SlotMessage>(first);
  ASSERT_TRUE(there);
  EXPECT_EQ(there->index, 1u);
  EXPECT_EQ(there->step, Step(41));
  EXPECT_FALSE(answer<SlotMessage>(second));  // it is on its way
  EXPECT_TRUE(second.process().line.waits_for(MessageKind::restore));
}

// What a trainer copies before all has come must be a fetch's: a capture leaves a dirty slot of that step, too.
TEST_F(TwoSeats, ARestoreThatTakesWhatComesWaitsForTheFetch) {
  node.state.resume = Step(41);
  node.state.sources = {{Seat(0), SourceKind::replica, test_life(5), Generation(1), Step(41)},
                        {Seat(1), SourceKind::replica, test_life(5), Generation(1), Step(41)}};
  (void)node.learn();
  declare(first, 5);
  (void)first.answers();
  const Slot slot = memory.find(ArenaKind::own, Seat(0))->arena.slot(1);
  ASSERT_TRUE(slot.try_open(slot.word(), Generation(1), Step(41), 0));  // and it never was sealed
  memory.freeze_all();
  imports.begin();
  ask(first, RestoreMessage{Generation(1), true}, 8);
  EXPECT_FALSE(answer<SlotMessage>(first));
  EXPECT_TRUE(first.process().line.waits_for(MessageKind::restore));
}

TEST_F(TwoSeats, TheNodeIsReadyWhenAllItsSeatsAreDone) {
  ask(first, DoneMessage{Generation(9)});  // of another generation
  ask(second, DoneMessage{Generation(1)});
  EXPECT_TRUE(node.control.puts.empty());
  ask(first, DoneMessage{Generation(1)});
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].key, "/pawl/test:reports/1/ready/0");
}

// It restored from the slot that the pawld before us had; that slot is not there any more, and comes again.
TEST_F(TwoSeats, ASeatWhoseStepIsNotHereIsNotDone) {
  node.state.resume = Step(41);
  node.state.sources = {{Seat(0), SourceKind::nothing, {}, {}, {}},
                        {Seat(1), SourceKind::replica, test_life(5), Generation(1), Step(41)}};
  (void)node.learn();
  memory.freeze_all();
  imports.begin();
  ask(first, DoneMessage{Generation(1)});
  ask(second, DoneMessage{Generation(1)});
  EXPECT_TRUE(node.control.puts.empty());
  seats.answer_waiting();
  EXPECT_TRUE(node.control.puts.empty());

  const ArenaHandle arena = *memory.arena_for(test_arena(ArenaKind::own, Seat(1)));
  ASSERT_TRUE(arena->arena.slot(0).open_frozen(Generation(1), Step(41), 0));
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) capture_bucket(arena->arena.slot(0), i);
  ASSERT_TRUE(arena->arena.slot(0).seal_frozen(Generation(1), Step(41)));
  imports.begin();
  seats.answer_waiting();
  EXPECT_EQ(node.control.puts.size(), 1u);
}

TEST_F(TwoSeats, NobodyRunsBeforeTheNodeHasFollowed) {
  node.learn(JobPhase::running);  // what the recovery has begun is not gone yet
  ask(first, DoneMessage{Generation(1)});
  EXPECT_FALSE(answer<RunningMessage>(first));
  EXPECT_TRUE(first.process().line.waits_for(MessageKind::done));
}

// The pawld before us died before it had killed it.
TEST_F(TwoSeats, NobodyGoesOnFromAColdRestartWithWhatItHasTrained) {
  node.state.generation = Generation(2);
  node.state.cold = true;
  node.run_in(JobPhase::restoring);
  first.process().seated = Generation(1);
  ask(first, JoinMessage{Generation(1)});
  ask(second, JoinMessage{});
  seats.answer_waiting();
  EXPECT_FALSE(answer<SeatedMessage>(first));
  EXPECT_TRUE(first.process().dying);
  EXPECT_TRUE(answer<SeatedMessage>(second));
}

TEST_F(TwoSeats, WhoIsDoneLateRunsAtOnce) {
  node.run_in(JobPhase::running);
  ask(first, DoneMessage{Generation(1)});
  EXPECT_EQ(answer<RunningMessage>(first)->generation, Generation(1));
  EXPECT_TRUE(node.control.puts.empty());
}

TEST_F(TwoSeats, AFaultThatATrainerSeesIsNotedAndReported) {
  node.run_in(JobPhase::running);
  ask(first, FaultMessage{Generation(1), "a collective timed out"});
  EXPECT_TRUE(answer<NotedMessage>(first));
  node.pass(node.context.deadlines.communication_grace);
  const auto reported = causes();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].kind, FaultKind::communication);
}

TEST_F(TwoSeats, ABadSlotThatIsNoneIsNoFault) {
  ask(first, RestoreBadMessage{0, "there is no arena"});
  declare(first, 5);
  ask(first, RestoreBadMessage{99, "nor such a slot"});
  EXPECT_TRUE(causes().empty());
  EXPECT_FALSE(first.process().line.waits_for(MessageKind::restore_bad));  // it gets no answer
}

// Else the trainer would be one that waits for others as long as this generation lasts, and never one that hangs.
TEST_F(TwoSeats, ARequestOfAGenerationThatIsOverIsForgotten) {
  node.state.generation = Generation(2);
  node.run_in(JobPhase::running);
  RendezvousRequest request;
  request.key = "k";
  ask(first, RendezvousMessage{Generation(1), request});
  EXPECT_FALSE(first.process().line.waits());
}

TEST_F(TwoSeats, WhatIsNoRequestIsForgotten) {
  ask(first, DetachMessage{});
  EXPECT_FALSE(first.process().line.waits());
  first.process().line.rendezvous_waiting.insert(4);
  seats.on_request(first.process(), Frame{static_cast<std::uint16_t>(MessageKind::rendezvous), 4, "no request"});
  EXPECT_TRUE(answer<RefusedMessage>(first));
}

}  // namespace
}  // namespace pawl::job
