#include "job/daemon/paths_watch.h"

#include <gtest/gtest.h>

#include "base/digest.h"
#include "job/daemon/test_layout.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"
#include "job/transport/messages.h"

namespace pawl::job {
namespace {

constexpr Generation kRunning{1};
constexpr Step kHeldStep{41};

// Node `self` of three, with that seat, whose tensors were declared equal on all; the first has two buckets, the second one.
class PathsWatched : public testing::Test {
 protected:
  explicit PathsWatched(std::uint32_t self = 0) : node(3, self) {
    node.run_in(JobPhase::running);
    LayoutBuilder builder(3);
    LayoutEntry tensor;
    tensor.mesh = *builder.add_mesh({"dense", {{"dp", 3}}});
    tensor.role = "weight";
    tensor.equal_axes = 1;
    for (const auto& [name, buckets] : {std::pair("wte", 2), std::pair("wpe", 1)}) {
      tensor.name = name;
      tensor.shape = {static_cast<std::uint64_t>(buckets) * 1024};
      tensor.box = whole_box(tensor.shape);
      EXPECT_TRUE(builder.add(tensor));
    }
    const SeatLayout layout = *builder.build();
    ArenaSpec spec = test_arena(ArenaKind::own, Seat(self));
    spec.layout = text_of(layout);
    spec.layout_digest = digest_of(spec.layout);
    spec.payload_bytes = layout.payload_bytes;
    spec.stable_bytes = layout.stable_bytes;
    arena = *memory.arena_for(spec);
    spec.kind = ArenaKind::replica;  // so that it is not looked at
    spec.shelf_count = 0;
    elsewhere = *memory.arena_for(spec);
  }
  static void seal_in(const ArenaHandle& held, std::uint32_t slot, Step step, std::uint32_t value) {
    const Slot it = held->arena.slot(slot);
    ASSERT_TRUE(it.try_open(it.word(), kRunning, step, 0));
    for (std::uint32_t i = 0; i < it.buckets().size(); ++i) it.bucket_done(i, i == 2 ? value : i, kRunning, step);
    ASSERT_TRUE(it.try_seal(kRunning, step));
  }
  // Another value: other bytes of the second tensor.
  void seal(std::uint32_t slot, Step step, std::uint32_t value = 7) { seal_in(arena, slot, step, value); }
  [[nodiscard]] EqualExtent all_of_it() { return memory.equal_offers().front().state; }
  // What another seat says of the step, with that value.
  std::string sums_of(std::uint32_t seat, Step step, std::uint32_t value, const std::vector<EqualExtent>& parts = {}) {
    seal_in(elsewhere, 0, step, value);
    EqualSums sums;
    std::vector<EqualExtent> all = parts;
    all.push_back(all_of_it());
    for (const EqualExtent& what : all)
      sums.add({step, what, 3, sum_of_buckets(elsewhere->arena.slot(0), 4096, what.extent), 1, Seat(seat)});
    return to_text(sums);
  }
  // The root's step, of which its children say that.
  void commit(Step step, std::uint32_t own, std::uint32_t second, std::uint32_t third,
              const std::vector<EqualExtent>& parts = {}) {
    seal(0, step, own);
    report();
    watch.on_sums(NodeId(1), kRunning, sums_of(1, step, second, parts));
    watch.on_sums(NodeId(2), kRunning, sums_of(2, step, third, parts));
    watch.on_progress({step, 0});
    node.pass(std::chrono::milliseconds(20));
  }
  // Something is held.
  void report(bool anew = false) { watch.before_report({{}, 1, 0}, anew); }
  std::optional<NarrowMessage> last_order() {
    if (sent.empty()) return std::nullopt;
    return *message_in<NarrowMessage>(sent.back().second);
  }

