// The two ends of a fetch, each against a peer that the test plays.
#include "job/daemon/fetch.h"

#include <gtest/gtest.h>

#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Generation kGeneration{3};
constexpr Generation kSlotGeneration{2};  // the slot is of an older generation than the recovery
constexpr Step kStep{41};
constexpr Seat kSeat{1};

// --- Who fetches

class Fetches : public testing::Test {
 protected:
  Fetches() { memory.freeze_all(); }  // as in every recovery
  ~Fetches() override {
    if (fetch) fetch->end();
    streams.wait_until_ended();
  }
  void start(std::string address = "127.0.0.1:7", SourceKind kind = SourceKind::replica) {
    Hello hello;
    hello.job = "test";
    hello.generation = kGeneration;
    hello.purpose = Purpose::fetch;
    fetch = Fetch::start({.hello = hello,
                          .address = std::move(address),
                          .source = {kSeat, kind, {}, kSlotGeneration, kStep},
                          .context = streams.context,
                          .patience = patience,
                          .arena_for = [this](const ArenaSpec& spec) -> Result<ArenaHandle> {
                            if (refusals > 0 && refusals-- > 0) return Error{refusal_code, "no room"};
                            EXPECT_EQ(spec.kind, ArenaKind::own);
                            return memory.arena_for(spec);
                          },
                          .on_done =
                              [this](Status status, std::uint64_t bytes) {
                                outcome = std::move(status);
                                fetched_bytes = bytes;
                                ++done;
                              }});
  }
  bool is_done() {
    return eventually([&] { return done > 0; });
  }
  PeerEnd accept() {
    PeerEnd source = streams.world.network.accept();
    EXPECT_EQ(source.next<Hello>().purpose, Purpose::fetch);
    return source;
  }
  // Of a source that is asked for the slot.
  PeerEnd welcome(bool prove = false) {
    PeerEnd source = accept();
    source.say(WelcomeMessage{NodeId(2), Incarnation(1)});
    const auto asked = source.next<FetchMessage>();
    EXPECT_EQ(asked.prove, prove);
    EXPECT_EQ(asked.seat, kSeat);
    EXPECT_EQ(asked.from, FetchFrom::replica);
    EXPECT_EQ(asked.slot_generation, kSlotGeneration);
    EXPECT_EQ(asked.step, kStep);
    return source;
  }
  // The slot, once it is whole; as at `running`.
  std::optional<Slot> fetched() {
    const ArenaHandle arena = memory.find(ArenaKind::own, kSeat);
    Slot slot;
    std::uint32_t index = 0;
    if (!arena || !find_sealed(arena->arena, kSlotGeneration, kStep, slot, index)) return std::nullopt;
    EXPECT_TRUE(slot.word().frozen);
    slot.unfreeze(true);
    return slot;
  }

  TestStreams streams;
  Memory memory{real_shared_memory(), nobody_keeps()};
  std::atomic<int> refusals{0};  // of the arena
  Code refusal_code = Code::full;
  Duration patience = 1min;
  Status outcome;
  std::uint64_t fetched_bytes = 0;
  std::atomic<int> done{0};
  std::shared_ptr<Fetch> fetch;
};

TEST_F(Fetches, ASlotLandsAndIsSealedFrozen) {
  start();
  PeerEnd source = welcome();
  say_slot(source, kSlotGeneration, kStep, kSeat);
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
  EXPECT_EQ(fetched_bytes, kTestPayloadBytes);
  EXPECT_EQ(streams.received.value(), kTestPayloadBytes);
  const auto slot = fetched();
  ASSERT_TRUE(slot);
  EXPECT_TRUE(holds_bytes_of(*slot, kStep));
  EXPECT_EQ(slot->samples(), 64 * kStep.value);
}

TEST_F(Fetches, ASourceThatIsNotThereYetOrNotFrozenYetIsAskedAgain) {
  streams.world.network.refuse_next(2);
  start();
  accept().say(PeerRefusedMessage{PeerRefusal::later, "not frozen yet"});
  accept().say(PeerRefusedMessage{PeerRefusal::stale, "an old generation"});
  PeerEnd source = welcome();
  say_slot(source, kSlotGeneration, kStep, kSeat);
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
  EXPECT_EQ(streams.world.network.asked().size(), 5u);
}

