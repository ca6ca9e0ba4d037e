// Generations and Seats on one node: what the state asks is done, and trainers are answered when they should be.
#include "job/daemon/generations.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/text.h"
#include "job/daemon/test_control.h"
#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class OneNode : public testing::Test {
 protected:
  OneNode() : node(1) {
    node.state.sources = {{Seat(0), SourceKind::nothing, {}, {}, {}}};
    node.state.lineage = {{Generation(1), Step(0)}};
  }
  // What Pawld does with a new state.
  void follow(JobPhase phase) {
    node.state.phase = phase;
    const JobMirror::Change change = node.learn();
    if (change.phase) seats.take();
    generations.follow();
  }
  template <class Message>
  std::optional<Message> answer() {
    for (const Frame& frame : trainer.answers())
      if (auto message = message_in<Message>(frame)) return *message;
    return std::nullopt;
  }
  template <class Message>
  void ask(const Message& message, std::uint64_t id = 1) {
    seats.on_request(trainer.process(), trainer.asks(message, id));
  }
  LayoutMessage layout() {
    LayoutMessage message;
    message.payload_bytes = message.stable_bytes = 4096;
    message.bucket_bytes = 4096;
    message.layout = "a layout";
    message.layout_digest = digest_of(message.layout);
    return message;
  }
  LayoutMessage other_layout() {
    LayoutMessage message = layout();
    message.layout = "another layout";
    message.layout_digest = digest_of(message.layout);
    return message;
  }
  static void capture_slot(const Slot& slot, Step step) {
    ASSERT_TRUE(slot.try_open(slot.word(), Generation(1), step, 0));
    for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) slot.bucket_done(i, 0, Generation(1), step);
    ASSERT_TRUE(slot.try_seal(Generation(1), step));
  }
  // From the start to a running job.
  void run() {
    follow(JobPhase::restoring);
    ask(JoinMessage{});
    generations.follow();
    ask(layout());
    ask(DoneMessage{Generation(1)});
    follow(JobPhase::running);
    (void)trainer.answers();
  }

  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Memory memory{real_shared_memory(), {.hold = [](const std::string&, int) {}, .drop = [](const std::string&) {}}};
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  TestTrainer trainer{*loop, trainers.places()[0]};
  SeatArenas arenas{node.context, memory};
  TrainerPages pages{node.context, trainers, memory};
  int killed = 0;
  TrainerWatch watch{node.context,
                     trainers,
                     node.mover,
                     {.spawn = [](std::uint32_t, std::span<const std::string>) {},
                      .kill = [this](std::uint32_t) { ++killed; },
                      .on_parked_changed = [] {},
                      .state_of = [](std::uint64_t) { return Result<char>('R'); }}};
  ProgressTree progress{node.context,
                        {.send = [](NodeId, const Frame&) { return true; },
                         .own_report = [this](Progress known) { return pages.report(known); },
                         .show = [this](Progress known, bool grown) { pages.show(known, grown); },
                         .on_committed = [this] { job_end.consider_finish(); }}};
  RendezvousLog log{real_shared_memory(), "test", [](const std::string&, int) {}};
  RendezvousServer rendezvous{node.clock,
                              log,
                              {.generation = [this] { return node.context.mirror.generation(); },
                               .is_root = [this] { return node.context.mirror.is_root(); },
                               .send_to_root = [](std::uint64_t, const RendezvousRequest&) { return true; }}};
  Streams streams{node.context, memory,          arenas,
                  node.holds,   progress.bits(), {.hello = [](Purpose) { return Hello{}; }, .on_held = [] {}}};
  ProtectionWatch protection{{node.context, trainers, memory, streams, node.events},
                             [this] { return progress.progress(); }};
  Imports imports{node.context, trainers, arenas, streams, node.mover, node.events, [](Purpose) { return Hello{}; }};
  JobEnd job_end{node.context,
                 trainers,
                 node.mover,
                 [this] { return progress.progress(); },
                 {.is_given_up = [](const TrainerProcess&) { return false; }, .do_again = {}}};
  ReportSender reports{*loop, node.context, {.hello = [](Purpose) { return Hello{}; }, .collect_here = {}}};
  Seats seats{{node.context, trainers, memory, arenas, imports, streams, watch, rendezvous, job_end, node.mover,
               node.holds, reports}};
  std::optional<int> ended;
  std::string reset;
  Generations generations{
      {node.context, trainers, memory, pages, watch, seats, imports, streams, progress, protection, rendezvous,
       node.events, node.holds, reports},
      {.end_job = [this](int code) { ended = code; }, .reset = [this](const std::string& why) { reset = why; }}};
};

