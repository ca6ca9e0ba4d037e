#include "job/daemon/job_mirror.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Mirror : public testing::Test {
 protected:
  Mirror() : mirror(test_life(1), "test") {
    EXPECT_FALSE(mirror.registrations().known);
    JobSpec spec;
    spec.node_count = 3;
    spec.replica_count = 1;
    mirror.set_spec(spec);
    state.generation = Generation(2);
    state.phase = JobPhase::running;
    state.leader = test_life(0);
    for (std::uint32_t node = 0; node < 3; ++node) state.seats.push_back({Seat(node), test_life(node), "", 0});
  }
  JobMirror::Change put(const std::string& key, const std::string& value) {
    return mirror.apply(key, &value, ++revision, 10s);
  }
  JobMirror::Change put_state() { return put(keys.state(), to_json(state)); }

  JobKeys keys{"test"};
  JobMirror mirror;
  JobState state;
  Revision revision = 0;
};

TEST_F(Mirror, KnowsNothingBeforeTheState) {
  EXPECT_FALSE(mirror.has_state());
  EXPECT_FALSE(mirror.is_member());
  EXPECT_FALSE(mirror.is_over());
  EXPECT_EQ(mirror.generation(), Generation(0));
  EXPECT_FALSE(mirror.node_at(0));
  EXPECT_EQ(mirror.source_of(Seat(0)), nullptr);
  EXPECT_TRUE(mirror.linked_members().empty());
  EXPECT_TRUE(mirror.reports.ready_members().empty());
}

TEST_F(Mirror, SaysWhatAStateChanged) {
  JobMirror::Change change = put_state();
  EXPECT_TRUE(change.state && change.phase && change.generation);
  state.waiting = "a spare";
  change = put_state();
  EXPECT_TRUE(change.state);
  EXPECT_FALSE(change.phase);
  EXPECT_FALSE(mirror.learn(state, revision, 99s).state);  // not a later revision
  state.phase = JobPhase::finished;
  change = mirror.learn(state, ++revision, 50s);
  EXPECT_TRUE(change.phase);
  EXPECT_FALSE(change.generation);
  EXPECT_EQ(mirror.state_since(), 50s);
  EXPECT_TRUE(mirror.is_over());
  EXPECT_NE(put(keys.state(), "{}").refused, "");
  EXPECT_TRUE(mirror.is_over());  // what can't be read changes nothing
  EXPECT_FALSE(mirror.apply(keys.state(), nullptr, ++revision, 1s).state);
}

TEST_F(Mirror, KnowsTheRingAndTheTree) {
  (void)put_state();
  EXPECT_TRUE(mirror.is_member());
  EXPECT_FALSE(mirror.is_root());
  EXPECT_EQ(mirror.my_position(), 1u);
  EXPECT_EQ(mirror.node_at(2), NodeId(2));
  EXPECT_FALSE(mirror.node_at(3));
  EXPECT_EQ(mirror.position_of(NodeId(2)), 2u);
  ASSERT_EQ(mirror.linked_members().size(), 2u);
  state.evicted = {test_life(2)};
  (void)put_state();
  EXPECT_TRUE(is_evicted(mirror.state(), test_life(2)));
  ASSERT_EQ(mirror.linked_members().size(), 1u);
  EXPECT_EQ(mirror.linked_members()[0].life, test_life(0));
}

