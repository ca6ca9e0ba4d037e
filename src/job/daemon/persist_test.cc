#include "job/daemon/persist.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/crc32c.h"
#include "base/digest.h"
#include "job/daemon/test_layout.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// Storage in memory. What fails is set by the test.
class FakeStore : public CheckpointStore {
 public:
  class Open : public OpenCheckpoint {
   public:
    Open(FakeStore& store, std::string folder) : store_(store), folder_(std::move(folder)) { ++store_.begun; }
    ~Open() override { --store_.begun; }
    const std::string& folder() const override { return folder_; }
    Status publish(std::uint32_t seat_count) override {
      if (!store_.publish_fails.empty()) return Error{Code::io, store_.publish_fails};
      EXPECT_EQ(store_.parts[folder_].size(), seat_count);
      store_.published.push_back(folder_);
      return {};
    }

   private:
    FakeStore& store_;
    std::string folder_;
  };
  Result<std::unique_ptr<OpenCheckpoint>> begin(const CheckpointOrder& order) override {
    if (!begin_fails.empty()) return Error{Code::full, begin_fails};
    ++begins;
    before = order.before;
    return std::unique_ptr<OpenCheckpoint>(std::make_unique<Open>(*this, text(order.path, "/", order.attempt)));
  }
  Status write(const std::string& folder, const SeatPart& part, PartProgress& progress) override {
    if (!write_fails.empty()) return Error{Code::full, write_fails};
    if (part.proof != nullptr) PAWL_TRY(checkpoint::prove(*part.proof));
    progress.bytes += 100;
    is_paced = progress.pace != nullptr;
    if (is_paced) progress.pace(100);
    for (const auto& piece : part.pieces)
      if (piece.name == "wte" && volume(piece.box) > 0) parts[folder][part.seat] = static_cast<int>(*piece.memory);
    parts[folder].try_emplace(part.seat, -1);
    if (while_written) while_written();
    return {};
  }
  Result<std::unique_ptr<StoredCheckpoint>> open(const std::string&) override { return Error{Code::not_found, ""}; }
  Result<std::vector<checkpoint::ListedCheckpoint>> list(const std::string&) override {
    return std::vector<checkpoint::ListedCheckpoint>();
  }
  Status remove(const checkpoint::ListedCheckpoint&, const std::string&) override { return {}; }
  Status finish_removals(const std::string&, const std::string&) override { return {}; }

  std::string begin_fails, write_fails, publish_fails;
  std::function<void()> while_written;
  std::map<std::string, std::map<Seat, int>> parts;  // by folder: a byte of each seat's
  std::vector<std::string> published;
  std::string before;  // of the last that was begun
  bool is_paced = false;
  int begins = 0;
  int begun = 0;  // and neither published nor removed
};

// Whatever blocks is done at once.
const Environment& world_at_once() {
  class DoneTask final : public Task {
   public:
    void join() override {}
  };
  class AtOnce final : public Tasks {
   public:
    std::unique_ptr<Task> start(const std::string&, std::function<void()> body) override {
      body();
      return std::make_unique<DoneTask>();
    }
    std::unique_ptr<Condition> make_condition() override { return real_tasks().make_condition(); }
  };
  static AtOnce tasks;
  static const Environment& real = real_environment();
  static const Environment world{real.clock, tasks, real.network, real.files, real.processes, real.memory};
  return world;
}

