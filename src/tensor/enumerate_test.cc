#include "tensor/enumerate.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace pawl {
namespace {

using Kind = DTensorPlacement::Kind;
using Split = AxisPattern::Split;

Mesh mesh_of(std::vector<Mesh::Axis> axes) {
  return {"mesh", std::move(axes)};
}

std::uint32_t world_of(const Mesh& mesh) {
  std::uint64_t world = 1;
  for (const Mesh::Axis& axis : mesh.axes) world *= axis.size;
  return static_cast<std::uint32_t>(world);
}

JobLayout layout_of(Mesh mesh, std::vector<JobTensor> tensors, std::vector<FlatGroup> groups = {}) {
  const std::uint32_t world = world_of(mesh);
  return {world, {std::move(mesh)}, std::move(tensors), std::move(groups)};
}

JobTensor tensor_of(std::string name, Shape shape, std::vector<AxisPattern> patterns = {}) {
  return {std::move(name), "weight", ElementType::float32, std::move(shape), {}, {0, std::move(patterns)}};
}

std::vector<TensorPiece> pieces_of(const JobLayout& layout, std::uint32_t tensor, std::uint32_t rank) {
  EXPECT_TRUE(check_layout(layout)) << check_layout(layout).error().what;
  std::vector<TensorPiece> pieces;
  Enumeration(layout).append_pieces(tensor, rank, pieces);
  return pieces;
}

// "[2,3] at [0,4] from 7": a piece's size, where it lies in the tensor, and where in the buffer.
std::vector<std::string> said(const std::vector<TensorPiece>& pieces) {
  std::vector<std::string> lines;
  for (const TensorPiece& piece : pieces) {
    lines.push_back(text_of(shape_of(piece.box)) + " at " + text_of(begin_of(piece.box)) + " from " +
                    std::to_string(piece.offset));
  }
  return lines;
}
using Said = std::vector<std::string>;

TEST(Placement, ChunksAsTorchDoes) {
  const auto lengths = [](std::uint64_t extent, std::uint64_t parts) {
    const Mesh mesh = mesh_of({{"dp", parts}});
    std::vector<std::uint64_t> out;
    for (std::uint64_t i = 0; i < parts; ++i) {
      LocalArray array;
      EXPECT_TRUE(local_array({0, {AxisPattern::shard(0, 0)}}, mesh, {extent}, {i}, array));
      out.push_back(array.shape()[0]);
    }
    return out;
  };
  using Lengths = std::vector<std::uint64_t>;
  EXPECT_EQ(lengths(8, 4), (Lengths{2, 2, 2, 2}));
  EXPECT_EQ(lengths(10, 4), (Lengths{3, 3, 3, 1}));
  EXPECT_EQ(lengths(5, 4), (Lengths{2, 2, 1, 0}));
  EXPECT_EQ(lengths(6, 5), (Lengths{2, 2, 2, 0, 0}));
  EXPECT_EQ(lengths(1, 3), (Lengths{1, 0, 0}));
  EXPECT_EQ(lengths(0, 3), (Lengths{0, 0, 0}));
}

// Column-parallel under FSDP2: weight [10,3], tp 2 cuts rows to 5 + 5, then dp 2 cuts each to 3 + 2.
// Torch: mesh (dp, tp), placements (_StridedShard(0, split_factor=2), Shard(0)).
TEST(Placement, StridedShardCutsAfterTensorParallel) {
  const Mesh mesh = mesh_of({{"dp", 2}, {"tp", 2}});
  const auto patterns = patterns_of(mesh, {{Kind::strided_shard, 0, 2}, {Kind::shard, 0}});
  ASSERT_TRUE(patterns);
  EXPECT_EQ(*patterns, (std::vector{AxisPattern::shard(1, 0), AxisPattern::shard(0, 0)}));
  const JobLayout layout = layout_of(mesh, {tensor_of("w", {10, 3}, *patterns)});
  EXPECT_EQ(said(pieces_of(layout, 0, 0)), Said{"[3,3] at [0,0] from 0"});  // dp 0, tp 0
  EXPECT_EQ(said(pieces_of(layout, 0, 1)), Said{"[3,3] at [5,0] from 0"});  // dp 0, tp 1
  EXPECT_EQ(said(pieces_of(layout, 0, 2)), Said{"[2,3] at [3,0] from 0"});  // dp 1, tp 0
  EXPECT_EQ(said(pieces_of(layout, 0, 3)), Said{"[2,3] at [8,0] from 0"});  // dp 1, tp 1

  // Without the stride, dp cuts first: 5 + 5, and tp cuts each to 3 + 2.
  const auto plain = patterns_of(mesh, {{Kind::shard, 0}, {Kind::shard, 0}});
  ASSERT_TRUE(plain);
  const JobLayout other = layout_of(mesh, {tensor_of("w", {10, 3}, *plain)});
  EXPECT_EQ(said(pieces_of(other, 0, 1)), Said{"[2,3] at [3,0] from 0"});
  EXPECT_EQ(said(pieces_of(other, 0, 2)), Said{"[3,3] at [5,0] from 0"});
}

TEST(Placement, OrdersThreeAxesByTheirSplitFactors) {
  const Mesh mesh = mesh_of({{"pod", 2}, {"dp", 3}, {"tp", 5}});
  const auto order = [&](std::vector<DTensorPlacement> placements) {
    std::vector<std::uint32_t> axes;
    const auto patterns = patterns_of(mesh, placements);
    if (!patterns) return axes;
    for (const AxisPattern& pattern : *patterns) axes.push_back(pattern.axis);
    return axes;
  };
  using Axes = std::vector<std::uint32_t>;
  EXPECT_EQ(order({{Kind::shard, 0}, {Kind::shard, 0}, {Kind::shard, 0}}), (Axes{0, 1, 2}));
  EXPECT_EQ(order({{Kind::strided_shard, 0, 15}, {Kind::strided_shard, 0, 5}, {Kind::shard, 0}}), (Axes{2, 1, 0}));
  EXPECT_EQ(order({{Kind::strided_shard, 0, 3}, {Kind::shard, 0}, {Kind::shard, 0}}), (Axes{1, 0, 2}));
  EXPECT_EQ(order({{Kind::replicate}, {Kind::strided_shard, 0, 5}, {Kind::shard, 0}}), (Axes{2, 1}));
  EXPECT_EQ(order({{Kind::shard, 1}, {Kind::strided_shard, 0, 5}, {Kind::shard, 0}}).size(), 3u);
  EXPECT_EQ(order({{Kind::strided_shard, 0, 7}, {Kind::shard, 0}, {Kind::shard, 0}}), Axes{});
  EXPECT_EQ(order({{Kind::shard, 0}}), Axes{});
}

// Grouped-query attention: 8 query rows, 2 key rows, 2 value rows, fused; tp 2 cuts each of the three.
TEST(Placement, CutsEachSegmentOfAFusedTensor) {
  const JobLayout layout =
      layout_of(mesh_of({{"tp", 2}}), {tensor_of("qkv", {12, 4}, {AxisPattern::shard_segments(0, 0, {8, 2, 2})})});
  EXPECT_EQ(said(pieces_of(layout, 0, 0)),
            (Said{"[4,4] at [0,0] from 0", "[1,4] at [8,0] from 16", "[1,4] at [10,0] from 20"}));
  EXPECT_EQ(said(pieces_of(layout, 0, 1)),
            (Said{"[4,4] at [4,0] from 0", "[1,4] at [9,0] from 16", "[1,4] at [11,0] from 20"}));
}

// Fused experts: [experts, gate and up, hidden]; experts over ep, each half over tp.
TEST(Placement, CutsFusedExperts) {
  const JobLayout layout = layout_of(
      mesh_of({{"ep", 2}, {"tp", 2}}),
      {tensor_of("experts", {4, 6, 5}, {AxisPattern::shard(0, 0), AxisPattern::shard_segments(1, 1, {4, 2})})});
  const auto pieces = pieces_of(layout, 0, 3);
  EXPECT_EQ(said(pieces), (Said{"[2,2,5] at [2,2,0] from 0", "[2,1,5] at [2,5,0] from 10"}));
  EXPECT_EQ(pieces[0].stride, (PerDimension{15, 5, 1}));
}

TEST(Placement, TakesGivenSizes) {
  const JobLayout layout =
      layout_of(mesh_of({{"tp", 3}}), {tensor_of("w", {2, 7}, {AxisPattern::shard_sizes(0, 1, {3, 0, 4})})});
  EXPECT_EQ(said(pieces_of(layout, 0, 0)), Said{"[2,3] at [0,0] from 0"});
  EXPECT_EQ(said(pieces_of(layout, 0, 1)), Said{});
  EXPECT_EQ(said(pieces_of(layout, 0, 2)), Said{"[2,4] at [0,3] from 0"});
}

TEST(Placement, RefusesWhatIsNotDefined) {
  const Mesh mesh = mesh_of({{"dp", 2}, {"tp", 3}});
  const auto refused = [&](std::vector<AxisPattern> patterns, const Shape& shape) {
    const Status status = check_placement({0, std::move(patterns)}, mesh, shape);
    return status ? "" : status.error().what;
  };
  EXPECT_EQ(refused({}, {7}), "");
  EXPECT_EQ(refused({AxisPattern::shard(2, 0)}, {6}), "no axis 2");
  EXPECT_EQ(refused({AxisPattern::shard(0, 1)}, {6}), "axis dp: no dimension 1");
  EXPECT_EQ(refused({AxisPattern::shard(0, 0)}, {}), "axis dp: no dimension 0");
  EXPECT_EQ(refused({AxisPattern::shard(0, 0), AxisPattern::averaged(0)}, {6}), "two patterns on axis dp");
  EXPECT_EQ(refused({AxisPattern::shard(1, 0, Split::even)}, {7}), "axis tp: 7 does not divide into 3 even parts");
  EXPECT_EQ(refused({AxisPattern::shard_sizes(1, 0, {3, 4})}, {7}), "axis tp: 2 sizes for 1 segments of 3 parts");
  EXPECT_EQ(refused({AxisPattern::shard_sizes(0, 0, {3, 5})}, {7}), "axis dp: sizes [3,5] do not add up to 7");
  EXPECT_EQ(refused({AxisPattern::shard_sizes(0, 0, {8, ~std::uint64_t{0}})}, {7}),
            "axis dp: sizes [8,18446744073709551615] do not add up to 7");
  EXPECT_EQ(refused({AxisPattern::shard_segments(0, 0, {4, 2})}, {7}), "axis dp: segments [4,2] do not add up to 7");
  EXPECT_EQ(refused({AxisPattern::shard_segments(0, 0, AxisPattern::Numbers(4097))}, {7}),
            "axis dp: 4097 segments; at most 4096");
  EXPECT_EQ(refused({AxisPattern::only(0, {})}, {7}), "axis dp: holders [] are not ascending indices of an axis of 2");
  EXPECT_EQ(refused({AxisPattern::only(0, {0, 2})}, {7}),
            "axis dp: holders [0,2] are not ascending indices of an axis of 2");
  EXPECT_EQ(refused({AxisPattern::only(0, {1, 0})}, {7}),
            "axis dp: holders [1,0] are not ascending indices of an axis of 2");
  // dp leaves 4 and 3: sizes can fit only one of them.
  EXPECT_EQ(refused({AxisPattern::shard(0, 0), AxisPattern::shard_sizes(1, 0, {2, 1, 1})}, {7}),
            "axis tp: sizes [2,1,1] do not add up to 3");
}

TEST(Enumeration, UniqueAveragedAndReplicated) {
  const JobLayout layout =
      layout_of(mesh_of({{"pp", 3}, {"tp", 2}}), {
                                                     tensor_of("tied", {4}, {AxisPattern::only(0, {0, 2})}),
                                                     tensor_of("norm", {4}, {AxisPattern::averaged(1)}),
                                                 });
  const Enumeration enumeration(layout);
  EXPECT_TRUE(pieces_of(layout, 0, 2).empty());
  EXPECT_EQ(said(pieces_of(layout, 0, 5)), Said{"[4] at [0] from 0"});
  EXPECT_EQ(pieces_of(layout, 0, 5)[0].copy, 5u);
  EXPECT_EQ(pieces_of(layout, 1, 3)[0].version, 1u);
  EXPECT_EQ(pieces_of(layout, 1, 3)[0].copy, 1u);
  EXPECT_EQ(enumeration.versions_of(0), 1u);
  EXPECT_EQ(enumeration.versions_of(1), 2u);
  EXPECT_EQ(enumeration.buffers_of(2), (std::vector<Buffer>{{1, ElementType::float32, 4}}));
}

// A vocabulary of 10 padded to 12: the last rank's buffer has rows of which no piece speaks.
TEST(Enumeration, LeavesVocabularyPaddingOut) {
  JobTensor wte = tensor_of("wte", {10, 2}, {AxisPattern::shard(0, 0, Split::even)});
  wte.padded = {12, 2};
  const JobLayout layout = layout_of(mesh_of({{"tp", 4}}), {wte});
  EXPECT_EQ(said(pieces_of(layout, 0, 2)), Said{"[3,2] at [6,0] from 0"});
  EXPECT_EQ(said(pieces_of(layout, 0, 3)), Said{"[1,2] at [9,0] from 0"});
  EXPECT_EQ(Enumeration(layout).buffers_of(3)[0].size, 6u);
}

// Two parameters, [2,3] and [4], with gaps to multiples of 4: 0..5, 8..11; 12 padded to 16 (pad 8), 4 ranks of 4.
TEST(Enumeration, FlatGroupsCutAcrossTensors) {
  const JobLayout layout = layout_of(mesh_of({{"dp", 4}}), {tensor_of("a", {2, 3}), tensor_of("b", {4})},
                                     {{.name = "zero",
                                       .mesh = 0,
                                       .axes = {0},
                                       .form = FlatGroup::Form::joined,
                                       .align = 4,
                                       .pad = 8,
                                       .members = {{0, 0}, {1, 0}}}});
  EXPECT_EQ(said(pieces_of(layout, 0, 0)), (Said{"[1,3] at [0,0] from 0", "[1,1] at [1,0] from 3"}));
  EXPECT_EQ(said(pieces_of(layout, 0, 1)), (Said{"[1,2] at [1,1] from 0"}));
  EXPECT_EQ(said(pieces_of(layout, 1, 1)), Said{});
  EXPECT_EQ(said(pieces_of(layout, 1, 2)), (Said{"[4] at [0] from 0"}));
  EXPECT_EQ(said(pieces_of(layout, 1, 3)), Said{});
  EXPECT_EQ(Enumeration(layout).buffers_of(3), (std::vector<Buffer>{{2, ElementType::float32, 4}}));
}

// ZeRO-3: every parameter padded by itself; 5 over 2 ranks: 3 + 2, then 4: 2 + 2.
TEST(Enumeration, EachMemberCutByItself) {
  const JobLayout layout = layout_of(
      mesh_of({{"dp", 2}}), {tensor_of("a", {5}), tensor_of("b", {4})},
      {{.name = "zero3", .mesh = 0, .axes = {0}, .form = FlatGroup::Form::each_member, .members = {{0, 0}, {1, 0}}}});
  EXPECT_EQ(said(pieces_of(layout, 0, 1)), (Said{"[2] at [3] from 0"}));
  EXPECT_EQ(said(pieces_of(layout, 1, 1)), (Said{"[2] at [2] from 3"}));
  EXPECT_EQ(Enumeration(layout).buffers_of(1)[0].size, 5u);
}

// One layout for each way to place a tensor, and for their mixtures.
std::vector<JobLayout> all_kinds_of_layouts() {
  std::vector<JobLayout> layouts;
  layouts.push_back(
      layout_of(mesh_of({{"pod", 2}, {"dp", 3}, {"tp", 2}}),
                {
                    tensor_of("replicated", {3, 2}),
                    tensor_of("cut twice", {10, 7}, {AxisPattern::shard(2, 0), AxisPattern::shard(1, 0)}),
                    tensor_of("cut both ways", {7, 5}, {AxisPattern::shard(1, 1), AxisPattern::shard(2, 0)}),
                    tensor_of("too short", {2}, {AxisPattern::shard(1, 0)}),
                    tensor_of("given", {9}, {AxisPattern::shard_sizes(1, 0, {2, 0, 7})}),
                    tensor_of("fused", {12, 4}, {AxisPattern::shard_segments(2, 0, {8, 2, 2})}),
                    tensor_of("averaged", {4}, {AxisPattern::averaged(1), AxisPattern::shard(2, 0)}),
                    tensor_of("scalar", {}, {AxisPattern::only(1, {1})}),
                }));
  JobTensor padded = tensor_of("wte", {10, 2}, {AxisPattern::shard(1, 0, Split::even)});
  padded.padded = {12, 2};
  layouts.push_back(
      layout_of(mesh_of({{"pp", 3}, {"tp", 4}}),
                {padded, tensor_of("tied", {6, 2}, {AxisPattern::only(0, {0, 2}), AxisPattern::shard(1, 0)})}));
  for (const FlatGroup::Form form : {FlatGroup::Form::joined, FlatGroup::Form::each_member}) {
    layouts.push_back(layout_of(
        mesh_of({{"dp", 3}, {"tp", 2}, {"cp", 2}}),
        {
            tensor_of("a", {5, 3}),
            tensor_of("b", {7, 2}, {AxisPattern::shard(1, 0)}),
            tensor_of("c", {4}, {AxisPattern::only(1, {1})}),
            tensor_of("not flat", {4, 4}, {AxisPattern::shard(2, 1)}),
        },
        {{.name = "zero", .mesh = 0, .axes = {0, 2}, .form = form, .align = 2, .members = {{0, 0}, {1, 0}, {2, 0}}}}));
  }
  return layouts;
}

TEST(Enumeration, OfAllRanksIsThatOfEachRankInTurn) {
  std::mt19937 random(5);
  for (const JobLayout& layout : all_kinds_of_layouts()) {
    ASSERT_TRUE(check_layout(layout)) << check_layout(layout).error().what;
    const Enumeration enumeration(layout);
    for (std::uint32_t tensor = 0; tensor < layout.tensors.size(); ++tensor) {
      const JobTensor& of = layout.tensors[tensor];
      for (int round = 0; round < 60; ++round) {
        Box meeting = whole_box(of.shape);
        for (std::uint32_t d = 0; d < meeting.dimensions; ++d) {
          meeting.begin[d] = random() % of.shape[d];
          meeting.size[d] = random() % (of.shape[d] - meeting.begin[d] + 1);
        }
        std::vector<bool> is_alive(layout.world);
        for (std::uint32_t rank = 0; rank < layout.world; ++rank) is_alive[rank] = random() % 3 != 0;
        Enumeration::Only only;
        if (round % 2 != 0) only.meeting = &meeting;
        if (round % 3 != 0) only.is_alive = &is_alive;

        std::vector<TensorPiece> expected, pieces;
        for (std::uint32_t rank = 0; rank < layout.world; ++rank)
          if (only.is_alive == nullptr || is_alive[rank]) enumeration.append_pieces(tensor, rank, expected);
        if (only.meeting != nullptr)
          std::erase_if(expected,
                        [&](const TensorPiece& piece) { return volume(intersection(piece.box, meeting)) == 0; });
        enumeration.append_pieces_of_all(tensor, only, pieces);
        ASSERT_EQ(said(pieces), said(expected)) << of.name << (only.meeting == nullptr ? "" : text_of(meeting));
        ASSERT_EQ(pieces, expected) << of.name;
      }
    }
  }
}

TEST(JobLayout, RefusesGroupsThatDoNotHold) {
  const auto refused = [](auto change) {
    JobLayout layout = layout_of(mesh_of({{"dp", 2}, {"tp", 2}}),
                                 {tensor_of("a", {4}), tensor_of("b", {4}, {AxisPattern::shard(1, 0)})},
                                 {{.name = "g", .mesh = 0, .axes = {0}, .members = {{0, 0}, {1, 0}}}});
    change(layout);
    const Status status = check_layout(layout);
    return status ? "" : status.error().what;
  };
  EXPECT_EQ(refused([](JobLayout&) {}), "");
  EXPECT_EQ(refused([](JobLayout& l) { l.groups[0].axes = {1}; }),
            "flat group g: tensor b (weight) has a pattern on an axis of the group");
  EXPECT_EQ(refused([](JobLayout& l) { l.groups[0].members[1].tensor = 0; }),
            "flat group g: tensor a (weight) is a member twice");
  EXPECT_EQ(refused([](JobLayout& l) { l.groups[0].members[1].tensor = 2; }), "flat group g: no tensor 2");
  EXPECT_EQ(refused([](JobLayout& l) { l.groups[0].align = 0; }), "flat group g: align and pad must be 1..2^31");
  EXPECT_EQ(refused([](JobLayout& l) { l.groups[0].members[0].gap = ~std::uint64_t{0}; }),
            "flat group g: more than 2^62 elements");
  EXPECT_EQ(refused([](JobLayout& l) { l.tensors[1].dtype = ElementType::float16; }),
            "flat group g: tensor b (weight) has another dtype");
  EXPECT_EQ(refused([](JobLayout& l) { l.tensors[1].name = "a"; }), "tensor a (weight): is there twice");
  EXPECT_EQ(refused([](JobLayout& l) { l.tensors[1].padded = {3}; }),
            "tensor b (weight): shape [4] does not fit into [3]");
}

}  // namespace
}  // namespace pawl
