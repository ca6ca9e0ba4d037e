#include "job/recovery/report_groups.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "base/text.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

NodeLife life_of(std::uint32_t node) {
  return {NodeId(node), Incarnation(1)};
}

struct Job {
  explicit Job(std::uint32_t nodes, std::uint32_t seats = 2) {
    for (std::uint32_t seat = 0; seat < nodes * seats; ++seat)
      state.seats.push_back({Seat(seat), life_of(seat / seats), text("host", seat / seats), seat % seats});
    state.phase = JobPhase::quiescing;
  }
  [[nodiscard]] std::optional<ReportGroup> group_of(std::uint32_t node, std::uint32_t size = 3) const {
    return report_group_of(state, Roster(state), ring_of(state.seats, 1), life_of(node), size);
  }
  [[nodiscard]] std::vector<std::uint32_t> nodes_with(std::uint32_t node) const {
    std::vector<std::uint32_t> nodes;
    const std::optional<ReportGroup> group = group_of(node);
    for (const Member& member : group->survivors) nodes.push_back(member.life.node.value);
    return nodes;
  }
  JobState state;
};

TEST(ReportGroups, ArePositionsInARowAndTheirFirstSurvivorsCollect) {
  Job job(8);
  EXPECT_EQ(job.group_of(4)->index, 1u);
  EXPECT_EQ(job.nodes_with(4), (std::vector<std::uint32_t>{3, 4, 5}));
  EXPECT_EQ(job.nodes_with(7), (std::vector<std::uint32_t>{6, 7}));
  EXPECT_EQ(job.group_of(4)->survivors[0].address, "host3");
  job.state.evicted = {life_of(3)};
  EXPECT_EQ(job.nodes_with(4), (std::vector<std::uint32_t>{4, 5}));
}

TEST(ReportGroups, WhoHasNobodyToCollectPutsItsReportsItself) {
  Job job(7);
  EXPECT_FALSE(job.group_of(6));  // alone in the last one
  EXPECT_FALSE(job.group_of(9));  // no member
  EXPECT_FALSE(job.group_of(4, 7));
  EXPECT_FALSE(job.group_of(4, 64));  // one group: as if there were none
  EXPECT_FALSE(job.group_of(4, 0));
  job.state.evicted = {life_of(3), life_of(5)};
  EXPECT_FALSE(job.group_of(4));
  EXPECT_FALSE(job.group_of(3));  // evicted
}

TEST(ReportGroups, AllWaitsEndBeforeTheDeadlineForInventories) {
  for (const Duration budget : {500ms, 1000ms, 3000ms, 60'000ms}) {
    const Deadlines deadlines = derive_deadlines(budget);
    const ReportWaits waits = report_waits(deadlines);
    EXPECT_LE(waits.acknowledged + report_delay(999, 1000, waits), deadlines.inventory * 3 / 4);
    EXPECT_LT(waits.collect, waits.acknowledged / 2);
  }
  const ReportWaits waits = report_waits(derive_deadlines(3s));
  EXPECT_EQ(waits.acknowledged, 250ms);
  EXPECT_EQ(report_delay(0, 4, waits), 1s);
  EXPECT_EQ(report_delay(2, 4, waits), 1500ms);
}

struct World {
  SendingView view;
  int time = 0;            // in steps of half of `acknowledged`
  bool collected = false;  // it is in a key of a collector
  int acknowledged_at = -1;
  [[nodiscard]] auto key() const {
    return std::tuple(view.tried, view.refused, view.line_lost, view.acknowledged, view.put, time, collected,
                      acknowledged_at);
  }
};

// Whatever a node's collectors do, in whatever order: as long as the phase goes on, its report is with the control, by what
// is true and not by what somebody says, before the deadline for it.
class Course {
 public:
  void search(std::size_t collectors) {
    World begin;
    begin.view.collectors = collectors;
    begin.view.delay = report_delay(99, 100, waits_);
    visit(begin);
  }
  std::size_t states = 0, ends = 0, collected_only = 0;

 private:
  void visit(World world) {
    world.view.since_begun = world.time * waits_.acknowledged / 2;
    if (world.view.acknowledged)
      world.view.since_acknowledged = (world.time - world.acknowledged_at) * waits_.acknowledged / 2;
    for (;;) {
      const SendingStep step = next_sending_step(world.view, waits_);
      if (step == SendingStep::send_to_next) {
        ASSERT_LT(world.view.tried, world.view.collectors);
        ++world.view.tried;
        world.view.line_lost = false;
        continue;
      }
      if (step == SendingStep::put_itself) {
        ASSERT_FALSE(world.view.put);
        world.view.put = true;
        continue;
      }
      break;
    }
    if (!seen_.insert(world.key()).second) return;
    ++states;
    if (world.time >= kEnd) {
      ++ends;
      collected_only += world.collected && !world.view.put ? 1 : 0;
      ASSERT_TRUE(world.view.put) << "nobody has it";
      return;
    }
    const bool sent = world.view.tried > 0 && !world.view.line_lost && !world.view.acknowledged;
    if (sent) {
      World next = world;
      next.view.line_lost = true;  // it dies before its put
      visit(next);
      next.collected = true;  // or after it, before it acknowledges
      visit(next);
      next = world;
      next.view.acknowledged = true;  // it lies, or drops the report, or its put is lost
      next.acknowledged_at = world.time;
      visit(next);
      next.collected = true;  // it is sound
      visit(next);
      next = world;
      next.view.refused = true;
      visit(next);
    }
    World next = world;  // nothing happens for a while
    ++next.time;
    visit(next);
    if (world.collected) {  // the leader has it and goes on
      next = world;
      next.view.phase_goes_on = false;
      EXPECT_EQ(next_sending_step(next.view, waits_), SendingStep::done);
    }
  }
  const ReportWaits waits_ = report_waits(derive_deadlines(3s));
  static constexpr int kEnd = 24;  // 3 s
  std::set<decltype(World{}.key())> seen_;
};

TEST(ReportGroups, AReportIsWithTheControlInTimeWhateverItsCollectorsDo) {
  for (const std::size_t collectors : {0u, 1u, 2u}) {
    Course course;
    course.search(collectors);
    EXPECT_GT(course.ends, 0u);
    EXPECT_EQ(course.collected_only, 0u);  // the phase went on, so it has put it, too
    EXPECT_GE(course.states, collectors == 0 ? 24u : 100u) << collectors;
  }
}

}  // namespace
}  // namespace pawl::job
