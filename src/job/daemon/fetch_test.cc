// The two ends of a fetch, each against a peer that the test plays.
#include "job/daemon/fetch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>

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
  static FetchFromPlace at(int port, Extent extent = {}) {
    return {
        {kSeat, SourceKind::replica, {NodeId(static_cast<std::uint32_t>(port)), {}}, kSlotGeneration, kStep, extent},
        text("127.0.0.1:", port)};
  }
  void start(std::vector<FetchFromPlace> sources = {at(7)}) {
    Hello hello;
    hello.job = "test";
    hello.generation = kGeneration;
    hello.purpose = Purpose::fetch;
    fetch = Fetch::start({.hello = hello,
                          .sources = std::move(sources),
                          .context = streams.context,
                          .patience = patience,
                          .arena_for = [this](const ArenaSpec& spec) -> Result<ArenaHandle> {
                            if (refusals > 0 && refusals-- > 0) return Error{refusal_code, "no room"};
                            EXPECT_EQ(spec.kind, ArenaKind::own);
                            return memory.arena_for(spec);
                          },
                          .on_done =
                              [this](Fetched fetched) {
                                outcome = fetched.status;
                                for (const std::uint64_t bytes : fetched.bytes_from) fetched_bytes += bytes;
                                result = std::move(fetched);
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
  static void expect_asked(PeerEnd& source, BucketRange range, bool prove) {
    const auto asked = source.next<FetchMessage>();
    EXPECT_EQ(asked.prove, prove);
    EXPECT_EQ(asked.seat, kSeat);
    EXPECT_EQ(asked.from, FetchFrom::replica);
    EXPECT_EQ(asked.slot_generation, kSlotGeneration);
    EXPECT_EQ(asked.step, kStep);
    EXPECT_EQ((BucketRange{asked.first_bucket, asked.bucket_count}), range);
  }
  // Of a source that is asked to begin; or, once the slot is open, for these buckets.
  PeerEnd welcome(BucketRange range = {}, bool prove = false) {
    PeerEnd source = accept();
    source.say(WelcomeMessage{NodeId(2), Incarnation(1)});
    expect_asked(source, range, prove);
    return source;
  }
  static void say_buckets(PeerEnd& source, BucketRange range) {
    say_range_begin(source, kSlotGeneration, kStep, kSeat);
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i) say_slot_bucket(source, kStep, i);
  }
  // The next who connects is served as far as `ready` says; who is not needed any more may be gone, or go.
  enum class Ready { not_at_all, to_welcome, for_one_bucket, for_all };
  PeerEnd serve_next(Ready ready) {
    PeerEnd source = streams.world.network.accept();
    const auto hears = [&] { return receive_frame(source.fd(), Deadline::in(kTestPatience)); };
    const auto says = [&](const auto& message) {
      return send_frame(source.fd(), frame_of(message), Deadline::in(kTestPatience)).has_value();
    };
    const auto sends = [&](std::span<const std::byte> bytes) {
      return send_all(source.fd(), bytes, Deadline::in(kTestPatience)).has_value();
    };
    if (ready == Ready::not_at_all || !hears() || !says(WelcomeMessage{NodeId(2), Incarnation(1)})) return source;
    const ArenaSpec arena = test_arena(ArenaKind::replica, kSeat);
    while (ready != Ready::to_welcome) {
      const Result<Frame> frame = hears();
      const Result<FetchMessage> asked = frame ? message_in<FetchMessage>(*frame) : Result<FetchMessage>(frame.error());
      if (!asked) break;
      const std::string layout = asked->bucket_count == 0 ? arena.layout : "";
      if (!says(SlotBeginMessage{kSlotGeneration, kStep, 64 * kStep.value, shape_of(arena), layout})) break;
      if (asked->sums) {
        if (!sends(sums_of({asked->first_bucket, asked->bucket_count}))) break;
        continue;
      }
      for (std::uint32_t i = asked->first_bucket; i < asked->first_bucket + asked->bucket_count; ++i) {
        const auto bytes = bucket_bytes(kStep, i, test_bucket_bytes(i));
        const std::uint32_t sum = crc32c(bytes);
        if (!sends(std::as_bytes(std::span(&sum, 1))) || !sends(bytes) || ready == Ready::for_one_bucket) return source;
      }
    }
    return source;
  }
  // As they are told: of each bucket, then that of these.
  static std::vector<std::byte> sums_of(BucketRange range) {
    std::vector<std::uint32_t> sums;
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i)
      sums.push_back(crc32c(bucket_bytes(kStep, i, test_bucket_bytes(i))));
    sums.push_back(crc32c(std::as_bytes(std::span(sums))));
    const auto bytes = std::as_bytes(std::span(sums));
    return {bytes.begin(), bytes.end()};
  }
  static void begin_slot(PeerEnd& source) {
    say_slot_begin(source, kSlotGeneration, kStep, kSeat);
    (void)begin_range(source, kSlotGeneration, kStep, kSeat);
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
  Fetched result;
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

TEST_F(Fetches, OfAnInterruptedSlotTheRestIsFetched) {
  start();
  {
    PeerEnd first = welcome();
    begin_slot(first);
    say_slot_bucket(first, kStep, 0);
  }
  PeerEnd second = welcome({1, 2});
  EXPECT_EQ(done, 0);
  EXPECT_FALSE(fetched());
  say_buckets(second, {1, 2});
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
  EXPECT_EQ(fetched_bytes, kTestPayloadBytes);
  EXPECT_TRUE(holds_bytes_of(*fetched(), kStep));
}

// The link is cut, or what is between has forgotten this one connection: nobody tells.
TEST_F(Fetches, AConnectionOnWhichNothingComesIsMadeAnew) {
  patience = 400ms;
  start();
  std::vector<PeerEnd> silent;
  for (const Ready ready : {Ready::not_at_all, Ready::to_welcome, Ready::for_one_bucket})
    silent.push_back(serve_next(ready));
  // On a slow machine others may come too late as well.
  const Deadline deadline = Deadline::in(1min);
  while (done == 0 && !deadline.passed())
    if (streams.world.network.has_waiting()) (void)serve_next(Ready::for_all);
  ASSERT_EQ(done, 1);
  EXPECT_TRUE(outcome.has_value());
  (void)silent[0].next<Hello>();
  EXPECT_TRUE(silent[0].is_closed());
  EXPECT_TRUE(holds_bytes_of(*fetched(), kStep));
  EXPECT_EQ(fetched_bytes, kTestPayloadBytes);
  EXPECT_GE(fetch->state().tries, 4u);
}

void say_damaged_slot(PeerEnd& source) {
  say_slot_begin(source, kSlotGeneration, kStep, kSeat);
  (void)begin_range(source, kSlotGeneration, kStep, kSeat);
  say_slot_bucket(source, kStep, 0);
  say_slot_bucket(source, kStep, 1, true);
  EXPECT_TRUE(source.is_closed());
}

// --- From another path

constexpr Seat kOther(9);

FetchFromPlace path_at(int port, Extent extent = {0, 8192}, Seat of = kOther) {
  return {{kSeat, SourceKind::path, {NodeId(static_cast<std::uint32_t>(port)), {}}, kSlotGeneration, kStep, extent, of},
          text("127.0.0.1:", port)};
}

// The next request, which is for these buckets of that seat's slot.
void expect_request(PeerEnd& source, Seat seat, FetchFrom from, BucketRange range, bool sums) {
  const auto asked = source.next<FetchMessage>();
  EXPECT_EQ(asked.seat, seat);
  EXPECT_EQ(asked.from, from);
  EXPECT_EQ(asked.sums, sums);
  EXPECT_EQ((BucketRange{asked.first_bucket, asked.bucket_count}), range);
}

// `differs`: the bucket whose sum is another one. `damage` comes over them on the way.
void tell_sums(PeerEnd& source, BucketRange range, std::optional<std::uint32_t> differs = {},
               std::uint32_t damage = 0) {
  say_range_begin(source, kSlotGeneration, kStep, kSeat);
  std::vector<std::uint32_t> sums;
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i)
    sums.push_back(crc32c(bucket_bytes(kStep, i, test_bucket_bytes(i))) ^ (differs == i ? 1 : 0));
  const std::uint32_t sum = crc32c(std::as_bytes(std::span(sums)));
  sums.front() ^= damage;
  source.say_bytes(std::as_bytes(std::span(sums)));
  source.say_bytes(std::as_bytes(std::span(&sum, 1)));
}

class FetchesFromPaths : public Fetches {
 protected:
  // The one own source, which lacks the first bucket, tells its sums and then what it has.
  void serve_own_part() {
    own.emplace(welcome());
    say_slot_begin(*own, kSlotGeneration, kStep, kSeat);
    expect_request(*own, kSeat, FetchFrom::replica, {0, 3}, true);
    tell_sums(*own, {0, 3});
    expect_request(*own, kSeat, FetchFrom::replica, {1, 2}, false);
    say_buckets(*own, {1, 2});
  }
  PeerEnd welcome_path(BucketRange sums, Seat of = kOther) {
    PeerEnd path = accept();
    path.say(WelcomeMessage{NodeId(3), Incarnation(1)});
    expect_request(path, of, FetchFrom::own, sums, true);
    return path;
  }
  // Where the seat has no slot left: the first path opens the slot, and tells its sums.
  void hear_first_path() {
    PeerEnd path = accept();
    path.say(WelcomeMessage{NodeId(3), Incarnation(1)});
    expect_request(path, kOther, FetchFrom::own, {}, false);
    say_slot_begin(path, kSlotGeneration, kStep, kSeat);
    expect_request(path, kOther, FetchFrom::own, {0, 3}, true);
    tell_sums(path, {0, 3});
    EXPECT_TRUE(path.is_closed()) << "before another is heard it gives nothing";
  }
  std::optional<PeerEnd> own;
};

TEST_F(FetchesFromPaths, WhatTheSeatsOwnCopyLacksComesFromAPathWithEqualSums) {
  start({path_at(8), at(7, {4096, kStreamEnd})});
  serve_own_part();
  PeerEnd path = welcome_path({0, 2});
  tell_sums(path, {0, 2});
  expect_request(path, kOther, FetchFrom::own, {0, 1}, false);
  say_buckets(path, {0, 1});
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value()) << outcome.error().what;
  EXPECT_EQ(result.bytes_from, (std::vector<std::uint64_t>{4096, kTestPayloadBytes - 4096}));
  EXPECT_TRUE(holds_bytes_of(*fetched(), kStep));
}

TEST_F(FetchesFromPaths, APathWhoseSumsDifferIsStruckForThisSeatAndNotRead) {
  start({path_at(8), at(7, {4096, kStreamEnd})});
  serve_own_part();
  PeerEnd path = welcome_path({0, 2});
  tell_sums(path, {0, 2}, 1);
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::corrupt);
  EXPECT_EQ(result.struck, std::vector{struck_for_difference(path_at(8).source)});
  EXPECT_EQ(result.struck.front().of, kOther);
  EXPECT_FALSE(fetched());
}

