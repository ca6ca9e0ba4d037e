// A replica stream of several connections: each of its ends against a peer that the test plays, then both together.
#include "job/daemon/replica_lanes.h"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <cstring>
#include <map>
#include <set>

#include "job/daemon/fetch.h"
#include "job/daemon/test_wire.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Generation kOfLanes{3};
constexpr Seat kSeatOfLanes{1};
constexpr Step kStepOfLanes{11};

// Large enough that a connection which nobody reads takes no more than one bucket.
constexpr std::uint32_t kLargeBucket = 1 << 20;
constexpr std::uint32_t kLargeBuckets = 6;

ArenaSpec large_arena(ArenaKind kind, std::uint64_t payload_bytes = std::uint64_t{kLargeBuckets} * kLargeBucket) {
  ArenaSpec spec = test_arena(kind, kSeatOfLanes);
  spec.payload_bytes = spec.stable_bytes = payload_bytes;
  spec.bucket_bytes = kLargeBucket;
  return spec;
}

void capture_all(const Slot& slot, Step step) {
  open_step(slot, kOfLanes, step);
  for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) capture_bucket(slot, i);
  ASSERT_TRUE(slot.try_seal(kOfLanes, step));
}

// --- The sender's end

class SendsOverLanes : public testing::Test {
 protected:
  SendsOverLanes() { streams.context.spread_sizes = {0}; }
  ~SendsOverLanes() override {
    if (sender) sender->end();
    ends.clear();  // whoever sends to them ends
    streams.wait_until_ended();
  }
  void start() {
    Hello hello;
    hello.job = "test";
    hello.generation = kOfLanes;
    hello.purpose = Purpose::data;
    hello.seat = kSeatOfLanes;
    sender = ReplicaSender::start({.hello = hello,
                                   .address = "127.0.0.1:7",
                                   .holder = NodeId(2),
                                   .arena = arena,
                                   .context = streams.context,
                                   .on_held = [this](Step step) { held = step.value; },
                                   .on_refused = [](const Error&) {}});
  }
  // The first connection, which is welcomed: ends[0].
  void welcome_first() {
    ends.clear();
    ends.push_back(streams.world.network.accept());
    const Hello hello = ends[0].next<Hello>();
    EXPECT_EQ(hello.purpose, Purpose::data);
    EXPECT_NE(hello.stream, 0u);
    number = hello.stream;
    ends[0].say(WelcomeMessage{NodeId(2), Incarnation(1)});
  }
  Hello accept_lane() {
    ends.push_back(streams.world.network.accept());
    return ends.back().next<Hello>();
  }
  void welcome_lanes() {
    for (int i = 0; i < 3; ++i) {
      const Hello hello = accept_lane();
      EXPECT_EQ(hello.purpose, Purpose::lane);
      EXPECT_EQ(hello.seat, kSeatOfLanes);
      EXPECT_EQ(hello.stream, number);
      ends.back().say(WelcomeMessage{NodeId(2), Incarnation(1)});
    }
  }
  void open() {
    EXPECT_EQ(ends[0].next<OpenMessage>().step, kStepOfLanes);
    ends[0].say(OpenedMessage{});
  }
  [[nodiscard]] Slot slot() const { return arena->arena.slot(0); }

  TestStreams streams;
  Memory memory{real_shared_memory(), nobody_keeps()};
  ArenaHandle arena = *memory.arena_for(large_arena(ArenaKind::own));
  std::atomic<std::uint64_t> held{0};
  std::uint64_t number = 0;
  std::vector<PeerEnd> ends;
  std::shared_ptr<ReplicaSender> sender;
};