TEST_F(OneNode, SeatsItsTrainersAndRuns) {
  follow(JobPhase::restoring);
  EXPECT_EQ(node.context.followed.frozen, Generation(1));
  EXPECT_EQ(node.context.followed.restoring, Generation(1));
  ask(JoinMessage{});
  EXPECT_FALSE(answer<SeatedMessage>());
  generations.follow();
  const auto seated = answer<SeatedMessage>();
  ASSERT_TRUE(seated);
  EXPECT_EQ(seated->seat, Seat(0));
  EXPECT_EQ(seated->world, 1u);
  EXPECT_EQ(seated->rendezvous_prefix, "g1");

  ask(layout());
  EXPECT_TRUE(answer<ArenaMessage>());
  EXPECT_NE(memory.find(ArenaKind::own, Seat(0)), nullptr);
  ask(RestoreMessage{Generation(1)});
  EXPECT_TRUE(answer<RefusedMessage>());  // a fresh start has nothing to restore
  ask(DoneMessage{Generation(1)});
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].key, "/pawl/test:reports/1/ready/0");

  follow(JobPhase::running);
  EXPECT_EQ(node.context.followed.running, Generation(1));
  EXPECT_TRUE(answer<RunningMessage>());
  EXPECT_EQ(trainer.process().shared.page->generation.load(), 1u);
}

TEST_F(OneNode, AReadyThatWasNotPutIsPutAgain) {
  follow(JobPhase::restoring);
  ask(JoinMessage{});
  generations.follow();
  ask(DoneMessage{Generation(1)});
  node.control.puts[0].then(Error{Code::unreachable, "away"});
  node.pass(1s);
  EXPECT_EQ(node.control.puts.size(), 2u);
  ask(DoneMessage{Generation(1)});
  EXPECT_EQ(node.control.puts.size(), 2u);  // it is under way
}

TEST_F(OneNode, FreezesAndReportsOnceAgain) {
  run();
  node.state.generation = Generation(2);
  node.control.puts.clear();
  ask(RestoreMessage{Generation(1)});
  follow(JobPhase::quiescing);
  EXPECT_EQ(node.context.followed.frozen, Generation(2));
  EXPECT_TRUE(trainer.process().line.waiting.empty());  // all are woken
  EXPECT_EQ(trainer.process().shared.page->recover_generation.load(), 2u);
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].key, "/pawl/test:reports/2/inventory/0");
  const auto inventory = parse_inventory(node.control.puts[0].value);
  ASSERT_TRUE(inventory);
  EXPECT_EQ(inventory->trainers_alive, std::vector<Seat>{Seat(0)});
  generations.follow();
  EXPECT_EQ(node.control.puts.size(), 1u);
  node.control.puts[0].then(Error{Code::unreachable, "away"});
  generations.follow();
  EXPECT_EQ(node.control.puts.size(), 2u);
}

// The next recovery's inventory goes the same way, behind them.
// As after the death of all members: a spare took the job over, and others got the seats.
TEST_F(OneNode, TheRootTellsThatItRunsWhereTheLeaderHasNoSeat) {
  node.state.leader = test_life(7);
  run();
  node.pass(kEventDelay);
  MemoryControl control;
  const std::unique_ptr<Control> line = control.connect();
  for (; !node.control.told.empty(); node.control.told.pop_front()) node.control.told.front()(*line);
  std::vector<std::string> kinds;
  const Listing listing = *line->list(node.context.mirror.keys().events());
  for (const KeyValue& kv : listing.kvs) kinds.push_back(nlohmann::json::parse(kv.value)["kind"]);
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "running"), 1);
}

