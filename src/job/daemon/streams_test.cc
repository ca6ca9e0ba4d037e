// Streams on one node of three: which are opened and accepted, and when. What goes over them: replication_test.cc and
// fetch_test.cc.
#include "job/daemon/streams.h"

#include <gtest/gtest.h>

#include <set>

#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class BulkTraffic : public testing::Test {
 protected:
  BulkTraffic() : node(3, 0, world.environment) {
    node.context.post = [this](std::function<void()> task) { posted.post(std::move(task)); };
    for (std::uint32_t i = 0; i < 3; ++i) {
      node.state.seats[i].address = text("127.0.0.1:10", i);
      if (i > 0) node.state.seats[i].life = test_life(i, 4 + i);
    }
  }
  ~BulkTraffic() override {
    streams.end();
    EXPECT_TRUE(posted.run_until([this] { return world.tasks.all_ended(); }));
  }
  // A connection that somebody opened to this node, and the other end of it.
  struct Incoming {
    std::shared_ptr<Connection> connection;
    PeerEnd other_end;
  };
  Incoming incoming() {
    auto [ours, theirs] = connected_pair();
    return {Connection::make(*loop, real_stream(std::move(ours)),
                             {.on_frame = [](Frame&) {}, .on_close = [](const Error&) {}}),
            PeerEnd(std::move(theirs))};
  }
  static Hello of_seat(Seat seat, std::uint64_t stream = 0) {
    Hello hello;
    hello.purpose = Purpose::data;
    hello.seat = seat;
    hello.stream = stream;
    return hello;
  }
  static Hello of_lane(Seat seat, std::uint64_t stream) {
    Hello hello = of_seat(seat, stream);
    hello.purpose = Purpose::lane;
    return hello;
  }
  // Step 7 of the seat, of whose layout nothing is known here.
  void open_with_layout(PeerEnd& sender, Seat seat) {
    std::atomic<bool> told{false};
    std::thread loop([&] {
      while (!told) posted.run();
    });
    say_first_open(sender, Generation(1), Step(7), test_arena(ArenaKind::own, seat));
    sender.next<OpenedMessage>();
    told = true;
    loop.join();
    EXPECT_NE(memory.find(ArenaKind::replica, seat), nullptr);
  }
  ArenaHandle own_arena() { return *memory.arena_for(test_arena(ArenaKind::own, Seat(0))); }

  TestWorld world;
  TestNode node;
  PostedTasks posted;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Memory memory{real_shared_memory(), nobody_keeps()};
  SeatArenas arenas{node.context, memory};
  std::atomic<std::uint64_t> progress{0};
  int held = 0;
  Streams streams{node.context,
                  memory,
                  arenas,
                  node.holds,
                  progress,
                  {.hello =
                       [](Purpose purpose) {
                         Hello hello;
                         hello.generation = Generation(1);
                         hello.purpose = purpose;
                         return hello;
                       },
                   .on_held = [this] { ++held; }}};
};

TEST_F(BulkTraffic, AnOwnSeatIsSentToTheNextNodeOfTheRing) {
  node.run_in(JobPhase::running);
  streams.start();
  EXPECT_TRUE(streams.idle());  // its layout is not known yet
  const ArenaHandle arena = own_arena();
  streams.start();
  PeerEnd holder = world.network.accept();
  const Hello hello = holder.next<Hello>();
  EXPECT_EQ(world.network.asked(), std::vector<Address>({{"127.0.0.1", 101}}));
  EXPECT_EQ(hello.purpose, Purpose::data);
  EXPECT_EQ(hello.seat, Seat(0));
  EXPECT_EQ(hello.expected, Incarnation(5));
  holder.say(WelcomeMessage{NodeId(1), Incarnation(5)});

  capture_step(arena->arena.slot(0), Generation(1), Step(7));
  streams.notice(Seat(0));
  streams.notice(Seat(2));  // not ours
  EXPECT_EQ(holder.next<OpenMessage>().step, Step(7));
  holder.say(HeldMessage{Step(7)});
  EXPECT_TRUE(posted.run_until([&] { return held == 1; }));
  EXPECT_TRUE(arena->arena.slot(0).acknowledged_by_all(arena->arena.slot(0).word()));

  streams.start();  // it is there already
  EXPECT_TRUE(holder.is_quiet());
  EXPECT_FALSE(world.network.has_waiting());
}

