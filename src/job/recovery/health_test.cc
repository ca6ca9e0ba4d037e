#include "job/recovery/health.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Health : public testing::Test {
 protected:
  std::string why() const {
    const auto unfit = judge_health(facts, deadlines);
    return unfit ? unfit->why : "";
  }
  HealthPeer& peer(std::uint32_t node) {
    HealthPeer peer;
    peer.node = NodeId(node);
    facts.peers.push_back(peer);
    return facts.peers.back();
  }

  HealthFacts facts;
  Deadlines deadlines = derive_deadlines(3s);
};

TEST_F(Health, ANodeThatCanDoAllIsFit) {
  EXPECT_EQ(why(), "") << "there is nobody to ask yet";
  peer(1);
  EXPECT_EQ(why(), "");
}

TEST_F(Health, EachThingThatFailsIsNamed) {
  const auto named = [&](Status HealthFacts::*what, const char* word) {
    facts = {};
    facts.*what = Error{Code::io, "refused"};
    EXPECT_NE(why().find(word), std::string::npos) << why();
    EXPECT_NE(why().find("refused"), std::string::npos) << why();
    EXPECT_EQ(judge_health(facts, deadlines)->again, kHealthAgain);
  };
  named(&HealthFacts::arena, "shared memory");
  named(&HealthFacts::disk, "run directory");
  named(&HealthFacts::probe, "--health-check");
}

// As everywhere else in pawl: nothing that a seat needs waits for the run directory.
TEST_F(Health, AFullDiskKeepsNobodyOut) {
  facts.disk = Error{Code::full, "no space left"};
  EXPECT_EQ(why(), "");
}

TEST_F(Health, OneMemberThatAnswersIsEnough) {
  peer(1).answered = Error{Code::unreachable, "refused"};
  EXPECT_NE(why().find("node 1: refused"), std::string::npos);
  EXPECT_EQ(judge_health(facts, deadlines)->again, deadlines.silence);
  peer(2);
  EXPECT_EQ(why(), "");
}

TEST_F(Health, AClockThatIsApartFromAllIsWrong) {
  peer(1).clock_ahead = 80s;
  EXPECT_NE(why().find("80 s behind that of node 1"), std::string::npos) << why();
  facts.peers[0].clock_ahead = -80s;
  EXPECT_NE(why().find("80 s ahead of that of node 1"), std::string::npos) << why();
  facts.peers[0].took = 30s;
  EXPECT_EQ(why(), "") << "the answer took so long";
  facts.peers[0].took = 0s;
  peer(2).clock_ahead = 40s;
  EXPECT_EQ(why(), "") << "it is node 1's";
}

}  // namespace
}  // namespace pawl::job
