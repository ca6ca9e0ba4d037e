#include "job/daemon/state_mover.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Moves : public testing::Test {
 protected:
  // What node 0 sees if it heard these just now, and those 4 s ago.
  std::vector<Contact> contacts(std::vector<std::uint32_t> heard, std::vector<std::uint32_t> silent = {}) {
    std::vector<Contact> out;
    for (const std::uint32_t id : heard) out.push_back({test_life(id), node.clock.now(), {}, false});
    for (const std::uint32_t id : silent) out.push_back({test_life(id), node.clock.now() - 4s, {}, false});
    return out;
  }
  void accuses(std::uint32_t victim, std::uint32_t accuser) {
    const std::string value = to_json(Accusation{test_life(victim), test_life(accuser)});
    const JobMirror& mirror = node.context.mirror;
    (void)node.context.mirror.apply(mirror.keys().accusation(mirror.generation(), NodeId(victim), NodeId(accuser)),
                                    &value, ++node.revision, node.clock.now());
  }
  [[nodiscard]] JobState asked() const { return *parse_job_state(node.control.swaps.back().value); }
  static Cause node_lost(std::uint32_t id) { return {FaultKind::node_lost, test_life(id), std::nullopt, "gone", 0}; }

  TestNode node;
};

TEST_F(Moves, FormsTheJobWhenEnoughNodesAreThere) {
  node.mover.consider_forming();
  EXPECT_TRUE(node.control.swaps.empty());
  node.register_nodes(2);
  node.mover.consider_forming();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(node.control.swaps[0].expected, 0);
  EXPECT_EQ(asked().generation, Generation(1));
  node.mover.consider_forming();
  EXPECT_EQ(node.control.swaps.size(), 1u);  // one at a time
  EXPECT_TRUE(node.mover.is_moving());
  node.control.swaps[0].then(Swapped{true, 5, std::nullopt});
  EXPECT_FALSE(node.mover.is_moving());
  ASSERT_EQ(node.won.size(), 1u);
  EXPECT_EQ(node.drives, 1);
}

TEST_F(Moves, ALargeJobsTopologyIsWrittenOnceBesideItsState) {
  node.context.state_limits.rows_max = 1;
  node.run_in(JobPhase::running);
  JobState next = node.state;
  next.generation = Generation(2);
  node.mover.move(next, "a test");
  ASSERT_EQ(node.control.swaps.size(), 1u);
  ASSERT_EQ(node.control.swaps[0].beside.size(), 1u);
  EXPECT_EQ(node.control.swaps[0].beside[0].key, node.context.mirror.keys().topology(Generation(2)));
  const auto topology = parse_topology(node.control.swaps[0].beside[0].value);
  ASSERT_TRUE(topology);
  EXPECT_EQ(*read_state(node.control.swaps[0].value, &*topology), next);
  node.control.swaps[0].then(Swapped{false, 5, std::nullopt});
  EXPECT_FALSE(node.context.mirror.beside.topology) << "it was not put";
  node.pass(2s);
  node.mover.move(next, "a test");
  node.control.swaps[1].then(Swapped{true, 6, std::nullopt});
  ASSERT_EQ(node.won.size(), 1u);
  EXPECT_EQ(node.won[0], next);
  next.seats[1].life = test_life(9);
  node.mover.move(next, "a test");
  ASSERT_EQ(node.control.swaps.size(), 3u);
  EXPECT_TRUE(node.control.swaps[2].beside.empty());
  EXPECT_EQ(*read_state(node.control.swaps[2].value, &*topology), next);
}

