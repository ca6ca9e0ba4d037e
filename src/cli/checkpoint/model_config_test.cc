// What a config.json tells about the weights beside it. That transformers loads the result: test/torch/peers.
#include "cli/checkpoint/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "checkpoint/formats/huggingface/safetensors_writer.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

constexpr const char* kLlama = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 61,
  "hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "tie_word_embeddings": TIED, "dtype": "float32", "rope_parameters": {"a": [1e4]}})";

ModelConfig llama(bool is_tied) {
  std::string words = kLlama;
  words.replace(words.find("TIED"), 4, is_tied ? "true" : "false");
  return {"config.json", words};
}

void add(CheckpointView& view, const std::string& name, Shape shape) {
  view.files.push_back({"source"});
  const auto file = static_cast<std::uint32_t>(view.files.size() - 1);
  view.tensors.push_back({name, "weight", ElementType::float32, shape, {whole_piece(shape, file, 0)}});
}

CheckpointView llama_weights(const std::string& front = "") {
  CheckpointView view;
  add(view, front + "model.embed_tokens.weight", {61, 24});
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string at = front + layer;
    add(view, at + "input_layernorm.weight", {24});
    add(view, at + "self_attn.q_proj.weight", {24, 24});
    add(view, at + "self_attn.k_proj.weight", {12, 24});
    add(view, at + "self_attn.v_proj.weight", {12, 24});
    add(view, at + "self_attn.o_proj.weight", {24, 24});
    add(view, at + "post_attention_layernorm.weight", {24});
    add(view, at + "mlp.gate_proj.weight", {37, 24});
    add(view, at + "mlp.up_proj.weight", {37, 24});
    add(view, at + "mlp.down_proj.weight", {24, 37});
  }
  add(view, front + "model.norm.weight", {24});
  return view;
}

OutputPlan plan_of(const CheckpointView& view, const WriteOptions& options = {}) {
  Result<OutputPlan> plan = plan_huggingface(view, options);
  EXPECT_TRUE(plan) << plan.error().what;
  return plan ? std::move(*plan) : OutputPlan();
}

std::string differences(const ModelConfig& config, const CheckpointView& view) {
  std::string out;
  for (const std::string& what : what_differs(config, view, plan_of(view))) out += what + "\n";
  return out;
}

TEST(ModelConfig, FitsItsOwnWeights) {
  CheckpointView view = llama_weights();
  EXPECT_EQ(differences(llama(true), view), "");
  add(view, "lm_head.weight", {61, 24});
  EXPECT_EQ(differences(llama(false), view), "");
  EXPECT_EQ(differences(llama(true), view), "") << "a tied head may be stored, too";
}

TEST(ModelConfig, NamesWhatIsMissing) {
  EXPECT_NE(differences(llama(false), llama_weights()).find("lm_head.weight [61,24]"), std::string::npos);
  CheckpointView view = llama_weights();
  std::erase_if(view.tensors,
                [](const StoredTensor& tensor) { return tensor.name.find("layers.1.") != tensor.name.npos; });
  const std::string what = differences(llama(true), view);
  EXPECT_NE(what.find("9 tensors"), std::string::npos) << what;
  EXPECT_NE(what.find("model.layers.1.input_layernorm.weight"), std::string::npos) << what;
}

TEST(ModelConfig, NamesBothShapes) {
  CheckpointView view = llama_weights();
  view.tensors[0].shape = {64, 24};
  EXPECT_NE(differences(llama(true), view).find("model.embed_tokens.weight is [64,24], and [61,24] there"),
            std::string::npos);
}

TEST(ModelConfig, TakesNamesOfTheModelWithoutItsHead) {
  CheckpointView view = llama_weights();
  for (StoredTensor& tensor : view.tensors) tensor.name.erase(0, std::string("model.").size());
  EXPECT_EQ(differences(llama(true), view), "");
}

