#include "job/membership/node_report.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

NodeReport inventory_report(std::uint32_t node, std::uint64_t step = 41) {
  Inventory inventory;
  inventory.life = {NodeId(node), Incarnation(7)};
  inventory.generation = Generation(3);
  inventory.committed = Step(step);
  inventory.items = {{Seat(node), SourceKind::own_arena, Generation(2), Step(step), SlotState::sealed, 5}};
  return {ReportKind::inventory, inventory.life, inventory.generation, to_text(inventory), inventory};
}

NodeReport ready_report(std::uint32_t node) {
  const NodeLife life{NodeId(node), Incarnation(7)};
  return {ReportKind::ready, life, Generation(3), ready_record(life)};
}

TEST(NodeReport, IsReadAsItWasWritten) {
  for (const NodeReport& report : {inventory_report(12), ready_report(12)}) {
    const auto read = parse_node_report(to_text(report));
    ASSERT_TRUE(read) << read.error().what;
    EXPECT_EQ(*read, report);
  }
  EXPECT_EQ(to_text(ready_report(12)), "report 1 ready 12.7 generation 3\n{\"incarnation\":7}\nsum c0648e21");
}

TEST(NodeReport, OneThatWasChangedAnywhereIsRefused) {
  const std::string report = to_text(inventory_report(1));
  for (std::size_t at = 0; at < report.size(); ++at)
    for (const char bit : {1, 8, 64}) {
      std::string changed = report;
      changed[at] = static_cast<char>(changed[at] ^ bit);
      EXPECT_FALSE(parse_node_report(changed)) << changed;
    }
  for (std::size_t size = 0; size < report.size(); ++size) EXPECT_FALSE(parse_node_report(report.substr(0, size)));
  EXPECT_FALSE(parse_node_report(report + "x"));
}

TEST(NodeReport, ARecordOfAnotherLifeOrGenerationIsRefused) {
  NodeReport report = inventory_report(1);
  report.life.incarnation = Incarnation(8);
  EXPECT_FALSE(parse_node_report(to_text(report)));
  report = inventory_report(1);
  report.generation = Generation(2);
  EXPECT_FALSE(parse_node_report(to_text(report)));
  report = ready_report(1);
  report.life.incarnation = Incarnation(8);
  EXPECT_FALSE(parse_node_report(to_text(report)));
  report = ready_report(1);
  report.record = "[";
  EXPECT_FALSE(parse_node_report(to_text(report)));
}

TEST(NodeReport, SeveralFollowEachOtherAndADamagedOneCostsNoOther) {
  const std::vector<std::string> reports = {to_text(inventory_report(1)), to_text(ready_report(2)),
                                            to_text(inventory_report(3))};
  std::string joined = join_reports(reports);
  auto split = split_reports(joined);
  ASSERT_EQ(split.size(), 3u);
  for (std::size_t i = 0; i < split.size(); ++i) EXPECT_EQ(split[i], reports[i]);
  joined[reports[0].size() + 40] ^= 1;
  split = split_reports(joined);
  ASSERT_EQ(split.size(), 3u);
  EXPECT_TRUE(parse_node_report(split[0]));
  EXPECT_FALSE(parse_node_report(split[1]));
  EXPECT_TRUE(parse_node_report(split[2]));
  EXPECT_TRUE(split_reports("").empty());
}

TEST(NodeReport, KeysOfCollectedOnesNameTheirGroup) {
  const JobKeys keys("j");
  const std::string key = collected_key(keys, Generation(3), 5, NodeId(320), 17);
  EXPECT_EQ(key, "/pawl/j:reports/3/collected/5/320.17");
  EXPECT_EQ(group_in_collected_key(keys, Generation(3), key), 5u);
  EXPECT_FALSE(group_in_collected_key(keys, Generation(4), key));
  EXPECT_FALSE(group_in_collected_key(keys, Generation(3), keys.inventory(Generation(3), NodeId(5))));
  EXPECT_FALSE(group_in_collected_key(keys, Generation(3), keys.collected(Generation(3)) + "x/1.1"));
  EXPECT_EQ(key_of(keys, ReportKind::ready, Generation(3), NodeId(5)), keys.ready(Generation(3), NodeId(5)));
}

}  // namespace
}  // namespace pawl::job