TEST_F(Fetches, AnInterruptedSlotIsFetchedFromItsStart) {
  start();
  {
    PeerEnd first = welcome();
    say_slot_begin(first, kSlotGeneration, kStep, kSeat);
    say_slot_bucket(first, kStep, 0);
  }
  PeerEnd second = welcome();
  EXPECT_EQ(done, 0);
  EXPECT_FALSE(fetched());
  say_slot(second, kSlotGeneration, kStep, kSeat);
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
  EXPECT_EQ(fetched_bytes, kTestPayloadBytes);  // of the one that counts
  EXPECT_TRUE(holds_bytes_of(*fetched(), kStep));
}

// The link is cut, or what is between has forgotten this one connection: nobody tells.
TEST_F(Fetches, AConnectionOnWhichNothingComesIsMadeAnew) {
  patience = 400ms;
  start();
  PeerEnd silent = streams.world.network.accept();
  PeerEnd mute = welcome();
  PeerEnd stuck = welcome();
  say_slot_begin(stuck, kSlotGeneration, kStep, kSeat);
  say_slot_bucket(stuck, kStep, 0);
  PeerEnd source = welcome();
  (void)silent.next<Hello>();
  EXPECT_TRUE(silent.is_closed());
  say_slot(source, kSlotGeneration, kStep, kSeat);
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
  EXPECT_EQ(fetched_bytes, kTestPayloadBytes);
  EXPECT_EQ(fetch->state().tries, 4u);
}

void say_damaged_slot(PeerEnd& source) {
  say_slot_begin(source, kSlotGeneration, kStep, kSeat);
  say_slot_bucket(source, kStep, 0);
  say_slot_bucket(source, kStep, 1, true);
  EXPECT_TRUE(source.is_closed());
}

TEST_F(Fetches, ASourceThatFindsItsOwnBytesWrongIsStruckOut) {
  start();
  PeerEnd first = welcome();
  say_damaged_slot(first);
  welcome(true).say(PeerRefusedMessage{PeerRefusal::missing, "where it lies: bucket 1: checksum differs"});
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::corrupt);
  EXPECT_EQ(outcome.error().what, "where it lies: bucket 1: checksum differs");
  EXPECT_FALSE(fetched());
}

TEST_F(Fetches, WrongBytesAreNoFaultOfASourceThatProvesThemRight) {
  start();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(done, 0);
    PeerEnd source = welcome(i > 0);
    say_damaged_slot(source);
  }
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::io);
  EXPECT_NE(outcome.error().what.find("bucket 1: checksum differs"), std::string::npos) << outcome.error().what;
  EXPECT_FALSE(fetched());
}

TEST_F(Fetches, WhatWasDamagedOnTheWayIsRightTheNextTime) {
  start();
  PeerEnd first = welcome();
  say_damaged_slot(first);
  PeerEnd second = welcome(true);
  say_slot(second, kSlotGeneration, kStep, kSeat);
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
  EXPECT_TRUE(holds_bytes_of(*fetched(), kStep));
}

TEST_F(Fetches, ASourceThatSaysItHasNoSuchSlotIsStruckOut) {
  start();
  welcome().say(PeerRefusedMessage{PeerRefusal::missing, "no sealed slot"});
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::corrupt);
  EXPECT_EQ(outcome.error().what, "no sealed slot");
}

TEST_F(Fetches, AnotherSlotThanWasAskedForIsNotTaken) {
  start();
  PeerEnd source = welcome();
  say_slot_begin(source, kSlotGeneration, kStep.next(), kSeat);
  EXPECT_TRUE(source.is_closed());
  EXPECT_EQ(memory.find(ArenaKind::own, kSeat), nullptr);
}

// The phase is over, and somebody has let the slots go before this task was gone: nothing live is touched.
TEST_F(Fetches, ALiveSlotIsNeverFilled) {
  const ArenaHandle arena = *memory.arena_for(test_arena(ArenaKind::own, kSeat));
  memory.unfreeze_all({}, kGeneration);
  capture_step(arena->arena.slot(0), kGeneration, Step(42));
  open_step(arena->arena.slot(1), kGeneration, Step(43));
  const SlotWord before[] = {arena->arena.slot(0).word(), arena->arena.slot(1).word()};
  start();
  PeerEnd source = welcome();
  say_slot_begin(source, kSlotGeneration, kStep, kSeat);
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::broken);
  EXPECT_EQ(arena->arena.slot(0).word(), before[0]);
  EXPECT_EQ(arena->arena.slot(1).word(), before[1]);
}