// One of two nodes, with one seat each.
struct OneNode {
  OneNode(std::uint32_t self, FakeStore& store)
      : node(2, self, world_at_once()),
        memory(node.context.environment->memory, {.hold = [](auto&, int) {}, .drop = [](auto&) {}}),
        persist(node.context, memory, node.events, &store,
                {.send =
                     [this](NodeId, const Frame& frame) {
                       if (!linked) return false;
                       sent.push_back(*message_in<PersistMessage>(frame));
                       return true;
                     },
                 .wanted = [this] { return wanted; },
                 .show_stored = [this](Step newest) { shown = newest; }}) {
    JobSpec spec;
    spec.job = "test";
    spec.node_count = 2;
    spec.checkpoints.path = "/c";
    spec.checkpoints.every_steps = 10;
    node.context.mirror.set_spec(spec);
    node.run_in(JobPhase::running);
    ArenaSpec made = test_arena(ArenaKind::own, Seat(self));
    const SeatLayout layout = test_layout(700);
    made.slot_count = kSlotCountPersisted;
    made.layout = text_of(layout);
    made.layout_digest = digest_of(made.layout);
    made.payload_bytes = layout.payload_bytes;
    made.stable_bytes = layout.stable_bytes;
    arena = *memory.arena_for(made);
  }
  void seal(std::uint32_t slot, std::uint64_t step, std::uint64_t generation = 1) const {
    const Slot it = arena->arena.slot(slot);
    const Generation of(generation);
    ASSERT_TRUE(it.try_open(it.word(), of, Step(step), 0));
    std::ranges::fill(it.payload(), static_cast<std::byte>(step));
    for (std::uint32_t i = 0; i < it.buckets().size(); ++i) it.bucket_done(i, crc32c(it.bucket(i)), of, Step(step));
    ASSERT_TRUE(it.try_seal(of, Step(step)));
  }
  [[nodiscard]] std::set<std::uint32_t> pinned() const {
    std::set<std::uint32_t> slots;
    for (std::uint32_t i = 0; i < arena->arena.slot_count(); ++i)
      if (arena->arena.slot(i).pinned(arena->arena.slot(i).word())) slots.insert(i);
    return slots;
  }

  TestNode node;
  Memory memory;
  std::vector<PersistMessage> sent;
  bool linked = true;
  Step wanted, shown;
  Persist persist;
  ArenaHandle arena;
};

class Persisting : public testing::Test {
 protected:
  Persisting() {
    for (OneNode* one : {&root, &other}) one->persist.before_show({Step(0), 0});
    settle();
  }
  // Messages and swaps take their course.
  void settle() {
    for (int i = 0; i < 20; ++i) {
      root.persist.drive();
      while (!root.node.control.swaps.empty()) {
        FakeControl::Swap swap = std::move(root.node.control.swaps.front());
        root.node.control.swaps.erase(root.node.control.swaps.begin());
        EXPECT_EQ(swap.key, persist_key(root.node.context.mirror.keys()));
        if (control_away && control_away(record_in(swap.value))) {
          swap.then(Error{Code::timeout, "the control is away"});
          continue;
        }
        if (swap.expected != revision) {
          swap.then(Swapped{false, revision, KeyValue{swap.key, value, revision}});
          continue;
        }
        value = swap.value;
        swap.then(Swapped{true, ++revision, std::nullopt});
        if (record_in(value).step < hidden) tell();
      }
      for (const PersistMessage& message : std::exchange(other.sent, {})) root.persist.on_tally(NodeId(1), message);
    }
  }
  static PersistRecord record_in(const std::string& json) { return *parse_persist_record(json); }
  void tell() { other.persist.on_key(persist_key(other.node.context.mirror.keys()), value, revision); }
  void commit(std::uint64_t step) {
    for (OneNode* one : {&root, &other}) one->persist.before_show({Step(step), 0});
    settle();
  }
  // And the window of that step is over.
  void commit_and_go_on(std::uint64_t step) {
    commit(step);
    commit(step + 1);
  }
  void capture(std::uint32_t slot, std::uint64_t step) {
    root.seal(slot, step);
    other.seal(slot, step);
  }
  [[nodiscard]] const PersistRecord& record() const { return root.persist.record(); }
  void next_generation() {
    for (OneNode* one : {&root, &other}) {
      ++one->node.state.generation.value;
      one->node.run_in(JobPhase::running);
      one->persist.before_show({Step(10), 0});
    }
    settle();
  }

  FakeStore store;
  OneNode root{0, store}, other{1, store};
  std::string value;
  Revision revision = 0;
  std::function<bool(const PersistRecord&)> control_away;  // when it is to take this
  Step hidden{kStepMax};  // of orders from that one on the other node does not hear yet
};

TEST_F(Persisting, AStepIsPinnedWrittenAndPublishedAndTheNextOneOrdered) {
  EXPECT_EQ(record().step, Step(10));
  EXPECT_EQ(record().phase, PersistPhase::pinning);
  capture(0, 9);
  commit(9);
  EXPECT_TRUE(root.pinned().empty());
  capture(1, 10);
  commit_and_go_on(10);
  ASSERT_EQ(store.published, std::vector<std::string>{"/c/step-10/1"});
  EXPECT_EQ(store.parts["/c/step-10/1"].size(), 2u);
  EXPECT_EQ(record().published, Step(10));
  EXPECT_EQ(record().step, Step(20)) << "the next one is ordered";
  EXPECT_TRUE(root.pinned().empty());
  EXPECT_TRUE(other.pinned().empty());
  EXPECT_EQ(store.begun, 0);
}