TEST_F(Moves, ASheetStandsAsLongAsAStateNamesIt) {
  node.context.state_limits.bytes_max = 200;
  node.run_in(JobPhase::running);
  JobState next = node.state;
  next.generation = Generation(2);
  next.verdict = std::string(1000, 'x');
  const auto& swaps = node.control.swaps;
  node.mover.move(next, "a test");
  ASSERT_EQ(swaps.size(), 1u);
  ASSERT_EQ(swaps[0].beside.size(), 1u);
  const JobKeys& keys = node.context.mirror.keys();
  const auto sheet = sheet_in(keys, swaps[0].beside[0].key, swaps[0].beside[0].value);
  ASSERT_TRUE(sheet);
  EXPECT_EQ(*read_state(swaps[0].value, nullptr, &*sheet), next);
  node.control.swaps[0].then(Swapped{false, 5, std::nullopt});
  EXPECT_EQ(node.context.mirror.beside.known_sheet(), nullptr) << "it was not put";
  node.pass(2s);
  node.mover.move(next, "a test");
  node.control.swaps[1].then(Swapped{true, 6, std::nullopt});
  ASSERT_NE(node.context.mirror.beside.known_sheet(), nullptr);
  next.committed = Step(5);
  node.mover.move(next, "a test");
  ASSERT_EQ(swaps.size(), 3u);
  EXPECT_TRUE(swaps[2].beside.empty()) << "the same rows";
  EXPECT_EQ(*read_state(swaps[2].value, nullptr, &*sheet), next);
  node.control.swaps[2].then(Swapped{true, 7, std::nullopt});
  next.verdict.clear();
  node.mover.move(next, "a test");
  ASSERT_EQ(swaps.size(), 4u);
  ASSERT_EQ(swaps[3].beside.size(), 1u);
  EXPECT_EQ(swaps[3].beside[0].kind, KeyChange::Kind::erase);
  EXPECT_EQ(swaps[3].beside[0].key, sheet_key(keys, sheet->name));
  node.control.swaps[3].then(Swapped{true, 8, std::nullopt});
  next.verdict = std::string(1000, 'x');
  node.mover.move(next, "a test");
  ASSERT_EQ(swaps.size(), 5u);
  ASSERT_EQ(swaps[4].beside.size(), 1u) << "the same rows again, which were erased";
  EXPECT_EQ(swaps[4].beside[0].kind, KeyChange::Kind::put);
}

TEST_F(Moves, AStateThatOthersCouldNotReadIsNotWritten) {
  node.run_in(JobPhase::running);
  JobState next = node.state;
  next.verdict = std::string(kRecordBytesMax, 'x');
  node.mover.move(next, "a test");
  EXPECT_TRUE(node.control.swaps.empty());
  EXPECT_FALSE(node.mover.is_moving());
  node.pass(2s);
  node.mover.move(node.state, "a test");
  EXPECT_EQ(node.control.swaps.size(), 1u);
}

// Not in the first recovery: nobody has trained anything by then.
TEST_F(Moves, AJobThatIsTooLargeForItsRecordsEndsBeforeItBegins) {
  constexpr std::uint32_t kNodes = 4000;
  JobSpec spec = node.context.mirror.spec();
  spec.node_count = kNodes;
  node.context.mirror.set_spec(spec);
  for (std::uint32_t id = 0; id < kNodes; ++id) {
    NodeRecord record{test_life(id), std::string(kAddressBytesMax, 'x'), "", "", 1, 1, 2, true, 0};
    const std::string value = to_json(record);
    (void)node.context.mirror.apply(node.context.mirror.keys().node(NodeId(id)), &value, ++node.revision,
                                    node.clock.now());
  }
  node.mover.consider_forming();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_TRUE(node.control.swaps[0].beside.empty());
  EXPECT_EQ(asked().phase, JobPhase::failed);
  EXPECT_TRUE(asked().seats.empty());
  EXPECT_NE(asked().verdict.find("cannot begin: 4000 nodes are too many: the record of who sits where would have"),
            std::string::npos)
      << asked().verdict;
}

TEST_F(Moves, AFaultIsSaidOnceAndOpensAGeneration) {
  node.run_in(JobPhase::running);
  node.mover.report(node_lost(1));
  node.mover.report(node_lost(1));
  EXPECT_EQ(node.drives, 1);
  node.holds.set("suspect");
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  node.holds.release_all();
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().phase, JobPhase::quiescing);
  EXPECT_EQ(asked().generation, Generation(2));
  EXPECT_EQ(asked().causes.size(), 1u);
  EXPECT_EQ(asked().evicted, std::vector<NodeLife>{test_life(1)});
  // Another was faster: what stands accounts for the cause.
  node.state = asked();
  node.control.swaps[0].then(Swapped{false, 7, std::nullopt});
  (void)node.learn();
  node.mover.drive();
  node.mover.drive();
  EXPECT_EQ(node.control.swaps.size(), 1u);
}

