#include "model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace charlm {

Model::Model(ModelOptions options) : options_(options) {
  const std::uint64_t hidden = options.hidden;
  add_parameter("embedding.weight", {kVocabulary, kEmbedding});
  add_parameter("hidden1.weight", {kContext * kEmbedding, hidden});
  add_parameter("hidden1.bias", {hidden});
  add_parameter("hidden2.weight", {hidden, hidden});
  add_parameter("hidden2.bias", {hidden});
  add_parameter("output.weight", {hidden, kVocabulary});
  add_parameter("output.bias", {kVocabulary});
  for (const Which which : {kHidden1Weight, kHidden2Weight, kOutputWeight}) {
    const Parameter& parameter = parameters_[which];
    derived_.push_back({parameter.name, {parameter.shape[1], parameter.shape[0]}, std::vector<float>(parameter.count)});
  }
}

void Model::add_parameter(std::string name, std::vector<std::uint64_t> shape) {
  const std::size_t count = std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
  parameters_.push_back({std::move(name), std::move(shape), parameter_count_, count});
  parameter_count_ += count;
}

void Model::initialize(std::uint64_t seed, std::span<float> weights) const {
  std::fill(weights.begin(), weights.end(), 0.0f);  // biases, and the padding behind the last parameter
  for (std::size_t which = 0; which < parameters_.size(); ++which) {
    const Parameter& parameter = parameters_[which];
    if (parameter.shape.size() != 2) continue;
    // Uniform with the variance that keeps activations at their size through ReLU (He et al. 2015, eq. 10).
    const auto inputs = static_cast<float>(parameter.shape[0]);
    const float bound = which == kEmbeddingWeight ? 1.0f : std::sqrt((which == kOutputWeight ? 1.0f : 6.0f) / inputs);
    const std::uint64_t key = random_at(seed, which);
    for (std::size_t i = 0; i < parameter.count; ++i) {
      weights[parameter.offset + i] = bound * to_symmetric(random_at(key, i));
    }
  }
}

void Model::derive(std::span<const float> weights) {
  constexpr Which kTransposed[] = {kHidden1Weight, kHidden2Weight, kOutputWeight};
  for (std::size_t i = 0; i < derived_.size(); ++i) {
    const Parameter& parameter = parameters_[kTransposed[i]];
    transpose(weights.data() + parameter.offset, parameter.shape[0], parameter.shape[1], derived_[i].values.data());
  }
}

void Model::embed(const float* weights, std::span<const std::uint8_t> text, std::span<const std::uint64_t> samples) {
  input_.resize(samples.size() * kContext * kEmbedding);
  float* out = input_.data();
  for (const std::uint64_t sample : samples) {
    for (std::size_t i = 0; i < kContext; ++i, out += kEmbedding) {
      std::copy_n(weights + text[sample + i] * kEmbedding, kEmbedding, out);
    }
  }
}

void Model::forward_layer(const float* weights, Which weight, Which bias, const std::vector<float>& in,
                          std::vector<float>& out, std::size_t batch) {
  const std::size_t inputs = parameters_[weight].shape[0];
  const std::size_t outputs = parameters_[weight].shape[1];
  out.resize(batch * outputs);
  multiply({batch, outputs, inputs}, {in.data(), inputs, 1}, weights + parameters_[weight].offset, out.data(),
           workspace_);
  const float* shift = weights + parameters_[bias].offset;
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t o = 0; o < outputs; ++o) out[b * outputs + o] += shift[o];
  }
}

void Model::backward_layer(Which weight, Which bias, const std::vector<float>& in,
                           const std::vector<float>& out_gradient, std::vector<float>* in_gradient, float* gradients,
                           std::size_t batch) {
  const std::size_t inputs = parameters_[weight].shape[0];
  const std::size_t outputs = parameters_[weight].shape[1];
  multiply({inputs, outputs, batch}, {in.data(), 1, inputs}, out_gradient.data(),
           gradients + parameters_[weight].offset, workspace_);
  float* shift = gradients + parameters_[bias].offset;
  std::fill_n(shift, outputs, 0.0f);
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t o = 0; o < outputs; ++o) shift[o] += out_gradient[b * outputs + o];
  }
  const Derived& transposed = derived_[weight == kHidden1Weight ? 0 : weight == kHidden2Weight ? 1 : 2];
  in_gradient->resize(batch * inputs);
  multiply({batch, inputs, outputs}, {out_gradient.data(), outputs, 1}, transposed.values.data(), in_gradient->data(),
           workspace_);
}

