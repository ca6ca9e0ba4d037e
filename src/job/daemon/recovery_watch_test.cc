#include "job/daemon/recovery_watch.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "job/daemon/test_control.h"
#include "job/daemon/test_imports.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr Step kResumeStep{41};

// Node 0 with seat 0, in the recovery to generation 2; node 1 has the state of its seat.
class RecoveryWatched : public ImportingNode {
 protected:
  RecoveryWatched() : ImportingNode(3, kResumeStep) {
    node.state.leader = test_life(1);  // so this node only reports
    for (std::uint32_t i = 0; i < 3; ++i)
      node.state.sources.push_back({Seat(i), SourceKind::replica, test_life(1), Generation(1), kResumeStep});
    process.seated = Generation(2);
  }
  void begin() {
    node.run_in(JobPhase::restoring);
    memory.freeze_all();
    imports.begin();
    imports.start_waiting();
  }
  void pass(Duration time) {
    for (; time > 0s; time -= 500ms) {
      node.pass(500ms);
      watch.tick();
    }
    node.pass(kEventDelay);
  }
  std::vector<Json> told() {
    MemoryControl server;
    const auto control = server.connect();
    for (auto& work : node.control.told) work(*control);
    node.control.told.clear();
    std::vector<Json> events;
    const Listing listing = *control->list(node.context.mirror.keys().events());
    for (const KeyValue& kv : listing.kvs) events.push_back(Json::parse(kv.value));
    return events;
  }

  RecoveryWatch watch{{node.context, trainers, memory, imports, node.mover, node.events}};
};

TEST_F(RecoveryWatched, ASourceThatAcceptsAndSaysNothingIsToldOfAndThenPassedOver) {
  trainer.asks(RestoreMessage{});
  begin();
  const PeerEnd source = world.network.accept();
  pass(1500ms);
  EXPECT_TRUE(told().empty());
  pass(1s);
  const std::vector<Json> events = told();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["kind"], "recovery_waits");
  EXPECT_EQ(events[0]["seat"], 0);
  EXPECT_EQ(events[0]["what"], "its state from node 1");
  EXPECT_GE(events[0]["for_ms"], 2000);
  EXPECT_EQ(events[0]["deadline_ms"], 30000);
  EXPECT_FALSE(reported());
  pass(30s);
  const std::optional<JobState> next = reported();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->causes.back().kind, FaultKind::source_unreached);
  EXPECT_EQ(next->causes.back().node, test_life(1));
  EXPECT_EQ(next->causes.back().seat, Seat(0));
  EXPECT_EQ(next->causes.back().detail, "seat 0 has waited 30 s for its state from node 1");
  EXPECT_TRUE(next->struck.empty());
  EXPECT_TRUE(next->evicted.empty());
}

TEST_F(RecoveryWatched, ANodeThatCanNotMakeAnArenaGivesUpItsSeats) {
  node.state.sources[0].kind = SourceKind::nothing;
  begin();
  trainer.asks(LayoutMessage{});
  pass(35s);
  const std::optional<JobState> next = reported();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->causes.back().kind, FaultKind::node_lost);
  EXPECT_EQ(next->evicted, std::vector{test_life(0)});
}

// Of the largest seat that any node ever had, whoever has died: the source's own may be a small one.
TEST_F(RecoveryWatched, BeforeItsBytesAreKnownAFetchHasTheTimeOfTheLargestSeat) {
  NodeRecord record;
  record.life = test_life(2);
  record.arena_bytes = std::uint64_t{1000} << 20;
  const std::string value = to_json(record);
  const std::string key = node.context.mirror.keys().node(NodeId(2));
  (void)node.context.mirror.apply(key, &value, ++node.revision, node.clock.now());
  (void)node.context.mirror.apply(key, nullptr, ++node.revision, node.clock.now());
  trainer.asks(RestoreMessage{});
  begin();
  const PeerEnd source = world.network.accept();
  pass(500ms);
  EXPECT_EQ(watch.waits().at(0).wait.deadline, 40s);
}

TEST_F(RecoveryWatched, OnlyTheFirstFewThatAreNotReadyTell) {
  node.state.seats.clear();
  node.state.sources.clear();
  for (std::uint32_t seat = 0; seat < 6; ++seat) {
    node.state.seats.push_back({Seat(seat), test_life((seat + 1) % 6), text("127.0.0.1:10", seat), 0});
    node.state.sources.push_back({Seat(seat), SourceKind::nothing, {}, {}, {}});
  }
  process.seat = Seat(5);
  begin();
  node.context.heard.known = Generation(0);
  pass(3s);
  EXPECT_EQ(node.context.heard.wanted, Generation(0)) << "the first few tell, and need to know who else waits";
  pass(3s);
  EXPECT_EQ(node.context.heard.wanted, Generation(2));
  node.context.heard.known = Generation(2);
  pass(4s);
  EXPECT_EQ(watch.waits().at(0).seat, Seat(5));
  EXPECT_TRUE(told().empty());
  for (const std::uint32_t ready : {2u, 4u}) {
    const std::string record = ready_record(test_life(ready));
    (void)node.context.mirror.apply(node.context.mirror.keys().ready(Generation(2), NodeId(ready)), &record,
                                    ++node.revision, node.clock.now());
  }
  pass(500ms);
  const std::vector<Json> events = told();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["seat"], 5);
  EXPECT_GE(events[0]["for_ms"], 10000);
  EXPECT_FALSE(events[0].contains("seats"));
  pass(7s);
  EXPECT_TRUE(told().empty());
}

