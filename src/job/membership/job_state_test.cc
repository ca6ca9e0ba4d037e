#include "job/membership/job_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/text.h"
#include "job/membership/test_records.h"

namespace pawl::job {
namespace {

JobSpec full_spec() {
  JobSpec spec;
  spec.job = "charlm-1";
  spec.node_count = 4;
  spec.seats_per_node = 2;
  spec.spare_count = 1;
  spec.wait_for_spare = false;
  spec.test_hooks = true;
  spec.deadline_ms = kHuge;
  spec.token_digest = "00ff";
  return spec;
}

NodeLife life(std::uint32_t node, std::uint64_t incarnation) {
  return {NodeId(node), Incarnation(incarnation)};
}

JobState full_state() {
  JobState state;
  state.generation = Generation(kGenerationMax);
  state.phase = JobPhase::quiescing;
  state.leader = life(3, kHuge);
  state.seats = {{Seat(0), life(0, 17), "10.77.0.10:7000", 0}, {Seat(1), life(4, 18), "host:\"1\"", 1}};
  state.seats[1].before = Seat(5);
  state.evicted = {life(1, 9)};
  state.departed = {life(2, 3), life(1, 4)};
  state.struck = {{life(0, 17), Seat(1), SourceKind::replica, Generation(2), Step(40)},
                  {life(4, 18), Seat(1), SourceKind::replica, Generation(2), Step(40), {4096, 8192}},
                  {life(4, 18), Seat(1), SourceKind::path, Generation(2), Step(40), {}, Seat(7)}};
  state.lineage = {{Generation(1), Step(0)}, {Generation(3), Step(40)}};
  state.ran = Generation(3);
  state.committed = Step(41);
  state.resume = Step(kStepMax);
  state.sources = {{Seat(0), SourceKind::own_arena, life(0, 17), Generation(2), Step(40)},
                   {Seat(1), SourceKind::replica, life(0, 17), Generation(2), Step(40), {0, 8192}},
                   {Seat(1), SourceKind::replica, life(4, 18), Generation(2), Step(40), {4096, kStreamEnd}},
                   {Seat(1), SourceKind::path, life(4, 18), Generation(2), Step(40), {8192, 12288}, Seat(0)},
                   {Seat(1), SourceKind::path, life(4, 18), Generation(2), Step(40), {}, Seat(2)},
                   {Seat(1), SourceKind::storage, {}, Generation(2), Step(40)}};
  state.restart = {Seat(1)};
  state.plan_digest = kHuge;
  state.cold = true;
  state.arena_bytes = std::uint64_t{3} << 30;
  state.causes = {{FaultKind::node_lost, life(1, 9), std::nullopt, "refused\n", 1234567890123},
                  {FaultKind::trainer_exit, std::nullopt, Seat(1), "killed by SIGSEGV", 0}};
  state.attempts = {{FaultKind::trainer_exit, Seat(1), Step(40), 2},
                    {FaultKind::communication, std::nullopt, Step(0), 1}};
  state.waiting = "a spare for seat 1";
  state.verdict = "steps 41 to 42 are redone";
  return state;
}

NodeRecord full_record() {
  NodeRecord record{life(7, kHuge), "10.77.0.17:7000", "10.77.0.17:7001", "/tmp/pawl/sock", 100, 101, 2, true, kHuge};
  record.unhealthy = "its disk: full";
  return record;
}

template <class Record>
void expect_corrupt(const Result<Record>& result, std::string_view part) {
  ASSERT_FALSE(result.has_value()) << part;
  EXPECT_EQ(result.error().code, Code::corrupt);
  EXPECT_NE(result.error().what.find(part), std::string::npos) << result.error().what;
}

TEST(JobState, EveryRecordComesBackAsItWas) {
  const auto spec = parse_job_spec(to_json(full_spec()));
  ASSERT_TRUE(spec) << spec.error().what;
  EXPECT_EQ(*spec, full_spec());
  const auto state = parse_job_state(to_json(full_state()));
  ASSERT_TRUE(state) << state.error().what;
  EXPECT_EQ(*state, full_state());
  const auto record = parse_node_record(to_json(full_record()));
  ASSERT_TRUE(record) << record.error().what;
  EXPECT_EQ(*record, full_record());
  EXPECT_EQ(*parse_job_state(to_json(JobState())), JobState());
  const Accusation accusation{life(3, 5), life(1, 2)};
  EXPECT_EQ(*parse_accusation(to_json(accusation)), accusation);
  const FaultReport fault{Seat(3), "1 10.77.0.12"};
  EXPECT_EQ(*parse_fault_report(to_json(fault)), fault);
}

// 10,000 nodes of eight seats, of which one node's have moved.
JobState large_state() {
  JobState state = full_state();
  state.phase = JobPhase::restoring;
  state.seats.clear();
  state.sources.clear();
  state.restart.clear();
  for (std::uint32_t seat = 0; seat < 80'000; ++seat) {
    const std::uint32_t node = seat / 8 == 7 ? 10'000 : seat / 8;
    const NodeLife there = life(node, 1'700'000'000'000'000'000u + node);
    state.seats.push_back({Seat(seat), there, "10.100." + std::to_string(node) + ".255:65535", seat % 8});
    const bool moved = node == 10'000;
    state.sources.push_back({Seat(seat), moved ? SourceKind::replica : SourceKind::own_arena,
                             moved ? life(8, 1) : there, Generation(2), Step(40)});
  }
  return state;
}

TEST(JobState, OfThousandsOfNodesOneRowEachIsWritten) {
  const JobState state = large_state();
  const std::string json = to_json(state);
  EXPECT_LT(json.size(), 600'000u);
  EXPECT_EQ(*parse_job_state(json), state);
  JobState twice = state;  // seats 56 to 63 are at two more places, as with three replicas
  for (std::uint32_t seat = 63; seat >= 56; --seat)
    for (const std::uint32_t node : {10u, 9u})
      twice.sources.insert(twice.sources.begin() + seat + 1,
                           {Seat(seat), SourceKind::replica, life(node, 1), Generation(2), Step(40)});
  EXPECT_LT(to_json(twice).size(), json.size() + 60);
  EXPECT_EQ(*parse_job_state(to_json(twice)), twice);
  const auto moved = sources_of(twice.sources, Seat(57));
  ASSERT_EQ(moved.size(), 3u);
  EXPECT_EQ(moved[1].from, life(9, 1));
  EXPECT_EQ(sources_of(twice.sources, Seat(64)).size(), 1u);
  EXPECT_TRUE(sources_of(twice.sources, Seat(80'000)).empty());
  JobState cold = state;
  for (const Member& member : cold.seats) cold.restart.push_back(member.seat);
  EXPECT_LT(to_json(cold).size(), json.size() + 30);
  EXPECT_EQ(*parse_job_state(to_json(cold)), cold);
}

// All watch it, and it is put three times in a recovery: what is as in a new record is not written.
TEST(JobState, OfAJobThatRunsHas512BytesAtMost) {
  JobState state = large_state();
  const Topology topology = make_topology(Generation(1), state.seats);
  for (std::uint32_t seat = 40; seat < 48; ++seat) {
    state.seats[seat].life = life(10'001, 1'700'000'000'000'010'001u);
    state.seats[seat].address = "10.100.39.17:41234";
  }
  JobState running;
  running.generation = Generation(12);
  running.phase = JobPhase::running;
  running.leader = life(6, 1'700'000'000'000'000'006u);
  running.seats = state.seats;
  running.evicted = {life(5, 1'700'000'000'000'000'005u)};
  running.lineage = {{Generation(1), Step(0)}, {Generation(12), Step(123'456)}};
  running.ran = running.generation;
  running.committed = running.resume = Step(123'456);
  running.causes = {
      {FaultKind::node_lost, running.evicted[0], std::nullopt, "its keeper's address refuses", 1800001000000}};
  const std::string written = write_state(running, &topology).state;
  EXPECT_LE(written.size(), 512u) << written;
  EXPECT_EQ(*read_state(written, &topology), running);
  EXPECT_EQ(to_json(JobState()), R"({"generation":0,"leader":[0,0],"phase":"forming"})");
}

TEST(JobState, OfAnySizeItIsSmallAndNamesItsTopology) {
  JobState state = large_state();
  const WrittenState first = write_state(state, nullptr);
  ASSERT_TRUE(first.topology);
  EXPECT_LT(first.state.size(), 4096u);
  EXPECT_EQ(topology_named_by(first.state), state.generation);
  const auto topology = parse_topology(to_json(*first.topology));
  ASSERT_TRUE(topology) << topology.error().what;
  EXPECT_EQ(*topology, *first.topology);
  EXPECT_EQ(*read_state(first.state, &*topology), state);

  state.generation = Generation(5);
  for (std::uint32_t local = 0; local < 8; ++local) state.seats[800 + local].life = life(10'001, 1);
  state.restart = {Seat(3), Seat(4), Seat(79'999)};
  const WrittenState second = write_state(state, &*topology);
  EXPECT_FALSE(second.topology) << "one node's seats have moved";
  EXPECT_LT(second.state.size(), 4096u);
  EXPECT_EQ(*read_state(second.state, &*topology), state);

  for (std::uint32_t node = 0; node <= kMovedRowsMax; ++node) state.seats[80 * node].life = life(20'000 + node, 1);
  const WrittenState third = write_state(state, &*topology);
  ASSERT_TRUE(third.topology) << "too much has moved";
  EXPECT_EQ(third.topology->generation, Generation(5));
  EXPECT_EQ(*read_state(third.state, &*third.topology), state);
  EXPECT_EQ(read_state(third.state, &*topology).error().code, Code::stale);
  EXPECT_EQ(read_state(third.state, nullptr).error().code, Code::stale);
  EXPECT_EQ(parse_job_state(third.state).error().code, Code::stale);
}

// A twentieth of the nodes has died at once.
JobState state_of_many_deaths() {
  JobState state = large_state();
  state.sources.clear();
  for (std::uint32_t seat = 0; seat < state.seats.size(); ++seat) {
    const NodeLife here = state.seats[seat].life;
    const bool died = seat / 8 % 20 == 3;
    const NodeLife from = died ? state.seats[(seat + 8) % state.seats.size()].life : here;
    state.sources.push_back(
        {Seat(seat), died ? SourceKind::replica : SourceKind::own_arena, from, Generation(1), Step(41)});
    if (!died || seat % 8 != 0) continue;
    state.evicted.push_back({here.node, Incarnation(3)});
    state.causes.push_back({FaultKind::node_lost, here, std::nullopt, "its keeper's address refuses", 1800001000000});
    state.verdict += text("node ", here.node, ", ");
  }
  return state;
}

TEST(JobState, WhatManyDeathsMakeLongIsInASheet) {
  const JobState state = state_of_many_deaths();
  const WrittenState written = write_state(state, nullptr);
  ASSERT_TRUE(written.topology && written.sheet);
  EXPECT_LE(written.state.size(), kStateBytesMax);
  EXPECT_GT(written.sheet->text.size(), 10 * kStateBytesMax);
  EXPECT_EQ(written.named, written.sheet->name);
  EXPECT_EQ(sheet_named_by(written.state), written.sheet->name);
  EXPECT_EQ(topology_named_by(written.state), state.generation);
  EXPECT_EQ(*read_state(written.state, &*written.topology, &*written.sheet), state);
  EXPECT_EQ(read_state(written.state, &*written.topology).error().code, Code::stale);
  EXPECT_EQ(read_state(written.state, nullptr, &*written.sheet).error().code, Code::stale);
  const Sheet other = make_sheet(state.generation, "{}");
  EXPECT_EQ(read_state(written.state, &*written.topology, &other).error().code, Code::stale);
  const Sheet older = make_sheet(Generation(1), written.sheet->text);
  EXPECT_EQ(read_state(written.state, &*written.topology, &older).error().code, Code::stale);

  JobState next = state;
  next.generation = Generation(9);
  const WrittenState again = write_state(next, &*written.topology, kMovedRowsMax, {&*written.sheet});
  EXPECT_FALSE(again.sheet) << "the same rows";
  EXPECT_EQ(again.named, written.sheet->name);
  EXPECT_EQ(*read_state(again.state, &*written.topology, &*written.sheet), next);
}

TEST(JobState, ASheetOfAnySizeReadsAsItWasWritten) {
  for (const JobState& state : {full_state(), JobState()})
    for (const std::size_t bytes_max : {0u, 100u, 300u, 1000u, 4096u})
      for (const std::size_t rows_max : {0u, 8u}) {
        const WrittenState written = write_state(state, nullptr, rows_max, {nullptr, bytes_max});
        EXPECT_EQ(*read_state(written.state, written.topology ? &*written.topology : nullptr,
                              written.sheet ? &*written.sheet : nullptr),
                  state);
      }
}

TEST(JobState, ASheetOfWhichSomethingIsOddIsRefused) {
  const auto read = [](std::string_view rows) {
    const Sheet sheet = make_sheet(Generation(3), std::string(rows));
    return read_state(text(R"({"generation":3,"leader":[0,7],"phase":"running","sheet":[3,)", sheet.name.digest, "]}"),
                      nullptr, &sheet);
  };
  EXPECT_EQ(read(R"({"verdict":"fine"})")->verdict, "fine");
  expect_corrupt(read("[]"), "not an object");
  expect_corrupt(read("{"), "not JSON");
  expect_corrupt(read(R"({"phase":"failed"})"), "does not know");
  expect_corrupt(read(R"({"verdict":3})"), "not a text");
  for (const char* const name : {"3", "[3]", "[3,-1]", R"(["3",1])", "[9223372036854775808,1]"})
    expect_corrupt(parse_job_state(text(R"({"generation":3,"leader":[0,7],"phase":"running","sheet":)", name, "}")),
                   "sheet");
  const Sheet twice = make_sheet(Generation(3), R"({"verdict":"one"})");
  expect_corrupt(read_state(text(R"({"generation":3,"leader":[0,7],"phase":"running","verdict":"two","sheet":[3,)",
                                 twice.name.digest, "]}"),
                            nullptr, &twice),
                 "in the state, too");
}

TEST(JobKeys, ASheetsNameSaysWhatItHas) {
  const JobKeys keys("test");
  const Sheet sheet = make_sheet(Generation(3), R"({"verdict":"fine"})");
  const std::string key = sheet_key(keys, sheet.name);
  EXPECT_EQ(sheet_in(keys, key, sheet.text), sheet);
  EXPECT_FALSE(sheet_in(keys, key, R"({"verdict":"fune"})"));
  EXPECT_FALSE(sheet_in(keys, sheet_key(keys, {Generation(4), sheet.name.digest}), sheet.text));
  EXPECT_FALSE(sheet_in(keys, sheet_prefix(keys) + "x/1", sheet.text));
  EXPECT_FALSE(sheet_in(keys, keys.state(), sheet.text));
}

TEST(JobState, HasTheSeatsOfAFewNodesItself) {
  const WrittenState written = write_state(full_state(), nullptr);
  EXPECT_FALSE(written.topology);
  EXPECT_EQ(written.state, to_json(full_state()));
  EXPECT_EQ(topology_named_by(written.state), std::nullopt);
}

TEST(JobState, AChangedTopologyIsAnother) {
  const JobState state = full_state();
  const WrittenState written = write_state(state, nullptr, 0);
  ASSERT_TRUE(written.topology);
  const Topology right = *written.topology;
  EXPECT_TRUE(read_state(written.state, &right));
  std::vector<Topology> wrong;
  for (int i = 0; i < 4; ++i) {
    std::vector<Member> seats = state.seats;
    if (i == 0) seats[0].life.incarnation = Incarnation(18);
    if (i == 1) seats[1].address += "0";
    if (i == 2) seats[1].local_index = 0;
    if (i == 3) seats.pop_back();
    wrong.push_back(make_topology(right.generation, seats));
  }
  wrong.push_back(make_topology(Generation(1), state.seats));
  for (const Topology& other : wrong) EXPECT_EQ(read_state(written.state, &other).error().code, Code::stale);
}

// --- Failure domains

// Two nodes of two seats; the second's place was planned for another rack than the one where its spare stands.
JobState state_in_racks() {
  JobState state;
  state.generation = Generation(3);
  for (std::uint32_t seat = 0; seat < 4; ++seat)
    state.seats.push_back(
        {Seat(seat), life(seat / 2, 7), "host", seat % 2, seat < 2 ? "rack1" : "rack3", seat < 2 ? "rack1" : "rack2"});
  return state;
}

TEST(JobState, HasTheFailureDomainOfEachNodeAndThatOfThePlan) {
  const JobState state = state_in_racks();
  const std::string written = to_json(state);
  EXPECT_NE(written.find(R"([0,7,"host",0,2,"rack1"],[1,7,"host",0,2,"rack3","rack2"])"), std::string::npos) << written;
  EXPECT_EQ(*parse_job_state(written), state);
  JobState half = state;  // a spare of which nothing is said
  for (Member& member : half.seats) member.domain.clear();
  EXPECT_EQ(*parse_job_state(to_json(half)), half);
  const WrittenState named = write_state(state, nullptr, 0);
  ASSERT_TRUE(named.topology);
  EXPECT_EQ(*parse_topology(to_json(*named.topology)), *named.topology);
  for (std::string Member::*domain : {&Member::domain, &Member::plan_domain}) {
    std::vector<Member> seats = state.seats;
    seats[3].*domain = "rack4";
    const Topology other = make_topology(named.topology->generation, seats);
    EXPECT_EQ(read_state(named.state, &other).error().code, Code::stale);
    JobState moved = state;
    moved.seats = seats;
    const WrittenState again = write_state(moved, &*named.topology, 1);
    EXPECT_FALSE(again.topology);
    EXPECT_EQ(*read_state(again.state, &*named.topology), moved);
  }
}

TEST(JobState, FailureDomainsThatAreWrittenInAnotherWayAreRefused) {
  const std::string written = to_json(state_in_racks());
  const auto refused = [&](std::string_view to, std::string_view why) {
    expect_corrupt(parse_job_state(replaced(written, R"("rack3","rack2"])", to)), why);
  };
  refused(R"("rack3","rack3"])", "failure domains that are not written so");
  refused(R"("",""])", "failure domains that are not written so");
  refused(R"(""])", "failure domains that are not written so");
  refused(R"("rack 3","rack2"])", "seats[1]: out of range");
  refused(R"("rack3",")" + std::string(65, 'x') + R"("])", "seats[1]: out of range");
  refused(R"("rack3","rack2",""])", "columns");
}

TEST(JobState, WithoutFailureDomainsNothingIsWrittenOfThem) {
  JobSpec spec;
  EXPECT_EQ(to_json(spec).find("domains"), std::string::npos);
  spec.domains = "file:12";
  spec.fewer_domains = true;
  spec.memory_bytes = 3;
  spec.replica_bytes_a_second = 4;
  spec.checkpoints.path = "/ckpt";
  spec.checkpoints.every_steps = 500;
  spec.checkpoints.every_ms = 7;
  spec.checkpoints.every_auto = true;
  spec.checkpoints.bytes_a_second = 77;
  spec.checkpoints.resume_path = "/ckpt/step-40";
  spec.checkpoints.resume_step = Step(40);
  spec.checkpoints.resume_older = {Step(30), Step(20)};
  spec.checkpoints.keep_last = 2;
  spec.checkpoints.keep_every = 1000;
  EXPECT_EQ(*parse_job_spec(to_json(spec)), spec);
  NodeRecord record = full_record();
  EXPECT_EQ(to_json(record).find("domain"), std::string::npos);
  record.domain = "rack/1";
  EXPECT_EQ(*parse_node_record(to_json(record)), record);
  expect_corrupt(parse_node_record(replaced(to_json(record), "rack/1", "rack 1")), "domain: failure domain");
}

TEST(JobState, WhatMovesToNoSeatIsRefused) {
  JobState state = full_state();
  const Topology before = make_topology(Generation(1), state.seats);
  state.seats[1].life = life(9, 9);
  const std::string written = write_state(state, &before, 1).state;
  EXPECT_EQ(*read_state(written, &before), state);
  const auto refused = [&](const std::string& from, const std::string& to, std::string_view why) {
    expect_corrupt(read_state(replaced(written, from, to), &before), why);
  };
  refused("[[1,9,9,", "[[2,9,9,", "moved[0]: out of range");
  refused("\",1,1]]", "\",1,2]]", "moved[0]: out of range");
  refused("\",1,1]]", "\",1,0]]", "moved[0]: out of range");
  refused("\"restart\":[[1,1]]", "\"restart\":[[1,2]]", "restart[0]: out of range");
  refused("\"restart\":", "\"seats\":[[1,1,\"a\",0,2]],\"restart\":", "seats: in the topology and here");
  const std::string own = to_json(state);
  expect_corrupt(parse_job_state(replaced(own, "\"phase\":", "\"moved\":[[1,9,9,\"a\",0,1]],\"phase\":")),
                 "moved: from no topology");
}

// --- Another world

// Of eight nodes of two seats: seats 2 to 7 are those that were 4 to 9, and 8 and 9 were 3 and 2.
JobState state_of_another_world() {
  JobState state;
  state.generation = Generation(4);
  for (std::uint32_t seat = 0; seat < 10; ++seat) {
    const std::uint32_t before = seat < 2 ? seat : seat < 8 ? seat + 2 : 11 - seat;
    state.seats.push_back({Seat(seat), life(before / 2, 7), "host", before % 2});
    if (before != seat) state.seats.back().before = Seat(before);
  }
  return state;
}

TEST(JobState, OfAnotherWorldItSaysInRowsWhichSeatsWereBeforeThese) {
  const JobState state = state_of_another_world();
  const std::string written = to_json(state);
  EXPECT_NE(written.find(R"("before":[[2,6,4],[8,1,3],[9,1,2]])"), std::string::npos) << written;
  EXPECT_EQ(*parse_job_state(written), state);
  EXPECT_TRUE(are_renumbered(state.seats));
  EXPECT_EQ(before_of(state.seats, Seat(3)), Seat(5));
  EXPECT_EQ(before_of(state.seats, Seat(1)), Seat(1));
  EXPECT_EQ(before_of(state.seats, Seat(10)), Seat(10)) << "there is no such seat";

  const WrittenState named = write_state(state, nullptr, 0);
  ASSERT_TRUE(named.topology);
  EXPECT_EQ(*parse_topology(to_json(*named.topology)), *named.topology);
  EXPECT_EQ(*read_state(named.state, &*named.topology), state);
  JobState next = state;  // the same nodes in the same places, from which other seats go on
  std::swap(next.seats[8].before, next.seats[9].before);
  const WrittenState again = write_state(next, &*named.topology, 0);
  EXPECT_FALSE(again.topology);
  EXPECT_EQ(*read_state(again.state, &*named.topology), next);
  const WrittenState apart = write_state(state, nullptr, kMovedRowsMax, {nullptr, 1});
  ASSERT_TRUE(apart.sheet);
  EXPECT_NE(apart.sheet->text.find("before"), std::string::npos);
  EXPECT_EQ(*read_state(apart.state, nullptr, &*apart.sheet), state);
}

TEST(JobState, WhereAllSeatsStayNothingIsWrittenOfIt) {
  JobState state = full_state();
  EXPECT_NE(to_json(state).find("before"), std::string::npos);
  state.seats[1].before.reset();
  EXPECT_EQ(to_json(state).find("before"), std::string::npos);
  EXPECT_FALSE(are_renumbered(state.seats));
}

TEST(JobState, SeatsBeforeThatAreWrittenInAnotherWayAreRefused) {
  const JobState state = state_of_another_world();
  const WrittenState named = write_state(state, nullptr, 0);
  const auto refused = [&](std::string_view rows, std::string_view why) {
    const std::string from = "[[2,6,4],[8,1,3],[9,1,2]]";
    expect_corrupt(parse_job_state(replaced(to_json(state), from, rows)), why);
    expect_corrupt(read_state(replaced(named.state, from, rows), &*named.topology), why);
  };
  refused("[[2,6,4],[8,1,3],[9,2,20]]", "before[2]: out of range, no such seat");
  refused("[[10,1,2]]", "before[0]: out of range, no such seat");
  refused("[[2,0,4]]", "before[0]: out of range, no such seat");
  refused("[[2,2,262143]]", "before[0]: out of range (at most 262144 seats)");
  refused("[[2,6,4],[7,1,30]]", "before[1]: not behind the row before it");
  refused("[[4,1,30],[2,1,31]]", "before[1]: not behind the row before it");
  refused("[[2,6,4],[8,1,10]]", "before[1]: seats that are not written so");
  refused("[[2,6,2]]", "before[0]: seats that are not written so");
  refused("[[2,6,4],[8,1,3],[9,1,3]]", "before: two seats go on from seat 3");
  refused("[[2,6,4]]", "before: two seats go on from seat 8");
  refused("[[2,6,4,1]]", "has 4 columns, not 3");
  refused("[[2,6]]", "before[0]");
}

TEST(JobState, TooManyNodesForOneRecordAreNamedWithTheArithmetic) {
  JobSpec spec;
  spec.seats_per_node = 8;
  for (const std::size_t address_bytes : {std::size_t{21}, kAddressBytesMax}) {
    spec.node_count = 30'000;
    const Status refused = check_records_of(spec, address_bytes);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::full);
    const std::string& why = refused.error().what;
    EXPECT_NE(why.find("30000 nodes are too many"), std::string::npos) << why;
    const std::size_t at = why.find("use at most ");
    ASSERT_NE(at, std::string::npos) << why;
    spec.node_count = static_cast<std::uint32_t>(std::stoul(why.substr(at + 12)));
    EXPECT_GT(spec.node_count, address_bytes == 21 ? 15'000u : 3000u);
    EXPECT_TRUE(check_records_of(spec, address_bytes)) << "what the refusal says is possible";
    EXPECT_FALSE(check_records_of(spec, address_bytes, 8)) << "names of failure domains take room, too";
  }
}

TEST(JobState, EveryNameOfEveryEnumerationComesBack) {
  for (int i = 0; i <= static_cast<int>(JobPhase::failed); ++i) {
    JobState state;
    state.phase = static_cast<JobPhase>(i);
    EXPECT_EQ(parse_job_state(to_json(state))->phase, state.phase) << name_of(state.phase);
  }
  for (int i = 0; i <= static_cast<int>(FaultKind::source_unreached); ++i) {
    JobState state;
    state.causes = {{static_cast<FaultKind>(i), std::nullopt, std::nullopt, "", 0}};
    EXPECT_EQ(parse_job_state(to_json(state))->causes, state.causes) << i;
  }
  EXPECT_STREQ(name_of(JobPhase::quiescing), "quiescing");
  EXPECT_STREQ(name_of(FaultKind::none), "none");
  EXPECT_STREQ(name_of(FaultKind::trainer_stuck), "trainer_stuck");
  EXPECT_STREQ(name_of(FaultKind::layout_conflict), "layout_conflict");
  EXPECT_STREQ(name_of(FaultKind::drain), "drain");
  EXPECT_STREQ(name_of(SourceKind::own_arena), "own_arena");
  EXPECT_STREQ(name_of(SlotState::sealed), "sealed");
}

TEST(JobState, TextThatIsNotUtf8IsWrittenAsText) {
  JobState state;
  state.verdict = "trainer said \xff\xfe";
  const auto parsed = parse_job_state(to_json(state));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->verdict.substr(0, 13), "trainer said ");
}

TEST(JobState, AMistakeIsNamedByItsField) {
  const std::string state = to_json(full_state());
  expect_corrupt(parse_job_state(replaced(state, "\"quiescing\"", "\"resting\"")), "phase: unknown: 'resting'");
  expect_corrupt(parse_job_state(replaced(state, "\"quiescing\"", "3")), "phase: not a text");
  expect_corrupt(parse_job_state(replaced(state, "\"phase\":\"quiescing\",", "")), "phase: missing");
  expect_corrupt(parse_job_state(replaced(state, "\"cold\":true", "\"cold\":1")), "cold: not true or false");
  expect_corrupt(parse_job_state(replaced(state, "\"cold\":true", "\"cold\":true,\"warm\":1")), "does not know");
  expect_corrupt(parse_job_state(replaced(state, "\"count\":2", "\"count\":-2")),
                 "attempts[0].count: not a whole number");
  expect_corrupt(parse_job_state(replaced(state, "\"count\":2", "\"count\":2.0")),
                 "attempts[0].count: not a whole number");
  expect_corrupt(parse_job_state(replaced(state, "\"count\":2", "\"count\":4294967296")),
                 "attempts[0].count: out of range");
  expect_corrupt(parse_job_state(replaced(state, "[4,18,", "[\"4\",18,")), "seats[1][0]: not a whole");
  expect_corrupt(parse_job_state(replaced(state, "[4,18,", "[18,")), "seats[1][1]: not a whole");
  expect_corrupt(parse_job_state(replaced(state, "[4,18,", "[3,4,18,")), "seats[1][2]: not a text");
  expect_corrupt(parse_job_state(replaced(state, "\",1,1]", "\",1,1,1]")), "seats[1][5]: not a text");
  expect_corrupt(parse_job_state(replaced(state, "\",1,1]", "\",1,0]")), "seats[1]: out of range (at least one seat)");
  expect_corrupt(parse_job_state(replaced(state, "\",1,1]", "\",1,262144]")), "seats: out of range (at most 262144");
  expect_corrupt(parse_job_state(replaced(state, "\",1,1]", "\",262145,1]")), "seats[1]: out of range");
  expect_corrupt(parse_job_state(replaced(state, "10.77.0.10:7000", std::string(300, 'x'))), "seats[0]: out of range");
  expect_corrupt(parse_job_state(replaced(state, "[1,2,40,[[\"own_arena\"", "[2,2,40,[[\"own_arena\"")),
                 "sources: not one for each");
  expect_corrupt(parse_job_state(replaced(state, "[\"storage\",null]", "[\"storage\",[4,18]]")),
                 "storage is at no node");
  expect_corrupt(parse_job_state(replaced(state, "[\"storage\",null]", "[\"tape\",null]")),
                 "sources[1][3][4][0]: unknown: 'tape'");
  const auto extent = [&](std::string_view from, std::string_view to, std::string_view why) {
    expect_corrupt(parse_job_state(replaced(state, from, to)), why);
  };
  extent("[0,8192]]", "[0,0]]", "sources[1][3][0][2]: no part of a stream");
  extent("[0,8192]]", "[0,null]]", "no part of a stream");  // the whole is not written
  extent("[0,8192]]", "[0,18446744073709551615]]", "no part of a stream");
  extent("[0,8192]]", "[0]]", "not an extent");
  extent("[0,8192]]", "{}]", "not an extent");
  extent("[0,8192]]", "[0,8192],1]", "has 4 columns, not 3");
  extent(",[\"storage\",null]", ",[\"storage\",null],[\"storage\",null]", "sources[1]: one of them twice");
  extent("[4096,8192]", "[8192,4096]", "struck[1].extent: no part of a stream");
  expect_corrupt(parse_job_state(replaced(state, "\"trainer_exit\"", "\"sulks\"")), "attempts[0].kind: unknown");
  expect_corrupt(parse_job_state(replaced(state, "\"restart\":[[1,1]]", "\"restart\":[[2,1]]")),
                 "restart[0]: out of range");
  expect_corrupt(parse_job_state(replaced(state, "\"restart\":[[1,1]]", "\"restart\":[[1,2]]")),
                 "restart[0]: out of range");
  expect_corrupt(parse_job_state(replaced(state, "\"restart\":[[1,1]]", "\"restart\":{}")), "restart: not a list");
  expect_corrupt(parse_job_state(replaced(state, "\"restart\":[[1,1]]", "\"restart\":[1]")), "restart[0]: not a list");
  expect_corrupt(parse_job_state(replaced(state, "\"generation\":2097151", "\"generation\":2097152")),
                 "generation: out of range");
  expect_corrupt(parse_job_state(replaced(state, "1099511627775", "1099511627776")), "resume: out of range");
  expect_corrupt(parse_job_state(replaced(state, "18446744073709551615", "18446744073709551616")), "leader[1]");

  JobState odd = full_state();
  odd.sources.resize(1);
  expect_corrupt(parse_job_state(to_json(odd)), "sources: not one for each seat");
  odd = full_state();
  odd.sources.pop_back();
  EXPECT_TRUE(parse_job_state(to_json(odd)));
  odd.sources.pop_back();  // the path that has all of it
  odd.sources[1].extent.end = 4095;
  expect_corrupt(parse_job_state(to_json(odd)), "sources[1]: they don't have the whole stream");
  odd = large_state();
  for (int i = 0; i < 64; ++i)
    odd.sources.push_back({Seat(79'999), SourceKind::replica, life(9, 1), Generation(2), Step(40)});
  expect_corrupt(parse_job_state(to_json(odd)), "at most 64 of a seat");
  odd = full_state();
  std::swap(odd.lineage[0], odd.lineage[1]);
  expect_corrupt(parse_job_state(to_json(odd)), "lineage[1].generation");

  JobSpec spec = full_spec();
  spec.node_count = 0;
  expect_corrupt(parse_job_spec(to_json(spec)), "node_count: out of range");
  spec.node_count = spec.seats_per_node = 1u << 16;
  expect_corrupt(parse_job_spec(to_json(spec)), "node_count: out of range");
  spec.seats_per_node = 0;
  expect_corrupt(parse_job_spec(to_json(spec)), "seats_per_node: out of range");
  expect_corrupt(parse_node_record(replaced(to_json(full_record()), "\"healthy\":true", "\"healthy\":null")),
                 "healthy");
}

TEST(JobState, HostileTextIsRefused) {
  for (const std::string_view source : {"", " ", "null", "[]", "7", "\"x\"", "{", "{}", "{\"generation\":", "\xff",
                                        "nan", "{\"generation\":1,\"generation\":2}", "true", "[{}]"}) {
    EXPECT_EQ(parse_job_state(source).error().code, Code::corrupt) << source;
    EXPECT_EQ(parse_job_spec(source).error().code, Code::corrupt) << source;
    EXPECT_EQ(parse_node_record(source).error().code, Code::corrupt) << source;
  }
  expect_corrupt(parse_job_state(std::string(kRecordBytesMax + 1, ' ')), "more than 1 MiB");
  expect_corrupt(parse_job_state(std::string(kRecordBytesMax, '[')), "nested too deeply");
  std::string objects;
  while (objects.size() + 5 < kRecordBytesMax) objects += "{\"a\":";
  expect_corrupt(parse_job_state(objects), "nested too deeply");
  // Brackets inside of texts are no depth.
  JobState brackets;
  brackets.verdict = std::string(100, '{') + "\"\\" + std::string(100, '[');
  EXPECT_EQ(*parse_job_state(to_json(brackets)), brackets);
}

// Whatever a byte turns into, the answer is a record or Code::corrupt; and what is accepted is written as it was read.
TEST(JobState, DamagedTextNeverAborts) {
  const std::string whole = to_json(full_state());
  std::mt19937_64 random(20261);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string changed = damaged(whole, random, "{}[],:\"0-e\\nt");
    const auto state = parse_job_state(changed);
    if (!state) {
      ASSERT_EQ(state.error().code, Code::corrupt) << "round " << round;
      continue;
    }
    ++accepted;
    ASSERT_EQ(*parse_job_state(to_json(*state)), *state) << "round " << round << ": " << changed;
  }
  EXPECT_GT(accepted, 0);  // flips within a text or a number
}

TEST(JobState, EveryPrefixIsRefused) {
  const std::string whole = to_json(full_state());
  for (std::size_t length = 0; length < whole.size(); ++length)
    ASSERT_FALSE(parse_job_state(std::string_view(whole).substr(0, length))) << length;
}

TEST(JobKeys, NamesOfTheProtocol) {
  const JobKeys keys("charlm");
  EXPECT_EQ(keys.root, "/pawl/charlm/");
  EXPECT_EQ(keys.spec(), "/pawl/charlm/spec");
  EXPECT_EQ(keys.state(), "/pawl/charlm/state");
  EXPECT_EQ(keys.node(NodeId(3)), "/pawl/charlm:nodes/3");
  EXPECT_EQ(keys.inventory(Generation(2), NodeId(3)), "/pawl/charlm:reports/2/inventory/3");
  EXPECT_EQ(keys.accusation(Generation(2), NodeId(3), NodeId(1)), "/pawl/charlm/suspect/2/3/1");
  EXPECT_EQ(keys.fault(Generation(2), Seat(3)), "/pawl/charlm/fault/2/3");
  EXPECT_EQ(keys.ready(Generation(2), NodeId(3)), "/pawl/charlm:reports/2/ready/3");
  EXPECT_EQ(keys.finish(Seat(1)), "/pawl/charlm/finish/1");
  EXPECT_EQ(keys.cordon(NodeId(3)), "/pawl/charlm/order/cordon/3");
  EXPECT_EQ(keys.drain(NodeId(3)), "/pawl/charlm/order/drain/3");
  EXPECT_EQ(keys.pause(), "/pawl/charlm/pause");
  EXPECT_EQ(keys.pause_ack(Generation(2), NodeId(3)), "/pawl/charlm/pause_ack/2/3");
  EXPECT_EQ(keys.event(5, NodeId(1)), "/pawl/charlm:events/00000000000000000005.1");
  EXPECT_EQ(keys.event(kHuge, NodeId(1)), "/pawl/charlm:events/18446744073709551615.1");
  EXPECT_LT(keys.event(999, NodeId(9)), keys.event(1000, NodeId(0)));
  EXPECT_EQ(keys.inventory(Generation(2), NodeId(3)).find(keys.inventories(Generation(2))), 0u);
  EXPECT_EQ(keys.event(1, NodeId(1)).find(keys.events()), 0u);
}

TEST(JobKeys, AnIdIsFoundAfterItsPrefixOnly) {
  const JobKeys keys("charlm");
  NodeId node(9);
  for (const char* other : {"", "/pawl/charlm:nodes/", "/pawl/charlm:nodes/3x", "/pawl/charlm:nodes/3/4",
                            "/pawl/other:nodes/3", "/pawl/charlm/nodes/3", "/pawl/charlm:nodes/4294967299"}) {
    EXPECT_FALSE(id_after(keys.nodes(), other, node)) << other;
    EXPECT_EQ(node, NodeId(9)) << other;
  }
  EXPECT_TRUE(id_after(keys.nodes(), keys.node(NodeId(3)), node));
  EXPECT_EQ(node, NodeId(3));
}

}  // namespace
}  // namespace pawl::job
