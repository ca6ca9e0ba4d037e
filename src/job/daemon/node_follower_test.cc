// A node that follows who is registered for a while, over a control in memory.
#include "job/daemon/node_follower.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "base/text.h"
#include "job/daemon/test_control.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// Node 3 of a job of four, which runs. As in a large one few follow who is registered.
class Following : public testing::Test {
 protected:
  Following() {
    JobSpec spec;
    spec.node_count = 4;
    context.mirror.set_spec(spec);
    context.deadlines = derive_deadlines(3s);
    state.generation = Generation(2);
    state.leader = test_life(0);
    state.phase = JobPhase::running;
    state.arena_bytes = 1;
    for (std::uint32_t node = 0; node < 4; ++node) state.seats.push_back({Seat(node), test_life(node), "", 0});
    (void)context.mirror.learn(state, ++revision, context.clock->now());
    for (std::uint32_t node = 0; node < 3; ++node) sign_up(node);
    loop.run([this] {
      session = std::make_unique<ControlSession>(loop.loop(), control.connect(), [](Duration, bool) {});
      follower = std::make_unique<NodeFollower>(
          context, loop.loop(), *session, FollowLimits{0, 0},
          NodeFollower::Handlers{.on_change = [this](const JobMirror::Change& change) { changes += change.nodes; },
                                 .on_event =
                                     [this](const WatchEvent& event) {
                                       const bool put = event.kind == WatchEvent::Kind::put;
                                       (void)context.mirror.apply(event.kv.key, put ? &event.kv.value : nullptr,
                                                                  event.revision, context.clock->now());
                                     },
                                 .drive = [this] { ++drives; },
                                 .contacts = [this] { return contacts; }});
    });
  }
  ~Following() override {
    loop.run([this] {
      follower.reset();
      session.reset();
    });
  }
  std::string key(std::uint32_t node) const { return context.mirror.keys().node(NodeId(node)); }
  void sign_up(std::uint32_t node) {
    NodeRecord record;
    record.life = test_life(node);
    record.lifeline = text("there:", node);
    control.put(key(node), to_json(record));
  }
  void lead_in(JobPhase phase, std::uint32_t leader) {
    state.phase = phase;
    state.leader = test_life(leader);
    loop.run([this] { (void)context.mirror.learn(state, ++revision, context.clock->now()); });
  }
  void step() {
    loop.run([this] { follower->take_step(); });
  }
  bool knows() {
    return loop.run([this] { return context.knows_nodes(); });
  }
  bool comes_to_know() {
    return loop.eventually([this] {
      follower->take_step();
      return context.knows_nodes();
    });
  }

  MemoryControl control;
  TestWorld world;
  NodeContext context{test_life(3), "test", world.environment};
  JobState state;
  Revision revision = 0;
  std::vector<Contact> contacts;
  int changes = 0, drives = 0;
  RunningLoop loop{world.environment};
  std::unique_ptr<ControlSession> session;
  std::unique_ptr<NodeFollower> follower;
};

TEST_F(Following, BeginsWithAListingAndEndsWhenItWasNotNeededForAWhile) {
  step();
  EXPECT_EQ(control.lists(), 0);
  EXPECT_EQ(control.watchers(key(0)), 0u);
  control.fail_next_lists(1);
  lead_in(JobPhase::quiescing, 3);
  const Duration before = context.clock->now();
  ASSERT_TRUE(comes_to_know());
  EXPECT_EQ(control.lists(), 2) << "the first found nobody";
  EXPECT_EQ(changes, 1);
  EXPECT_GE(context.watched.nodes.as_of, before);
  EXPECT_TRUE(loop.run([this] { return context.mirror.registrations().has(test_life(2)); }));
  EXPECT_TRUE(loop.run([this] { return context.mirror.registrations().gone_since.contains(NodeId(3)); }));
  control.erase(key(2));
  EXPECT_TRUE(loop.eventually([this] { return !context.mirror.registrations().has(test_life(2)); }));

  lead_in(JobPhase::running, 0);
  step();
  EXPECT_TRUE(knows()) << "it may need them again soon";
  world.clock.skip(context.deadlines.silence);
  step();
  EXPECT_TRUE(knows());
  world.clock.skip(context.deadlines.silence);
  step();
  EXPECT_FALSE(knows());
  EXPECT_EQ(control.watchers(key(0)), 0u);
  EXPECT_TRUE(loop.run([this] { return context.mirror.registrations().gone_since.empty(); }));
  lead_in(JobPhase::quiescing, 3);
  EXPECT_TRUE(comes_to_know());
  EXPECT_EQ(control.lists(), 3);
}

