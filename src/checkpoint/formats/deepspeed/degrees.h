// ParallelDegrees: how many ranks the job had on each axis of its parallelism, and where a rank stands on them.
//
// DeepSpeed numbers model-parallel ranks by pipeline stage, then by tensor-parallel rank. Pure.
#pragma once

#include <cstdint>

namespace pawl::checkpoint::deepspeed {

// Which part of the model a rank holds.
struct ModelPosition {
  std::uint32_t stage = 0;   // of the pipeline
  std::uint32_t tensor = 0;  // tensor-parallel rank
};

struct ParallelDegrees {
  std::uint32_t pipeline = 1;
  std::uint32_t tensor = 1;
  std::uint64_t data = 1;

  [[nodiscard]] std::uint64_t model_ranks() const { return std::uint64_t{pipeline} * tensor; }
  [[nodiscard]] ModelPosition position_of(std::uint32_t model_rank) const {
    return {model_rank / tensor, model_rank % tensor};
  }
  // The number among all ranks of the job.
  [[nodiscard]] std::uint32_t rank_of(ModelPosition position, std::uint64_t data_rank) const {
    return static_cast<std::uint32_t>((position.stage * data + data_rank) * tensor + position.tensor);
  }
};

}  // namespace pawl::checkpoint::deepspeed