TEST_F(OneNode, OldEventsAreErasedAFewAtATimeBehindOtherCalls) {
  MemoryControl control;
  for (int i = 0; i < 5000; ++i) control.put(text("/pawl/test:events/", 10'000 + i), "");
  node.state.leader = node.context.self;
  run();
  const std::unique_ptr<Control> line = control.connect();
  int begun = 0;
  for (; !node.control.told.empty(); ++begun) {
    const auto work = std::move(node.control.told.front());
    node.control.told.pop_front();
    const int writes = control.writes();
    work(*line);
    EXPECT_LE(control.writes() - writes, 5);
  }
  EXPECT_GT(begun, 2);
  EXPECT_EQ(control.count("/pawl/test:events/"), 4096u);
  EXPECT_EQ(control.count("/pawl/test:events/14999"), 1u);
}

TEST_F(OneNode, ADrillHoldsTheReport) {
  run();
  node.state.generation = Generation(2);
  node.control.puts.clear();
  node.holds.set("frozen");
  follow(JobPhase::quiescing);
  EXPECT_TRUE(node.control.puts.empty());
  node.holds.release_all();
  generations.follow();
  EXPECT_EQ(node.control.puts.size(), 1u);
}

TEST_F(OneNode, KillsTheTrainerOfASeatThatIsToBeRestarted) {
  run();
  node.state.generation = Generation(2);
  node.state.restart = {Seat(0)};
  follow(JobPhase::quiescing);
  EXPECT_EQ(killed, 1);
}

// An arena may have been given to a new process already, by the pawld before this one: it stays, and what is in it goes.
TEST_F(OneNode, AColdRestartKillsAllAndEmptiesTheirArenas) {
  run();
  const ArenaHandle arena = memory.find(ArenaKind::own, Seat(0));
  capture_slot(arena->arena.slot(0), Step(1));
  node.state.generation = Generation(2);
  node.state.cold = true;
  node.state.lineage = {{Generation(2), Step(0)}};
  follow(JobPhase::restoring);
  EXPECT_EQ(killed, 1);
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), arena);
  const LayoutMessage other = other_layout();
  ask(other);  // the new process may declare another one
  EXPECT_TRUE(answer<ArenaMessage>());
  EXPECT_NE(memory.find(ArenaKind::own, Seat(0)), arena);
}

TEST_F(OneNode, InAnotherWorldASeatsTrainerBeginsAnewAndItsArenaGoesByTheSeatBefore) {
  run();
  const ArenaHandle arena = memory.find(ArenaKind::own, Seat(0));
  capture_slot(arena->arena.slot(0), Step(1));
  const ArenaHandle other = *memory.arena_for([&] {
    ArenaSpec spec = arena->arena.spec();
    spec.seat = Seat(3);
    return spec;
  }());
  capture_slot(other->arena.slot(0), Step(1));
  // Of two seats that sat here one is left, whose number is another's.
  node.state.generation = Generation(2);
  follow(JobPhase::quiescing);
  node.state.seats[0].before = Seat(3);
  node.state.resume = node.state.committed = Step(1);
  node.state.lineage.push_back({Generation(2), Step(1)});
  node.state.restart = {Seat(0)};
  node.state.sources = {{Seat(0), SourceKind::own_arena, test_life(0), Generation(1), Step(1)}};
  follow(JobPhase::restoring);
  EXPECT_EQ(killed, 1);
  EXPECT_TRUE(imports.has(Seat(0)));
  trainer.process().death = {};
  trainer.process().seated = Generation(0);
  trainer.process().dying = false;
  generations.follow();
  ask(JoinMessage{});
  generations.follow();
  EXPECT_EQ(killed, 1) << "it is new";
  (void)trainer.answers();
  ask(RestoreMessage{});
  seats.answer_waiting();
  const auto slot = answer<SlotMessage>();
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->step, Step(1));
  ask(DoneMessage{Generation(2)});
  follow(JobPhase::running);
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), nullptr) << "nobody goes on from it";
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(3)), other);
}

