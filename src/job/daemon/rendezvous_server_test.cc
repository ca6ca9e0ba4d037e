#include "job/daemon/rendezvous_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

RendezvousRequest asks(RendezvousOp op, const std::string& key, const std::string& value = {}) {
  RendezvousRequest request;
  request.op = op;
  request.client = 5;
  static std::uint64_t number = 0;
  request.number = ++number;
  request.key = key;
  request.value = value;
  return request;
}

class Rendezvous : public testing::Test {
 protected:
  RendezvousServer::OnAnswer into(std::vector<std::string>& answers) {
    return [&answers](const RendezvousAnswer& answer) {
      answers.push_back(answer.refused.empty() ? answer.value : answer.refused);
    };
  }
  RendezvousServer make() {
    return RendezvousServer(clock, log,
                            {.generation = [this] { return generation; },
                             .is_root = [this] { return is_root; },
                             .is_open = [this] { return is_open; },
                             .send_to_root =
                                 [this](std::uint64_t id, const RendezvousRequest&) {
                                   if (reaches_root) sent.push_back(id);
                                   return reaches_root;
                                 },
                             .reaches_root = [this] { return reaches_root; },
                             .send_by_another =
                                 [this](std::uint64_t id, const RendezvousRequest& request, std::size_t turn) {
                                   passed.emplace_back(id, turn);
                                   last_passed = request;
                                 }});
  }
  ManualClock clock;
  RendezvousLog log{real_shared_memory(), "test", [](const std::string&, int) {}};
  Generation generation{1};
  bool is_root = true;
  bool is_open = true;
  bool reaches_root = true;
  std::vector<std::pair<std::uint64_t, std::size_t>> passed;  // id, and by which
  RendezvousRequest last_passed;
  std::vector<std::uint64_t> sent;
  std::vector<std::string> answers;
  RendezvousServer server = make();
};

TEST_F(Rendezvous, TheRootAnswersAndLetsAGetWaitForItsKey) {
  server.enter();
  server.ask(asks(RendezvousOp::get, "a"), into(answers));
  EXPECT_TRUE(answers.empty());
  EXPECT_EQ(server.waiting_count(), 1u);
  server.ask(asks(RendezvousOp::set, "b", "other"), [](const RendezvousAnswer&) {});
  EXPECT_TRUE(answers.empty());
  server.ask(asks(RendezvousOp::set, "a", "value"), [](const RendezvousAnswer&) {});
  EXPECT_EQ(answers, std::vector<std::string>{"value"});
  EXPECT_EQ(server.waiting_count(), 0u);
}

// Another world begins in the middle of a generation, and another node has heard of that first: who asks knows who the root is, and
// who is asked does not know yet that it is himself.
TEST_F(Rendezvous, WhatIsAskedBeforeTheWorldIsKnownIsServedThen) {
  is_root = is_open = false;
  server.enter();
  const RendezvousServer::Asker asker{[] { return true; }, into(answers)};
  server.on_peer_request(generation, asks(RendezvousOp::get, "a"), asker);
  server.on_peer_request(generation, asks(RendezvousOp::set, "a", "value"), asker);
  server.open();
  EXPECT_TRUE(sent.empty()) << "whom it takes for the root is it no more";
  EXPECT_TRUE(answers.empty());
  is_root = is_open = true;
  server.open();
  EXPECT_EQ(std::ranges::count(answers, "value"), 1) << "the get";
  EXPECT_EQ(answers.size(), 2u);
  EXPECT_EQ(server.waiting_count(), 0u);
}

