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
      control.put("/pawl/test/nodes/0", to_json(old));
    else
      control.erase("/pawl/test/nodes/0");
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

TEST_F(OnePawld, ReadsTheKeysAgainWhereANeighbourIsAheadOfItsWatch) {
  JobState state;
  state.generation = Generation(2);
  state.phase = JobPhase::quiescing;
  state.leader = {NodeId(1), Incarnation(5)};
  state.seats = {{Seat(0), {NodeId(0), Incarnation(5)}, options.address, 0},
                 {Seat(1), {NodeId(1), Incarnation(5)}, "127.0.0.1:101", 0}};
  control.put("/pawl/test/state", to_json(state));
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
  const int lists = control.lists();
  go_on_for(20ms);
  clock.skip(derive_deadlines(std::chrono::milliseconds(spec.deadline_ms)).silence / 3);
  go_on_for(20ms);
  EXPECT_EQ(control.lists(), lists);

  control.hold_watches();
  state.generation = Generation(3);
  control.put("/pawl/test/state", to_json(state));
  neighbour.say(BeatMessage{Generation(3)});
  go_on_for(20ms);
  EXPECT_EQ(control.lists(), lists);  // its own watch may just be a little later
  clock.skip(derive_deadlines(std::chrono::milliseconds(spec.deadline_ms)).silence / 3);
  EXPECT_TRUE(until([this] { return control.count("/pawl/test:reports/3/inventory/") == 1; }));
  EXPECT_EQ(control.lists(), lists + 1);
}

}  // namespace
}  // namespace pawl::job
