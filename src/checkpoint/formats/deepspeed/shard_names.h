// ShardName: what the name of a file in a DeepSpeed checkpoint says: which part of the state it is, and whose.
//
// Numbers are compared as numbers, whatever their padding: rank 10 comes after 9. Other names give nothing, and are no
// error: jobs put their own files there. Pure. What a file holds is not known from its name (model_states.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace pawl::checkpoint::deepspeed {

struct ShardName {
  enum class Kind : std::uint8_t {
    model,             // mp_rank_MM_model_states.pt
    zero_model,        // zero_pp_rank_D_mp_rank_MM_model_states.pt: ZeRO-3
    optimizer,         // [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt
    layer,             // layer_LL[-model_TT]-model_states.pt: one layer of a pipeline
    expert,            // [layer_l_]expert_e_mp_rank_MM_model_states.pt
    expert_optimizer,  // expp_rank_E_mp_rank_MM_optim_states.pt
  };
  Kind kind = Kind::model;
  std::uint32_t data_rank = 0;   // D, or E: in the ZeRO group, or the expert-parallel one
  std::uint32_t model_rank = 0;  // MM: pipeline stage times tensor-parallel degree plus tensor-parallel rank; or TT
  std::uint32_t layer = 0;       // LL, or l: which of the layers with experts
  std::uint32_t expert = 0;      // its number among all of its layer
  bool has_model_axis = true;    // of layer: false without -model_TT
  std::string name;              // of the file

  using Coordinates = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
  [[nodiscard]] Coordinates coordinates() const { return {layer, expert, model_rank, data_rank}; }
};

[[nodiscard]] std::optional<ShardName> parse_shard_name(std::string_view name);

}  // namespace pawl::checkpoint::deepspeed
