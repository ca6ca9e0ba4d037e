// One pawld with a control in memory: what it does with what the control says, and when it does not start.
#include "job/daemon/pawld.h"

#include <gtest/gtest.h>

#include "job/daemon/test_pawld.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

TEST_F(OnePawld, JoinsWithTheJobsToken) {
  start();
  EXPECT_EQ(token_used, "secret");
  EXPECT_EQ(parse_node_record(registered())->life, (NodeLife{NodeId(0), Incarnation(5)}));
}

// With another token than theirs it would only make trouble for its neighbours.
TEST_F(OnePawld, DoesNotStartWithoutTheJobsToken) {
  make();
  const Status started = pawld->start();
  ASSERT_FALSE(started.has_value());
  EXPECT_NE(started.error().what.find("token"), std::string::npos) << started.error().what;
}

TEST_F(OnePawld, AJobWithoutADirectoryHasNoToken) {
  options.run_dir.clear();
  make();
  EXPECT_TRUE(pawld->start().has_value());
  EXPECT_EQ(token_used, "");
}

TEST_F(OnePawld, AResyncDuringAListingIsFollowedByAnother) {
  options.node = 99;  // of a large job, in which it watches no more than the job's keys
  spec.node_count = 100;
  start();
  std::atomic<int> under_way = 0;
  std::atomic<bool> may_go_on = false;
  control.before_list = [&] {
    ++under_way;
    while (!may_go_on) std::this_thread::sleep_for(1ms);
  };
  const int lists = control.lists();
  control.resync();
  ASSERT_TRUE(until([&] { return under_way == 1; }));
  control.resync();  // what is lost now may be missing in the listing that is under way
  control.resync();
  go_on_for(50ms);
  EXPECT_EQ(under_way, 1);
  may_go_on = true;
  EXPECT_TRUE(until([&] { return control.lists() == lists + 2; }));
  go_on_for(50ms);
  EXPECT_EQ(control.lists(), lists + 2);
}

// A put of long ago that an etcd member carries out late, or one under a lease that has ended meanwhile.
TEST_F(OnePawld, ARegistrationThatIsNotItsOwnIsWrittenAgainButNotAllTheTime) {
  start();
  const std::string own = registered();
  const Duration quarter = derive_deadlines(std::chrono::milliseconds(spec.deadline_ms)).lease / 4;
  NodeRecord old = *parse_node_record(own);
  old.life.incarnation = Incarnation(4);
  const auto spoil = [&](int i) {
    if (i % 2 == 0)
      control.put("/pawl/test:nodes/0", to_json(old));
    else
      control.erase("/pawl/test:nodes/0");
  };
  for (int i = 0; i < 3; ++i) {
    clock.skip(quarter);
    spoil(i);
    EXPECT_TRUE(until([&] { return registered() == own; })) << i;
  }
  spoil(0);
  go_on_for(50ms);
  EXPECT_NE(registered(), own);  // the last time was just now
  clock.skip(quarter);
  EXPECT_TRUE(until([&] { return registered() == own; }));
  clock.skip(quarter);
  old.life.incarnation = Incarnation(6);  // a later life of this node
  spoil(0);
  go_on_for(50ms);
  EXPECT_NE(registered(), own);
}

// Nobody tells it, as it follows no registrations: it reads its own key after each put, and then ever more seldom.
TEST_F(OnePawld, ANodeOfALargeJobLooksWhetherItsOwnRegistrationStands) {
  options.node = 99;  // others form the job
  spec.node_count = 100;
  start();
  const std::string key = "/pawl/test:nodes/99";
  const std::string own = registered();
  const Duration lease = derive_deadlines(std::chrono::milliseconds(spec.deadline_ms)).lease;
  for (int i = 0; i < 2; ++i) {
    control.erase(key);
    go_on_for(20ms);
    EXPECT_EQ(registered(), "") << "nobody has told it";
    clock.skip(lease / 4);
    EXPECT_TRUE(until([&] { return registered() == own; })) << i;
  }
  const auto pass = [&](int leases) {  // by steps, or it would fence itself
    for (int i = 0; i < 4 * leases; ++i) {
      clock.skip(lease / 4);
      go_on_for(2ms);
    }
  };
  pass(16);  // each look is twice as late as the one before
  const int gets = control.gets(key);
  EXPECT_LE(gets, 12);
  pass(32);
  EXPECT_GT(control.gets(key), gets) << "and it goes on for ever";
  EXPECT_LE(control.gets(key), gets + 3);
  EXPECT_EQ(control.watchers(key), 0u);
}

