// What a config.json tells about the weights beside it. That transformers loads the result: test/torch/peers.
#include "cli/checkpoint/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "checkpoint/formats/huggingface/safetensors_writer.h"

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