TEST_F(FetchesFromPaths, APathThatSendsAnotherBucketThanItToldIsAskedNoMore) {
  start({path_at(8), at(7, {4096, kStreamEnd})});
  serve_own_part();
  PeerEnd path = welcome_path({0, 2});
  tell_sums(path, {0, 2});
  expect_request(path, kOther, FetchFrom::own, {0, 1}, false);
  say_range_begin(path, kSlotGeneration, kStep, kSeat);
  const std::uint32_t of_another = crc32c(bucket_bytes(kStep, 1, test_bucket_bytes(1)));
  path.say_bytes(std::as_bytes(std::span(&of_another, 1)));
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::invalid);
  EXPECT_FALSE(fetched());
}

TEST_F(FetchesFromPaths, WithoutSumsOfItsOwnNoPathIsRead) {
  start({path_at(8, {}), at(7)});
  PeerEnd gone = welcome();
  gone.say(PeerRefusedMessage{PeerRefusal::missing, "no sealed slot"});
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::corrupt);
  EXPECT_FALSE(fetched());
}

TEST_F(FetchesFromPaths, WhereNothingIsLeftOfTheSeatAPathThatIsEqualInAllGivesAll) {
  start({path_at(8, {})});
  PeerEnd path = accept();
  path.say(WelcomeMessage{NodeId(3), Incarnation(1)});
  expect_request(path, kOther, FetchFrom::own, {}, false);
  say_slot_begin(path, kSlotGeneration, kStep, kSeat);
  expect_request(path, kOther, FetchFrom::own, {0, 3}, true);
  tell_sums(path, {0, 3});
  expect_request(path, kOther, FetchFrom::own, {0, 3}, false);
  say_buckets(path, {0, 3});
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value()) << outcome.error().what;
  EXPECT_TRUE(holds_bytes_of(*fetched(), kStep));
}

