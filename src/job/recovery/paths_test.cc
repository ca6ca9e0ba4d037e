#include "job/recovery/paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>

#include "job/recovery/planner.h"

namespace pawl::job {
namespace {

constexpr auto kOwn = SourceKind::own_arena;
constexpr auto kReplica = SourceKind::replica;
constexpr std::uint64_t kShared = 8192;  // bytes; what follows is each seat's own

NodeLife life(std::uint32_t node) {
  return {NodeId(node), Incarnation(node + 100)};
}
InventoryItem item(std::uint32_t seat, SourceKind kind, std::uint64_t step, std::uint64_t generation = 1) {
  return {Seat(seat), kind, Generation(generation), Step(step), SlotState::sealed, kind == kOwn ? seat : 7};
}

// Four seats on four nodes, replicas on the next; all have step 40, and the first bytes are equal on all of them.
class PlannerWithPaths : public testing::Test {
 protected:
  PlannerWithPaths() {
    for (std::uint32_t node = 0; node < 4; ++node) {
      inventories.push_back({life(node), Generation(2), Step(40), {}, {}, 0});
      inventories[node].items = {item(node, kOwn, 40), item((node + 3) % 4, kReplica, 40)};
      for (InventoryItem& each : inventories[node].items) each.layout_digest = each.seat.value;
      declare_equal({0, kShared});
      seats.push_back({Seat(node), life(node), "", 0});
    }
  }
  void declare_equal(Extent extent) {
    for (std::uint32_t i = 0; i < inventories.size(); ++i)
      inventories[i].equal = {{{Seat(0), 1, 4}, {extent, 99}, Seat(inventories[i].life.node.value)}};
  }
  void lose(std::uint32_t node) {
    std::erase_if(inventories, [&](const Inventory& inventory) { return inventory.life == life(node); });
    evicted.push_back(life(node));
  }
  void strike(std::uint32_t node, std::uint32_t seat, SourceKind kind, Extent extent, std::uint32_t of = 0) {
    struck.push_back({life(node), Seat(seat), kind, Generation(1), Step(40), extent, Seat(of)});
  }
  void strike_as_different(std::uint32_t seat, std::uint32_t of, Extent extent) {
    strike(of, seat, SourceKind::path, extent, of);
    struck.back().differs = true;
  }
  void make_all_equal() {
    declare_equal({});
    for (Inventory& inventory : inventories)
      for (InventoryItem& each : inventory.items) each.layout_digest = 5;
  }
  PlanInput input() const { return {4, inventories, lineage, struck, evicted, {}, seats, 1}; }
  PlanInput with_unproven() const {
    PlanInput all = input();
    all.unproven = true;
    return all;
  }
  std::vector<Source> sources_of_seat(std::uint32_t seat) const {
    const Plan plan = plan_restore(input());
    std::vector<Source> all;
    for (const Source& source : plan.sources)
      if (source.seat == Seat(seat)) all.push_back(source);
    return all;
  }
  static Source path(std::uint32_t seat, std::uint32_t of, Extent extent) {
    return {Seat(seat), SourceKind::path, life(of), Generation(1), Step(40), extent, Seat(of)};
  }

