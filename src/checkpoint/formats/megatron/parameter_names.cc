#include "checkpoint/formats/megatron/parameter_names.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/text.h"
#include "checkpoint/names/module_name.h"

namespace pawl::checkpoint {
namespace {

std::vector<std::string> words_of(std::string_view key) {
  std::vector<std::string> words;
  for (std::size_t begin = 0;;) {
    const std::size_t dot = key.find('.', begin);
    words.emplace_back(key.substr(begin, dot - begin));
    if (dot == std::string_view::npos) return words;
    begin = dot + 1;
  }
}

// "<before><from><weight or bias>" becomes "<before><to><weight or bias>".
void rename_norm(std::string& name, std::string_view from, std::string_view to) {
  const std::size_t at = name.rfind(from);
  if (at == std::string::npos) return;
  const std::string_view rest = std::string_view(name).substr(at + from.size());
  if (rest == "weight" || rest == "bias") name.replace(at, from.size(), to);
}

std::size_t index_in(std::span<const std::string_view> words, std::string_view text) {
  std::size_t at = 0;
  while (at < words.size() && text.find(words[at]) == std::string_view::npos) ++at;
  return at;
}

}  // namespace

MegatronKey parse_megatron_key(std::string_view key) {
  while (key.starts_with("module.")) key.remove_prefix(7);
  MegatronKey out;
  out.words = words_of(key);
  const auto layers = std::ranges::find(out.words, "layers");
  if (layers != out.words.end() && layers + 1 != out.words.end()) {
    out.layer_at = static_cast<std::size_t>(layers - out.words.begin()) + 1;
    out.has_layer_axis = !is_number(out.words[out.layer_at]);
  }
  for (std::size_t i = 1; i + 1 < out.words.size(); ++i) {
    if (out.words[i - 1] != "experts" || out.words[i] != "experts") continue;
    out.words[i] = "local_experts";
    out.expert_at = i + 1;
    out.has_expert_axis = !is_number(out.words[i + 1]);
    break;
  }
  return out;
}

std::string name_of(const MegatronKey& key, std::uint64_t layer, std::uint64_t expert, NameOptions options) {
  std::string name;
  for (std::size_t i = 0; i < key.words.size(); ++i) {
    if (key.has_layer_axis && i == key.layer_at) name += text(layer, '.');
    if (key.has_expert_axis && i == key.expert_at) name += text(expert, '.');
    name += key.words[i];
    if (i + 1 != key.words.size()) name += '.';
  }
  if (options.transformer_engine) return name;
  rename_norm(name, ".self_attention.linear_qkv.layer_norm_", ".input_layernorm.");
  rename_norm(name, ".mlp.linear_fc1.layer_norm_", ".pre_mlp_layernorm.");
  return name;
}

ModelOrder order_of(std::string_view name) {
  constexpr std::array<std::string_view, 4> kSections = {"embedding.", ".layers.", ".final_layernorm.",
                                                         "output_layer."};
  constexpr std::array<std::string_view, 14> kModules = {
      "word_embeddings",  "position_embeddings", ".input_layernorm.",   ".linear_proj.",    ".linear_qkv.",
      ".q_layernorm.",    ".k_layernorm.",       ".pre_mlp_layernorm.", ".router.",         ".experts.",
      ".shared_experts.", ".linear_fc1.",        ".linear_fc2.",        ".final_layernorm."};
  constexpr std::array<std::string_view, 4> kParts = {".layer_norm_weight", ".layer_norm_bias", ".weight", ".bias"};
  ModelOrder order;
  order.section = static_cast<std::uint32_t>(index_in(kSections, name));
  const auto number_after = [&](std::string_view word) {
    const std::size_t at = name.find(word);
    std::uint64_t number = 0;
    if (at == std::string_view::npos) return number;
    const std::string_view rest = name.substr(at + word.size());
    return parse_number(rest.substr(0, rest.find('.')), number) ? number : std::uint64_t{0};
  };
  order.layer = number_after(".layers.");
  order.expert = number_after(".local_experts.");
  order.module = static_cast<std::uint32_t>(index_in(kModules, name));
  order.part = static_cast<std::uint32_t>(index_in(kParts, name));
  if (order.module == 9 || order.module == 10)  // experts: fc1 before fc2 within each
    order.part += name.find(".linear_fc2.") != std::string_view::npos ? 8 : 0;
  return order;
}

bool is_expert_name(std::string_view name) {
  return name.find(".local_experts.") != std::string_view::npos;
}

}  // namespace pawl::checkpoint
