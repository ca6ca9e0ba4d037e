#include "optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace charlm {
namespace {

// By squaring: a fixed order of roundings, unlike libm's pow.
double power(double base, std::uint64_t exponent) {
  double result = 1.0;
  for (; exponent != 0; exponent >>= 1, base *= base) {
    if ((exponent & 1) != 0) result *= base;
  }
  return result;
}

}  // namespace

void adam_update(const AdamOptions& options, std::uint64_t step, std::span<const float> gradients, AdamState& state,
                 std::span<float> weights) {
  const double warmth =
      std::min(1.0, static_cast<double>(step) / static_cast<double>(std::max<std::uint64_t>(1, options.warmup_steps)));
  const double correction1 = 1.0 - power(options.beta1, step);
  const double correction2 = 1.0 - power(options.beta2, step);
  const auto rate = static_cast<float>(options.learning_rate * warmth / correction1);
  const auto scale2 = static_cast<float>(1.0 / correction2);
  const float beta1 = options.beta1, beta2 = options.beta2, epsilon = options.epsilon;
  float* first = state.exp_avg.data();
  float* second = state.exp_avg_sq.data();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float gradient = gradients[i];
    first[i] = beta1 * first[i] + (1.0f - beta1) * gradient;
    second[i] = beta2 * second[i] + (1.0f - beta2) * (gradient * gradient);
    weights[i] -= rate * first[i] / (std::sqrt(second[i] * scale2) + epsilon);
  }
}

}  // namespace charlm