  std::vector<Inventory> inventories;
  std::vector<LineageEntry> lineage{{Generation(1), Step(0)}};
  std::vector<Struck> struck;
  std::vector<NodeLife> evicted;
  std::vector<Member> seats;
};

TEST_F(PlannerWithPaths, ASeatWithItsOwnCopyReadsNoPath) {
  const Plan plan = plan_restore(input());
  ASSERT_EQ(plan.sources.size(), 4u);
  for (const Source& source : plan.sources) EXPECT_EQ(source.kind, kOwn);
}

TEST_F(PlannerWithPaths, ASeatThatMovesReadsPathsBesideItsReplicaWhichIsNamedFirst) {
  lose(1);
  const Source replica{Seat(1), kReplica, life(2), Generation(1), Step(40)};
  EXPECT_EQ(sources_of_seat(1), (std::vector<Source>{replica, path(1, 2, {0, kShared}), path(1, 3, {0, kShared}),
                                                     path(1, 0, {0, kShared})}))
      << "while its sums are awaited the replica is the one that is named";
}

TEST_F(PlannerWithPaths, WhatIsWrongInTheOnlyReplicaComesFromAPath) {
  lose(1);
  strike(2, 1, kReplica, {0, 4096});
  const Plan plan = plan_restore(input());
  EXPECT_EQ(plan.resume, Step(40));
  EXPECT_TRUE(plan.lost.empty());
  EXPECT_TRUE(plan.notes.empty());
  const Source left{Seat(1), kReplica, life(2), Generation(1), Step(40), {4096, kStreamEnd}};
  const auto sources = sources_of_seat(1);
  EXPECT_NE(std::ranges::find(sources, left), sources.end());
}

TEST_F(PlannerWithPaths, WhatOnlyTheSeatHasNoPathGivesBack) {
  lose(1);
  strike(2, 1, kReplica, {kShared, kShared + 4096});
  const Plan plan = plan_restore(input());
  EXPECT_EQ(plan.resume, Step(0));
  ASSERT_EQ(plan.lost.size(), 1u);
  EXPECT_NE(plan.lost[0].find("other paths: only bytes 0-8191"), std::string::npos) << plan.lost[0];
}

TEST_F(PlannerWithPaths, WithoutAnythingOfItsOwnASeatIsLostUnlessAllOfItIsEqual) {
  lose(1);
  lose(2);  // with the replica of seat 1, and seat 2, which has one at node 3
  EXPECT_EQ(plan_restore(with_unproven()).resume, Step(0));
  make_all_equal();
  EXPECT_EQ(plan_restore(input()).resume, Step(0)) << "nothing proves it";
  const Plan plan = plan_restore(with_unproven());
  EXPECT_EQ(plan.resume, Step(40));
  std::vector<Source> of_seat;
  std::ranges::copy_if(plan.sources, std::back_inserter(of_seat),
                       [](const Source& source) { return source.seat == Seat(1); });
  EXPECT_EQ(of_seat, (std::vector<Source>{path(1, 3, {}), path(1, 0, {})}));
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_NE(plan.notes[0].find("seat 1: nothing of its own is left"), std::string::npos) << plan.notes[0];
}

TEST_F(PlannerWithPaths, APathThatDiffersIsStruckForThatSeatOnly) {
  lose(1);
  strike(2, 1, kReplica, {0, 4096});
  strike(2, 1, SourceKind::path, {0, kShared}, 2);
  strike(3, 1, SourceKind::path, {0, kShared}, 3);
  EXPECT_EQ(plan_restore(input()).resume, Step(40));  // from seat 0
  strike(0, 1, SourceKind::path, {0, 4096}, 0);
  EXPECT_EQ(plan_restore(input()).resume, Step(0));
  struck.clear();
  strike(2, 1, SourceKind::path, {0, kShared}, 2);
  const Plan plan = plan_restore(input());
  const auto own = std::ranges::find(plan.sources, Seat(2), &Source::seat);
  EXPECT_EQ(own->kind, kOwn);
}

// Of two that were declared equal one at least is not what it should be, and no third can tell which.
TEST_F(PlannerWithPaths, PathsThatDifferAreNoSourceOfASeatThatHasNothingLeft) {
  for (std::uint32_t node = 4; node < 6; ++node) {
    inventories.push_back({life(node), Generation(2), Step(40), {item(node, kOwn, 40)}, {}, 0});
    seats.push_back({Seat(node), life(node), "", 0});
  }
  for (Inventory& inventory : inventories) {
    inventory.equal = {{{Seat(0), 1, 6}, {{}, 99}, Seat(inventory.life.node.value)}};
    for (InventoryItem& each : inventory.items) each.layout_digest = 5;
  }
  lose(1);
  lose(2);
  PlanInput of_six = with_unproven();
  of_six.seat_count = 6;
  EXPECT_EQ(plan_restore(of_six).resume, Step(40));
  strike(3, 1, SourceKind::path, {}, 3);
  strike(4, 1, SourceKind::path, {}, 4);
  of_six.struck = struck;
  EXPECT_EQ(plan_restore(of_six).resume, Step(40)) << "they are only gone";
  struck.clear();
  strike_as_different(1, 3, {});
  of_six.struck = struck;
  EXPECT_EQ(plan_restore(of_six).resume, Step(40)) << "from what, is not known";
  strike_as_different(1, 4, {});
  of_six.struck = struck;
  const Plan plan = plan_restore(of_six);
  EXPECT_EQ(plan.resume, Step(0));
  ASSERT_FALSE(plan.lost.empty());
  EXPECT_NE(plan.lost[0].find("other paths: what was declared equal is not"), std::string::npos) << plan.lost[0];
}

TEST_F(PlannerWithPaths, WhatIsWrongOnAPathIsNotReadThere) {
  lose(1);
  strike(2, 2, kOwn, {0, 4096});
  const auto sources = sources_of_seat(1);
  EXPECT_NE(std::ranges::find(sources, path(1, 2, {4096, kShared})), sources.end());
  EXPECT_EQ(std::ranges::find(sources, path(1, 2, {0, kShared})), sources.end());
}

TEST_F(PlannerWithPaths, AnotherSlotGenerationIsNoPath) {
  lose(1);
  strike(2, 1, kReplica, {0, 4096});
  lineage.push_back({Generation(2), Step(40)});
  for (Inventory& inventory : inventories)
    for (InventoryItem& each : inventory.items)
      if (each.kind == kOwn) each.slot_generation = Generation(2);
  EXPECT_EQ(plan_restore(input()).resume, Step(0));
}

// One bad bucket each, say: a fifth may have it right, and sums tell.
TEST_F(PlannerWithPaths, DamageOnManyPathsShutsOutNoOther) {
  for (std::uint32_t node = 4; node < 6; ++node) {
    inventories.push_back({life(node), Generation(2), Step(40), {item(node, kOwn, 40)}, {}, 0});
    seats.push_back({Seat(node), life(node), "", 0});
  }
  for (Inventory& inventory : inventories)
    inventory.equal = {{{Seat(0), 1, 6}, {{0, kShared}, 99}, Seat(inventory.life.node.value)}};
  lose(1);
  strike(2, 1, kReplica, {0, 4096});
  for (const std::uint32_t of : {2u, 3u, 4u, 5u}) strike(of, 1, SourceKind::path, {0, 4096}, of);
  PlanInput of_six = input();
  of_six.seat_count = 6;
  EXPECT_EQ(plan_restore(of_six).resume, Step(40)) << "seat 0 has it";
  for (Struck& one : struck) one.differs = one.kind == SourceKind::path;
  EXPECT_EQ(plan_restore(of_six).resume, Step(0)) << "what was declared equal is not";
}

// A path of a node that leaves is worth no waiting for it.
TEST_F(PlannerWithPaths, PathsAtNodesThatLeaveAreNotNamedWhereNobodyNeedsThem) {
  lose(1);
  PlanInput leaving = input();
  const std::vector<NodeLife> lingering{life(3)};
  leaving.lingering = lingering;
  const auto names = [](const Plan& plan, std::uint32_t node) {
    return std::ranges::any_of(plan.sources, [node](const Source& source) {
      return source.kind == SourceKind::path && source.from == life(node);
    });
  };
  const Plan plan = plan_restore(leaving);
  EXPECT_TRUE(names(plan, 2));
  EXPECT_FALSE(names(plan, 3));
  strike(2, 1, kReplica, {0, 4096});
  strike(2, 1, SourceKind::path, {0, 4096}, 2);
  strike(0, 1, SourceKind::path, {0, 4096}, 0);
  leaving.struck = struck;
  EXPECT_TRUE(names(plan_restore(leaving), 3)) << "nobody else has it";
}

TEST_F(PlannerWithPaths, PathsMakeNoStepBetterKeptThanItsCopies) {
  for (const std::uint32_t node : {0u, 2u, 3u}) inventories[node].items.push_back(item(node, kOwn, 41));
  make_all_equal();
  EXPECT_EQ(plan_restore(with_unproven()).resume,
            Step(40));  // 41 is whole by paths, and lacks seat 1's own slot and all replicas
}

TEST_F(PlannerWithPaths, AnExposureCountsOnNothingThatIsNotProvenAndSaysWhatThereIs) {
  const std::vector<NodeId> dead{NodeId(1), NodeId(2)};
  const auto last_of = [&] {
    const Exposure exposure = exposure_if(input(), dead, Step(40));
    EXPECT_FALSE(exposure.recoverable);
    return exposure.lost.empty() ? std::string() : exposure.lost.back();
  };
  EXPECT_EQ(last_of().find("nothing proves"), std::string::npos);
  make_all_equal();
  EXPECT_NE(last_of().find("from step 40 as other seats have it"), std::string::npos) << last_of();
}

// Half of `count` nodes die, and each of their seats has its replica at the next one; that of seat 1 lacks a bucket.
Plan plan_of_half(std::uint32_t count) {
  std::vector<Inventory> inventories;
  std::vector<Member> seats;
  std::vector<NodeLife> evicted;
  for (std::uint32_t node = 0; node < count; ++node) {
    seats.push_back({Seat(node), life(node), "", 0});
    if (node % 2 == 1) {
      evicted.push_back(life(node));
      continue;
    }
    inventories.push_back({life(node), Generation(2), Step(40), {}, {}, 0});
    inventories.back().items = {item(node, kOwn, 40), item((node + count - 1) % count, kReplica, 40)};
    for (InventoryItem& each : inventories.back().items) each.layout_digest = each.seat.value;
    inventories.back().equal = {{{Seat(0), 1, count}, {{0, kShared}, 99}, Seat(node)}};
  }
  const std::vector<LineageEntry> lineage{{Generation(1), Step(0)}};
  const std::vector<Struck> struck{{life(2), Seat(1), kReplica, Generation(1), Step(40), {0, 4096}}};
  return plan_restore({count, inventories, lineage, struck, evicted, {}, seats, 1});
}

// A state with a row for each of many extents would not fit into one value of the control.
TEST(Paths, AllSeatsTogetherNameNoMoreThanHaveRoom) {
  constexpr std::uint32_t kCount = 400;
  constexpr std::uint32_t kDead = 200;
  std::vector<Inventory> inventories;
  std::vector<Member> seats;
  std::vector<NodeLife> evicted;
  for (std::uint32_t node = 0; node < kCount; ++node) {
    seats.push_back({Seat(node), life(node), "", 0});
    if (node < kDead) {
      evicted.push_back(life(node));
      continue;
    }
    inventories.push_back({life(node), Generation(2), Step(40), {}, {}, 0});
    inventories.back().items = {item(node, kOwn, 40), item(node - kDead, kReplica, 40)};
    for (InventoryItem& each : inventories.back().items) each.layout_digest = each.seat.value;
    for (std::uint64_t extent = 0; extent < kEqualExtentsMax; ++extent)
      inventories.back().equal.push_back(
          {{Seat(0), 1, kCount}, {{extent * 8192, extent * 8192 + 4096}, 99}, Seat(node)});
  }
  const std::vector<LineageEntry> lineage{{Generation(1), Step(0)}};
  const Plan plan = plan_restore({kCount, inventories, lineage, {}, evicted, {}, seats, 1});
  EXPECT_EQ(plan.resume, Step(40));
  const auto paths = static_cast<std::size_t>(std::ranges::count(plan.sources, SourceKind::path, &Source::kind));
  EXPECT_EQ(paths, 0u);
  EXPECT_EQ(plan.sources.size(), kCount);
}

TEST(Paths, OfManySeatsOnlyThoseThatNeedThemNamePaths) {
  const auto paths_of = [](const Plan& plan, std::uint32_t seat) {
    return std::ranges::count_if(plan.sources, [seat](const Source& source) {
      return source.seat == Seat(seat) && source.kind == SourceKind::path;
    });
  };
  const Plan few = plan_of_half(20);
  EXPECT_EQ(few.resume, Step(40));
  EXPECT_EQ(paths_of(few, 1), kPathsMax);
  EXPECT_EQ(paths_of(few, 3), kPathsMax);
  const Plan many = plan_of_half(2 * kSeatsWithPathsMax + 2);
  EXPECT_EQ(many.resume, Step(40));
  EXPECT_EQ(paths_of(many, 1), 1);
  EXPECT_EQ(paths_of(many, 3), 0);
}

// Byte by byte, whether a step of each seat can be put together.
bool is_whole_naively(const PlanInput& input, Seat seat, Step step, std::uint64_t bytes) {
  const auto is_struck = [&](NodeLife at, SourceKind kind, const InventoryItem& of, Seat reader, std::uint64_t byte) {
    return std::ranges::any_of(input.struck, [&](const Struck& one) {
      return one.at == at && one.kind == kind && one.seat == reader && one.slot_generation == of.slot_generation &&
             one.step == of.step && one.extent.begin <= byte && byte < one.extent.end &&
             (kind != SourceKind::path || one.of == of.seat);
    });
  };
  const auto is_there = [&](const InventoryItem& one) { return one.state == SlotState::sealed && one.step == step; };
  std::set<std::pair<Generation, std::uint64_t>> together;
  bool has_own = false;
  for (const Inventory& inventory : input.inventories)
    for (const InventoryItem& one : inventory.items) {
      if (!is_there(one)) continue;
      together.insert({one.slot_generation, one.layout_digest});
      for (std::uint64_t byte = 0; byte < bytes; ++byte)
        has_own = has_own || (one.seat == seat && !is_struck(inventory.life, one.kind, one, seat, byte));
    }
  for (const auto& [generation, layout] : together) {
    const auto can_read = [&](std::uint64_t byte, const InventoryItem* only = nullptr) {
      for (const Inventory& inventory : input.inventories)
        for (const InventoryItem& one : inventory.items) {
          if (!is_there(one) || one.slot_generation != generation || (only != nullptr && only != &one)) continue;
          if (one.seat == seat) {
            if (one.layout_digest == layout && !is_struck(inventory.life, one.kind, one, seat, byte)) return true;
            continue;
          }
          if (one.kind != kOwn || is_struck(inventory.life, kOwn, one, one.seat, byte) ||
              is_struck(inventory.life, SourceKind::path, one, seat, byte))
            continue;
          for (const EqualOffer& offer : inventory.equal)
            if (offer.seat == one.seat && offer.seats.has(seat) && offer.state.extent.begin <= byte &&
                byte < offer.state.extent.end &&
                (has_own || (one.layout_digest == layout && offer.state.extent.is_whole())))
              return true;
        }
      return false;
    };
    // With something of its own, its sums must be among what is put together.
    const bool has_sums = !has_own || std::ranges::any_of(input.inventories, [&](const Inventory& inventory) {
      return std::ranges::any_of(inventory.items, [&](const InventoryItem& one) {
        if (!is_there(one) || one.seat != seat || one.slot_generation != generation || one.layout_digest != layout)
          return false;
        for (std::uint64_t byte = 0; byte < bytes; ++byte)
          if (!is_struck(inventory.life, one.kind, one, seat, byte)) return true;
        return false;
      });
    });
    bool all = has_sums;
    for (std::uint64_t byte = 0; byte < bytes && all; ++byte) all = can_read(byte);
    if (!all || has_own) {
      if (all) return true;
      continue;
    }
    // Without sums of its own, one path alone has to have it.
    for (const Inventory& inventory : input.inventories)
      for (const InventoryItem& one : inventory.items) {
        all = true;
        for (std::uint64_t byte = 0; byte < bytes && all; ++byte) all = can_read(byte, &one);
        if (all) return true;
      }
  }
  return false;
}

// Random jobs with few bytes, one step, strikes and losses of every kind. At most five seats, so that kPathsMax cuts nothing.
TEST(Paths, AStepIsWholeExactlyIfItCanBePutTogetherByteByByte) {
  std::mt19937 random(5);
  const auto below = [&random](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  std::uint32_t whole = 0;
  std::uint32_t by_paths = 0;
  constexpr std::uint64_t kBytes = 6;  // the last of them stands for all up to the end
  for (int round = 0; round < 4000; ++round) {
    const std::uint32_t count = 2 + below(2) * 2;
    const std::uint32_t stride = count == 4 && below(2) == 0 ? 2 : 1;
    const bool all_equal = below(3) == 0;
    const Extent extents[] = {{}, {0, 4}, {2, 5}};
    const Extent equal = all_equal ? extents[0] : extents[1 + below(2)];
    std::vector<Inventory> inventories;
    std::vector<Struck> struck;
    std::vector<Member> seats;
    for (std::uint32_t node = 0; node < count; ++node) {
      seats.push_back({Seat(node), life(node), "", 0});
      if (below(3) == 0) continue;  // it died
      Inventory inventory{life(node), Generation(3), Step(0), {}, {}, 0};
      for (const auto& [seat, kind] : {std::pair(node, kOwn), std::pair((node + 1) % count, kReplica)}) {
        if (below(5) == 0) continue;
        InventoryItem one = item(seat, kind, 40, 1 + (below(6) == 0 ? 1 : 0));
        one.layout_digest = all_equal ? 5 : seat;
        inventory.items.push_back(one);
        if (below(3) == 0) {
          const std::uint32_t begin = below(6);
          struck.push_back({life(node),
                            Seat(seat),
                            kind,
                            one.slot_generation,
                            Step(40),
                            {begin, begin == 5 ? kStreamEnd : begin + 1}});
        }
      }
      std::ranges::sort(inventory.items);
      if (below(5) != 0) inventory.equal = {{seats_with(Seat(node), stride, count / stride), {equal, 99}, Seat(node)}};
      if (below(4) == 0) {
        const Seat reader(below(count));
        struck.push_back({life(node), reader, SourceKind::path, Generation(1), Step(40), {1, 3}, Seat(node)});
      }
      inventories.push_back(std::move(inventory));
    }
    const std::vector<LineageEntry> lineage{{Generation(1), Step(0)}, {Generation(2), Step(40)}};
    PlanInput input{count, inventories, lineage, struck, {}, Step(40), seats, 0};
    input.unproven = true;
    bool naive = true;
    for (std::uint32_t seat = 0; seat < count; ++seat)
      naive = naive && is_whole_naively(input, Seat(seat), Step(40), kBytes);
    const Plan plan = plan_restore(input);
    ASSERT_EQ(plan.resume == Step(40), naive) << "round " << round;
    whole += naive ? 1 : 0;
    for (std::uint32_t seat = 0; naive && seat < count; ++seat) {
      Extents all;
      Extents own;
      for (const Source& source : plan.sources) {
        if (source.seat != Seat(seat)) continue;
        all.push_back(source.extent);
        if (source.kind != SourceKind::path) own.push_back(source.extent);
      }
      EXPECT_TRUE(holes_in(all).empty()) << "round " << round;
      by_paths += holes_in(own).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(whole, 400u);
  EXPECT_GT(by_paths, 100u);
}

}  // namespace
}  // namespace pawl::job