// The step from which all go on has its copies where they were; only the next one has them where they belong now.
TEST_F(OneNode, ACopyOfAnotherWorldIsKeptUntilALaterStepIsCommitted) {
  run();
  ArenaSpec spec = memory.find(ArenaKind::own, Seat(0))->arena.spec();
  capture_slot(memory.find(ArenaKind::own, Seat(0))->arena.slot(0), Step(1));
  spec.kind = ArenaKind::replica;
  spec.seat = Seat(5);
  capture_slot((*memory.arena_for(spec))->arena.slot(0), Step(1));
  spec.seat = Seat(6);  // of nobody
  capture_slot((*memory.arena_for(spec))->arena.slot(0), Step(1));
  node.state.generation = Generation(2);
  follow(JobPhase::quiescing);
  node.state.seats.push_back({Seat(1), test_life(1), "host1", 0, "", "", Seat(5)});
  node.state.resume = Step(1);
  node.state.lineage.push_back({Generation(2), Step(1)});
  node.state.sources = {{Seat(0), SourceKind::own_arena, test_life(0), Generation(1), Step(1)},
                        {Seat(1), SourceKind::own_arena, test_life(1), Generation(1), Step(1)}};
  follow(JobPhase::restoring);
  JobSpec without = node.context.mirror.spec();  // no ring in which it would hold anything
  without.replica_count = 0;
  node.context.mirror.set_spec(without);
  follow(JobPhase::running);
  EXPECT_TRUE(memory.find(ArenaKind::replica, Seat(5)));
  EXPECT_FALSE(memory.find(ArenaKind::replica, Seat(6)));
  generations.on_committed();
  EXPECT_TRUE(memory.find(ArenaKind::replica, Seat(5)));
  node.context.committed = Step(2);
  generations.on_committed();
  EXPECT_FALSE(memory.find(ArenaKind::replica, Seat(5)));
}

TEST_F(OneNode, AColdRestartThatIsTakenUpAgainTakesNoArenaAway) {
  run();
  const ArenaHandle arena = memory.find(ArenaKind::own, Seat(0));
  capture_slot(arena->arena.slot(0), Step(1));
  node.state.generation = Generation(2);
  node.state.cold = true;
  node.state.lineage = {{Generation(2), Step(0)}};
  trainer.process().seated = Generation(2);  // new, and attached again: it has this arena
  follow(JobPhase::restoring);
  EXPECT_EQ(killed, 0);
  ask(DoneMessage{Generation(2)});
  follow(JobPhase::running);
  EXPECT_EQ(memory.find(ArenaKind::own, Seat(0)), arena);
  EXPECT_EQ(arena->arena.slot(0).word(), SlotWord{});
}

TEST_F(OneNode, NothingIsLetGoBeforeEveryTaskOfTheRecoveryIsGone) {
  run();
  const ArenaHandle arena = memory.find(ArenaKind::own, Seat(0));
  capture_slot(arena->arena.slot(0), Step(1));
  node.state.generation = Generation(2);
  node.state.lineage = {{Generation(2), Step(1)}};
  follow(JobPhase::restoring);
  streams.stream_context().workers->begin();  // one that has not seen its end yet
  follow(JobPhase::running);
  EXPECT_EQ(node.context.followed.running, Generation(1));
  EXPECT_TRUE(arena->arena.slot(0).word().frozen);
  EXPECT_FALSE(node.context.is_running());
  streams.stream_context().workers->finish();
  generations.follow();
  EXPECT_EQ(node.context.followed.running, Generation(2));
  EXPECT_FALSE(arena->arena.slot(0).word().frozen);
}

TEST_F(OneNode, WhatProvedWrongIsEmptiedBeforeItIsReported) {
  run();
  const ArenaHandle arena = memory.find(ArenaKind::own, Seat(0));
  capture_slot(arena->arena.slot(0), Step(1));
  capture_slot(arena->arena.slot(1), Step(2));
  node.state.generation = Generation(2);
  node.state.struck = {{test_life(0), Seat(0), SourceKind::own_arena, Generation(1), Step(2)}};
  node.control.puts.clear();
  follow(JobPhase::quiescing);
  ASSERT_EQ(node.control.puts.size(), 1u);
  const auto inventory = parse_inventory(node.control.puts[0].value);
  ASSERT_EQ(inventory->items.size(), 1u);
  EXPECT_EQ(inventory->items[0].step, Step(1));
}

