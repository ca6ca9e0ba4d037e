#include "job/daemon/health_gate.h"

#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "env/temporary_directory.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"
#include "job/transport/messages.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Gate : public testing::Test {
 protected:
  Gate() : node(2, 2) {
    node.context.post = [this](std::function<void()> task) {
      std::lock_guard lock(mutex);
      posted.push_back(std::move(task));
    };
  }
  // What the look has found, on the loop.
  void looked() {
    const Deadline deadline = Deadline::in(30s);
    for (std::size_t before = changes + again; changes + again == before && !deadline.passed();) {
      std::vector<std::function<void()>> now;
      {
        std::lock_guard lock(mutex);
        now.swap(posted);
      }
      for (const auto& task : now) {
        task();
        ++again;
      }
      std::this_thread::sleep_for(1ms);
    }
  }

  std::mutex mutex;
  std::vector<std::function<void()>> posted;
  TestNode node;
  TemporaryDirectory directory{"/tmp"};
  Events events{node.context};
  std::string token = "token";
  std::size_t changes = 0;
  std::size_t again = 0;
  Status probed;
  HealthGate gate{node.context,
                  events,
                  directory.path(),
                  token,
                  {.probe = [this] { return probed; }, .on_changed = [this] { ++changes; }}};
};

TEST_F(Gate, ANodeWithoutSeatsIsUnhealthyUntilItHasBeenLookedAt) {
  EXPECT_FALSE(gate.healthy());
  gate.begin();
  looked();
  EXPECT_EQ(gate.why_not(), "");
  EXPECT_TRUE(gate.healthy());
  EXPECT_EQ(changes, 1u);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST_F(Gate, AnUnfitNodeIsLookedAtAgain) {
  probed = Error{Code::io, "device 3 is lost"};
  gate.begin();
  looked();
  EXPECT_NE(gate.why_not().find("device 3 is lost"), std::string::npos);
  node.pass(kHealthAgain);
  looked();
  EXPECT_EQ(changes, 1u) << "nothing is new";
  probed = {};
  node.pass(kHealthAgain);
  looked();
  EXPECT_TRUE(gate.healthy());
  EXPECT_EQ(changes, 2u);
}

TEST_F(Gate, AFullDiskIsSeen) {
  std::filesystem::remove_all(directory.path());
  gate.begin();
  looked();
  EXPECT_NE(gate.why_not().find("run directory"), std::string::npos) << gate.why_not();
  std::filesystem::create_directory(directory.path());
}

TEST_F(Gate, MembersThatDoNotAnswerAreSeen) {
  for (Member& member : node.state.seats) member.address = "127.0.0.1:1";
  node.run_in(JobPhase::running);
  gate.begin();
  looked();
  EXPECT_NE(gate.why_not().find("can't reach the members"), std::string::npos) << gate.why_not();
}

TEST_F(Gate, APawldThatReturnsToItsSeatsIsLetThrough) {
  probed = Error{Code::io, "device 3 is lost"};
  TestNode member(2, 0);
  member.run_in(JobPhase::running);
  std::size_t told = 0;
  HealthGate of_member{
      member.context, events, "", token, {.probe = [this] { return probed; }, .on_changed = [&told] { ++told; }}};
  of_member.begin();
  EXPECT_TRUE(of_member.healthy());
  EXPECT_EQ(told, 1u);
}

}  // namespace
}  // namespace pawl::job