TEST_F(Persisting, WhatEachNodeWritesIsLimitedIfTheJobSaysSo) {
  capture(1, 10);
  commit_and_go_on(10);
  EXPECT_FALSE(store.is_paced);
  JobSpec spec = root.node.context.mirror.spec();
  spec.checkpoints.bytes_a_second = 1000000;
  for (OneNode* one : {&root, &other}) one->node.context.mirror.set_spec(spec);
  capture(2, 20);
  commit_and_go_on(20);
  EXPECT_EQ(record().published, Step(20));
  EXPECT_TRUE(store.is_paced);
}

TEST_F(Persisting, NothingIsWrittenBeforeAllArePinned) {
  capture(1, 10);
  root.persist.before_show({Step(10), 0});  // the other has not heard of it
  settle();
  EXPECT_EQ(root.pinned(), (std::set<std::uint32_t>{1}));
  EXPECT_TRUE(store.parts.empty());
  EXPECT_EQ(record().phase, PersistPhase::pinning);
  commit_and_go_on(10);
  EXPECT_EQ(store.published.size(), 1u);
}

TEST_F(Persisting, ItIsPinnedBeforeThePagesShowMore) {
  capture(1, 10);
  capture(2, 11);
  root.persist.before_show({Step(11), 0});  // in one word: the page shows 0 as yet
  EXPECT_EQ(root.pinned(), (std::set<std::uint32_t>{1}));
}

TEST_F(Persisting, AnOrderThatComesTooLateIsGivenUpAndTheNextIsFurtherAhead) {
  hidden = Step(20);
  capture(0, 10);
  commit_and_go_on(10);
  EXPECT_EQ(record().step, Step(20));
  capture(1, 20);
  capture(2, 21);
  commit(20);
  commit(21);
  EXPECT_EQ(root.pinned(), (std::set<std::uint32_t>{1}));
  EXPECT_TRUE(other.pinned().empty());
  hidden = Step(kStepMax);
  tell();
  settle();
  EXPECT_EQ(record().failures, 1u);
  EXPECT_NE(record().why.find("seat 1: step 20 was over before it could be kept"), std::string::npos) << record().why;
  EXPECT_EQ(record().step, Step(25));
  EXPECT_TRUE(root.pinned().empty()) << "it has let go of it";
}

TEST_F(Persisting, AnOrderThatComesWhileThePagesShowThatStepIsInTime) {
  hidden = Step(20);
  capture(0, 10);
  commit_and_go_on(10);
  capture(1, 20);
  commit(20);
  hidden = Step(kStepMax);
  tell();
  settle();
  commit(21);
  EXPECT_EQ(record().published, Step(20));
}

TEST_F(Persisting, AStepThatASeatHasNotCapturedIsNotWritten) {
  root.seal(1, 10);
  commit(10);
  EXPECT_TRUE(store.published.empty());
  EXPECT_NE(record().why.find("seat 1 did not capture step 10"), std::string::npos) << record().why;
}

TEST_F(Persisting, ATornStepIsNotWritten) {
  capture(1, 10);
  other.arena->arena.slot(1).mark_torn(Generation(1), Step(10));
  commit(10);
  EXPECT_TRUE(store.published.empty());
  EXPECT_NE(record().why.find("seat 1: step 10 was written while it was copied"), std::string::npos) << record().why;
}

TEST_F(Persisting, WhatIsFoundTornWhileItIsWrittenIsNotPublished) {
  store.while_written = [this] { other.arena->arena.slot(1).mark_torn(Generation(1), Step(10)); };
  capture(1, 10);
  commit_and_go_on(10);
  EXPECT_TRUE(store.published.empty());
  EXPECT_EQ(record().failures, 1u);
  EXPECT_EQ(record().why, "seat 1: step 10 was written while it was copied");
  EXPECT_EQ(record().step, Step(14)) << "storage is well: another one at once";
}

