#include "checkpoint/names/module_name.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"

namespace pawl::checkpoint {
bool is_number(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char letter) { return letter >= '0' && letter <= '9'; });
}

ModuleName parse_module_name(std::string_view name) {
  ModuleName out;
  std::string_view before;
  while (true) {
    const std::size_t dot = name.find('.');
    const std::string_view word = name.substr(0, dot);
    if (dot == std::string_view::npos) {
      out.part = word;
      return out;
    }
    if (!out.module.empty()) out.module += '.';
    if (is_number(word) && (before == "layers" || before == "h") && out.layer.empty()) {
      out.layer = word;
      out.module += 'L';
    } else if (is_number(word) && (before == "experts" || before == "local_experts") && out.expert.empty()) {
      out.expert = word;
      out.module += 'E';
    } else {
      out.module += word;
    }
    before = word;
    name.remove_prefix(dot + 1);
  }
}

std::string name_of_module(std::string_view module, const ModuleName& from) {
  std::string out;
  while (true) {
    const std::size_t dot = module.find('.');
    const std::string_view word = module.substr(0, dot);
    out += word == "L" ? std::string_view(from.layer) : word == "E" ? std::string_view(from.expert) : word;
    out += '.';
    if (dot == std::string_view::npos) return out += from.part;
    module.remove_prefix(dot + 1);
  }
}

std::string without_transformer_engine(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kNorms = {
      {{".self_attention.linear_qkv.layer_norm_", ".input_layernorm."},
       {".mlp.linear_fc1.layer_norm_", ".pre_mlp_layernorm."}}};
  std::string out(name);
  for (const auto& [from, to] : kNorms)
    if (const std::size_t at = out.find(from); at != std::string::npos) out.replace(at, from.size(), to);
  for (const std::string_view layer : {".experts.linear_fc1.weight", ".experts.linear_fc2.weight"}) {
    const std::size_t at = out.find(layer);  // grouped: weight0, weight1, ...
    if (at == std::string::npos || !is_number(std::string_view(out).substr(at + layer.size()))) continue;
    const std::string number = out.substr(at + layer.size());
    out = text(out.substr(0, at), ".experts.local_experts.", number, layer.substr(8));
  }
  return out;
}

}  // namespace pawl::checkpoint
