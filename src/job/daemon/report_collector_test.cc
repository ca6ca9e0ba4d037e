#include "job/daemon/report_collector.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/text.h"
#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

// Node 0 of six, which collects for the nodes 0 to 2.
class Collector : public testing::Test {
 protected:
  Collector() {
    node.context.mirror.reports.set_group_size(3);
    node.state.generation = Generation(2);
    node.learn(JobPhase::quiescing);
  }
  [[nodiscard]] static NodeReport ready(std::uint32_t of, std::uint64_t generation = 2) {
    return {ReportKind::ready, test_life(of), Generation(generation), ready_record(test_life(of))};
  }
  [[nodiscard]] static NodeReport frozen(std::uint32_t of, std::uint64_t generation = 2, std::uint64_t committed = 7) {
    Inventory inventory;
    inventory.life = test_life(of);
    inventory.generation = Generation(generation);
    inventory.committed = Step(committed);
    return {ReportKind::inventory, inventory.life, inventory.generation, to_text(inventory)};
  }
  void say(const NodeReport& report) {
    collector.on_report(report.life, to_text(report),
                        [this, of = report.life.node.value](bool taken) { (taken ? taken_ : refused_).push_back(of); });
  }
  [[nodiscard]] std::vector<std::uint32_t> nodes_in(std::size_t put) const {
    std::vector<std::uint32_t> nodes;
    for (const std::string_view text : split_reports(node.control.puts.at(put).value))
      nodes.push_back(parse_node_report(text)->life.node.value);
    return nodes;
  }
  using Nodes = std::vector<std::uint32_t>;
  TestNode node{6};
  ReportCollector collector{node.context};
  std::vector<std::uint32_t> taken_, refused_;
};

TEST_F(Collector, PutsAllOfItsGroupAtOnceAndAcknowledgesThen) {
  say(frozen(0));
  say(frozen(1));
  EXPECT_TRUE(node.control.puts.empty());
  say(frozen(2));
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_TRUE(node.control.puts[0].key.starts_with("/pawl/test:reports/2/collected/0/0."));
  EXPECT_EQ(nodes_in(0), (Nodes{0, 1, 2}));
  EXPECT_TRUE(taken_.empty());
  node.control.puts[0].then({});
  EXPECT_EQ(taken_, (Nodes{0, 1, 2}));
  say(frozen(1));  // over another connection
  EXPECT_EQ(taken_, (Nodes{0, 1, 2, 1}));
  EXPECT_EQ(node.control.puts.size(), 1u);
}

TEST_F(Collector, WaitsALittleForTheOthersAndPutsLaterOnesInAnotherKey) {
  say(frozen(1));
  node.pass(std::chrono::milliseconds(49));
  EXPECT_TRUE(node.control.puts.empty());
  node.pass(std::chrono::milliseconds(1));
  ASSERT_EQ(node.control.puts.size(), 1u);
  say(frozen(2));
  node.pass(std::chrono::milliseconds(50));
  ASSERT_EQ(node.control.puts.size(), 2u);
  EXPECT_EQ(nodes_in(1), Nodes{2});
  EXPECT_NE(node.control.puts[0].key, node.control.puts[1].key);
}

TEST_F(Collector, AReportOfALaterStateWaitsForIt) {
  say(ready(1));
  say(frozen(2, 3));
  EXPECT_TRUE(refused_.empty());
  node.learn(JobPhase::restoring);
  collector.on_state();
  node.pass(std::chrono::milliseconds(50));
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(nodes_in(0), Nodes{1});
  node.state.generation = Generation(3);
  node.learn(JobPhase::quiescing);
  collector.on_state();
  node.pass(std::chrono::milliseconds(50));
  ASSERT_EQ(node.control.puts.size(), 2u);
  EXPECT_TRUE(node.control.puts[1].key.starts_with("/pawl/test:reports/3/collected/0/0."));
  EXPECT_EQ(nodes_in(1), Nodes{2});
}

TEST_F(Collector, RefusesWhatIsNotForItAndCountsIt) {
  const Counter& refused = reports_refused(node.context.metrics);
  say(frozen(4));  // of another group
  say(frozen(1, 1));
  collector.on_report(test_life(1), to_text(frozen(2)),
                      [this](bool taken) { (taken ? taken_ : refused_).push_back(9); });
  collector.on_report(test_life(1), "nonsense", [this](bool taken) { (taken ? taken_ : refused_).push_back(9); });
  EXPECT_EQ(refused_, (Nodes{4, 1, 9, 9}));
  EXPECT_EQ(refused.value(), 4u);
  say(frozen(1));
  say(frozen(1, 2, 8));  // its pawld was restarted: it is to put this one itself
  EXPECT_EQ(refused_.size(), 5u);
  EXPECT_EQ(refused.value(), 5u);
  node.state.evicted = {test_life(2)};
  node.learn(JobPhase::quiescing);
  say(frozen(2));
  EXPECT_EQ(refused_.size(), 6u);
}

TEST_F(Collector, APutThatFailsIsLeftToTheNodes) {
  for (std::uint32_t of = 0; of < 3; ++of) say(frozen(of));
  node.control.puts.at(0).then(Error{Code::unreachable, "away"});
  EXPECT_EQ(refused_, (Nodes{0, 1, 2}));
  EXPECT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(reports_refused(node.context.metrics).value(), 0u);
}

TEST_F(Collector, LargeReportsAreDividedOverKeys) {
  node.state.seats.clear();
  for (std::uint32_t one = 0; one < 30; ++one) node.state.seats.push_back({Seat(one), test_life(one), "host", 0});
  node.context.mirror.reports.set_group_size(20);
  (void)node.learn();
  for (std::uint32_t of = 0; of < 20; ++of) {
    NodeReport report = frozen(of);
    Inventory inventory = *parse_inventory(report.record);
    for (std::uint32_t slot = 0; slot < 3000; ++slot)
      inventory.items.push_back({Seat(2 * slot), SourceKind::replica, Generation(1), Step(1), SlotState::sealed, slot});
    report.record = to_text(inventory);
    say(report);
  }
  ASSERT_GT(node.control.puts.size(), 2u);
  std::size_t reports = 0;
  for (std::size_t put = 0; put < node.control.puts.size(); ++put) {
    EXPECT_LE(node.control.puts[put].value.size(), kCollectedBytesMax);
    reports += nodes_in(put).size();
  }
  EXPECT_EQ(reports, 20u);
}

}  // namespace
}  // namespace pawl::job
