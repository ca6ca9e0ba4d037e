#include "checkpoint/names/family_rules.h"

#include <span>

namespace pawl::checkpoint {
namespace {

// Llama and Mixtral: all but the MLP.
constexpr std::array kLlamaBody = {
    FamilyRule{"embedding.word_embeddings", {"model.embed_tokens"}},
    FamilyRule{"decoder.layers.L.input_layernorm", {"model.layers.L.input_layernorm"}},
    FamilyRule{
        "decoder.layers.L.self_attention.linear_qkv",
        {"model.layers.L.self_attn.q_proj", "model.layers.L.self_attn.k_proj", "model.layers.L.self_attn.v_proj"},
        ModuleForm::qkv},
    FamilyRule{"decoder.layers.L.self_attention.linear_proj", {"model.layers.L.self_attn.o_proj"}},
    FamilyRule{"decoder.layers.L.pre_mlp_layernorm", {"model.layers.L.post_attention_layernorm"}},
    FamilyRule{"decoder.final_layernorm", {"model.norm"}},
    FamilyRule{"output_layer", {"lm_head"}},
};
constexpr std::array kLlama = {
    FamilyRule{"decoder.layers.L.self_attention.q_layernorm", {"model.layers.L.self_attn.q_norm"}},
    FamilyRule{"decoder.layers.L.self_attention.k_layernorm", {"model.layers.L.self_attn.k_norm"}},
    FamilyRule{"decoder.layers.L.mlp.linear_fc1",
               {"model.layers.L.mlp.gate_proj", "model.layers.L.mlp.up_proj"},
               ModuleForm::halves},
    FamilyRule{"decoder.layers.L.mlp.linear_fc2", {"model.layers.L.mlp.down_proj"}},
};
constexpr std::array kMixtral = {
    FamilyRule{"decoder.layers.L.mlp.router", {"model.layers.L.block_sparse_moe.gate"}},
    FamilyRule{"decoder.layers.L.mlp.experts.local_experts.E.linear_fc1",
               {"model.layers.L.block_sparse_moe.experts.E.w1", "model.layers.L.block_sparse_moe.experts.E.w3"},
               ModuleForm::halves},
    FamilyRule{"decoder.layers.L.mlp.experts.local_experts.E.linear_fc2",
               {"model.layers.L.block_sparse_moe.experts.E.w2"}},
};
constexpr std::array kGpt = {
    FamilyRule{"embedding.word_embeddings", {"transformer.wte"}},
    FamilyRule{"embedding.position_embeddings", {"transformer.wpe"}},
    FamilyRule{"decoder.layers.L.input_layernorm", {"transformer.h.L.ln_1"}},
    FamilyRule{
        "decoder.layers.L.self_attention.linear_qkv", {"transformer.h.L.attn.c_attn"}, ModuleForm::qkv_transposed},
    FamilyRule{"decoder.layers.L.self_attention.linear_proj", {"transformer.h.L.attn.c_proj"}, ModuleForm::transposed},
    FamilyRule{"decoder.layers.L.pre_mlp_layernorm", {"transformer.h.L.ln_2"}},
    FamilyRule{"decoder.layers.L.mlp.linear_fc1", {"transformer.h.L.mlp.c_fc"}, ModuleForm::transposed},
    FamilyRule{"decoder.layers.L.mlp.linear_fc2", {"transformer.h.L.mlp.c_proj"}, ModuleForm::transposed},
    FamilyRule{"decoder.final_layernorm", {"transformer.ln_f"}},
    FamilyRule{"output_layer", {"lm_head"}},
};
constexpr std::array kGptNeox = {
    FamilyRule{"embedding.word_embeddings", {"gpt_neox.embed_in"}},
    FamilyRule{"decoder.layers.L.input_layernorm", {"gpt_neox.layers.L.input_layernorm"}},
    FamilyRule{"decoder.layers.L.self_attention.linear_qkv",
               {"gpt_neox.layers.L.attention.query_key_value"},
               ModuleForm::qkv_of_heads},
    FamilyRule{"decoder.layers.L.self_attention.linear_proj", {"gpt_neox.layers.L.attention.dense"}},
    FamilyRule{"decoder.layers.L.pre_mlp_layernorm", {"gpt_neox.layers.L.post_attention_layernorm"}},
    FamilyRule{"decoder.layers.L.mlp.linear_fc1", {"gpt_neox.layers.L.mlp.dense_h_to_4h"}},
    FamilyRule{"decoder.layers.L.mlp.linear_fc2", {"gpt_neox.layers.L.mlp.dense_4h_to_h"}},
    FamilyRule{"decoder.final_layernorm", {"gpt_neox.final_layer_norm"}},
    FamilyRule{"output_layer", {"embed_out"}},
};

std::vector<FamilyRule> joined(std::span<const FamilyRule> first, std::span<const FamilyRule> second) {
  std::vector<FamilyRule> out(first.begin(), first.end());
  out.insert(out.end(), second.begin(), second.end());
  return out;
}

}  // namespace

std::vector<FamilyRule> rules_of(Family family) {
  switch (family) {
    case Family::gpt:
      return joined(kGpt, {});
    case Family::llama:
      return joined(kLlamaBody, kLlama);
    case Family::mixtral:
      return joined(kLlamaBody, kMixtral);
    case Family::gpt_neox:
      break;
  }
  return joined(kGptNeox, {});
}

}  // namespace pawl::checkpoint