TEST_F(Following, WhatItKnowsIsConfirmedAsOfWhenThatWasAsked) {
  lead_in(JobPhase::quiescing, 3);
  ASSERT_TRUE(comes_to_know());
  world.clock.skip(1s);
  const Duration due = context.clock->now();
  loop.run([&] {
    context.watched.keys.as_of = due;
    EXPECT_FALSE(context.knows_all_since(due));
    EXPECT_TRUE(context.watched.nodes.ask_anew);
    EXPECT_FALSE(context.watched.keys.ask_anew);
    follower->take_step();
    EXPECT_FALSE(context.watched.nodes.ask_anew);
  });
  EXPECT_TRUE(loop.eventually([&] { return context.knows_all_since(due); }));
  EXPECT_EQ(control.lists(), 1) << "a few bytes have told it";
}

// The watch stands still: a sound member's new registration is not told.
TEST_F(Following, WhatAWatchDoesNotTellIsListedBeforeAnybodyIsGivenUp) {
  lead_in(JobPhase::quiescing, 3);
  ASSERT_TRUE(comes_to_know());
  EXPECT_TRUE(loop.run([this] { return context.mirror.registrations().gone_since.contains(NodeId(3)); }));
  control.hold_watches();
  sign_up(3);
  const Duration due = context.clock->now();
  loop.run([&] {
    (void)context.knows_all_since(due);
    follower->take_step();
  });
  EXPECT_FALSE(loop.run([this] { return context.mirror.registrations().has(test_life(3)); }));
  EXPECT_TRUE(loop.eventually([&] {
    world.clock.skip(100ms);
    return context.watched.nodes.as_of >= due;
  }));
  EXPECT_TRUE(loop.run([this] { return context.mirror.registrations().has(test_life(3)); }));
}

TEST_F(Following, WhomItNeedsAloneItReadsAndAgainUntilItIsThere) {
  loop.run([this] {
    EXPECT_EQ(context.record_of(test_life(2), Haste::now), nullptr);
    EXPECT_EQ(context.record_of(test_life(1, 7), Haste::now), nullptr);
    follower->take_step();
    follower->take_step();
  });
  EXPECT_TRUE(loop.eventually([this] { return context.mirror.nodes.record_of(test_life(2)) != nullptr; }));
  EXPECT_EQ(loop.run([this] { return context.record_of(test_life(2), Haste::now)->lifeline; }), "there:2");
  EXPECT_EQ(changes, 1);
  EXPECT_TRUE(loop.eventually([this] { return control.gets(key(1)) == 1; }));
  EXPECT_EQ(loop.run([this] { return context.record_of(test_life(1, 7), Haste::now); }), nullptr)
      << "another life is there";
  NodeRecord later;
  later.life = test_life(1, 7);
  control.put(key(1), to_json(later));
  step();
  EXPECT_EQ(control.gets(key(1)), 1) << "not at each step";
  EXPECT_TRUE(loop.eventually([this] {
    world.clock.skip(100ms);
    follower->take_step();
    return context.mirror.nodes.record_of(test_life(1, 7)) != nullptr;
  }));
  EXPECT_EQ(control.gets(key(2)), 1);
  EXPECT_EQ(control.lists(), 0);
  EXPECT_FALSE(knows());
}

// What all others want, too, and nobody needs at once.
TEST_F(Following, WhatCanWaitIsReadALittleLaterAndWhatIsNotThereEverMoreSeldom) {
  int spread = 0;
  for (std::uint64_t life = 10; life < 40; ++life) {
    loop.run([&] {
      context.watched.wanted.clear();
      follower->take_step();
      (void)context.record_of(test_life(static_cast<std::uint32_t>(life)), Haste::later);
      follower->take_step();
    });
    spread += control.gets(key(static_cast<std::uint32_t>(life))) == 0 ? 1 : 0;
    world.clock.skip(7ms);
  }
  EXPECT_GT(spread, 20) << "not at once";
  loop.run([this] {
    context.watched.wanted.clear();
    (void)context.record_of(test_life(1, 7), Haste::later);
    follower->take_step();
  });
  int in_first_minute = 0;
  for (int s = 0; s < 1200; ++s) {
    world.clock.skip(500ms);
    step();
    if (s != 120) continue;
    EXPECT_TRUE(loop.eventually([this] { return control.gets(key(1)) >= 3; }));  // a task of its own reads
    in_first_minute = control.gets(key(1));
  }
  EXPECT_LE(in_first_minute, 7);
  EXPECT_LE(control.gets(key(1)), 7 + 9) << "in nine more minutes";
  EXPECT_FALSE(knows());
}

