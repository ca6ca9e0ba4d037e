#include "job/daemon/progress_detour.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Detour : public testing::Test {
 protected:
  Detour() { node.run_in(JobPhase::running); }
  ProgressNews at(std::uint64_t step) { return {{{Step(step), 1}, step + 2, step + 1}, {Step(step), 0}}; }
  std::vector<FakeControl::Put>& puts() { return node.control.puts; }
  void answer(const Status& status) { puts().back().then(status); }

  TestNode node{4};
  std::optional<ProgressNews> news;
  ProgressDetour detour{node.context, [this] { return news; }};
};

TEST_F(Detour, WritesWhatThereIsToSayIntoItsOwnKeyAfterAPause) {
  news = at(7);
  detour.consider();
  detour.consider();
  EXPECT_TRUE(puts().empty()) << "most links that break come back at once";
  news = at(8);
  node.pass(1s);
  ASSERT_EQ(puts().size(), 1u);
  EXPECT_EQ(puts()[0].key, node.context.mirror.keys().progress(Generation(1), NodeId(0)));
  EXPECT_EQ(parse_progress_news(puts()[0].value), at(8)) << "the newest";
}

TEST_F(Detour, ALinkThatCameBackMeanwhileLeavesNothingToWrite) {
  news = at(7);
  detour.consider();
  news.reset();
  node.pass(1s);
  EXPECT_TRUE(puts().empty());
}

TEST_F(Detour, WritesOneAtATimeAndNothingTwice) {
  news = at(7);
  detour.consider();
  node.pass(1s);
  news = at(8);
  detour.consider();
  node.pass(1s);
  EXPECT_EQ(puts().size(), 1u) << "the first is not answered yet";
  answer({});
  detour.consider();
  node.pass(1s);
  ASSERT_EQ(puts().size(), 2u);
  EXPECT_EQ(parse_progress_news(puts()[1].value), at(8));
  answer({});
  detour.consider();
  node.pass(1s);
  EXPECT_EQ(puts().size(), 2u);
}

TEST_F(Detour, WhatFailedIsWrittenAgain) {
  news = at(7);
  detour.consider();
  node.pass(1s);
  answer(Error{Code::unreachable, "away"});
  detour.consider();
  node.pass(1s);
  ASSERT_EQ(puts().size(), 2u);
  EXPECT_EQ(puts()[0].value, puts()[1].value);
}

TEST_F(Detour, TheSameNewsInANewGenerationHaveAnotherKey) {
  news = at(7);
  detour.consider();
  node.pass(1s);
  answer({});
  node.state.generation = Generation(2);
  node.run_in(JobPhase::running);
  detour.consider();
  node.pass(1s);
  ASSERT_EQ(puts().size(), 2u);
  EXPECT_NE(puts()[0].key, puts()[1].key);
}

TEST_F(Detour, ManyNodesWriteLessOften) {
  TestNode large{400};
  large.run_in(JobPhase::running);
  ProgressDetour slow(large.context, [this] { return news; });
  news = at(7);
  slow.consider();
  large.pass(700ms);
  EXPECT_TRUE(large.control.puts.empty());
  large.pass(200ms);
  EXPECT_EQ(large.control.puts.size(), 1u);
}

TEST(ProgressNews, DamagedTextIsNoNews) {
  const ProgressNews news{{{Step(5), 2}, 9, 8}, {Step(6), 1}};
  EXPECT_EQ(parse_progress_news(to_json(news)), news);
  for (const char* text :
       {"", "7", "[]", "{}", R"({"known":1,"held":2,"voided":3})", R"({"known":-1,"held":2,"voided":3,"progress":4})",
        R"({"known":1,"held":"2","voided":3,"progress":4})"})
    EXPECT_FALSE(parse_progress_news(text)) << text;
}

}  // namespace
}  // namespace pawl::job
