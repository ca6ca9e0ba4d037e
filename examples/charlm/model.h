// Model: the next byte from the sixteen before it.
//
// embedding -> hidden1 (ReLU) -> hidden2 (ReLU, dropout) -> output, softmax over 256 bytes; forward and backward by
// hand. Parameters lie in one flat vector, in the order of parameters(), which the ring and the optimizer cut.
// Bitwise reproducible: equal weights, samples and dropout state give equal loss and gradients, always.
// Does not update weights (optimizer.h), nor choose samples (sampler.h). One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels.h"
#include "random.h"

namespace charlm {

inline constexpr std::size_t kVocabulary = 256;  // bytes
inline constexpr std::size_t kContext = 16;      // bytes seen
inline constexpr std::size_t kEmbedding = 32;    // floats per byte

struct ModelOptions {
  std::size_t hidden = 512;  // 4..8192; parameters grow as its square
  double dropout = 0.1;      // 0..0.9, of the second hidden layer
};

struct Parameter {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::size_t offset;  // in the flat vector, elements
  std::size_t count;
};

// A weight matrix transposed for the backward pass: derived state, recomputed after every change of the weights.
struct Derived {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::vector<float> values;
};

class Model {
 public:
  explicit Model(ModelOptions options);

  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  [[nodiscard]] std::size_t parameter_count() const { return parameter_count_; }
  [[nodiscard]] std::vector<Derived>& derived() { return derived_; }

  // Initial weights: a function of the seed alone.
  void initialize(std::uint64_t seed, std::span<float> weights) const;
  // Brings the transposed copies up to date. After initialize, after each update, after a restore.
  void derive(std::span<const float> weights);
  // Sum of the samples' losses (nats). `samples` are offsets into `text`, each followed by kContext + 1 bytes.
  // Writes d(scale * sum)/d(weight) to `gradients`. Draws from `dropout`. Needs derive() of these weights.
  double forward_backward(std::span<const float> weights, std::span<const std::uint8_t> text,
                          std::span<const std::uint64_t> samples, float scale, Xoshiro& dropout,
                          std::span<float> gradients);

 private:
  enum Which : std::size_t {
    kEmbeddingWeight,
    kHidden1Weight,
    kHidden1Bias,
    kHidden2Weight,
    kHidden2Bias,
    kOutputWeight,
    kOutputBias
  };
  void add_parameter(std::string name, std::vector<std::uint64_t> shape);
  void embed(const float* weights, std::span<const std::uint8_t> text, std::span<const std::uint64_t> samples);
  void forward_layer(const float* weights, Which weight, Which bias, const std::vector<float>& in,
                     std::vector<float>& out, std::size_t batch);
  void backward_layer(Which weight, Which bias, const std::vector<float>& in, const std::vector<float>& out_gradient,
                      std::vector<float>* in_gradient, float* gradients, std::size_t batch);
  void drop_out(Xoshiro& dropout);
  double softmax_loss(std::span<const std::uint8_t> text, std::span<const std::uint64_t> samples, float scale);

  ModelOptions options_;
  std::size_t parameter_count_ = 0;
  std::vector<Parameter> parameters_;
  std::vector<Derived> derived_;  // hidden1, hidden2, output
  Workspace workspace_;
  std::vector<float> input_, hidden1_, hidden2_, mask_, output_;  // batch x width; output_ becomes its gradient
  std::vector<float> input_gradient_, hidden1_gradient_, hidden2_gradient_;
};

}  // namespace charlm
