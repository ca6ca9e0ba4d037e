// Names: of files, of pipeline layers, of experts.
#include <gtest/gtest.h>

#include "checkpoint/formats/deepspeed/experts.h"
#include "checkpoint/formats/deepspeed/pipeline.h"
#include "checkpoint/formats/deepspeed/shard_names.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using Kind = ShardName::Kind;

TEST(ShardNames, say_what_a_file_is) {
  const auto expect = [](std::string_view name, Kind kind, std::uint32_t data, std::uint32_t model, std::uint32_t layer,
                         std::uint32_t expert) {
    const auto parsed = parse_shard_name(name);
    ASSERT_TRUE(parsed.has_value()) << name;
    EXPECT_EQ(parsed->kind, kind) << name;
    EXPECT_EQ(std::tuple(parsed->data_rank, parsed->model_rank, parsed->layer, parsed->expert),
              std::tuple(data, model, layer, expert))
        << name;
    EXPECT_EQ(parsed->name, name);
  };
  expect("mp_rank_03_model_states.pt", Kind::model, 0, 3, 0, 0);
  expect("mp_rank_123_model_states.pt", Kind::model, 0, 123, 0, 0);
  expect("zero_pp_rank_10_mp_rank_01_model_states.pt", Kind::zero_model, 10, 1, 0, 0);
  expect("zero_pp_rank_10_mp_rank_01_optim_states.pt", Kind::optimizer, 10, 1, 0, 0);
  expect("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", Kind::optimizer, 0, 0, 0, 0);
  expect("fp16_zero_pp_rank_2_mp_rank_00_optim_states.pt", Kind::optimizer, 2, 0, 0, 0);
  expect("zero_pp_rank_2_mp_rank_07optim_states.pt", Kind::optimizer, 2, 7, 0, 0);
  expect("layer_12-model_03-model_states.pt", Kind::layer, 0, 3, 12, 0);
  expect("layer_01-model_states.pt", Kind::layer, 0, 0, 1, 0);
  expect("layer_4_expert_31_mp_rank_01_model_states.pt", Kind::expert, 0, 1, 4, 31);
  expect("expert_31_mp_rank_01_model_states.pt", Kind::expert, 0, 1, 0, 31);
  expect("expp_rank_5_mp_rank_00_optim_states.pt", Kind::expert_optimizer, 5, 0, 0, 0);
  EXPECT_FALSE(parse_shard_name("layer_01-model_states.pt")->has_model_axis);
  EXPECT_TRUE(parse_shard_name("layer_01-model_00-model_states.pt")->has_model_axis);
}

TEST(ShardNames, other_names_are_nothing) {
  for (const std::string_view name :
       {"", "latest", "mp_rank_00_model_states.pth", "mp_rank__model_states.pt", "mp_rank_00_model_states.pt.tmp",
        "mp_rank_99999999999999999999_model_states.pt", "zero_pp_rank_0_mp_rank_00_model.pt", "layer_-model_states.pt",
        "layer_01-model_-model_states.pt", "layer_1_expert_mp_rank_00_model_states.pt", "mp_rank_-1_model_states.pt",
        "xmp_rank_00_model_states.pt", "layer_1expert_2_mp_rank_00_model_states.pt"})
    EXPECT_FALSE(parse_shard_name(name).has_value()) << name;
}

TEST(Pipeline, layers_are_named_as_the_optimizer_names_them) {
  const NamedShapes parameters = {{"tied_modules.embed.word.weight", {8, 4}},
                                  {"2.fc.weight", {4, 4}},
                                  {"tied_modules.head.word.weight", {8, 4}},
                                  {"11.weight", {4}}};
  const NamedShapes table = {{"word.weight", {8, 4}}};
  const std::vector<LayerPrefix> prefixes = layer_prefixes({{1, table},
                                                            {2, {{"fc.weight", {4, 4}}}},
                                                            {3, {}},
                                                            {5, {{"frozen.weight", {3}}}},
                                                            {10, table},
                                                            {11, {{"weight", {4}}}},
                                                            {12, table}},
                                                           parameters);
  std::vector<std::string> names;
  for (const LayerPrefix& prefix : prefixes) names.push_back(prefix.prefix);
  EXPECT_EQ(names, (std::vector<std::string>{"tied_modules.embed.", "2.", "3.", "5.", "tied_modules.head.", "11.",
                                             "tied_modules.embed."}));
  EXPECT_TRUE(prefixes.back().is_second_use);
  EXPECT_FALSE(prefixes[4].is_second_use);
}

TEST(Pipeline, a_tied_module_of_another_shape_is_another_layer) {
  const std::vector<LayerPrefix> prefixes =
      layer_prefixes({{0, {{"weight", {9, 4}}}}, {1, {{"weight", {8, 4}}}}}, {{"tied_modules.e.weight", {8, 4}}});
  EXPECT_EQ(prefixes[0].prefix, "0.");
  EXPECT_EQ(prefixes[1].prefix, "tied_modules.e.");
}

TEST(Experts, local_numbers_become_global_ones) {
  const auto name = parse_expert_name("h.1.moe.deepspeed_moe.experts.deepspeed_experts.12.fc.weight");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->path, "h.1.moe.deepspeed_moe.experts.deepspeed_experts.");
  EXPECT_EQ(name->expert, 12u);
  EXPECT_EQ(name->rest, ".fc.weight");
  for (const std::string other : {"h.fc.weight", "my_deepspeed_experts.1.w", "a.deepspeed_experts.x.w",
                                  "a.deepspeed_experts.123456789.w", "deepspeed_experts."})
    EXPECT_FALSE(parse_expert_name(other).has_value()) << other;
  const auto local = local_experts({{{"a.deepspeed_experts.0.w", {1}, 1}, {"a.deepspeed_experts.1.w", {1}, 1}},
                                    {{"b.deepspeed_experts.0.w", {1}, 1}, {"dense", {1}, 1}}});
  EXPECT_EQ(local, (std::map<std::string, std::uint64_t>{{"a.deepspeed_experts.", 2}, {"b.deepspeed_experts.", 1}}));
}

TEST(Experts, both_orders_of_ranks) {
  // Four ranks, two expert-parallel: [0, 1], [2, 3], or, data first, [0, 2], [1, 3].
  constexpr std::pair<std::uint64_t, std::uint64_t> kConsecutive[] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};
  constexpr std::pair<std::uint64_t, std::uint64_t> kDataFirst[] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    const ExpertPlace a = expert_place(rank, 4, 2, false), b = expert_place(rank, 4, 2, true);
    EXPECT_EQ(std::pair(a.expert_rank, a.part), kConsecutive[rank]);
    EXPECT_EQ(std::pair(b.expert_rank, b.part), kDataFirst[rank]);
  }
  EXPECT_EQ(expert_place(3, 4, 4, false).part, 3u);
  EXPECT_EQ(expert_place(3, 4, 4, true).part, 3u);
}

}  // namespace
}  // namespace pawl::checkpoint::deepspeed
