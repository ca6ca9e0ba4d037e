#include "job/daemon/retention.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>

#include "base/text.h"
#include "job/daemon/test_control.h"
#include "job/daemon/test_node.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// A folder of checkpoints in memory.
class FakeFolder : public CheckpointStore {
 public:
  Result<std::unique_ptr<OpenCheckpoint>> begin(const CheckpointOrder&) override {
    return Error{Code::broken, "nothing is to be written"};
  }
  Status write(const std::string&, const SeatPart&, PartProgress&) override {
    return Error{Code::broken, "nothing is to be written"};
  }
  Result<std::unique_ptr<StoredCheckpoint>> open(const std::string& path) override {
    return Error{Code::not_found, path};
  }
  Result<std::vector<checkpoint::ListedCheckpoint>> list(const std::string& folder) override {
    EXPECT_EQ(folder, "/c");
    std::vector<checkpoint::ListedCheckpoint> listed;
    for (const std::uint64_t step : steps) {
      checkpoint::ListedCheckpoint& one = listed.emplace_back();
      one.step = step;
      one.path = text("/c/step-", step);
      one.finished = true;
      one.identity.id = text("id", step);
      for (const std::uint64_t other : steps)
        if (other < step) one.identity.before.push_back({other, text("id", other)});
    }
    if (list_fails.empty()) return listed;
    return Error{Code::io, list_fails};
  }
  Status remove(const checkpoint::ListedCheckpoint& one, const std::string& by) override {
    EXPECT_EQ(one.identity.id, text("id", one.step));
    EXPECT_EQ(by, claim_text("test", "12"));
    if (const auto found = remove_fails.find(one.step); found != remove_fails.end()) return Error{found->second};
    std::erase(steps, one.step);
    return {};
  }
  Status finish_removals(const std::string&, const std::string&) override {
    ++finishes;
    return {};
  }

  std::vector<std::uint64_t> steps;
  std::string list_fails;
  std::map<std::uint64_t, Error> remove_fails;
  int finishes = 0;
};

// What is started runs when the test says so.
class TasksWhenAsked final : public Tasks {
 public:
  std::unique_ptr<Task> start(const std::string&, std::function<void()> body) override {
    class NoTask final : public Task {
     public:
      void join() override {}
    };
    waiting.push_back(std::move(body));
    return std::make_unique<NoTask>();
  }
  std::unique_ptr<Condition> make_condition() override { return real_tasks().make_condition(); }
  std::deque<std::function<void()>> waiting;
};

class RetentionTest : public testing::Test {
 protected:
  explicit RetentionTest(std::uint32_t self = 0)
      : world{real_environment().clock,     tasks,
              real_environment().network,   real_environment().files,
              real_environment().processes, real_environment().memory},
        node(2, self, world) {
    spec.job = "test";
    spec.node_count = 2;
    spec.token_digest = "12";
    spec.checkpoints.path = "/c";
    spec.checkpoints.every_steps = 10;
    spec.checkpoints.keep_last = 2;
    node.context.mirror.set_spec(spec);
    node.run_in(JobPhase::running);
    record.generation = Generation(1);
  }
  void publish(std::uint64_t step) {
    store.steps.push_back(step);
    record.step = record.published = Step(step);
  }
  void drive() {
    retention.drive();
    while (!tasks.waiting.empty()) {
      const auto task = std::move(tasks.waiting.front());
      tasks.waiting.pop_front();
      task();
    }
  }
  // Of events, what they say.
  std::vector<std::string> told() {
    node.pass(kEventDelay);
    MemoryControl server;
    const auto control = server.connect();
    for (auto& work : std::exchange(node.control.told, {})) work(*control);
    std::vector<std::string> values;
    const Listing listing = *control->list(node.context.mirror.keys().events());
    for (const KeyValue& kv : listing.kvs) values.push_back(kv.value);
    return values;
  }

  TasksWhenAsked tasks;
  Environment world;
  TestNode node;
  JobSpec spec;
  FakeFolder store;
  PersistRecord record;
  CheckpointRetention retention{node.context, node.events, &store, [this]() -> const PersistRecord& { return record; }};
};

using Steps = std::vector<std::uint64_t>;

TEST_F(RetentionTest, OlderOnesGoWhenOneIsPublished) {
  for (const std::uint64_t step : {10u, 20u, 30u}) publish(step);
  drive();
  EXPECT_EQ(store.steps, (Steps{20, 30}));
  publish(40);
  drive();
  EXPECT_EQ(store.steps, (Steps{30, 40}));
}

