// Families: which one a view's names are of, and what a config.json says of it.
#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

#include "checkpoint/containers/json_scan.h"
#include "checkpoint/names/families.h"

namespace pawl::checkpoint {
namespace {

bool any_name(const CheckpointView& view, std::string_view word) {
  return std::ranges::any_of(view.tensors,
                             [&](const StoredTensor& tensor) { return tensor.name.find(word) != std::string::npos; });
}

}  // namespace

std::string_view name_of(Family family) {
  constexpr std::array<std::string_view, 4> kNames = {"gpt", "llama", "mixtral", "gpt_neox"};
  return kNames[static_cast<std::size_t>(family)];
}

std::optional<Family> family_named(std::string_view name) {
  for (const Family family : {Family::gpt, Family::llama, Family::mixtral, Family::gpt_neox})
    if (name_of(family) == name) return family;
  return std::nullopt;
}

Result<FamilySettings> settings_of_config(std::string_view config_json, FamilySettings told) {
  JsonScan json(config_json);
  const bool is_told = told.attention_heads != 0 || told.query_groups != 0 || told.head_size != 0;
  FamilySettings out = told;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    std::uint64_t number = 0;
    if (json.peek() != '0') {
      json.skip();
      continue;
    }
    if (key == "vocab_size" && told.vocabulary == 0) {
      json.number(out.vocabulary);
      continue;
    }
    const bool is_ours =
        key == "num_attention_heads" || key == "n_head" || key == "num_key_value_heads" || key == "head_dim";
    if (!is_ours || is_told) {
      json.skip();
      continue;
    }
    json.number(number);
    (key == "head_dim"              ? out.head_size
     : key == "num_key_value_heads" ? out.query_groups
                                    : out.attention_heads) = number;
  }
  json.finish();
  if (json.failed()) return json.error();
  return out;
}

std::optional<Family> family_of_megatron(const CheckpointView& view) {
  if (!any_name(view, "decoder.layers.") || !any_name(view, ".self_attention.linear_qkv.")) return std::nullopt;
  if (any_name(view, ".local_experts.") || any_name(view, ".mlp.experts.linear_fc1.")) return Family::mixtral;
  // A gated fc1 has twice the rows that fc2 has columns: no name says so.
  std::unordered_map<std::string, std::uint64_t> rows;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.shape.size() == 2 && tensor.name.ends_with(".mlp.linear_fc1.weight"))
      rows[tensor.name.substr(0, tensor.name.size() - 10)] = tensor.shape[0];
  for (const StoredTensor& tensor : view.tensors) {
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(".mlp.linear_fc2.weight")) continue;
    const auto found = rows.find(tensor.name.substr(0, tensor.name.size() - 10));
    if (found == rows.end()) continue;
    if (found->second == 2 * tensor.shape[1]) return Family::llama;
    return any_name(view, "embedding.position_embeddings.") ? Family::gpt : Family::gpt_neox;
  }
  return std::nullopt;
}

std::optional<Family> family_of_huggingface(const CheckpointView& view) {
  if (any_name(view, ".block_sparse_moe.")) return Family::mixtral;
  if (any_name(view, "gpt_neox.layers.")) return Family::gpt_neox;
  if (any_name(view, "h.0.attn.c_attn.")) return Family::gpt;
  if (any_name(view, "model.layers.") && any_name(view, ".mlp.gate_proj.") && any_name(view, ".self_attn.q_proj."))
    return Family::llama;
  return std::nullopt;
}

}  // namespace pawl::checkpoint