// Of a large job a member knows of the others what the state says, and where the lifelines of its neighbours end.
TEST_F(OnePawld, AMemberOfALargeJobReadsTheRegistrationsOfItsNeighboursAlone) {
  options.follow_limits = {0, 0};
  options.node = 1;
  spec.node_count = 3;
  for (const std::uint32_t node : {0u, 2u, 3u}) {
    NodeRecord record;
    record.life = {NodeId(node), Incarnation(5)};
    control.put(text("/pawl/test:nodes/", node), to_json(record));
  }
  JobState state = state_of_three();
  control.put("/pawl/test/state", to_json(state));
  const auto node_lists = std::make_shared<std::atomic<int>>(0);  // pawld may list once more when the test has ended
  control.on_list = [node_lists](std::string_view prefix) { *node_lists += prefix == "/pawl/test:nodes/" ? 1 : 0; };
  start();
  go_on_for(100ms);
  clock.skip(derive_deadlines(std::chrono::milliseconds(spec.deadline_ms)).silence /
             2);  // each reads at another moment
  EXPECT_TRUE(
      until([&] { return control.gets("/pawl/test:nodes/0") == 1 && control.gets("/pawl/test:nodes/2") == 1; }));
  go_on_for(100ms);
  EXPECT_EQ(control.gets("/pawl/test:nodes/0"), 1);
  EXPECT_EQ(control.gets("/pawl/test:nodes/3"), 0);
  EXPECT_EQ(*node_lists, 0);
  EXPECT_EQ(control.watchers("/pawl/test:nodes/2"), 0u);
  state.generation = Generation(3);
  state.phase = JobPhase::quiescing;
  state.leader = {NodeId(1), Incarnation(5)};
  control.put("/pawl/test/state", to_json(state));
  EXPECT_TRUE(until([&] { return control.watchers("/pawl/test:nodes/2") == 1; })) << "who leads must know all";
  EXPECT_EQ(*node_lists, 1);
}

TEST_F(OnePawld, ReadsTheKeysAgainWhereANeighbourIsAheadOfItsWatch) {
  JobState state;
  state.generation = Generation(2);
  state.phase = JobPhase::quiescing;
  state.leader = {NodeId(1), Incarnation(5)};
  state.seats = {{Seat(0), {NodeId(0), Incarnation(5)}, options.address, 0},
                 {Seat(1), {NodeId(1), Incarnation(5)}, "127.0.0.1:101", 0}};
  control.put("/pawl/test/state", to_json(state));
  // Of what all watch: registrations are listed whenever their turn is.
  const auto listed = std::make_shared<std::atomic<int>>(0);
  control.on_list = [listed](std::string_view prefix) { *listed += prefix == "/pawl/test/" ? 1 : 0; };
  start();
  ASSERT_TRUE(until([this] { return control.count("/pawl/test:reports/2/inventory/") == 1; }));
  PeerEnd neighbour(std::move(*connect_tcp(peers, Deadline::in(kTestPatience))));
  Hello hello;
  hello.job = "test";
  hello.token = "secret";
  hello.node = NodeId(1);
  hello.incarnation = Incarnation(5);
  neighbour.say(hello);
  neighbour.say(BeatMessage{Generation(2)});
  const int lists = *listed;
  EXPECT_GT(lists, 0);
  go_on_for(20ms);
  clock.skip(derive_deadlines(std::chrono::milliseconds(spec.deadline_ms)).silence / 3);
  go_on_for(20ms);
  EXPECT_EQ(*listed, lists);

  control.hold_watches();
  state.generation = Generation(3);
  control.put("/pawl/test/state", to_json(state));
  neighbour.say(BeatMessage{Generation(3)});
  go_on_for(20ms);
  EXPECT_EQ(*listed, lists);  // its own watch may just be a little later
  clock.skip(derive_deadlines(std::chrono::milliseconds(spec.deadline_ms)).silence / 3);
  EXPECT_TRUE(until([this] { return control.count("/pawl/test:reports/3/inventory/") == 1; }));
  EXPECT_EQ(*listed, lists + 1);
}

}  // namespace
}  // namespace pawl::job