  TestNode node;
  Memory memory{real_shared_memory(), nobody_keeps()};
  ArenaHandle arena;
  ArenaHandle elsewhere;
  Events events{node.context};
  std::vector<std::pair<NodeId, Frame>> sent;
  bool link_stands = true;
  PathsWatch watch{node.context, memory, events, {.send = [this](NodeId to, const Frame& frame) {
                     if (link_stands) sent.emplace_back(to, frame);
                     return link_stands;
                   }}};
};

class PathsWatchedLeaf : public PathsWatched {
 protected:
  PathsWatchedLeaf() : PathsWatched(2) {}
};

TEST_F(PathsWatchedLeaf, TellsItsParentOfEachSealedStepOnce) {
  report();
  EXPECT_TRUE(sent.empty());
  seal(0, kHeldStep);
  watch.before_report({{}, 0, 1}, false);
  EXPECT_TRUE(sent.empty()) << "nothing is held yet";
  link_stands = false;
  report();
  link_stands = true;
  report();
  report();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, NodeId(0));
  const auto message = message_in<EqualSumsMessage>(sent[0].second);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->generation, kRunning);
  EXPECT_EQ(message->sums, sums_of(2, kHeldStep, 7));
  report(true);
  EXPECT_EQ(sent.size(), 2u) << "the parent may know nothing";
}

TEST_F(PathsWatchedLeaf, WhatWasTornIsNotCompared) {
  seal(0, kHeldStep);
  arena->arena.slot(0).mark_torn(kRunning, kHeldStep);
  report();
  EXPECT_TRUE(sent.empty());
}

TEST_F(PathsWatchedLeaf, OfWhatIsSettledNothingIsToldOrKept) {
  seal(0, kHeldStep);
  report();
  seal(1, Step(42));
  watch.on_progress({Step(40), 1});  // 41 is void
  report();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_TRUE(message_in<EqualSumsMessage>(sent[1].second)->sums.starts_with("42 "));
  watch.on_progress({Step(42), 0});
  report();
  EXPECT_EQ(sent.size(), 2u);
}

TEST_F(PathsWatchedLeaf, ANodeBelowAddsWhatItsChildrenSay) {
  seal(0, kHeldStep);
  watch.on_sums(NodeId(1), kRunning, sums_of(1, kHeldStep, 7));
  report();
  ASSERT_EQ(sent.size(), 1u);
  EqualSums sums = *parse_equal_sums(message_in<EqualSumsMessage>(sent[0].second)->sums);
  EXPECT_TRUE(sums.compared(kHeldStep).empty());
  sums.add(*parse_equal_sums(sums_of(0, kHeldStep, 7)));
  ASSERT_EQ(sums.compared(kHeldStep).size(), 1u);
  EXPECT_TRUE(sums.compared(kHeldStep)[0].others.empty());
}

TEST_F(PathsWatchedLeaf, WhoHasAllOfAGroupComparesItAndPassesNothingOn) {
  seal(0, kHeldStep);
  watch.on_sums(NodeId(0), kRunning, sums_of(0, kHeldStep, 8));
  watch.on_sums(NodeId(1), kRunning, sums_of(1, kHeldStep, 7));
  report();
  EXPECT_TRUE(sent.empty());
  watch.on_progress({kHeldStep, 0});
  ASSERT_EQ(watch.differing().size(), 1u);
  EXPECT_EQ(watch.differing()[0].others[0].first, Seat(0));
}

TEST_F(PathsWatched, WhatDiffersIsToldWhenItIsCommittedAndOnceUntilItIsEqualAgain) {
  seal(0, kHeldStep);
  report();
  watch.on_sums(NodeId(1), kRunning, sums_of(1, kHeldStep, 7));
  watch.on_sums(NodeId(2), kRunning, sums_of(2, kHeldStep, 8));
  EXPECT_EQ(watch.differing().size(), 0u);
  watch.on_progress({kHeldStep, 0});
  ASSERT_EQ(watch.differing().size(), 1u);
  node.pass(std::chrono::milliseconds(20));
  EXPECT_EQ(node.control.tells, 1);
  std::uint64_t step = 42;
  for (; step < 200; ++step) commit(Step(step), 7, 7, 8);
  ASSERT_EQ(watch.differing().size(), 1u);
  EXPECT_EQ(watch.differing()[0].step, kHeldStep) << "since when";
  EXPECT_EQ(node.control.tells, 1);
  commit(Step(step++), 7, 7, 7);
  EXPECT_EQ(watch.differing().size(), 1u) << "it comes and goes, perhaps";
  for (std::uint32_t i = 0; i < PathsWatch::kEqualCommits; ++i) commit(Step(step++), 7, 7, 7);
  EXPECT_EQ(watch.differing().size(), 0u);
  EXPECT_EQ(node.control.tells, 2) << "that it differed, and that it is equal again";
}