TEST_F(SendsOverLanes, BucketsGoToTheConnectionThatIsFree) {
  open_step(slot(), kOfLanes, kStepOfLanes);
  start();
  welcome_first();
  welcome_lanes();
  open();
  for (std::uint32_t i = 0; i < kLargeBuckets; ++i) capture_bucket(slot(), i);
  ASSERT_TRUE(slot().try_seal(kOfLanes, kStepOfLanes));
  sender->notice();
  // Three connections are read by nobody: each is full with one bucket. The last lane takes the others.
  std::set<std::uint32_t> came;
  for (std::uint32_t i = 0; i < kLargeBuckets - 3; ++i) {
    const auto bucket = ends[3].next_bucket();
    EXPECT_EQ(bucket.fields.generation, kOfLanes);
    EXPECT_EQ(bucket.fields.step, kStepOfLanes);
    const auto bytes = bucket_bytes(kStepOfLanes, bucket.fields.index, kLargeBucket);
    EXPECT_EQ(std::memcmp(bucket.bytes.data(), bytes.data(), bytes.size()), 0);
    came.insert(bucket.fields.index);
  }
  EXPECT_TRUE(ends[3].is_quiet());
  for (int lane : {0, 1, 2}) came.insert(ends[lane].next_bucket().fields.index);
  EXPECT_EQ(came.size(), kLargeBuckets);  // each of them once
  const SealMessage seal = ends[0].next<SealMessage>();
  EXPECT_EQ(seal.step, kStepOfLanes);
  EXPECT_EQ(seal.lane_buckets, kLargeBuckets - 1);  // one went over the first connection
  ends[0].say(HeldMessage{kStepOfLanes});
  EXPECT_TRUE(eventually([&] { return held == kStepOfLanes.value; }));
  EXPECT_EQ(streams.sent.value(), std::uint64_t{kLargeBuckets} * kLargeBucket);
  for (int lane : {1, 2, 3}) EXPECT_TRUE(ends[lane].is_quiet());
}

TEST_F(SendsOverLanes, NothingBeforeTheHolderHasOpenedTheStep) {
  capture_all(slot(), kStepOfLanes);
  start();
  welcome_first();
  welcome_lanes();
  EXPECT_EQ(ends[0].next<OpenMessage>().step, kStepOfLanes);
  for (PeerEnd& end : ends) EXPECT_TRUE(end.is_quiet());
  ends[0].say(BusyMessage{});
  EXPECT_EQ(ends[0].next<OpenMessage>().step, kStepOfLanes);
  for (PeerEnd& end : ends) EXPECT_TRUE(end.is_quiet());
}

TEST_F(SendsOverLanes, NotASmallSlot) {
  streams.context.spread_sizes = {std::uint64_t{kLargeBuckets} * kLargeBucket};
  capture_all(slot(), kStepOfLanes);
  start();
  welcome_first();
  open();
  for (std::uint32_t i = 0; i < kLargeBuckets; ++i) EXPECT_EQ(ends[0].next_bucket().fields.index, i);
  EXPECT_EQ(ends[0].next<SealMessage>().lane_buckets, 0u);
  EXPECT_EQ(streams.world.network.asked().size(), 1u);
}