TEST_F(Rendezvous, NoneOfManyThousandsThatAskBeforeTheWorldIsKnownIsForgotten) {
  is_open = false;
  server.enter();
  for (int i = 0; i < 10'000; ++i)
    server.on_peer_request(generation, asks(RendezvousOp::set, text("key", i), "value"),
                           {[] { return true; }, into(answers)});
  is_open = true;
  server.open();
  EXPECT_EQ(answers.size(), 10'000u);
}

TEST_F(Rendezvous, WhoAsksForManyKeysWaitsForTheLastOfThem) {
  server.enter();
  const auto set = [this](const std::string& key) {
    server.ask(asks(RendezvousOp::set, key, "of " + key), [](const RendezvousAnswer&) {});
  };
  set("b");
  server.ask(asks(RendezvousOp::get_all, "a", pack(std::vector<std::string>{"a", "b", "c"})), into(answers));
  set("c");
  EXPECT_TRUE(answers.empty());
  server.ask(asks(RendezvousOp::erase, "b"), [](const RendezvousAnswer&) {});
  set("a");  // waits for b from now on
  EXPECT_TRUE(answers.empty());
  EXPECT_EQ(server.waiting_count(), 1u);
  server.ask(asks(RendezvousOp::erase, "a"), [](const RendezvousAnswer&) {});
  set("b");
  EXPECT_TRUE(answers.empty());
  set("a");
  EXPECT_EQ(answers, std::vector<std::string>{pack(std::vector<std::string>{"of a", "of b", "of c"})});
  EXPECT_EQ(server.waiting_count(), 0u);
}

TEST_F(Rendezvous, WhoAsksForManyKeysMayFindTheFirstThere) {
  server.enter();
  server.ask(asks(RendezvousOp::set, "a", "1"), [](const RendezvousAnswer&) {});
  server.ask(asks(RendezvousOp::get_all, "a", pack(std::vector<std::string>{"a", "b"})), into(answers));
  EXPECT_TRUE(answers.empty());
  server.ask(asks(RendezvousOp::set, "b", "2"), [](const RendezvousAnswer&) {});
  EXPECT_EQ(answers, std::vector<std::string>{pack(std::vector<std::string>{"1", "2"})});
}

TEST_F(Rendezvous, AnAnswerMayAskAgainAtOnce) {
  server.enter();
  server.ask(asks(RendezvousOp::get, "a"), [&](const RendezvousAnswer& first) {
    answers.push_back(first.value);
    server.ask(asks(RendezvousOp::get, "a"), into(answers));
    server.ask(asks(RendezvousOp::get, "later"), into(answers));
    server.ask(asks(RendezvousOp::set, "later", "too"), [](const RendezvousAnswer&) {});
  });
  server.ask(asks(RendezvousOp::set, "a", "value"), [](const RendezvousAnswer&) {});
  EXPECT_EQ(answers, (std::vector<std::string>{"value", "value", "too"}));
}

TEST_F(Rendezvous, AReturningRootGoesOnWithWhatTheLastOneDid) {
  server.enter();
  server.ask(asks(RendezvousOp::set, "a", "kept"), [](const RendezvousAnswer&) {});
  RendezvousServer next = make();
  next.enter();
  next.ask(asks(RendezvousOp::get, "a"), into(answers));
  EXPECT_EQ(answers, std::vector<std::string>{"kept"});
}

TEST_F(Rendezvous, AGenerationBeginsEmptyAndDropsWhoWaits) {
  server.enter();
  server.ask(asks(RendezvousOp::set, "a", "old"), [](const RendezvousAnswer&) {});
  server.ask(asks(RendezvousOp::get, "b"), into(answers));
  generation = Generation(2);
  server.enter();
  EXPECT_EQ(server.waiting_count(), 0u);
  server.ask(asks(RendezvousOp::get, "a"), into(answers));
  EXPECT_TRUE(answers.empty());
}

TEST_F(Rendezvous, OthersSendToTheRootAndAgainOverEachNewLink) {
  is_root = false;
  server.enter();
  server.ask(asks(RendezvousOp::get, "a"), into(answers));
  server.ask(asks(RendezvousOp::get, "b"), into(answers));
  ASSERT_EQ(sent.size(), 2u);
  server.ask_again();
  EXPECT_EQ(sent.size(), 4u);
  server.on_answer(sent[1], {true, "for b", ""});
  server.on_answer(sent[1], {true, "twice", ""});
  EXPECT_EQ(answers, std::vector<std::string>{"for b"});
  server.ask_again();
  EXPECT_EQ(sent.size(), 5u);
}

TEST_F(Rendezvous, WithoutALinkToTheRootAnotherMemberPassesRequestsOn) {
  is_root = false;
  reaches_root = false;
  server.enter();
  server.ask(asks(RendezvousOp::get, "a"), into(answers));
  clock.sleep(900ms);
  server.tick();
  EXPECT_TRUE(passed.empty());  // most links that break come back at once
  clock.sleep(100ms);
  server.tick();
  server.tick();
  ASSERT_EQ(passed.size(), 1u);
  clock.sleep(1s);
  server.tick();
  ASSERT_EQ(passed.size(), 2u);
  EXPECT_NE(passed[1].second, passed[0].second);
  EXPECT_EQ(passed[1].first, passed[0].first);
  server.ask(asks(RendezvousOp::try_get, "at once"), into(answers));
  ASSERT_EQ(passed.size(), 3u);
  EXPECT_EQ(last_passed.key, "at once");
  server.on_answer(passed[2].first, {true, "", ""});
  answers.clear();
  server.on_answer(passed[0].first, {true, "by another way", ""});
  EXPECT_EQ(answers, std::vector<std::string>{"by another way"});
  clock.sleep(1s);
  server.tick();
  EXPECT_EQ(passed.size(), 3u);  // nobody waits
  reaches_root = true;
  server.tick();
  server.ask(asks(RendezvousOp::get, "b"), into(answers));
  server.ask_again();  // its link stands anew
  EXPECT_EQ(sent.size(), 2u);
  reaches_root = false;
  server.ask(asks(RendezvousOp::get, "c"), into(answers));
  EXPECT_EQ(passed.size(), 3u);
}

// The root and two others, of which one has no link to it.
TEST_F(Rendezvous, WhoReachesTheRootPassesOnWhatIsAskedAndItsAnswerAndNothingInCircles) {
  is_root = false;
  server.enter();
  std::vector<std::string> heard;
  const auto asker = [&] { return RendezvousServer::Asker{[] { return true; }, into(heard)}; };
  const RendezvousRequest get = asks(RendezvousOp::get, "a");
  server.on_peer_request(Generation(1), get, asker());
  ASSERT_EQ(sent.size(), 1u);
  server.on_peer_request(Generation(1), get, asker());  // asked again: its answer goes the way that it came last
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(server.waiting_count(), 1u);
  server.on_answer(sent[0], {true, "to nobody", ""});
  server.on_answer(sent[1], {true, "value", ""});
  EXPECT_EQ(heard, std::vector<std::string>{"value"});
  reaches_root = false;
  server.on_peer_request(Generation(1), asks(RendezvousOp::get, "b"), asker());
  for (int second = 0; second < 5; ++second) {
    clock.sleep(1s);
    server.tick();
  }
  EXPECT_TRUE(passed.empty());  // it would come back
  reaches_root = true;
  server.ask_again();
  ASSERT_EQ(sent.size(), 3u);
  server.on_answer(sent[2], {true, "late", ""});
  EXPECT_EQ(heard.back(), "late");
}

TEST_F(Rendezvous, WhatNobodyWaitsForAnyLongerIsDropped) {
  is_root = false;
  server.enter();
  RendezvousRequest request = asks(RendezvousOp::get, "a");
  request.wait_ms = 100;
  server.ask(request, into(answers));
  clock.sleep(200ms);
  server.ask(asks(RendezvousOp::get, "b"), into(answers));
  EXPECT_EQ(server.waiting_count(), 1u);
  ASSERT_EQ(answers.size(), 1u) << "so that its trainer does not count as one that waits";
  EXPECT_NE(answers[0].find(kWaitIsOver), std::string::npos) << answers[0];
  server.ask(request, into(answers));
  clock.sleep(200ms);
  server.tick();
  EXPECT_EQ(server.waiting_count(), 1u);
  EXPECT_EQ(answers.size(), 2u);
}

TEST_F(Rendezvous, AnEarlyRequestIsTakenUpWhenItsGenerationIsEntered) {
  server.enter();
  bool alive = true;
  const auto asker = [&] { return RendezvousServer::Asker{[&alive] { return alive; }, into(answers)}; };
  server.on_peer_request(Generation(2), asks(RendezvousOp::set, "a", "early"), asker());
  EXPECT_EQ(server.waiting_count(), 0u);
  generation = Generation(2);
  server.on_peer_request(Generation(1), asks(RendezvousOp::set, "a", "late"), asker());  // over
  EXPECT_TRUE(answers.empty());
  server.enter();
  ASSERT_EQ(answers.size(), 1u);
  server.on_peer_request(Generation(2), asks(RendezvousOp::get, "a"), asker());
  EXPECT_EQ(answers.back(), "early");
  server.on_peer_request(Generation(3), asks(RendezvousOp::set, "b", "gone"), asker());
  alive = false;  // it will ask again over its next link
  generation = Generation(3);
  server.enter();
  EXPECT_EQ(answers.size(), 2u);
  alive = true;
  server.on_peer_request(Generation(4), asks(RendezvousOp::try_get, "b"), asker());
  EXPECT_EQ(answers.size(), 2u);
}

}  // namespace
}  // namespace pawl::job
