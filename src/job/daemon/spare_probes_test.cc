#include "job/daemon/spare_probes.h"

#include <gtest/gtest.h>

#include <thread>

#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

class Probes : public testing::Test {
 protected:
  Probes() {
    node.context.post = [this](std::function<void()> task) {
      std::lock_guard lock(mutex);
      posted.push_back(std::move(task));
    };
    node.context.deadlines = derive_deadlines(std::chrono::seconds(100));  // long: a slow machine must not look silent
  }
  NodeRecord spare(std::uint32_t id, const Fd& listener) const {
    NodeRecord record;
    record.life = test_life(id);
    record.address = text(*local_address(listener.get()));
    return record;
  }
  // Whose probes wait for `swallowing` need not wait for their deadlines.
  void end_swallowing(int probes_left) {
    swallowing.reset();
    take(probes_left);
  }
  // Until so many answers have come.
  void take(int answers) {
    const int until = told + answers;
    EXPECT_TRUE(eventually([&] {
      std::vector<std::function<void()>> tasks;
      {
        std::lock_guard lock(mutex);
        tasks.swap(posted);
      }
      for (const auto& task : tasks) task();
      return told >= until;
    }));
  }
  // The next who connects gets this answer.
  template <class Message>
  std::thread answer(const Fd& listener, Message message, Hello* hello) {
    return std::thread([&listener, message, hello] {
      auto accepted = accept_connection(listener.get(), Deadline::in(kTestPatience));
      ASSERT_TRUE(accepted);
      PeerEnd peer(std::move(*accepted));
      *hello = peer.next<Hello>();
      peer.say(message);
      (void)peer.is_closed();
    });
  }

  TestNode node{3};
  std::mutex mutex;
  std::vector<std::function<void()>> posted;
  int told = 0;
  SpareProbes probes{node.context,
                     [this](Purpose purpose) {
                       Hello hello;
                       hello.purpose = purpose;
                       hello.generation = node.context.mirror.generation();
                       return hello;
                     },
                     [this] { ++told; }};
  const Fd answering = *listen_tcp({"127.0.0.1", 0});
  Fd swallowing = *listen_tcp({"127.0.0.1", 0});  // connects, and says nothing, as where all that comes is lost
};

TEST_F(Probes, WhoAnswersAtAllIsNotSilent) {
  node.learn(JobPhase::quiescing);
  Fd refusing = *listen_tcp({"127.0.0.1", 0});
  const std::vector<NodeRecord> spares{spare(3, answering), spare(5, refusing)};
  refusing.reset();
  Hello hello;
  std::thread peer = answer(answering, PeerRefusedMessage{PeerRefusal::later, "not yet in that generation"}, &hello);
  SpareProbes::Answers answers = probes.ask(spares, 1);
  EXPECT_EQ(answers.pending.size(), 2u);
  EXPECT_TRUE(answers.silent.empty());
  take(2);
  peer.join();
  EXPECT_EQ(hello.purpose, Purpose::fetch);
  EXPECT_EQ(hello.expected, Incarnation(1));
  answers = probes.ask(spares, 1);
  EXPECT_TRUE(answers.pending.empty());
  EXPECT_EQ(answers.silent, std::vector{test_life(5)});
}

TEST_F(Probes, WhoIsLateIsSilentOnceAnotherHasAnswered) {
  node.learn(JobPhase::quiescing);
  const std::vector<NodeRecord> spares{spare(3, answering), spare(4, swallowing)};
  Hello hello;
  std::thread peer = answer(answering, WelcomeMessage{NodeId(3), Incarnation(1)}, &hello);
  (void)probes.ask(spares, 1);
  take(1);
  peer.join();
  EXPECT_EQ(probes.ask(spares, 1).pending, std::vector{test_life(4)}) << "it has had no time";
  const int before = told;
  node.pass(node.context.deadlines.communication_grace);
  EXPECT_EQ(told, before + 2) << "who waits for it looks again, once for each that was asked";
  EXPECT_EQ(probes.ask(spares, 1).silent, std::vector{test_life(4)});
  end_swallowing(1);
}

