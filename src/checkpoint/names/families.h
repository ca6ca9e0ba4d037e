// Families: a view in Megatron-Core's names becomes one in Hugging Face's, and back, for the models that both know.
//
// Modules are renamed; fused tensors are taken apart (QKV per query group, the two halves of a gated fc1) and put
// together again; GPT-2's linear layers are transposed. All roles of a parameter are treated alike. No byte moves, so
// both ways are exact, and one undoes the other; norms come back under the names that they have without Transformer
// Engine. A tensor that the family has no name for keeps its name, and a note says so. Rows are only regrouped: models
// whose q and k rows were permuted for another rotary embedding (the interleaved one) stay as they are, since no file
// says so.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

enum class Family : std::uint8_t {
  gpt,       // learned positions, plain MLP: transformer.h.0.attn.c_attn (GPT-2)
  llama,     // gated MLP: model.layers.0.self_attn.q_proj (Llama, Qwen2, Qwen3, Mistral)
  mixtral,   // gated experts: model.layers.0.block_sparse_moe.experts.0.w1
  gpt_neox,  // rotary positions, plain MLP: gpt_neox.layers.0.attention.query_key_value
};
[[nodiscard]] std::string_view name_of(Family family);  // "gpt", "llama", "mixtral", "gpt_neox"
[[nodiscard]] std::optional<Family> family_named(std::string_view name);

// What names and shapes don't say. 0: not given; then the view's facts are used ("attention heads", "query groups",
// "head size"), which readers fill from what the checkpoint's arguments say. One of the three is enough, and is needed
// only where QKV has to be taken apart or put together. What is told must fit the shapes.
struct FamilySettings {
  std::optional<Family> family = {};  // detected by the names if not given
  std::uint64_t attention_heads = 0;  // --heads
  std::uint64_t query_groups = 0;     // --query-groups: heads of keys and values
  std::uint64_t head_size = 0;        // --head-size
  std::uint64_t vocabulary = 0;       // --vocabulary: to_huggingface keeps so many rows; 0: all that are stored
};

// The numbers that a config.json of Hugging Face says, where `told` has none. Fails: `corrupt`.
[[nodiscard]] Result<FamilySettings> settings_of_config(std::string_view config_json, FamilySettings told = {});

// The family whose names these are: Megatron-Core's, Hugging Face's.
[[nodiscard]] std::optional<Family> family_of_megatron(const CheckpointView& view);
[[nodiscard]] std::optional<Family> family_of_huggingface(const CheckpointView& view);

// Fails: `invalid`, naming the tensor: the family is not known, a number is missing (the error names the options) or
// doesn't fit the shapes, one of q, k and v is missing, or two tensors would get one name.
[[nodiscard]] Result<CheckpointView> to_huggingface(const CheckpointView& view, const FamilySettings& settings = {});
[[nodiscard]] Result<CheckpointView> from_huggingface(const CheckpointView& view, const FamilySettings& settings = {});

}  // namespace pawl::checkpoint