// mask_ is 0 or 1/(1-p) per unit, drawn sixteen bits at a time.
void Model::drop_out(Xoshiro& dropout) {
  const auto dropped_below = static_cast<std::uint32_t>(options_.dropout * 65536.0);
  const auto kept = static_cast<float>(65536.0 / (65536.0 - dropped_below));
  mask_.resize(hidden2_.size());
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < mask_.size(); ++i, bits >>= 16) {
    if (i % 4 == 0) bits = dropout.next();
    mask_[i] = (bits & 0xffff) < dropped_below ? 0.0f : kept;
  }
  for (std::size_t i = 0; i < mask_.size(); ++i) hidden2_[i] *= mask_[i];
}

// Turns output_ from logits into the gradient of scale * loss.
double Model::softmax_loss(std::span<const std::uint8_t> text, std::span<const std::uint64_t> samples, float scale) {
  double loss = 0.0;
  for (std::size_t b = 0; b < samples.size(); ++b) {
    float* row = output_.data() + b * kVocabulary;
    const std::uint8_t target = text[samples[b] + kContext];
    const float largest = *std::max_element(row, row + kVocabulary);
    const double target_logit = row[target] - largest;
    double sum = 0.0;
    for (std::size_t v = 0; v < kVocabulary; ++v) {
      row[v] = exponential(row[v] - largest);
      sum += row[v];
    }
    loss += logarithm(sum) - target_logit;
    const auto factor = static_cast<float>(scale / sum);
    for (std::size_t v = 0; v < kVocabulary; ++v) row[v] *= factor;
    row[target] -= scale;
  }
  return loss;
}

namespace {

void rectify(std::vector<float>& values) {
  for (float& value : values) value = value > 0.0f ? value : 0.0f;
}

// Where the unit was off, nothing flows back.
void rectify_gradient(const std::vector<float>& values, std::vector<float>& gradient) {
  for (std::size_t i = 0; i < values.size(); ++i) gradient[i] = values[i] > 0.0f ? gradient[i] : 0.0f;
}

}  // namespace

double Model::forward_backward(std::span<const float> weights, std::span<const std::uint8_t> text,
                               std::span<const std::uint64_t> samples, float scale, Xoshiro& dropout,
                               std::span<float> gradients) {
  const std::size_t batch = samples.size();
  embed(weights.data(), text, samples);
  forward_layer(weights.data(), kHidden1Weight, kHidden1Bias, input_, hidden1_, batch);
  rectify(hidden1_);
  forward_layer(weights.data(), kHidden2Weight, kHidden2Bias, hidden1_, hidden2_, batch);
  rectify(hidden2_);
  drop_out(dropout);
  forward_layer(weights.data(), kOutputWeight, kOutputBias, hidden2_, output_, batch);
  const double loss = softmax_loss(text, samples, scale);

  float* out = gradients.data();
  backward_layer(kOutputWeight, kOutputBias, hidden2_, output_, &hidden2_gradient_, out, batch);
  for (std::size_t i = 0; i < mask_.size(); ++i) hidden2_gradient_[i] *= mask_[i];
  rectify_gradient(hidden2_, hidden2_gradient_);  // a dropped unit is 0 here, and its gradient is 0 already
  backward_layer(kHidden2Weight, kHidden2Bias, hidden1_, hidden2_gradient_, &hidden1_gradient_, out, batch);
  rectify_gradient(hidden1_, hidden1_gradient_);
  backward_layer(kHidden1Weight, kHidden1Bias, input_, hidden1_gradient_, &input_gradient_, out, batch);

  std::fill_n(out, kVocabulary * kEmbedding, 0.0f);
  const float* from = input_gradient_.data();
  for (const std::uint64_t sample : samples) {
    for (std::size_t i = 0; i < kContext; ++i, from += kEmbedding) {
      float* row = out + text[sample + i] * kEmbedding;
      for (std::size_t e = 0; e < kEmbedding; ++e) row[e] += from[e];
    }
  }
  std::fill(gradients.begin() + static_cast<std::ptrdiff_t>(parameter_count_), gradients.end(), 0.0f);  // padding
  return loss;
}

}  // namespace charlm