TEST_F(FetchesFromPaths, PathsThatDisagreeProveNothingAndBothAreStruckWhoeverElseAgrees) {
  start({path_at(8, {}), path_at(6, {}, Seat(4)), path_at(5, {}, Seat(3))});
  hear_first_path();
  PeerEnd second = welcome_path({0, 3}, Seat(4));
  tell_sums(second, {0, 3}, 2);
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::corrupt);
  EXPECT_EQ(result.struck, (std::vector{struck_for_difference(path_at(6, {}, Seat(4)).source),
                                        struck_for_difference(path_at(8, {}).source)}));
  EXPECT_FALSE(fetched());
}

// A pawld that begins anew, say. Had it been passed over, a path that differs from it would have given all.
TEST_F(FetchesFromPaths, APathThatFailsOnceIsHeardBeforeAnyGivesBytes) {
  start({path_at(8, {}), path_at(6, {}, Seat(4)), path_at(5, {}, Seat(3))});
  hear_first_path();
  { PeerEnd away = accept(); }
  {
    PeerEnd third = welcome_path({0, 3}, Seat(3));
    tell_sums(third, {0, 3});
    EXPECT_TRUE(third.is_closed());
  }
  PeerEnd second = welcome_path({0, 3}, Seat(4));
  tell_sums(second, {0, 3}, 2);
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::corrupt);
  ASSERT_EQ(result.struck.size(), 2u);
  EXPECT_TRUE(result.struck[0].differs);
  EXPECT_FALSE(fetched());
}