TEST_F(Persisting, WhatIsFoundTornAtTheEndOfItsWindowIsNotPublished) {
  capture(1, 10);
  commit(10);
  EXPECT_EQ(store.parts["/c/step-10/1"].size(), 2u) << "all is written";
  EXPECT_TRUE(store.published.empty());
  other.arena->arena.slot(1).mark_torn(Generation(1), Step(10));
  commit(11);
  EXPECT_TRUE(store.published.empty());
  EXPECT_NE(record().why.find("seat 1: step 10 was written while it was copied"), std::string::npos) << record().why;
}

TEST_F(Persisting, WhatWasPublishedIsNotForgottenThoughAnotherGenerationCame) {
  capture(1, 10);
  commit(10);
  std::function<void()> told_late;
  root.node.context.post = [&told_late](std::function<void()> task) { told_late = std::move(task); };
  commit(11);
  ASSERT_EQ(store.published.size(), 1u);
  root.node.context.post = [](std::function<void()> task) { task(); };
  for (OneNode* one : {&root, &other}) {
    ++one->node.state.generation.value;
    one->node.state.resume = Step(11);
    one->node.learn(JobPhase::quiescing);
  }
  ASSERT_TRUE(told_late);
  told_late();
  EXPECT_EQ(root.persist.root().stored(), std::vector<Step>{Step(10)});
  for (OneNode* one : {&root, &other}) one->node.run_in(JobPhase::running);
  for (OneNode* one : {&root, &other}) one->persist.before_show({Step(11), 0});
  settle();
  EXPECT_EQ(record().published, Step(10));
  EXPECT_EQ(record().step, Step(20));
}

TEST_F(Persisting, AStepThatATrainerAsksForIsWrittenOutOfTurn) {
  capture(0, 10);
  commit_and_go_on(10);
  ASSERT_EQ(record().step, Step(20));
  EXPECT_EQ(other.shown, Step(10));
  other.wanted = Step(12);
  other.persist.tick();
  settle();
  EXPECT_EQ(record().step, Step(13)) << "the next one that all can keep, not 20";
  EXPECT_EQ(record().failures, 0u);
  capture(1, 13);
  commit_and_go_on(13);
  EXPECT_EQ(record().published, Step(13));
  EXPECT_EQ(other.shown, Step(13));
  EXPECT_EQ(record().step, Step(20)) << "what was asked for is done";
  other.persist.tick();
  settle();
  EXPECT_EQ(record().step, Step(20));
}

TEST_F(Persisting, WhatATrainerHasAskedForInAnotherGenerationIsStillWanted) {
  other.linked = false;
  other.wanted = Step(4);
  other.persist.tick();
  settle();
  ASSERT_EQ(record().step, Step(10)) << "no link has told the root";
  other.linked = true;
  next_generation();
  other.persist.tick();
  settle();
  EXPECT_GE(record().step, Step(12));
  EXPECT_LT(record().step, Step(20));
}

// The root heard too late that step 10 was published, and the job has gone back behind it.
TEST_F(Persisting, WhatWasPublishedOfAHistoryThatWasLeftIsNotTold) {
  capture(1, 10);
  commit(10);
  control_away = [](const PersistRecord& record) { return record.published == Step(10); };
  commit(11);
  ASSERT_EQ(store.published.size(), 1u);
  control_away = nullptr;
  for (OneNode* one : {&root, &other}) {
    ++one->node.state.generation.value;
    one->node.state.resume = Step(7);
    one->node.state.lineage = {{one->node.state.generation, Step(7)}};
    one->node.run_in(JobPhase::running);
    one->persist.before_show({Step(7), 0});
  }
  settle();
  EXPECT_EQ(record().published, Step(0));
  EXPECT_EQ(record().step, Step(10)) << "it is written anew";
}

TEST_F(Persisting, EachIsBegunAfterTheOneBeforeItInTheHistory) {
  capture(1, 10);
  commit_and_go_on(10);
  EXPECT_EQ(store.before, "");
  capture(2, 20);
  commit_and_go_on(20);
  EXPECT_EQ(store.before, "/c/step-10");
  capture(0, 30);
  commit(30);
  ASSERT_EQ(store.before, "/c/step-20");
  // It goes back to 10, whose generation orders nothing before the next begins from 25.
  for (const auto& [generation, resume] : {std::pair(2u, 10u), std::pair(3u, 25u)})
    for (OneNode* one : {&root, &other}) {
      one->node.state.generation = Generation(generation);
      one->node.state.resume = Step(resume);
      one->node.state.lineage.push_back({Generation(generation), Step(resume)});
      if (generation == 3) one->node.run_in(JobPhase::running);
      if (generation == 3) one->persist.before_show({Step(25), 0});
    }
  settle();
  EXPECT_EQ(record().published, Step(10)) << "20 was of the history that was left, though 25 is after it";
  EXPECT_EQ(root.persist.root().order_of(9, Step(30)).before, "/c/step-10");
}

