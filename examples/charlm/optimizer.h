// Adam on one rank's shard of the flat parameter vector (ZeRO-1): each rank holds the moments of its shard alone.
//
// Elementwise, hence bitwise equal wherever the shard's borders lie. No libm but sqrt, which IEEE 754 makes exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace charlm {

struct AdamOptions {
  float learning_rate = 3e-3f;      // > 0; after the warm-up
  std::uint64_t warmup_steps = 20;  // the rate rises linearly over these
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  float epsilon = 1e-8f;
};

// The state of one shard. Both vectors have the shard's size.
struct AdamState {
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;
};

// Update number `step` (from 1) of the weights of this shard.
void adam_update(const AdamOptions& options, std::uint64_t step, std::span<const float> gradients, AdamState& state,
                 std::span<float> weights);

}  // namespace charlm