// It has no need of all registrations.
TEST_F(Following, WhoHearsFewOfItsNeighboursLooksUpThoseThatItDoesNotHear) {
  const auto be_attentive = [this] {
    context.attention.ticked(context.clock->now(), context.deadlines);
    context.attention.control_answered(context.clock->now(), context.clock->now(), context.deadlines);
  };
  const auto live = [&](Duration time) {
    for (Duration passed{}; passed < time; passed += 100ms) {
      world.clock.skip(100ms);
      loop.run([&] {
        be_attentive();
        follower->take_step();
      });
    }
  };
  loop.run(be_attentive);
  control.erase(key(2));
  const Duration heard = context.clock->now();
  contacts = {{test_life(0), heard, {}, false}, {test_life(1), heard, {}, false}, {test_life(2), heard, {}, false}};
  live(context.deadlines.silence - 200ms);
  EXPECT_EQ(control.gets(key(2)), 0);
  live(context.deadlines.lease + 1s);
  const auto gone = [this](std::uint32_t node) {
    return loop.run([this, node] { return context.mirror.registrations().gone_since.contains(NodeId(node)); });
  };
  EXPECT_TRUE(loop.eventually([this] { return context.mirror.registrations().gone_since.contains(NodeId(2)); }));
  EXPECT_GT(control.gets(key(1)), 0);
  EXPECT_FALSE(gone(1));
  EXPECT_FALSE(knows());
  EXPECT_EQ(control.lists(), 0);
  for (Contact& contact : contacts) contact.heard = context.clock->now();
  live(200ms);
  EXPECT_FALSE(gone(2)) << "it hears them again, and knows no more about them";
}

// Many fail at once, and none may begin again at once, for as long as it lasts.
TEST_F(Following, WhoCanNotListTriesAgainEverMoreSeldom) {
  control.fail_next_lists(1'000'000);
  lead_in(JobPhase::quiescing, 3);
  for (int i = 0; i < 600; ++i) {
    world.clock.skip(100ms);
    step();
  }
  EXPECT_GE(control.lists(), 5);
  EXPECT_LE(control.lists(), 60) << "in a minute";
  control.fail_next_lists(0);
  EXPECT_TRUE(loop.eventually([this] {
    world.clock.skip(100ms);
    follower->take_step();
    return context.knows_nodes();
  }));
}

// A listing of many nodes takes long, and what is put and swapped meanwhile must not wait for it.
TEST_F(Following, AListingHoldsNothingUp) {
  std::promise<void> go_on;
  control.before_list = [gate = go_on.get_future().share()] { gate.wait(); };
  lead_in(JobPhase::quiescing, 3);
  step();
  std::atomic<bool> put = false;
  loop.run([&] {
    session->call<Revision>([](Control& all) { return all.put("/pawl/test/x", "y"); },
                            [&](const Result<Revision>&) { put = true; });
  });
  EXPECT_TRUE(loop.eventually([&] { return put.load(); }));
  EXPECT_FALSE(knows());
  go_on.set_value();
  EXPECT_TRUE(comes_to_know());
}

class FollowingWithoutASeat : public Following {
 protected:
  FollowingWithoutASeat() {
    state.seats.pop_back();
    loop.run([this] { (void)context.mirror.learn(state, ++revision, context.clock->now()); });
    sign_up(3);
  }
  void live(Duration time) {
    for (Duration passed{}; passed < time; passed += 500ms) {
      world.clock.skip(500ms);
      step();
    }
  }
};

// The lowest of those without a seat may all be gone.
TEST_F(FollowingWithoutASeat, WhereFewAreRegisteredItLooksWhetherAnyMemberIs) {
  live(20 * context.deadlines.lease);
  EXPECT_FALSE(knows()) << "four are, of three members";
  for (std::uint32_t node = 0; node < 3; ++node) control.erase(key(node));
  EXPECT_TRUE(loop.eventually([this] {
    world.clock.skip(500ms);
    follower->take_step();
    return context.knows_nodes();
  }));
  sign_up(0);
  sign_up(1);
  EXPECT_TRUE(loop.eventually([this] {
    world.clock.skip(500ms);
    follower->take_step();
    return !context.knows_nodes();
  }));
}

}  // namespace
}  // namespace pawl::job