// The ring is the topology's, whatever `pawl run` asked for; and another one in the next generation.
TEST_F(Mirror, KnowsTheRingOfEachGeneration) {
  EXPECT_EQ(mirror.ring().seat_count(), 3u) << "before anybody has a seat: three nodes with one each";
  state.seats.insert(state.seats.begin() + 1, {Seat(1), test_life(0), "", 1});
  state.seats.push_back({Seat(0), test_life(2), "", 1});
  state.seats.push_back({Seat(0), test_life(2), "", 2});
  for (std::uint32_t seat = 0; seat < 6; ++seat) state.seats[seat].seat = Seat(seat);
  (void)put_state();
  EXPECT_EQ(mirror.ring().seat_count(), 6u);
  EXPECT_EQ(mirror.my_position(), 1u);
  EXPECT_EQ(mirror.node_at(2), NodeId(2));
  EXPECT_EQ(mirror.ring().wards_of(1), (std::vector<Seat>{Seat(0), Seat(1)}));
  EXPECT_EQ(mirror.registrations().seats_per_node_max, 3u);
  state.generation = Generation(3);
  state.seats.erase(state.seats.begin() + 3, state.seats.end());  // node 2 has left
  (void)put_state();
  EXPECT_EQ(mirror.ring().seat_count(), 3u);
  EXPECT_FALSE(mirror.node_at(2));
  EXPECT_EQ(mirror.ring().wards_of(0), (std::vector<Seat>{Seat(2)}));
}

TEST_F(Mirror, KeepsReportsOfTheStatesGenerationOnly) {
  state.phase = JobPhase::quiescing;
  (void)put_state();
  Inventory inventory;
  inventory.life = test_life(0);
  inventory.generation = Generation(2);
  (void)put(keys.inventory(Generation(2), NodeId(0)), to_text(inventory));
  (void)put(keys.inventory(Generation(1), NodeId(2)), to_text(inventory));
  (void)put(keys.ready(Generation(2), NodeId(2)), ready_record(test_life(2)));
  (void)put(keys.ready(Generation(1), NodeId(0)), ready_record(test_life(0)));
  (void)put(keys.fault(Generation(2), Seat(1)), to_json(FaultReport{Seat(1), "2"}));
  (void)put(keys.fault(Generation(1), Seat(2)), to_json(FaultReport{Seat(2), "1"}));
  EXPECT_EQ(mirror.faults, (std::map<Seat, FaultReport>{{Seat(1), {Seat(1), "2"}}}));
  EXPECT_EQ(mirror.reports.inventories().size(), 1u);
  EXPECT_EQ(mirror.reports.ready_members(), std::vector<NodeLife>{test_life(2)});
  EXPECT_FALSE(mirror.reports.has_own_inventory());
  inventory.life = test_life(1);
  mirror.reports.note(inventory);
  EXPECT_TRUE(mirror.reports.has_own_inventory());
  mirror.reports.forget_own_inventory();
  EXPECT_FALSE(mirror.reports.has_own_inventory());
  state.generation = Generation(3);
  (void)put_state();
  EXPECT_TRUE(mirror.faults.empty());
  EXPECT_TRUE(mirror.reports.inventories().empty());
  EXPECT_TRUE(mirror.reports.ready_members().empty());
}

TEST_F(Mirror, FollowsRegistrations) {
  NodeRecord record;
  record.life = test_life(2);
  (void)put(keys.node(NodeId(2)), to_json(record));
  EXPECT_TRUE(mirror.registrations().has(test_life(2)));
  EXPECT_EQ(mirror.registrations().nodes.size(), 1u);
  (void)mirror.apply(keys.node(NodeId(2)), nullptr, ++revision, 30s);
  EXPECT_TRUE(mirror.registrations().nodes.empty());
  EXPECT_EQ(mirror.registrations().gone_since.at(NodeId(2)), 30s);
  (void)put(keys.node(NodeId(2)), to_json(record));
  EXPECT_EQ(mirror.registrations().gone_since.count(NodeId(2)), 0u);
}

TEST_F(Mirror, NamesWhoIsRegisteredAndNoSurvivingMember) {
  state.evicted = {state.seats[1].life};
  (void)mirror.learn(state, ++revision, 10s);
  const NodeLife spare{NodeId(70), Incarnation(1)};
  for (const NodeLife& life : {state.seats[0].life, state.seats[1].life, spare}) {
    NodeRecord record;
    record.life = life;
    (void)put(keys.node(life.node), to_json(record));
  }
  std::vector<NodeLife> others;
  for (const NodeRecord& record : records_of_others(mirror)) others.push_back(record.life);
  EXPECT_EQ(others, (std::vector{state.seats[1].life, spare}));
}