// A recovery of small seats leaves quiescing within the pause after a lost swap.
TEST_F(Moves, AFailedExchangeOfAnEarlierGenerationIsNoFaultOfThis) {
  node.register_nodes(2);
  node.run_in(JobPhase::running);
  node.holds.set("suspect");
  node.mover.report({FaultKind::communication, test_life(1), Seat(0), "closed", 0});
  node.mover.drive();
  node.state.generation = Generation(2);
  node.learn(JobPhase::restoring);
  node.holds.release_all();
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  node.mover.report({FaultKind::communication, test_life(1), Seat(0), "closed", 0});
  node.mover.drive();
  EXPECT_EQ(node.control.swaps.size(), 1u);
}

TEST_F(Moves, WhileTheControlIsAwayItIsTriedAgain) {
  node.run_in(JobPhase::running);
  node.mover.report(node_lost(1));
  node.mover.drive();
  node.control.swaps[0].then(Error{Code::unreachable, "away"});
  EXPECT_FALSE(node.mover.is_moving());
  node.pass(20ms);
  node.mover.drive();
  EXPECT_EQ(node.control.swaps.size(), 2u);
}

// A lost swap that teaches nothing, as after the control has lost its data, is not tried in a hot loop.
TEST_F(Moves, LostSwapsAreTriedAgainAfterPausesThatDouble) {
  node.run_in(JobPhase::running);
  node.mover.report(node_lost(1));
  int swaps = 0;
  for (int ms = 0; ms < 10000; ++ms) {
    node.mover.drive();
    if (node.mover.is_moving()) {
      ++swaps;
      node.control.swaps.back().then(Swapped{false, 7, std::nullopt});
    }
    node.pass(1ms);
  }
  EXPECT_GE(swaps, 10);
  EXPECT_LE(swaps, 30);
}

TEST_F(Moves, ATrainerThatNoLongerHangsIsNotHeldToIt) {
  node.run_in(JobPhase::running);
  const Cause hangs{FaultKind::trainer_hang, test_life(0), Seat(0), "no progress", 0};
  node.mover.report(hangs);
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  node.control.swaps[0].then(Error{Code::unreachable, "away"});
  node.pass(1s);
  node.mover.report(hangs);
  node.pass(1s);
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 2u);
  node.control.swaps[1].then(Error{Code::unreachable, "away"});
  node.pass(2s);
  node.mover.drive();
  EXPECT_EQ(node.control.swaps.size(), 2u);
}

TEST_F(Moves, WhoIsNoMemberReportsNothing) {
  TestNode spare(2, 5);
  spare.learn(JobPhase::running);
  spare.mover.report(node_lost(1));
  spare.mover.drive();
  EXPECT_TRUE(spare.control.swaps.empty());
}

TEST_F(Moves, TheLeaderGoesOnWhenAllAreReady) {
  node.state.lineage = {{Generation(1), Step(0)}};
  node.run_in(JobPhase::restoring);
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  for (std::uint32_t id = 0; id < 2; ++id) {
    const std::string ready = ready_record(test_life(id));
    (void)node.context.mirror.apply(node.context.mirror.keys().ready(Generation(1), NodeId(id)), &ready,
                                    ++node.revision, node.clock.now());
  }
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().phase, JobPhase::running);
}

TEST_F(Moves, WhoMissesItsDeadlineIsEvicted) {
  node.register_nodes(2);
  node.run_in(JobPhase::quiescing);
  Inventory own;
  own.life = test_life(0);
  own.generation = node.state.generation;
  node.context.mirror.reports.note(own);
  node.clock.sleep(4s);  // but the control did not answer meanwhile: who knows what was put
  node.be_attentive();
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  node.live(3100ms);
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().causes[0].kind, FaultKind::node_silent);
}

