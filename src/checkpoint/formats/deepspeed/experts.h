// Experts: which of all experts a rank's local ones are, in DeepSpeed's own mixture-of-experts layers.
//
// A rank names its experts 0, 1, ...; expert-parallel rank e has those from e * n on. Optimizer files keep the local
// names, so that equal names on two ranks may mean two experts. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/formats/deepspeed/model_states.h"

namespace pawl::checkpoint::deepspeed {

// "<path>.deepspeed_experts." and the number after it, and where its digits end. Nothing for other names.
struct ExpertName {
  std::string path;
  std::uint64_t expert = 0;
  std::string rest;  // ".fc1.weight"
};
[[nodiscard]] std::optional<ExpertName> parse_expert_name(const std::string& name);

// How many experts a rank has, for each path.
[[nodiscard]] std::map<std::string, std::uint64_t> local_experts(const std::vector<ParameterGroup>& groups);

// Which expert-parallel rank a data rank is, and which part of a group cut over `parts` of `world` ranks it holds.
// Consecutive ranks have different experts, or, with data before expert parallelism, the same. `parts` divides `world`.
struct ExpertPlace {
  std::uint64_t expert_rank = 0;
  std::uint64_t part = 0;
};
[[nodiscard]] constexpr ExpertPlace expert_place(std::uint64_t data_rank, std::uint64_t world, std::uint64_t parts,
                                                 bool data_before_expert) {
  const std::uint64_t ranks = world / parts;  // expert-parallel degree
  return data_before_expert ? ExpertPlace{data_rank / parts, data_rank % parts}
                            : ExpertPlace{data_rank % ranks, data_rank / ranks};
}

}  // namespace pawl::checkpoint::deepspeed