// What it has sent is told with the word that takes it back: the holder waits for it.
TEST_F(SendsOverLanes, AStepThatIsDroppedIsTakenBackWhenNothingOfItIsOnItsWay) {
  open_step(slot(), kOfLanes, kStepOfLanes);
  start();
  welcome_first();
  welcome_lanes();
  open();
  for (std::uint32_t i = 0; i < 4; ++i) capture_bucket(slot(), i);
  sender->notice();
  EXPECT_TRUE(eventually([&] {  // each connection has begun one
    for (PeerEnd& end : ends)
      if (std::byte byte; ::recv(end.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1) return false;
    return true;
  }));
  ASSERT_TRUE(slot().try_abandon(kOfLanes, kStepOfLanes));
  sender->notice();
  std::set<std::uint32_t> came{ends[0].next_bucket().fields.index};
  EXPECT_TRUE(ends[0].is_quiet());
  for (int lane : {1, 2, 3}) came.insert(ends[lane].next_bucket().fields.index);
  EXPECT_EQ(came, (std::set<std::uint32_t>{0, 1, 2, 3}));
  const AbandonMessage abandon = ends[0].next<AbandonMessage>();
  EXPECT_EQ(abandon.step, kStepOfLanes);
  EXPECT_EQ(abandon.lane_buckets, 3u);
}

TEST_F(SendsOverLanes, ALaneThatBreaksEndsTheStreamAndAllIsSentAnew) {
  capture_all(slot(), kStepOfLanes);
  start();
  welcome_first();
  welcome_lanes();
  open();
  ends[2].hang_up();
  EXPECT_TRUE(eventually([&] { return streams.world.network.has_waiting(); }));
  const std::uint64_t broken = number;
  welcome_first();
  EXPECT_NE(number, broken);
  welcome_lanes();
  open();
  EXPECT_EQ(held, 0u);
}

TEST_F(SendsOverLanes, ALaneThatIsRefusedIsNotMissedAndTriesAgain) {
  capture_all(slot(), kStepOfLanes);
  start();
  welcome_first();
  for (int i = 0; i < 3; ++i) {
    (void)accept_lane();
    ends.back().say(PeerRefusedMessage{PeerRefusal::stale, "no such replica stream is open here"});
  }
  open();
  for (std::uint32_t i = 0; i < kLargeBuckets; ++i) EXPECT_EQ(ends[0].next_bucket().fields.index, i);
  EXPECT_EQ(ends[0].next<SealMessage>().lane_buckets, 0u);
  ends[0].say(HeldMessage{kStepOfLanes});
  EXPECT_TRUE(eventually([&] { return held == kStepOfLanes.value; }));
  EXPECT_EQ(accept_lane().stream, number);
}

TEST_F(SendsOverLanes, EndsWhateverItsLanesWaitFor) {
  capture_all(slot(), kStepOfLanes);
  start();
  welcome_first();
  (void)accept_lane();  // waits for its welcome
  (void)accept_lane();
  ends.back().say(WelcomeMessage{NodeId(2), Incarnation(1)});
  open();  // and these two send to somebody who does not read
  EXPECT_FALSE(streams.workers.idle());
  sender->end();
  EXPECT_TRUE(eventually([&] { return streams.workers.idle(); }));
}

// --- The holder's end

class ReceivesOverLanes : public testing::Test {
 protected:
  ReceivesOverLanes() {
    auto [ours, theirs] = connected_pair();
    sender = PeerEnd(std::move(theirs));
    streams.progress = Progress{Step(10), 0}.pack();
    receiver = ReplicaReceiver::start({.stream = real_stream(std::move(ours)),
                                       .number = 5,
                                       .generation = kOfLanes,
                                       .seat = kSeatOfLanes,
                                       .job = "test",
                                       .context = streams.context,
                                       .held = [this] { return memory.find(ArenaKind::replica, kSeatOfLanes); },
                                       .arena_for = [this](const ArenaSpec& spec) { return memory.arena_for(spec); }});
  }
  ~ReceivesOverLanes() override {
    receiver->end();
    streams.wait_until_ended();
  }
  PeerEnd add_lane() {
    auto [ours, theirs] = connected_pair();
    EXPECT_TRUE(receiver->may_add_lane());
    receiver->add_lane(real_stream(std::move(ours)));
    return PeerEnd(std::move(theirs));
  }
  void open(Step step = kStepOfLanes) {
    const ArenaSpec arena = test_arena(ArenaKind::own, kSeatOfLanes);
    if (!std::exchange(has_layout, true))
      say_first_open(sender, kOfLanes, step, arena);
    else
      sender.say(OpenMessage{kOfLanes, step, 64 * step.value, shape_of(arena)});
    sender.next<OpenedMessage>();
  }
  static std::vector<std::byte> bytes_of(std::uint32_t index, Step step = kStepOfLanes) {
    return bucket_bytes(step, index, test_bucket_bytes(index));
  }
  static void bucket(PeerEnd& over, std::uint32_t index, Step step = kStepOfLanes) {
    over.say_bucket(index, bytes_of(index, step), kOfLanes, step);
  }
  static void damaged_bucket(PeerEnd& over, std::uint32_t index) {
    auto bytes = bytes_of(index);
    bytes[17] ^= std::byte{1};
    over.say_bucket(index, bytes, kOfLanes, kStepOfLanes, crc32c(bytes_of(index)));
  }
  // The frame of a bucket, whose bytes end `missing` bytes early, and these.
  static void begin_bucket(PeerEnd& over, std::uint32_t index, std::size_t missing) {
    const auto bytes = bytes_of(index);
    Frame frame = frame_of(BucketMessage{0, index, crc32c(bytes), kOfLanes, kStepOfLanes});
    frame.payload.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::string all = encode_frame(frame);
    over.say_bytes(std::as_bytes(std::span(all)).first(all.size() - missing));
  }
  static void end_bucket(PeerEnd& over, std::uint32_t index, std::size_t missing) {
    over.say_bytes(std::span<const std::byte>(bytes_of(index)).last(missing));
  }
  [[nodiscard]] std::optional<Slot> sealed(Step step = kStepOfLanes) {
    const ArenaHandle arena = memory.find(ArenaKind::replica, kSeatOfLanes);
    Slot slot;
    std::uint32_t index = 0;
    if (!arena || !find_sealed(arena->arena, kOfLanes, step, slot, index)) return std::nullopt;
    return slot;
  }

  TestStreams streams;
  Memory memory{real_shared_memory(), nobody_keeps()};
  bool has_layout = false;
  PeerEnd sender{Fd()};
  std::shared_ptr<ReplicaReceiver> receiver;
};

TEST_F(ReceivesOverLanes, BucketsOfOneStepLandFromWhicheverConnection) {
  PeerEnd one = add_lane();
  PeerEnd two = add_lane();
  for (Step step : {kStepOfLanes, Step(kStepOfLanes.value + 1)}) {
    open(step);
    bucket(two, 2, step);
    bucket(one, 0, step);
    bucket(sender, 1, step);
    sender.say(SealMessage{step, 2});
    EXPECT_EQ(sender.next<HeldMessage>().step, step);
    ASSERT_TRUE(sealed(step));
    EXPECT_TRUE(holds_bytes_of(*sealed(step), step));
  }
  EXPECT_EQ(streams.received.value(), 2 * kTestPayloadBytes);
}

TEST_F(ReceivesOverLanes, TheSealWaitsForBucketsThatComeAfterIt) {
  PeerEnd one = add_lane();
  PeerEnd two = add_lane();
  open();
  bucket(sender, 1);
  begin_bucket(one, 0, 10);
  sender.say(SealMessage{kStepOfLanes, 2});
  EXPECT_TRUE(sender.is_quiet());
  EXPECT_FALSE(sealed());
  bucket(two, 2);
  EXPECT_TRUE(sender.is_quiet());
  end_bucket(one, 0, 10);
  EXPECT_EQ(sender.next<HeldMessage>().step, kStepOfLanes);
  ASSERT_TRUE(sealed());
  EXPECT_TRUE(holds_bytes_of(*sealed(), kStepOfLanes));
}

// Else late bytes of the one step could land among those of the next one, in the same slot.
TEST_F(ReceivesOverLanes, AnAbandonedStepsSlotIsFreeWhenItsBucketsHaveCome) {
  PeerEnd lane = add_lane();
  open();
  begin_bucket(lane, 0, 10);
  sender.say(AbandonMessage{kStepOfLanes, 1});
  const Step next(kStepOfLanes.value + 1);
  sender.say(OpenMessage{kOfLanes, next, 0, shape_of(test_arena(ArenaKind::own, kSeatOfLanes))});
  EXPECT_TRUE(sender.is_quiet());
  end_bucket(lane, 0, 10);
  sender.next<OpenedMessage>();
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) bucket(lane, i, next);
  sender.say(SealMessage{next, kTestBuckets});
  EXPECT_EQ(sender.next<HeldMessage>().step, next);
  EXPECT_TRUE(holds_bytes_of(*sealed(next), next));
}