TEST_F(Persisting, AFlippedBitIsNotWritten) {
  capture(1, 10);
  other.arena->arena.slot(1).payload()[5] ^= std::byte{1};
  commit(10);
  EXPECT_TRUE(store.published.empty());
  EXPECT_NE(record().why.find("seat 1"), std::string::npos) << record().why;
}

TEST_F(Persisting, StorageThatFailsIsSaidAndTheNextStepThatIsDueIsWritten) {
  store.write_fails = "no room";
  capture(1, 10);
  commit_and_go_on(10);
  EXPECT_TRUE(store.published.empty());
  EXPECT_EQ(store.begun, 0) << "what was not published is removed";
  EXPECT_NE(record().why.find("no room"), std::string::npos) << record().why;
  EXPECT_EQ(record().step, Step(20));
  EXPECT_TRUE(root.pinned().empty());
  store.write_fails.clear();
  capture(2, 20);
  commit_and_go_on(20);
  EXPECT_EQ(record().published, Step(20));
  EXPECT_EQ(record().failures, 0u);
  store.begin_fails = "away";
  capture(1, 30);
  commit_and_go_on(30);
  EXPECT_EQ(record().why, "away");
  store.begin_fails.clear();
  store.publish_fails = "a disk fails";
  capture(2, 40);
  commit_and_go_on(40);
  EXPECT_EQ(record().why, "a disk fails");
  EXPECT_EQ(record().failures, 2u);
}

TEST_F(Persisting, StorageThatStandsStillHoldsNeitherTheJobNorTheNextStep) {
  store.while_written = [this] { root.node.context.post = [](std::function<void()>) {}; };  // nothing of it comes back
  capture(1, 10);
  commit_and_go_on(10);
  root.node.context.post = [](std::function<void()> task) { task(); };
  store.while_written = {};
  EXPECT_EQ(record().phase, PersistPhase::writing);
  root.node.pass(kPersistPatience + 1s);
  settle();
  EXPECT_EQ(record().failures, 1u);
  EXPECT_NE(record().why.find("nothing was written"), std::string::npos) << record().why;
  EXPECT_TRUE(root.pinned().empty());
  capture(2, 20);
  commit_and_go_on(20);
  EXPECT_EQ(record().published, Step(20));
}

// Its task still writes into the attempt of another generation, which has ended: no second one is begun beside it.
TEST_F(Persisting, AWriteThatIsLateIsWaitedFor) {
  store.while_written = [this, is_over = false]() mutable {
    if (is_over || store.parts["/c/step-10/1"].size() < 2) return;
    is_over = true;  // the other node's task, until this returns
    next_generation();
    ASSERT_EQ(record().step, Step(12));
    for (OneNode* one : {&root, &other}) one->seal(2, 12, 2);
    commit(12);
    EXPECT_EQ(record().phase, PersistPhase::writing);
    EXPECT_EQ(store.parts["/c/step-12/2"].size(), 1u) << "the root's alone";
  };
  capture(1, 10);
  commit(10);
  other.persist.tick();
  settle();
  commit(13);
  EXPECT_EQ(record().published, Step(12));
  EXPECT_EQ(record().failures, 0u) << record().why;
}

TEST_F(Persisting, AFolderIsBegunOnceThoughTheControlWasAwayThen) {
  int lost = 0;
  control_away = [&lost](const PersistRecord& next) { return next.phase == PersistPhase::writing && ++lost < 3; };
  capture(1, 10);
  commit_and_go_on(10);
  EXPECT_EQ(lost, 3);
  EXPECT_EQ(store.begins, 1) << "the first one still stands, so another one could not begin";
  EXPECT_EQ(record().published, Step(10));
}