TEST_F(RecoveryWatched, OneEventTellsOfAllSeatsOfANode) {
  for (Member& member : node.state.seats) member.life = test_life(0);
  for (Source& source : node.state.sources) source.kind = SourceKind::nothing;
  begin();
  pass(2500ms);
  EXPECT_EQ(watch.waits().size(), 3u);
  const std::vector<Json> events = told();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["seats"], 3);
}

TEST_F(RecoveryWatched, ANodeThatOthersFetchFromStaysAndIsNotGivenUpLaterForAWaitThatIsOver) {
  node.state.sources.push_back({Seat(1), SourceKind::replica, test_life(0), Generation(1), kResumeStep});
  begin();
  const PeerEnd source = world.network.accept();
  pass(35s);
  EXPECT_FALSE(reported());
  imports.end();
  for (Source& each : node.state.sources) each.kind = SourceKind::nothing;
  (void)node.learn();
  imports.begin();
  pass(1s);
  EXPECT_NE(watch.waits().at(0).wait.what.find("its trainer"), std::string::npos) << watch.waits()[0].wait.what;
  node.state.sources.clear();
  (void)node.learn();
  EXPECT_FALSE(reported());
}

TEST_F(RecoveryWatched, ASourceThatCanNotBeReachedIsNamedWithTheLastError) {
  world.network.refuse_next(1'000'000);
  begin();
  ASSERT_TRUE(eventually([&] { return imports.fetch_of(Seat(0))->tries > 2; }));
  watch.tick();
  ASSERT_EQ(watch.waits().size(), 1u);
  EXPECT_EQ(watch.waits()[0].seat, Seat(0));
  const std::string& what = watch.waits()[0].wait.what;
  EXPECT_TRUE(what.starts_with("its state from node 1, ")) << what;
  EXPECT_NE(what.find(" try: "), std::string::npos) << what;
}

TEST_F(RecoveryWatched, WhatHasComeIsCounted) {
  begin();
  PeerEnd source = world.network.accept();
  (void)source.next<Hello>();
  source.say(WelcomeMessage{NodeId(1), Incarnation(1)});
  (void)source.next<FetchMessage>();
  say_slot_begin(source, Generation(1), kResumeStep, Seat(0));
  ASSERT_TRUE(posted.run_until([this] { return imports.fills(Seat(0)); }));
  (void)begin_range(source, Generation(1), kResumeStep, Seat(0));
  say_slot_bucket(source, kResumeStep, 0);
  ASSERT_TRUE(posted.run_until([&] { return imports.fetch_of(Seat(0))->received > 0; }));
  watch.tick();
  const std::string& what = watch.waits()[0].wait.what;
  EXPECT_NE(what.find(" KiB of "), std::string::npos) << what;
}

TEST_F(RecoveryWatched, ATrainerThatDoesNotComeIsToldOf) {
  process.seated = Generation(1);
  begin();
  EXPECT_TRUE(world.network.asked().empty());
  pass(2500ms);
  EXPECT_EQ(watch.waits()[0].wait.what, "its trainer to join");
  EXPECT_EQ(told().size(), 1u);
  trainer.asks(JoinMessage{});
  imports.start_waiting();
  pass(500ms);
  EXPECT_EQ(watch.waits()[0].wait.what, "its state from node 1");
  process.line.connection.reset();
  node.state.sources[0].kind = SourceKind::nothing;
  (void)node.learn();
  imports.end();
  imports.begin();
  pass(500ms);
  EXPECT_EQ(watch.waits()[0].wait.what, "its trainer to start");
  process.begin_dying(node.clock.now());
  pass(500ms);
  EXPECT_EQ(watch.waits()[0].wait.what, "its killed trainer to end");
}

TEST_F(RecoveryWatched, TheLeaderSaysWhomItWaitsFor) {
  node.state.leader = test_life(0);
  node.state.sources.clear();
  node.register_nodes(3);
  node.learn(JobPhase::quiescing);
  node.mover.drive();
  pass(2500ms);
  ASSERT_EQ(watch.waits().size(), 1u);
  EXPECT_FALSE(watch.waits()[0].seat);
  EXPECT_EQ(watch.waits()[0].wait.what, node.mover.waits_for());
  EXPECT_NE(watch.waits()[0].wait.what.find("node 0,1,2"), std::string::npos) << watch.waits()[0].wait.what;
  EXPECT_EQ(told().size(), 1u);
}

TEST_F(RecoveryWatched, NothingIsToldOfAJobThatStartsOrRuns) {
  node.state.ran = Generation(0);
  begin();
  pass(10s);
  EXPECT_EQ(watch.waits().size(), 1u);  // `pawl status` has it
  EXPECT_TRUE(told().empty());
  node.run_in(JobPhase::running);
  pass(10s);
  EXPECT_TRUE(watch.waits().empty());
  EXPECT_TRUE(told().empty());
}

}  // namespace
}  // namespace pawl::job