TEST(ModelConfig, TellsAWrapperFromTheModelsOwnNames) {
  CheckpointView view = llama_weights("model.");
  EXPECT_EQ(fit_names(llama(true), view).size(), 1u);
  EXPECT_EQ(view.tensors[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(differences(llama(true), view), "");
  EXPECT_TRUE(fit_names(llama(true), view).empty()) << "names that fit stay";
}

TEST(ModelConfig, DropsAWrapperFromTiedNamesToo) {
  CheckpointView view = llama_weights("module.");
  view.aliases.emplace_back("module.lm_head.weight", "module.model.embed_tokens.weight");
  EXPECT_EQ(fit_names(llama(true), view).size(), 1u);
  ASSERT_EQ(view.aliases.size(), 1u);
  EXPECT_EQ(view.aliases[0].first, "lm_head.weight");
  EXPECT_EQ(view.aliases[0].second, "model.embed_tokens.weight");
}

TEST(ModelConfig, GivesAHeadThatIsNotTiedATensorOfItsOwn) {
  CheckpointView view = llama_weights();
  view.aliases.emplace_back("lm_head.weight", "model.embed_tokens.weight");
  CheckpointView tied = view;
  EXPECT_TRUE(fit_names(llama(true), tied).empty());
  EXPECT_EQ(fit_names(llama(false), view).size(), 1u);
  EXPECT_TRUE(view.aliases.empty());
  EXPECT_EQ(view.tensors.back().name, "lm_head.weight");
  EXPECT_EQ(differences(llama(false), view), "");
}

TEST(ModelConfig, KnowsTheExpertsOfBothForms) {
  const ModelConfig config{"config.json", R"({"model_type": "mixtral", "vocab_size": 5, "hidden_size": 4,
    "intermediate_size": 6, "num_hidden_layers": 0, "num_attention_heads": 2, "num_local_experts": 2})"};
  CheckpointView view;
  add(view, "model.embed_tokens.weight", {5, 4});
  add(view, "model.norm.weight", {4});
  add(view, "lm_head.weight", {5, 4});
  EXPECT_EQ(differences(config, view), "");
  ModelConfig one = config;
  one.text.replace(one.text.find("layers\": 0"), 10, "layers\": 1");
  EXPECT_TRUE(differences(one, view).starts_with("13 tensors"))
      << "two norms, four of attention, a gate, six of experts";
  add(view, "model.layers.0.mlp.experts.gate_up_proj", {2, 12, 5});
  const std::string fused = differences(one, view);
  EXPECT_TRUE(fused.starts_with("8 tensors")) << fused;
  EXPECT_NE(fused.find("gate_up_proj is [2,12,5], and [2,12,4] there"), std::string::npos) << fused;
}

// GPT-2 keeps its layers [in, out], has biases and learned positions, and ties its head unless told otherwise.
TEST(ModelConfig, KnowsGpt2) {
  const ModelConfig config{"config.json", R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
    "vocab_size": 11, "n_embd": 4, "n_positions": 8, "n_layer": 1})"};
  CheckpointView view;
  add(view, "transformer.wte.weight", {11, 4});
  add(view, "transformer.wpe.weight", {8, 4});
  const std::string layer = "transformer.h.0.";
  for (const std::string& norm : {layer + "ln_1", layer + "ln_2", std::string("transformer.ln_f")}) {
    add(view, norm + ".weight", {4});
    add(view, norm + ".bias", {4});
  }
  add(view, layer + "attn.c_attn.weight", {4, 12});
  add(view, layer + "attn.c_attn.bias", {12});
  add(view, layer + "attn.c_proj.weight", {4, 4});
  add(view, layer + "attn.c_proj.bias", {4});
  add(view, layer + "mlp.c_fc.weight", {4, 16});
  add(view, layer + "mlp.c_fc.bias", {16});
  add(view, layer + "mlp.c_proj.weight", {16, 4});
  add(view, layer + "mlp.c_proj.bias", {4});
  EXPECT_EQ(differences(config, view), "");
  for (StoredTensor& tensor : view.tensors)
    if (tensor.name.ends_with("c_fc.weight")) tensor.shape = {16, 4};
  EXPECT_NE(differences(config, view).find("transformer.h.0.mlp.c_fc.weight is [16,4], and [4,16] there"),
            std::string::npos);
}

TEST(ModelConfig, KnowsGptNeox) {
  const ModelConfig config{"config.json", R"({"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox",
    "vocab_size": 11, "hidden_size": 4, "intermediate_size": 16, "num_hidden_layers": 1})"};
  CheckpointView view;
  add(view, "gpt_neox.embed_in.weight", {11, 4});
  const std::string layer = "gpt_neox.layers.0.";
  for (const std::string& norm :
       {layer + "input_layernorm", layer + "post_attention_layernorm", std::string("gpt_neox.final_layer_norm")}) {
    add(view, norm + ".weight", {4});
    add(view, norm + ".bias", {4});
  }
  add(view, layer + "attention.query_key_value.weight", {12, 4});
  add(view, layer + "attention.query_key_value.bias", {12});
  add(view, layer + "attention.dense.weight", {4, 4});
  add(view, layer + "attention.dense.bias", {4});
  add(view, layer + "mlp.dense_h_to_4h.weight", {16, 4});
  add(view, layer + "mlp.dense_h_to_4h.bias", {16});
  add(view, layer + "mlp.dense_4h_to_h.weight", {4, 16});
  add(view, layer + "mlp.dense_4h_to_h.bias", {4});
  EXPECT_NE(differences(config, view).find("embed_out.weight [11,4]"), std::string::npos);
  add(view, "embed_out.weight", {11, 4});
  EXPECT_EQ(differences(config, view), "");
  ModelConfig without = config;
  without.text.insert(1, R"("attention_bias": false, )");
  std::erase_if(view.tensors, [](const StoredTensor& tensor) { return tensor.name.ends_with("attention.dense.bias"); });
  EXPECT_EQ(differences(without, view), "");
  EXPECT_NE(differences(config, view).find("attention.dense.bias [4]"), std::string::npos);
}

