#include "job/redundancy/failure_domains.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

TEST(AFileOfDomains, NamesNodesByNumberAndRange) {
  const auto table = parse_domains("# rows\n0-2,5\track1\r\n\n  3  rack2/a  # the other\n4 rack1");
  ASSERT_TRUE(table) << table.error().what;
  EXPECT_EQ(*table, (DomainTable{{NodeId(0), "rack1"},
                                 {NodeId(1), "rack1"},
                                 {NodeId(2), "rack1"},
                                 {NodeId(3), "rack2/a"},
                                 {NodeId(4), "rack1"},
                                 {NodeId(5), "rack1"}}));
}

TEST(AFileOfDomains, HasOneDigestHoweverItIsWritten) {
  const auto digest = [](std::string_view file) { return digest_of(*parse_domains(file)); };
  EXPECT_EQ(digest("0-1 a\n2 b"), digest("2 b\n1 a\n0 a"));
  EXPECT_NE(digest("0-1 a\n2 b"), digest("0-1 a\n2 c"));
  EXPECT_NE(digest("0-1 a\n2 b"), digest("0-1 a\n2-3 b"));
}

TEST(AFileOfDomains, IsRefusedWithItsLine) {
  const auto why = [](std::string_view file) { return parse_domains(file).error().what; };
  EXPECT_EQ(why("0-3 a\n3 b"), "line 2: node 3 is in b, and above in a");
  EXPECT_NE(why("0-3 a\n\nx b").find("line 3: \"x\": expected a node's number"), std::string::npos);
  EXPECT_NE(why("3-0 a").find("the greater number comes second"), std::string::npos);
  EXPECT_NE(why("0-300000 a").find("below 262144"), std::string::npos);
  EXPECT_NE(why("4").find("expected nodes, a blank"), std::string::npos);
  EXPECT_NE(why("4 a b").find("failure domain \"a b\""), std::string::npos);
  EXPECT_NE(why("4 " + std::string(65, 'a')).find("1 to 64"), std::string::npos);
  EXPECT_EQ(why("# nothing\n"), "it names no node");
  EXPECT_NE(why("0-3 rack#1").find("failure domain \"rack#1\""), std::string::npos) << "not the domain \"rack\"";
  EXPECT_EQ(why("0,,1 a"), "line 1: \"\": expected a node's number, or FIRST-LAST");
}

TEST(Slurm, NamesTheSwitchesAboveTheNode) {
  EXPECT_EQ(*domain_in_slurm("s0.s4.node12", "switch.switch.node"), "s0.s4");
  EXPECT_EQ(*domain_in_slurm("s0.s4.n1.hpc.org", "switch.switch.node"), "s0.s4") << "a node's name may have dots";
  EXPECT_EQ(*domain_in_slurm("b1.n7", "block.node"), "b1");
  EXPECT_FALSE(domain_in_slurm("s0.s4", "switch.switch.node")) << "a part is missing";
  EXPECT_FALSE(domain_in_slurm("torus:1:2:3.n1", "torus.node")) << "each node's own coordinate is no domain";
  EXPECT_FALSE(domain_in_slurm("node12", "node"));
  EXPECT_FALSE(domain_in_slurm("node12.cluster", "node")) << "a name with a dot is no switch";
  EXPECT_FALSE(domain_in_slurm("", ""));
}

TEST(NamesOfDomains, AreNumberedAndTheUnnamedAreAlone) {
  const std::vector<std::string> names = {"b", "", "a", "b", ""};
  EXPECT_EQ(numbers_of_domains(names), (std::vector<std::uint32_t>{0, 1, 2, 0, 3}));
}

}  // namespace
}  // namespace pawl::job