TEST_F(RetentionTest, ThatIsDoneOnceForEach) {
  publish(10);
  for (int i = 0; i < 3; ++i) drive();
  EXPECT_EQ(store.finishes, 1) << "each time what a killed removal left is deleted, too";
  publish(20);
  drive();
  EXPECT_EQ(store.finishes, 2);
}

TEST_F(RetentionTest, NothingIsRemovedUnlessTheJobSaysSo) {
  spec.checkpoints.keep_last = 0;
  node.context.mirror.set_spec(spec);
  for (const std::uint64_t step : {10u, 20u, 30u}) publish(step);
  drive();
  EXPECT_EQ(store.finishes, 0);
  EXPECT_TRUE(retention.may_end());
}

TEST_F(RetentionTest, WhatAJobBeganWithStaysUntilThereIsANewerOne) {
  store.steps = {10, 20, 30};
  drive();
  EXPECT_EQ(store.steps, (Steps{10, 20, 30}));
  EXPECT_EQ(store.finishes, 0);
  publish(40);
  drive();
  EXPECT_EQ(store.steps, (Steps{30, 40}));
}

// 50 was damaged, and the job went back to 30: what the record says is published is not its history.
TEST_F(RetentionTest, AGenerationThatWentBackRemovesNothingBeforeItPublishes) {
  store.steps = {10, 30, 50, 60};
  record.step = record.published = Step(60);
  node.state.generation = Generation(2);
  node.state.resume = Step(30);
  node.run_in(JobPhase::running);
  drive();
  EXPECT_EQ(store.steps, (Steps{10, 30, 50, 60}));
  EXPECT_TRUE(retention.may_end());
  record.generation = Generation(2);
  record.step = record.published = Step(40);
  record.older = {Step(30)};
  store.steps.push_back(40);
  drive();
  EXPECT_EQ(store.steps, (Steps{30, 50, 60, 40}));
}

TEST_F(RetentionTest, AGenerationThatGoesOnFromALaterStepFinishesWhatTheOneBeforeDidNot) {
  for (const std::uint64_t step : {10u, 20u, 30u}) publish(step);
  node.state.generation = Generation(2);
  node.state.resume = Step(37);
  node.run_in(JobPhase::running);
  drive();
  EXPECT_EQ(store.steps, (Steps{20, 30}));
}

TEST_F(RetentionTest, WhatCannotBeRemovedIsToldOnceAndTriedAgain) {
  for (const std::uint64_t step : {10u, 20u, 30u, 40u}) publish(step);
  store.remove_fails = {{10, Error{Code::io, "Permission denied"}}, {20, Error{Code::not_found, "gone"}}};
  drive();
  const auto events = told();
  ASSERT_EQ(events.size(), 1u) << "that somebody else removed one is no event";
  for (const char* words : {"checkpoint_kept", "/c/step-10", "Permission denied"})
    EXPECT_NE(events[0].find(words), std::string::npos) << events[0];
  EXPECT_TRUE(retention.may_end());
  publish(50);
  drive();
  EXPECT_TRUE(told().empty());
  store.remove_fails.clear();
  publish(60);
  drive();
  EXPECT_EQ(store.steps, (Steps{50, 60}));
}

TEST_F(RetentionTest, AFolderThatCannotBeListedIsTold) {
  store.list_fails = "Input/output error";
  publish(10);
  drive();
  const auto events = told();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_NE(events[0].find("Input/output error"), std::string::npos) << events[0];
}

TEST_F(RetentionTest, TheJobsEndWaitsForItButNotForEver) {
  for (const std::uint64_t step : {10u, 20u, 30u}) publish(step);
  EXPECT_FALSE(retention.may_end()) << "it is due";
  retention.drive();
  EXPECT_FALSE(retention.may_end());
  node.clock.sleep(3min);
  EXPECT_TRUE(retention.may_end());
  retention.drive();
  EXPECT_EQ(tasks.waiting.size(), 1u) << "one at a time";
  drive();
  EXPECT_EQ(store.steps, (Steps{20, 30}));
  EXPECT_EQ(node.drives, 1);
}

class RetentionElsewhere : public RetentionTest {
 protected:
  RetentionElsewhere() : RetentionTest(1) {}
};

TEST_F(RetentionElsewhere, OnlyTheRootRemoves) {
  for (const std::uint64_t step : {10u, 20u, 30u}) publish(step);
  drive();
  EXPECT_EQ(store.finishes, 0);
  EXPECT_TRUE(retention.may_end());
}

}  // namespace
}  // namespace pawl::job
