// ModuleName: a parameter's name taken apart, so that one rule fits all layers and all experts.
//
// "decoder.layers.3.mlp.linear_fc2.weight" is module "decoder.layers.L.mlp.linear_fc2", layer "3", part "weight". Pure.
#pragma once

#include <string>
#include <string_view>

namespace pawl::checkpoint {

struct ModuleName {
  std::string module;  // L stands for the layer's number, E for the expert's
  std::string layer;
  std::string expert;
  std::string part;  // "weight", "bias"
};

[[nodiscard]] bool is_number(std::string_view word);  // decimal digits only
[[nodiscard]] ModuleName parse_module_name(std::string_view name);

// The name of `module`, with the numbers and the part of `from`.
[[nodiscard]] std::string name_of_module(std::string_view module, const ModuleName& from);

// Names that Megatron-Core gives with Transformer Engine, in the form that it gives without. Others are unchanged.
[[nodiscard]] std::string without_transformer_engine(std::string_view name);

}  // namespace pawl::checkpoint