TEST_F(Mirror, KeepsAccusationsOfTheStatesGenerationUntilTheyAreErased) {
  (void)put_state();
  const Accusation accusation{test_life(2), test_life(0)};
  (void)put(keys.accusation(Generation(2), NodeId(2), NodeId(0)), to_json(accusation));
  (void)put(keys.accusation(Generation(1), NodeId(2), NodeId(1)), to_json(accusation));
  (void)put(keys.accusation(Generation(2), NodeId(2), NodeId(1)), "{}");
  EXPECT_EQ(mirror.accusations(), std::vector<Accusation>{accusation});
  (void)mirror.apply(keys.accusation(Generation(2), NodeId(2), NodeId(0)), nullptr, ++revision, 30s);
  EXPECT_TRUE(mirror.accusations().empty());
  (void)put(keys.accusation(Generation(2), NodeId(2), NodeId(0)), to_json(accusation));
  state.generation = Generation(3);
  (void)put_state();
  EXPECT_TRUE(mirror.accusations().empty());
}

TEST_F(Mirror, AListingIsTheWholeTruth) {
  (void)put_state();
  (void)put(keys.finish(Seat(2)), R"({"generation":2,"step":9,"committed":true})");
  (void)put(keys.exit(Seat(1)), R"({"generation":2,"detail":"exited 1"})");
  const JobMirror::Change change = mirror.apply_all({{{keys.state(), to_json(state), 1, 1, 0}}, 60}, 40s);
  EXPECT_FALSE(change.nodes);
  EXPECT_FALSE(change.state);
  EXPECT_FALSE(change.lost);
  EXPECT_EQ(mirror.finishes().size(), 0u);
  EXPECT_TRUE(mirror.ends().empty());
}

TEST_F(Mirror, AListingOfWhoIsRegisteredIsTheWholeTruthOfThat) {
  (void)put_state();
  NodeRecord record;
  record.life = test_life(0);
  (void)put(keys.node(NodeId(0)), to_json(record));
  record.life = test_life(7);
  (void)put(keys.node(NodeId(7)), to_json(record));
  record.life = test_life(1);
  const Listing listing{{{keys.node(NodeId(1)), to_json(record), 50, 50, 0}}, 60};
  const Duration news_at = mirror.news_at();
  const JobMirror::Change change = mirror.apply_nodes(listing, 40s);
  EXPECT_TRUE(change.nodes);
  EXPECT_EQ(mirror.news_at(), news_at) << "when it came is not known";
  EXPECT_TRUE(mirror.registrations().known);
  EXPECT_EQ(mirror.registrations().nodes.size(), 1u);
  EXPECT_TRUE(mirror.registrations().has(test_life(1)));
  for (const std::uint32_t gone : {0u, 7u, 2u})  // 2: a member that this node has never seen
    EXPECT_EQ(mirror.registrations().gone_since.at(NodeId(gone)), 40s) << gone;
  (void)mirror.apply_all({{}, 61}, 45s);
  EXPECT_TRUE(mirror.registrations().has(test_life(1))) << "those are other keys";
  (void)mirror.apply_nodes({{}, 62}, 50s);
  EXPECT_EQ(mirror.registrations().gone_since.at(NodeId(0)), 40s);
  EXPECT_EQ(mirror.registrations().gone_since.at(NodeId(1)), 50s);
}

// A recovery may read from it: whoever comes to lead must know that it is gone.
TEST_F(Mirror, AListingShowsWhichEvictedNodeIsGone) {
  state.evicted = {test_life(6), test_life(0)};
  NodeRecord record;
  record.life = test_life(0);
  (void)put_state();
  (void)mirror.apply_nodes({{{keys.node(NodeId(0)), to_json(record), 50, 50, 0}}, 60}, 40s);
  EXPECT_EQ(mirror.registrations().gone_since.at(NodeId(6)), 40s);
  EXPECT_EQ(mirror.registrations().gone_since.count(NodeId(0)), 0u);
}

