#include "job/daemon/progress_tree.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"
#include "job/transport/messages.h"

namespace pawl::job {
namespace {

// What seat reports look like that hold steps 1..n, of nothing known.
SeatReport holds_up_to(unsigned n, Progress known = {}) {
  return {known, (std::uint64_t{1} << n) - 1, 0};
}

class Tree : public testing::Test {
 protected:
  explicit Tree(std::uint32_t self = 0) : node(3, self) {}
  ProgressTree make() {
    return ProgressTree(node.context, {.send =
                                           [this](NodeId to, const Frame& frame) {
                                             sent.emplace_back(to, frame);
                                             return linked;
                                           },
                                       .own_report =
                                           [this](Progress known) {
                                             return SeatReport{known, own, 0};
                                           },
                                       .show = [this](Progress progress, bool) { shown.push_back(progress); },
                                       .on_committed = [this] { ++committed; },
                                       .is_up = [this](NodeId) { return linked; }});
  }
  void tick_and_pass() {
    tree.tick();
    node.pass(std::chrono::milliseconds(100));
  }
  TestNode node;
  bool linked = true;
  std::uint64_t own = 0;
  std::vector<std::pair<NodeId, Frame>> sent;
  std::vector<Progress> shown;
  int committed = 0;
  ProgressTree tree = make();
};

TEST_F(Tree, ItsNeighboursAreItsParentAndChildren) {
  EXPECT_TRUE(tree.neighbours().empty()) << "of no generation";
  node.run_in(JobPhase::running);
  EXPECT_EQ(tree.neighbours(), (std::vector<NodeId>{NodeId(1), NodeId(2)}));
}

TEST_F(Tree, TheRootCommitsWhatAllSeatsHold) {
  node.run_in(JobPhase::running);
  tree.begin(Progress{});
  sent.clear();
  own = 0b11;
  tree.report();
  EXPECT_EQ(tree.progress().committed, Step(0));  // the children have not reported
  tree.on_report(NodeId(1), Generation(1), holds_up_to(2));
  tree.on_report(NodeId(2), Generation(1), holds_up_to(1));
  EXPECT_EQ(tree.progress().committed, Step(1));
  EXPECT_EQ(tree.bits(), tree.progress().pack());
  EXPECT_EQ(committed, 1);
  EXPECT_EQ(shown.back().committed, Step(1));
  ASSERT_EQ(sent.size(), 2u);  // down, to both children
  const auto down = message_in<ProgressMessage>(sent[0].second);
  ASSERT_TRUE(down);
  EXPECT_EQ(down->progress.committed, Step(1));
  EXPECT_EQ(down->generation, Generation(1));
}

TEST_F(Tree, ReportsOfAnotherGenerationOrBeforeItRunsDoNotCount) {
  node.learn(JobPhase::restoring);
  tree.on_report(NodeId(1), Generation(1), holds_up_to(2));
  tree.on_progress(Generation(1), Progress{Step(4), 0});
  EXPECT_EQ(tree.progress().committed, Step(0));
  node.run_in(JobPhase::running);
  tree.on_progress(Generation(2), Progress{Step(4), 0});
  EXPECT_EQ(tree.progress().committed, Step(0));
  node.context.ending = true;
  own = 1;
  tree.report();
  EXPECT_TRUE(sent.empty());
}

TEST_F(Tree, AChildsNewLinkBeginsWithTheProgress) {
  node.run_in(JobPhase::running);
  tree.begin(Progress{Step(7), 0});
  sent.clear();
  tree.on_link_up(NodeId(2));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, NodeId(2));
  EXPECT_EQ(message_in<ProgressMessage>(sent[0].second)->progress.committed, Step(7));
}

class Leaf : public Tree {
 protected:
  Leaf() : Tree(1) {}
};

// --- While a link of the tree is cut

std::string said(const SeatReport& report, Progress progress = {}) {
  return to_json(ProgressNews{report, progress});
}

TEST_F(Tree, WhatNoLinkBringsIsReadFromTheControl) {
  node.run_in(JobPhase::running);
  tree.begin(Progress{});
  own = 0b11;
  tree.on_report(NodeId(2), Generation(1), holds_up_to(2));
  tree.on_key("/pawl/test/progress/1/1", said(holds_up_to(2)));
  EXPECT_EQ(tree.progress().committed, Step(2));
  tree.on_key("/pawl/test/progress/1/2", "{}");
  tree.on_key("/pawl/test/progress/1/x", said(holds_up_to(2)));
  tree.on_key("/pawl/test/progress/2/1", said({}, Progress{Step(9), 0}));  // not yet
  EXPECT_EQ(tree.progress().committed, Step(2));
}

TEST_F(Tree, AnOldReportTakesNothingBack) {
  node.run_in(JobPhase::running);
  tree.begin(Progress{});
  tree.on_report(NodeId(1), Generation(1), holds_up_to(2));
  tree.on_key("/pawl/test/progress/1/1", said(holds_up_to(1)));
  tree.on_report(NodeId(2), Generation(1), holds_up_to(2));
  own = 0b11;
  tree.report();
  EXPECT_EQ(tree.progress().committed, Step(2));
}

TEST_F(Tree, WhatTheControlSaidBeforeItRanCountsThen) {
  tree.on_key("/pawl/test/progress/1/1", said({}, Progress{Step(4), 0}));
  node.run_in(JobPhase::running);
  tree.begin(Progress{});
  EXPECT_EQ(tree.progress().committed, Step(4));
}

TEST_F(Tree, NewsOfAnEarlierGenerationTakeNoPlace) {
  tree.on_key("/pawl/test/progress/1/1", said({}, Progress{Step(4), 0}));
  tree.on_key("/pawl/test/progress/0/1", said({}, Progress{Step(3), 0}));
  node.run_in(JobPhase::running);
  tree.begin(Progress{});
  EXPECT_EQ(tree.progress().committed, Step(4));
}

TEST_F(Leaf, SaysByTheControlWhatTheCutLinkDoesNotTake) {
  node.run_in(JobPhase::running);
  tree.begin(Progress{});
  own = 0b1;
  tree.report();  // lost: nobody knows yet that the link is cut
  tick_and_pass();
  EXPECT_TRUE(node.control.puts.empty());
  linked = false;
  tree.report();
  tick_and_pass();
  ASSERT_EQ(node.control.puts.size(), 1u);
  EXPECT_EQ(node.control.puts[0].key, "/pawl/test/progress/1/1");
  EXPECT_EQ(node.control.puts[0].value, said({{}, 0b1, 0}));
  own = 0b11;
  tree.report();
  tick_and_pass();
  EXPECT_EQ(node.control.puts.size(), 1u) << "one at a time";
  node.control.puts[0].then({});
  tick_and_pass();
  ASSERT_EQ(node.control.puts.size(), 2u);
  EXPECT_EQ(node.control.puts[1].value, said({{}, 0b11, 0}));
  node.control.puts[1].then(Error{Code::unreachable, "away"});
  tick_and_pass();
  ASSERT_EQ(node.control.puts.size(), 3u) << "it may not have come";
  node.control.puts[2].then({});
  tick_and_pass();
  EXPECT_EQ(node.control.puts.size(), 3u) << "nothing new";
  linked = true;
  own = 0b111;
  tree.report();
  tick_and_pass();
  EXPECT_EQ(node.control.puts.size(), 3u) << "the link stands";
}

TEST_F(Leaf, HearsOfCommitsByTheControl) {
  node.run_in(JobPhase::running);
  tree.begin(Progress{});
  tree.on_key("/pawl/test/progress/1/0", said({}, Progress{Step(3), 0}));
  EXPECT_EQ(tree.progress().committed, Step(3));
}

TEST_F(Leaf, ReportsUpOnceAndAgainOverANewLink) {
  node.run_in(JobPhase::running);
  tree.begin(Progress{});
  own = 0b1;
  linked = false;
  tree.report();
  linked = true;
  tree.report();  // the first was lost
  tree.report();  // nothing new
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].first, NodeId(0));
  EXPECT_EQ(message_in<ReportMessage>(sent[1].second)->report.held, 1u);
  tree.on_link_up(NodeId(0));
  EXPECT_EQ(sent.size(), 3u);
}

TEST_F(Leaf, TakesProgressAndNothingBack) {
  node.run_in(JobPhase::running);
  tree.begin(Progress{});
  tree.on_progress(Generation(1), Progress{Step(3), 0});
  EXPECT_EQ(tree.progress().committed, Step(3));
  EXPECT_EQ(committed, 1);
  tree.on_progress(Generation(1), Progress{Step(2), 0});
  EXPECT_EQ(tree.progress().committed, Step(3));
  EXPECT_EQ(committed, 1);
}

}  // namespace
}  // namespace pawl::job