TEST(ModelConfig, KnowsTheNormsOfQwen3sHeads) {
  ModelConfig config = llama(true);
  config.text.replace(config.text.find(R"("model_type": "llama")"), 21, R"("model_type": "qwen3", "head_dim": 6)");
  CheckpointView view = llama_weights();
  EXPECT_TRUE(differences(config, view).starts_with("4 tensors of the qwen3 model")) << differences(config, view);
  for (const char* norm : {"0.self_attn.q_norm", "0.self_attn.k_norm", "1.self_attn.q_norm", "1.self_attn.k_norm"})
    add(view, text("model.layers.", norm, ".weight"), {6});
  EXPECT_EQ(differences(config, view), "");
}

TEST(ModelConfig, IsFoundBesideTheSourceOrWhereItWasTold) {
  const TemporaryDirectory directory;
  const std::string folder = directory.path("step"), file = directory.path("model.pt"), told = directory.path("told");
  ASSERT_TRUE(make_directories(folder));
  ASSERT_TRUE(write_file_atomically(directory.path("config.json"), R"({"model_type": "llama"})"));
  ASSERT_TRUE(write_file_atomically(told, R"({"model_type": "gpt2"})"));
  const auto found = [](const std::string& source, const std::string& config_file = "") {
    ConvertOptions options;
    options.source = source;
    options.config_file = config_file;
    return find_model_config(options, CheckpointView());
  };
  const auto beside = found(file);
  ASSERT_TRUE(beside && *beside);
  EXPECT_EQ((*beside)->path, directory.path("config.json"));
  const auto above = found(folder);
  ASSERT_TRUE(above);
  EXPECT_FALSE(*above) << "what lies beside a folder may be another model's";

  ASSERT_TRUE(write_file_atomically(join_path(folder, "config.json"), R"({"learning_rate": 1})"));
  EXPECT_FALSE(*found(folder)) << "that describes no model";
  ASSERT_TRUE(write_file_atomically(join_path(folder, "config.json"), R"({"architectures": []})"));
  EXPECT_EQ((*found(folder))->path, join_path(folder, "config.json"));

  EXPECT_EQ((*found(folder, told))->text, R"({"model_type": "gpt2"})");
  EXPECT_EQ(found(folder, directory.path("nowhere")).error().code, Code::not_found);
  ASSERT_TRUE(write_file_atomically(told, "[]"));
  EXPECT_EQ(found(folder, told).error().code, Code::corrupt);
}

TEST(ModelConfig, SaysTheTypeThatIsWritten) {
  const CheckpointView view = llama_weights();
  WriteOptions options;
  options.type = ElementType::bfloat16;
  options.file_bytes_max = 4000;
  OutputPlan plan = plan_of(view, options);
  const std::size_t files = plan.files.size();
  add_model_config(llama(true), plan);
  ASSERT_EQ(plan.files.size(), files + 1);
  EXPECT_EQ(plan.files.back().name, kHuggingFaceIndexName) << "it makes the others a checkpoint, and comes last";
  const PlannedFile& file = plan.files[files - 1];
  EXPECT_EQ(file.name, "config.json");
  ASSERT_EQ(file.texts.size(), 1u);
  EXPECT_EQ(file.size_bytes, file.texts[0].text.size());
  EXPECT_NE(file.texts[0].text.find(R"("dtype": "bfloat16")"), std::string::npos) << file.texts[0].text;
  OutputPlan same = plan_of(view);
  add_model_config(llama(true), same);
  EXPECT_EQ(same.files.back().texts[0].text, llama(true).text) << "byte for byte";
}

TEST(ModelConfig, SaysNothingOfWhatItDoesNotKnow) {
  const CheckpointView view = llama_weights();
  for (const char* words : {"", "[]", "{", R"({"model_type": 7})", R"({"model_type": "unheard_of"})",
                            R"({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]})",
                            R"({"model_type": "llama", "num_hidden_layers": 123456789012})"}) {
    EXPECT_EQ(differences({"config.json", words}, view), "") << words;
    OutputPlan plan = plan_of(view);
    add_model_config({"config.json", words}, plan);
    EXPECT_EQ(plan.files.back().texts[0].text, words);
  }
}

}  // namespace
}  // namespace pawl::checkpoint