// Its registration ended before this node saw the state in which it sits: of two watches either may be the later one.
TEST_F(Mirror, AMemberThatWasGoneBeforeItsStateCameIsGone) {
  (void)mirror.apply_nodes({{}, 60}, 40s);
  EXPECT_TRUE(mirror.registrations().gone_since.empty());
  (void)mirror.learn(state, 70, 45s);
  EXPECT_EQ(mirror.registrations().gone_since.at(NodeId(2)), 45s);
  state.generation = Generation(3);
  (void)mirror.learn(state, 71, 50s);
  EXPECT_EQ(mirror.registrations().gone_since.at(NodeId(2)), 45s);
}

TEST_F(Mirror, WhoDoesNotFollowRegistrationsMissesNobody) {
  (void)put_state();
  EXPECT_TRUE(mirror.registrations().gone_since.empty());
  NodeRecord record;
  record.life = test_life(2);
  record.lifeline = "there:1";
  record.arena_bytes = std::uint64_t{4} << 30;
  const auto gib = [](std::uint64_t count) { return time_to_give_back(count << 30); };
  (void)mirror.apply_nodes({{{keys.node(NodeId(2)), to_json(record), 50, 50, 0}}, 60}, 40s);
  EXPECT_EQ(mirror.registrations().time_to_end(NodeId(2)), gib(8));
  mirror.nodes.forget(mirror.links().lives);
  EXPECT_FALSE(mirror.registrations().known);
  EXPECT_TRUE(mirror.registrations().nodes.empty());
  EXPECT_TRUE(mirror.registrations().gone_since.empty());
  EXPECT_EQ(mirror.registrations().arena_bytes_max, std::uint64_t{4} << 30);
  ASSERT_NE(mirror.nodes.record_of(test_life(2)), nullptr) << "of whom it has a link";
  EXPECT_EQ(mirror.nodes.record_of(test_life(2))->lifeline, "there:1");
  EXPECT_EQ(mirror.nodes.record_of(test_life(2, 5)), nullptr);
  EXPECT_EQ(mirror.nodes.record_of(test_life(0)), nullptr);
  record.life = test_life(0);
  mirror.nodes.note_read(record);
  EXPECT_NE(mirror.nodes.record_of(test_life(0)), nullptr);
  EXPECT_FALSE(mirror.registrations().has(test_life(0))) << "it may be gone by now";
  state.arena_bytes = std::uint64_t{6} << 30;
  (void)put_state();
  EXPECT_EQ(mirror.registrations().time_to_end(NodeId(2)), gib(12)) << "as the largest, of whom nothing is known";
  EXPECT_EQ(mirror.registrations().arena_bytes_max, std::uint64_t{6} << 30);
}

TEST_F(Mirror, NoticesAControlThatLostItsData) {
  (void)put_state();
  (void)put_state();
  EXPECT_FALSE(mirror.apply_all({{{keys.state(), to_json(state), 2, 1, 0}}, 2}, 40s).lost);
  EXPECT_TRUE(mirror.apply_all({{{keys.state(), to_json(state), 1, 1, 0}}, 1}, 40s).lost);
  EXPECT_TRUE(mirror.apply_all({{}, 90}, 40s).lost);
  EXPECT_TRUE(mirror.has_state());
}

TEST_F(Mirror, ReadsStopsFinishesAndExits) {
  (void)put_state();
  EXPECT_TRUE(put(keys.stop(), R"({"step":9})").stop);
  EXPECT_EQ(mirror.stop().stop_step, Step(9));
  (void)put(keys.stop_ack(Generation(2), NodeId(0)), "{}");
  EXPECT_EQ(mirror.stop().told.at(NodeId(0)), Generation(2));
  mirror.note_own_stop_ack(true);
  EXPECT_EQ(mirror.stop().told.at(NodeId(1)), Generation(2));
  mirror.note_own_stop_ack(false);
  EXPECT_EQ(mirror.stop().told.count(NodeId(1)), 0u);
  (void)put(keys.finish(Seat(2)), R"({"generation":2,"step":9,"committed":true})");
  (void)put(keys.finish(Seat(0)), "no JSON");
  ASSERT_EQ(mirror.finishes().size(), 1u);
  EXPECT_EQ(*mirror.finishes().of(Seat(2)), (SeatFinish{Generation(2), Step(9), true}));
  mirror.note_finish(Seat(1), {Generation(2), Step(9), false});
  EXPECT_EQ(mirror.finishes().size(), 2u);
  mirror.forget_finish(Seat(1));
  EXPECT_EQ(mirror.finishes().size(), 1u);
  (void)put(keys.exit(Seat(1)), R"({"generation":2,"detail":"exited 1"})");
  ASSERT_EQ(mirror.ends().size(), 1u);
  EXPECT_EQ(mirror.ends()[0].detail, "exited 1");
}

