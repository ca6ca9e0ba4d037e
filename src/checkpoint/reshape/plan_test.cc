#include "checkpoint/reshape/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace pawl::checkpoint {
namespace {

using Split = AxisPattern::Split;

JobTensor tensor_of(std::string name, Shape shape, std::vector<AxisPattern> patterns = {}) {
  return {std::move(name), "weight", ElementType::float32, std::move(shape), {}, {0, std::move(patterns)}};
}

JobLayout layout_of(std::uint32_t ranks, std::vector<JobTensor> tensors, std::vector<FlatGroup> groups = {}) {
  JobLayout layout{ranks, {{"mesh", {{"dp", ranks}}}}, std::move(tensors), std::move(groups)};
  EXPECT_TRUE(check_layout(layout));
  return layout;
}

// "rank 0 [342] at [0] from 0 -> rank 0 from 0"
std::vector<std::string> copies_between(const JobLayout& from, const JobLayout& to) {
  const Enumeration source_ranks(from);
  const Enumeration target(to);
  const ReshapeSource source = source_of(source_ranks);
  const auto plan = ReshapePlan::create(source, target);
  EXPECT_TRUE(plan) << plan.error().what;
  std::vector<std::string> lines;
  const Status status = plan->plan_all([&](const PlannedCopy& copy) {
    lines.push_back("rank " + std::to_string(copy.sources[0].holder) + " " + text_of(shape_of(copy.box)) + " at " +
                    text_of(begin_of(copy.box)) + " from " + std::to_string(copy.sources[0].offset) + " -> rank " +
                    std::to_string(copy.target.holder) + " from " + std::to_string(copy.target.offset));
  });
  EXPECT_TRUE(status) << status.error().what;
  return lines;
}

// The Universal Checkpointing paper's walk: 1024 elements, DP3 pads to 1026 and cuts to 342 each; stripped, cut for
// DP2.
TEST(ReshapePlan, WalksThePapersSixOperators) {
  const auto zero = [](std::uint32_t ranks) {
    return layout_of(ranks, {tensor_of("p", {1024})}, {{.name = "zero", .mesh = 0, .axes = {0}, .members = {{0, 0}}}});
  };
  const JobLayout from = zero(3);
  const JobLayout to = zero(2);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Enumeration(from).buffers_of(rank), (std::vector<Buffer>{{1, ElementType::float32, 342}}));
  }
  EXPECT_EQ(Enumeration(to).buffers_of(0)[0].size, 512u);
  EXPECT_EQ(copies_between(from, to), (std::vector<std::string>{
                                          "rank 0 [342] at [0] from 0 -> rank 0 from 0",
                                          "rank 1 [170] at [342] from 0 -> rank 0 from 342",
                                          "rank 1 [172] at [512] from 170 -> rank 1 from 0",
                                          "rank 2 [340] at [684] from 0 -> rank 1 from 172",
                                      }));
}

TEST(ReshapePlan, CrossesRowsWithColumns) {
  EXPECT_EQ(copies_between(layout_of(2, {tensor_of("w", {4, 6}, {AxisPattern::shard(0, 0)})}),
                           layout_of(2, {tensor_of("w", {4, 6}, {AxisPattern::shard(0, 1)})})),
            (std::vector<std::string>{
                "rank 0 [2,3] at [0,0] from 0 -> rank 0 from 0",
                "rank 1 [2,3] at [2,0] from 0 -> rank 0 from 6",
                "rank 0 [2,3] at [0,3] from 3 -> rank 1 from 0",
                "rank 1 [2,3] at [2,3] from 3 -> rank 1 from 6",
            }));
}

TEST(ReshapePlan, ScalarsAndEmptyTensors) {
  const JobLayout layout = layout_of(2, {tensor_of("step", {}), tensor_of("none", {0, 3})});
  EXPECT_EQ(copies_between(layout, layout), (std::vector<std::string>{
                                                "rank 0 [] at [] from 0 -> rank 0 from 0",
                                                "rank 1 [] at [] from 0 -> rank 1 from 0",
                                            }));
}