TEST_F(FetchesFromPaths, PathsThatAgreeGiveAllWhereOneOfThemIsNotReachedForLong) {
  patience = 2s;
  start({path_at(8, {}), path_at(6, {}, Seat(4)), path_at(5, {}, Seat(3))});
  const Deadline deadline = Deadline::in(1min);
  std::size_t tries = 0;
  while (done == 0 && !deadline.passed()) {
    if (!streams.world.network.has_waiting()) continue;
    const bool is_away = streams.world.network.asked().back().port == 6;
    tries += is_away ? 1 : 0;
    (void)serve_next(is_away ? Ready::not_at_all : Ready::for_all);
  }
  ASSERT_EQ(done, 1);
  EXPECT_TRUE(outcome.has_value()) << outcome.error().what;
  EXPECT_GT(tries, 1u);
  EXPECT_GE(result.compared, 1u) << "on a slow machine another may come too late as well";
  EXPECT_TRUE(result.struck.empty());
  EXPECT_TRUE(holds_bytes_of(*fetched(), kStep));
}

TEST_F(FetchesFromPaths, SumsThatCameDamagedAreAskedForAgainAndNobodyIsStruck) {
  start({path_at(8), at(7, {4096, kStreamEnd})});
  {
    PeerEnd damaged = welcome();
    say_slot_begin(damaged, kSlotGeneration, kStep, kSeat);
    expect_request(damaged, kSeat, FetchFrom::replica, {0, 3}, true);
    tell_sums(damaged, {0, 3}, {}, 1);
    EXPECT_TRUE(damaged.is_closed());
  }
  own.emplace(accept());
  own->say(WelcomeMessage{NodeId(2), Incarnation(1)});
  expect_request(*own, kSeat, FetchFrom::replica, {0, 3}, true);
  tell_sums(*own, {0, 3});
  expect_request(*own, kSeat, FetchFrom::replica, {1, 2}, false);
  say_buckets(*own, {1, 2});
  PeerEnd path = welcome_path({0, 2});
  tell_sums(path, {0, 2});
  expect_request(path, kOther, FetchFrom::own, {0, 1}, false);
  say_buckets(path, {0, 1});
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value()) << outcome.error().what;
  EXPECT_TRUE(result.struck.empty());
}

TEST_F(FetchesFromPaths, APathThatIsCutIntoOtherBucketsIsStruck) {
  start({path_at(8), at(7, {4096, kStreamEnd})});
  serve_own_part();
  PeerEnd path = welcome_path({0, 2});
  ArenaSpec other = test_arena(ArenaKind::own, kOther);
  other.bucket_bytes *= 2;
  path.say(SlotBeginMessage{kSlotGeneration, kStep, 64 * kStep.value, shape_of(other), ""});
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::corrupt);
  EXPECT_EQ(result.struck, std::vector{struck_of(path_at(8).source, {0, 8192})});
}

TEST_F(Fetches, ASourceThatFindsItsOwnBytesWrongIsStruckOut) {
  start();
  PeerEnd first = welcome();
  say_damaged_slot(first);
  welcome({1, 2}, true).say(BucketsBadMessage{1, 1, "where it lies: bucket 1: checksum differs"});
  ASSERT_TRUE(is_done());
  EXPECT_EQ(result.struck, std::vector{struck_of(at(7).source, {4096, 8192})});
  EXPECT_EQ(outcome.error().code, Code::corrupt);
  EXPECT_EQ(outcome.error().what, "where it lies: bucket 1: checksum differs");
  EXPECT_FALSE(fetched());
}