TEST_F(Moves, SilenceIsSaidAndWithdrawnAndEvictsOnlyIfOthersSayItToo) {
  TestNode& of_four = node;
  of_four.state.seats.clear();
  for (std::uint32_t id = 0; id < 4; ++id) of_four.state.seats.push_back({Seat(id), test_life(id), "host", 0});
  of_four.register_nodes(4);
  of_four.run_in(JobPhase::running);
  of_four.live(4s);
  of_four.mover.check_members(contacts({1, 3}, {2}));
  of_four.mover.drive();
  EXPECT_TRUE(of_four.control.swaps.empty());
  ASSERT_EQ(of_four.control.puts.size(), 1u);
  EXPECT_EQ(of_four.control.puts[0].key, "/pawl/test/suspect/1/2/0");
  of_four.mover.check_members(contacts({1, 3}, {2}));
  EXPECT_EQ(of_four.control.puts.size(), 1u);  // it is on its way
  accuses(2, 0);
  of_four.mover.drive();
  EXPECT_TRUE(of_four.control.swaps.empty());  // one accuser
  of_four.live(50ms);
  const int tells = of_four.control.tells;
  of_four.mover.check_members(contacts({1, 2, 3}));
  EXPECT_EQ(of_four.control.tells, tells + 1);  // withdrawn
  accuses(2, 1);
  of_four.mover.drive();
  EXPECT_TRUE(of_four.control.swaps.empty());  // two, but it is heard
  of_four.mover.check_members(contacts({1, 3}, {2}));
  of_four.mover.drive();
  ASSERT_EQ(of_four.control.swaps.size(), 1u);
  EXPECT_EQ(asked().evicted, std::vector<NodeLife>{test_life(2)});
}

// A watch that stands still does not tell that somebody is back.
TEST_F(Moves, NobodyIsGivenUpBeforeTheKeysAreKnownAnew) {
  TestNode leader(3, 0);
  leader.register_nodes(3);
  leader.run_in(JobPhase::running);
  leader.live(10s);
  const auto of = [&leader](NodeLife accuser) {
    const JobMirror& mirror = leader.context.mirror;
    const std::string value = to_json(Accusation{test_life(2), accuser});
    (void)leader.context.mirror.apply(mirror.keys().accusation(mirror.generation(), NodeId(2), accuser.node), &value,
                                      ++leader.revision, leader.clock.now());
  };
  of(test_life(0));
  of(test_life(1));
  const std::vector<Contact> contacts{{test_life(1), leader.clock.now(), {}, false},
                                      {test_life(2), leader.clock.now() - 4s, {}, false}};
  leader.mover.check_members(contacts);
  leader.context.watched.keys.as_of = leader.clock.now() - 1ms;
  leader.mover.drive();
  EXPECT_TRUE(leader.control.swaps.empty());
  EXPECT_TRUE(leader.context.watched.keys.ask_anew);
  leader.context.watched.keys.as_of = leader.clock.now();
  leader.context.watched.nodes.as_of = leader.clock.now() - 1ms;
  leader.mover.drive();
  EXPECT_TRUE(leader.control.swaps.empty()) << "the watch of who is registered is another";
  EXPECT_TRUE(leader.context.watched.nodes.ask_anew);
  leader.context.watched.nodes.as_of = leader.clock.now();
  leader.mover.drive();
  ASSERT_EQ(leader.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(leader.control.swaps[0].value)->evicted, std::vector<NodeLife>{test_life(2)});
}

// In a large job most nodes follow nobody's registration. What follows from the others' they leave to those who do.
TEST_F(Moves, WhoDoesNotKnowWhoIsRegisteredGivesUpNobody) {
  TestNode one(3, 0);
  one.register_nodes(3);
  one.context.mirror.nodes.forget({});
  one.run_in(JobPhase::running);
  one.live(10s);
  for (const std::uint32_t accuser : {0u, 1u}) {
    const JobMirror& mirror = one.context.mirror;
    const std::string value = to_json(Accusation{test_life(2), test_life(accuser)});
    (void)one.context.mirror.apply(mirror.keys().accusation(mirror.generation(), NodeId(2), NodeId(accuser)), &value,
                                   ++one.revision, one.clock.now());
  }
  const auto look = [&] {
    one.mover.check_members(std::vector<Contact>{{test_life(1), one.clock.now(), {}, false},
                                                 {test_life(2), one.clock.now() - 4s, {}, false}});
    one.mover.drive();
  };
  look();
  EXPECT_TRUE(one.control.puts.empty());
  EXPECT_TRUE(one.control.swaps.empty());
  EXPECT_EQ(one.control.tells, 0) << "it knows no better, so nothing is withdrawn";
  one.register_nodes(2);
  Listing listing;
  for (const auto& [id, record] : one.context.mirror.registrations().nodes)
    listing.kvs.push_back({one.context.mirror.keys().node(id), to_json(record), 1, 1, 0});
  (void)one.context.mirror.apply_nodes(listing, one.clock.now());
  look();
  ASSERT_EQ(one.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(one.control.swaps[0].value)->evicted, std::vector<NodeLife>{test_life(2)});
}