TEST_F(PathsWatched, ASecondSeatThatDiffersIsToldOfAWhileLater) {
  commit(kHeldStep, 7, 7, 8);
  EXPECT_EQ(node.control.tells, 1);
  std::uint64_t step = 42;
  for (; step < 41 + PathsWatch::kStepsBetween; ++step) commit(Step(step), 7, 9, 8);
  EXPECT_EQ(node.control.tells, 1);
  for (; step < 300; ++step) commit(Step(step), 7, 9, 8);
  EXPECT_EQ(node.control.tells, 2);
  EXPECT_EQ(watch.differing()[0].others.size(), 2u);
}

TEST_F(PathsWatched, OneThatDiffersInEachSecondStepIsToldOfOnce) {
  for (std::uint64_t step = 41; step < 600; ++step) commit(Step(step), 7, 7, step % 2 == 0 ? 7 : 8);
  EXPECT_EQ(node.control.tells, 1);
}

// Before it hears that a step is committed a child says of it once more what it has said.
TEST_F(PathsWatched, WhatIsSaidOfSettledStepsDoesNotCount) {
  commit(kHeldStep, 8, 7, 7);
  for (std::uint64_t step = 42; step < 80; ++step) {
    EqualSums late;
    for (std::uint32_t seat = 0; seat < 3; ++seat) late.add(*parse_equal_sums(sums_of(seat, Step(step - 1), 7)));
    watch.on_sums(NodeId(1), kRunning, to_text(late));
    watch.on_progress({Step(step), 0});
  }
  EXPECT_EQ(watch.differing().size(), 1u);
}

TEST_F(PathsWatched, AStepOfWhichASeatHasToldNothingIsNotCompared) {
  commit(kHeldStep, 7, 7, 8);
  for (std::uint64_t step = 42; step < 80; ++step) {
    seal(0, Step(step));
    report();
    watch.on_sums(NodeId(1), kRunning, sums_of(1, Step(step), 7));
    watch.on_progress({Step(step), 0});  // of node 2 nothing has come
  }
  EXPECT_EQ(watch.differing().size(), 1u);
}

TEST_F(PathsWatched, WhatDiffersIsNarrowedUntilTheNodeOfTheSeatNamesTheTensor) {
  commit(kHeldStep, 8, 7, 7);
  EXPECT_EQ(node.control.tells, 1);
  ASSERT_EQ(sent.size(), 2u) << "to each child";
  EXPECT_EQ(last_order()->begin, 0u);
  EXPECT_EQ(last_order()->seat, Seat(0));

  const std::vector<EqualExtent> parts = parts_of(all_of_it(), 4096, 3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts.back().extent, (Extent{8192, kStreamEnd}));
  commit(Step(42), 8, 7, 7, parts);
  EXPECT_EQ(last_order()->begin, 8192u);
  EXPECT_EQ(node.control.tells, 2) << "the tensor of this node's seat";
  EXPECT_EQ(watch.differing().size(), 1u) << "a part is nothing else that differs";

  commit(Step(43), 8, 7, 7);
  EXPECT_EQ(node.control.tells, 2) << "once";
  for (std::uint64_t step = 44; step < 44 + 40; ++step) commit(Step(step), 8, 7, 7);
  EXPECT_EQ(last_order()->end, 0u) << "nobody has narrower parts";
  const std::size_t orders = sent.size();
  commit(Step(100), 8, 7, 7);
  EXPECT_EQ(sent.size(), orders);
  EXPECT_EQ(node.control.tells, 2);
}

