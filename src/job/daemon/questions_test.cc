#include "job/daemon/questions.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using Json = nlohmann::json;

class Asked : public testing::Test {
 protected:
  Json ask(const std::string& question, bool local = true) { return Json::parse(questions.answer(question, local)); }
  void allow_holds() {
    JobSpec spec = node.context.mirror.spec();
    spec.test_hooks = true;
    node.context.mirror.set_spec(spec);
  }

  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Memory memory{real_shared_memory(), {.hold = [](const std::string&, int) {}, .drop = [](const std::string&) {}}};
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  TestTrainer trainer{*loop, trainers.places()[0]};
  std::vector<std::string> stopped_by;
  std::optional<Duration> lease_age = Duration(1'000'000);
  Questions questions{{node.context, trainers, memory, node.holds},
                      "token",
                      {.progress =
                           [] {
                             return Progress{Step(3), 0};
                           },
                       .lease_age = [this] { return lease_age; },
                       .bytes_sent = [] { return std::uint64_t{5}; },
                       .bytes_received = [] { return std::uint64_t{6}; },
                       .bytes_spared = [] { return std::uint64_t{7}; },
                       .stopped_by = [this] { return stopped_by; },
                       .neighbours =
                           [] {
                             return std::vector<Neighbours::View>{{NodeId(1), "up", Duration(2'000'000), true}};
                           },
                       .loop_turns =
                           [] {
                             return LoopTurns{3, 2, Duration(34'000'000), "Generations::follow()"};
                           }}};
};

TEST_F(Asked, OthersMustShowTheToken) {
  EXPECT_EQ(ask(R"({"ask":"status"})", false)["error"], "wrong token");
  EXPECT_EQ(ask(R"({"ask":"status","token":"token"})", false)["node"], 0);
  EXPECT_TRUE(ask("no JSON").contains("error"));
  EXPECT_TRUE(ask(R"({"ask":"what"})").contains("error"));
}

TEST_F(Asked, StatusSaysWhyProtectionHasStopped) {
  EXPECT_TRUE(ask(R"({"ask":"status"})")["exposed"].empty());
  stopped_by = {"seat 0: nothing after step 3 is protected: no room"};
  EXPECT_EQ(ask(R"({"ask":"status"})")["exposed"], Json(stopped_by));
}

TEST_F(Asked, StatusSaysWhatPagesAnArenaIsOf) {
  const auto made = memory.arena_for(test_arena(ArenaKind::replica, Seat(1)));
  ASSERT_TRUE(made);
  const Json status = ask(R"({"ask":"status"})");
  ASSERT_EQ(status["arenas"].size(), 1U);
  EXPECT_EQ(status["arenas"][0],
            Json({{"name", "replica.1"}, {"bytes", memory.bytes()}, {"pages", name_of(pages_of((*made)->fd.get()))}}));
}

TEST_F(Asked, StatusSaysTheLimitOfWhatIsSent) {
  EXPECT_FALSE(ask(R"({"ask":"status"})").contains("replica_bytes_a_second"));
  JobSpec spec = node.context.mirror.spec();
  spec.replica_bytes_a_second = 5;
  node.context.mirror.set_spec(spec);
  EXPECT_EQ(ask(R"({"ask":"status"})")["replica_bytes_a_second"], 5);
}

TEST_F(Asked, StatusBeforeThereIsAJob) {
  const Json status = ask(R"({"ask":"status"})");
  EXPECT_EQ(status["role"], "joining");
  EXPECT_EQ(status["phase"], "forming");
  EXPECT_EQ(status["lease_age_ms"], 1.0);
  lease_age.reset();  // it was never registered
  EXPECT_TRUE(ask(R"({"ask":"status"})")["lease_age_ms"].is_null());
  EXPECT_EQ(status["wire_bytes"]["received"], 6);
  EXPECT_EQ(status["neighbours"][0]["heard_ms"], 2.0);
  EXPECT_EQ(status["neighbours"][0]["lifeline"], true);
  EXPECT_EQ(status["loop"]["long_turns"], 3);
  EXPECT_EQ(status["loop"]["crowded_turns"], 2);
  EXPECT_EQ(status["loop"]["longest_ms"], 34.0);
  EXPECT_EQ(status["loop"]["longest_in"], "Generations::follow()");
  EXPECT_EQ(status["trainers"][0]["state"], "restoring");
}

TEST_F(Asked, StatusOfAMemberNamesWhatIsExposed) {
  node.run_in(JobPhase::running);
  trainers.places()[0].seat = Seat(0);
  trainers.places()[0].seated = Generation(1);
  trainers.places()[0].shared.page->step.store(12);
  const Json status = ask(R"({"ask":"status"})");
  EXPECT_EQ(status["role"], "member");
  EXPECT_EQ(status["committed"], 3);
  EXPECT_EQ(status["trainers"][0]["state"], "running");
  EXPECT_EQ(status["trainers"][0]["step"], 12);
  EXPECT_EQ(status["seats"][0]["holders"], Json::array({1}));
  ASSERT_EQ(status["exposed"].size(), 1u);
  EXPECT_EQ(status["exposed"][0], "seat 0: nothing is protected yet, its layout is not sealed");
}

TEST_F(Asked, InventoryIsTheMemorys) {
  const auto inventory = parse_inventory(ask(R"({"ask":"inventory"})")["inventory"].get<std::string>());
  ASSERT_TRUE(inventory);
  EXPECT_EQ(inventory->committed, Step(3));
}

TEST_F(Asked, HoldsNeedTestHooks) {
  EXPECT_TRUE(ask(R"({"ask":"hold","phase":"decide"})").contains("error"));
  allow_holds();
  EXPECT_EQ(ask(R"({"ask":"hold","phase":"decide"})")["ok"], true);
  EXPECT_TRUE(node.holds.is_held_at("decide"));
  EXPECT_EQ(ask(R"({"ask":"status"})")["holds"][0]["held"], true);
  EXPECT_TRUE(ask(R"({"ask":"hold","phase":"nowhere"})").contains("error"));
  EXPECT_TRUE(ask(R"({"ask":"hold","phase":"update","local_index":4})").contains("error"));
  EXPECT_EQ(ask(R"({"ask":"hold","phase":"update","local_index":0,"step":7})")["ok"], true);
  EXPECT_EQ(trainers.places()[0].shared.page->hold_phase.load(), 4u);
  EXPECT_EQ(trainers.places()[0].shared.page->hold_step.load(), 7u);
  EXPECT_EQ(ask(R"({"ask":"release"})")["ok"], true);
  EXPECT_FALSE(node.holds.is_held_at("decide"));
  EXPECT_EQ(trainers.places()[0].shared.page->hold_phase.load(), 0u);
  EXPECT_EQ(node.drives, 1);
}

}  // namespace
}  // namespace pawl::job
