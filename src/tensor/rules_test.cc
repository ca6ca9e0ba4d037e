#include "tensor/rules.h"

#include <gtest/gtest.h>

#include "tensor/short_layout.h"

namespace pawl {
namespace {

constexpr auto kRegex = NamePattern::Kind::regex;

NamedTensor weight(std::string name, Shape shape) {
  return {std::move(name), "weight", ElementType::bfloat16, std::move(shape)};
}

// What a rank holds of a tensor, as spans: "[0,4)+[8,4) x [0,2)"; "-": nothing.
std::string held(const JobLayout& layout, const std::string& name, std::uint32_t rank,
                 const std::string& role = "weight") {
  for (const JobTensor& tensor : layout.tensors) {
    if (tensor.name != name || tensor.role != role) continue;
    const Mesh& mesh = layout.meshes[tensor.placement.mesh];
    LocalArray array;
    if (!local_array(tensor.placement, mesh, tensor.placed_shape(), coordinates_of(mesh, rank), array)) return "-";
    std::string out;
    for (const auto& spans : array.spans) {
      if (!out.empty()) out += " x ";
      for (std::size_t i = 0; i < spans.size(); ++i) {
        out += (i == 0 ? "" : "+") + std::to_string(spans[i].begin) + ":" + std::to_string(spans[i].size);
      }
    }
    return out;
  }
  return "no such tensor";
}

TEST(Glob, Matches) {
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_TRUE(matches_glob("a.*.weight", "a.b.c.weight"));
  EXPECT_FALSE(matches_glob("a.*.weight", "a.weight"));
  EXPECT_TRUE(matches_glob("*ab*ab", "xabyabzab"));
  EXPECT_FALSE(matches_glob("*ab*ab", "xab"));
  EXPECT_TRUE(matches_glob("h.?.w", "h.3.w"));
  EXPECT_FALSE(matches_glob("h.?.w", "h.13.w"));
  EXPECT_TRUE(matches_glob("a[0]+(b)", "a[0]+(b)"));
  EXPECT_FALSE(matches_glob(std::string(400, '*') + "b", std::string(500, 'a')));  // in no time
}

LayoutRules two_rules() {
  LayoutRules rules{4, {{"m", {{"dp", 2}, {"tp", 2}}}}, {}, {}};
  rules.flat_forms.push_back({.name = "zero", .mesh = 0, .axes = {0}, .pad = 4});
  rules.rules.push_back({.names = {kRegex, R"(h\.\d+\.w)"},
                         .roles = {"exp_avg"},
                         .placement = {0, {AxisPattern::shard(1, 0)}},
                         .flat = 0});
  rules.rules.push_back({.names = {NamePattern::Kind::glob, "h.*.w"}, .placement = {0, {AxisPattern::shard(1, 0)}}});
  rules.rules.push_back(
      {.names = {NamePattern::Kind::glob, "wte"}, .placement = {0, {AxisPattern::shard(1, 0)}}, .padded_multiple = 8});
  return rules;
}

TEST(Rules, FirstMatchWinsAndVocabulariesArePadded) {
  std::vector<NamedTensor> tensors{weight("wte", {13, 2}), weight("h.0.w", {4, 2}), weight("h.11.w", {4, 2})};
  for (const char* name : {"h.0.w", "h.11.w"}) tensors.push_back({name, "exp_avg", ElementType::float32, {4, 2}});
  const auto layout = layout_from_rules(two_rules(), tensors);
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(layout->tensors[0].padded, (Shape{16, 2}));
  EXPECT_EQ(held(*layout, "wte", 1), "8:8 x 0:2");
  ASSERT_EQ(layout->groups.size(), 1u);
  EXPECT_EQ(layout->groups[0].name, "zero.exp_avg.float32");
  EXPECT_EQ(layout->groups[0].members.size(), 2u);
  // The last columns of each rank: 2 x (2 x 2) elements over two ranks of the axis dp.
  EXPECT_EQ(Enumeration(*layout).buffers_of(0).back().size, 4u);
}

TEST(Rules, NamesWhatIsUnusedOrUnknown) {
  std::vector<NamedTensor> tensors{weight("wte", {13, 2}), weight("h.0.w", {4, 2})};
  EXPECT_EQ(layout_from_rules(two_rules(), tensors).error().what, R"(no tensor has these rules: h\.\d+\.w)");
  for (int i = 0; i < 7; ++i) tensors.push_back(weight("x" + std::to_string(i), {2}));
  EXPECT_EQ(layout_from_rules(two_rules(), tensors).error().what,
            "no rule matches tensor x0 (weight), tensor x1 (weight), tensor x2 (weight), tensor x3 (weight), tensor x4 "
            "(weight) and 2 more");
  LayoutRules bad = two_rules();
  bad.rules[0].names.text = "(";
  EXPECT_TRUE(layout_from_rules(bad, {}).error().what.starts_with("rule (: not a regular expression"));
  bad = two_rules();
  bad.rules[2].padded_dimension = 2;
  EXPECT_FALSE(layout_from_rules(bad, {weight("wte", {13, 2})}));
}

TEST(Rules, MegatronsVocabulary) {
  EXPECT_EQ(padded_vocabulary(50257, 128, 1), 50304u);
  EXPECT_EQ(padded_vocabulary(50257, 128, 8), 51200u);
  EXPECT_EQ(padded_vocabulary(256, 1, 2), 256u);
}

// --- the short form ------------------------------------------------------------------------------------------------

std::vector<NamedTensor> gpt(std::uint64_t layers) {
  std::vector<NamedTensor> out{weight("language_model.embedding.word_embeddings.weight", {250, 8}),
                               weight("language_model.embedding.position_embeddings.weight", {16, 8})};
  for (std::uint64_t l = 0; l < layers; ++l) {
    const std::string layer = "language_model.encoder.layers." + std::to_string(l);
    out.push_back(weight(layer + ".input_layernorm.weight", {8}));
    out.push_back(weight(layer + ".self_attention.query_key_value.weight", {24, 8}));
    out.push_back(weight(layer + ".self_attention.query_key_value.bias", {24}));
    out.push_back(weight(layer + ".self_attention.dense.weight", {8, 8}));
    out.push_back(weight(layer + ".self_attention.dense.bias", {8}));
  }
  out.push_back(weight("language_model.encoder.final_layernorm.weight", {8}));
  const std::size_t count = out.size();
  for (std::size_t i = 0; i < count; ++i) {
    NamedTensor master = out[i];
    master.role = "master";
    master.dtype = ElementType::float32;
    out.push_back(master);
  }
  return out;
}

TEST(ShortLayout, TensorPipelineDataAndZero) {
  const auto layout = parse_short_layout("tp=2,pp=2,dp=2,zero=1", ModelRules::gpt, gpt(4));
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(layout->world, 8u);
  const std::string embedding = "language_model.embedding.word_embeddings.weight";
  EXPECT_EQ(held(*layout, embedding, 0), "0:128 x 0:8");  // 250 padded to 256
  EXPECT_EQ(held(*layout, embedding, 3), "128:128 x 0:8");
  EXPECT_EQ(held(*layout, embedding, 7), "128:128 x 0:8");  // tied: the last stage has it, too
  EXPECT_EQ(held(*layout, "language_model.embedding.position_embeddings.weight", 4), "-");
  EXPECT_EQ(held(*layout, "language_model.encoder.final_layernorm.weight", 0), "-");
  EXPECT_EQ(held(*layout, "language_model.encoder.final_layernorm.weight", 4), "0:8");
  const std::string layer = "language_model.encoder.layers.2.self_attention.";
  EXPECT_EQ(held(*layout, layer + "query_key_value.weight", 1), "-");
  EXPECT_EQ(held(*layout, layer + "query_key_value.weight", 5), "12:12 x 0:8");
  EXPECT_EQ(held(*layout, layer + "query_key_value.bias", 5), "12:12");
  EXPECT_EQ(held(*layout, layer + "dense.weight", 5), "0:8 x 4:4");
  EXPECT_EQ(held(*layout, layer + "dense.bias", 5), "0:8");
  ASSERT_EQ(layout->groups.size(), 1u);  // the masters
  const FlatGroup& group = layout->groups[0];
  EXPECT_EQ(group.pad, 4u);  // DeepSpeed: twice the ranks
  EXPECT_EQ(group.members.size(), 23u);
  // Stage 0 has two layers, the embedding and the positions: 1024 + 128 + 2 * (8 + 96 + 12 + 32 + 8), over two ranks.
  const auto buffers = Enumeration(*layout).buffers_of(0);
  EXPECT_EQ(buffers.back().size, (1024 + 128 + 2 * 156) / 2u);
}

TEST(ShortLayout, UnevenAndInterleavedStages) {
  const std::string name = "language_model.encoder.layers.";
  const auto stages_of = [&](const char* form, std::uint64_t layers) {
    std::string out;
    const auto layout = parse_short_layout(form, ModelRules::gpt, gpt(layers));
    if (!layout) return layout.error().what;
    for (std::uint64_t l = 0; l < layers; ++l) {
      for (std::uint32_t rank = 0; rank < layout->world; ++rank) {
        if (held(*layout, name + std::to_string(l) + ".input_layernorm.weight", rank) != "-")
          out += std::to_string(rank);
      }
    }
    return out;
  };
  EXPECT_EQ(stages_of("pp=2", 4), "0011");
  EXPECT_EQ(stages_of("pp=2,vpp=2", 4), "0101");
  EXPECT_EQ(stages_of("pp=2,first=1", 4), "0111");
  EXPECT_EQ(stages_of("pp=3,last=2", 6), "001122");
  EXPECT_EQ(stages_of("pp=3,stages=3/0/2", 5), "00022");
  EXPECT_TRUE(stages_of("pp=2", 5).starts_with("layout: 5 layers do not spread over pp=2"));
  EXPECT_EQ(stages_of("pp=4,vpp=1048576", 4), "layout: pp=4 x vpp=1048576 chunks for 4 layers");
  EXPECT_EQ(stages_of("pp=2,stages=2/2", 5), "layout: the stages have 4 layers, the model 5");
}

std::vector<NamedTensor> mixtral() {
  std::vector<NamedTensor> out{weight("model.embed_tokens.weight", {30, 4}), weight("lm_head.weight", {30, 4}),
                               weight("model.norm.weight", {4})};
  for (const std::string l : {"0", "1"}) {
    const std::string layer = "model.layers." + l;
    out.push_back(weight(layer + ".self_attn.q_proj.weight", {8, 4}));
    out.push_back(weight(layer + ".self_attn.o_proj.weight", {4, 8}));
    out.push_back(weight(layer + ".post_attention_layernorm.weight", {4}));
    out.push_back(weight(layer + ".block_sparse_moe.gate.weight", {4, 4}));
    for (const std::string e : {"0", "1", "2", "3"}) {
      out.push_back(weight(layer + ".block_sparse_moe.experts." + e + ".w1.weight", {6, 4}));
      out.push_back(weight(layer + ".block_sparse_moe.experts." + e + ".w2.weight", {4, 6}));
    }
    out.push_back(weight(layer + ".mlp.experts.gate_up_proj", {4, 12, 4}));
  }
  return out;
}

TEST(ShortLayout, ExpertsOnAMeshOfTheirOwn) {
  const auto layout = parse_short_layout("tp=2,dp=2,ep=2,etp=1", ModelRules::mixtral, mixtral());
  ASSERT_TRUE(layout) << layout.error().what;
  ASSERT_EQ(layout->meshes.size(), 2u);
  const std::string moe = "model.layers.1.block_sparse_moe.";
  EXPECT_EQ(held(*layout, moe + "gate.weight", 3), "0:4 x 0:4");
  // rank = ep + 2 * edp: experts 2 and 3 are on odd ranks.
  EXPECT_EQ(held(*layout, moe + "experts.2.w1.weight", 0), "-");
  EXPECT_EQ(held(*layout, moe + "experts.2.w1.weight", 3), "0:6 x 0:4");
  EXPECT_EQ(held(*layout, "model.layers.0.mlp.experts.gate_up_proj", 1), "2:2 x 0:12 x 0:4");
  const auto cut = parse_short_layout("tp=2,dp=2,ep=2", ModelRules::mixtral, mixtral());
  ASSERT_TRUE(cut) << cut.error().what;
  EXPECT_EQ(held(*cut, moe + "experts.2.w1.weight", 1), "-");
  EXPECT_EQ(held(*cut, moe + "experts.2.w1.weight", 3), "3:3 x 0:4");
  EXPECT_EQ(held(*cut, moe + "experts.3.w2.weight", 2), "0:4 x 0:3");
  EXPECT_EQ(held(*cut, "model.layers.0.mlp.experts.gate_up_proj", 3), "2:2 x 3:3+9:3 x 0:4");  // gate and up
  EXPECT_EQ(held(*cut, "lm_head.weight", 1), "15:15 x 0:4");
}

TEST(ShortLayout, StackedLayersAndGatedOnes) {
  const std::vector<NamedTensor> tensors{
      weight("embedding.word_embeddings.weight", {64, 4}), weight("output_layer.weight", {64, 4}),
      weight("decoder.layers.mlp.linear_fc1.weight", {6, 12, 4}),
      weight("decoder.layers.mlp.linear_fc2.weight", {6, 4, 6}), weight("decoder.final_layernorm.weight", {4})};
  const auto layout = parse_short_layout("tp=2,pp=3", ModelRules::llama, tensors);
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(held(*layout, "decoder.layers.mlp.linear_fc1.weight", 3), "2:2 x 3:3+9:3 x 0:4");
  EXPECT_EQ(held(*layout, "decoder.layers.mlp.linear_fc2.weight", 4), "4:2 x 0:4 x 0:3");
  EXPECT_EQ(held(*layout, "output_layer.weight", 4), "0:32 x 0:4");
  EXPECT_EQ(held(*layout, "output_layer.weight", 3), "-");
  const auto chunks = parse_short_layout("pp=3,vpp=2", ModelRules::llama, tensors);
  ASSERT_TRUE(chunks) << chunks.error().what;
  EXPECT_EQ(held(*chunks, "decoder.layers.mlp.linear_fc2.weight", 1), "1:1+4:1 x 0:4 x 0:6");
}

TEST(ShortLayout, FusedQueriesKeysAndValues) {
  std::vector<NamedTensor> tensors{weight("model.layers.0.self_attn.qkv_proj.weight", {16, 4})};
  EXPECT_FALSE(parse_short_layout("tp=2", ModelRules::llama, tensors));
  tensors.push_back(weight("model.layers.0.self_attn.o_proj.weight", {4, 8}));
  const auto layout = parse_short_layout("tp=2", ModelRules::llama, tensors);
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(held(*layout, tensors[0].name, 1), "4:4+10:2+14:2 x 0:4");
  const auto turned = parse_short_layout("tp=2", ModelRules::gpt, {weight("h.0.attn.c_attn.weight", {4, 12})});
  ASSERT_TRUE(turned) << turned.error().what;
  EXPECT_EQ(held(*turned, "h.0.attn.c_attn.weight", 1), "0:4 x 2:2+6:2+10:2");
}

TEST(ShortLayout, FullyShardedAfterTensorParallel) {
  const std::vector<NamedTensor> tensors{weight("model.layers.0.mlp.gate_proj.weight", {10, 4}),
                                         {"model.layers.0.mlp.gate_proj.weight", "step", ElementType::float32, {}}};
  const auto layout = parse_short_layout("tp=2,fsdp=2,dp=2", ModelRules::llama, tensors);
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(layout->world, 8u);
  EXPECT_EQ(held(*layout, tensors[0].name, 0), "0:3 x 0:4");
  EXPECT_EQ(held(*layout, tensors[0].name, 1), "5:3 x 0:4");
  EXPECT_EQ(held(*layout, tensors[0].name, 2), "3:2 x 0:4");
  EXPECT_EQ(held(*layout, tensors[0].name, 6), "3:2 x 0:4");
}

TEST(ShortLayout, MegatronsBucketsAndZero3) {
  const auto layout = parse_short_layout("dp=2,pp=2,zero=1,style=megatron,bucket=300", ModelRules::gpt, gpt(4));
  ASSERT_TRUE(layout) << layout.error().what;
  for (const FlatGroup& group : layout->groups) {
    EXPECT_EQ(group.align, 64u);
    EXPECT_EQ(group.pad, 128u);
  }
  // The last stage: its norm and layer 3 backwards, until 300 elements are there.
  const FlatGroup& first = layout->groups[0];
  ASSERT_EQ(first.members.size(), 6u);  // 8 + 8 + 64 + 24 + 192 = 296 + 8
  EXPECT_EQ(layout->tensors[first.members[0].tensor].name, "language_model.encoder.final_layernorm.weight");
  EXPECT_EQ(layout->tensors[first.members[5].tensor].name, "language_model.encoder.layers.3.input_layernorm.weight");
  const auto zero3 = parse_short_layout("dp=3,zero=3", ModelRules::gpt, gpt(1));
  ASSERT_TRUE(zero3) << zero3.error().what;
  EXPECT_EQ(zero3->groups.size(), 2u);  // weights and masters
  EXPECT_EQ(zero3->groups[0].form, FlatGroup::Form::each_member);
}

TEST(ShortLayout, SaysWhatIsWrong) {
  const auto refused = [](const char* form) {
    const auto layout = parse_short_layout(form, ModelRules::gpt, gpt(4));
    return layout ? "" : layout.error().what;
  };
  EXPECT_EQ(refused(""), "");
  EXPECT_TRUE(refused("xp=2").starts_with("layout: unknown key xp; known: tp "));
  EXPECT_EQ(refused("tp=2,tp=2"), "layout: tp is there twice");
  EXPECT_EQ(refused("tp=0"), "layout: tp=0 is not a number that it can have");
  EXPECT_EQ(refused("tp"), "layout: tp= is not a number that it can have");
  EXPECT_EQ(refused("tp=2,"), "layout: it ends with a comma");
  EXPECT_NE(refused("tp=99999999"), "");
  EXPECT_NE(refused("tp=1048576,pp=1048576"), "");
  EXPECT_NE(refused("zero=4"), "");
  EXPECT_NE(refused("fsdp=2,zero=1"), "");
  EXPECT_EQ(refused("dp=2,ep=2"), "layout: 0 experts do not divide into ep=2");
  EXPECT_TRUE(refused("tp=5").starts_with(
      "layout: tensor language_model.encoder.layers.0.self_attention.query_key_value.weight (weight): [24,8] does not "
      "divide as this layout needs it; "))
      << refused("tp=5");
  const auto unknown = parse_short_layout("", ModelRules::llama, {weight("model.layers.0.strange.weight", {2})});
  EXPECT_EQ(unknown.error().what, "layout: the rules do not know tensor model.layers.0.strange.weight (weight)");
  std::vector<std::string> left_out;
  const auto rest = parse_short_layout(
      "tp=2", ModelRules::llama,
      {weight("model.layers.0.strange.weight", {2}), weight("model.layers.0.self_attn.q_proj.weight", {4, 2}),
       weight("model.layers.0.self_attn.k_proj.weight", {3, 2})},
      &left_out);
  ASSERT_TRUE(rest) << rest.error().what;
  ASSERT_EQ(rest->tensors.size(), 1u);
  EXPECT_EQ(rest->tensors[0].name, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(left_out, (std::vector<std::string>{
                          "tensor model.layers.0.strange.weight (weight): the rules do not know such a tensor",
                          "tensor model.layers.0.self_attn.k_proj.weight (weight): [3,2] does not divide as this "
                          "layout needs it"}));
  EXPECT_EQ(model_rules_named("llama"), ModelRules::llama);
  EXPECT_FALSE(model_rules_named("bert"));
}

// DeepSpeed's alignment gaps (16 bytes) and end (2 x ranks), and Megatron's starts and ends, by hand.
TEST(FlatGroups, HaveTheGapsOfDeepSpeedAndMegatron) {
  JobLayout layout{4, {{"m", {{"dp", 4}}}}, {}, {}};
  for (const std::uint64_t count : {5, 3, 9}) {
    layout.tensors.push_back({"t" + std::to_string(count), "master", ElementType::float32, {count}, {}, {0, {}}});
  }
  layout.groups.push_back({.name = "aligned", .axes = {0}, .align = 4, .pad = 8, .members = {{0, 0}, {1, 0}, {2, 0}}});
  ASSERT_TRUE(check_layout(layout));
  // 5 -> 8, 3 -> 12, 9 -> 21 -> 24: six a rank.
  EXPECT_EQ(Enumeration(layout).buffers_of(0)[0].size, 6u);
  std::vector<TensorPiece> pieces;
  Enumeration(layout).append_pieces(1, 1, pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].offset, 2u);  // element 8 of the whole
  layout.groups[0].align = 64;
  layout.groups[0].pad = 128;
  ASSERT_TRUE(check_layout(layout));
  EXPECT_EQ(Enumeration(layout).buffers_of(0)[0].size, 64u);  // 0, 64, 128..137 -> 256
  pieces.clear();
  Enumeration(layout).append_pieces(2, 2, pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].offset, 0u);
  // Gaps that are no alignment: as stored in param_alignment_paddings.
  layout.groups[0].align = layout.groups[0].pad = 1;
  layout.groups[0].members[1].gap = 3;
  pieces.clear();
  Enumeration(layout).append_pieces(1, 1, pieces);  // 5 + 3 + 3 + 9 = 20, five a rank: 8 is rank 1's fourth
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].offset, 3u);
}

}  // namespace
}  // namespace pawl
