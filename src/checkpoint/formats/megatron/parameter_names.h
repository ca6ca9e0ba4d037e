// ParameterNames: what a key of Megatron-Core's files names: one parameter, or those of all layers or experts.
//
// Pure. "decoder.layers.mlp.experts.experts.linear_fc1.weight" has a layer axis, then an expert axis; a number after
// "layers" or "experts.experts" says that there is no such axis. Norms go by the name that the model has for them:
// where Transformer Engine is not used they are modules of their own, and only filed under the linear layer.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pawl::checkpoint {

struct MegatronKey {
  std::vector<std::string> words;  // of the key, between its dots
  std::size_t layer_at = 0;        // the layer's number goes before this word, where has_layer_axis
  std::size_t expert_at = 0;       // likewise
  bool has_layer_axis = false;     // the first axis of the tensor
  bool has_expert_axis = false;    // the one after it
  [[nodiscard]] std::uint32_t axes() const {
    return static_cast<std::uint32_t>(has_layer_axis) + static_cast<std::uint32_t>(has_expert_axis);
  }
};

[[nodiscard]] MegatronKey parse_megatron_key(std::string_view key);

struct NameOptions {
  bool transformer_engine = false;  // norms are parts of the linear layers
};
[[nodiscard]] std::string name_of(const MegatronKey& key, std::uint64_t layer, std::uint64_t expert,
                                  NameOptions options);

// Where a parameter stands among all of a model, in the order in which Megatron-Core makes its modules: what makes the
// order of a distributed optimizer's buffers. Names that Megatron-Core's GPT does not have come last.
struct ModelOrder {
  std::uint32_t section = 0;  // embedding, layers, final norm, output layer, others
  std::uint64_t layer = 0;
  std::uint32_t module = 0;
  std::uint64_t expert = 0;
  std::uint32_t part = 0;
  auto operator<=>(const ModelOrder&) const = default;
};
[[nodiscard]] ModelOrder order_of(std::string_view name);
[[nodiscard]] bool is_expert_name(std::string_view name);

}  // namespace pawl::checkpoint
