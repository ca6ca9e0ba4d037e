#include "cli/job/job_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "job/daemon/test_control.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

bool eventually(const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + 4s;  // less than a JobWatch looks by itself
  while (std::chrono::steady_clock::now() < until) {
    if (holds()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return holds();
}

class Followed : public testing::Test {
 protected:
  Followed() {
    state.generation = Generation(1);
    state.phase = JobPhase::running;
    for (std::uint32_t seat = 0; seat < 40; ++seat)
      state.seats.push_back({Seat(seat), {NodeId(seat), Incarnation(7)}, "10.0.0.1:7000", 0});
  }
  void put() {
    const WrittenState written = write_state(state, topology ? &*topology : nullptr);
    if (written.topology) {
      topology = written.topology;
      control.put(keys.topology(topology->generation), to_json(*topology));
    }
    control.put(keys.state(), written.state);
  }
  [[nodiscard]] static bool shows(const JobWatch& watch, const JobState& state) {
    const JobSeen seen = watch.seen();
    return seen.state != nullptr && *seen.state == state;
  }

  const JobKeys keys{"test"};
  MemoryControl control;
  std::unique_ptr<Control> line = control.connect();
  JobState state;
  std::optional<Topology> topology;
};

TEST_F(Followed, TheStateComesByItselfAndItsTopologyIsReadOnce) {
  put();
  const JobWatch watch(*line, "test", {NodeId(3)});
  ASSERT_TRUE(eventually([&] { return shows(watch, state); }));
  for (std::uint64_t step = 1; step < 6; ++step) {
    state.committed = Step(step);
    state.seats[step].life = {NodeId(50), Incarnation(9)};
    put();
    ASSERT_TRUE(eventually([&] { return shows(watch, state); })) << step;
  }
  EXPECT_EQ(control.gets(keys.topology(Generation(1))), 1);
  EXPECT_LE(control.gets(keys.state()), 2);
  state.generation = Generation(2);
  for (std::uint32_t seat = 10; seat < 30; ++seat) state.seats[seat].life = {NodeId(60 + seat), Incarnation(9)};
  put();
  ASSERT_EQ(topology->generation, Generation(2));
  ASSERT_TRUE(eventually([&] { return shows(watch, state); }));
  EXPECT_EQ(control.gets(keys.topology(Generation(1))), 1);
  EXPECT_EQ(control.gets(keys.topology(Generation(2))), 1);
}

TEST_F(Followed, WhatADeathOfManyMakesLongIsReadWithTheState) {
  state.verdict = std::string(2 * kStateBytesMax, 'x');
  const WrittenState written = write_state(state, nullptr);
  ASSERT_TRUE(written.topology && written.sheet);
  control.put(keys.topology(state.generation), to_json(*written.topology));
  control.put(sheet_key(keys, written.sheet->name), written.sheet->text);
  control.put(keys.state(), written.state);
  const JobWatch watch(*line, "test", {NodeId(3)});
  ASSERT_TRUE(eventually([&] { return shows(watch, state); }));
  state.committed = Step(9);
  control.put(keys.state(), write_state(state, &*written.topology, kMovedRowsMax, {&*written.sheet}).state);
  ASSERT_TRUE(eventually([&] { return shows(watch, state); }));
  EXPECT_EQ(control.gets(sheet_key(keys, written.sheet->name)), 1);
  topology = written.topology;
  state.verdict.clear();
  put();  // it names none any more
  ASSERT_TRUE(eventually([&] { return shows(watch, state); }));
}

TEST_F(Followed, OneLauncherReadsWhatGrowsWithTheNodes) {
  JobWatch first(*line, "test", {NodeId(0)});
  JobWatch other(*line, "test", {NodeId(1)});
  for (std::uint32_t node = 0; node < 3; ++node) {
    NodeRecord record;
    record.life = {NodeId(node), Incarnation(7)};
    record.unhealthy = "its disk";
    control.put(keys.node(NodeId(node)), to_json(record));
  }
  control.put(keys.event(5, NodeId(1)), R"({"kind":"frozen"})");
  EXPECT_EQ(first.look().registered.size(), 3u);
  EXPECT_EQ(first.take_events().size(), 1u);
  const int lists = control.lists();
  const JobSeen seen = other.look();
  EXPECT_EQ(control.lists(), lists);
  EXPECT_EQ(seen.registered, std::vector<NodeId>{NodeId(1)});
  EXPECT_EQ(seen.unhealthy.size(), 1u);  // people look at their own machine
  EXPECT_TRUE(other.take_events().empty());
  EXPECT_TRUE(first.reads_all());
  EXPECT_FALSE(other.reads_all());
}

TEST_F(Followed, WhatCannotBeReadIsSaid) {
  control.put(keys.state(), "{}");
  JobWatch watch(*line, "test", {NodeId(0)});
  EXPECT_NE(watch.look().why_not.find("missing"), std::string::npos);
  control.put(keys.state(), R"({"generation":3,"leader":[0,7],"phase":"running","topology":[2,5]})");
  const JobSeen seen = watch.look();
  EXPECT_TRUE(seen.answered);
  EXPECT_NE(seen.why_not.find("topology"), std::string::npos) << seen.why_not;
  EXPECT_EQ(seen.state, nullptr);
}

}  // namespace
}  // namespace pawl::job