// A trainer that begins anew may declare another layout after the job runs again.
TEST_F(BulkTraffic, AReplacedArenaIsSentInPlaceOfTheOneBefore) {
  node.run_in(JobPhase::running);
  const ArenaHandle before = own_arena();
  streams.start();
  PeerEnd old_end = world.network.accept();
  (void)old_end.next<Hello>();
  old_end.say(WelcomeMessage{NodeId(1), Incarnation(5)});

  memory.put(*memory.make(test_arena(ArenaKind::own, Seat(0), 6)));
  const ArenaHandle arena = memory.find(ArenaKind::own, Seat(0));
  ASSERT_NE(arena, before);
  streams.start();
  EXPECT_TRUE(old_end.is_closed());
  PeerEnd holder = world.network.accept();
  (void)holder.next<Hello>();
  holder.say(WelcomeMessage{NodeId(1), Incarnation(5)});
  capture_step(arena->arena.slot(0), Generation(1), Step(7));
  streams.notice(Seat(0));
  EXPECT_EQ(holder.next<OpenMessage>().shape.layout_digest, digest_of("layout 6"));
  holder.say(HeldMessage{Step(7)});
  EXPECT_TRUE(posted.run_until([&] { return held == 1; }));
  EXPECT_TRUE(arena->arena.slot(0).acknowledged_by_all(arena->arena.slot(0).word()));
}

TEST_F(BulkTraffic, EveryHolderGetsAStreamOfItsOwn) {
  JobSpec spec = node.context.mirror.spec();
  spec.replica_count = 2;
  node.context.mirror.set_spec(spec);
  node.run_in(JobPhase::running);
  ArenaSpec of_two = test_arena(ArenaKind::own, Seat(0));
  of_two.shelf_count = 2;
  const ArenaHandle arena = *memory.arena_for(of_two);
  capture_step(arena->arena.slot(0), Generation(1), Step(7));
  streams.start();
  std::set<std::uint64_t> expected;
  for (int i = 0; i < 2; ++i) {
    PeerEnd holder = world.network.accept();
    const Incarnation of = holder.next<Hello>().expected;
    expected.insert(of.value);
    holder.say(WelcomeMessage{NodeId(1), of});
    EXPECT_EQ(holder.next<OpenMessage>().step, Step(7));
    holder.say(HeldMessage{Step(7)});
    EXPECT_TRUE(posted.run_until([&] { return held == i + 1; }));
    EXPECT_EQ(arena->arena.slot(0).acknowledged_by_all(arena->arena.slot(0).word()), i == 1);
  }
  EXPECT_EQ(expected, (std::set<std::uint64_t>{5, 6}));
}

TEST_F(BulkTraffic, AnEndedGenerationsStreamsAreMadeAnew) {
  node.run_in(JobPhase::running);
  own_arena();
  streams.start();
  PeerEnd first = world.network.accept();
  (void)first.next<Hello>();
  streams.end();
  EXPECT_TRUE(first.is_closed());
  EXPECT_TRUE(posted.run_until([this] { return streams.idle() && node.drives > 0; }));  // who waits for that goes on
  streams.start();
  PeerEnd second = world.network.accept();
  EXPECT_EQ(second.next<Hello>().seat, Seat(0));
}

TEST_F(BulkTraffic, AReplicaIsTakenOnlyWhileTheJobRuns) {
  node.run_in(JobPhase::restoring);
  Incoming link = incoming();
  streams.adopt_data(link.connection, of_seat(Seat(2)));
  EXPECT_EQ(link.other_end.next<PeerRefusedMessage>().refusal, PeerRefusal::later);
  EXPECT_TRUE(link.connection->is_open());
  EXPECT_TRUE(streams.idle());

  node.run_in(JobPhase::running);
  streams.adopt_data(link.connection, of_seat(Seat(2)));
  EXPECT_EQ(link.other_end.next<WelcomeMessage>().node, NodeId(0));
  EXPECT_FALSE(link.connection->is_open());  // a task has its stream
  open_with_layout(link.other_end, Seat(2));
}