// Seat 2 is sick, and its node has told parts; the root had sealed the step before it ordered them.
TEST_F(PathsWatched, PartsCountOnlyWhereAllSeatsHaveToldThem) {
  commit(kHeldStep, 7, 7, 8);
  EXPECT_EQ(last_order()->seat, Seat(2));
  const std::vector<EqualExtent> parts = parts_of(all_of_it(), 4096, 3);
  arena->arena.slot(0).mark_torn(kRunning, kHeldStep);
  watch.on_sums(NodeId(1), kRunning, sums_of(1, Step(42), 7, parts));
  watch.on_sums(NodeId(2), kRunning, sums_of(2, Step(42), 8, parts));
  watch.on_progress({Step(42), 0});
  EXPECT_EQ(last_order()->begin, 0u);
  commit(Step(43), 7, 7, 8, parts);
  EXPECT_EQ(last_order()->begin, 8192u);
  EXPECT_EQ(last_order()->seat, Seat(2));
}

TEST_F(PathsWatched, WhatIsEqualAgainIsNarrowedNoMore) {
  commit(kHeldStep, 8, 7, 7);
  for (std::uint64_t step = 42; step < 200; ++step) commit(Step(step), 7, 7, 7);
  const std::size_t orders = sent.size();
  commit(Step(200), 7, 7, 7);
  EXPECT_EQ(sent.size(), orders);
}

TEST_F(PathsWatchedLeaf, AnOrderThatDoesNotComeAgainIsForgotten) {
  const EqualExtent all = all_of_it();
  watch.on_narrow({kRunning, all.extent.begin, all.extent.end, all.digest, Seat(1)});
  std::uint64_t step = 41;
  for (; step < 200; ++step) watch.on_progress({Step(step), 0});
  seal(0, Step(step));
  report();
  EXPECT_EQ(message_in<EqualSumsMessage>(sent.back().second)->sums, sums_of(2, Step(step), 7));
}

TEST_F(PathsWatchedLeaf, TellsThePartsThatAreAskedForAndNamesTheTensorsOfItsSeat) {
  const EqualExtent all = all_of_it();
  watch.on_narrow({kRunning, all.extent.begin, all.extent.end, all.digest, Seat(2)});
  node.pass(std::chrono::milliseconds(20));
  EXPECT_EQ(node.control.tells, 0) << "two tensors, which can be told apart";
  seal(0, kHeldStep);
  report();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(message_in<EqualSumsMessage>(sent[0].second)->sums, sums_of(2, kHeldStep, 7, parts_of(all, 4096, 3)));
  watch.on_narrow({kRunning, 0, 8192, all.digest, Seat(1)});
  node.pass(std::chrono::milliseconds(20));
  EXPECT_EQ(node.control.tells, 0) << "another node's seat";
  watch.on_narrow({kRunning, 0, 8192, all.digest, Seat(2)});
  node.pass(std::chrono::milliseconds(20));
  EXPECT_EQ(node.control.tells, 1) << "one tensor, though of two buckets";
}

TEST(PathsWatch, PartsCoverAnExtentAndAreWholeBuckets) {
  for (std::uint64_t buckets = 1; buckets < 300; ++buckets)
    for (const EqualExtent& what : {EqualExtent{{0, kStreamEnd}, 5}, EqualExtent{{4096, buckets * 4096}, 5}}) {
      const std::vector<EqualExtent> parts = parts_of(what, 4096, buckets);
      EXPECT_LE(parts.size(), kPartsMax);
      std::vector<Extent> extents;
      for (const EqualExtent& part : parts) extents.push_back(part.extent);
      if (!parts.empty()) {
        EXPECT_EQ(joined_extents(extents), Extents{what.extent});
      }
      EXPECT_EQ(parts.empty(), buckets < (what.extent.begin == 0 ? 2u : 3u));
    }
}

TEST_F(PathsWatched, OfAnotherGenerationNothingIsHeard) {
  seal(0, kHeldStep);
  report();
  watch.on_sums(NodeId(2), Generation(2), sums_of(2, kHeldStep, 8));
  watch.on_sums(NodeId(1), kRunning, "nonsense");
  watch.on_progress({kHeldStep, 0});
  EXPECT_EQ(watch.differing().size(), 0u);
}

}  // namespace
}  // namespace pawl::job