TEST_F(ReceivesOverLanes, AStepOpenedWhileBucketsOfAnotherComeEndsTheStream) {
  PeerEnd lane = add_lane();
  open();
  begin_bucket(lane, 0, 10);
  const auto is_landing = [&] {  // nothing of it is on its way any more
    int bytes = 0;
    return ::ioctl(lane.fd(), SIOCOUTQ, &bytes) == 0 && bytes == 0;
  };
  EXPECT_TRUE(eventually(is_landing));
  sender.say(
      OpenMessage{kOfLanes, Step(kStepOfLanes.value + 1), 0, shape_of(test_arena(ArenaKind::own, kSeatOfLanes))});
  EXPECT_TRUE(sender.is_closed());
  EXPECT_TRUE(lane.is_closed());
}

TEST_F(ReceivesOverLanes, ABucketBeforeItsStepIsOpenEndsTheStream) {
  PeerEnd lane = add_lane();
  bucket(lane, 0);
  EXPECT_TRUE(lane.is_closed());
  EXPECT_TRUE(sender.is_closed());
  EXPECT_TRUE(eventually([&] { return receiver->finished(); }));
  EXPECT_FALSE(receiver->may_add_lane());
}

TEST_F(ReceivesOverLanes, ABucketOfAnotherStepEndsTheStream) {
  PeerEnd lane = add_lane();
  open();
  bucket(lane, 0, Step(kStepOfLanes.value + 1));
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(ReceivesOverLanes, AnythingButABucketOnALaneEndsTheStream) {
  PeerEnd lane = add_lane();
  open();
  lane.say(SealMessage{kStepOfLanes});
  EXPECT_TRUE(lane.is_closed());
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(ReceivesOverLanes, ALaneThatIsCutInABucketEndsTheStreamAndNothingIsSealed) {
  PeerEnd cut = add_lane();
  PeerEnd other = add_lane();
  open();
  bucket(sender, 1);
  bucket(other, 2);
  begin_bucket(cut, 0, 10);
  sender.say(SealMessage{kStepOfLanes, kTestBuckets});
  EXPECT_TRUE(sender.is_quiet());
  EXPECT_FALSE(receiver->finished());
  cut.hang_up();
  EXPECT_TRUE(sender.is_closed());
  EXPECT_TRUE(other.is_closed());
  EXPECT_TRUE(eventually([&] { return receiver->finished() && streams.workers.idle(); }));
  EXPECT_FALSE(sealed());
}

TEST_F(ReceivesOverLanes, TheFirstConnectionsEndEndsItsLanes) {
  PeerEnd lane = add_lane();
  open();
  begin_bucket(lane, 0, 10);
  sender.hang_up();
  EXPECT_TRUE(lane.is_closed());
  EXPECT_TRUE(eventually([&] { return receiver->finished(); }));
}

TEST_F(ReceivesOverLanes, MoreBucketsThanWereToldEndTheStream) {
  PeerEnd lane = add_lane();
  open();
  bucket(lane, 0);
  bucket(lane, 1);
  EXPECT_TRUE(eventually([&] { return streams.received.value() == 2 * test_bucket_bytes(0); }));
  bucket(sender, 2);
  sender.say(SealMessage{kStepOfLanes, 1});
  EXPECT_TRUE(sender.is_closed());
  EXPECT_FALSE(sealed());
}

TEST_F(ReceivesOverLanes, ARepeatedBucketIsTaken) {
  PeerEnd one = add_lane();
  PeerEnd two = add_lane();
  open();
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) {
    bucket(one, i);
    bucket(two, i);
  }
  sender.say(SealMessage{kStepOfLanes, 2 * kTestBuckets});
  EXPECT_EQ(sender.next<HeldMessage>().step, kStepOfLanes);
  EXPECT_TRUE(holds_bytes_of(*sealed(), kStepOfLanes));
}

// The right one came first: its sum stands, and other bytes lie there.
TEST_F(ReceivesOverLanes, ABucketThatIsRepeatedDamagedIsNotSealed) {
  PeerEnd lane = add_lane();
  open();
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) bucket(sender, i);
  EXPECT_TRUE(eventually([&] { return streams.received.value() == kTestPayloadBytes; }));
  damaged_bucket(lane, 1);
  sender.say(SealMessage{kStepOfLanes, 1});
  EXPECT_EQ(sender.next<BucketBadMessage>().index, 1u);
  EXPECT_FALSE(sealed());
  open();  // and begins anew
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) bucket(lane, i);
  sender.say(SealMessage{kStepOfLanes, kTestBuckets});
  EXPECT_EQ(sender.next<HeldMessage>().step, kStepOfLanes);
  EXPECT_TRUE(holds_bytes_of(*sealed(), kStepOfLanes));
}