TEST_F(BulkTraffic, WhoLeavesBeforeItsWelcomeGetsNoStream) {
  node.run_in(JobPhase::running);
  Incoming link = incoming();
  { const PeerEnd leaves = std::move(link.other_end); }
  streams.adopt_data(link.connection, of_seat(Seat(2)));
  EXPECT_FALSE(link.connection->is_open());
  EXPECT_TRUE(streams.idle());

  node.state.generation = Generation(2);
  node.learn(JobPhase::quiescing);
  node.context.followed.frozen = Generation(2);
  Incoming fetcher = incoming();
  { const PeerEnd leaves = std::move(fetcher.other_end); }
  streams.adopt_fetch(fetcher.connection);
  EXPECT_FALSE(fetcher.connection->is_open());
  EXPECT_TRUE(streams.idle());
}

TEST_F(BulkTraffic, ASenderThatComesBackWaitsForItsOldStreamToEnd) {
  node.run_in(JobPhase::running);
  Incoming first = incoming();
  streams.adopt_data(first.connection, of_seat(Seat(2)));
  first.other_end.next<WelcomeMessage>();
  Incoming second = incoming();
  streams.adopt_data(second.connection, of_seat(Seat(2)));
  EXPECT_EQ(second.other_end.next<PeerRefusedMessage>().refusal, PeerRefusal::later);
  EXPECT_TRUE(first.other_end.is_closed());
  EXPECT_TRUE(eventually([&] {
    streams.adopt_data(second.connection, of_seat(Seat(2)));
    return !second.connection->is_open();
  }));
}

TEST_F(BulkTraffic, ALaneJoinsTheStreamThatItNames) {
  node.run_in(JobPhase::running);
  Incoming first = incoming();
  streams.adopt_data(first.connection, of_seat(Seat(2), 77));
  first.other_end.next<WelcomeMessage>();
  Incoming lane = incoming();
  streams.adopt_data(lane.connection, of_lane(Seat(2), 77));
  lane.other_end.next<WelcomeMessage>();
  EXPECT_FALSE(lane.connection->is_open());  // a task has its stream
  open_with_layout(first.other_end, Seat(2));
  for (std::uint32_t i = 0; i < kTestBuckets; ++i)
    lane.other_end.say_bucket(i, bucket_bytes(Step(7), i, test_bucket_bytes(i)), Generation(1), Step(7));
  first.other_end.say(SealMessage{Step(7), kTestBuckets});
  EXPECT_EQ(first.other_end.next<HeldMessage>().step, Step(7));
  streams.end();
  EXPECT_TRUE(lane.other_end.is_closed());
  EXPECT_TRUE(posted.run_until([this] { return streams.idle(); }));
}

TEST_F(BulkTraffic, ALaneOfAnUnknownStreamIsRefused) {
  node.run_in(JobPhase::running);
  Incoming lane = incoming();
  const auto expect_refused = [&](Seat seat, std::uint64_t stream) {
    streams.adopt_data(lane.connection, of_lane(seat, stream));
    EXPECT_EQ(lane.other_end.next<PeerRefusedMessage>().refusal, PeerRefusal::stale);
    EXPECT_TRUE(lane.connection->is_open());
  };
  expect_refused(Seat(2), 77);  // there is none at all
  Incoming first = incoming();
  streams.adopt_data(first.connection, of_seat(Seat(2), 77));
  first.other_end.next<WelcomeMessage>();
  expect_refused(Seat(2), 78);
  expect_refused(Seat(1), 77);
  Incoming of_none = incoming();
  streams.adopt_data(of_none.connection, of_seat(Seat(1), 0));
  of_none.other_end.next<WelcomeMessage>();
  expect_refused(Seat(1), 0);  // a stream without a number has no lanes
  first.other_end.hang_up();
  of_none.other_end.hang_up();
  EXPECT_TRUE(posted.run_until([this] { return streams.idle(); }));
  expect_refused(Seat(2), 77);  // it is over
}