// The witnesses of a large job say what they see, and who knows all registrations acts on their words.
TEST_F(Moves, InALargeJobWitnessesAccuseAndWhoKnowsConvicts) {
  const auto begin = [](TestNode& one) {
    one.register_nodes(8);
    one.context.watched.few_follow = true;
    one.run_in(JobPhase::running);
    one.live(10s);
  };
  TestNode witness(8, 4);
  begin(witness);
  witness.context.mirror.nodes.forget({});
  witness.mover.check_members(std::vector<Contact>{{test_life(3), witness.clock.now(), {}, false},
                                                   {test_life(5), witness.clock.now() - 4s, {}, false},
                                                   {test_life(6), witness.clock.now(), {}, false}});
  witness.mover.drive();
  ASSERT_EQ(witness.control.puts.size(), 1u);
  EXPECT_EQ(witness.control.puts[0].key, "/pawl/test/suspect/1/5/4");
  EXPECT_TRUE(witness.control.swaps.empty());

  TestNode judge(8, 7);
  begin(judge);
  for (const std::uint32_t accuser : {3u, 4u, 6u}) {
    const JobMirror& mirror = judge.context.mirror;
    const std::string value = to_json(Accusation{test_life(5), test_life(accuser)});
    (void)judge.context.mirror.apply(mirror.keys().accusation(mirror.generation(), NodeId(5), NodeId(accuser)), &value,
                                     ++judge.revision, judge.clock.now());
  }
  const Duration beat = judge.context.deadlines.heartbeat_interval;
  for (int beats = 0; beats < 4; ++beats, judge.pass(beat)) {
    judge.be_attentive();
    judge.mover.drive();
    EXPECT_TRUE(judge.control.swaps.empty()) << "they may yet take it back";
  }
  judge.be_attentive();
  judge.mover.drive();
  EXPECT_TRUE(judge.control.puts.empty()) << "it is no witness";
  ASSERT_EQ(judge.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(judge.control.swaps[0].value)->evicted, std::vector<NodeLife>{test_life(5)});
}

// A spare that it does not know would be missing, and what an evicted node still has would be lost.
TEST_F(Moves, WhoLeadsDecidesNothingBeforeItKnowsWhoIsRegistered) {
  node.register_nodes(3);
  const std::map<NodeId, NodeRecord> nodes = node.context.mirror.registrations().nodes;
  node.context.mirror.nodes.forget({});
  node.state.evicted = {test_life(1)};
  node.state.lineage = {{Generation(1), Step(0)}};
  node.state.ran = Generation(1);
  node.run_in(JobPhase::quiescing);
  node.context.mirror.reports.note({test_life(0), node.state.generation, Step(0), {}, {Seat(0)}, 0});
  node.live(60s);
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  Listing listing;
  for (const auto& [id, record] : nodes)
    listing.kvs.push_back({node.context.mirror.keys().node(id), to_json(record), 1, 1, 0});
  (void)node.context.mirror.apply_nodes(listing, node.clock.now());
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().phase, JobPhase::restoring);
  EXPECT_EQ(asked().seats[1].life, test_life(2));
}

TEST_F(Moves, TheLargestArenaIsToldOnceSomethingIsCommitted) {
  const auto tell_size = [this](std::uint32_t id, std::uint64_t bytes) {
    NodeRecord record;
    record.life = test_life(id);
    record.arena_bytes = bytes;
    const std::string value = to_json(record);
    (void)node.context.mirror.apply(node.context.mirror.keys().node(NodeId(id)), &value, ++node.revision,
                                    node.clock.now());
  };
  node.register_nodes(2);
  node.run_in(JobPhase::running);
  tell_size(0, 700);
  node.context.committed = Step(1);
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty()) << "the other's is not known yet";
  tell_size(1, 900);
  node.context.committed = Step(0);
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  node.context.committed = Step(1);
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  JobState told = node.state;
  told.arena_bytes = 900;
  EXPECT_EQ(asked(), told);
  node.state = told;
  (void)node.learn();
  node.control.swaps[0].then(Swapped{true, node.revision, std::nullopt});
  node.mover.drive();
  EXPECT_EQ(node.control.swaps.size(), 1u);
  // A larger one by whoever leads the next recovery.
  tell_size(1, 5000);
  node.state.generation = Generation(2);
  node.state.resume = Step(1);
  node.run_in(JobPhase::restoring);
  for (std::uint32_t id = 0; id < 2; ++id) node.context.mirror.reports.note_ready(test_life(id));
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 2u);
  EXPECT_EQ(asked().phase, JobPhase::running);
  EXPECT_EQ(asked().arena_bytes, 5000u);
}

