#include "job/daemon/report_sender.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/text.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// Node 2 of six in groups of three: 0 and then 1 collect for it.
class Sender : public testing::Test {
 protected:
  Sender() {
    node.context.mirror.reports.set_group_size(3);
    node.state.generation = Generation(2);
    for (std::uint32_t each = 0; each < 2; ++each)
      node.state.seats[each].address = text(*local_address(listeners[each].get()));
    node.learn(JobPhase::quiescing);
  }
  ~Sender() override {
    loop.run([this] { sender.reset(); });
  }
  void report(ReportKind kind = ReportKind::inventory) {
    loop.run([&] {
      sender->report(kind, kind == ReportKind::ready ? ready_record(test_life(2)) : "record",
                     [this](const Status& status) { told.push_back(status.has_value()); });
    });
  }
  void pass(Duration time) {
    loop.run([&] { node.pass(time); });
  }
  template <class Condition>
  bool soon(Condition condition) {
    return eventually([&] { return loop.run([&] { return condition(); }); });
  }
  // Who connects next is this node's sender.
  PeerEnd accept(std::uint32_t collector) {
    auto accepted = accept_connection(listeners[collector].get(), Deadline::in(kTestPatience));
    EXPECT_TRUE(accepted.has_value());
    PeerEnd peer(std::move(*accepted));
    const Hello hello = peer.next<Hello>();
    EXPECT_EQ(hello.purpose, Purpose::report);
    EXPECT_EQ(hello.expected, Incarnation(1));
    return peer;
  }
  PeerEnd welcome(std::uint32_t collector) {
    PeerEnd peer = accept(collector);
    peer.say(WelcomeMessage{NodeId(collector), Incarnation(1)});
    return peer;
  }
  std::uint64_t take(PeerEnd& peer) {  // its number
    const auto frame = receive_frame(peer.fd(), Deadline::in(kTestPatience));
    EXPECT_TRUE(frame && is<CollectMessage>(*frame));
    if (!frame) return 0;
    const auto message = message_in<CollectMessage>(*frame);
    last = message ? message->report : "";
    return frame->id;
  }
  void answer(const PeerEnd& peer, const Frame& frame) {
    EXPECT_TRUE(send_frame(peer.fd(), frame, Deadline::in(kTestPatience)).has_value());
  }
  [[nodiscard]] std::size_t puts() {
    return loop.run([this] { return node.control.puts.size(); });
  }

  std::vector<Fd> listeners = [] {
    std::vector<Fd> made;
    for (int i = 0; i < 2; ++i) made.push_back(*listen_tcp({"127.0.0.1", 0}));
    return made;
  }();
  TestNode node{6, 2};
  std::vector<bool> told;
  std::string last;
  RunningLoop loop{real_environment()};
  std::unique_ptr<ReportSender> sender = loop.run([this] {
    return std::make_unique<ReportSender>(
        loop.loop(), node.context,
        ReportSender::Handlers{.hello =
                                   [](Purpose purpose) {
                                     Hello hello;
                                     hello.purpose = purpose;
                                     return hello;
                                   },
                               .collect_here = [](NodeReport, std::function<void(bool)>) {}});
  });
};

TEST_F(Sender, SendsToItsCollectorAndPutsNothingWhereThatTakesIt) {
  report();
  PeerEnd collector = welcome(0);
  const std::uint64_t number = take(collector);
  EXPECT_TRUE(last.starts_with("report 1 inventory 2.1 generation 2\nrecord\nsum ")) << last;
  answer(collector, frame_of(CollectedMessage{}, number));
  EXPECT_TRUE(soon([&] { return told == std::vector{true}; }));
  loop.run([&] { node.learn(JobPhase::restoring); });
  pass(5s);
  EXPECT_EQ(puts(), 0u);
  report(ReportKind::ready);  // over the same connection
  answer(collector, frame_of(CollectedMessage{}, take(collector)));
  EXPECT_TRUE(soon([&] { return told.size() == 2; }));
  EXPECT_EQ(puts(), 0u);
}