TEST_F(Mirror, FindsASeatsSource) {
  state.sources = {{Seat(0), SourceKind::own_arena, test_life(0), Generation(1), Step(4)},
                   {Seat(1), SourceKind::replica, test_life(2), Generation(1), Step(4)}};
  (void)mirror.learn(state, ++revision, 10s);
  ASSERT_NE(mirror.source_of(Seat(1)), nullptr);
  EXPECT_EQ(mirror.source_of(Seat(1))->from, test_life(2));
  EXPECT_EQ(mirror.source_of(Seat(2)), nullptr);
}

TEST_F(Mirror, ReadsAStateWithTheTopologyThatItNames) {
  const WrittenState written = write_state(state, nullptr, 0);
  ASSERT_TRUE(written.topology);
  const JobMirror::Change early = put(keys.state(), written.state);
  EXPECT_TRUE(early.unread == revision && !early.state && early.refused.empty());
  EXPECT_FALSE(mirror.has_state());
  (void)put(keys.topology(state.generation), to_json(*written.topology));
  EXPECT_TRUE(put(keys.state(), written.state).state);
  EXPECT_EQ(mirror.state(), state);

  JobState next = state;
  next.generation = Generation(3);
  next.seats[2].life = test_life(7);
  const WrittenState moved = write_state(next, &*mirror.beside.topology, 1);
  EXPECT_FALSE(moved.topology);
  EXPECT_TRUE(put(keys.state(), moved.state).generation);
  EXPECT_EQ(mirror.state(), next);
  WrittenState late;
  late.topology = make_topology(Generation(1), {});
  mirror.beside.note(late, 1);
  EXPECT_EQ(mirror.beside.topology->generation, state.generation) << "the watch has told of a later one before";

  EXPECT_NE(put(keys.topology(Generation(4)), "{}").refused, "");
  JobMirror other(test_life(0), "test");
  const Topology older = make_topology(Generation(1), {});
  const Listing listing{{{keys.state(), moved.state, 40, 1, 0},
                         {keys.topology(Generation(1)), to_json(older), 3, 3, 0},
                         {keys.topology(state.generation), to_json(*written.topology), 30, 30, 0}},
                        40};
  EXPECT_TRUE(other.apply_all(listing, 10s).state);
  EXPECT_EQ(other.state(), next);
}

TEST_F(Mirror, ReadsAStateWithTheSheetThatItNames) {
  state.generation = Generation(3);
  state.causes = {{FaultKind::node_lost, test_life(2), std::nullopt, "gone", 0}};
  const WrittenState next = write_state(state, nullptr, 0, {nullptr, 1});
  ASSERT_TRUE(next.sheet && next.topology);
  (void)put(keys.topology(state.generation), to_json(*next.topology));
  EXPECT_GT(put(keys.state(), next.state).unread, 0);
  EXPECT_TRUE(put(sheet_key(keys, next.sheet->name), next.sheet->text + " ").spoiled);
  EXPECT_GT(put(keys.state(), next.state).unread, 0) << "what is spoiled is not taken";
  EXPECT_FALSE(put(sheet_key(keys, next.sheet->name), next.sheet->text).spoiled);
  EXPECT_TRUE(put(keys.state(), next.state).state);
  EXPECT_EQ(mirror.state(), state);
  const Sheet older = make_sheet(Generation(1), "{}");
  (void)mirror.apply(sheet_key(keys, older.name), &older.text, 1, 10s);
  (void)mirror.apply(sheet_key(keys, next.sheet->name), nullptr, ++revision, 10s);
  EXPECT_EQ(*mirror.beside.known_sheet(), *next.sheet)
      << "neither one that is late nor an erasure changes what is known";

  JobMirror other(test_life(0), "test");
  const Listing listing{{{sheet_key(keys, older.name), older.text, 3, 3, 0},
                         {sheet_key(keys, next.sheet->name), next.sheet->text, 40, 40, 0},
                         {keys.state(), next.state, 40, 1, 0},
                         {keys.topology(state.generation), to_json(*next.topology), 40, 40, 0}},
                        40};
  EXPECT_TRUE(other.apply_all(listing, 10s).state);
  EXPECT_EQ(other.state(), state);
}