TEST_F(ReceivesOverLanes, AStreamHasThreeLanesAtMost) {
  std::vector<PeerEnd> lanes;
  for (int i = 0; i < 3; ++i) lanes.push_back(add_lane());
  EXPECT_FALSE(receiver->may_add_lane());
}

// --- Both

class BothEnds : public testing::Test {
 protected:
  ~BothEnds() override {
    for (auto& sender : senders) sender->end();
    for (auto& [seat, receiver] : receivers) receiver->end();
    streams.wait_until_ended();
  }
  // From the one node's memory into the other's, over as many connections as each seat's sender opens.
  void begin(std::uint64_t payload_bytes, std::uint32_t seats, std::size_t connections) {
    for (std::uint32_t seat = 0; seat < seats; ++seat) {
      ArenaSpec spec = large_arena(ArenaKind::own, payload_bytes);
      spec.seat = Seat(seat);
      own.push_back(*ward.arena_for(spec));
      capture_all(own.back()->arena.slot(0), kStepOfLanes);
    }
    for (const ArenaHandle& arena : own) {
      Hello hello;
      hello.purpose = Purpose::data;
      hello.generation = kOfLanes;
      hello.seat = arena->arena.spec().seat;
      senders.push_back(ReplicaSender::start({.hello = hello,
                                              .address = "127.0.0.1:7",
                                              .holder = NodeId(2),
                                              .arena = arena,
                                              .context = streams.context,
                                              .on_held = [this](Step) { ++held; },
                                              .on_refused = [](const Error&) {}}));
    }
    for (std::size_t i = 0; i < seats * connections; ++i) accept();
  }
  void accept() {
    PeerEnd end = streams.world.network.accept();
    const Hello said = end.next<Hello>();
    end.say(WelcomeMessage{NodeId(2), Incarnation(1)});
    if (said.purpose == Purpose::lane) {
      ASSERT_EQ(receivers[said.seat]->number(), said.stream);
      return receivers[said.seat]->add_lane(real_stream(end.release()));
    }
    receivers[said.seat] =
        ReplicaReceiver::start({.stream = real_stream(end.release()),
                                .number = said.stream,
                                .generation = kOfLanes,
                                .seat = said.seat,
                                .job = "test",
                                .context = streams.context,
                                .held = [this, said] { return holder.find(ArenaKind::replica, said.seat); },
                                .arena_for =
                                    [this](const ArenaSpec& spec) {
                                      std::lock_guard lock(mutex);
                                      return holder.arena_for(spec);
                                    }});
  }
  void finish(std::size_t connections) {
    EXPECT_TRUE(eventually([&] { return held == own.size(); }));
    for (auto& sender : senders) sender->end();
    for (const ArenaHandle& from : own) {
      const ArenaHandle arena = holder.find(ArenaKind::replica, from->arena.spec().seat);
      Slot copy;
      std::uint32_t index = 0;
      ASSERT_TRUE(arena && find_sealed(arena->arena, kOfLanes, kStepOfLanes, copy, index));
      EXPECT_TRUE(copy.verify());
      const auto bytes = from->arena.slot(0).payload();
      EXPECT_EQ(std::memcmp(copy.payload().data(), bytes.data(), bytes.size()), 0);
    }
    EXPECT_EQ(streams.world.network.asked().size(), own.size() * connections);
  }