// When the job begins to run for the first time some have said how large theirs are, and others not yet.
TEST_F(Moves, NoArenaIsTheLargestBeforeSomethingIsCommitted) {
  NodeRecord record;
  record.life = test_life(0);
  record.arena_bytes = 700;
  const std::string value = to_json(record);
  node.register_nodes(2);
  (void)node.context.mirror.apply(node.context.mirror.keys().node(NodeId(0)), &value, ++node.revision,
                                  node.clock.now());
  node.run_in(JobPhase::restoring);
  for (std::uint32_t id = 0; id < 2; ++id) node.context.mirror.reports.note_ready(test_life(id));
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().phase, JobPhase::running);
  EXPECT_EQ(asked().arena_bytes, 0u);
}

// The control was stopped for 10 s, and a pawld began anew meanwhile, which it can't before the control is back.
TEST_F(Moves, AfterAControlThatWasAwayNobodyIsAccusedAtOnce) {
  node.register_nodes(3);
  node.run_in(JobPhase::running);
  node.live(10s);
  for (int i = 0; i < 100; ++i) {  // ticks, and no answer
    node.pass(100ms);
    node.context.attention.ticked(node.clock.now(), node.context.deadlines);
    node.mover.check_members(contacts({}, {1}));
    node.mover.drive();
  }
  EXPECT_LE(node.control.puts.size(), 1u);  // within the 2.5 s in which an answer may take its time
  node.control.puts.clear();
  accuses(1, 0);
  node.be_attentive();
  node.mover.check_members(contacts({}, {1}));
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  EXPECT_TRUE(node.control.puts.empty());
}

TEST_F(Moves, AnotherMemberLeadsWhereTheLeaderStandsStill) {
  TestNode second(2, 1);
  second.state.lineage = {{Generation(1), Step(0)}};
  second.register_nodes(2);
  second.run_in(JobPhase::restoring);
  for (std::uint32_t id = 0; id < 2; ++id) {
    const std::string ready = ready_record(test_life(id));
    (void)second.context.mirror.apply(second.context.mirror.keys().ready(Generation(1), NodeId(id)), &ready,
                                      ++second.revision, second.clock.now());
  }
  second.live(3s);
  second.mover.drive();
  EXPECT_TRUE(second.control.swaps.empty());
  second.live(100ms);
  second.mover.drive();
  ASSERT_EQ(second.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(second.control.swaps[0].value)->leader, test_life(1));
}

// The watch of the reports may stand still where the state's goes on.
TEST_F(Moves, WhoIsLateIsListedOnceMoreBeforeItIsGivenUp) {
  TestNode leader(3, 0);
  leader.state.lineage = {{Generation(1), Step(0)}};
  leader.register_nodes(3);
  leader.run_in(JobPhase::quiescing);
  for (std::uint32_t id = 0; id < 2; ++id) {
    Inventory inventory;
    inventory.life = test_life(id);
    inventory.generation = Generation(1);
    leader.context.mirror.reports.note(inventory);
  }
  leader.context.heard.as_of = leader.clock.now();
  leader.live(60s);
  leader.mover.drive();
  EXPECT_TRUE(leader.control.swaps.empty());
  EXPECT_TRUE(leader.context.heard.list_anew);
  leader.context.heard.as_of = leader.clock.now();
  leader.context.watched.keys.as_of = leader.clock.now() - 1ms;
  leader.mover.drive();
  EXPECT_TRUE(leader.control.swaps.empty());
  EXPECT_TRUE(leader.context.watched.keys.ask_anew);
  leader.context.watched.keys.as_of = leader.clock.now();
  leader.mover.drive();
  ASSERT_EQ(leader.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(leader.control.swaps[0].value)->evicted, std::vector<NodeLife>{test_life(2)});
}