// As where all machines are so busy that nobody answers soon: the first to be passed by would be one that is sound.
TEST_F(Probes, WhileNobodyHasAnsweredAllHaveTime) {
  node.learn(JobPhase::quiescing);
  const Fd busy = *listen_tcp({"127.0.0.1", 0});
  const std::vector<NodeRecord> spares{spare(3, busy), spare(4, swallowing)};
  (void)probes.ask(spares, 1);
  node.clock.sleep(2 * node.context.deadlines.communication_grace);
  EXPECT_EQ(probes.ask(spares, 1).pending.size(), 2u);
  Hello hello;
  answer(busy, WelcomeMessage{NodeId(3), Incarnation(1)}, &hello).join();
  take(1);
  EXPECT_EQ(probes.ask(spares, 1).silent, std::vector{test_life(4)});
  end_swallowing(1);
}

TEST_F(Probes, WhoSaysNothingIsSilent) {
  node.context.deadlines = derive_deadlines(std::chrono::seconds(1));
  node.learn(JobPhase::quiescing);
  const std::vector<NodeRecord> spares{spare(4, swallowing)};
  EXPECT_EQ(probes.ask(spares, 1).pending.size(), 1u);
  take(1);
  EXPECT_EQ(probes.ask(spares, 1).silent, std::vector{test_life(4)});
}

TEST_F(Probes, WhoseProbeDoesNotEndIsSilent) {
  node.learn(JobPhase::quiescing);
  const std::vector<NodeRecord> alone{spare(4, swallowing)};
  EXPECT_EQ(probes.ask(alone, 1).pending.size(), 1u);
  node.clock.sleep(node.context.deadlines.communication_grace);  // and nothing was posted
  EXPECT_EQ(probes.ask(alone, 1).silent, std::vector{test_life(4)});
  const std::vector<NodeRecord> two{spare(4, swallowing), spare(5, swallowing)};
  EXPECT_EQ(probes.ask(two, 1).pending.size(), 2u) << "now there is another";
  node.clock.sleep(node.context.deadlines.silence);
  EXPECT_EQ(probes.ask(two, 1).silent.size(), 2u);
  end_swallowing(2);
}

TEST_F(Probes, WhoMayBeWantedAsWellHasTime) {
  node.learn(JobPhase::quiescing);
  const std::vector<NodeRecord> spares{spare(3, answering), spare(4, swallowing), spare(5, swallowing)};
  Hello hello;
  std::thread peer = answer(answering, WelcomeMessage{NodeId(3), Incarnation(1)}, &hello);
  (void)probes.ask(spares, 2);
  take(1);
  peer.join();
  node.clock.sleep(node.context.deadlines.communication_grace);
  EXPECT_EQ(probes.ask(spares, 2).pending.size(), 2u) << "one has answered, and two are wanted";
  EXPECT_EQ(probes.ask(spares, {}).pending.size(), 2u) << "as in a drain";
  EXPECT_EQ(probes.ask(std::span(spares).subspan(1), 1).pending.size(), 2u) << "who has gone answers for nobody";
  EXPECT_EQ(probes.ask(spares, 1).silent.size(), 2u);
  end_swallowing(2);
}

TEST_F(Probes, EachRecoveryAsksAnew) {
  node.learn(JobPhase::quiescing);
  const std::vector<NodeRecord> spares{spare(3, answering)};
  for (std::uint64_t generation = 1; generation <= 2; ++generation) {
    node.state.generation = Generation(generation);
    (void)node.learn();
    Hello hello;
    std::thread peer = answer(answering, WelcomeMessage{NodeId(3), Incarnation(1)}, &hello);
    EXPECT_EQ(probes.ask(spares, 1).pending.size(), 1u);
    EXPECT_EQ(probes.ask(spares, 1).pending.size(), 1u);  // and is not asked twice
    take(1);
    peer.join();
    EXPECT_EQ(hello.generation, Generation(generation));
    EXPECT_TRUE(probes.ask(spares, 1).pending.empty());
    EXPECT_TRUE(probes.ask(spares, 1).silent.empty());
  }
}

}  // namespace
}  // namespace pawl::job