TEST(FoldersUpTo, AreThoseOfGenerationsThatAreOver) {
  Listing listing;
  for (const char* key :
       {"/pawl/test/inventory/2/0", "/pawl/test/inventory/2/1", "/pawl/test/inventory/3/0", "/pawl/test/inventory/4/0",
        "/pawl/test/inventory/x/0", "/pawl/test/inventory/1", "/pawl/test/ready/1/0"})
    listing.kvs.push_back({key, "", 1});
  EXPECT_EQ(folders_up_to(listing, "/pawl/test/inventory/", Generation(3)),
            (std::vector<std::string>{"/pawl/test/inventory/2/", "/pawl/test/inventory/3/"}));
}

TEST_F(OneNode, AnotherLayoutMayNotReplaceASnapshot) {
  run();
  const ArenaHandle arena = memory.find(ArenaKind::own, Seat(0));
  capture_slot(arena->arena.slot(0), Step(1));
  const LayoutMessage other = other_layout();
  ask(other);
  const auto refused = answer<RefusedMessage>();
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->why.find("the layout of its snapshot differs"), std::string::npos);
}

TEST_F(OneNode, ABadSnapshotIsReported) {
  run();
  ask(RestoreBadMessage{0, "a sum differs"});
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  const auto next = parse_job_state(node.control.swaps[0].value);
  EXPECT_EQ(next->causes.back().kind, FaultKind::corrupt_source);
  EXPECT_EQ(next->causes.back().detail, "own arena: a sum differs");
}

TEST_F(OneNode, TheRendezvousStoreIsForTheGeneration) {
  run();
  RendezvousMessage set{Generation(1), {}};
  set.request.op = RendezvousOp::set;
  set.request.key = "a";
  set.request.value = "1";
  ask(set, 10);
  EXPECT_TRUE(answer<ValueMessage>());
  RendezvousMessage get = set;
  get.request.op = RendezvousOp::get;
  ask(get, 11);
  EXPECT_EQ(answer<ValueMessage>()->answer.value, "1");
  get.generation = Generation(7);
  ask(get, 12);
  EXPECT_FALSE(answer<ValueMessage>());
  trainer.process().seat.reset();
  get.generation = Generation(1);
  ask(get, 13);
  EXPECT_TRUE(answer<RefusedMessage>());
}

TEST_F(OneNode, AStopIsProposedAcknowledgedAndAnswered) {
  run();
  node.control.puts.clear();
  ask(StopAfterMessage{Generation(1), Step(9)});
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(node.control.swaps[0].key, "/pawl/test/stop");
  job_end.consider_stop();
  EXPECT_EQ(node.control.swaps.size(), 1u);  // once
  const std::string stop = R"({"step":9})";
  EXPECT_TRUE(node.context.mirror.apply("/pawl/test/stop", &stop, ++node.revision, node.clock.now()).stop);
  job_end.consider_stop();
  EXPECT_EQ(answer<StoppingMessage>()->step, Step(9));
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].key, "/pawl/test/stop_ack/1/0");
  node.control.puts[0].then(Error{Code::unreachable, "away"});
  job_end.consider_stop();
  EXPECT_EQ(node.control.puts.size(), 2u);
}

TEST_F(OneNode, FinishesWhenTheLastStepIsCommitted) {
  run();
  node.control.puts.clear();
  trainer.process().shared.page->step.store(9);
  ask(FinishMessage{Step(9), Step(9)});
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].value, R"({"committed":false,"generation":1,"step":9})");
  EXPECT_TRUE(node.control.swaps.empty());
  progress.on_progress(Generation(1), Progress{Step(9), 0});
  ASSERT_EQ(node.control.puts.size(), 2u);
  job_end.consider_finish();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(node.control.swaps[0].value)->phase, JobPhase::finished);

  follow(JobPhase::finished);
  EXPECT_TRUE(answer<FinishedMessage>());
  EXPECT_FALSE(ended);  // its trainer has not left
  trainer.process().finished = true;
  generations.follow();
  EXPECT_EQ(ended, 0);
}

