#include "checkpoint/names/families.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "checkpoint/containers/safetensors.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/golden_check.h"
#include "checkpoint/formats/megatron/megatron.h"

namespace pawl::checkpoint {
namespace {

// --- Views of values in memory: element i of the n-th tensor is 1000 n + i.
class Numbers {
 public:
  void add(const std::string& name, const Shape& shape, const std::string& role = "weight") {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : shape) count *= extent;
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), 1000.0F * static_cast<float>(view.tensors.size()));
    StoredFile file;
    file.codec = StoredFile::Codec::content;
    file.content.assign(reinterpret_cast<const char*>(values.data()), count * 4);
    StoredTensor tensor{name, role, ElementType::float32, shape};
    tensor.pieces.push_back(whole_piece(shape, static_cast<std::uint32_t>(view.files.size()), 0));
    view.files.push_back(std::move(file));
    view.tensors.push_back(std::move(tensor));
  }
  CheckpointView view;
};

const StoredTensor* find(const CheckpointView& view, const std::string& name, const std::string& role = "weight") {
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.name == name && tensor.role == role) return &tensor;
  return nullptr;
}

std::vector<float> values_of(const CheckpointView& view, const std::string& name, const std::string& role = "weight") {
  const StoredTensor* tensor = find(view, name, role);
  EXPECT_NE(tensor, nullptr) << name << '/' << role;
  if (tensor == nullptr) return {};
  fixtures::Contents contents(view);
  const std::string bytes = fixtures::whole_of(*tensor, contents);
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// All values, by name and role.
std::map<std::string, std::string> everything(const CheckpointView& view) {
  fixtures::Contents contents(view);
  std::map<std::string, std::string> out;
  for (const StoredTensor& tensor : view.tensors)
    out[text(tensor.name, '/', tensor.role, ' ', text_of(tensor.shape))] = fixtures::whole_of(tensor, contents);
  return out;
}

// A layer of Megatron-Core: `groups` groups of `queries` heads of `size`, an MLP of `ffn`.
Numbers megatron_layer(std::uint64_t groups, std::uint64_t queries, std::uint64_t size, std::uint64_t ffn, bool gated) {
  const std::uint64_t hidden = groups * queries * size;
  Numbers out;
  out.add("embedding.word_embeddings.weight", {10, hidden});
  out.add("decoder.layers.0.input_layernorm.weight", {hidden});
  out.add("decoder.layers.0.self_attention.linear_proj.weight", {hidden, hidden});
  out.add("decoder.layers.0.self_attention.linear_qkv.weight", {(queries + 2) * groups * size, hidden});
  out.add("decoder.layers.0.self_attention.linear_qkv.bias", {(queries + 2) * groups * size});
  out.add("decoder.layers.0.pre_mlp_layernorm.weight", {hidden});
  out.add("decoder.layers.0.mlp.linear_fc1.weight", {gated ? 2 * ffn : ffn, hidden});
  out.add("decoder.layers.0.mlp.linear_fc2.weight", {hidden, ffn});
  out.add("decoder.final_layernorm.weight", {hidden});
  out.add("output_layer.weight", {10, hidden});
  return out;
}

TEST(Families, QkvOfTwoGroupsByHand) {
  // Two groups of two query heads of size 1: rows q0 q1 k0 v0 q2 q3 k1 v1.
  Numbers numbers = megatron_layer(2, 2, 1, 3, true);
  Result<CheckpointView> view = to_huggingface(numbers.view, {.query_groups = 2});
  ASSERT_TRUE(view.has_value()) << view.error().what;
  const std::string layer = "model.layers.0.self_attn.";
  EXPECT_EQ(values_of(*view, layer + "q_proj.bias"), (std::vector<float>{4000, 4001, 4004, 4005}));
  EXPECT_EQ(values_of(*view, layer + "k_proj.bias"), (std::vector<float>{4002, 4006}));
  EXPECT_EQ(values_of(*view, layer + "v_proj.bias"), (std::vector<float>{4003, 4007}));
  EXPECT_EQ(values_of(*view, layer + "k_proj.weight"),
            (std::vector<float>{3008, 3009, 3010, 3011, 3024, 3025, 3026, 3027}));
  EXPECT_EQ(values_of(*view, layer + "v_proj.weight"),
            (std::vector<float>{3012, 3013, 3014, 3015, 3028, 3029, 3030, 3031}));
}

TEST(Families, GatedHalvesByHand) {
  Numbers numbers = megatron_layer(1, 2, 1, 2, true);
  Result<CheckpointView> view = to_huggingface(numbers.view, {.attention_heads = 2});
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(values_of(*view, "model.layers.0.mlp.gate_proj.weight"), (std::vector<float>{6000, 6001, 6002, 6003}));
  EXPECT_EQ(values_of(*view, "model.layers.0.mlp.up_proj.weight"), (std::vector<float>{6004, 6005, 6006, 6007}));
  EXPECT_EQ(values_of(*view, "model.layers.0.mlp.down_proj.weight"), (std::vector<float>{7000, 7001, 7002, 7003}));
}

TEST(Families, Gpt2IsTransposedAndItsQkvAreBlocks) {
  Numbers numbers = megatron_layer(2, 1, 1, 3, false);  // rows q0 k0 v0 q1 k1 v1, two columns
  numbers.add("embedding.position_embeddings.weight", {4, 2});
  Result<CheckpointView> view = to_huggingface(numbers.view, {.attention_heads = 2});
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(values_of(*view, "transformer.h.0.attn.c_attn.bias"),
            (std::vector<float>{4000, 4003, 4001, 4004, 4002, 4005}));
  EXPECT_EQ(find(*view, "transformer.h.0.attn.c_attn.weight")->shape, (Shape{2, 6}));
  EXPECT_EQ(values_of(*view, "transformer.h.0.attn.c_attn.weight"),
            (std::vector<float>{3000, 3006, 3002, 3008, 3004, 3010, 3001, 3007, 3003, 3009, 3005, 3011}));
  EXPECT_EQ(values_of(*view, "transformer.h.0.mlp.c_fc.weight"),
            (std::vector<float>{6000, 6002, 6004, 6001, 6003, 6005}));
  EXPECT_NE(find(*view, "transformer.wpe.weight"), nullptr);
  Result<CheckpointView> back = from_huggingface(*view, {.attention_heads = 2});
  ASSERT_TRUE(back.has_value()) << back.error().what;
  EXPECT_EQ(everything(*back), everything(numbers.view));
}

TEST(Families, ThereAndBackIsTheSame) {
  struct Case {
    std::uint64_t groups, queries, size;
    bool gated;
  };
  for (const auto& [groups, queries, size, gated] :
       std::vector<Case>{{1, 1, 1, true}, {1, 4, 2, true}, {4, 1, 3, true}, {2, 3, 2, true}, {4, 1, 3, false}}) {
    Numbers numbers = megatron_layer(groups, queries, size, 5, gated);
    for (const StoredTensor& tensor : std::vector<StoredTensor>(numbers.view.tensors))
      for (const std::string role : {"master", "exp_avg", "exp_avg_sq"}) numbers.add(tensor.name, tensor.shape, role);
    for (const FamilySettings& settings :
         {FamilySettings{.query_groups = groups}, FamilySettings{.head_size = size},
          FamilySettings{.attention_heads = groups * queries, .query_groups = groups, .head_size = size}}) {
      Result<CheckpointView> there = to_huggingface(numbers.view, settings);
      ASSERT_TRUE(there.has_value()) << there.error().what;
      EXPECT_EQ(family_of_huggingface(*there), gated ? Family::llama : Family::gpt_neox);
      Result<CheckpointView> back = from_huggingface(*there, settings);
      ASSERT_TRUE(back.has_value()) << back.error().what;
      EXPECT_EQ(everything(*back), everything(numbers.view));
    }
  }
}

TEST(Families, WhatDoesNotFitIsRefusedAndSaysWhatToTell) {
  Numbers numbers = megatron_layer(2, 2, 3, 5, true);
  Result<CheckpointView> untold = to_huggingface(numbers.view);
  ASSERT_FALSE(untold.has_value());
  EXPECT_EQ(untold.error().code, Code::invalid);
  EXPECT_NE(untold.error().what.find("--query-groups"), std::string::npos) << untold.error().what;
  for (const FamilySettings& wrong :
       {FamilySettings{.query_groups = 4}, FamilySettings{.query_groups = 2, .head_size = 4},
        FamilySettings{.attention_heads = 3, .query_groups = 2}, FamilySettings{.head_size = 7},
        FamilySettings{.query_groups = 1'000'000'007}, FamilySettings{.attention_heads = 1},
        FamilySettings{.query_groups = 2, .vocabulary = 11}})
    EXPECT_FALSE(to_huggingface(numbers.view, wrong).has_value());
  Numbers plain = megatron_layer(2, 1, 3, 4, false);
  EXPECT_FALSE(to_huggingface(plain.view, {.family = Family::llama, .query_groups = 2}).has_value());  // not gated
  EXPECT_FALSE(to_huggingface(numbers.view, {.family = Family::gpt_neox}).has_value());                // has groups
  CheckpointView empty;
  EXPECT_FALSE(to_huggingface(empty).has_value());
  EXPECT_FALSE(from_huggingface(empty).has_value());
  Result<CheckpointView> there = to_huggingface(numbers.view, {.query_groups = 2});
  ASSERT_TRUE(there.has_value());
  std::erase_if(there->tensors,
                [](const StoredTensor& t) { return t.name == "model.layers.0.self_attn.k_proj.weight"; });
  Result<CheckpointView> back = from_huggingface(*there, {.query_groups = 2});
  ASSERT_FALSE(back.has_value());
  EXPECT_NE(back.error().what.find("k_proj.weight, which belongs to the same tensor, is missing"), std::string::npos)
      << back.error().what;
}

TEST(Families, TheVocabularyIsStrippedWhereItIsTold) {
  Numbers numbers = megatron_layer(2, 2, 1, 3, true);
  Result<CheckpointView> view = to_huggingface(numbers.view, {.query_groups = 2, .vocabulary = 7});
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(find(*view, "model.embed_tokens.weight")->shape, (Shape{7, 4}));
  EXPECT_EQ(find(*view, "lm_head.weight")->shape, (Shape{7, 4}));
  EXPECT_EQ(values_of(*view, "lm_head.weight").back(), 9000 + 27);
}

TEST(Families, NamesOfTransformerEngineAndUnknownNames) {
  Numbers numbers = megatron_layer(2, 2, 1, 3, true);
  numbers.view.tensors[1].name = "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight";
  numbers.view.tensors[5].name = "decoder.layers.0.mlp.linear_fc1.layer_norm_weight";
  numbers.add("decoder.layers.0.self_attention.rotary.weight", {3});
  numbers.view.facts.emplace_back("attention heads", "4");
  Result<CheckpointView> view = to_huggingface(numbers.view);
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(values_of(*view, "model.layers.0.input_layernorm.weight"),
            values_of(numbers.view, numbers.view.tensors[1].name));
  EXPECT_NE(find(*view, "model.layers.0.post_attention_layernorm.weight"), nullptr);
  EXPECT_NE(find(*view, "decoder.layers.0.self_attention.rotary.weight"), nullptr);
  ASSERT_FALSE(view->notes.empty());
  EXPECT_NE(view->notes.back().find("rotary"), std::string::npos);
}

TEST(Families, ConfigurationsSayTheHeads) {
  Result<FamilySettings> settings = settings_of_config(
      R"({"a": [1, {"head_dim": 9}], "head_dim": null, "num_attention_heads": 8, "num_key_value_heads": 2})");
  ASSERT_TRUE(settings.has_value()) << settings.error().what;
  EXPECT_EQ(settings->attention_heads, 8u);
  EXPECT_EQ(settings->query_groups, 2u);
  EXPECT_EQ(settings->head_size, 0u);
  EXPECT_FALSE(settings_of_config("{").has_value());
  for (const Family family : {Family::gpt, Family::llama, Family::mixtral, Family::gpt_neox})
    EXPECT_EQ(family_named(name_of(family)), family);
  EXPECT_FALSE(family_named("bert").has_value());
}

// --- Real checkpoints of Megatron-Core, against values that are worked out from the golden row by row.

struct Golden {
  explicit Golden(const std::string& path) : bytes(fixtures::content(path)) {
    MemoryBytes source(bytes);
    Result<SafetensorsFile> file = read_safetensors(source);
    EXPECT_TRUE(file.has_value()) << path;
    for (const SafetensorsEntry& entry : file ? file->tensors : std::vector<SafetensorsEntry>())
      entries[entry.name] = entry;
  }
  // Rows of a tensor, in the order given.
  [[nodiscard]] std::string rows(const std::string& name, const std::vector<std::uint64_t>& numbers) const {
    const SafetensorsEntry& entry = entries.at(name);
    const std::uint64_t row = entry.size_bytes / entry.shape[0];
    std::string out;
    for (const std::uint64_t number : numbers) out += bytes.substr(entry.offset_bytes + number * row, row);
    return out;
  }
  std::string bytes;
  std::map<std::string, SafetensorsEntry> entries;
};

// Rows that one head of queries, keys or values has in the fused tensor, head by head.
std::vector<std::uint64_t> head_rows(char which, std::uint64_t heads, std::uint64_t groups, std::uint64_t size) {
  const std::uint64_t queries = heads / groups;
  std::vector<std::uint64_t> out;
  for (std::uint64_t head = 0; head < (which == 'q' ? heads : groups); ++head)
    for (std::uint64_t i = 0; i < size; ++i) {
      if (which == 'q') out.push_back((head / queries * (queries + 2) + head % queries) * size + i);
      if (which == 'k') out.push_back((head * (queries + 2) + queries) * size + i);
      if (which == 'v') out.push_back((head * (queries + 2) + queries + 1) * size + i);
    }
  return out;
}

std::vector<std::uint64_t> range(std::uint64_t begin, std::uint64_t end) {
  std::vector<std::uint64_t> out(end - begin);
  std::iota(out.begin(), out.end(), begin);
  return out;
}

// Every tensor of the golden of a fixture with four heads of size 6 in two groups, looked up under the names that it
// should have become. Returns how many Hugging Face names were compared.
std::size_t compare_with_golden(const std::string& folder, Family family, const std::string& mlp,
                                const std::array<std::string, 3>& names) {
  SCOPED_TRACE(folder);
  Result<CheckpointView> megatron = view_megatron(folder + "/iter_0000003");
  EXPECT_TRUE(megatron.has_value()) << (megatron ? "" : megatron.error().what);
  if (!megatron) return 0;
  EXPECT_EQ(family_of_megatron(*megatron), family);
  Result<CheckpointView> view = to_huggingface(*megatron, {.query_groups = 2});
  EXPECT_TRUE(view.has_value()) << (view ? "" : view.error().what);
  if (!view) return 0;
  const Golden golden(folder + "/golden.safetensors");
  fixtures::Contents contents(*view);
  std::map<std::string, const StoredTensor*> tensors;
  for (const StoredTensor& tensor : view->tensors) tensors[tensor.name + "/" + tensor.role] = &tensor;
  std::size_t compared = 0;
  const auto expect = [&](const std::string& key, const std::string& bytes) {
    EXPECT_TRUE(tensors.contains(key)) << key;
    if (!tensors.contains(key)) return;
    EXPECT_TRUE(fixtures::whole_of(*tensors[key], contents) == bytes) << key;
    ++compared;
  };
  for (const auto& [key, entry] : golden.entries) {
    std::string name = key;
    const auto replace = [&](const std::string& from, const std::string& to) {
      const std::size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, from.size(), to);
      return at != std::string::npos;
    };
    const std::vector<std::uint64_t> all = range(0, entry.shape[0]);
    if (name.starts_with("embedding.position")) {
      expect(name, golden.rows(key, all));  // Llama has none: kept
      continue;
    }
    replace("embedding.word_embeddings", "model.embed_tokens");
    replace("decoder.final_layernorm", "model.norm");
    replace("output_layer", "lm_head");
    replace("decoder.layers", "model.layers");
    replace("pre_mlp_layernorm", "post_attention_layernorm");
    replace("self_attention.linear_proj", "self_attn.o_proj");
    replace("mlp.router", "block_sparse_moe.gate");
    replace("mlp.experts.local_experts", "block_sparse_moe.experts");
    replace("linear_fc2", names[2]);
    if (name.find("linear_qkv") != std::string::npos) {
      for (const char which : {'q', 'k', 'v'}) {
        std::string part = name;
        part.replace(part.find("self_attention.linear_qkv"), 25, text("self_attn.", which, "_proj"));
        expect(part, golden.rows(key, head_rows(which, 4, 2, 6)));
      }
    } else if (name.find("linear_fc1") != std::string::npos) {
      const std::uint64_t half = entry.shape[0] / 2;
      for (std::uint64_t i = 0; i < 2; ++i) {
        std::string part = name;
        part.replace(part.find("linear_fc1"), 10, names[i]);
        expect(part, golden.rows(key, range(i * half, (i + 1) * half)));
      }
    } else {
      expect(name, golden.rows(key, all));
    }
  }
  EXPECT_NE(tensors.lower_bound("model.layers.0." + mlp), tensors.end());
  Result<CheckpointView> back = from_huggingface(*view, {.head_size = 6});
  EXPECT_TRUE(back.has_value()) << (back ? "" : back.error().what);
  if (!back) return 0;
  EXPECT_EQ(everything(*back), everything(*megatron));
  return compared;
}

TEST(Families, MegatronsCheckpointsUnderHuggingFacesNames) {
  const std::string set = fixtures::small_set() + "/torch/";
  EXPECT_GT(compare_with_golden(set + "J1_mcore_tp2_pp2", Family::llama, "mlp.", {"gate_proj", "up_proj", "down_proj"}),
            150u);
  EXPECT_GT(compare_with_golden(set + "J2_mcore_moe_pp2_ep2", Family::mixtral, "block_sparse_moe.", {"w1", "w3", "w2"}),
            130u);
  EXPECT_GT(compare_with_golden(set + "J4_mcore_distopt_dp_reshardable", Family::llama, "mlp.",
                                {"gate_proj", "up_proj", "down_proj"}),
            70u);
}

TEST(Families, MegatronsCheckpointsOfTheWholeSet) {
  PAWL_NEEDS_WHOLE_SET();
  const std::string set = fixtures::whole_set() + "/torch/";
  for (const char* name : {"J3_mcore_distopt_tp2_dp2", "J6_mcore012_flattened_range"})
    EXPECT_GT(compare_with_golden(set + name, Family::llama, "mlp.", {"gate_proj", "up_proj", "down_proj"}), 90u);
  Result<CheckpointView> plain = view_megatron(set + "J5_mcore_vp2_pp2/iter_0000003");
  ASSERT_TRUE(plain.has_value()) << plain.error().what;
  Result<CheckpointView> neox = to_huggingface(*plain);
  ASSERT_TRUE(neox.has_value()) << neox.error().what;
  EXPECT_NE(find(*neox, "gpt_neox.layers.3.attention.query_key_value.bias"), nullptr);
  Result<CheckpointView> back = from_huggingface(*neox);
  ASSERT_TRUE(back.has_value()) << back.error().what;
  EXPECT_EQ(everything(*back), everything(*plain));
}

// --- Real checkpoints of Hugging Face: to Megatron's names, fused, and back.

void expect_back(const CheckpointView& view, const std::string& config_path, Family family, const std::string& fused) {
  SCOPED_TRACE(config_path);
  EXPECT_EQ(family_of_huggingface(view), family);
  Result<FamilySettings> settings = settings_of_config(fixtures::content(config_path));
  ASSERT_TRUE(settings.has_value()) << settings.error().what;
  Result<CheckpointView> megatron = from_huggingface(view, *settings);
  ASSERT_TRUE(megatron.has_value()) << megatron.error().what;
  EXPECT_NE(find(*megatron, fused), nullptr) << fused;
  EXPECT_EQ(family_of_megatron(*megatron), family);
  Result<CheckpointView> back = to_huggingface(*megatron, *settings);
  ASSERT_TRUE(back.has_value()) << back.error().what;
  EXPECT_EQ(everything(*back), everything(view));
}

TEST(Families, LlamaToMegatronAndBack) {
  const std::string model = fixtures::small_set() + "/torch/I1_llama_gqa_tied/model";
  Result<CheckpointView> view = view_safetensors(model + "/model.safetensors");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  expect_back(*view, model + "/config.json", Family::llama, "decoder.layers.1.self_attention.linear_qkv.weight");
  // Four heads of six in two groups: rows of the fused tensor, head by head.
  Result<CheckpointView> megatron = from_huggingface(*view, {.attention_heads = 4});
  ASSERT_TRUE(megatron.has_value()) << megatron.error().what;
  const std::vector<float> fused = values_of(*megatron, "decoder.layers.0.self_attention.linear_qkv.weight");
  for (const char which : {'q', 'k', 'v'}) {
    const std::vector<float> part = values_of(*view, text("model.layers.0.self_attn.", which, "_proj.weight"));
    const std::vector<std::uint64_t> rows = head_rows(which, 4, 2, 6);
    ASSERT_EQ(part.size(), rows.size() * 24);
    for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], fused[rows[i / 24] * 24 + i % 24]) << which << i;
  }
}

TEST(Families, EveryHuggingFaceFamilyToMegatronAndBack) {
  PAWL_NEEDS_WHOLE_SET();
  const std::string set = fixtures::whole_set() + "/torch/";
  Result<CheckpointView> gpt = view_safetensors(set + "I4_gpt2/model/model.safetensors");
  ASSERT_TRUE(gpt.has_value()) << gpt.error().what;
  expect_back(*gpt, set + "I4_gpt2/model/config.json", Family::gpt,
              "decoder.layers.1.self_attention.linear_qkv.weight");
  for (const auto& [name, family] : std::map<std::string, Family>{{"I2_llama_sharded_bf16", Family::llama},
                                                                  {"I5_qwen2_sharded", Family::llama},
                                                                  {"I3_mixtral_4_experts", Family::mixtral}}) {
    const std::string model = set + name + "/model";
    Result<CheckpointView> view = view_huggingface(model + "/model.safetensors.index.json");
    ASSERT_TRUE(view.has_value()) << view.error().what;
    expect_back(*view, model + "/config.json", family, "decoder.layers.1.self_attention.linear_qkv.weight");
  }
}

}  // namespace
}  // namespace pawl::checkpoint