TEST_F(Fetches, WrongBytesAreNoFaultOfASourceThatProvesThemRight) {
  start();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(done, 0);
    PeerEnd source = i == 0 ? welcome() : welcome({1, 2}, true);
    if (i == 0) {
      say_damaged_slot(source);
    } else {
      say_range_begin(source, kSlotGeneration, kStep, kSeat);
      say_slot_bucket(source, kStep, 1, true);
    }
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
  PeerEnd second = welcome({1, 2}, true);
  say_buckets(second, {1, 2});
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
  EXPECT_EQ(result.struck, std::vector{struck_of(at(7).source, {})});
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

TEST_F(Fetches, StreamsForWhichThereWasNoDescriptorComeBack) {
  streams.context.fetch_sizes = {0, 4096};
  start();
  PeerEnd source = welcome();
  streams.world.network.refuse_next(3, Code::io);  // all but the one that is here
  say_slot_begin(source, kSlotGeneration, kStep, kSeat);
  EXPECT_TRUE(eventually([&] { return streams.world.network.asked().size() >= 7; }));
  EXPECT_EQ(done, 0);
}

TEST_F(Fetches, AnAddressThatIsNoneEndsIt) {
  FetchFromPlace nowhere = at(7);
  nowhere.address = "nowhere";
  start({nowhere});
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::invalid);
}

TEST_F(Fetches, EndsInTheMiddleOfASlot) {
  start();
  PeerEnd source = welcome();
  begin_slot(source);
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

// --- From several

TEST_F(Fetches, WhereTheNearestIsNotReachedTheNextIsAsked) {
  streams.world.network.refuse_next(1);
  start({at(7), at(8)});
  PeerEnd source = welcome();
  EXPECT_EQ(streams.world.network.asked().back(), (Address{"127.0.0.1", 8}));
  say_slot(source, kSlotGeneration, kStep, kSeat);
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
  EXPECT_EQ(result.bytes_from, (std::vector<std::uint64_t>{0, kTestPayloadBytes}));
}

TEST_F(Fetches, TwoThatHaveAHalfEachFillOneSlot) {
  start({at(7, {0, 4096}), at(8, {4096, kStreamEnd})});
  PeerEnd first = welcome();
  say_slot_begin(first, kSlotGeneration, kStep, kSeat);
  expect_asked(first, {0, 1}, false);
  say_buckets(first, {0, 1});
  PeerEnd second = welcome({1, 2});
  say_buckets(second, {1, 2});
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
  EXPECT_TRUE(holds_bytes_of(*fetched(), kStep));
  EXPECT_EQ(result.bytes_from, (std::vector<std::uint64_t>{4096, kTestPayloadBytes - 4096}));
}

TEST_F(Fetches, WhatOneSourceHasWrongAnotherGives) {
  start({at(7), at(8)});
  PeerEnd first = welcome();
  say_damaged_slot(first);
  PeerEnd second = welcome({1, 2});  // of the other, which has not failed
  second.hang_up();
  PeerEnd again = welcome({1, 2}, true);
  again.say(BucketsBadMessage{1, 1, "where it lies: bucket 1: checksum differs"});
  expect_asked(again, {2, 1}, false);  // nothing has been wrong with the rest of it
  say_buckets(again, {2, 1});
  PeerEnd other = welcome({1, 1});
  say_buckets(other, {1, 1});
  ASSERT_TRUE(is_done());
  EXPECT_TRUE(outcome.has_value());
  EXPECT_TRUE(holds_bytes_of(*fetched(), kStep));
  EXPECT_EQ(result.struck, std::vector{struck_of(at(7).source, {4096, 8192})});
}

TEST_F(Fetches, WhatAllHaveWrongIsLostAndAllAreStruckOutInIt) {
  start({at(7), at(8)});
  PeerEnd first = welcome();
  say_slot_begin(first, kSlotGeneration, kStep, kSeat);
  expect_asked(first, {0, 3}, false);
  first.say(PeerRefusedMessage{PeerRefusal::missing, "gone"});
  PeerEnd second = welcome({0, 3});
  second.say(BucketsBadMessage{2, 1, "where it lies"});
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::corrupt);
  EXPECT_EQ(result.struck, (std::vector{struck_of(at(7).source, {}), struck_of(at(8).source, {8192, kStreamEnd})}));
}

TEST_F(Fetches, BucketsThatWereNotAskedForAreNotStruckOut) {
  start();
  PeerEnd source = welcome();
  say_slot_begin(source, kSlotGeneration, kStep, kSeat);
  expect_asked(source, {0, 3}, false);
  source.say(BucketsBadMessage{2, 0xffffffff, "all"});
  EXPECT_TRUE(source.is_closed());
  EXPECT_EQ(done, 0);
}