TEST_F(Sender, WhoIsNotAcknowledgedSoonPutsItsReportItself) {
  report();
  PeerEnd collector = welcome(0);
  (void)take(collector);
  pass(249ms);
  EXPECT_EQ(puts(), 0u);
  pass(1ms);
  ASSERT_EQ(puts(), 1u);
  EXPECT_EQ(node.control.puts[0].key, "/pawl/test:reports/2/inventory/2");
  EXPECT_EQ(node.control.puts[0].value, "record");
  loop.run([&] { node.control.puts[0].then({}); });
  EXPECT_EQ(told, std::vector{true});
}

// Its put may be lost, or it lies: as long as nobody goes on, nobody may have heard of it.
TEST_F(Sender, WhoWasAcknowledgedAndSeesNothingComeOfItPutsItsReportToo) {
  report();
  PeerEnd collector = welcome(0);
  answer(collector, frame_of(CollectedMessage{}, take(collector)));
  EXPECT_TRUE(soon([&] { return told.size() == 1; }));
  pass(1333ms - 1ms);  // it is the third of six
  EXPECT_EQ(puts(), 0u);
  pass(2ms);
  ASSERT_EQ(puts(), 1u);
  loop.run([&] { node.control.puts[0].then(Error{Code::unreachable, "away"}); });
  pass(250ms);
  EXPECT_EQ(puts(), 2u);
  EXPECT_EQ(told.size(), 1u);
}

TEST_F(Sender, TheSecondCollectorTakesWhatTheFirstDidNot) {
  report();
  {
    PeerEnd first = welcome(0);
    (void)take(first);
  }  // it dies
  PeerEnd second = welcome(1);
  answer(second, frame_of(CollectedMessage{}, take(second)));
  EXPECT_TRUE(soon([&] { return told.size() == 1; }));
  EXPECT_EQ(puts(), 0u);
}

// Of two reports that wait for its welcome the first, which nobody wants any more, finds the line dead.
TEST_F(Sender, ACollectorThatDiesWithItsWelcomeIsLeftForTheSecond) {
  report();
  PeerEnd first = accept(0);
  loop.run([&] {
    node.state.generation = Generation(3);
    node.learn(JobPhase::quiescing);
    sender->on_state();
  });
  report();
  loop.run([&] {  // the loop reads nothing before all of it is there
    first.say(WelcomeMessage{NodeId(0), Incarnation(1)});
    const linger at_once{1, 0};
    EXPECT_EQ(::setsockopt(first.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    PeerEnd gone = std::move(first);
  });
  PeerEnd second = welcome(1);
  answer(second, frame_of(CollectedMessage{}, take(second)));
  EXPECT_TRUE(last.starts_with("report 1 inventory 2.1 generation 3\n")) << last;
  EXPECT_TRUE(soon([&] { return told == std::vector{true}; }));
  EXPECT_EQ(puts(), 0u);
}

TEST_F(Sender, PutsItsReportItselfWhereNobodyCanCollectIt) {
  listeners.clear();  // both refuse
  report();
  EXPECT_TRUE(soon([&] { return node.control.puts.size() == 1; }));
}

TEST_F(Sender, WhatACollectorRefusesItPutsAtOnce) {
  report();
  PeerEnd collector = welcome(0);
  answer(collector, frame_of(PeerRefusedMessage{PeerRefusal::stale, ""}, take(collector)));
  EXPECT_TRUE(soon([&] { return node.control.puts.size() == 1; }));
}

TEST_F(Sender, APutThatFailsIsToldAndTheNextReportIsPutAtOnce) {
  loop.run([&] {
    node.context.mirror.reports.set_group_size(64);  // one group: as ever
    (void)node.learn();
  });
  report();
  ASSERT_EQ(puts(), 1u);
  report();  // it is under way
  ASSERT_EQ(puts(), 1u);
  loop.run([&] { node.control.puts[0].then(Error{Code::unreachable, "away"}); });
  EXPECT_EQ(told, std::vector{false});
  report();
  ASSERT_EQ(puts(), 2u);
  loop.run([&] { node.control.puts[1].then({}); });
  EXPECT_EQ(told, (std::vector{false, true}));
}

TEST_F(Sender, NothingOfAGenerationThatIsOverIsPut) {
  report();
  PeerEnd collector = welcome(0);
  (void)take(collector);
  loop.run([&] {
    node.state.generation = Generation(3);
    node.learn(JobPhase::quiescing);
    sender->on_state();
    node.pass(3s);
  });
  EXPECT_EQ(puts(), 0u);
}

}  // namespace
}  // namespace pawl::job