TEST_F(Persisting, AnotherGenerationEndsTheAttempt) {
  capture(1, 10);
  root.persist.before_show({Step(10), 0});
  settle();
  EXPECT_EQ(root.pinned().size(), 1u);
  next_generation();
  EXPECT_TRUE(root.pinned().empty());
  EXPECT_EQ(record().generation, Generation(2));
  EXPECT_TRUE(store.published.empty());
}

TEST_F(Persisting, ADaemonThatWasRestartedGoesOnWithItsPins) {
  capture(1, 10);
  other.persist.before_show({Step(10), 0});
  EXPECT_EQ(other.pinned(), (std::set<std::uint32_t>{1}));
  std::vector<PersistMessage> sent;
  Persist again(other.node.context, other.memory, other.node.events, &store,
                {.send =
                     [&sent](NodeId, const Frame& frame) {
                       sent.push_back(*message_in<PersistMessage>(frame));
                       return true;
                     },
                 .wanted = [] { return Step(0); },
                 .show_stored = [](Step) {}});
  again.on_key(persist_key(other.node.context.mirror.keys()), value, revision);
  again.before_show({Step(11), 0});  // its pages show that already
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent.back().pinned, 1u);
  EXPECT_EQ(sent.back().failed, "");
}

TEST_F(Persisting, APinThatNobodyWantsAnyMoreIsTakenAway) {
  capture(1, 7);
  other.arena->arena.slot(1).pin(Generation(1), Step(7));
  Persist again(other.node.context, other.memory, other.node.events, &store,
                {.send = [](NodeId, const Frame&) { return true; },
                 .wanted = [] { return Step(0); },
                 .show_stored = [](Step) {}});
  again.on_key(persist_key(other.node.context.mirror.keys()), value, revision);
  again.before_show({Step(8), 0});
  EXPECT_TRUE(other.pinned().empty());
}

TEST_F(Persisting, WhatNoLinkCouldBringIsToldOverTheNextOne) {
  other.linked = false;
  capture(1, 10);
  commit_and_go_on(10);
  EXPECT_EQ(record().phase, PersistPhase::pinning);
  other.linked = true;
  other.persist.on_link_up(NodeId(0));
  settle();
  EXPECT_EQ(record().published, Step(10));
}

TEST_F(Persisting, ASwapThatIsLostIsDecidedAnew) {
  PersistRecord others = record();
  others.step = Step(15);
  ++others.attempt;
  value = to_json(others);
  ++revision;
  capture(1, 10);
  commit(10);
  EXPECT_EQ(record().step, Step(15)) << "of whoever swapped before";
}

TEST_F(Persisting, TheJobMayEndOnlyWhenItsLastStepIsWritten) {
  EXPECT_FALSE(root.persist.may_end());
  capture(1, 7);
  commit(7);
  for (OneNode* one : {&root, &other})
    for (const std::uint32_t seat : {0u, 1u})
      one->node.context.mirror.note_finish(Seat(seat), {Generation(1), Step(7), true});
  EXPECT_FALSE(root.persist.may_end());
  settle();
  EXPECT_EQ(record().published, Step(7));
  EXPECT_TRUE(root.persist.may_end());
}

TEST_F(Persisting, WhatIsNotKeptIsForgottenWithTheSwapThatPublishes) {
  JobSpec spec = root.node.context.mirror.spec();
  spec.checkpoints.keep_last = 2;
  spec.checkpoints.keep_every = 20;
  for (OneNode* one : {&root, &other}) one->node.context.mirror.set_spec(spec);
  for (std::uint64_t i = 1; i <= 5; ++i) {
    capture(static_cast<std::uint32_t>(i % 3), 10 * i);
    commit_and_go_on(10 * i);
  }
  EXPECT_EQ(record().published, Step(50));
  EXPECT_EQ(record().older, (std::vector<Step>{Step(40), Step(20)}));
  EXPECT_EQ(root.persist.root().stored(), (std::vector<Step>{Step(50), Step(40), Step(20)}));
}

TEST_F(Persisting, WhatMayBeGoneOnFromIsTheNewestFirst) {
  for (std::uint64_t i = 1; i <= 3; ++i) {
    capture(static_cast<std::uint32_t>(i % 3), 10 * i);
    commit_and_go_on(10 * i);
  }
  EXPECT_EQ(other.persist.root().stored(), (std::vector<Step>{Step(30), Step(20), Step(10)}));
}

}  // namespace
}  // namespace pawl::job