TEST(ReshapePlan, NamesWhatDoesNotFit) {
  const auto refused = [](std::vector<JobTensor> from, std::vector<JobTensor> to, ReshapeOptions options = {}) {
    const JobLayout source_layout = layout_of(1, std::move(from));
    const JobLayout target_layout = layout_of(1, std::move(to));
    const Enumeration held(source_layout);
    const Enumeration target(target_layout);
    const ReshapeSource source = source_of(held);
    const auto plan = ReshapePlan::create(source, target, options);
    return plan ? "" : plan.error().what;
  };
  EXPECT_EQ(refused({tensor_of("a", {4})}, {tensor_of("a", {5})}), "tensor a (weight): [4] held, [5] wanted");
  EXPECT_EQ(refused({tensor_of("a", {4})}, {tensor_of("b", {4})}),
            "tensor b (weight): [4] wanted, none held; tensor a (weight): [4] held, none wanted");
  EXPECT_EQ(refused({tensor_of("a", {4}), tensor_of("b", {4})}, {tensor_of("b", {4})}, {.may_drop_tensors = true}), "");
  JobTensor integer = tensor_of("a", {4});
  integer.dtype = ElementType::int64;
  EXPECT_EQ(refused({integer}, {tensor_of("a", {4})}),
            "tensor a (weight): int64 [4] held, float32 [4] wanted: no such cast");
  integer.placement.patterns = {AxisPattern::averaged(0)};
  EXPECT_EQ(refused({integer}, {integer}), "");  // one version only
  std::vector<JobTensor> many;
  for (int i = 0; i < 8; ++i) many.push_back(tensor_of("t" + std::to_string(i), {1}));
  EXPECT_TRUE(refused({}, many).ends_with("tensor t4 (weight): [1] wanted, none held; and 3 more"));
}