// A node's row has its domain and the planned one once a spare of another has its seats.
TEST_F(Moves, AJobThatWouldNotFitOnceSparesOfOtherDomainsSitIsRefused) {
  constexpr std::uint32_t kNodes = 4000;
  JobSpec spec = node.context.mirror.spec();
  spec.node_count = kNodes;
  spec.domains = "env";
  spec.replica_count = 1;
  node.context.mirror.set_spec(spec);
  for (std::uint32_t id = 0; id < kNodes; ++id) {
    NodeRecord record{test_life(id), std::string(100, 'x'), "", "", 1, 1, 2, true, 0};
    record.domain = std::string(63, 'd') + (id % 2 == 0 ? "a" : "b");
    const std::string value = to_json(record);
    (void)node.context.mirror.apply(node.context.mirror.keys().node(NodeId(id)), &value, ++node.revision,
                                    node.clock.now());
  }
  node.mover.consider_forming();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().phase, JobPhase::failed);
  EXPECT_NE(asked().verdict.find("cannot begin: 4000 nodes are too many"), std::string::npos) << asked().verdict;
}

TEST_F(Moves, ASpareTakesOverAJobWhoseMembersAllRefuse) {
  TestNode spare(2, 5);
  NodeRecord record;
  record.life = test_life(5);
  const std::string value = to_json(record);
  (void)spare.context.mirror.apply(spare.context.mirror.keys().node(NodeId(5)), &value, 1, spare.clock.now());
  spare.revision = 1;
  spare.learn(JobPhase::running);
  const std::vector<Contact> refusing = {{test_life(0), {}, {}, true}, {test_life(1), {}, {}, true}};
  const std::vector<Contact> silent = {{test_life(0), {}, {}, true}, {test_life(1), {}, {}, false}};
  spare.mover.check_members(silent);
  spare.live(60s);
  spare.mover.check_members(silent);
  EXPECT_TRUE(spare.control.swaps.empty());  // they may train on without the control
  spare.mover.check_members(refusing);
  ASSERT_EQ(spare.control.swaps.size(), 1u);
  EXPECT_EQ(parse_job_state(spare.control.swaps[0].value)->leader, test_life(5));
  spare.mover.check_members(refusing);
  spare.pass(kEventDelay);
  EXPECT_EQ(spare.control.tells, 3) << "that they are away; then the loss of each, once";
}

// Nothing else would ever say it again: the trainer is not started anew.
TEST_F(Moves, AVerdictBeforeTheFirstRunIsGivenUntilItStands) {
  node.register_nodes(2);
  node.mover.consider_forming();
  node.mover.give_up_node("no such module");  // while the job is being formed
  ASSERT_EQ(node.control.swaps.size(), 1u);
  node.control.swaps[0].then(Error{Code::unreachable, "away"});
  node.mover.consider_forming();
  EXPECT_EQ(node.control.swaps.size(), 1u);  // a pause
  node.pass(1s);
  node.mover.consider_forming();
  ASSERT_EQ(node.control.swaps.size(), 2u);
  EXPECT_EQ(asked().verdict, "node 0: no such module");
  node.learn(JobPhase::restoring);  // another node has formed it meanwhile
  node.control.swaps[1].then(Swapped{false, node.revision, std::nullopt});
  node.pass(1s);
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 3u);
  EXPECT_EQ(asked().phase, JobPhase::failed);
  EXPECT_EQ(asked().verdict, "node 0: no such module");
  node.learn(JobPhase::failed);
  node.control.swaps[2].then(Swapped{true, node.revision, std::nullopt});
  node.pass(1s);
  node.mover.drive();
  EXPECT_EQ(node.control.swaps.size(), 3u);
}

TEST_F(Moves, ANodeFromWhichOthersFetchGivesItselfUpOnlyWhenTheyHaveIt) {
  node.state.ran = Generation(1);
  node.state.generation = Generation(2);
  node.state.leader = test_life(1);
  node.state.sources = {{Seat(0), SourceKind::own_arena, test_life(0), Generation(1), Step(7)},
                        {Seat(1), SourceKind::replica, test_life(0), Generation(1), Step(7)}};
  node.run_in(JobPhase::restoring);
  node.mover.give_up_node("its trainers end");
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
  const std::string ready = ready_record(test_life(1));
  (void)node.context.mirror.apply(node.context.mirror.keys().ready(Generation(2), NodeId(1)), &ready, ++node.revision,
                                  node.clock.now());
  node.mover.drive();
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().evicted, std::vector<NodeLife>{test_life(0)});
}

