#include "checkpoint/names/module_name.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "checkpoint/names/family_rules.h"

namespace pawl::checkpoint {
namespace {

TEST(ModuleName, NumbersAreTakenOut) {
  const ModuleName name = parse_module_name("decoder.layers.12.mlp.experts.local_experts.3.linear_fc1.weight");
  EXPECT_EQ(name.module, "decoder.layers.L.mlp.experts.local_experts.E.linear_fc1");
  EXPECT_EQ(name.layer, "12");
  EXPECT_EQ(name.expert, "3");
  EXPECT_EQ(name.part, "weight");
}

TEST(ModuleName, NumbersElsewhereStay) {
  EXPECT_EQ(parse_module_name("features.0.conv.weight").module, "features.0.conv");
  EXPECT_EQ(parse_module_name("layers.1.layers.2.bias").module, "layers.L.layers.2");
}

TEST(ModuleName, NamesComeBack) {
  for (const std::string name : {"decoder.layers.0.mlp.linear_fc2.weight", "h.7.attn.c_attn.bias", "lm_head.weight",
                                 "model.layers.3.block_sparse_moe.experts.5.w1.weight"}) {
    const ModuleName parsed = parse_module_name(name);
    EXPECT_EQ(name_of_module(parsed.module, parsed), name);
  }
}

TEST(ModuleName, TransformerEngineIsUndone) {
  EXPECT_EQ(without_transformer_engine("decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"),
            "decoder.layers.0.input_layernorm.weight");
  EXPECT_EQ(without_transformer_engine("decoder.layers.0.mlp.linear_fc1.layer_norm_bias"),
            "decoder.layers.0.pre_mlp_layernorm.bias");
  EXPECT_EQ(without_transformer_engine("decoder.layers.0.mlp.experts.linear_fc1.weight7"),
            "decoder.layers.0.mlp.experts.local_experts.7.linear_fc1.weight");
  EXPECT_EQ(without_transformer_engine("output_layer.weight"), "output_layer.weight");
}

// Of both sides: a name stands for one rule.
TEST(FamilyRules, NoModuleStandsTwice) {
  for (const Family family : {Family::gpt, Family::llama, Family::mixtral, Family::gpt_neox}) {
    std::set<std::string_view> megatron, huggingface;
    for (const FamilyRule& rule : rules_of(family)) {
      EXPECT_TRUE(megatron.insert(rule.megatron).second) << name_of(family) << ": " << rule.megatron;
      for (const std::string_view name : rule.huggingface)
        EXPECT_TRUE(name.empty() || huggingface.insert(name).second) << name_of(family) << ": " << name;
    }
    EXPECT_GE(megatron.size(), 9u) << name_of(family);
  }
}

}  // namespace
}  // namespace pawl::checkpoint