TEST_F(Mirror, KnowsWhoseReportsAreMissing) {
  using Awaited = std::map<Seat, NodeLife>;
  state.phase = JobPhase::quiescing;
  state.evicted = {test_life(2)};
  (void)mirror.learn(state, ++revision, 10s);
  EXPECT_EQ(mirror.reports.awaited(), (Awaited{{Seat(0), test_life(0)}, {Seat(1), test_life(1)}}));
  Inventory inventory;
  inventory.generation = state.generation;
  inventory.life = test_life(0, 7);
  (void)put(keys.inventory(state.generation, NodeId(0)), to_text(inventory));
  EXPECT_EQ(mirror.reports.awaited().size(), 2u) << "another life's";
  inventory.life = test_life(0);
  (void)put(keys.inventory(state.generation, NodeId(0)), to_text(inventory));
  EXPECT_EQ(mirror.reports.awaited(), (Awaited{{Seat(1), test_life(1)}}));
  inventory.life = test_life(1);
  mirror.reports.note(inventory);
  EXPECT_TRUE(mirror.reports.awaited().empty());
  mirror.reports.forget_own_inventory();
  EXPECT_EQ(mirror.reports.awaited().size(), 1u);

  state.phase = JobPhase::restoring;
  state.seats[2].life = test_life(3);
  (void)mirror.learn(state, ++revision, 11s);
  EXPECT_EQ(mirror.reports.awaited().size(), 3u) << "to be ready";
  (void)put(keys.ready(state.generation, NodeId(3)), ready_record(test_life(3, 7)));
  EXPECT_EQ(mirror.reports.awaited().size(), 3u) << "of another life, as of an earlier job of this name";
  (void)put(keys.ready(state.generation, NodeId(3)), ready_record(test_life(3)));
  EXPECT_EQ(mirror.reports.awaited(), (Awaited{{Seat(0), test_life(0)}, {Seat(1), test_life(1)}}));
  const Listing listing{{{keys.state(), to_json(state), revision, 1, 0}}, revision};
  (void)mirror.apply_all(listing, 12s);
  const Duration news_at = mirror.news_at();
  EXPECT_EQ(news_at, 12s);
  (void)mirror.apply_all(listing, 15s);
  EXPECT_EQ(mirror.reports.awaited().size(), 2u) << "reports are listed by themselves";
  EXPECT_EQ(mirror.news_at(), news_at)
      << "nothing new: else the turn of whoever lists before it leads would never come";
  mirror.apply_reports(
      {{{keys.ready(state.generation, NodeId(0)), ready_record(test_life(0)), revision, 1, 0}}, revision}, 15s);
  EXPECT_EQ(mirror.news_at(), news_at) << "when they came is not known";
  EXPECT_EQ(mirror.reports.awaited(), (Awaited{{Seat(1), test_life(1)}, {Seat(2), test_life(3)}}));
  mirror.reports.note_ready(test_life(1));
  EXPECT_EQ(mirror.reports.awaited(), (Awaited{{Seat(2), test_life(3)}}));
  state.phase = JobPhase::running;
  (void)mirror.learn(state, ++revision, 13s);
  EXPECT_TRUE(mirror.reports.awaited().empty());
}

}  // namespace
}  // namespace pawl::job