// Of a spare whose data links are cut nobody knows but who asks it.
TEST_F(Moves, ASpareThatDoesNotAnswerGetsSeatsOnlyIfNoOtherIsLeft) {
  node.register_nodes(4);
  node.state.evicted = {test_life(1)};
  node.state.lineage = {{Generation(1), Step(0)}};
  node.state.ran = Generation(1);
  node.run_in(JobPhase::quiescing);
  Inventory own{test_life(0), node.state.generation, Step(0), {}, {Seat(0)}, 0};
  node.context.mirror.reports.note(own);
  node.probed.pending = {test_life(2)};
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());  // it would be chosen, and may be cut off
  node.probed = {{test_life(2)}, {}};
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().seats[1].life, test_life(3));
  node.control.swaps[0].then(Error{Code::unreachable, "away"});
  node.pass(1s);
  node.probed.silent.push_back(test_life(3));
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 2u);
  EXPECT_EQ(asked().seats[1].life, test_life(2));  // silent, as the other is; test_cuts reads what is said then
}

// So that who knows it may begin anew, and be the spare.
TEST_F(Moves, WhoWaitsForASpareWritesWhatIsKnownToBeCommitted) {
  node.register_nodes(2);
  node.state.evicted = {test_life(1)};
  node.state.lineage = {{Generation(1), Step(0)}};
  node.state.ran = Generation(1);
  node.run_in(JobPhase::quiescing);
  Inventory own{test_life(0), node.state.generation, Step(2), {}, {Seat(0)}, 0};
  own.items = {{Seat(0), SourceKind::own_arena, Generation(1), Step(3), SlotState::sealed, 7},
               {Seat(1), SourceKind::replica, Generation(1), Step(3), SlotState::sealed, 7}};
  node.context.mirror.reports.note(own);
  node.context.mirror.reports.note({test_life(1), node.state.generation, Step(3), {}, {}, 0});
  node.mover.drive();
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().waiting, "a spare for seat 1");
  EXPECT_EQ(asked().committed, Step(3));
}

// Of a thousand nodes not all look through all, and write the same, when the last one registers.
TEST_F(Moves, TheLowestFewFormTheJobAndOthersIfTheyDoNot) {
  for (const std::uint32_t self : {3u, 4u, 9u}) {
    TestNode one(10, self);
    one.register_nodes(9);
    one.mover.consider_forming();
    EXPECT_TRUE(one.control.swaps.empty());
    one.register_nodes(10);
    one.mover.consider_forming();
    EXPECT_EQ(one.control.swaps.size(), self < 4 ? 1u : 0u) << self;
    const Duration beat = one.context.deadlines.heartbeat_interval;
    one.live(beat * (self / 4) - 1ms);
    if (self >= 4) one.mover.consider_forming();
    EXPECT_EQ(one.control.swaps.size(), self < 4 ? 1u : 0u) << self;
    one.live(1ms);
    one.mover.consider_forming();
    EXPECT_EQ(one.control.swaps.size(), 1u) << self;
  }
}

// In a large job the lowest may follow nobody's registration: then it is one of those spread over all that forms it.
TEST_F(Moves, AHighNodeFormsTheJobWithinASecondIfTheLowestDoNot) {
  TestNode one(300, 299);
  one.register_nodes(300);
  one.mover.consider_forming();
  one.live(one.context.deadlines.heartbeat_interval * 20);
  one.mover.consider_forming();
  EXPECT_EQ(one.control.swaps.size(), 1u);
}

TEST_F(Moves, GivingUpANodeEndsAJobThatHasNeverRun) {
  node.run_in(JobPhase::restoring);
  node.mover.give_up_node("its trainers end");
  ASSERT_EQ(node.control.swaps.size(), 1u);
  EXPECT_EQ(asked().phase, JobPhase::failed);
}

}  // namespace
}  // namespace pawl::job
