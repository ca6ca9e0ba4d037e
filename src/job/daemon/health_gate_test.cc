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

// Its first call does not return before the test lets it.
class StuckFiles final : public Files {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    ++calls;
    while (stuck) std::this_thread::sleep_for(1ms);
    return real_files().open(path, options);
  }
  Status rename(const std::string& from, const std::string& to) override { return real_files().rename(from, to); }
  Status remove(const std::string& path) override {
    const Status removed = real_files().remove(path);
    ended = true;
    return removed;
  }
  Result<std::vector<std::string>> list(const std::string& directory) override { return real_files().list(directory); }
  Status sync_directory(const std::string& directory) override { return real_files().sync_directory(directory); }
  bool exists(const std::string& path) override { return real_files().exists(path); }

  std::atomic<bool> stuck = true;
  std::atomic<bool> ended = false;
  std::atomic<int> calls = 0;
};

TEST_F(Gate, ADiskThatDoesNotAnswerIsSeenAndNotAskedTwice) {
  StuckFiles files;
  const Environment& real = real_environment();
  const Environment environment{real.clock, real.tasks, real.network, files, real.processes, real.memory};
  TestNode spare(2, 2, environment);
  spare.context.post = node.context.post;
  HealthGate with_stuck_disk{spare.context,
                             events,
                             directory.path(),
                             token,
                             {.probe = nullptr, .on_changed = [this] { ++changes; }, .disk_within = 20ms}};
  with_stuck_disk.begin();
  looked();
  EXPECT_NE(with_stuck_disk.why_not().find("run directory: the disk did not answer"), std::string::npos)
      << with_stuck_disk.why_not();
  spare.pass(kHealthAgain);
  looked();
  EXPECT_FALSE(with_stuck_disk.healthy());
  EXPECT_EQ(files.calls, 1);
  files.stuck = false;
  while (!files.ended) std::this_thread::sleep_for(1ms);
  for (int tries = 0; tries < 1000 && !with_stuck_disk.healthy(); ++tries) {
    spare.pass(kHealthAgain);
    looked();
  }
  EXPECT_TRUE(with_stuck_disk.healthy());
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