  TestStreams streams;
  Memory ward{real_shared_memory(), nobody_keeps()};
  Memory holder{real_shared_memory(), nobody_keeps()};
  std::mutex mutex;  // over `holder`, while streams ask for arenas
  std::atomic<std::size_t> held{0};
  std::vector<ArenaHandle> own;
  std::vector<std::shared_ptr<ReplicaSender>> senders;
  std::map<Seat, std::shared_ptr<ReplicaReceiver>> receivers;
};

TEST_F(BothEnds, SixtyFourMebibytesGoOverFourConnections) {
  begin(std::uint64_t{64} << 20, 1, 4);
  finish(4);
}

TEST_F(BothEnds, ThirtyTwoMebibytesGoOverOne) {
  begin(std::uint64_t{32} << 20, 1, 1);
  finish(1);
}

// At each moment as many bytes have gone as the limit says, and no more.
TEST_F(BothEnds, ANodesLimitHoldsOverAllItsStreamsAndTheirLanes) {
  constexpr std::uint64_t kRate = std::uint64_t{40} << 20;
  constexpr std::uint64_t kAll = std::uint64_t{80} << 20;
  SendLimit limit;
  limit.set(kRate);
  streams.context.send_limit = &limit;
  streams.world.clock.stand_still();
  begin(kAll / 2, 2, 4);
  const auto in = [](Duration time) {
    return static_cast<std::uint64_t>(static_cast<double>(kRate) * std::chrono::duration<double>(time).count());
  };
  for (Duration time = 0ms; time < 2s; time += 40ms, streams.world.clock.skip(40ms)) {
    EXPECT_TRUE(eventually([&] { return streams.sent.value() >= in(time)*95 / 100; }));
    ASSERT_LE(streams.sent.value(), in(time + kRateBurst) + 2 * kLargeBucket) << time.count();
    ASSERT_TRUE(held < own.size() || time >= 1900ms) << time.count();
  }
  EXPECT_TRUE(eventually([&] {
    streams.world.clock.skip(1ms);
    return held == own.size();
  }));
  finish(4);
}

}  // namespace
}  // namespace pawl::job
