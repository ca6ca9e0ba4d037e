#include "job/daemon/recovery_reports.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

// Six nodes in groups of three; node 5 leads.
class Leader : public testing::Test {
 protected:
  Leader() {
    node.context.mirror.reports.set_group_size(3);
    node.state.generation = Generation(2);
    node.state.evicted = {test_life(2)};
    node.learn(JobPhase::quiescing);
  }
  [[nodiscard]] Inventory inventory(std::uint32_t of, std::uint64_t committed = 7) const {
    Inventory one;
    one.life = test_life(of);
    one.generation = Generation(2);
    one.committed = Step(committed);
    return one;
  }
  [[nodiscard]] static std::string text_of(const Inventory& inventory) {
    return to_text(NodeReport{ReportKind::inventory, inventory.life, inventory.generation, to_text(inventory)});
  }
  void collected(const std::string& value, std::uint32_t group = 0, std::uint64_t serial = 1) {
    const JobKeys& keys = node.context.mirror.keys();
    (void)node.context.mirror.apply(collected_key(keys, Generation(2), group, NodeId(0), serial), &value,
                                    ++node.revision, node.clock.now());
  }
  void put_itself(const Inventory& inventory) {
    const std::string record = to_text(inventory);
    (void)node.context.mirror.apply(node.context.mirror.keys().inventory(Generation(2), inventory.life.node), &record,
                                    ++node.revision, node.clock.now());
  }
  [[nodiscard]] std::vector<std::uint64_t> steps() const {
    std::vector<std::uint64_t> steps;
    for (const Inventory& one : reports().inventories()) steps.push_back(one.committed.value);
    return steps;
  }
  RecoveryReports& reports() { return node.context.mirror.reports; }
  [[nodiscard]] const RecoveryReports& reports() const { return node.context.mirror.reports; }
  TestNode node{6, 5};
};

TEST_F(Leader, TakesWhatACollectorBringsAndWhatNodesPutThemselves) {
  EXPECT_EQ(reports().awaited().size(), 5u);
  collected(join_reports({text_of(inventory(0)), text_of(inventory(1))}));
  put_itself(inventory(3));
  EXPECT_EQ(reports().inventories().size(), 3u);
  EXPECT_EQ(reports().awaited().size(), 2u);
  EXPECT_EQ(reports().take_refused(), 0u);
}

TEST_F(Leader, PassesOverWhatCannotBeSoAndCountsIt) {
  Inventory old = inventory(0);
  old.generation = Generation(1);
  std::string changed = text_of(inventory(1));
  changed[30] ^= 1;
  Inventory another = inventory(1);
  another.life.incarnation = Incarnation(9);
  collected(join_reports({text_of(old), changed, text_of(inventory(4)), text_of(another), "report 2 inventory"}));
  EXPECT_TRUE(reports().inventories().empty());
  EXPECT_EQ(reports().take_refused(), 5u);
  EXPECT_EQ(reports().take_refused(), 0u);
  collected(join_reports({text_of(old), changed}));  // the same key, read anew
  EXPECT_EQ(reports().take_refused(), 0u);
  collected(join_reports({text_of(inventory(4)), changed}), 1, 2);  // it is in group 1
  EXPECT_EQ(reports().inventories().size(), 1u);
  EXPECT_EQ(reports().take_refused(), 1u);
}

TEST_F(Leader, OfOneLifeWhatItPutItselfCounts) {
  collected(text_of(inventory(0, 7)));
  collected(text_of(inventory(0, 7)), 0, 2);
  EXPECT_EQ(reports().take_refused(), 0u);
  collected(text_of(inventory(0, 8)), 0, 3);  // a second one that differs
  EXPECT_EQ(reports().take_refused(), 1u);
  EXPECT_EQ(steps(), std::vector<std::uint64_t>{7});
  put_itself(inventory(0, 9));
  EXPECT_EQ(steps(), std::vector<std::uint64_t>{9});
  collected(text_of(inventory(0, 7)), 0, 4);
  EXPECT_EQ(steps(), std::vector<std::uint64_t>{9});
  EXPECT_EQ(reports().take_refused(), 0u);
}

TEST_F(Leader, AReadinessMayComeBeforeTheStateThatAsksForIt) {
  const auto ready = [](std::uint32_t of) {
    return to_text(NodeReport{ReportKind::ready, test_life(of), Generation(2), ready_record(test_life(of))});
  };
  collected(join_reports({ready(0), ready(6)}));  // node 6 is the spare
  EXPECT_EQ(reports().take_refused(), 0u);
  node.state.seats[2].life = test_life(6);
  node.learn(JobPhase::restoring);
  EXPECT_EQ(reports().ready_members(), (std::vector{test_life(0), test_life(6)}));
  EXPECT_FALSE(reports().is_ready(NodeId(1)));
}

}  // namespace
}  // namespace pawl::job