TEST_F(Fetches, ARefusalForEverEndsIt) {
  start();
  accept().say(PeerRefusedMessage{PeerRefusal::never, "another job"});
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::invalid);
  EXPECT_EQ(streams.world.network.asked().size(), 1u);
}

TEST_F(Fetches, AnArenaThatIsRefusedEndsItAndIsNoFaultOfTheSource) {
  refusals = 1;
  refusal_code = Code::invalid;
  start();
  PeerEnd source = welcome();
  say_slot_begin(source, kSlotGeneration, kStep, kSeat);
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::invalid);
  EXPECT_EQ(outcome.error().what, "no room");
}

TEST_F(Fetches, TooLittleMemoryMayBeAMatterOfAMoment) {
  refusals = 2;
  start();
  for (int i = 0; i < 2; ++i) {
    PeerEnd source = welcome();
    say_slot_begin(source, kSlotGeneration, kStep, kSeat);
    EXPECT_TRUE(source.is_closed());
  }
  PeerEnd source = welcome();
  say_slot(source, kSlotGeneration, kStep, kSeat);
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
}

TEST_F(Fetches, TooLittleMemoryForLongIsThisNodesFailure) {
  refusals = 1000;
  start();
  while (done == 0 && !HasFailure()) {
    if (!streams.world.network.has_waiting()) continue;
    PeerEnd source = welcome();
    say_slot_begin(source, kSlotGeneration, kStep, kSeat);
    EXPECT_TRUE(source.is_closed());
  }
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::full);
}

TEST_F(Fetches, AnAddressThatIsNoneEndsIt) {
  start("nowhere");
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::invalid);
}

TEST_F(Fetches, EndsInTheMiddleOfASlot) {
  start();
  PeerEnd source = welcome();
  say_slot_begin(source, kSlotGeneration, kStep, kSeat);
  say_slot_bucket(source, kStep, 0);
  fetch->end();
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::cancelled);
  EXPECT_FALSE(fetched());
  EXPECT_FALSE(streams.world.network.has_waiting());
}

TEST_F(Fetches, EndsWhileNobodyAnswers) {
  streams.world.network.refuse_next(1'000'000);
  start();
  EXPECT_TRUE(eventually([&] { return streams.world.network.asked().size() > 1; }));
  fetch->end();
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::cancelled);
}

// --- Who serves

class Serves : public testing::Test {
 protected:
  Serves() {
    auto [ours, theirs] = connected_pair();
    asker = PeerEnd(std::move(theirs));
    server = FetchServer::start({.stream = real_stream(std::move(ours)),
                                 .context = streams.context,
                                 .find = [this](ArenaKind kind, Seat seat) { return memory.find(kind, seat); }});
  }
  ~Serves() override {
    server->end();
    streams.wait_until_ended();
  }
  void ask(FetchFrom from = FetchFrom::replica, bool prove = false) {
    asker.say(FetchMessage{kSeat, from, kSlotGeneration, kStep, prove});
  }

  TestStreams streams;
  Memory memory{real_shared_memory(), nobody_keeps()};
  ArenaHandle arena = *memory.arena_for(test_arena(ArenaKind::replica, kSeat));
  PeerEnd asker{Fd()};
  std::shared_ptr<FetchServer> server;
};

TEST_F(Serves, EveryBucketInOrderThenEnds) {
  capture_step(arena->arena.slot(1), kSlotGeneration, kStep);
  memory.freeze_all();
  ask();
  const auto begin = asker.next<SlotBeginMessage>();
  EXPECT_EQ(begin.generation, kSlotGeneration);
  EXPECT_EQ(begin.step, kStep);
  EXPECT_EQ(begin.samples, 64 * kStep.value);
  EXPECT_EQ(begin.shape, shape_of(test_arena(ArenaKind::replica, kSeat)));
  EXPECT_EQ(begin.layout, "layout 5");
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) {
    std::uint32_t sum = 0;
    std::vector<std::byte> bytes(arena->arena.slot(1).bucket(i).size());
    ASSERT_TRUE(receive_all(asker.fd(), std::as_writable_bytes(std::span(&sum, 1)), Deadline::in(kTestPatience)));
    ASSERT_TRUE(receive_all(asker.fd(), bytes, Deadline::in(kTestPatience)));
    EXPECT_EQ(bytes, bucket_bytes(kStep, i, bytes.size()));
    EXPECT_EQ(sum, crc32c(bytes));
  }
  EXPECT_TRUE(asker.is_closed());
  EXPECT_EQ(streams.sent.value(), kTestPayloadBytes);
}