TEST_F(BulkTraffic, ASlotIsServedOnceItIsFrozen) {
  const ArenaHandle arena = *memory.arena_for(test_arena(ArenaKind::replica, Seat(2)));
  capture_step(arena->arena.slot(0), Generation(1), Step(7));
  node.run_in(JobPhase::running);
  node.state.generation = Generation(2);
  node.learn(JobPhase::quiescing);
  Incoming link = incoming();
  streams.adopt_fetch(link.connection);
  EXPECT_EQ(link.other_end.next<PeerRefusedMessage>().refusal, PeerRefusal::later);
  memory.freeze_all();
  node.context.followed.frozen = Generation(2);
  streams.adopt_fetch(link.connection);
  link.other_end.next<WelcomeMessage>();
  link.other_end.say(FetchMessage{Seat(2), FetchFrom::replica, Generation(1), Step(7)});
  link.other_end.say(FetchMessage{Seat(2), FetchFrom::replica, Generation(1), Step(7), false, 0, kTestBuckets});
  EXPECT_TRUE(posted.run_until([this] { return streams.bytes_sent() > 0; }));
  EXPECT_NE(link.other_end.next<SlotBeginMessage>().layout, "");
  EXPECT_EQ(link.other_end.next<SlotBeginMessage>().step, Step(7));
}

TEST_F(BulkTraffic, NoSlotIsServedWhileTheJobRuns) {
  node.run_in(JobPhase::running);
  Incoming link = incoming();
  streams.adopt_fetch(link.connection);
  EXPECT_EQ(link.other_end.next<PeerRefusedMessage>().refusal, PeerRefusal::stale);
}

TEST_F(BulkTraffic, AHoldersReasonIsKnownByItsSeat) {
  node.run_in(JobPhase::running);
  const ArenaHandle arena = own_arena();
  streams.start();
  PeerEnd holder = world.network.accept();
  (void)holder.next<Hello>();
  holder.say(WelcomeMessage{NodeId(1), Incarnation(5)});
  capture_step(arena->arena.slot(0), Generation(1), Step(7));
  streams.notice(Seat(0));
  (void)holder.next<OpenMessage>();
  holder.say(LaterMessage{"no room"});
  EXPECT_TRUE(eventually([&] {
    return streams.obstacles(Seat(0)) == std::map<std::uint32_t, std::string>{{0, "node 1 can't take it: no room"}};
  }));
  EXPECT_TRUE(streams.obstacles(Seat(1)).empty());
}

TEST_F(BulkTraffic, EndsWhateverIsUnderWay) {
  node.run_in(JobPhase::restoring);
  Incoming fetch = incoming();
  streams.adopt_fetch(fetch.connection);
  node.run_in(JobPhase::running);
  Incoming replica = incoming();
  streams.adopt_data(replica.connection, of_seat(Seat(2)));
  replica.other_end.next<WelcomeMessage>();
  fetch.other_end.next<WelcomeMessage>();
  EXPECT_FALSE(streams.idle());
  streams.end();
  EXPECT_TRUE(replica.other_end.is_closed());
  EXPECT_TRUE(fetch.other_end.is_closed());
  EXPECT_TRUE(posted.run_until([this] { return streams.idle(); }));
}

TEST_F(BulkTraffic, ADrillCanHoldTheAcknowledgement) {
  node.run_in(JobPhase::running);
  node.holds.set("ack");
  Incoming link = incoming();
  streams.adopt_data(link.connection, of_seat(Seat(2)));
  link.other_end.next<WelcomeMessage>();
  open_with_layout(link.other_end, Seat(2));
  for (std::uint32_t i = 0; i < kTestBuckets; ++i)
    link.other_end.say_bucket(i, bucket_bytes(Step(7), i, test_bucket_bytes(i)), Generation(1), Step(7));
  link.other_end.say(SealMessage{Step(7)});
  EXPECT_TRUE(link.other_end.is_quiet());
  node.holds.release_all();
  EXPECT_EQ(link.other_end.next<HeldMessage>().step, Step(7));
}

}  // namespace
}  // namespace pawl::job