// What it holds may be the only copy: it goes when the job runs without it.
TEST_F(OneNode, AnEvictedNodeKeepsWhatItHoldsUntilTheJobRuns) {
  run();
  const Slot slot = memory.find(ArenaKind::own, Seat(0))->arena.slot(0);
  capture_slot(slot, Step(1));
  node.register_nodes(2);
  node.control.puts.clear();
  node.state.generation = Generation(2);
  node.state.evicted = {test_life(0)};
  follow(JobPhase::quiescing);
  EXPECT_EQ(reset, "");
  EXPECT_TRUE(slot.word().frozen);
  EXPECT_EQ(killed, 1);  // nothing trains here any more
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].key, "/pawl/test:reports/2/inventory/0");
  const auto inventory = parse_inventory(node.control.puts[0].value);
  ASSERT_TRUE(inventory);
  EXPECT_EQ(inventory->items.at(0).step, Step(1));
  EXPECT_EQ(inventory->generation, Generation(2));
  generations.follow();
  EXPECT_EQ(node.control.puts.size(), 1u);

  node.state.seats[0].life = test_life(1);
  follow(JobPhase::restoring);
  EXPECT_EQ(reset, "");
  // And again in the next one, should there be one.
  node.state.generation = Generation(3);
  follow(JobPhase::quiescing);
  EXPECT_EQ(node.control.puts.size(), 2u);
  EXPECT_EQ(reset, "");
  EXPECT_TRUE(node.control.swaps.empty());  // it moves nothing
  follow(JobPhase::running);
  EXPECT_EQ(reset, "evicted in generation 3");
  EXPECT_TRUE(node.context.ending);
}

// Nobody but those that were evicted with it may be left, and a spare that needs what they hold.
TEST_F(OneNode, AnEvictedNodeStaysUntilItKnowsWhoIsRegistered) {
  run();
  node.register_nodes(2);
  node.context.mirror.nodes.forget({});
  node.state.generation = Generation(2);
  node.state.evicted = {test_life(0)};
  for (const Member& member : node.state.seats)
    if (member.life != test_life(0)) node.state.evicted.push_back(member.life);
  follow(JobPhase::quiescing);
  node.live(60s);
  generations.follow();
  EXPECT_EQ(reset, "");
  (void)node.context.mirror.apply_nodes({}, node.clock.now());
  generations.follow();
  EXPECT_EQ(reset, "evicted in generation 2") << "nobody is there any more";
}

// The job waits for a spare that this node could be.
TEST_F(OneNode, AnEvictedNodeDoesNotWaitForEverForAnothersReport) {
  run();
  node.register_nodes(3);
  node.state.generation = Generation(2);
  node.state.seats.push_back({Seat(1), test_life(1), "host1", 0});
  node.state.evicted = {test_life(0), test_life(2)};
  follow(JobPhase::quiescing);
  Inventory of_node_1;
  of_node_1.life = test_life(1);
  of_node_1.generation = Generation(2);
  node.context.mirror.reports.note(of_node_1);
  node.context.heard.as_of = node.clock.now();
  node.live(node.context.deadlines.inventory);
  generations.follow();
  EXPECT_EQ(reset, "");
  EXPECT_FALSE(node.context.heard.list_anew);
  node.live(1s);
  generations.follow();
  EXPECT_EQ(reset, "");
  EXPECT_TRUE(node.context.heard.list_anew) << "it may have come meanwhile";
  node.context.heard.as_of = node.clock.now();
  generations.follow();
  EXPECT_EQ(reset, "evicted in generation 2");
}

TEST_F(OneNode, EndsWithAFailedJobAndIsResetWhenEvicted) {
  run();
  follow(JobPhase::failed);
  EXPECT_EQ(ended, 1);
  node.state.evicted = {test_life(0)};
  follow(JobPhase::running);
  EXPECT_EQ(reset, "evicted in generation 1");
  EXPECT_TRUE(node.context.ending);
}

}  // namespace
}  // namespace pawl::job