TEST_F(Fetches, OneOfAnotherLayoutIsPassedOver) {
  start({at(7, {0, 4096}), at(8)});
  PeerEnd first = welcome();
  say_slot_begin(first, kSlotGeneration, kStep, kSeat);
  expect_asked(first, {0, 1}, false);
  say_buckets(first, {0, 1});
  PeerEnd second = welcome({1, 2});
  ArenaShape other = shape_of(test_arena(ArenaKind::replica, kSeat));
  other.layout_digest ^= 1;
  second.say(SlotBeginMessage{kSlotGeneration, kStep, 64 * kStep.value, other, ""});
  ASSERT_TRUE(is_done());
  EXPECT_EQ(outcome.error().code, Code::invalid);
  EXPECT_EQ(outcome.error().what, "node 8 has it in another layout");
}

// A slot for which several streams are worth while; its sources are the shipped ones.
class ManyStreams : public Fetches {
 protected:
  static constexpr std::uint64_t kBytes = FetchSizes{}.one_stream_bytes_max + (std::uint64_t{5} << 20) + 100;
  static ArenaSpec spec_of_many(ArenaKind kind) {
    ArenaSpec spec = test_arena(kind, kSeat);
    spec.payload_bytes = spec.stable_bytes = kBytes;
    spec.bucket_bytes = 1 << 20;
    return spec;
  }
  struct Holder {
    Memory memory{real_shared_memory(), nobody_keeps()};
    ArenaHandle arena = *memory.arena_for(spec_of_many(ArenaKind::replica));
    std::vector<std::shared_ptr<FetchServer>> servers;
    std::vector<PeerEnd> mutes;
    bool dead = false;
    bool mute = false;
    Holder() {
      const Slot slot = arena->arena.slot(0);
      EXPECT_TRUE(slot.try_open({}, kSlotGeneration, kStep, 7));
      for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) {
        std::ranges::fill(slot.bucket(i), static_cast<std::byte>(i * 37 + 1));
        slot.bucket_done(i, crc32c(slot.bucket(i)), kSlotGeneration, kStep);
      }
      EXPECT_TRUE(slot.try_seal(kSlotGeneration, kStep));
      memory.freeze_all();
    }
    void damage(std::uint32_t bucket) { arena->arena.slot(0).bucket(bucket)[99] ^= std::byte{1}; }
    void serve(PeerEnd asker, const StreamContext& context) {
      servers.push_back(FetchServer::start({.stream = real_stream(asker.release()),
                                            .context = context,
                                            .find = [this](ArenaKind, Seat) { return arena; }}));
    }
    void die() {
      dead = true;
      for (auto& server : servers) server->end();
    }
  };
  ~ManyStreams() override {
    fetch->end();
    for (Holder& holder : holders) holder.die();
    serve();
    streams.wait_until_ended();  // its servers look for an arena in a holder
  }
  // Whoever has connected by now is served, by the holder of that port.
  void serve() {
    while (streams.world.network.has_waiting()) {
      PeerEnd end = streams.world.network.accept();
      Holder& holder = holders[static_cast<std::size_t>(streams.world.network.asked()[accepted++].port - 7)];
      if (holder.dead) continue;
      (void)receive_frame(end.fd(), Deadline::in(kTestPatience));  // who is not needed any more may be gone
      (void)send_frame(end.fd(), frame_of(WelcomeMessage{NodeId(2), Incarnation(1)}), Deadline::in(kTestPatience));
      if (holder.mute)
        holder.mutes.push_back(std::move(end));
      else
        holder.serve(std::move(end), streams.context);
    }
  }
  bool is_served() {
    return eventually([&] {
      serve();
      return done > 0;
    });
  }
  void expect_whole() {
    ASSERT_TRUE(outcome.has_value()) << outcome.error().what;
    const auto slot = fetched();
    ASSERT_TRUE(slot);
    EXPECT_TRUE(slot->verify());
    for (std::uint32_t i = 0; i < slot->buckets().size(); ++i)
      ASSERT_EQ(slot->bucket(i)[99], static_cast<std::byte>(i * 37 + 1));
    EXPECT_EQ(fetched_bytes, kBytes);
  }
  std::array<Holder, 2> holders;
  std::size_t accepted = 0;
};