TEST(ReshapePlan, NamesHoles) {
  const JobLayout from = layout_of(3, {tensor_of("w", {6, 2}, {AxisPattern::shard(0, 0)})});
  const JobLayout to = layout_of(1, {tensor_of("w", {6, 2})});
  const Enumeration held(from);
  const Enumeration target(to);
  const ReshapeSource source = source_of(held, {true, false, true});
  const auto plan = ReshapePlan::create(source, target);
  ASSERT_TRUE(plan);
  const Status status = plan->plan_rank(0, [](const PlannedCopy&) {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::not_found);
  EXPECT_EQ(status.error().what, "tensor w (weight): [6,2] wanted, [2,2] at [2,0] held by nobody");
}

TEST(ReshapePlan, RefusesFilesThatHoldARegionTwice) {
  const JobLayout to = layout_of(1, {tensor_of("w", {6})});
  const Enumeration target(to);
  ReshapeSource files;
  files.tensors = {{"w", "weight", ElementType::float32, {6}}};
  std::uint32_t copy = 0;
  files.append_pieces = [&copy](std::uint32_t, std::vector<TensorPiece>& out) {
    out.push_back({.holder = 0, .box = {1, {0}, {4}}, .stride = {1}});
    out.push_back({.holder = 1, .copy = copy, .box = {1, {3}, {3}}, .stride = {1}});
  };
  const auto plan = ReshapePlan::create(files, target);
  ASSERT_TRUE(plan);
  const Status status = plan->plan_all([](const PlannedCopy&) {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::corrupt);
  EXPECT_EQ(status.error().what, "tensor w (weight): [6], held twice around [3] at [3]");
  copy = 1;  // another copy may lie across
  EXPECT_TRUE(plan->plan_all([](const PlannedCopy&) {}));
}

TEST(ReshapePlan, BalancesBytesOverReplicas) {
  std::vector<JobTensor> tensors;
  for (std::uint64_t i = 0; i < 200; ++i) tensors.push_back(tensor_of("t" + std::to_string(i), {1 + i * 37 % 101}));
  const JobLayout from = layout_of(5, tensors);
  const JobLayout to = layout_of(1, tensors);
  const Enumeration held(from);
  const Enumeration target(to);
  const ReshapeSource source = source_of(held);
  const auto plan = ReshapePlan::create(source, target);
  ASSERT_TRUE(plan);
  std::map<std::uint32_t, std::uint64_t> given;
  ASSERT_TRUE(plan->plan_rank(0, [&](const PlannedCopy& copy) { given[copy.sources[0].holder] += volume(copy.box); }));
  ASSERT_EQ(given.size(), 5u);
  std::uint64_t least = ~std::uint64_t{0};
  std::uint64_t most = 0;
  for (const auto& [holder, elements] : given) {
    least = std::min(least, elements);
    most = std::max(most, elements);
  }
  EXPECT_LE(most - least, 101u);  // the largest tensor
}

TEST(ReshapePlan, TakesItsOwnCopyIfAsked) {
  const JobLayout layout = layout_of(40, {tensor_of("w", {6})});
  const Enumeration ranks(layout);
  const ReshapeSource source = source_of(ranks);
  const auto plan = ReshapePlan::create(source, ranks, {.prefer_own_rank = true});
  ASSERT_TRUE(plan);
  ASSERT_TRUE(plan->plan_all([](const PlannedCopy& copy) { EXPECT_EQ(copy.sources[0].holder, copy.target.holder); }));
}

TEST(ReshapePlan, BringsAllVersionsOfAnAveragedTensorInRankOrder) {
  const JobLayout from = layout_of(3, {tensor_of("norm", {4}, {AxisPattern::averaged(0)})});
  const JobLayout to = layout_of(2, {tensor_of("norm", {4}, {AxisPattern::shard(0, 0)})});
  const Enumeration held(from);
  const Enumeration target(to);
  const ReshapeSource source = source_of(held);
  const auto plan = ReshapePlan::create(source, target);
  ASSERT_TRUE(plan);
  std::size_t copies = 0;
  ASSERT_TRUE(plan->plan_all([&](const PlannedCopy& copy) {
    ++copies;
    ASSERT_EQ(copy.sources.size(), 3u);
    for (std::uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(copy.sources[i].holder, i);
      EXPECT_EQ(copy.sources[i].offset, copy.target.holder * 2);
    }
  }));
  EXPECT_EQ(copies, 2u);
}

// Of two versions cut at different places, [0,4) [4,6) and [0,1) [1,6), the copies are [0,1) [1,4) [4,6).
TEST(ReshapePlan, SplitsVersionsWhereAnyOfThemIsCut) {
  const JobLayout to = layout_of(1, {tensor_of("norm", {6})});
  const Enumeration target(to);
  ReshapeSource source;
  source.tensors = {{"norm", "weight", ElementType::float32, {6}, 2}};
  source.append_pieces = [](std::uint32_t, std::vector<TensorPiece>& out) {
    out.push_back({.holder = 0, .version = 0, .box = {1, {0}, {4}}, .offset = 10, .stride = {1}});
    out.push_back({.holder = 1, .version = 0, .box = {1, {4}, {2}}, .offset = 20, .stride = {1}});
    out.push_back({.holder = 2, .version = 1, .box = {1, {0}, {1}}, .offset = 30, .stride = {1}});
    out.push_back({.holder = 3, .version = 1, .box = {1, {1}, {5}}, .offset = 40, .stride = {1}});
  };
  const auto plan = ReshapePlan::create(source, target);
  ASSERT_TRUE(plan);
  std::vector<std::vector<std::uint64_t>> copies;  // begin, size, both sources' offsets, the target's
  ASSERT_TRUE(plan->plan_rank(0, [&](const PlannedCopy& copy) {
    copies.push_back(
        {copy.box.begin[0], copy.box.size[0], copy.sources[0].offset, copy.sources[1].offset, copy.target.offset});
  }));
  EXPECT_EQ(copies, (std::vector<std::vector<std::uint64_t>>{{0, 1, 10, 30, 0}, {1, 3, 11, 40, 1}, {4, 2, 20, 43, 4}}));
}

// A payload [256,96] in blocks of [64,32], so that its scales are [4,3].
class Blocks : public testing::Test {
 protected:
  std::string planned(std::vector<AxisPattern> payload, std::vector<AxisPattern> scales, Shape scale_shape = {4, 3}) {
    ReshapeSource source;
    source.tensors = {{"w", "weight", ElementType::float8_e4m3fn, {256, 96}},
                      {"w_scale", "weight", ElementType::float32, scale_shape, 1, {"w", {64, 32}}}};
    source.append_pieces = [&](std::uint32_t tensor, std::vector<TensorPiece>& out) {
      const Box box = whole_box(source.tensors[tensor].shape);
      out.push_back({.tensor = tensor, .box = box, .stride = {box.size[1], 1}});
    };
    JobLayout layout{4, {{"m", {{"a", 2}, {"b", 2}}}}, {}, {}};
    layout.tensors.push_back({"w", "weight", ElementType::float8_e4m3fn, {256, 96}, {}, {0, std::move(payload)}});
    layout.tensors.push_back({"w_scale", "weight", ElementType::float32, scale_shape, {}, {0, std::move(scales)}});
    EXPECT_TRUE(check_layout(layout));
    const Enumeration target(layout);
    const auto plan = ReshapePlan::create(source, target);
    return plan ? "" : plan.error().what;
  }
};

TEST_F(Blocks, AreCutOnTheirEdges) {
  EXPECT_EQ(planned({}, {}), "");
  EXPECT_EQ(planned({AxisPattern::shard(0, 0)}, {AxisPattern::shard(0, 0)}), "");
  EXPECT_EQ(planned({AxisPattern::shard(0, 0)}, {}), "");  // more scales than it needs do no harm
  EXPECT_EQ(planned({AxisPattern::shard(0, 0), AxisPattern::shard(1, 0)},
                    {AxisPattern::shard(0, 0), AxisPattern::shard(1, 0)}),
            "");
  EXPECT_EQ(planned({AxisPattern::shard_sizes(1, 1, {64, 32})}, {AxisPattern::shard(1, 1)}), "");
}

TEST_F(Blocks, OrRefusedWithBothShapes) {
  EXPECT_EQ(planned({AxisPattern::shard(0, 1)}, {AxisPattern::shard(0, 1)}),
            "tensor w (weight): [256,96], wanted as [256,48] at [0,0] on rank 0, scaled by tensor w_scale (weight): "
            "[4,3]: cut within a block of [64,32]");
  EXPECT_EQ(planned({AxisPattern::only(0, {0})}, {AxisPattern::only(0, {1})}), "");  // whole, as in two files
  EXPECT_NE(planned({AxisPattern::only(0, {0}), AxisPattern::shard(1, 0)}, {AxisPattern::only(0, {1})}), "");
  EXPECT_EQ(planned({}, {AxisPattern::shard(0, 0)}),
            "tensor w (weight): [256,96], wanted as [256,96] at [0,0] on rank 0, scaled by tensor w_scale (weight): "
            "[4,3], which that rank does not get for it");
  EXPECT_EQ(planned({}, {}, {3, 4}),
            "tensor w (weight): [256,96], scaled by tensor w_scale (weight): [3,4] in blocks of [64,32]: these shapes "
            "do not go together");
}

TEST(ReshapePlan, DoesNotCutPackedTypes) {
  JobTensor packed = tensor_of("w", {4, 6});
  packed.dtype = ElementType::float4_e2m1;
  const JobLayout whole = layout_of(2, {packed});
  packed.placement.patterns = {AxisPattern::shard(0, 0)};
  const JobLayout cut = layout_of(2, {packed});
  const Enumeration held(whole);
  const ReshapeSource source = source_of(held);
  const Enumeration target(cut);
  const auto plan = ReshapePlan::create(source, target);
  ASSERT_TRUE(plan);
  const Status status = plan->plan_all([](const PlannedCopy&) {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().what,
            "tensor w (weight): [4,6] of float4_e2m1 elements, which are packed and cannot be cut");
  const auto kept = ReshapePlan::create(source, held);
  ASSERT_TRUE(kept);
  EXPECT_TRUE(kept->plan_all([](const PlannedCopy&) {}));
}

}  // namespace
}  // namespace pawl::checkpoint