TEST_F(Serves, NoSlotThatIsNotSealedOrIsOfAnotherArena) {
  open_step(arena->arena.slot(0), kSlotGeneration, kStep);
  ask();
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing);
  EXPECT_TRUE(asker.is_closed());
}

TEST_F(Serves, NotTheReplicaWhereTheOwnArenaIsAskedFor) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  ask(FetchFrom::own);
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing);
}

TEST_F(Serves, NoSlotWhoseTableIsDamaged) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  arena->arena.slot(0).buckets()[1].crc32c ^= 1;
  ask();
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing);
}

TEST_F(Serves, WrongBytesAreItsOwnFaultOnlyIfTheyAreWrongWhereTheyLie) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  arena->arena.slot(0).payload()[5000] ^= std::byte{1};
  ask(FetchFrom::replica, true);
  const auto refused = asker.next<PeerRefusedMessage>();
  EXPECT_EQ(refused.refusal, PeerRefusal::missing);
  EXPECT_NE(refused.why.find("bucket 1: checksum differs"), std::string::npos) << refused.why;
}

TEST_F(Serves, WhatIsRightWhereItLiesIsSentAgain) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  ask(FetchFrom::replica, true);
  EXPECT_EQ(asker.next<SlotBeginMessage>().step, kStep);
}

TEST_F(Serves, NothingElse) {
  asker.say(SealMessage{kStep});
  EXPECT_TRUE(asker.is_closed());
}

TEST_F(Serves, EndsWhileNobodyAsks) {
  server->end();
  EXPECT_TRUE(asker.is_closed());
}

// --- Slots

class Slots : public testing::Test {
 protected:
  void seal(std::uint32_t index, Generation generation, Step step) {
    capture_step(arena->arena.slot(index), generation, step);
  }
  // The index of the slot that is filled with step 41 of generation 2.
  [[nodiscard]] std::uint32_t chosen() const {
    const Slot slot = slot_to_fill(arena->arena, kSlotGeneration, kStep);
    return slot.payload().data() == arena->arena.slot(0).payload().data() ? 0 : 1;
  }
  Memory memory{real_shared_memory(), nobody_keeps()};
  ArenaHandle arena = *memory.arena_for(test_arena(ArenaKind::own, kSeat));
};

TEST_F(Slots, AnEmptyOneIsFilledFirst) {
  seal(0, kSlotGeneration, Step(7));
  EXPECT_EQ(chosen(), 1u);
}

TEST_F(Slots, ADirtyOneBeforeASealedOne) {
  seal(0, kSlotGeneration, Step(7));
  open_step(arena->arena.slot(1), kSlotGeneration, Step(99));
  EXPECT_EQ(chosen(), 1u);
}

TEST_F(Slots, TheLeastStepOfTwoSealedOnes) {
  seal(0, kSlotGeneration, Step(40));
  seal(1, kSlotGeneration, Step(39));
  EXPECT_EQ(chosen(), 1u);
}

TEST_F(Slots, TheVerySlotIfItIsThere) {
  seal(0, kSlotGeneration, Step(39));
  seal(1, kSlotGeneration, kStep);
  EXPECT_EQ(chosen(), 1u);
}

TEST_F(Slots, OnlyASealedOneOfThatGenerationAndStepIsFound) {
  seal(0, Generation(1), kStep);
  open_step(arena->arena.slot(1), kSlotGeneration, kStep);
  Slot slot;
  std::uint32_t index = 9;
  EXPECT_FALSE(find_sealed(arena->arena, kSlotGeneration, kStep, slot, index));
  ASSERT_TRUE(arena->arena.slot(1).try_abandon(kSlotGeneration, kStep));
  seal(1, kSlotGeneration, kStep);
  EXPECT_TRUE(find_sealed(arena->arena, kSlotGeneration, kStep, slot, index));
  EXPECT_EQ(index, 1u);
}

}  // namespace
}  // namespace pawl::job