TEST_F(ManyStreams, GoToOneSourceSideBySide) {
  start();
  // What opens the slot is answered here, so that the first stream can't have all of it before the others come.
  PeerEnd first = welcome();
  ++accepted;
  const ArenaSpec spec = spec_of_many(ArenaKind::replica);
  first.say(SlotBeginMessage{kSlotGeneration, kStep, 7, shape_of(spec), spec.layout});
  ASSERT_TRUE(eventually([&] { return streams.world.network.asked().size() > 1; }));
  holders[0].serve(std::move(first), streams.context);
  ASSERT_TRUE(is_served());
  expect_whole();
  EXPECT_LE(streams.world.network.asked().size(), kFetchStreamsMax);
}

// How much of it the second gives is a matter of time: nothing, where the first has given all before it is heard of.
TEST_F(ManyStreams, MayBeSharedByTwoSources) {
  start({at(7), at(8)});
  ASSERT_TRUE(is_served());
  expect_whole();
}

TEST_F(ManyStreams, TwoThatHaveHalfWrongEachAreOneWholeTogether) {
  for (std::uint32_t bucket = 0; bucket < 38; ++bucket) holders[bucket / 8 % 2].damage(bucket);
  start({at(7), at(8)});
  ASSERT_TRUE(is_served());
  expect_whole();
  for (const std::uint64_t bytes : result.bytes_from) EXPECT_GT(bytes, 0u);
}

// Whichever stream takes a range that came wrong asks for its proof.
TEST_F(ManyStreams, WhatIsWrongWhereItLiesIsStruckOutWhoeverAsksForIt) {
  for (const std::uint32_t bucket : {1u, 9u, 17u}) holders[0].damage(bucket);
  start({at(7)});
  ASSERT_TRUE(is_served());
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, Code::corrupt) << outcome.error().what;
  EXPECT_FALSE(result.struck.empty());
}

TEST_F(ManyStreams, OneThatDiesInTheMiddleIsNotMissed) {
  start({at(7), at(8)});
  ASSERT_TRUE(eventually([&] {
    serve();
    return fetch->state().received > 0;
  }));
  holders[1].die();
  ASSERT_TRUE(is_served());
  expect_whole();
  EXPECT_TRUE(result.struck.empty());
}

// It has taken what it does not give: somebody faster takes it over.
TEST_F(ManyStreams, OneAtWhichNothingMovesIsNotMissed) {
  patience = 2s;
  holders[1].mute = true;
  start({at(7), at(8)});
  ASSERT_TRUE(is_served());
  expect_whole();
  EXPECT_EQ(result.bytes_from[1], 0u);
}

TEST_F(ManyStreams, EndInTheMiddle) {
  start({at(7), at(8)});
  ASSERT_TRUE(eventually([&] {
    serve();
    return fetch->state().received > 0;
  }));
  fetch->end();
  ASSERT_TRUE(is_served());
  if (!outcome) {
    EXPECT_EQ(outcome.error().code, Code::cancelled);
    EXPECT_FALSE(fetched());
  }
}

// --- Who serves

class Serves : public testing::Test {
 protected:
  Serves() {
    auto [ours, theirs] = connected_pair();
    asker = PeerEnd(std::move(theirs));
    server = FetchServer::start({.stream = real_stream(std::move(ours)),
                                 .context = streams.context,
                                 .find = [this](ArenaKind kind, Seat seat) { return memory.find(kind, seat); },
                                 .on_wrong =
                                     [this](ArenaKind kind, Seat seat, SlotWord word) {
                                       EXPECT_EQ(kind, ArenaKind::replica);
                                       EXPECT_EQ(seat, kSeat);
                                       EXPECT_EQ(word, (SlotWord{kSlotGeneration, kStep}));
                                       ++wrong;
                                     }});
  }
  ~Serves() override {
    server->end();
    streams.wait_until_ended();
  }
  void ask(FetchFrom from = FetchFrom::replica, bool prove = false, BucketRange range = {}) {
    asker.say(FetchMessage{kSeat, from, kSlotGeneration, kStep, prove, range.first, range.count});
  }

  TestStreams streams;
  Memory memory{real_shared_memory(), nobody_keeps()};
  ArenaHandle arena = *memory.arena_for(test_arena(ArenaKind::replica, kSeat));
  PeerEnd asker{Fd()};
  std::atomic<int> wrong{0};
  std::shared_ptr<FetchServer> server;
};

TEST_F(Serves, TheLayoutThenTheBucketsThatAreAskedFor) {
  capture_step(arena->arena.slot(1), kSlotGeneration, kStep);
  memory.freeze_all();
  ask();
  const auto begin = asker.next<SlotBeginMessage>();
  EXPECT_EQ(begin.generation, kSlotGeneration);
  EXPECT_EQ(begin.step, kStep);
  EXPECT_EQ(begin.samples, 64 * kStep.value);
  EXPECT_EQ(begin.shape, shape_of(test_arena(ArenaKind::replica, kSeat)));
  EXPECT_EQ(begin.layout, "layout 5");
  ask(FetchFrom::replica, false, {1, 2});
  EXPECT_EQ(asker.next<SlotBeginMessage>().layout, "");
  for (std::uint32_t i = 1; i < kTestBuckets; ++i) {
    std::uint32_t sum = 0;
    std::vector<std::byte> bytes(arena->arena.slot(1).bucket(i).size());
    ASSERT_TRUE(receive_all(asker.fd(), std::as_writable_bytes(std::span(&sum, 1)), Deadline::in(kTestPatience)));
    ASSERT_TRUE(receive_all(asker.fd(), bytes, Deadline::in(kTestPatience)));
    EXPECT_EQ(bytes, bucket_bytes(kStep, i, bytes.size()));
    EXPECT_EQ(sum, crc32c(bytes));
  }
  ask();
  EXPECT_EQ(asker.next<SlotBeginMessage>().step, kStep);
  EXPECT_EQ(streams.sent.value(), kTestPayloadBytes - 4096);
}

TEST_F(Serves, NoSlotThatIsNotSealedOrIsOfAnotherArena) {
  open_step(arena->arena.slot(0), kSlotGeneration, kStep);
  ask();
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing);
}

TEST_F(Serves, NoBucketsThatAreNotThere) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  ask(FetchFrom::replica, false, {2, 0xffffffff});
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing) << "as of a path that is shorter";
}

TEST_F(Serves, NotTheReplicaWhereTheOwnArenaIsAskedFor) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  ask(FetchFrom::own);
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing);
}

TEST_F(Serves, NoSlotThatWasWrittenWhileItWasCopied) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  arena->arena.slot(0).mark_torn(kSlotGeneration, kStep);
  ask();
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing);
}

TEST_F(Serves, SumsWithTheirOwnWhereOnlyTheyAreWanted) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  asker.say(FetchMessage{kSeat, FetchFrom::replica, kSlotGeneration, kStep, false, 1, 2, true});
  (void)asker.next<SlotBeginMessage>();
  std::vector<std::uint32_t> sums;
  for (const std::uint32_t bucket : {1u, 2u})
    sums.push_back(crc32c(bucket_bytes(kStep, bucket, test_bucket_bytes(bucket))));
  sums.push_back(crc32c(std::as_bytes(std::span(sums))));
  std::vector<std::uint32_t> told(3);
  ASSERT_TRUE(receive_all(asker.fd(), std::as_writable_bytes(std::span(told)), Deadline::in(kTestPatience)));
  EXPECT_EQ(told, sums);
  ask();
  EXPECT_TRUE(asker.next<SlotBeginMessage>().layout.starts_with("layout")) << "and nothing else came before it";
}

TEST_F(Serves, NoSlotWhoseTableIsDamaged) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  arena->arena.slot(0).buckets()[1].crc32c ^= 1;
  ask();
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing);
}

// It grows with the slot, and a slot is asked for in many ranges.
TEST_F(Serves, ATableIsCheckedOnceAndAgainWhereItHasToProveIt) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  ask();
  EXPECT_EQ(asker.next<SlotBeginMessage>().step, kStep);
  arena->arena.slot(0).buckets()[1].crc32c ^= 1;
  ask();
  EXPECT_EQ(asker.next<SlotBeginMessage>().step, kStep);
  ask(FetchFrom::replica, true, {1, 1});
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing);
  ask();
  EXPECT_EQ(asker.next<PeerRefusedMessage>().refusal, PeerRefusal::missing);
}

TEST_F(Serves, WrongBytesAreItsOwnFaultOnlyIfTheyAreWrongWhereTheyLie) {
  capture_step(arena->arena.slot(0), kSlotGeneration, kStep);
  arena->arena.slot(0).payload()[5000] ^= std::byte{1};
  ask(FetchFrom::replica, true, {0, 3});
  const auto bad = asker.next<BucketsBadMessage>();
  EXPECT_EQ(bad.first, 1u);
  EXPECT_EQ(bad.count, 1u);
  EXPECT_EQ(bad.why, "where it lies: bucket 1: checksum differs");
  EXPECT_EQ(wrong, 1);
  ask(FetchFrom::replica, true, {2, 1});
  EXPECT_EQ(asker.next<SlotBeginMessage>().step, kStep) << "what is right of it is sent";
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
